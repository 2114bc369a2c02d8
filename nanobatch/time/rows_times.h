/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/time/rows_times.h - T(rows): how long serving's part of a step takes, by its number of
 * rows alone, as measured.
 *
 * step_times.h answers for a step of a given shape; this file answers how throughput,
 * rows / T(rows), depends on the size of steps under the present load, with no assumption but that
 * more rows never take less.  Steps are put into size classes a quarter of an octave wide, each an
 * average over about its last eight steps.  The averages are made non-decreasing (pool adjacent
 * violators, a class weighing 64 / (64 + steps since it was measured)).  Between two measured
 * classes T is a line; above the largest it goes on as it did over the last octave; below the
 * smallest it is flat.
 *
 * Thread: engine.
 */
#pragma once

#include "base/base.h"

enum { HZP_ROWS_CLASSES = 61 };

struct hzp_rows_times {
    struct hzp_rows_class {
        double rows, ns; /* averages; rows 0: none yet */
        uint64_t at;     /* number of the newest step counted */
    } seen[HZP_ROWS_CLASSES];
    uint64_t learned; /* steps */
};

/* The measured points, non-decreasing, with lines between them. */
struct hzp_rows_curve {
    int32_t points;
    double rows[HZP_ROWS_CLASSES], ns[HZP_ROWS_CLASSES];
};

void hzp_rows_times_init(struct hzp_rows_times *times);

/* Serving's part of a step of so many rows took so long.  rows < 1 or ns 0: not counted. */
void hzp_rows_learn(struct hzp_rows_times *times, int32_t rows, uint64_t ns);

void hzp_rows_curve_of(const struct hzp_rows_times *times, struct hzp_rows_curve *ret);

/* T(rows) in nanoseconds; 0: nothing measured yet. */
double hzp_rows_curve_ns(const struct hzp_rows_curve *curve, double rows);

/* The fewest rows of class 0 .. HZP_ROWS_CLASSES - 1: 1 .. 8, 10, 12, 14, 16, 20 ... 65536; from 64
 * rows on multiples of 16. */
int32_t hzp_rows_class_begin(int32_t class);
