/* SPDX-License-Identifier: Apache-2.0 */
/* serve/budget.h - how many prompt rows the next step computes, decided here and nowhere else.
 *
 * Every prompt row makes the step longer for the sequences that decode, and brings the requests
 * that wait for their first token nearer to it.  With D decode rows, R rows left in the dense
 * batch, T the measured duration of a step by its rows (nanobatch/time/rows_times.h), N = D + R:
 *
 *     D = 0            R: no decoding sequence is held up
 *     fixed            min(R, --prefill-rows)
 *     otherwise        the fewest n - D with  n / T(n) >= e max over r <= N of  r / T(r),
 *                      at least D / 4:  e = 0.9 + 0.1 pressure
 *     pressure         1 while a request waits for a running slot, else the part of slots in use
 *     in all cases     at most G, where the ITL goal leaves G rows; at least 1
 *
 * At pressure 0 a step is as short as it can be while nine tenths of the best throughput are kept;
 * at pressure 1 it is as large as it may be.  Where rows are free, because weights take as long to
 * read for many as for one, n / T(n) grows with n and the budget goes up to where they cease to be.
 * (NanoFlow fills every step to one fixed size, which costs it latency at low load: Zhu et al.,
 * OSDI 2025.)
 *
 * Every 16th decision adds half as many rows again and eight, so that it gets known whether more
 * would pay.  G is the most rows with which a step by its shape (nanobatch/time/step_times.h) takes
 * at most the load's serve_max_ns, and never less than 16, so that prompts go on.
 *
 * Nothing correct depends on the answer: any number of rows serves the same tokens.
 *
 * Thread: engine.
 */
#ifndef HZP_SERVE_BUDGET_H
#define HZP_SERVE_BUDGET_H

#include "nanobatch/time/time.h"

/* What the number of prompt rows was decided by. */
enum hzp_budget_reason {
    HZP_BUDGET_ALL,        /* all that fit: nothing decodes, full load, or nothing measured yet */
    HZP_BUDGET_FIXED,      /* --prefill-rows */
    HZP_BUDGET_THROUGHPUT, /* fewer, at nine tenths and more of the throughput */
    HZP_BUDGET_PROBE,      /* some more than that, to measure them */
    HZP_BUDGET_GOAL,       /* the ITL goal leaves no more */
    HZP_BUDGET_COUNT
};
const char *hzp_budget_reason_name(enum hzp_budget_reason reason);

struct hzp_budget_load {
    int32_t decode_rows;                   /* of this step */
    double decode_reads;                   /* positions of keys and values that they attend to */
    int32_t rows_left;                     /* of the dense batch */
    int32_t running, running_max, waiting; /* requests with a running slot, slots, without one */
    int32_t fixed;                         /* --prefill-rows; 0: not set */
    double serve_max_ns; /* how long serving's part may take for the ITL goal; 0: no goal */
};

struct hzp_prompt_rows {
    int32_t rows; /* 1 .. rows_left; 0: none left */
    enum hzp_budget_reason reason;
};

struct hzp_budget {
    uint32_t decisions; /* by throughput */
};

void hzp_budget_init(struct hzp_budget *budget);

struct hzp_prompt_rows hzp_budget_decide(struct hzp_budget *budget,
                                         const struct hzp_budget_load *load,
                                         const struct hzp_time *time);

#endif
