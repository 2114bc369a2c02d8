/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/waits.h - the requests that wait for their first token, as the scheduler reports
 * them to the split, which leaves them time.
 *
 * Thread: engine; a value.
 */
#pragma once

#include "base/base.h"

/* Requests with prompt rows not yet computed, oldest first; those beyond HZP_WAITS_MAX are left
 * out. */
enum { HZP_WAITS_MAX = 64 };
struct hzp_waits {
    int32_t running, slots; /* running slots in use, and how many there are; slots 0: not known */
    int32_t count;
    struct hzp_wait {
        uint64_t since_ns;           /* device clock: submitted at */
        int32_t rows_left, rows_now; /* rows of its prompt: not computed before this step; in it */
    } of[HZP_WAITS_MAX];
};
