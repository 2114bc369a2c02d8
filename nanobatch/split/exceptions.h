/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/exceptions.h - steps that depart from what goals and share say, counted in steps
 * that serve.
 *
 *     skip      training is left out of a step
 *               - that has prompt rows, at most 8 in a row, where there is no TTFT goal: such a
 *                 step is long already, but prompts may never cease
 *               - among the first 8, while predictions are guesses, and of one in 64 after that,
 *                 where goals, or training beside serving, rely on predictions: steps without
 *                 training keep the two stages of the step times apart
 *     overrun   one item may be longer than the goals allow, or an item that never fits would hold
 *               up all behind it for ever; never where the share is used up
 *               - under the operator's goals: one step in 256 that only decodes, if misses are
 *                 rare and the item takes less than twice the ITL goal
 *               - under a derived goal: one in 128 (256 with prompts) if misses are rare, one in
 *                 1024 if they are not
 *     beside    training runs beside serving once in 256 steps although that was predicted to be
 *               late, if misses are rare and it takes less than twice the limit: so that a
 *               recovered prediction can be observed
 *
 * Thread: engine.
 */
#pragma once

#include "base/base.h"

/* So many steps with prompts may pass training over in a row, where there is no TTFT goal. */
enum { HZP_SPLIT_PASSED_OVER_MAX = 8 };

struct hzp_exceptions {
    int32_t passed_over;   /* steps with prompts in a row */
    int32_t since_probe;   /* steps since one without training for the predictor's sake */
    int32_t since_overrun; /* steps since an item was longer than allowed */
    int32_t since_beside;  /* steps since training ran beside serving */
};

/* Whether training is left out of this step; counts it. */
bool hzp_skip_step(struct hzp_exceptions *exceptions, bool prompts, bool itl_goal, bool ttft_goal,
                   uint64_t steps_known);

struct hzp_overrun_case {
    bool derived_goal;  /* the ITL goal follows from itl_stretch */
    bool prompts;       /* the step has prompt rows */
    bool skipped;       /* training is left out of it */
    bool rarely_missed; /* hzp_throttle_rarely_missed */
    double allowed_ns;  /* by goals and share */
    double share_ns;    /* what the share leaves */
    double next_ns;     /* duration of training's next item; 0: not known */
    uint64_t itl_ns;    /* the goal; 0: none */
};
bool hzp_overrun_allowed(const struct hzp_exceptions *exceptions, const struct hzp_overrun_case *c);

/* takes_ns: serving's predicted time beside training, which exceeds limit_ns.  overdue_factor:
 * hzp_throttle_overdue. */
bool hzp_beside_allowed(const struct hzp_exceptions *exceptions, double takes_ns, double limit_ns,
                        double overdue_factor, bool rarely_missed);

/* A step that served has ended. */
void hzp_exceptions_count(struct hzp_exceptions *exceptions, bool overran, bool beside);
