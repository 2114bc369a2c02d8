/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/grad.c - the loss and the backward ops, except attention's. */
#include "device/objective.h"
#include "device/ref/ref.h"

static double within(double v, double low, double high)
{
    return fmin(fmax(v, low), high);
}

/* f of one row, and its derivative to lp. */
static double loss_of(const struct hzp_row_loss *h, double lp, double *ret_slope)
{
    double adv = h->advantage, beta = h->beta, log_r = (float)lp - (double)h->old, slope = -1;
    double near = within(log_r, -20, 20), r = exp(near), low = 1.0 - h->low, high = 1.0 + h->high;
    double f = -lp, held = within(r, low, high), p = exp((float)lp), q = exp(h->old);
    if (h->kind == HZP_LOSS_IS) {
        f = slope = -r * adv;
    } else if (h->kind == HZP_LOSS_PPO) {
        f = -fmin(r * adv, held * adv);
        slope = r * adv <= held * adv ? f : 0;
    } else if (h->kind == HZP_LOSS_CISPO) {
        slope = -held * adv;
        f = slope * lp;
    } else if (h->kind == HZP_LOSS_DPPO) {
        bool keep = !(adv > 0 && p - q > h->high) && !(adv < 0 && p - q < -h->low);
        f = -keep * r * adv + beta * near * near;
        slope = -keep * r * adv + 2 * beta * near;
    } else if (h->kind == HZP_LOSS_DRO) {
        f = -lp * adv + beta / 2 * log_r * log_r;
        slope = -adv + beta * log_r;
    }
    if (h->kind >= HZP_LOSS_KINDS) {
        f = h->old;
        slope = -adv;
    }
    double gap = within(h->reference - (double)(float)lp, -20, 20);
    *ret_slope = slope + (h->kl != 0 ? h->kl * (1 - exp(gap)) : 0);
    return f + (h->kl != 0 ? h->kl * (exp(gap) - gap - 1) : 0);
}

/* The loss of a row with soft targets, given log-probabilities of all tokens, and its derivative to
 * each logit: that of lp_k to logit c is (c is token k) - probability of c. */
static double soft_loss_of(const struct hzp_soft *s, const double *lp, int32_t cols, double *slope)
{
    double f = 0, inside = 0, rest = 0;
    for (int32_t k = 0; k < s->count; k++) {
        f -= (double)s->p[k] * lp[s->token[k]];
        inside += exp(lp[s->token[k]]);
    }
    if (s->rest > 0)
        f -= (double)s->rest * log(fmax(1 - inside, 1e-6));
    if (s->rest > 0 && 1 - inside > 1e-6)
        rest = (double)s->rest / (1 - inside);
    for (int32_t c = 0; c < cols; c++) {
        slope[c] = -rest * exp(lp[c]) * inside;
        for (int32_t k = 0; k < s->count; k++)
            slope[c] += (double)s->p[k] * (exp(lp[c]) - (c == s->token[k])) +
                        rest * (c == s->token[k]) * exp(lp[c]);
    }
    return f;
}

/* A row of kind SOFT; lse is that of its logits times `by`. */
static void soft_row(const struct hzp_xent_args *a, int32_t r, double by, double lse)
{
    int32_t cols = a->x.cols;
    double weight = a->weight ? a->weight[r] : 1;
    double *lp = hzp_xcalloc(2 * (size_t)cols, sizeof(*lp)), *slope = lp + cols;
    for (int32_t c = 0; c < cols; c++)
        lp[c] = by * ref_get(&a->x, r, c) - lse;
    a->loss[r] = (float)(weight * soft_loss_of(&a->soft[r], lp, cols, slope));
    for (int32_t c = 0; a->dx.ptr && c < cols; c++) {
        double x = ref_get(&a->x, r, c), cap = a->cap > 0 ? 1 - x / a->cap * (x / a->cap) : 1;
        ref_put(&a->dx, r, c, weight * by * cap * slope[c]);
    }
    free(lp);
}

