/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/budget.h"

#include "base/err.h"
#include "base/thread.h"

#include <string.h>

/* Of the best throughput, what a lightly loaded server keeps.  A policy, not a measurement: a tenth
 * is given for shorter steps where a step's rows are not needed to keep up. */
static const double least_part = 0.9;
/* So often a step tries more rows than it was to have, so that T is known up there, too. */
enum { TRIES_EVERY = 16 };
/* Of the rows beyond what decodes, prompts keep a fifth even where decoding alone is past the
 * knee: else those admitted last would wait until others end. */
enum { PROMPTS_PART = 4 };

/* T(rows): points to draw lines through. */
struct curve {
    int32_t points;
    double rows[HZP_BUDGET_CLASSES], ns[HZP_BUDGET_CLASSES];
};

/* 1 .. 8 each, then four classes an octave: 8, 10, 12, 14, 16, 20, ... 65536. */
static int32_t class_begin(int32_t class)
{
    if (class < 8)
        return class + 1;
    return (8 + 2 * ((class - 7) % 4)) << ((class - 7) / 4);
}

static int32_t class_of(int32_t rows)
{
    if (rows < 8)
        return rows - 1;
    int32_t octave = 31 - __builtin_clz((unsigned)rows) - 3;
    return HZP_MIN(7 + 4 * octave + ((rows >> (octave + 1)) & 3), HZP_BUDGET_CLASSES - 1);
}

void hzp_budget_init(struct hzp_budget *budget)
{
    memset(budget, 0, sizeof(*budget));
}

void hzp_budget_learn(struct hzp_budget *budget, int32_t rows, uint64_t ns)
{
    hzp_assert_engine_thread();
    if (rows < 1 || ns == 0)
        return;
    struct hzp_budget_class *seen = &budget->seen[class_of(rows)];
    double now = (double)ns;
    budget->learned++;
    if (seen->rows > 0) {
        now = HZP_MIN(now, 4 * seen->ns); /* one descheduled step is no new device */
        seen->rows += (rows - seen->rows) / 8;
        seen->ns += (now - seen->ns) / 8;
    } else {
        *seen = (struct hzp_budget_class){.rows = rows, .ns = now};
    }
    seen->at = budget->learned;
}

/* More rows never take less: neighbours that say so are averaged, old news counting little. */
static void make_curve(const struct hzp_budget *budget, struct curve *ret)
{
    double weight[HZP_BUDGET_CLASSES], sum[HZP_BUDGET_CLASSES];
    int32_t first[HZP_BUDGET_CLASSES + 1], pools = 0;
    ret->points = 0;
    for (int32_t c = 0; c < HZP_BUDGET_CLASSES; c++) {
        if (budget->seen[c].rows <= 0)
            continue;
        ret->rows[ret->points] = budget->seen[c].rows;
        first[pools] = ret->points++;
        weight[pools] = 64 / (64 + (double)(budget->learned - budget->seen[c].at));
        sum[pools] = weight[pools] * budget->seen[c].ns;
        pools++;
        while (pools > 1 &&
               sum[pools - 2] / weight[pools - 2] > sum[pools - 1] / weight[pools - 1]) {
            weight[pools - 2] += weight[pools - 1];
            sum[pools - 2] += sum[pools - 1];
            pools--;
        }
    }
    first[pools] = ret->points;
    for (int32_t p = 0; p < pools; p++)
        for (int32_t i = first[p]; i < first[p + 1]; i++)
            ret->ns[i] = sum[p] / weight[p];
}

static double curve_ns(const struct curve *curve, double rows)
{
    int32_t last = curve->points - 1, i = 0;
    if (last < 0)
        return 0;
    if (rows <= curve->rows[0])
        return curve->ns[0];
    if (rows >= curve->rows[last]) {
        double slope = 0;
        for (i = last; i > 0 && 2 * curve->rows[i] > curve->rows[last]; i--)
            ;
        if (i < last)
            slope = (curve->ns[last] - curve->ns[i]) / (curve->rows[last] - curve->rows[i]);
        return curve->ns[last] + slope * (rows - curve->rows[last]);
    }
    while (curve->rows[i + 1] < rows)
        i++;
    double part = (rows - curve->rows[i]) / (curve->rows[i + 1] - curve->rows[i]);
    return curve->ns[i] + part * (curve->ns[i + 1] - curve->ns[i]);
}

double hzp_budget_ns(const struct hzp_budget *budget, int32_t rows)
{
    struct curve curve;
    make_curve(budget, &curve);
    return curve_ns(&curve, rows);
}

/* The fewest rows, of the classes' and rows_max, with that part of the best throughput. */
static int32_t fewest(const struct hzp_budget *budget, int32_t rows_max, double part)
{
    struct curve curve;
    make_curve(budget, &curve);
    if (curve.points == 0)
        return rows_max;
    double best = rows_max / curve_ns(&curve, rows_max);
    for (int32_t c = 0; c < HZP_BUDGET_CLASSES && class_begin(c) < rows_max; c++)
        best = HZP_MAX(best, class_begin(c) / curve_ns(&curve, class_begin(c)));
    for (int32_t c = 0; c < HZP_BUDGET_CLASSES && class_begin(c) < rows_max; c++)
        if (class_begin(c) / curve_ns(&curve, class_begin(c)) >= part * best)
            return class_begin(c);
    return rows_max;
}

int32_t hzp_budget_rows(struct hzp_budget *budget, const struct hzp_budget_load *load)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(load->decodes >= 0 && load->rows_max > load->decodes);
    int32_t rows = load->rows_max;
    if (load->decodes > 0 && load->pressure < 1) {
        double part = least_part + (1 - least_part) * HZP_MAX(load->pressure, 0);
        rows = fewest(budget, load->rows_max, part);
        if (++budget->asked % TRIES_EVERY == 0)
            rows += rows / 2 + 8;
        rows = HZP_MAX(rows, load->decodes + load->decodes / PROMPTS_PART);
        rows = HZP_MIN(rows, load->rows_max);
    }
    if (load->bound > 0)
        rows = HZP_MIN(rows, load->bound);
    return HZP_MAX(rows, load->decodes + 1);
}
