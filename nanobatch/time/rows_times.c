/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/time/rows_times.h"

/* A class' average is over about so many steps, and one step counts at most so many times it. */
static const double average_steps = 8, outlier = 4;
/* A class last measured so many steps ago weighs half as much as a new one. */
static const double age_steps = 64;

int32_t hzp_rows_class_begin(int32_t class)
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
    return HZP_MIN(7 + 4 * octave + ((rows >> (octave + 1)) & 3), HZP_ROWS_CLASSES - 1);
}

void hzp_rows_times_init(struct hzp_rows_times *times)
{
    memset(times, 0, sizeof(*times));
}

void hzp_rows_learn(struct hzp_rows_times *times, int32_t rows, uint64_t ns)
{
    if (rows < 1 || ns == 0)
        return;
    struct hzp_rows_class *seen = &times->seen[class_of(rows)];
    double now = (double)ns;
    times->learned++;
    if (seen->rows > 0) {
        now = HZP_MIN(now, outlier * seen->ns); /* one descheduled step is no new device */
        seen->rows += (rows - seen->rows) / average_steps;
        seen->ns += (now - seen->ns) / average_steps;
    } else {
        *seen = (struct hzp_rows_class){.rows = rows, .ns = now};
    }
    seen->at = times->learned;
}

void hzp_rows_curve_of(const struct hzp_rows_times *times, struct hzp_rows_curve *ret)
{
    double weight[HZP_ROWS_CLASSES], sum[HZP_ROWS_CLASSES];
    int32_t first[HZP_ROWS_CLASSES + 1], pools = 0;
    ret->points = 0;
    for (int32_t c = 0; c < HZP_ROWS_CLASSES; c++) {
        if (times->seen[c].rows <= 0)
            continue;
        ret->rows[ret->points] = times->seen[c].rows;
        first[pools] = ret->points++;
        weight[pools] = age_steps / (age_steps + (double)(times->learned - times->seen[c].at));
        sum[pools] = weight[pools] * times->seen[c].ns;
        pools++;
        /* Pool adjacent violators: neighbours that say that more rows take less are averaged. */
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

double hzp_rows_curve_ns(const struct hzp_rows_curve *curve, double rows)
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
