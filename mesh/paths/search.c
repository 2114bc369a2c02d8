/* SPDX-License-Identifier: Apache-2.0 */
/* Conflict-based search, as in SkipPipe's code (schedulers/CBS.py, a_star_modified.py).
 *
 * Above: best-first over sets of constraints.  The first conflict of a state's paths makes its
 * children: a stage that too many visit (the slowest are banned), a node over its memory (so too),
 * two micro-batches at one node at one time (one is delayed).  Below: A* for each micro-batch whose
 * constraints changed, over (stages, node, swaps): two transfers and 2.5 forwards a step, and here
 * a forward for each other one on the node.  States with even shares are candidates, of which the
 * simulation decides.  At last nodes are exchanged between the paths of the best and of random
 * ones while that makes them faster, which is not in their code. */
#include "mesh/paths/paths_private.h"

#include <float.h>

enum { STATES = 64, TRAILS = 1024, DEALS = 8, CHILDREN = 2, BUDGET = 2000 };
#define ENOUGH 0.88 /* times the first candidate's seconds */

struct state {
    uint64_t ban[HZP_PATHS_MICROS];                    /* bits of nodes */
    float after[HZP_PATHS_MICROS][2][HZP_PATHS_NODES]; /* no forward, backward on the node before */
    uint8_t path[HZP_PATHS_MICROS][HZP_PATHS_STAGES];
    double cost[HZP_PATHS_MICROS]; /* its end, if only delays hold it up; 0: no path yet */
    bool settled;                  /* shares are even, and stages fixed */
    double rank;                   /* least first; DBL_MAX: not in use */
};

struct trail { /* the beginning of a path */
    uint8_t node[HZP_PATHS_STAGES];
    int count, front, swaps;
    uint32_t set;
    double at, back, estimate; /* end of the forward, seconds of the backward, of a whole path */
};

struct search {
    const struct hzp_paths_problem *p;
    int length, wave, candidates, budget; /* wave: micro-batches that the homes hold at once */
    double begin[HZP_PATHS_MICROS][2 * HZP_PATHS_STAGES + 1], least_step, climbed;
    uint64_t stage_nodes[HZP_PATHS_STAGES];
    struct state state[STATES], now;
    struct trail trail[TRAILS];
    uint32_t seen[TRAILS];
    int trails, visitors[HZP_PATHS_NODES]; /* as the last wave was counted */
    struct hzp_paths_plan trial, *best;
};

/* Which nodes are on the micro-batch's path. */
static uint64_t visited(const struct search *s, const struct state *st, int m)
{
    uint64_t nodes = 0;
    for (int k = 0; k < s->length && st->cost[m] > 0; k++)
        nodes |= 1ull << st->path[m][k];
    return nodes;
}

static void count_visitors(struct search *s, const struct state *st, int wave)
{
    memset(s->visitors, 0, sizeof(s->visitors));
    for (int m = wave * s->wave; m < HZP_MIN((wave + 1) * s->wave, s->p->micros); m++)
        for (int k = 0; k < s->length && st->cost[m] > 0; k++)
            s->visitors[st->path[m][k]]++;
}

/* ---- below: A* ---- */

/* Micro-batches of a wave begin one after another at their homes. */
static double start(const struct search *s, int m)
{
    int homes = __builtin_popcountll(s->stage_nodes[0]);
    return m % s->wave / homes * s->p->node[hzp_paths_home(s->p, m)].forward_s;
}

static double seconds_of(const struct search *s, const struct state *st, int m, int k)
{
    return hzp_paths_seconds(&s->p->node[st->path[m][hzp_paths_at(s->length, k)]],
                             hzp_paths_kind_of(s->length, k));
}

