/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/window.h - quantiles of recent measurements, in two forms.
 *
 *     window   the newest values themselves, each with a weight: exact, for reports
 *     spread   a histogram over logarithmic classes that forgets: cheap enough for every step
 *
 * Thread: the owner's.
 */
#pragma once

#include "base/base.h"

enum { HZP_WINDOW_VALUES = 1024, HZP_SPREAD_CLASSES = 128 };

struct hzp_window {
    int32_t count, at;
    uint64_t ns[HZP_WINDOW_VALUES];
    int32_t weight[HZP_WINDOW_VALUES];
};

/* weight > 0: the value counts so many times. */
void hzp_window_add(struct hzp_window *w, uint64_t ns, int32_t weight);

/* The p-quantile (0 .. 1): the smallest value v such that weight p lies at or below v; 0: no
 * values. */
uint64_t hzp_window_quantile(const struct hzp_window *w, double p);

/* All weight in it. */
int64_t hzp_window_weight(const struct hzp_window *w);

struct hzp_spread {
    double low, factor; /* class i holds [low factor^i, low factor^(i+1)) */
    double keep;        /* part of the older weight that each value leaves */
    double weight[HZP_SPREAD_CLASSES], all;
};

void hzp_spread_init(struct hzp_spread *s, double low, double factor, double keep);
void hzp_spread_add(struct hzp_spread *s, double value, double weight);
/* The upper border of the class that p falls into; 0: nothing was added. */
double hzp_spread_quantile(const struct hzp_spread *s, double p);
