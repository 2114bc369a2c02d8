/* SPDX-License-Identifier: Apache-2.0 */
/* Events: which op a node begins next, when it ends, and when its result arrives.
 *
 * A micro-batch has one op at a time, and `ready` is when its input is there.  A node begins an op
 * when it is free, and a link carries results in the order in which its node made them; so times
 * depend on the nodes' orders alone, not on the order in which this file looks at nodes. */
#include "mesh/paths/paths_private.h"

struct run {
    const struct hzp_paths_problem *p;
    const struct hzp_paths_plan *plan;
    int length, left; /* left: ops that have not begun */
    int step[HZP_PATHS_MICROS], held[HZP_PATHS_NODES];
    double ready[HZP_PATHS_MICROS], idle[HZP_PATHS_NODES], seconds;
    double link_idle[HZP_PATHS_NODES][HZP_PATHS_NODES];
    bool swapped; /* a path has stages out of order */
};

static int node_at(const struct run *r, int m, int k)
{
    return r->plan->path[m][hzp_paths_at(r->length, k)];
}

static void begin_run(struct run *r, const struct hzp_paths_problem *p,
                      const struct hzp_paths_plan *plan)
{
    memset(r, 0, sizeof(*r));
    r->p = p;
    r->plan = plan;
    r->length = plan->length;
    r->left = p->micros * (2 * plan->length + 1);
    for (int m = 0; m < p->micros; m++)
        for (int k = 1; k < plan->length; k++)
            r->swapped |= p->node[plan->path[m][k]].stage < p->node[plan->path[m][k - 1]].stage;
}

/* Does micro-batch m's op; its result goes to the node of the next one. */
static void perform(struct run *r, int m)
{
    int k = r->step[m]++, n = node_at(r, m, k), to = k < 2 * r->length ? node_at(r, m, k + 1) : n;
    enum hzp_paths_kind kind = hzp_paths_kind_of(r->length, k);
    double end = HZP_MAX(r->ready[m], r->idle[n]) + hzp_paths_seconds(&r->p->node[n], kind);
    r->held[n] += (kind == HZP_PATHS_FORWARD) - (kind == HZP_PATHS_BACKWARD);
    r->left--;
    r->ready[m] = r->idle[n] = end;
    r->seconds = HZP_MAX(r->seconds, end);
    if (to != n) {
        double *idle = &r->link_idle[n][to];
        *idle = HZP_MAX(*idle, end) + r->p->link[n][to].busy_s;
        r->ready[m] = *idle + r->p->link[n][to].latency_s;
    }
}

/* ---- following given orders ---- */

/* Whether the op is the next one of its micro-batch. */
static bool can_follow(const struct run *r, int n, const struct hzp_paths_op *op)
{
    int k = op->micro < r->p->micros ? r->step[op->micro] : 2 * r->length + 1;
    return k <= 2 * r->length && node_at(r, op->micro, k) == n &&
           hzp_paths_kind_of(r->length, k) == op->kind;
}

int hzp_paths_simulate(const struct hzp_paths_problem *p, const struct hzp_paths_plan *plan,
                       double *ret_seconds, struct hzp_err_text *reterr)
{
    int at[HZP_PATHS_NODES] = {0};
    struct run r;
    begin_run(&r, p, plan);
    for (int before = -1; before != r.left;) {
        before = r.left;
        for (int n = 0; n < p->nodes; n++)
            for (; at[n] < plan->ops[n] && can_follow(&r, n, &plan->order[n][at[n]]); at[n]++)
                perform(&r, plan->order[n][at[n]].micro);
    }
    for (int n = 0; n < p->nodes; n++)
        if (at[n] < plan->ops[n])
            return HZP_PATHS_BAD("node %d waits for ever for op %d of micro-batch %d", n, at[n],
                                 plan->order[n][at[n]].micro);
    for (int m = 0; m < p->micros; m++)
        if (r.step[m] <= 2 * r.length)
            return HZP_PATHS_BAD("micro-batch %d: step %d is in no order", m, r.step[m]);
    *ret_seconds = r.seconds;
    return HZP_OK;
}

/* ---- finding orders ---- */

/* Whether all can still end if m begins its next forward: one after another finds room on the rest
 * of its path and gives back what it holds (Dijkstra's banker).  Paths in order always can. */
static bool safe(const struct run *r, int m)
{
    int room[HZP_PATHS_NODES], left = 0, before = -1, length = r->length;
    bool waits[HZP_PATHS_MICROS];
    for (int n = 0; n < r->p->nodes; n++)
        room[n] = r->p->node[n].memory - r->held[n];
    room[node_at(r, m, r->step[m])]--;
    for (int i = 0; i < r->p->micros; i++)
        left += waits[i] = r->step[i] > 0 || i == m;
    while (left != before) {
        before = left;
        for (int i = 0; i < r->p->micros; i++) {
            int k = r->step[i] + (i == m);
            bool ends = waits[i];
            for (int j = k; ends && j < length; j++)
                ends = room[r->plan->path[i][j]] > 0;
            for (int j = 0; ends && j < HZP_MIN(k, length) && j <= 2 * length - k; j++)
                room[r->plan->path[i][j]]++;
            waits[i] &= !ends;
            left -= ends;
        }
    }
    return !left;
}

/* The micro-batch whose op can begin first; backward and head before forward, then what waited
 * longest.  There is one, as all can end. */
static int next_op(const struct run *r)
{
    int best = -1;
    double best_start = 0;
    for (int m = 0; m < r->p->micros; m++) {
        int k = r->step[m], n = k <= 2 * r->length ? node_at(r, m, k) : 0;
        bool forward = k < r->length, best_forward = best >= 0 && r->step[best] < r->length;
        double start = HZP_MAX(r->ready[m], r->idle[n]);
        bool sooner = best < 0 || start < best_start ||
                      (start <= best_start &&
                       (forward != best_forward ? best_forward : r->ready[m] < r->ready[best]));
        bool room = !forward || (r->held[n] < r->p->node[n].memory);
        if (k > 2 * r->length || !sooner || !room || (forward && r->swapped && !safe(r, m)))
            continue;
        best = m;
        best_start = start;
    }
    HZP_ASSERT(best >= 0);
    return best;
}

void hzp_paths_order(const struct hzp_paths_problem *p, struct hzp_paths_plan *plan)
{
    struct run r;
    begin_run(&r, p, plan);
    memset(plan->ops, 0, sizeof(plan->ops));
    while (r.left) {
        int m = next_op(&r), k = r.step[m], n = node_at(&r, m, k);
        plan->order[n][plan->ops[n]++] =
            (struct hzp_paths_op){(uint8_t)m, (uint8_t)hzp_paths_kind_of(r.length, k)};
        perform(&r, m);
    }
    plan->seconds = r.seconds;
}