static void xent_row(const struct hzp_xent_args *a, int32_t r)
{
    static const struct hzp_row_loss plain = {.kind = HZP_LOSS_XENT, .inv_temperature = 1};
    const struct hzp_row_loss *how = a->how ? &a->how[r] : &plain;
    int32_t target = a->target[r];
    double weight = a->weight ? a->weight[r] : 1, by = how->inv_temperature, slope;
    double top = -INFINITY, sum = 0, mean = 0;
    for (int32_t c = 0; c < a->x.cols; c++)
        top = fmax(top, by * ref_get(&a->x, r, c));
    for (int32_t c = 0; c < a->x.cols; c++)
        sum += exp(by * ref_get(&a->x, r, c) - top);
    double lse = top + log(sum), lp = target < 0 ? 0 : by * ref_get(&a->x, r, target) - lse;
    for (int32_t c = 0; a->entropy && c < a->x.cols; c++) {
        double z = by * ref_get(&a->x, r, c) - lse;
        mean += z == -INFINITY ? 0 : exp(z) * z;
    }
    if (a->lp)
        a->lp[r] = (float)lp;
    if (a->entropy)
        a->entropy[r] = target < 0 ? 0 : (float)-mean;
    if (how->kind == HZP_LOSS_SOFT && target >= 0) {
        soft_row(a, r, by, lse);
        return;
    }
    double f = loss_of(how, lp, &slope);
    a->loss[r] = target < 0 ? 0 : (float)(weight * f);
    for (int32_t c = 0; a->dx.ptr && c < a->x.cols; c++) {
        double x = ref_get(&a->x, r, c), p = exp(by * x - lse);
        double f_cap = a->cap > 0 ? 1 - x / a->cap * (x / a->cap) : 1;
        ref_put(&a->dx, r, c, target < 0 ? 0 : -weight * slope * by * f_cap * (p - (c == target)));
    }
}

/* The formulas of a sequence are in device/objective.h alone: what they are compared with is
 * PyTorch's (tests/opcheck/losses.h). */
static int ref_seq_loss(struct hzp_lane *lane, const void *args)
{
    const struct hzp_seq_loss_args *a = args;
    for (int32_t i = 0; i < a->seqs; i++)
        hzp_sequence_loss(a, i);
    return HZP_OK;
}

static int ref_xent(struct hzp_lane *lane, const void *args)
{
    const struct hzp_xent_args *a = args;
    for (int32_t r = 0; r < a->x.rows; r++)
        xent_row(a, r);
    return HZP_OK;
}

/* In float and in row order: the op list fixes the order of this sum, so that sharded and unsharded
 * training agree bit for bit. */
static int ref_embed_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_embed_bwd_args *a = args;
    for (int32_t r = 0; r < a->dy.rows; r++) {
        int64_t row = (int64_t)a->id[r] - a->first;
        if (row < 0 || row >= a->dtable.rows)
            continue;
        float *into = ref_at(&a->dtable, (int32_t)row);
        for (int32_t c = 0; c < a->dy.cols; c++)
            into[c] += ref_get(&a->dy, r, c);
    }
    return HZP_OK;
}

static int ref_rmsnorm_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rmsnorm_bwd_args *a = args;
    int32_t cols = a->x.cols;
    HZP_FREED double *dw = hzp_xcalloc((size_t)cols, sizeof(*dw));

    for (int32_t r = 0; r < a->x.rows; r++) {
        double rstd = a->rstd[r], mean = 0, mean_dn = 0;
        double centre = ref_centre(&a->x, r, a->centred);
        for (int32_t c = 0; c < cols; c++) {
            double n = (ref_get(&a->x, r, c) - centre) * rstd, dy = ref_get(&a->dy, r, c);
            mean += dy * ref_weight(&a->w, c, a->plus_one) * n / cols;
            mean_dn += a->centred ? dy * ref_weight(&a->w, c, a->plus_one) / cols : 0;
            dw[c] += dy * n;
        }
        for (int32_t c = 0; c < cols; c++) {
            double n = (ref_get(&a->x, r, c) - centre) * rstd;
            double dn = ref_get(&a->dy, r, c) * ref_weight(&a->w, c, a->plus_one);
            ref_add(&a->dx, r, c, rstd * (dn - n * mean - mean_dn));
        }
    }
    for (int32_t c = 0; a->x.rows > 0 && a->dw.ptr && c < cols; c++)
        ref_add(&a->dw, 0, c, dw[c]);
    return HZP_OK;
}

