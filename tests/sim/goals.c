/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/goals.c - sets an ITL goal while the engine runs, and checks that training neither
 * makes serving miss it nor is kept from running. */
#include "tests/sim/world.h"

#include "nanobatch/split/split.h"

#include <stdlib.h>

enum { SET_AT = 300, COUNT_FROM = 420 }; /* in serving steps */

/* The goal is several times the length of serving's late gaps. */
static void set_goal(struct sim_world *w, uint64_t now_ns)
{
    struct hzp_split *split = hzp_loop_split(w->loop);
    struct hzp_split_report *report = hzp_xmalloc(sizeof(*report));
    struct hzp_policy policy;
    hzp_split_read(split, now_ns, report);
    hzp_split_policy(split, &policy);
    w->goal_ns = (2 + w->seed % 3) * hzp_window_quantile(&report->itl, 0.99);
    policy.itl_ns = w->goal_ns * (w->sabotage == SIM_GREEDY_TRAINER ? 4 : 1);
    hzp_split_set_policy(split, &policy);
    free(report);
}

/* Called for a step that has ended, on a device whose ops end at issue. */
void sim_check_goals(struct sim_world *w, const struct hzp_outcome *outcome)
{
    const struct hzp_batch *batch = w->offer->batch;
    uint64_t before = w->last_tokens_ns;
    w->last_tokens_ns = batch->rows > 0 ? outcome->end_ns : 0;
    if (!w->goals || batch->rows == 0)
        return;
    if (w->serve_steps == SET_AT)
        set_goal(w, outcome->end_ns);
    if (w->serve_steps < COUNT_FROM || !before || !batch->decode_segs)
        return;
    uint64_t gap = outcome->end_ns - before, train = w->seen_train_ns;
    w->gaps++;
    w->trained_gaps += train > 0;
    w->late_gaps += gap > w->goal_ns && gap - HZP_MIN(train, gap) <= w->goal_ns;
    SIM_CHECK(w, w->late_gaps <= 6 + w->gaps / 50, "share of training: goal",
              "%llu of %llu gaps missed %llu ns by training", (unsigned long long)w->late_gaps,
              (unsigned long long)w->gaps, (unsigned long long)w->goal_ns);
}
