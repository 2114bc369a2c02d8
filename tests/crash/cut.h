/* SPDX-License-Identifier: Apache-2.0 */
/* tests/crash/cut.h - what a disk may hold after a power cut: of a tape (tests/crash/disk.h) up to
 * some call, what was synced, and of the rest what a mode and a seed choose.
 *
 * A write that was not synced may be there, missing, there in part (whole sectors of it), or be
 * zeros; each independently of those before and after it.  A sync that was refused leaves each
 * write before it there or lost, and no later sync brings it back.  Names (files created, renamed,
 * removed) are safe when their directory was synced.
 *
 * Thread: one.
 */
#pragma once

#include "tests/crash/disk.h"

enum cut_mode {
    CUT_KEPT,    /* all is there: the process was killed, and the system lives */
    CUT_LOST,    /* nothing that was not synced */
    CUT_ORDERED, /* names change in order, and any sync makes all earlier ones safe, as in a
                  * journaling file system; data as described above */
    CUT_ANY,     /* of the changes of names that were not synced, any */
    CUT_MODES
};
const char *cut_mode_name(enum cut_mode mode);

/* Makes the directory `to` as the watched one would be after the first `ops` calls of the tape. */
void cut_make(int32_t ops, enum cut_mode mode, uint64_t seed, const char *to);
