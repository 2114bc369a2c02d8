/* SPDX-License-Identifier: Apache-2.0 */
/* Problems, shares of stages, and paths without a search. */
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