/* Fills when each op of the micro-batch begins, and returns when the last one ends. */
static double walk(struct search *s, const struct state *st, int m)
{
    double t = start(s, m);
    for (int k = 0, from = st->path[m][0]; k <= 2 * s->length; k++) {
        int n = st->path[m][hzp_paths_at(s->length, k)];
        t += hzp_paths_transfer(s->p, from, n);
        s->begin[m][k] = HZP_MAX(t, (double)st->after[m][k >= s->length][n]);
        t = s->begin[m][k] + seconds_of(s, st, m, k);
        from = n;
    }
    return t;
}

/* Takes the trail of the least estimate; false: the same stages were left at its node, with as many
 * swaps, before, and so sooner. */
static bool pop_trail(struct search *s, struct trail *ret, int *seen)
{
    int best = 0;
    for (int i = 1; i < s->trails; i++)
        best = s->trail[i].estimate < s->trail[best].estimate ? i : best;
    *ret = s->trail[best];
    s->trail[best] = s->trail[--s->trails];
    uint32_t key = ret->set | (uint32_t)(ret->swaps << 16 | ret->node[ret->count - 1] << 18);
    for (int i = 0; i < *seen; i++)
        if (s->seen[i] == key)
            return false;
    s->seen[(*seen)++] = key;
    return true;
}

static void extend(struct search *s, const struct state *st, int m, struct trail t, int n)
{
    const struct hzp_paths_node *node = &s->p->node[n];
    int last = t.count ? t.node[t.count - 1] : n, stage = node->stage, ahead = stage - t.front;
    if ((ahead < 0 && (ahead < -1 || t.swaps == s->p->swaps)) || t.set >> stage & 1 ||
        st->ban[m] >> n & 1 || s->trails == TRAILS)
        return;
    t.at += hzp_paths_transfer(s->p, last, n);
    t.at = HZP_MAX(t.at, (double)st->after[m][0][n]) + node->forward_s;
    t.back += hzp_paths_transfer(s->p, n, last) + (1.5 + s->visitors[n]) * node->forward_s;
    t.swaps += ahead < 0;
    t.front = HZP_MAX(t.front, stage);
    t.set |= 1u << stage;
    t.node[t.count++] = (uint8_t)n;
    t.estimate = t.at + t.back + (s->length - t.count) * s->least_step;
    if (t.count == s->length)
        t.estimate +=
            hzp_paths_transfer(s->p, n, t.node[0]) + hzp_paths_transfer(s->p, t.node[0], n);
    s->trail[s->trails++] = t;
}

/* The cheapest path under the state's constraints; false: none was found, and the old one stays. */
static bool find_path(struct search *s, struct state *st, int m)
{
    struct trail t = {.at = start(s, m), .front = -1};
    bool found = false;
    s->trails = 0;
    st->cost[m] = 0; /* it is no visitor of its own */
    count_visitors(s, st, m / s->wave);
    extend(s, st, m, t, hzp_paths_home(s->p, m));
    for (int seen = 0; s->trails && seen < TRAILS && !found;) {
        if (!pop_trail(s, &t, &seen))
            continue;
        found = t.count == s->length && hzp_paths_gaps(s->p, t.set) >= 0;
        for (int n = 0; n < s->p->nodes && t.count < s->length; n++)
            extend(s, st, m, t, n);
    }
    if (found)
        memcpy(st->path[m], t.node, sizeof(t.node));
    st->cost[m] = walk(s, st, m);
    return found;
}

/* ---- above: sets of constraints ---- */

/* order [micros]: the slowest first. */
static void by_cost(const struct search *s, const struct state *st, int *order)
{
    for (int m = 0, i; m < s->p->micros; m++) {
        for (i = m; i > 0 && st->cost[order[i - 1]] < st->cost[m]; i--)
            order[i] = order[i - 1];
        order[i] = m;
    }
}

