/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/time/fit.h"

static const double forget_rate = 0.995;
static const double noise_variance = 0.01;
static const double error_max = 1; /* relative; what an observation exceeds it by is cut */

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

void hzp_fit_init(struct hzp_fit *fit, int32_t n, const double *theta, double doubt_min)
{
    HZP_ASSERT(n > 0 && n <= HZP_FIT_MAX);
    memset(fit, 0, sizeof(*fit));
    fit->n = n;
    fit->noise = noise_variance;
    fit->forget = forget_rate;
    for (int i = 0; i < n; i++) {
        double doubt = HZP_MAX(theta[i], doubt_min);
        fit->theta[i] = theta[i];
        fit->prior[i] = fit->cov[i][i] = doubt * doubt;
    }
}

void hzp_fit_rescale(struct hzp_fit *fit, double by)
{
    for (int i = 0; i < fit->n; i++) {
        fit->theta[i] *= by;
        fit->prior[i] *= by * by;
        for (int k = 0; k < fit->n; k++)
            fit->cov[i][k] *= by * by;
    }
}

double hzp_fit_at(const struct hzp_fit *fit, const double *x)
{
    double y = 0;
    for (int i = 0; i < fit->n; i++)
        y += fit->theta[i] * x[i];
    return y;
}

/* C /= lambda, unless a variance would exceed its prior: a coefficient that no observation has
 * touched for long must not become arbitrarily uncertain. */
static void forget(struct hzp_fit *fit)
{
    for (int i = 0; i < fit->n; i++)
        if (fit->cov[i][i] / fit->forget > fit->prior[i])
            return;
    for (int i = 0; i < fit->n; i++)
        for (int k = 0; k < fit->n; k++)
            fit->cov[i][k] /= fit->forget;
}

void hzp_fit_learn(struct hzp_fit *fit, const double *x, double y, double scale)
{
    double cx[HZP_FIT_MAX], at[HZP_FIT_MAX], spread = fit->noise;
    for (int i = 0; i < fit->n; i++)
        at[i] = x[i] / scale;
    for (int i = 0; i < fit->n; i++) {
        cx[i] = 0;
        for (int k = 0; k < fit->n; k++)
            cx[i] += fit->cov[i][k] * at[k];
        spread += at[i] * cx[i];
    }
    double error = clamp((y - hzp_fit_at(fit, x)) / scale, -error_max, error_max);
    for (int i = 0; i < fit->n; i++)
        fit->theta[i] = HZP_MAX(fit->theta[i] + cx[i] / spread * error, 0.0);
    for (int i = 0; i < fit->n; i++)
        for (int k = 0; k < fit->n; k++)
            fit->cov[i][k] -= cx[i] * cx[k] / spread;
    /* Rounding must not make a variance negative. */
    for (int i = 0; i < fit->n; i++)
        fit->cov[i][i] = HZP_MAX(fit->cov[i][i], 1e-9 * fit->prior[i]);
    forget(fit);
}
