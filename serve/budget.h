/* SPDX-License-Identifier: Apache-2.0 */
/* serve/budget.h - decides how many prompt rows the next step computes; the only place that does.
 *
 * Every prompt row makes the step longer, which raises the ITL of decoding sequences, and lowers
 * the TTFT of waiting requests.  With D decode rows, R rows left in the dense batch, T the measured
 * duration of a step by its rows (nanobatch/time/rows_times.h), N = D + R:
 *
 *     D = 0            R: no decoding sequence is held up
 *     fixed            min(R, --prefill-rows)
 *     otherwise        the fewest n - D with  n / T(n) >= e max over r <= N of  r / T(r),
 *                      at least D / 4:  e = 0.9 + 0.1 pressure
 *     pressure         1 while a request waits for a running slot, else slots in use / slots
 *     in all cases     at most G, where the ITL goal leaves G rows; at least 1
 *
 * Where steps are padded (nanobatch/model/batch.h) N is rounded up to a whole size, so that prompt
 * rows take the place of padding rows, and under G it is rounded down.
 *
 * At pressure 0 a step is as short as possible while keeping nine tenths of the best throughput; at
 * pressure 1 it is as large as allowed.  While a step is bound by reading the weights, additional
 * rows cost almost no time, n / T(n) grows with n, and the budget grows to the knee of T. (NanoFlow
 * fills every step to one fixed size, which costs latency at low load: Zhu et al., OSDI 2025.)
 *
 * Every 16th decision tries 1.5 x rows + 8, to measure whether larger steps pay.  G is the largest
 * number of rows with which the predicted duration of the step (nanobatch/time/step_times.h) is at
 * most the load's serve_max_ns, and never less than 16, so that prompts make progress.
 *
 * Correctness does not depend on the decision.  In F32 on the CPU any number of rows generates
 * the same tokens; elsewhere low bits may differ (scheduler.h).
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/time/time.h"

/* What decided the number of prompt rows. */
enum hzp_budget_reason {
    HZP_BUDGET_ALL,        /* all that fit: nothing decodes, full load, or nothing measured yet */
    HZP_BUDGET_FIXED,      /* --prefill-rows */
    HZP_BUDGET_THROUGHPUT, /* fewer, at >= 0.9 of the best throughput */
    HZP_BUDGET_PROBE,      /* more than that, to measure larger steps */
    HZP_BUDGET_GOAL,       /* limited by the ITL goal */
    HZP_BUDGET_COUNT
};
/* As the metrics name it. */
const char *hzp_budget_reason_name(enum hzp_budget_reason reason);

struct hzp_budget_load {
    int32_t decode_rows;                   /* this step's */
    double decode_reads;                   /* positions of keys and values they attend to */
    int32_t rows_left;                     /* left in the dense batch */
    int32_t running, running_max, waiting; /* running requests, slots, waiting requests */
    int32_t fixed;                         /* --prefill-rows; 0: not set */
    bool padded;                           /* steps with prompts are padded */
    double serve_max_ns; /* most time of serving's part under the ITL goal; 0: no goal */
};

struct hzp_prompt_rows {
    int32_t rows; /* 1 .. rows_left; 0 if rows_left is 0 */
    enum hzp_budget_reason reason;
};

struct hzp_budget {
    uint32_t decisions; /* decisions by throughput so far */
};

void hzp_budget_init(struct hzp_budget *budget);

/* How many prompt rows the step takes, by the formulas above. */
struct hzp_prompt_rows hzp_budget_decide(struct hzp_budget *budget,
                                         const struct hzp_budget_load *load,
                                         const struct hzp_time *time);
