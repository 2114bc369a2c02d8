/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the constraints of a plan one after another, from the plan alone. */
#include "mesh/paths/paths_private.h"

int hzp_paths_path_check(const struct hzp_paths_problem *p, const struct hzp_paths_plan *plan,
                         int m, int *count, struct hzp_err_text *reterr)
{
    uint32_t set = 0;
    int front = 0, swaps = 0;
    for (int k = 0; k < plan->length; k++) {
        int n = plan->path[m][k], stage = n < p->nodes ? p->node[n].stage : -1;
        if (stage < 0)
            return HZP_PATHS_BAD("micro-batch %d: there is no node %d", m, n);
        if (k == 0 && stage)
            return HZP_PATHS_BAD("micro-batch %d begins with stage %d", m, stage);
        if (set >> stage & 1)
            return HZP_PATHS_BAD("micro-batch %d: stage %d is visited twice", m, stage);
        if (stage < front - 1)
            return HZP_PATHS_BAD("micro-batch %d: stage %d comes after %d, which is no neighbour",
                                 m, stage, front);
        swaps += stage < front;
        front = HZP_MAX(front, stage);
        set |= 1u << stage;
        count[stage]++;
    }
    if (swaps > p->swaps)
        return HZP_PATHS_BAD("micro-batch %d: %d swaps, of %d allowed", m, swaps, p->swaps);
    for (int s = 0; s < p->kept; s++)
        if (!(set >> s & 1))
            return HZP_PATHS_BAD("micro-batch %d: stage %d must be on its path", m, s);
    if (hzp_paths_gaps(p, set) < 0)
        return HZP_PATHS_BAD("micro-batch %d: more than %d skipped in a row", m, HZP_PATHS_RUN);
    return HZP_OK;
}

static int memory_check(const struct hzp_paths_problem *p, const struct hzp_paths_plan *plan, int n,
                        struct hzp_err_text *reterr)
{
    int held = 0;
    if (plan->ops[n] < 0 || plan->ops[n] > HZP_PATHS_OPS)
        return HZP_PATHS_BAD("node %d has %d ops", n, plan->ops[n]);
    for (int i = 0; i < plan->ops[n]; i++) {
        const struct hzp_paths_op *op = &plan->order[n][i];
        held += (op->kind == HZP_PATHS_FORWARD) - (op->kind == HZP_PATHS_BACKWARD);
        if (held > p->node[n].memory)
            return HZP_PATHS_BAD("node %d: the forward of %d is one more than its memory of %d", n,
                                 op->micro, p->node[n].memory);
    }
    return HZP_OK;
}

int hzp_paths_check(const struct hzp_paths_problem *p, const struct hzp_paths_plan *plan,
                    struct hzp_err_text *reterr)
{
    int count[HZP_PATHS_STAGES] = {0};
    double seconds;
    HZP_TRY(hzp_paths_problem_check(p, reterr));
    if (plan->length != hzp_paths_length(p))
        return HZP_PATHS_BAD("paths of %d stages, not %d", plan->length, hzp_paths_length(p));
    for (int m = 0; m < p->micros; m++)
        HZP_TRY(hzp_paths_path_check(p, plan, m, count, reterr));
    for (int a = p->kept; a < p->stages; a++)
        for (int b = p->kept; b < p->stages; b++)
            if (count[a] > count[b] + 1)
                return HZP_PATHS_BAD("stage %d trains %d micro-batches, stage %d only %d", a,
                                     count[a], b, count[b]);
    for (int s = p->kept; s < p->stages && p->turn; s++)
        if (count[s] != hzp_paths_share(p, s))
            return HZP_PATHS_BAD("stage %d trains %d micro-batches, and it is its turn to train %d",
                                 s, count[s], hzp_paths_share(p, s));
    for (int n = 0; n < p->nodes; n++)
        HZP_TRY(memory_check(p, plan, n, reterr));
    HZP_TRY(hzp_paths_simulate(p, plan, &seconds, reterr)); /* each op once, in its place */
    if (!(fabs(seconds - plan->seconds) <= 1e-9 * seconds))
        return HZP_PATHS_BAD("the plan says %g s and takes %g s", plan->seconds, seconds);
    return HZP_OK;
}
