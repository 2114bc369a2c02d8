/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/predict.h - how long serving's part of a step will take, before it runs.
 *
 * Two stages, as in Harli (arXiv 2511.11729):
 *
 *     alone      what the rows take by themselves: linear in the step's shape (1, decode rows, keys
 *                and values they read, prompt rows, keys and values those read), times a factor for
 *                the size class of the step, for what is not linear
 *     slowdown   by what factor training in the same step lengthens it: 1 + k0 + k1 u, u being
 *                training's time over serving's, at most 1; one for turns (caches), one for beside
 *
 * The linear parts are fitted online by recursive least squares with forgetting, on relative
 * errors, from prior coefficients that follow from prices; the prior counts as much as a few steps.
 * What a step brings beyond twice what was expected is cut: one descheduled step must not spoil the
 * fit. The first step, and the fourth in a row that is off by more than twice, scale all
 * coefficients: the device is another than was thought.  The first few steps are looked at alone.
 *
 * Nothing correct depends on predictions; how large the slices of training are does.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_SPLIT_PREDICT_H
#define HZP_NANOBATCH_SPLIT_PREDICT_H

#include "nanobatch/build/batch.h"
#include "nanobatch/build/model.h"
#include "nanobatch/plan/price.h"

/* What a step's duration depends on. */
struct hzp_step_shape {
    int32_t decode_rows, prompt_rows;
    double decode_reads, prompt_reads; /* keys and values attended to, in positions */
};

void hzp_step_shape_of(const struct hzp_batch *batch, struct hzp_step_shape *ret);

enum { HZP_FIT_MAX = 5, HZP_PREDICT_CLASSES = 18 };

/* Recursive least squares of y = theta . x, theta >= 0, in relative errors. */
struct hzp_fit {
    int32_t n;
    double theta[HZP_FIT_MAX], cov[HZP_FIT_MAX][HZP_FIT_MAX];
    double prior[HZP_FIT_MAX]; /* the most that cov's diagonal may grow back to */
    double noise, forget;      /* variance of an observation; 0 < forget <= 1 */
};

/* What y was thought to be is `by` times that, in all. */
void hzp_fit_rescale(struct hzp_fit *fit, double by);

/* theta: [n], each as likely to be wrong by its own size.  floor: the least such doubt. */
void hzp_fit_init(struct hzp_fit *fit, int32_t n, const double *theta, double floor);
double hzp_fit_at(const struct hzp_fit *fit, const double *x);
/* scale: what y is relative to, > 0. */
void hzp_fit_learn(struct hzp_fit *fit, const double *x, double y, double scale);

struct hzp_predict {
    struct hzp_fit alone, slow[2]; /* slow[1]: training beside */
    double class_factor[HZP_PREDICT_CLASSES];
    uint64_t seen;
    int32_t off; /* steps in a row that were off by more than twice */
};

/* Before so many steps were seen, predictions are guesses. */
enum { HZP_PREDICT_FEW = 8 };

/* model NULL: of no size in particular (tests). */
void hzp_predict_init(struct hzp_predict *p, const struct hzp_model *model,
                      const struct hzp_price *price);

/* Nanoseconds of device time, > 0. */
double hzp_predict_alone(const struct hzp_predict *p, const struct hzp_step_shape *shape);

/* >= 1. */
double hzp_predict_slowdown(const struct hzp_predict *p, bool beside, double alone_ns,
                            double train_ns);

/* A step has ended: serving's part took serve_ns (0: nobody knows), with train_ns of training in it
 * (0: none). */
void hzp_predict_learn(struct hzp_predict *p, const struct hzp_step_shape *shape, bool beside,
                       double train_ns, double serve_ns);

#endif
