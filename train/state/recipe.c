/* SPDX-License-Identifier: Apache-2.0 */
#include "train/state/recipe.h"

static const double pi = 3.14159265358979323846;

float hzp_recipe_lr(const struct hzp_recipe *recipe, int64_t t)
{
    if (t < 1)
        t = 1;
    /* Warm-up over w steps is lr/w, 2 lr/w, .., lr: step 1 already has a rate above 0. */
    if (t < recipe->warmup_steps)
        return (float)((double)recipe->lr * (double)t / (double)recipe->warmup_steps);
    if (recipe->schedule == HZP_LR_CONSTANT)
        return recipe->lr;
    double floor = (double)recipe->lr * (double)recipe->lr_floor;
    int64_t begin = HZP_MAX(recipe->warmup_steps, 1);
    if (t >= recipe->total_steps)
        return (float)floor;
    double part = (double)(t - begin) / (double)(recipe->total_steps - begin);
    return (float)(floor + ((double)recipe->lr - floor) * 0.5 * (1 + cos(pi * part)));
}

static double momentum_at(float beta1, int64_t t)
{
    return (double)beta1 * (1 - 0.5 * pow(0.96, 0.004 * (double)t));
}

void hzp_recipe_nadam(float beta1, int64_t t, double *product, int64_t *done, float *ret_m,
                      float *ret_g)
{
    if (*done > t || *product == 0) {
        *done = 0;
        *product = 1;
    }
    for (; *done < t; ++*done)
        *product *= momentum_at(beta1, *done + 1);
    double next = momentum_at(beta1, t + 1);
    bool same = beta1 == 0; /* as AdamW: m is g */
    *ret_m = same ? 0 : (float)(next / (1 - *product * next));
    *ret_g = same ? 0 : (float)((1 - momentum_at(beta1, t)) / (1 - *product));
}

struct hzp_deck hzp_recipe_deck(const struct hzp_recipe *r, int32_t layers)
{
    return (struct hzp_deck){r->skip, r->swap != 0, r->seed, layers};
}

int32_t hzp_recipe_rows(const struct hzp_recipe *r)
{
    return HZP_MAX(r->micro_rows, r->long_rows);
}

double hzp_recipe_divisor(const struct hzp_recipe *recipe, double weights, int64_t tokens,
                          int64_t sequences)
{
    switch (recipe->divide) {
    case HZP_DIVIDE_TOKENS:
        return (double)tokens;
    case HZP_DIVIDE_SEQUENCES:
        return (double)sequences;
    case HZP_DIVIDE_CONSTANT:
        return (double)recipe->divide_by;
    case HZP_DIVIDE_NONE:
        return 1;
    default:
        return weights;
    }
}

const char *hzp_moments_name(enum hzp_dtype type)
{
    return type == HZP_Q8 ? "q8" : type == HZP_BF16 ? "bf16" : "f32";
}

int hzp_recipe_check(const struct hzp_recipe *r, struct hzp_err_text *reterr)
{
    const struct {
        const char *name;
        double value, low, high;
    } range[] = {
        {"lr", (double)r->lr, 0, 10},
        {"beta1", (double)r->beta1, 0, 0.9999999},
        {"beta2", (double)r->beta2, 0, 0.9999999},
        {"eps", (double)r->eps, 0, 1},
        {"momentum", (double)r->momentum, r->optimizer == HZP_MUON ? 1e-3 : 0, 0.9999999},
        {"decay", (double)r->decay, 0, 10},
        {"clip", (double)r->clip, 0, 1e9},
        {"warmup", r->warmup_steps, 0, 1e9},
        {"lr_floor", (double)r->lr_floor, 0, 1},
        {"batch_tokens", r->update_tokens, 1, 1 << 28},
        {"micro_rows", r->micro_rows, 1, 1 << 20},
        {"publish_every", r->publish_every, 1, 1 << 20},
        {"skip", (double)r->skip, 0, 0.9},
    };
    for (int i = 0; i < HZP_COUNT(range); i++)
        if (!(range[i].value >= range[i].low && range[i].value <= range[i].high))
            return hzp_fail_param(reterr, HZP_EINVAL, range[i].name,
                                  "%s is %g; it must be from %g to %g", range[i].name,
                                  range[i].value, range[i].low, range[i].high);
    if (r->divide == HZP_DIVIDE_CONSTANT && !(r->divide_by > 0 && r->divide_by <= 1e9f))
        return hzp_fail_param(reterr, HZP_EINVAL, "divide",
                              "divide is %g; it must be above 0, up to 1e9", (double)r->divide_by);
    if (r->schedule == HZP_LR_COSINE && r->total_steps < 1)
        return hzp_fail_param(reterr, HZP_EINVAL, "total_steps",
                              "a cosine schedule needs its last step");
    if (r->moment_type != HZP_F32 && r->moment_type != HZP_BF16 && r->moment_type != HZP_Q8)
        return hzp_fail_param(reterr, HZP_EINVAL, "moments", "moments must be f32, bf16 or q8");
    if (r->optimizer == HZP_MUON && r->moment_type == HZP_Q8)
        return hzp_fail_param(reterr, HZP_EINVAL, "moments", "muon has moments in f32 or bf16");
    return HZP_OK;
}
