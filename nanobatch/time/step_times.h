/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/time/step_times.h - how long serving's part of a step will take, by the step's shape.
 *
 * Two stages, as in Harli (arXiv 2511.11729):
 *
 *     serve(x, u) = alone(x) x slowdown(u)
 *     alone(x)    = (a0 + a1 D + a2 Dr + a3 P + a4 Pr) x f(class)
 *     slowdown(u) = 1 + k0 + k1 u         u = min(training's time / alone, 1); at most 9
 *
 * D, P: decode rows and prompt rows; Dr, Pr: the positions of keys and values they read; f: a
 * factor for the step's size class (powers of two of its rows), for what is not linear.  A step
 * that computes a share of its layers only is taken to last for that share of the time.  There is
 * one slowdown for training in turn with serving (it evicts caches) and one for training beside it.
 *
 * a and k are fitted online on relative errors (fit.h), from priors by the device's roofline
 * (rates.h): a0 reads all weights, a1 and a3 are two flops per parameter, a2 and a4 the larger of
 * reading a position's keys and values and of multiplying by them.  f is an average over 32 steps.
 * The first step rescales all of a by its measured over its predicted time.  After four steps in a
 * row that are off by more than 2x, all of a is rescaled again, by the fourth: the device's speed
 * has changed.  The slowdown is learned once HZP_STEP_TIMES_FEW steps are known.
 *
 * Estimates decide how large training's slices and prompts' pieces are; nothing correct depends on
 * them.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/time/fit.h"
#include "nanobatch/time/rates.h"
#include "weights/config.h"

/* What a step's duration depends on. */
struct hzp_step_shape {
    int32_t decode_rows, prompt_rows;
    double decode_reads, prompt_reads; /* keys and values attended to, in positions */
    double layers; /* share of its layers that it computes (hzp_batch_share); 0: all */
};

enum { HZP_STEP_TIMES_CLASSES = 18 };

struct hzp_step_times {
    struct hzp_fit alone, slow[2]; /* slow[1]: training beside */
    double class_factor[HZP_STEP_TIMES_CLASSES];
    uint64_t seen;
    int32_t off; /* steps in a row that were off by more than 2x */
};

/* Before so many steps were seen, predictions are guesses. */
enum { HZP_STEP_TIMES_FEW = 8 };

/* config NULL: a model of no size in particular (tests).  act: type of weights and KV. */
void hzp_step_times_init(struct hzp_step_times *times, const struct hzp_model_config *config,
                         enum hzp_dtype act, const struct hzp_rates *rates);

/* Nanoseconds of device time, > 0. */
double hzp_step_alone_ns(const struct hzp_step_times *times, const struct hzp_step_shape *shape);

/* 1 .. 9.  train_ns: training's time in the step, 0: none. */
double hzp_step_slowdown(const struct hzp_step_times *times, bool beside, double alone_ns,
                         double train_ns);

/* The most prompt rows that may join so many decode rows, which read so many positions, for serving
 * alone to take at most ns; the prompt rows read `depth` positions each on average.  0: not even
 * one. */
int32_t hzp_step_prompt_rows(const struct hzp_step_times *times, int32_t decode_rows,
                             double decode_reads, double depth, double ns);

/* A step has ended: serving's part took serve_ns (0: not known, not counted), with train_ns of
 * training in it (0: none). */
void hzp_step_learn(struct hzp_step_times *times, const struct hzp_step_shape *shape, bool beside,
                    double train_ns, double serve_ns);
