/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/waits.h - the prompts that wait for their first token, as the scheduler reports
 * them to the split, which leaves them time.
 *
 * Thread: engine; a value.
 */
#ifndef HZP_NANOBATCH_SPLIT_WAITS_H
#define HZP_NANOBATCH_SPLIT_WAITS_H

#include "base/base.h"

/* Prompts with rows not yet computed, oldest first. */
enum { HZP_WAITS_MAX = 64 };
struct hzp_waits {
    int32_t running, places; /* requests that run, and how many may; places 0: not said */
    int32_t count;           /* those beyond HZP_WAITS_MAX are left out */
    struct hzp_wait {
        uint64_t since_ns;           /* device clock: asked for at */
        int32_t rows_left, rows_now; /* of the prompt: not computed before this step; in it */
    } of[HZP_WAITS_MAX];
};

#endif
