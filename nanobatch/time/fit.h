/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/time/fit.h - recursive least squares of y = theta . x with theta >= 0, with forgetting.
 *
 * With x and y divided by a scale (so that errors are relative), C the covariance of theta and
 * r = 0.01 the variance of an observation (durations of one shape scatter by about a tenth):
 *
 *     g      = C x / (r + x' C x)
 *     theta += g clamp(y - theta . x, -1, 1)     then theta = max(theta, 0)
 *     C      = (C - g x' C) / lambda             lambda = 0.995: about the last 200 count
 *
 * Invariant: no variance exceeds its prior, none falls below a billionth of it.
 * Thread: one at a time.
 */
#pragma once

#include "base/base.h"

enum { HZP_FIT_MAX = 5 };

struct hzp_fit {
    int32_t n;
    double theta[HZP_FIT_MAX], cov[HZP_FIT_MAX][HZP_FIT_MAX];
    double prior[HZP_FIT_MAX]; /* variances at the start: the most that cov's diagonal grows to */
    double noise, forget;      /* r, lambda */
};

/* theta: [n], 0 < n <= HZP_FIT_MAX: the prior.  The standard deviation of each is its own value, at
 * least doubt_min. */
void hzp_fit_init(struct hzp_fit *fit, int32_t n, const double *theta, double doubt_min);

/* theta . x;  x: [n]. */
double hzp_fit_at(const struct hzp_fit *fit, const double *x);

/* scale: what y is relative to, > 0. */
void hzp_fit_learn(struct hzp_fit *fit, const double *x, double y, double scale);

/* All of y is `by` times what it was thought to be. */
void hzp_fit_rescale(struct hzp_fit *fit, double by);
