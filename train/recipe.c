/* SPDX-License-Identifier: Apache-2.0 */
#include "train/trainer.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

float hzp_recipe_lr(const struct hzp_recipe *recipe, int64_t t)
{
    if (t < 1)
        t = 1;
    /* Step 1 already learns: warm-up goes lr/w, 2 lr/w, .., lr. */
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
