/* SPDX-License-Identifier: Apache-2.0 */
/* Problems, shares of stages, and paths without a search. */
#include "mesh/paths/paths.h"

#include "mesh/paths/paths_private.h"

#define SECONDS_MAX 1e6

int hzp_paths_length(const struct hzp_paths_problem *p)
{
    int length = (int)lround((1 - p->skip) * p->stages);
    return HZP_MAX(length, p->kept);
}

int hzp_paths_gaps(const struct hzp_paths_problem *p, uint32_t set)
{
    uint32_t kept = (1u << p->kept) - 1;
    int run = 0, longest = 0, gaps = 0;
    for (int s = 0; s < p->stages; s++) {
        run = set >> s & 1 ? 0 : run + 1;
        longest = HZP_MAX(longest, run);
        gaps += run;
    }
    return (set & kept) == kept && longest <= HZP_PATHS_RUN ? gaps : -1;
}

int hzp_paths_share(const struct hzp_paths_problem *p, int s)
{
    int others = p->stages - p->kept, visits = p->micros * (hzp_paths_length(p) - p->kept);
    int behind = (s - p->kept - (p->turn - 1) + others) % others; /* the stage whose turn it is */
    return visits / others + (p->turn ? behind < visits % others : visits % others > 0);
}

double hzp_paths_transfer(const struct hzp_paths_problem *p, int from, int to)
{
    return from == to ? 0 : p->link[from][to].latency_s + p->link[from][to].busy_s;
}

/* ---- problems ---- */

static int within(double value, double low, double high, const char *what,
                  struct hzp_err_text *reterr)
{
    return value >= low && value <= high
               ? HZP_OK
               : HZP_PATHS_BAD("%s is %g, not from %g to %g", what, value, low, high);
}

static int node_check(const struct hzp_paths_problem *p, int n, struct hzp_err_text *reterr)
{
    const struct hzp_paths_node *node = &p->node[n];
    if (node->stage < 0 || node->stage >= p->stages)
        return HZP_PATHS_BAD("node %d: there is no stage %d", n, node->stage);
    if (node->memory < 1)
        return HZP_PATHS_BAD("node %d: memory %d holds no micro-batch", n, node->memory);
    if (!(node->forward_s > 0 && node->forward_s <= SECONDS_MAX))
        return HZP_PATHS_BAD("node %d: a forward of %g s", n, node->forward_s);
    if (!(node->head_s >= 0 && node->head_s <= SECONDS_MAX))
        return HZP_PATHS_BAD("node %d: a head of %g s", n, node->head_s);
    for (int to = 0; to < p->nodes; to++) {
        const struct hzp_paths_link *l = &p->link[n][to];
        if (!(l->latency_s >= 0 && l->busy_s >= 0 && l->latency_s + l->busy_s <= SECONDS_MAX))
            return HZP_PATHS_BAD("a link from node %d to %d of %g + %g s", n, to, l->latency_s,
                                 l->busy_s);
    }
    return HZP_OK;
}

int hzp_paths_problem_check(const struct hzp_paths_problem *p, struct hzp_err_text *reterr)
{
    uint32_t set[HZP_PATHS_MICROS], held = 0;
    HZP_TRY(within(p->stages, 1, HZP_PATHS_STAGES, "stages", reterr));
    HZP_TRY(within(p->nodes, 1, HZP_PATHS_NODES, "nodes", reterr));
    HZP_TRY(within(p->micros, 1, HZP_PATHS_MICROS, "micro-batches", reterr));
    HZP_TRY(within(p->swaps, 0, HZP_PATHS_SWAPS, "swaps", reterr));
    HZP_TRY(within(p->kept, 1, p->stages, "kept stages", reterr));
    HZP_TRY(within(p->budget, 0, 1e6, "budget", reterr));
    HZP_TRY(within(p->turn, 0, p->stages - p->kept, "turn", reterr));
    HZP_TRY(within(p->skip, 0, 0.99, "skip", reterr));
    for (int n = 0; n < p->nodes; n++) {
        HZP_TRY(node_check(p, n, reterr));
        held |= 1u << p->node[n].stage;
    }
    for (int s = 0; s < p->stages; s++)
        if (!(held >> s & 1))
            return HZP_PATHS_BAD("stage %d is on no node", s);
    if (hzp_paths_length(p) == p->kept && p->kept < p->stages)
        return HZP_PATHS_BAD("skip %g leaves the %d kept stages only, and no path for stage %d",
                             p->skip, p->kept, p->kept);
    if (!hzp_paths_deal(p, 0, set))
        return HZP_PATHS_BAD(
            "skip %g leaves %d of %d stages: no even shares were found with at most "
            "%d skipped in a row",
            p->skip, hzp_paths_length(p), p->stages, HZP_PATHS_RUN);
    return HZP_OK;
}

