/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/exclusions.h - which settings cannot be combined yet, and why: one table.
 *
 * A check of two settings against each other is a row here.  What needs the model or the device
 * (whether heads divide, whether cores are left) is checked where these are known.
 *
 * Invariant: docs/OPERATIONS.md has the same rows, in this order (tests/api/test_exclusions.c).
 *
 * Thread: any.
 */
#pragma once

#include "api/engine/settings.h"

struct hzp_exclusion {
    const char *option, *with, *why;
};

/* Row i, or NULL behind the last one. */
const struct hzp_exclusion *hzp_exclusion(int i);

/* Whether so many ranks can run with these settings.  HZP_EINVAL is one line that names the option,
 * what it cannot be used with, and why: the first row that applies. */
int hzp_exclusions_check(const struct hzp_engine_settings *settings, int ranks,
                         struct hzp_err_text *reterr);
