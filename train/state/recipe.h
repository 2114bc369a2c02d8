/* SPDX-License-Identifier: Apache-2.0 */
/* train/state/recipe.h - the numbers of a fine-tuning run: optimizer, schedule, sizes.
 *
 * Thread: any.
 */
#pragma once

#include "nanobatch/model/path.h"
#include "nanobatch/model/train_space.h"

enum hzp_lr_schedule { HZP_LR_CONSTANT, HZP_LR_COSINE };
enum hzp_optimizer { HZP_ADAMW, HZP_NADAM, HZP_MUON };

/* What an update divides the sum of its gradients by. */
enum hzp_divide {
    HZP_DIVIDE_WEIGHTS,   /* the sum of |weight| of its learned tokens */
    HZP_DIVIDE_TOKENS,    /* their number */
    HZP_DIVIDE_SEQUENCES, /* the number of samples that have any */
    HZP_DIVIDE_CONSTANT,  /* divide_by */
    HZP_DIVIDE_NONE
};

struct hzp_recipe {
    float lr, beta1, beta2, eps, decay, clip;
    enum hzp_optimizer optimizer;
    float momentum; /* Muon's, above 0 (nanobatch/model/update.h) */
    enum hzp_lr_schedule schedule;
    int32_t warmup_steps;
    int64_t total_steps; /* the cosine schedule reaches lr * lr_floor here */
    float lr_floor;
    int32_t update_tokens; /* tokens drawn for one update (gradient accumulation) */
    int32_t micro_rows;    /* rows of one micro-batch */
    int32_t long_rows;     /* rows of a document that is a micro-batch of its own; if they are
                            * more, a document has at most one token more than that */
    enum hzp_recompute recompute, recompute_long; /* of usual and of longer micro-batches */
    int32_t publish_every;                        /* updates per version, >= 1 */
    enum hzp_dtype moment_type;
    enum hzp_divide divide;
    float divide_by; /* CONSTANT: > 0 */
    float skip;      /* share of the layers that a micro-batch leaves out; with swap and the seed */
    int32_t swap;    /* hzp_deck's (nanobatch/model/path.h) */
    uint64_t seed;   /* also of the order of the examples, so it is not saved with the recipe */
};

/* The divisor of an update of all ranks together, > 0. */
double hzp_recipe_divisor(const struct hzp_recipe *recipe, double weights, int64_t tokens,
                          int64_t sequences);

/* The learning rate of optimizer step t (from 1): linear warm-up to lr over warmup_steps, then
 * constant, or a cosine down to lr * lr_floor at total_steps. */
float hzp_recipe_lr(const struct hzp_recipe *recipe, int64_t t);

/* NAdam's part_m and part_g (device/ops.h) of update t (from 1), with PyTorch's momentum decay psi
 * = 0.004: mu(t) = beta1 (1 - 0.96^(psi t) / 2).  *product, 0 at first, is the product of mu(1) to
 * mu(*done) and goes on from one call to the next. */
void hzp_recipe_nadam(float beta1, int64_t t, double *product, int64_t *done, float *ret_m,
                      float *ret_g);

/* What the paths of a model of so many layers are dealt from. */
struct hzp_deck hzp_recipe_deck(const struct hzp_recipe *recipe, int32_t layers);

/* The most rows of a document. */
int32_t hzp_recipe_rows(const struct hzp_recipe *recipe);

/* "f32", "bf16" or "q8". */
const char *hzp_moments_name(enum hzp_dtype type);

/* HZP_EINVAL names the field that is out of range (F32, BF16 or Q8 moments, ...). */
int hzp_recipe_check(const struct hzp_recipe *recipe, struct hzp_err_text *reterr);
