/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/time/step_times.h"

/* An observation is off, if it is this many times its prediction or less than the inverse; so many
 * in a row rescale the model. */
static const double off_by = 2;
enum { OFF_STEPS = 4 };
/* At most so much longer does training make a step. */
static const double slowdown_max = 8;
/* The factor of a size class is averaged over so many steps, and lies within these. */
static const double class_steps = 32, class_factor_min = 0.25, class_factor_max = 4;

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* Starting values, for a model of any size, in nanoseconds: what a step takes, a row, and each
 * position attended to.  The first step measured rescales them. */
static const double any_step_ns = 50000, any_row_ns = 1000, any_position_ns = 1;

/* The coefficients a0 .. a4 before anything was measured. */
static void prior_of(const struct hzp_model_config *c, enum hzp_dtype act,
                     const struct hzp_rates *rates, double theta[5])
{
    double row = any_row_ns, position = any_position_ns, step = any_step_ns;
    if (c) {
        double parameters = (double)hzp_config_parameters(c);
        double kv = 2.0 * c->layers * c->heads.kv_heads * c->heads.dim;
        double bytes = (double)hzp_dtype_size(act);
        row = 2 * parameters / rates->flops_per_ns;
        position = HZP_MAX(kv * bytes / rates->bytes_per_ns,
                           4.0 * c->layers * c->heads.heads * c->heads.dim / rates->flops_per_ns);
        step = parameters * bytes / rates->bytes_per_ns;
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

void hzp_step_times_init(struct hzp_step_times *t, const struct hzp_model_config *config,
                         enum hzp_dtype act, const struct hzp_rates *rates)
{
    static const double in_turn[] = {0.02, 0.05}, beside[] = {0.1, 0.3};
    static const double doubt_min = 0.1;
    double theta[5];
    memset(t, 0, sizeof(*t));
    prior_of(config, act, rates, theta);
    hzp_fit_init(&t->alone, 5, theta, 0);
    hzp_fit_init(&t->slow[0], 2, in_turn, doubt_min);
    hzp_fit_init(&t->slow[1], 2, beside, doubt_min);
    for (int i = 0; i < HZP_STEP_TIMES_CLASSES; i++)
        t->class_factor[i] = 1;
}

/* Classes of rows: 1, 2, 3..4, 5..8, 9..16 and so on. */
static int class_of(const struct hzp_step_shape *shape)
{
    int32_t rows = shape->decode_rows + shape->prompt_rows;
    int c = 0;
    while (c < HZP_STEP_TIMES_CLASSES - 1 && ((int32_t)1 << c) < rows)
        c++;
    return c;
}

double hzp_step_alone_ns(const struct hzp_step_times *t, const struct hzp_step_shape *shape)
{
    double x[5];
    features(shape, x);
    double ns = hzp_fit_at(&t->alone, x) * t->class_factor[class_of(shape)];
    return HZP_MAX(ns * (shape->layers > 0 ? shape->layers : 1), 1.0);
}

static void slow_features(double alone_ns, double train_ns, double x[2])
{
    x[0] = train_ns > 0;
    x[1] = HZP_MIN(train_ns / HZP_MAX(alone_ns, 1.0), 1.0);
}

double hzp_step_slowdown(const struct hzp_step_times *t, bool beside, double alone_ns,
                         double train_ns)
{
    double x[2];
    slow_features(alone_ns, train_ns, x);
    double slowdown = hzp_fit_at(&t->slow[beside], x);
    return 1 + HZP_MIN(slowdown, slowdown_max);
}

void hzp_step_learn(struct hzp_step_times *t, const struct hzp_step_shape *shape, bool beside,
                    double train_ns, double serve_ns)
{
    if (!(serve_ns > 0))
        return; /* a scale of 0 would make every prediction 0 for good */
    struct hzp_step_shape whole = *shape;
    whole.layers = 0;
    serve_ns /= shape->layers > 0 ? shape->layers : 1;
    double alone = hzp_step_alone_ns(t, &whole), x[5], u[2];
    double slowdown = hzp_step_slowdown(t, beside, alone, train_ns);
    features(shape, x);
    double off = serve_ns / (alone * slowdown);
    t->off = off > off_by || off < 1 / off_by ? t->off + 1 : 0;
    if (!t->seen++ || t->off == OFF_STEPS) {
        hzp_fit_rescale(&t->alone, off);
        t->off = 0;
        return;
    }
    if (train_ns > 0 && t->seen > HZP_STEP_TIMES_FEW) {
        slow_features(alone, train_ns, u);
        hzp_fit_learn(&t->slow[beside], u, serve_ns / alone - 1, 1);
    }
    /* Steps with training teach both stages; steps without tell the stages apart. */
    double y = serve_ns / slowdown;
    double *factor = &t->class_factor[class_of(shape)];
    hzp_fit_learn(&t->alone, x, y, alone);
    double fitted = hzp_fit_at(&t->alone, x);
    double ratio = clamp(y / HZP_MAX(fitted, 1.0), class_factor_min, class_factor_max);
    *factor += (ratio - *factor) / class_steps;
}

int32_t hzp_step_prompt_rows(const struct hzp_step_times *t, int32_t decode_rows,
                             double decode_reads, double depth, double ns)
{
    struct hzp_step_shape shape = {.decode_rows = decode_rows, .decode_reads = decode_reads};
    int32_t fits = 0, most = 1 << 20;
    for (int32_t bit = most; bit > 0; bit >>= 1) {
        shape.prompt_rows = fits + bit;
        shape.prompt_reads = (double)shape.prompt_rows * depth;
        if (hzp_step_alone_ns(t, &shape) <= ns)
            fits += bit;
    }
    return fits;
}