/* How many too many visit the stage that most visit; 0: shares are even. */
static int crowd(const struct search *s, const struct state *st, int *ret_stage)
{
    const struct hzp_paths_problem *p = s->p;
    int count[HZP_PATHS_STAGES] = {0}, most = p->kept, above = 0, others = p->stages - p->kept;
    int visits = p->micros * (s->length - p->kept), share = others ? visits / others : 0;
    for (int i = p->kept; i < p->stages; i++) {
        for (int m = 0; m < p->micros; m++)
            count[i] += (visited(s, st, m) & s->stage_nodes[i]) != 0;
        if (p->turn)
            count[i] -= hzp_paths_share(p, i); /* above it */
        above += count[i] > share;
        most = count[i] > count[most] ? i : most;
    }
    *ret_stage = most;
    if (p->turn)
        return others ? HZP_MAX(count[most], 0) : 0;
    if (!others || (above <= visits - share * others && count[most] <= share + 1))
        return 0;
    return HZP_MAX(count[most] - share - (visits > share * others), 1);
}

/* Simulates the trial's paths, and keeps the best plan. */
static double offer(struct search *s)
{
    double first = s->candidates++ ? s->best->first_s : DBL_MAX;
    hzp_paths_order(s->p, &s->trial);
    if (first >= DBL_MAX || s->trial.seconds < s->best->seconds)
        *s->best = s->trial;
    s->best->first_s = HZP_MIN(first, first < DBL_MAX ? first : s->trial.seconds);
    return s->trial.seconds;
}

/* Ranks the state and puts it in the list, which loses its worst. */
static void push(struct search *s, struct state *st)
{
    int stage, excess = st->settled ? 0 : crowd(s, st, &stage);
    struct state *worst = s->state;
    st->rank = 0;
    for (int m = 0; m < s->p->micros && excess; m++)
        st->rank = HZP_MAX(st->rank, st->cost[m] * (1 + 0.02 * excess));
    if (!excess) {
        memcpy(s->trial.path, st->path, sizeof(st->path));
        st->rank = offer(s);
        for (int i = 0; i < s->p->stages; i++)
            for (int m = 0; m < s->p->micros; m++)
                st->ban[m] |= visited(s, st, m) & s->stage_nodes[i] ? 0 : s->stage_nodes[i];
        st->settled = true;
    }
    for (int i = 1; i < STATES; i++)
        worst = s->state[i].rank > worst->rank ? &s->state[i] : worst;
    if (st->rank < worst->rank)
        *worst = *st;
}

/* Takes the best state into `now`, those whose shares are not even first; false: there is none. */
static bool pop(struct search *s)
{
    struct state *best = s->state;
    for (struct state *st = s->state; st < s->state + STATES; st++)
        if (st->rank < DBL_MAX && (best->rank >= DBL_MAX || st->settled < best->settled ||
                                   (st->settled == best->settled && st->rank < best->rank)))
            best = st;
    s->now = *best;
    best->rank = DBL_MAX;
    return s->now.rank < DBL_MAX;
}

/* Children in which `count` of the wave's micro-batches (-1: of all) on the nodes are banned from
 * them: the slowest, the next ones and so on. */
static void push_banned(struct search *s, uint64_t nodes, int wave, int count)
{
    int order[HZP_PATHS_MICROS];
    by_cost(s, &s->now, order);
    for (int first = 0; first < CHILDREN; first++) {
        struct state child = s->now;
        int left = count;
        for (int i = first; i < s->p->micros && left; i++) {
            int m = order[i];
            if ((wave >= 0 && m / s->wave != wave) || !(visited(s, &child, m) & nodes))
                continue;
            child.ban[m] |= nodes;
            if (find_path(s, &child, m))
                left--;
            else
                child.ban[m] = s->now.ban[m];
        }
        if (!left)
            push(s, &child);
    }
}

