/* SPDX-License-Identifier: Apache-2.0 */
/* device/objective.h - what training minimises in one row, and its slope, for the fast backends.
 *
 * device/ops.h has the formulas (struct hzp_row_loss); device/ref/grad.c has those of single rows a
 * second time, on its own.
 *
 * Thread: any.  C17, C++17 and CUDA.
 */
#pragma once

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
    case HZP_LOSS_DPO:
    case HZP_LOSS_IPO:
    case HZP_LOSS_GSPO:
        o.slope = adv;
        o.value = how->old;
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

/* The sum of lp less what it is compared with, over sequence i; 0 if there is none. */
HZP_INLINE double hzp_sequence_gap(const struct hzp_seq_loss_args *a, int32_t i, int old)
{
    const float *lp = (const float *)a->lp.ptr;
    double sum = 0;
    if (i >= 0 && i < a->seqs)
        for (int32_t r = a->first[i]; r < a->first[i + 1]; r++)
            sum += (double)lp[r] - (double)(old ? a->how[r].old : a->how[r].reference);
    return sum;
}

/* The op seq_loss for sequence i: its rows of out. */
HZP_INLINE void hzp_sequence_loss(const struct hzp_seq_loss_args *a, int32_t i)
{
    int32_t from = a->first[i], n = a->first[i + 1] - from;
    if (n <= 0)
        return;
    struct hzp_row_loss h = a->how[from];
    double adv = h.advantage, beta = h.beta, sign = adv < 0 ? -1 : 1, value = 0, slope = 0, off;
    int gspo = h.kind == HZP_LOSS_GSPO;
    int32_t other = adv < 0 ? i - 1 : i + 1;
    double own = hzp_sequence_gap(a, i, gspo), theirs = gspo ? 0 : hzp_sequence_gap(a, other, 0);
    if (gspo) {
        double r = exp(fmin(fmax(own / n, -20.0), 20.0));
        off = adv > 0 ? fmin(r, 1 + (double)h.high) : fmax(r, 1 - (double)h.low);
        value = -off * adv;
        slope = off == r ? r * adv / n : 0;
    } else if (h.kind == HZP_LOSS_IPO) {
        int32_t m = other < 0 || other >= a->seqs ? 1 : a->first[other + 1] - a->first[other];
        off = sign * (own / n - theirs / (m > 0 ? m : 1)) - 1 / (2 * beta);
        value = off * off;
        slope = -2 * sign * off / n;
    } else {
        off = beta * sign * (own - theirs);
        value = fmax(-off, 0.0) + log1p(exp(-fabs(off)));
        slope = sign * beta / (1 + exp(off));
    }
    for (int32_t r = from; r < from + n; r++) {
        a->out[r] = a->how[r];
        if (h.kind < HZP_LOSS_KINDS)
            continue;
        a->out[r].old = r == from && (gspo || adv >= 0) ? (float)value : 0.0f;
        a->out[r].advantage = (float)slope;
        a->out[r].kl = gspo ? a->how[r].kl / (float)n : 0.0f;
    }
}
