/* SPDX-License-Identifier: Apache-2.0 */
/* device/objective.h - what training minimises in one row, and its slope, for the fast backends.
 *
 * device/ops.h has the formulas (struct hzp_row_loss); device/ref/grad.c has them a second time,
 * on its own.
 *
 * Thread: any.  C17, C++17 and CUDA.
 */
#pragma once

#include <math.h>

#include "device/bf16.h"
#include "device/ops.h"

struct hzp_objective {
    double value, slope; /* f, and -df/dlp: what (softmax - onehot) is multiplied by */
    double ratio;        /* r */
    int clipped;         /* the kind has bounds, and this row lies beyond the one that counts */
};

HZP_INLINE double hzp_log_ratio(double a, double b)
{
    return fmin(fmax(a - b, -20.0), 20.0);
}

/* With soft targets: dx of a token is the weight times `inside` of its probability minus p_k for
 * token k, and times `outside` of it for each other token. */
struct hzp_soft_objective {
    double value, inside, outside;
};

/* lp [count]: of its tokens. */
HZP_INLINE struct hzp_soft_objective hzp_soft_objective_of(const struct hzp_soft *s,
                                                           const double *lp)
{
    double value = 0, p = 0, mass = 0, rest = (double)s->rest;
    for (int k = 0; k < s->count; k++) {
        value -= (double)s->p[k] * lp[k];
        p += (double)s->p[k];
        mass += exp(lp[k]);
    }
    double left = fmax(1 - mass, 1e-6);
    if (rest > 0)
        value -= rest * log(left);
    if (1 - mass <= 1e-6) /* there the loss is flat in it */
        rest = 0;
    struct hzp_soft_objective o = {value, p + rest, p - rest * mass / left};
    return o;
}

/* lp: of the target, before it is rounded to F32. */
HZP_INLINE struct hzp_objective hzp_objective_of(const struct hzp_row_loss *how, double lp)
{
    struct hzp_objective o = {-lp, 1, 1, 0};
    double adv = how->advantage, near = (float)lp; /* as old was rounded: r is 1 if it is lp */
    double gap = hzp_log_ratio(near, how->old);
    if (how->kind != HZP_LOSS_XENT)
        o.ratio = exp(gap);
    double low = 1 - (double)how->low, high = 1 + (double)how->high, moved = 0;
    int up = adv > 0;
    switch (how->kind) {
    case HZP_LOSS_IS:
        o.slope = o.ratio * adv;
        o.value = -o.slope;
        break;
    case HZP_LOSS_PPO:
        o.clipped = up ? o.ratio > high : adv < 0 && o.ratio < low;
        o.slope = o.clipped ? 0 : o.ratio * adv;
        o.value = o.clipped ? -(up ? high : low) * adv : -o.slope;
        break;
    case HZP_LOSS_CISPO:
        o.clipped = o.ratio > high || o.ratio < low;
        o.slope = fmin(fmax(o.ratio, low), high) * adv;
        o.value = -o.slope * lp;
        break;
    case HZP_LOSS_DPPO:
        moved = exp(near) - exp((double)how->old);
        o.clipped = up ? moved > (double)how->high : adv < 0 && moved < -(double)how->low;
        o.slope = (o.clipped ? 0 : o.ratio * adv) - 2 * (double)how->beta * gap;
        o.value = (o.clipped ? 0 : -o.ratio * adv) + (double)how->beta * gap * gap;
        break;
    case HZP_LOSS_DRO:
        gap = near - (double)how->old;
        o.slope = adv - (double)how->beta * gap;
        o.value = -lp * adv + (double)how->beta * gap * gap / 2;
        break;
    default:
        break;
    }
    if (how->kl != 0) {
        double d = hzp_log_ratio(how->reference, near);
        o.slope += (double)how->kl * (exp(d) - 1);
        o.value += (double)how->kl * (exp(d) - d - 1);
    }
    return o;
}
