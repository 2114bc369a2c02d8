/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/policy.h - the operator's goals and limits for the split between serving and
 * training (--slo, --train-share, /v1/policy).
 *
 * Thread: any; a value.
 */
#pragma once

#include "base/err.h"

struct hzp_policy {
    /* Goals for the 99th percentile: time to first token, inter-token latency.  0: none. */
    uint64_t ttft_ns, itl_ns;
    /* Without an ITL goal: by what factor training may lengthen the 99th percentile of the ITL over
     * what it would be without training; 0: by any, else 1 .. 100. */
    double itl_stretch;
    /* While requests run and no ITL goal is set: training's time over serving's; where it runs
     * beside serving, the time by which that takes longer over what it takes alone. */
    double train_share;
    /* While requests run, whatever the goals allow or forbid: the most and the least part of the
     * device's time that training gets, 0 .. 1.  The least grows with the age of what waits to be
     * learned, up to five times, and is never more than the most. */
    double train_max, train_min;
};

/* Shares as the command line has them, no goals. */
extern const struct hzp_policy hzp_policy_default;

/* HZP_EINVAL names the field that is out of range. */
int hzp_policy_check(const struct hzp_policy *policy, struct hzp_err_text *reterr);

/* Goals as text, `ttft=500ms,itl=50ms`: either may be absent, units are us, ms and s; "" and
 * "none": no goals.  HZP_EINVAL says what is wrong (param: the caller's name of it), *ret is
 * untouched. */
int hzp_policy_parse_goals(const char *text, const char *param, struct hzp_policy *ret,
                           struct hzp_err_text *reterr);
