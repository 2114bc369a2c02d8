/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/update.c - the optimizer's update and the audit before publication. */
#include "device/philox.h"
#include "device/q8.h"
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

static float master_get(const struct hzp_mat *from, const struct hzp_mat *residual, int32_t r,
                        int32_t c)
{
    if (from->type == HZP_F32)
        return ref_get(from, r, c);
    return hzp_master_join(((const uint16_t *)ref_at(from, r))[c],
                           ((const int16_t *)ref_at(residual, r))[c]);
}

static void master_put(const struct hzp_mat *to, const struct hzp_mat *residual, int32_t r,
                       int32_t c, float p)
{
    if (to->type == HZP_F32)
        ref_put(to, r, c, p);
    else
        hzp_master_split(p, &((uint16_t *)ref_at(to, r))[c], &((int16_t *)ref_at(residual, r))[c]);
}

/* What gradients are multiplied by; NaN: the norm is not finite. */
static double gradient_scale(const double *sumsq, float grad_scale, float clip)
{
    double norm = sqrt(*sumsq) * grad_scale;
    if (!isfinite(norm))
        return NAN;
    return clip > 0 ? grad_scale * fmin(1, clip / (norm + 1e-6)) : grad_scale;
}

static void copy_rows(const struct hzp_mat *from, const struct hzp_mat *to)
{
    for (int32_t r = 0; r < from->rows; r++)
        memmove(ref_at(to, r), ref_at(from, r), (size_t)from->cols * hzp_dtype_size(from->type));
}

/* The moments of one element. */
struct moments {
    double m, v;
};

static struct moments moments_get(const struct hzp_adamw_args *a, int32_t r, int32_t c)
{
    if (a->m.type != HZP_Q8)
        return (struct moments){(double)ref_get(&a->m, r, c), (double)ref_get(&a->v, r, c)};
    int32_t block = c / HZP_Q8_BLOCK;
    double root = (double)hzp_q8_root(((const uint8_t *)a->v.ptr)[c], a->v_scale[block]);
    double m = (double)hzp_q8_first(((const int8_t *)a->m.ptr)[c], a->m_scale[block]);
    return (struct moments){m, root * root};
}

/* Those of row r, of which a block is quantized together. */
static void moments_put(const struct hzp_adamw_args *a, int32_t r, const struct moments *of)
{
    int32_t cols = a->from.cols;
    for (int32_t c = 0; a->m.type != HZP_Q8 && c < cols; c++) {
        ref_put(&a->m, r, c, of[c].m);
        ref_put(&a->v, r, c, of[c].v);
    }
    for (int32_t c0 = 0; a->m.type == HZP_Q8 && c0 < cols; c0 += HZP_Q8_BLOCK) {
        int32_t end = HZP_MIN(c0 + HZP_Q8_BLOCK, cols);
        double m = 0, root = 0;
        for (int32_t c = c0; c < end; c++) {
            m = fmax(m, fabs(of[c].m));
            root = fmax(root, sqrt(of[c].v));
        }
        float scale = a->m_scale[c0 / HZP_Q8_BLOCK] = hzp_q8_scale((float)m);
        float scale_v = a->v_scale[c0 / HZP_Q8_BLOCK] = hzp_q8_scale((float)root);
        for (int32_t c = c0; c < end; c++) {
            ((int8_t *)a->m.ptr)[c] = hzp_q8_from_first((float)of[c].m, scale);
            ((uint8_t *)a->v.ptr)[c] = hzp_q8_from_root((float)sqrt(of[c].v), scale_v);
        }
    }
}

static int ref_adamw(struct hzp_lane *lane, const void *args)
{
    const struct hzp_adamw_args *a = args;
    double scale = gradient_scale(a->sumsq, a->grad_scale, a->clip);
    double undo_m = 1 - pow(a->beta1, a->t), undo_v = 1 - pow(a->beta2, a->t);

    if (isnan(scale)) {
        copy_rows(&a->from, &a->to);
        return HZP_OK;
    }
    HZP_FREED struct moments *now = hzp_xcalloc((size_t)HZP_MAX(a->from.cols, 1), sizeof(*now));
    for (int32_t r = 0; r < a->from.rows; r++) {
        for (int32_t c = 0; c < a->from.cols; c++) {
            double g = ref_get(&a->grad, r, c) * scale,
                   p = master_get(&a->from, &a->residual, r, c);
            struct moments old = moments_get(a, r, c);
            double m = a->beta1 * old.m + (1 - (double)a->beta1) * g;
            double v = a->beta2 * old.v + (1 - (double)a->beta2) * g * g;
            double step = a->part_m > 0 ? a->part_m * m + a->part_g * g : m / undo_m;
            double decay = a->decayed && c >= a->decayed ? 0 : (double)a->decay;
            p = p * (1 - a->lr * decay) - a->lr * step / (sqrt(v / undo_v) + a->eps);
            now[c] = (struct moments){m, v};
            master_put(&a->to, &a->residual, r, c, (float)p);
        }
        moments_put(a, r, now);
    }
    return HZP_OK;
}

static int ref_muon(struct hzp_lane *lane, const void *args)
{
    const struct hzp_muon_args *a = args;
    double scale = gradient_scale(a->sumsq, a->grad_scale, a->clip), momentum = a->momentum;
    if (a->from.ptr && isnan(scale)) {
        copy_rows(&a->from, &a->to);
        return HZP_OK;
    }
    for (int32_t r = 0; r < a->x.rows; r++)
        for (int32_t c = 0; c < a->x.cols; c++) {
            if (a->from.ptr) {
                double p = master_get(&a->from, &a->residual, r, c);
                p = p * a->keep - a->step * (double)ref_get(&a->x, r, c);
                master_put(&a->to, &a->residual, r, c, (float)p);
            } else if (isnan(scale)) {
                ref_put(&a->x, r, c, 0);
            } else {
                double g = ref_get(&a->grad, r, c) * scale;
                double m = momentum * ref_get(&a->m, r, c) + (1 - momentum) * g;
                ref_put(&a->m, r, c, m);
                ref_put(&a->x, r, c, momentum * m + (1 - momentum) * g);
            }
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
    op[HZP_OP_muon] = ref_muon;
    op[HZP_OP_audit] = ref_audit;
}
