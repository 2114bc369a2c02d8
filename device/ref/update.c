/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/update.c - the optimizer's update and the audit before publication. */
#include <math.h>
#include <string.h>

#include "device/philox.h"
#include "device/ref/ref.h"

static int ref_sumsq(struct hzp_lane *lane, const void *args)
{
    const struct hzp_sumsq_args *a = args;
    double sum = 0;
    for (int32_t r = 0; r < a->x.rows; r++)
        for (int32_t c = 0; c < a->x.cols; c++)
            sum += (double)ref_get(&a->x, r, c) * ref_get(&a->x, r, c);
    *a->sum += sum;
    return HZP_OK;
}

static float master_get(const struct hzp_adamw_args *a, int32_t r, int32_t c)
{
    if (a->from.type == HZP_F32)
        return ref_get(&a->from, r, c);
    return hzp_master_join(((const uint16_t *)ref_at(&a->from, r))[c],
                           ((const int16_t *)ref_at(&a->residual, r))[c]);
}

static void master_put(const struct hzp_adamw_args *a, int32_t r, int32_t c, float p)
{
    if (a->from.type == HZP_F32)
        ref_put(&a->to, r, c, p);
    else
        hzp_master_split(p, &((uint16_t *)ref_at(&a->to, r))[c],
                         &((int16_t *)ref_at(&a->residual, r))[c]);
}

static int ref_adamw(struct hzp_lane *lane, const void *args)
{
    const struct hzp_adamw_args *a = args;
    double norm = sqrt(*a->sumsq) * a->grad_scale;
    double scale = a->clip > 0 ? a->grad_scale * fmin(1, a->clip / (norm + 1e-6)) : a->grad_scale;
    double undo_m = 1 - pow(a->beta1, a->t), undo_v = 1 - pow(a->beta2, a->t);

    if (!isfinite(norm)) {
        size_t width = (size_t)a->from.cols * hzp_dtype_size(a->from.type);
        for (int32_t r = 0; r < a->from.rows; r++)
            memmove(ref_at(&a->to, r), ref_at(&a->from, r), width);
        return HZP_OK;
    }
    for (int32_t r = 0; r < a->from.rows; r++)
        for (int32_t c = 0; c < a->from.cols; c++) {
            double g = ref_get(&a->grad, r, c) * scale, p = master_get(a, r, c);
            double m = a->beta1 * (double)ref_get(&a->m, r, c) + (1 - (double)a->beta1) * g;
            double v = a->beta2 * (double)ref_get(&a->v, r, c) + (1 - (double)a->beta2) * g * g;
            double step = a->part_m > 0 ? a->part_m * m + a->part_g * g : m / undo_m;
            p = p * (1 - (double)a->lr * a->decay) - a->lr * step / (sqrt(v / undo_v) + a->eps);
            ref_put(&a->m, r, c, m);
            ref_put(&a->v, r, c, v);
            master_put(a, r, c, (float)p);
        }
    return HZP_OK;
}

static int ref_audit(struct hzp_lane *lane, const void *args)
{
    const struct hzp_audit_args *a = args;
    uint64_t words = (uint64_t)a->x.rows * (uint64_t)a->x.cols * hzp_dtype_size(a->x.type) / 8;
    for (uint64_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, (const char *)a->x.ptr + 8 * i, sizeof(word));
        *a->checksum += hzp_audit_mix(i, word);
    }
    if (a->x.type == HZP_F32 || a->x.type == HZP_BF16)
        for (int32_t r = 0; r < a->x.rows; r++)
            for (int32_t c = 0; c < a->x.cols; c++)
                *a->nonfinite += !isfinite(ref_get(&a->x, r, c));
    return HZP_OK;
}

void hzp_ref_fill_update(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_sumsq] = ref_sumsq;
    op[HZP_OP_adamw] = ref_adamw;
    op[HZP_OP_audit] = ref_audit;
}