/* Whether a node has more of a wave than memory, while others of its stage have room. */
static bool relieve_node(struct search *s)
{
    for (int wave = 0; wave * s->wave < s->p->micros; wave++) {
        count_visitors(s, &s->now, wave);
        for (int n = 0; n < s->p->nodes; n++) {
            int room = 0, over = s->visitors[n] - s->p->node[n].memory, stage = s->p->node[n].stage;
            for (int i = 0; i < s->p->nodes && stage; i++)
                if (s->p->node[i].stage == stage)
                    room += HZP_MAX(s->p->node[i].memory - s->visitors[i], 0);
            if (HZP_MIN(over, room) > 0) {
                push_banned(s, 1ull << n, wave, HZP_MIN(over, room));
                return true;
            }
        }
    }
    return false;
}

/* A child in which op k of micro-batch m does not begin before `after`. */
static void push_delayed(struct search *s, int m, int k, double after)
{
    struct state child = s->now;
    int n = child.path[m][hzp_paths_at(s->length, k)];
    child.after[m][k >= s->length][n] = (float)after;
    if (find_path(s, &child, m))
        push(s, &child);
    walk(s, &s->now, m);
}

/* Whether ops of two of a wave, not both backward, are at one node at one time: children in which
 * one of two forwards, or the later of others, waits. */
static bool part(struct search *s, int m, int i)
{
    const struct state *st = &s->now;
    for (int k = 0; k <= 2 * s->length && m / s->wave == i / s->wave; k++)
        for (int j = 0; j <= (k > s->length ? s->length : 2 * s->length); j++) {
            double begin[2] = {s->begin[m][k], s->begin[i][j]};
            double end[2] = {begin[0] + seconds_of(s, st, m, k),
                             begin[1] + seconds_of(s, st, i, j)};
            bool forwards = k < s->length && j < s->length;
            if (st->path[m][hzp_paths_at(s->length, k)] !=
                    st->path[i][hzp_paths_at(s->length, j)] ||
                begin[0] >= end[1] || begin[1] >= end[0])
                continue;
            if (forwards || begin[0] <= begin[1])
                push_delayed(s, i, j, end[0]);
            if (forwards || begin[0] > begin[1])
                push_delayed(s, m, k, end[1]);
            return true;
        }
    return false;
}

static void expand(struct search *s)
{
    int stage, excess = s->now.settled ? 0 : crowd(s, &s->now, &stage), order[HZP_PATHS_MICROS];
    if (excess) {
        push_banned(s, s->stage_nodes[stage], -1, excess);
        return;
    }
    if (relieve_node(s))
        return;
    by_cost(s, &s->now, order);
    for (int m = 0; m < s->p->micros; m++)
        walk(s, &s->now, m);
    for (int b = 1; b < s->p->micros; b++)
        for (int a = 0; a < b; a++)
            if (part(s, order[a], order[b]))
                return;
}

/* ---- the whole ---- */

/* A state of given sets of stages; set NULL: of any. */
static void push_root(struct search *s, const uint32_t *set)
{
    bool found = true;
    memset(&s->now, 0, sizeof(s->now));
    for (int m = 0; m < s->p->micros; m++) {
        for (int i = 0; set && i < s->p->stages; i++)
            s->now.ban[m] |= set[m] >> i & 1 ? 0 : s->stage_nodes[i];
        found &= find_path(s, &s->now, m);
    }
    if (found)
        push(s, &s->now);
}

/* Puts the node at position k of a path, and from there to its place in the order of stages. */
static void put(const struct search *s, uint8_t *path, int k, int n)
{
    int stage = s->p->node[n].stage;
    for (; k > 1 && s->p->node[path[k - 1]].stage > stage; k--)
        path[k] = path[k - 1];
    for (; k + 1 < s->length && s->p->node[path[k + 1]].stage < stage; k++)
        path[k] = path[k + 1];
    path[k] = (uint8_t)n;
}

/* Changes path m at k to node n and path i at j to m's node there; in one path the two change
 * places.  Whether that is allowed and faster; otherwise it is undone. */