/* One head of one row.  dn: scratch for dim numbers; dw [dim] is added to. */
static void rope_bwd_head(const struct hzp_rope_bwd_args *a, const struct hzp_mat *norm, int32_t r,
                          int32_t c0, double *dn, double *dw)
{
    int32_t dim = a->heads.dim, half = dim / 2;
    for (int32_t j = 0; j < half; j++) {
        double c = ref_get(&a->table, a->pos[r], j), s = ref_get(&a->table, a->pos[r], half + j);
        double lo = ref_get(&a->dy, r, c0 + j), hi = ref_get(&a->dy, r, c0 + half + j);
        dn[j] = lo * c + hi * s;
        dn[half + j] = hi * c - lo * s;
    }
    if (norm->ptr) {
        double sum = 0, mean = 0;
        for (int32_t j = 0; j < dim; j++)
            sum += (double)ref_get(&a->x, r, c0 + j) * ref_get(&a->x, r, c0 + j);
        double rstd = 1 / sqrt(sum / dim + a->eps);
        for (int32_t j = 0; j < dim; j++) {
            double n = ref_get(&a->x, r, c0 + j) * rstd;
            dw[j] += dn[j] * n;
            dn[j] *= ref_weight(norm, j, a->plus_one);
            mean += dn[j] * n / dim;
        }
        for (int32_t j = 0; j < dim; j++)
            dn[j] = rstd * (dn[j] - ref_get(&a->x, r, c0 + j) * rstd * mean);
    }
    for (int32_t j = 0; j < dim; j++)
        ref_put(&a->dx, r, c0 + j, dn[j]);
}

static int ref_rope_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rope_bwd_args *a = args;
    int32_t heads = a->heads.heads, turned = heads + a->heads.kv_heads, dim = a->heads.dim;
    double *dn = hzp_xcalloc(3 * (size_t)dim, sizeof(*dn)), *dwq = dn + dim, *dwk = dwq + dim;

    for (int32_t r = 0; r < a->dy.rows; r++) {
        for (int32_t h = 0; h < turned; h++)
            rope_bwd_head(a, h < heads ? &a->q_norm : &a->k_norm, r, h * dim, dn,
                          h < heads ? dwq : dwk);
        for (int32_t c = turned * dim; c < a->dy.cols; c++)
            ref_put(&a->dx, r, c, ref_get(&a->dy, r, c));
    }
    for (int32_t j = 0; a->dy.rows > 0 && j < dim; j++) {
        if (a->dq_norm.ptr)
            ref_add(&a->dq_norm, 0, j, dwq[j]);
        if (a->dk_norm.ptr)
            ref_add(&a->dk_norm, 0, j, dwk[j]);
    }
    free(dn);
    return HZP_OK;
}

static int ref_swiglu_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_swiglu_bwd_args *a = args;
    int32_t width = a->dy.cols;
    for (int32_t r = 0; r < a->dy.rows; r++)
        for (int32_t c = 0; c < width; c++) {
            double g = ref_get(&a->x, r, c), u = ref_get(&a->x, r, width + c);
            double root = sqrt(8 / M_PI), dy = ref_get(&a->dy, r, c);
            double z = a->gelu ? root * (g + 0.044715 * g * g * g) : g;
            double slope = a->gelu ? root * (1 + 3 * 0.044715 * g * g) : 1, s = 1 / (1 + exp(-z));
            ref_put(&a->dx, r, c, dy * u * s * (1 + g * slope * (1 - s)));
            ref_put(&a->dx, r, width + c, dy * g * s);
        }
    return HZP_OK;
}

static int ref_colsum(struct hzp_lane *lane, const void *args)
{
    const struct hzp_colsum_args *a = args;
    for (int32_t c = 0; a->x.rows > 0 && c < a->x.cols; c++) {
        double sum = 0;
        for (int32_t r = 0; r < a->x.rows; r++)
            sum += ref_get(&a->x, r, c);
        ref_add(&a->y, 0, c, sum);
    }
    return HZP_OK;
}

void hzp_ref_fill_grad(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_xent] = ref_xent;
    op[HZP_OP_seq_loss] = ref_seq_loss;
    op[HZP_OP_embed_bwd] = ref_embed_bwd;
    op[HZP_OP_rmsnorm_bwd] = ref_rmsnorm_bwd;
    op[HZP_OP_rope_bwd] = ref_rope_bwd;
    op[HZP_OP_swiglu_bwd] = ref_swiglu_bwd;
    op[HZP_OP_colsum] = ref_colsum;
}
