/* SPDX-License-Identifier: Apache-2.0 */
/* tests/mesh/paths_figures.c - times of an update by planned paths, of the full pipeline and of
 * random skips, as in docs/measurements/2026-11-paths.md, in the set-up of SkipPipe's authors.
 *
 *     paths_figures [SEEDS [TRIALS]]
 *
 * 24 layers, 0.055 s of forward per layer and sample, micro-batches of 2 samples of 4 MiB, 0.35 s
 * on top of each transfer.  A seed shuffles which node is where; of TRIALS exchanges of places
 * those are kept that make the full pipeline faster, which then does not suffer from it. */
#include "mesh/paths/paths.h"
#include "tests/mesh/places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 24, SAMPLES = 2, RANDOM = 15, SEEDS_MAX = 99 };
#define SAMPLE_S     0.055
#define SAMPLE_BYTES (4.0 * 1024 * 1024)
#define HANDLING_S   0.35

struct setup {
    const char *name;
    int places, place[PLACES]; /* in turns over the nodes */
    int stages, nodes, first;  /* first: nodes of stage 0; the others share the rest */
    int memory, micros;
};

static const struct setup setups[] = {
    {"20 nodes, 12 places", 12, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 6, 20, 5, 3, 30},
    {"20 nodes, 5 places", 5, {LA, NL, GERMANY, SINGAPORE, OREGON}, 6, 20, 5, 3, 30},
    {"20 nodes, 1 place", 1, {GERMANY}, 6, 20, 5, 3, 30},
    {"8 nodes, 8 places", 8, {1, 2, 3, 4, 5, 6, 7, 8}, 8, 8, 1, 8, 16},
    {"8 nodes, 5 places", 5, {LA, NL, GERMANY, SINGAPORE, OREGON}, 8, 8, 1, 8, 16},
    {"8 nodes, 1 place", 1, {GERMANY}, 8, 8, 1, 8, 16},
    {"8 nodes in 4 stages, 5 places", 5, {LA, NL, GERMANY, SINGAPORE, OREGON}, 4, 8, 2, 4, 16},
};

static struct hzp_paths_problem problem;
static struct hzp_paths_plan plan;
static uint64_t random_state;