static bool exchange(struct search *s, int m, int k, int n, int i, int j)
{
    int count[HZP_PATHS_STAGES] = {0}, old = s->trial.path[m][k];
    uint8_t kept[2][HZP_PATHS_STAGES];
    memcpy(kept[0], s->trial.path[m], sizeof(kept[0]));
    memcpy(kept[1], s->trial.path[i], sizeof(kept[1]));
    if (i != m) {
        put(s, s->trial.path[m], k, n);
        put(s, s->trial.path[i], j, old);
    } else {
        s->trial.path[m][j] = (uint8_t)old;
        s->trial.path[m][k] = (uint8_t)n;
    }
    if (s->candidates < s->budget && n != old &&
        hzp_paths_path_check(s->p, &s->trial, m, count, NULL) >= 0 &&
        hzp_paths_path_check(s->p, &s->trial, i, count, NULL) >= 0) {
        double seconds = offer(s);
        if (seconds < s->climbed) {
            s->climbed = seconds;
            return true;
        }
    }
    memcpy(s->trial.path[m], kept[0], sizeof(kept[0]));
    memcpy(s->trial.path[i], kept[1], sizeof(kept[1]));
    return false;
}

/* Exchanges nodes of the trial's paths, for others of their stage or with one another, while that
 * makes it faster. */
static void climb(struct search *s)
{
    bool better = true;
    s->climbed = offer(s);
    while (better) {
        better = false;
        for (int a = 0; a < s->p->micros * (s->length - 1); a++) {
            int m = a / (s->length - 1), k = a % (s->length - 1) + 1;
            for (int n = 0; n < s->p->nodes; n++)
                if (s->p->node[n].stage == s->p->node[s->trial.path[m][k]].stage)
                    better |= exchange(s, m, k, n, m, k);
            if (k + 1 < s->length)
                better |= exchange(s, m, k, s->trial.path[m][k + 1], m, k + 1);
            for (int i = 0; i < m; i++)
                for (int j = 1; j < s->length; j++)
                    better |= exchange(s, m, k, s->trial.path[i][j], i, j);
        }
    }
}

static void search(struct search *s)
{
    const struct hzp_paths_problem *p = s->p;
    uint32_t set[HZP_PATHS_MICROS];
    s->length = s->trial.length = hzp_paths_length(p);
    s->budget = p->budget ? p->budget : BUDGET;
    s->least_step = DBL_MAX;
    for (int i = 0; i < STATES; i++)
        s->state[i].rank = DBL_MAX;
    for (int n = 0; n < p->nodes; n++) {
        s->stage_nodes[p->node[n].stage] |= 1ull << n;
        s->wave += p->node[n].stage ? 0 : p->node[n].memory;
        s->least_step = HZP_MIN(s->least_step, 2.5 * p->node[n].forward_s);
    }
    for (uint64_t seed = 0; seed < DEALS; seed++) {
        if (hzp_paths_deal(p, seed, set))
            push_root(s, set);
        hzp_paths_dealt(p, seed, &s->trial);
        offer(s);
    }
    push_root(s, NULL);
    while (s->candidates < s->budget / 2 && s->best->seconds >= ENOUGH * s->best->first_s && pop(s))
        expand(s);
    memcpy(s->trial.path, s->best->path, sizeof(s->trial.path));
    climb(s);
    for (uint64_t seed = 1; s->candidates < s->budget; seed++) {
        hzp_paths_dealt(p, seed, &s->trial);
        climb(s);
    }
    s->best->candidates = s->candidates;
}

int hzp_paths_plan(const struct hzp_paths_problem *p, struct hzp_paths_plan *ret,
                   struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_paths_problem_check(p, reterr));
    HZP_FREED struct search *s = calloc(1, sizeof(*s));
    if (!s)
        return hzp_fail(reterr, HZP_ENOMEM, "paths: no memory to search");
    s->p = p;
    s->best = ret;
    search(s);
    return HZP_OK;
}
