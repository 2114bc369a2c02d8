/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/exceptions.h"

#include "nanobatch/time/step_times.h"

enum {
    PROBE_EVERY = 64,
    OVERRUN_EVERY = 256,
    DERIVED_EVERY = 128,
    DESPITE_EVERY = 1024, /* although goals are missed */
};

bool hzp_skip_step(struct hzp_exceptions *e, bool prompts, bool itl_goal, bool ttft_goal,
                   uint64_t steps_known)
{
    if (prompts && !ttft_goal && e->passed_over < HZP_SPLIT_PASSED_OVER_MAX) {
        e->passed_over++;
        return true;
    }
    e->passed_over = 0;
    if (!itl_goal && !ttft_goal)
        return false;
    if (steps_known < HZP_STEP_TIMES_FEW)
        return true;
    e->since_probe = (e->since_probe + 1) % PROBE_EVERY;
    return e->since_probe == 0;
}

bool hzp_overrun_allowed(const struct hzp_exceptions *e, const struct hzp_overrun_case *c)
{
    int32_t every = c->derived_goal ? DERIVED_EVERY : OVERRUN_EVERY;
    if (c->prompts) /* such a step is long already; but there may be no others */
        every = c->derived_goal ? 2 * DERIVED_EVERY : INT32_MAX;
    /* What the next item takes is not known, 0, before training has had time for one. */
    if (e->since_overrun < every || (c->allowed_ns >= 1 && c->next_ns <= c->allowed_ns))
        return false;
    if (c->derived_goal)
        return (c->rarely_missed || e->since_overrun >= DESPITE_EVERY) && !c->skipped &&
               c->share_ns > 0;
    return c->allowed_ns > 0 && c->rarely_missed &&
           (!c->itl_ns || c->next_ns < 2 * (double)c->itl_ns);
}

bool hzp_beside_allowed(const struct hzp_exceptions *e, double takes_ns, double limit_ns,
                        double overdue_factor, bool rarely_missed)
{
    return e->since_beside >= OVERRUN_EVERY && takes_ns < 2 * limit_ns && overdue_factor == 1 &&
           rarely_missed;
}

void hzp_exceptions_count(struct hzp_exceptions *e, bool overran, bool beside)
{
    e->since_overrun = overran ? 0 : e->since_overrun + 1;
    e->since_beside = beside ? 0 : e->since_beside + 1;
}