/* ---- shares of stages ---- */

static uint32_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 40);
}

/* The allowed set that was trained least; among equals by the ties, then the one of small gaps. */
static uint32_t least_trained(const struct hzp_paths_problem *p, const int *count,
                              const uint32_t *tie)
{
    uint32_t best = 0, set = (1u << hzp_paths_length(p)) - 1, low, up;
    uint64_t most = 0;
    int left[HZP_PATHS_STAGES]; /* a stage of a larger share comes sooner */
    for (int s = p->kept; s < p->stages; s++)
        left[s] = p->turn ? p->micros + hzp_paths_share(p, s) : p->micros;
    for (; set < 1u << p->stages; set = up | ((set ^ up) >> 2) / low) { /* the next of this size */
        int gaps = hzp_paths_gaps(p, set);
        uint64_t weight = 1024 - (uint64_t)gaps;
        low = set & -set;
        up = set + low;
        for (int s = p->kept; s < p->stages; s++)
            weight += set >> s & 1 ? ((uint64_t)(left[s] - count[s]) << 32) + tie[s] : 0;
        if (gaps >= 0 && weight > most) {
            best = set;
            most = weight;
        }
    }
    return best;
}

bool hzp_paths_deal(const struct hzp_paths_problem *p, uint64_t seed, uint32_t *ret_set)
{
    int count[HZP_PATHS_STAGES] = {0}, low = p->micros, high = 0;
    uint32_t tie[HZP_PATHS_STAGES] = {0};
    uint64_t state = seed * 0x9e3779b97f4a7c15u;
    bool even = true;
    for (int m = 0; m < p->micros; m++) {
        for (int s = 0; s < p->stages && seed; s++)
            tie[s] = draw(&state);
        ret_set[m] = least_trained(p, count, tie);
        for (int s = 0; s < p->stages; s++)
            count[s] += (int)(ret_set[m] >> s & 1);
    }
    for (int s = p->kept; s < p->stages; s++) {
        low = HZP_MIN(low, count[s]);
        high = HZP_MAX(high, count[s]);
        even &= !p->turn || count[s] == hzp_paths_share(p, s);
    }
    return ret_set[0] && even && high - low <= 1;
}

/* ---- paths ---- */

/* The node of the stage that was taken least; among equals the one of the least weight. */
static uint8_t next_node(const struct hzp_paths_problem *p, int stage, int *taken,
                         const double *weight)
{
    int best = -1;
    for (int n = 0; n < p->nodes; n++)
        if (p->node[n].stage == stage && (best < 0 || taken[n] < taken[best] ||
                                          (taken[n] == taken[best] && weight[n] < weight[best])))
            best = n;
    taken[best]++;
    return (uint8_t)best;
}

int hzp_paths_home(const struct hzp_paths_problem *p, int m)
{
    int taken[HZP_PATHS_NODES] = {0}, home = 0;
    const double weight[HZP_PATHS_NODES] = {0};
    for (int i = 0; i <= m; i++)
        home = next_node(p, 0, taken, weight);
    return home;
}

void hzp_paths_dealt(const struct hzp_paths_problem *p, uint64_t seed, struct hzp_paths_plan *ret)
{
    int taken[HZP_PATHS_NODES] = {0};
    double weight[HZP_PATHS_NODES];
    uint32_t set[HZP_PATHS_MICROS];
    uint64_t state = seed;
    ret->length = hzp_paths_length(p);
    HZP_ASSERT(hzp_paths_deal(p, seed, set) || hzp_paths_deal(p, 0, set));
    for (int m = 0; m < p->micros; m++) {
        uint8_t *path = ret->path[m];
        *path = (uint8_t)hzp_paths_home(p, m);
        for (int s = 1; s < p->stages; s++) {
            for (int n = 0; n < p->nodes; n++)
                weight[n] = seed ? draw(&state) : hzp_paths_transfer(p, *path, n);
            if (set[m] >> s & 1)
                *++path = next_node(p, s, taken, weight);
        }
    }
    hzp_paths_order(p, ret);
}

/* Proves the constraints of a plan one after another, from the plan alone. */

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

/* Events: which op a node begins next, when it ends, and when its result arrives.
 *
 * A micro-batch has one op at a time, and `ready` is when its input is there.  A node begins an op
 * when it is free, and a link carries results in the order in which its node made them; so times
 * depend on the nodes' orders alone, not on the order in which this file looks at nodes. */

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

/* Whether all can still end if m begins its next forward: each in turn finds room on what is left
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
