/* SPDX-License-Identifier: Apache-2.0 */
/* serve/budget.h - how many rows the next step computes.
 *
 * Rows of sequences that decode always go; the budget says how many rows of prompts go with them.
 * Every one of these makes the step longer for those who decode and brings those who wait for
 * their first token nearer to it.  What a row costs is not assumed but measured: the average
 * duration of the steps of each size class (classes a quarter of an octave wide) gives T(rows).
 *
 *     budget = the fewest rows with  rows / T(rows) >= e * max over r <= rows_max of  r / T(r)
 *     e      = 0.9 + 0.1 * pressure
 *
 * With pressure 0 (few run, nobody waits) a step is as short as it can be while at least nine
 * tenths of the best throughput are kept; with pressure 1 it is as large as it may be.  Where rows
 * are free, because weights take as long to read for many as for one, r / T(r) grows with r and the
 * budget goes up to where they cease to be.  While nobody decodes nobody is held up, and the budget
 * is rows_max.  (NanoFlow fills every step to one fixed size, which costs it latency at low load:
 * Zhu et al., OSDI 2025.)
 *
 * Sizes are a class's lower end, so multiples of 16 from 64 rows on, which products like.
 *
 * Between two measured classes T is a line; above the largest it goes on as it did over the last
 * octave, below the smallest it is flat.  Measured averages are first made non-decreasing (pool
 * adjacent violators).  Every 16th step asked about has half as many rows again and eight, so
 * that it gets known whether more would pay.
 *
 * Nothing correct depends on it: any answer in [decodes + 1, rows_max] serves the same tokens.
 *
 * Thread: engine.
 */
#ifndef HZP_SERVE_BUDGET_H
#define HZP_SERVE_BUDGET_H

#include "base/base.h"

enum { HZP_BUDGET_CLASSES = 61 };

struct hzp_budget {
    struct hzp_budget_class {
        double rows, ns; /* averages over about the last eight steps; rows 0: none yet */
        uint64_t at;     /* the newest of them */
    } seen[HZP_BUDGET_CLASSES];
    uint64_t learned; /* steps */
    uint32_t asked;
};

struct hzp_budget_load {
    int32_t decodes;  /* rows of the step that must go; 0: nobody decodes */
    double pressure;  /* 0: few run, nobody waits .. 1: as many run as may */
    int32_t rows_max; /* the dense batch; > decodes */
    int32_t bound;    /* a caller's own bound on the step's rows, from its latency goals; 0: none.
                       * One row more than decodes stays, or prompts would starve */
};

void hzp_budget_init(struct hzp_budget *budget);

/* A step of so many rows took so long.  rows or ns 0: not counted. */
void hzp_budget_learn(struct hzp_budget *budget, int32_t rows, uint64_t ns);

/* How long a step of so many rows takes; 0: nothing measured yet. */
double hzp_budget_ns(const struct hzp_budget *budget, int32_t rows);

/* The step's rows, decodes included: decodes < return <= rows_max. */
int32_t hzp_budget_rows(struct hzp_budget *budget, const struct hzp_budget_load *load);

#endif
