/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/mesh/paths_brute.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { PATHS = 4096, MICROS = 4, LENGTH = 8 };

static const struct hzp_paths_problem *p;
static int length;
static uint8_t path[MICROS][PATHS][LENGTH]; /* all of a micro-batch */
static int paths[MICROS];
static struct hzp_paths_plan plan;
static double best;
static long tried;

/* ---- all paths ---- */

static bool path_fits(const uint8_t *node)
{
    int front = 0, swaps = 0, run = 0;
    uint32_t set = 0;
    for (int k = 0; k < length; k++) {
        int stage = p->node[node[k]].stage;
        if (set >> stage & 1 || (k == 0) != (stage == 0) || stage < front - 1)
            return false;
        swaps += stage < front;
        front = stage > front ? stage : front;
        set |= 1u << stage;
    }
    for (int s = 0; s < p->stages; s++) {
        bool on = set >> s & 1;
        run = on ? 0 : run + 1;
        if (run > 4 || (!on && s < p->kept))
            return false;
    }
    return swaps <= p->swaps;
}

static void list_paths(int m, uint8_t *node, int k)
{
    if (k == length) {
        if (path_fits(node) && paths[m] < PATHS)
            memcpy(path[m][paths[m]++], node, LENGTH);
        return;
    }
    for (int n = 0; n < p->nodes; n++) {
        node[k] = (uint8_t)n;
        list_paths(m, node, k + 1);
    }
}

static void list_all(void)
{
    int home[HZP_PATHS_NODES], homes = 0;
    for (int n = 0; n < p->nodes; n++)
        if (p->node[n].stage == 0)
            home[homes++] = n;
    for (int m = 0; m < p->micros; m++) {
        uint8_t node[LENGTH] = {(uint8_t)home[m % homes]};
        paths[m] = 0;
        list_paths(m, node, 1);
    }
}

static bool even_shares(void)
{
    int count[HZP_PATHS_STAGES] = {0};
    for (int m = 0; m < p->micros; m++)
        for (int k = 0; k < length; k++)
            count[p->node[plan.path[m][k]].stage]++;
    for (int a = p->kept; a < p->stages; a++)
        for (int b = p->kept; b < p->stages; b++)
            if (abs(count[a] - count[b]) > 1)
                return false;
    return true;
}

static void choose(int m, void (*judge)(void))
{
    if (m == p->micros) {
        if (even_shares())
            judge();
        return;
    }
    for (int i = 0; i < paths[m]; i++) {
        memcpy(plan.path[m], path[m][i], LENGTH);
        choose(m + 1, judge);
    }
}

static void by_order(void)
{
    hzp_paths_order(p, &plan);
    best = plan.seconds < best ? plan.seconds : best;
    tried++;
}

static void begin(const struct hzp_paths_problem *problem, int stages)
{
    p = problem;
    length = stages;
    plan.length = stages;
    best = DBL_MAX;
    tried = 0;
    list_all();
}

double brute_paths(const struct hzp_paths_problem *problem, int stages, long *ret_tried)
{
    begin(problem, stages);
    choose(0, by_order);
    *ret_tried = tried;
    return best;
}

/* ---- all orders ---- */

struct moment {
    int step[MICROS], held[HZP_PATHS_NODES];
    double ready[MICROS], idle[HZP_PATHS_NODES], wire[HZP_PATHS_NODES][HZP_PATHS_NODES], end;
};

static int node_of(int m, int k)
{
    return plan.path[m][k < length ? k : k == length ? 0 : 2 * length - k];
}

/* Does one more op of m; false: its node has no memory for it. */
static bool advance(struct moment *t, int m)
{
    int k = t->step[m]++, n = node_of(m, k);
    double seconds = k < length    ? p->node[n].forward_s
                     : k == length ? p->node[n].head_s
                                   : 1.5 * p->node[n].forward_s;
    t->held[n] += k < length ? 1 : k > length ? -1 : 0;
    if (t->held[n] > p->node[n].memory)
        return false;
    double begins = t->ready[m] > t->idle[n] ? t->ready[m] : t->idle[n];
    t->idle[n] = t->ready[m] = begins + seconds;
    t->end = t->idle[n] > t->end ? t->idle[n] : t->end;
    if (k < 2 * length && node_of(m, k + 1) != n) {
        int to = node_of(m, k + 1);
        double leaves = t->wire[n][to] > t->idle[n] ? t->wire[n][to] : t->idle[n];
        t->wire[n][to] = leaves + p->link[n][to].busy_s;
        t->ready[m] = t->wire[n][to] + p->link[n][to].latency_s;
    }
    return true;
}

static void all_orders(const struct moment *t)
{
    bool over = true;
    if (t->end >= best)
        return;
    for (int m = 0; m < p->micros; m++) {
        struct moment next = *t;
        if (t->step[m] > 2 * length)
            continue;
        over = false;
        if (advance(&next, m))
            all_orders(&next);
    }
    if (over)
        best = t->end;
}

static void by_all_orders(void)
{
    static const struct moment none;
    all_orders(&none);
}

double brute_orders(const struct hzp_paths_problem *problem, int stages)
{
    begin(problem, stages);
    choose(0, by_all_orders);
    return best;
}
