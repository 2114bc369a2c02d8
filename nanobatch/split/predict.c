/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/predict.h"

#include <string.h>

/* So much of what is known is forgotten with each step: the last two hundred or so count. */
static const double forget_rate = 0.995;
/* Steps of one shape scatter by about a tenth. */
static const double scatter = 0.01;

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

void hzp_step_shape_of(const struct hzp_batch *batch, struct hzp_step_shape *ret)
{
    *ret = (struct hzp_step_shape){.decode_rows = batch->decode_segs,
                                   .prompt_rows = batch->rows - batch->decode_segs};
    for (int32_t r = 0; r < batch->rows; r++)
        *(r < batch->decode_segs ? &ret->decode_reads : &ret->prompt_reads) += batch->pos[r] + 1;
}

/* ---- the fit ---- */

void hzp_fit_init(struct hzp_fit *fit, int32_t n, const double *theta, double floor)
{
    HZP_ASSERT(n > 0 && n <= HZP_FIT_MAX);
    memset(fit, 0, sizeof(*fit));
    fit->n = n;
    fit->noise = scatter;
    fit->forget = forget_rate;
    for (int i = 0; i < n; i++) {
        double doubt = HZP_MAX(theta[i], floor);
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

/* What no observation has borne on for long must not become arbitrarily doubtful. */
static void forget(struct hzp_fit *fit)
{
    for (int i = 0; i < fit->n; i++)
        if (fit->cov[i][i] / fit->forget > fit->prior[i])
            return;
    for (int i = 0; i < fit->n; i++)
        for (int k = 0; k < fit->n; k++)
            fit->cov[i][k] /= fit->forget;
}

/* The Kalman form of recursive least squares: gain = C x / (r + x' C x), C -= gain x' C. */
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
    double missed = clamp((y - hzp_fit_at(fit, x)) / scale, -1.0, 1.0);
    for (int i = 0; i < fit->n; i++)
        fit->theta[i] = HZP_MAX(fit->theta[i] + cx[i] / spread * missed, 0.0);
    for (int i = 0; i < fit->n; i++)
        for (int k = 0; k < fit->n; k++)
            fit->cov[i][k] -= cx[i] * cx[k] / spread;
    /* Rounding must not make a variance negative. */
    for (int i = 0; i < fit->n; i++)
        fit->cov[i][i] = HZP_MAX(fit->cov[i][i], 1e-9 * fit->prior[i]);
    forget(fit);
}

/* ---- the two stages ---- */

/* Nanoseconds that a row, and a position attended to, add to a step; and that every step takes. */
static void prior_of(const struct hzp_model *model, const struct hzp_price *price, double theta[5])
{
    double row = 1000, position = 1, step = 50000;
    if (model) {
        const struct hzp_model_config *c = model->config;
        double parameters = (double)hzp_config_parameters(c);
        double kv = 2.0 * c->layers * c->heads.kv_heads * c->heads.dim;
        double bytes = (double)hzp_dtype_size(model->act);
        row = 2 * parameters / price->flops_per_ns;
        position = HZP_MAX(kv * bytes / price->bytes_per_ns,
                           4.0 * c->layers * c->heads.heads * c->heads.dim / price->flops_per_ns);
        step = parameters * bytes / price->bytes_per_ns;
    }
    theta[0] = step;
    theta[1] = theta[3] = row;
    theta[2] = theta[4] = position;
}

static void features(const struct hzp_step_shape *shape, double x[5])
{
    x[0] = 1;
    x[1] = shape->decode_rows;
    x[2] = shape->decode_reads;
    x[3] = shape->prompt_rows;
    x[4] = shape->prompt_reads;
}

void hzp_predict_init(struct hzp_predict *p, const struct hzp_model *model,
                      const struct hzp_price *price)
{
    static const double turns[] = {0.02, 0.05}, beside[] = {0.1, 0.3};
    double theta[5];
    memset(p, 0, sizeof(*p));
    prior_of(model, price, theta);
    hzp_fit_init(&p->alone, 5, theta, 0);
    hzp_fit_init(&p->slow[0], 2, turns, 0.1);
    hzp_fit_init(&p->slow[1], 2, beside, 0.1);
    for (int i = 0; i < HZP_PREDICT_CLASSES; i++)
        p->class_factor[i] = 1;
}

/* Of rows: 1, 2, 3..4, 5..8, 9..16 and so on. */
static int class_of(const struct hzp_step_shape *shape)
{
    int32_t rows = shape->decode_rows + shape->prompt_rows;
    int c = 0;
    while (c < HZP_PREDICT_CLASSES - 1 && ((int32_t)1 << c) < rows)
        c++;
    return c;
}

double hzp_predict_alone(const struct hzp_predict *p, const struct hzp_step_shape *shape)
{
    double x[5];
    features(shape, x);
    return HZP_MAX(hzp_fit_at(&p->alone, x) * p->class_factor[class_of(shape)], 1.0);
}

static void slow_features(double alone_ns, double train_ns, double x[2])
{
    x[0] = train_ns > 0;
    x[1] = HZP_MIN(train_ns / HZP_MAX(alone_ns, 1.0), 1.0);
}

double hzp_predict_slowdown(const struct hzp_predict *p, bool beside, double alone_ns,
                            double train_ns)
{
    double x[2];
    slow_features(alone_ns, train_ns, x);
    return 1 + HZP_MIN(hzp_fit_at(&p->slow[beside], x), 8.0);
}

void hzp_predict_learn(struct hzp_predict *p, const struct hzp_step_shape *shape, bool beside,
                       double train_ns, double serve_ns)
{
    if (!(serve_ns > 0))
        return; /* scaled by nothing, all would stay 0 for good */
    double alone = hzp_predict_alone(p, shape), x[5], u[2];
    double slowdown = hzp_predict_slowdown(p, beside, alone, train_ns);
    features(shape, x);
    double off = serve_ns / (alone * slowdown);
    p->off = off > 2 || off < 0.5 ? p->off + 1 : 0;
    if (!p->seen++ || p->off == 4) {
        hzp_fit_rescale(&p->alone, off);
        p->off = 0;
        return;
    }
    if (train_ns > 0 && p->seen > HZP_PREDICT_FEW) {
        slow_features(alone, train_ns, u);
        hzp_fit_learn(&p->slow[beside], u, serve_ns / alone - 1, 1);
    }
    /* Both stages see such a step; those without training keep them apart. */
    double y = serve_ns / slowdown;
    double *factor = &p->class_factor[class_of(shape)];
    hzp_fit_learn(&p->alone, x, y, alone);
    double ratio = clamp(y / HZP_MAX(hzp_fit_at(&p->alone, x), 1.0), 0.25, 4.0);
    *factor += (ratio - *factor) / 32;
}