static int drawn(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

static struct hzp_paths_link link_between(int a, int b, bool busy)
{
    double ms = 1, rate = 2;
    for (int i = 0; i < HZP_COUNT(place_links); i++) {
        const struct place_link *l = &place_links[i];
        if ((l->a == a && l->b == b) || (l->a == b && l->b == a)) {
            ms = l->latency_ms;
            rate = l->rate;
        }
    }
    double wire = SAMPLE_BYTES * SAMPLES / (rate * 1024 * 1024 * 1024);
    return (struct hzp_paths_link){ms / 1000 + HANDLING_S + (busy ? 0 : wire), busy ? wire : 0};
}

static void place_nodes(const struct setup *s, const int *place, bool busy)
{
    for (int a = 0; a < s->nodes; a++)
        for (int b = 0; b < s->nodes; b++)
            problem.link[a][b] = link_between(place[a], place[b], busy);
}

static double full_seconds(void)
{
    problem.skip = 0;
    hzp_paths_dealt(&problem, 0, &plan);
    return plan.seconds;
}

/* Exchanges places while that makes the full pipeline faster. */
static void arrange(const struct setup *s, int *place, bool busy, int trials)
{
    double best = full_seconds();
    for (int i = 0; i < trials; i++) {
        int a = drawn(s->nodes), b = drawn(s->nodes), kept = place[a];
        place[a] = place[b];
        place[b] = kept;
        place_nodes(s, place, busy);
        double now = full_seconds();
        if (now <= best) {
            best = now;
        } else {
            place[b] = place[a];
            place[a] = kept;
        }
    }
    place_nodes(s, place, busy);
}

static void make_problem(const struct setup *s, int seed, bool busy, int trials)
{
    int place[HZP_PATHS_NODES];
    random_state = (uint64_t)seed;
    memset(&problem, 0, sizeof(problem));
    problem.stages = s->stages;
    problem.nodes = s->nodes;
    problem.micros = s->micros;
    problem.swaps = 2;
    problem.kept = 1;
    double forward = SAMPLE_S * LAYERS / s->stages * SAMPLES;
    for (int n = 0; n < s->nodes; n++) {
        int each = (s->nodes - s->first) / (s->stages - 1);
        int stage = n < s->first ? 0 : 1 + (n - s->first) / each;
        problem.node[n] = (struct hzp_paths_node){stage, s->memory, forward, forward / 4};
        place[n] = s->place[n % s->places];
    }
    for (int n = s->nodes - 1; n > 0; n--) {
        int other = drawn(n + 1), kept = place[n];
        place[n] = place[other];
        place[other] = kept;
    }
    place_nodes(s, place, busy);
    arrange(s, place, busy, trials);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *value, int n)
{
    qsort(value, (size_t)n, sizeof(*value), ascending);
    return n % 2 ? value[n / 2] : (value[n / 2 - 1] + value[n / 2]) / 2;
}

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double planned(double skip, int budget)
{
    struct hzp_err_text err;
    problem.skip = skip;
    problem.budget = budget;
    if (hzp_paths_plan(&problem, &plan, &err) < 0 || hzp_paths_check(&problem, &plan, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return plan.seconds;
}

static double at_random(void)
{
    double seconds[RANDOM];
    for (int i = 0; i < RANDOM; i++) {
        hzp_paths_dealt(&problem, (uint64_t)i + 1000, &plan);
        seconds[i] = plan.seconds;
    }
    return median(seconds, RANDOM);
}

/* One line: medians over the seeds. */
static void figure(const struct setup *s, double skip, bool busy, int seeds, int trials)
{
    enum {
        FULL,
        FULL_PLANNED,
        RANDOMLY,
        FIRST,
        PLANNED,
        OF_FULL,
        OF_PLANNED,
        OF_RANDOM,
        SEARCH,
        VALUES
    };
    static double value[VALUES][SEEDS_MAX];
    double m[VALUES];
    for (int i = 0; i < seeds; i++) {
        make_problem(s, i + 1, busy, trials);
        value[FULL][i] = full_seconds();
        value[FULL_PLANNED][i] = planned(0, 0);
        double begin = clock_s();
        value[PLANNED][i] = planned(skip, 0);
        value[SEARCH][i] = clock_s() - begin;
        value[FIRST][i] = plan.first_s;
        value[RANDOMLY][i] = at_random();
        value[OF_FULL][i] = value[PLANNED][i] / value[FULL][i];
        value[OF_PLANNED][i] = value[PLANNED][i] / value[FULL_PLANNED][i];
        value[OF_RANDOM][i] = value[PLANNED][i] / value[RANDOMLY][i];
    }
    for (int v = 0; v < VALUES; v++)
        m[v] = median(value[v], seeds);
    printf("| %s | %.2f | %d of %d | %s | %.1f | %.1f | %.1f | %.1f | %.1f | -%.0f %% (%.0f to "
           "%.0f) | -%.0f %% | -%.0f %% | %.2f |\n",
           s->name, skip, plan.length, s->stages, busy ? "in turn" : "beside", m[FULL],
           m[FULL_PLANNED], m[RANDOMLY], m[FIRST], m[PLANNED], 100 * (1 - m[OF_FULL]),
           100 * (1 - value[OF_FULL][seeds - 1]), 100 * (1 - value[OF_FULL][0]),
           100 * (1 - m[OF_PLANNED]), 100 * (1 - m[OF_RANDOM]), m[SEARCH]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int seeds = argc > 1 ? atoi(argv[1]) : 11, trials = argc > 2 ? atoi(argv[2]) : 0;
    if (seeds < 1 || seeds > SEEDS_MAX)
        return 2;
    for (int i = 0; i < HZP_COUNT(setups); i++)
        for (int busy = 0; busy < 2; busy++)
            for (int third = 0; third < 2; third++)
                figure(&setups[i], third ? 0.33 : 0.25, busy, seeds, trials);
    return 0;
}
