/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/budget.h"

#include "base/thread.h"
#include "nanobatch/model/batch.h"

/* The fraction of the best throughput that a lightly loaded server keeps.  A choice, not a
 * measurement: up to a tenth of the throughput is traded for shorter steps while the load does not
 * need it. */
static const double least_part = 0.9;
/* Every PROBE_EVERY-th decision tries more rows, so that T is also measured for larger steps. */
enum { PROBE_EVERY = 16 };
/* Prompts get at least decode_rows / PROMPTS_PART rows, a fifth of the step, even where decoding
 * alone is past the knee: otherwise the requests admitted last would wait until others end. */
enum { PROMPTS_PART = 4 };
/* Under an ITL goal prompts get at least PROMPT_ROWS_MIN rows per step; each row is assumed to
 * attend to PROMPT_DEPTH positions. */
enum { PROMPT_ROWS_MIN = 16, PROMPT_DEPTH = 256, PROMPT_TILE = 128 };

const char *hzp_budget_reason_name(enum hzp_budget_reason reason)
{
    static const char *const name[] = {[HZP_BUDGET_ALL] = "all",
                                       [HZP_BUDGET_FIXED] = "fixed",
                                       [HZP_BUDGET_THROUGHPUT] = "throughput",
                                       [HZP_BUDGET_PROBE] = "probe",
                                       [HZP_BUDGET_GOAL] = "itl"};
    return name[reason];
}

void hzp_budget_init(struct hzp_budget *budget)
{
    memset(budget, 0, sizeof(*budget));
}

/* From 0 (few running, none waiting) to 1 (all slots in use, or requests waiting). */
static double pressure_of(const struct hzp_budget_load *load)
{
    return load->waiting > 0 ? 1 : (double)load->running / HZP_MAX(load->running_max, 1);
}

/* The fewest rows, among the beginnings of the classes and rows_max, that reach this fraction of
 * the best throughput. */
static int32_t fewest(const struct hzp_rows_times *times, int32_t rows_max, double part)
{
    struct hzp_rows_curve curve;
    hzp_rows_curve_of(times, &curve);
    if (curve.points == 0)
        return rows_max;
    double best = rows_max / hzp_rows_curve_ns(&curve, rows_max);
    for (int32_t c = 0; c < HZP_ROWS_CLASSES && hzp_rows_class_begin(c) < rows_max; c++) {
        int32_t rows = hzp_rows_class_begin(c);
        double rate = rows / hzp_rows_curve_ns(&curve, rows);
        best = HZP_MAX(best, rate);
    }
    for (int32_t c = 0; c < HZP_ROWS_CLASSES && hzp_rows_class_begin(c) < rows_max; c++) {
        int32_t rows = hzp_rows_class_begin(c);
        if (rows / hzp_rows_curve_ns(&curve, rows) >= part * best)
            return rows;
    }
    return rows_max;
}

static struct hzp_prompt_rows by_throughput(struct hzp_budget *budget,
                                            const struct hzp_budget_load *load,
                                            const struct hzp_time *time)
{
    int32_t decodes = load->decode_rows, most = decodes + load->rows_left;
    double part = least_part + (1 - least_part) * pressure_of(load);
    int32_t rows = fewest(&time->rows, most, part);
    bool probe = ++budget->decisions % PROBE_EVERY == 0;
    if (probe)
        rows += rows / 2 + 8;
    rows = HZP_MAX(rows, decodes + decodes / PROMPTS_PART);
    return (struct hzp_prompt_rows){.rows = HZP_MIN(rows, most) - decodes,
                                    .reason = rows >= most ? HZP_BUDGET_ALL
                                              : probe      ? HZP_BUDGET_PROBE
                                                           : HZP_BUDGET_THROUGHPUT};
}

static int32_t within_goal(const struct hzp_budget_load *load, const struct hzp_time *time)
{
    int32_t rows = hzp_step_prompt_rows(&time->step, load->decode_rows, load->decode_reads,
                                        PROMPT_DEPTH, load->serve_max_ns);
    return HZP_MAX(rows, PROMPT_ROWS_MIN);
}

/* The prompt rows with which the step has a whole size: the next above, as far as `most` allows. */
static int32_t round_up(int32_t decodes, int32_t rows, int32_t most)
{
    int32_t whole = hzp_batch_size(decodes + rows) - decodes;
    return HZP_MIN(whole, most);
}

/* The largest size that at most `rows` prompt rows make; fewer than a tile's stay. */
static int32_t round_down(int32_t decodes, int32_t rows)
{
    int32_t total = decodes + rows, less = rows;
    while (total > PROMPT_TILE && less > PROMPT_ROWS_MIN && hzp_batch_size(decodes + less) > total)
        less--;
    return hzp_batch_size(decodes + less) > total ? rows : less;
}

struct hzp_prompt_rows hzp_budget_decide(struct hzp_budget *budget,
                                         const struct hzp_budget_load *load,
                                         const struct hzp_time *time)
{
    hzp_assert_engine_thread();
    struct hzp_prompt_rows ret = {.rows = HZP_MAX(load->rows_left, 0), .reason = HZP_BUDGET_ALL};
    HZP_ASSERT(load->decode_rows >= 0);
    if (ret.rows == 0 || load->decode_rows == 0)
        return ret;
    if (load->fixed > 0) {
        ret.rows = HZP_MIN(ret.rows, load->fixed);
        ret.reason = HZP_BUDGET_FIXED;
    } else if (pressure_of(load) < 1) {
        ret = by_throughput(budget, load, time);
        if (load->padded)
            ret.rows = round_up(load->decode_rows, ret.rows, load->rows_left);
    }
    int32_t goal = load->serve_max_ns > 0 ? within_goal(load, time) : INT32_MAX;
    if (ret.rows > goal) {
        ret.rows = load->padded ? round_down(load->decode_rows, goal) : goal;
        ret.reason = HZP_BUDGET_GOAL;
    }
    ret.rows = HZP_MAX(ret.rows, 1);
    return ret;
}
