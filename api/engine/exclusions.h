/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/exclusions.h - which settings cannot be combined yet, and why: one table.
 *
 * A check of two settings against each other is a row of exclusions.json, of which the build makes
 * exclusion_rows.c.  What needs the model or the device
 * (whether heads divide, whether cores are left) is checked where these are known.
 *
 * Invariant: docs/OPERATIONS.md has the same rows, in this order (tests/api/test_exclusions.c).
 *
 * Thread: any.
 */
#pragma once

#include "api/engine/settings.h"

struct hzp_exclusion {
    const char *facts; /* that must all be so: names in exclusions.c */
    const char *option, *with, *why;
};
extern const struct hzp_exclusion hzp_exclusion_rows[];
extern const int hzp_exclusion_count;

/* Whether so many ranks can run with these settings.  HZP_EINVAL is one line that names the option,
 * what it cannot be used with, and why: the first row that applies. */
int hzp_exclusions_check(const struct hzp_engine_settings *settings, int ranks,
                         struct hzp_err_text *reterr);
