/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/attn.c - appending to pages, attention over them, attention over packed documents and
 * its backward. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "device/ref/ref.h"

/* The rows of one kv head in a page, as a matrix [page_rows][dim]. */
static struct hzp_mat page_mat(const struct hzp_kv *kv, void *base, const struct hzp_heads *heads,
                               int32_t page, int32_t kv_head)
{
    size_t rows =
        ((size_t)page * (size_t)heads->kv_heads + (size_t)kv_head) * (size_t)kv->page_rows;
    char *ptr = (char *)base + rows * (size_t)heads->dim * hzp_dtype_size(kv->type);
    return (struct hzp_mat){ptr, kv->page_rows, heads->dim, heads->dim, kv->type};
}

/* Appends the k and v in rope's output y to the pages. */
void hzp_ref_append(const struct hzp_rope_args *a)
{
    const struct hzp_heads *h = &a->heads;
    for (int32_t r = 0; r < a->y.rows; r++) {
        if (a->slot[r] < 0)
            continue;
        int32_t page = a->slot[r] / a->kv.page_rows, at = a->slot[r] % a->kv.page_rows;
        for (int32_t i = 0; i < h->kv_heads; i++) {
            struct hzp_mat k = page_mat(&a->kv, a->kv.k, h, page, i);
            struct hzp_mat v = page_mat(&a->kv, a->kv.v, h, page, i);
            for (int32_t j = 0; j < h->dim; j++) {
                ref_put(&k, at, j, ref_get(&a->y, r, (h->heads + i) * h->dim + j));
                ref_put(&v, at, j, ref_get(&a->y, r, (h->heads + h->kv_heads + i) * h->dim + j));
            }
        }
    }
}

/* Turns score[0 .. n-1] into probabilities; returns the log of the denominator. */
static double softmax(double *score, int32_t n)
{
    double top = -INFINITY, sum = 0;
    for (int32_t p = 0; p < n; p++)
        top = fmax(top, score[p]);
    for (int32_t p = 0; p < n; p++)
        sum += score[p] = exp(score[p] - top);
    for (int32_t p = 0; p < n; p++)
        score[p] /= sum;
    return top + log(sum);
}

/* Row r, query head h, over the first n positions of the sequence with these pages. */
static void paged_head(const struct hzp_attn_paged_args *a, const int32_t *page, int32_t r,
                       int32_t h, int32_t n, double *score, double *sum)
{
    int32_t dim = a->heads.dim, kv_head = h / (a->heads.heads / a->heads.kv_heads);
    int32_t page_rows = a->kv.page_rows;

    for (int32_t p = 0; p < n; p++) {
        struct hzp_mat k = page_mat(&a->kv, a->kv.k, &a->heads, page[p / page_rows], kv_head);
        double dot = 0;
        for (int32_t j = 0; j < dim; j++)
            dot += (double)ref_get(&a->qkv, r, h * dim + j) * ref_get(&k, p % page_rows, j);
        score[p] = dot * a->scale;
    }
    softmax(score, n);
    for (int32_t j = 0; j < dim; j++)
        sum[j] = 0;
    for (int32_t p = 0; p < n; p++) {
        struct hzp_mat v = page_mat(&a->kv, a->kv.v, &a->heads, page[p / page_rows], kv_head);
        for (int32_t j = 0; j < dim; j++)
            sum[j] += score[p] * ref_get(&v, p % page_rows, j);
    }
    for (int32_t j = 0; j < dim; j++)
        ref_put(&a->out, r, h * dim + j, sum[j]);
}

static int ref_attn_paged(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_paged_args *a = args;
    double *score = hzp_xmalloc(sizeof(*score) * (size_t)HZP_MAX(a->segs.ctx_max, 1));
    double *sum = hzp_xmalloc(sizeof(*sum) * (size_t)a->heads.dim);

    for (int32_t i = 0; i < a->segs.count; i++)
        for (int32_t r = a->segs.row0[i]; r < a->segs.row0[i + 1]; r++)
            for (int32_t h = 0; h < a->heads.heads; h++) {
                int32_t n = a->segs.pos0[i] + r - a->segs.row0[i] + 1;
                paged_head(a, hzp_attn_pages(a, i), r, h, n, score, sum);
            }
    free(score);
    free(sum);
    return HZP_OK;
}

/* q[r] k[p] of query head h; for packed attention k is in columns of qkv. */
static double packed_score(const struct hzp_mat *qkv, const struct hzp_heads *heads, int32_t h,
                           int32_t r, int32_t p)
{
    int32_t dim = heads->dim;
    int32_t k0 = (heads->heads + h / (heads->heads / heads->kv_heads)) * dim;
    double dot = 0;
    for (int32_t j = 0; j < dim; j++)
        dot += (double)ref_get(qkv, r, h * dim + j) * ref_get(qkv, p, k0 + j);
    return dot;
}

/* Rows are those of qkv; the rows of out start `before` rows later. */
static int ref_attn_packed(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_packed_args *a = args;
    int32_t dim = a->heads.dim, heads = a->heads.heads, kv_heads = a->heads.kv_heads;
    int32_t before = a->qkv.rows - a->out.rows;
    double *score = hzp_xmalloc(sizeof(*score) * (size_t)HZP_MAX(a->segs.ctx_max, 1));

    for (int32_t i = 0; i < a->segs.count; i++)
        for (int32_t r = before + a->segs.row0[i]; r < before + a->segs.row0[i + 1]; r++)
            for (int32_t h = 0; h < heads; h++) {
                int32_t r0 = before + a->segs.row0[i] - a->segs.pos0[i];
                int32_t v0 = (heads + kv_heads + h / (heads / kv_heads)) * dim;
                for (int32_t p = r0; p <= r; p++)
                    score[p - r0] = packed_score(&a->qkv, &a->heads, h, r, p) * a->scale;
                double lse = softmax(score, r - r0 + 1);
                for (int32_t j = 0; j < dim; j++) {
                    double sum = 0;
                    for (int32_t p = r0; p <= r; p++)
                        sum += score[p - r0] * ref_get(&a->qkv, p, v0 + j);
                    ref_put(&a->out, r - before, h * dim + j, sum);
                }
                if (a->lse)
                    a->lse[(size_t)(r - before) * (size_t)heads + (size_t)h] = (float)lse;
            }
    free(score);
    return HZP_OK;
}

/* The contribution of query head h to the document with rows r0 .. r1-1: writes its dq, adds to dk
 * and dv ([r1 - r0][dim] each). */
static void packed_bwd_head(const struct hzp_attn_packed_bwd_args *a, int32_t r0, int32_t r1,
                            int32_t h, double *dq, double *dk, double *dv)
{
    int32_t dim = a->heads.dim, kv_head = h / (a->heads.heads / a->heads.kv_heads);
    int32_t k0 = (a->heads.heads + kv_head) * dim, v0 = k0 + a->heads.kv_heads * dim;

    for (int32_t r = r0; r < r1; r++) {
        double lse = a->lse[(size_t)r * (size_t)a->heads.heads + (size_t)h], d = 0;
        for (int32_t j = 0; j < dim; j++) {
            d += (double)ref_get(&a->dout, r, h * dim + j) * ref_get(&a->out, r, h * dim + j);
            dq[j] = 0;
        }
        for (int32_t p = r0; p <= r; p++) {
            double prob = exp(packed_score(&a->qkv, &a->heads, h, r, p) * a->scale - lse);
            double dprob = 0;
            for (int32_t j = 0; j < dim; j++)
                dprob += (double)ref_get(&a->dout, r, h * dim + j) * ref_get(&a->qkv, p, v0 + j);
            double ds = prob * (dprob - d) * a->scale;
            for (int32_t j = 0; j < dim; j++) {
                dv[(p - r0) * dim + j] += prob * ref_get(&a->dout, r, h * dim + j);
                dk[(p - r0) * dim + j] += ds * ref_get(&a->qkv, r, h * dim + j);
                dq[j] += ds * ref_get(&a->qkv, p, k0 + j);
            }
        }
        for (int32_t j = 0; j < dim; j++)
            ref_put(&a->dqkv, r, h * dim + j, dq[j]);
    }
}

static int ref_attn_packed_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_packed_bwd_args *a = args;
    int32_t dim = a->heads.dim, group = a->heads.heads / a->heads.kv_heads;
    size_t room = (size_t)HZP_MAX(a->segs.rows_max, 1) * (size_t)dim;
    double *dk = hzp_xmalloc(sizeof(*dk) * room), *dv = hzp_xmalloc(sizeof(*dv) * room);
    double *dq = hzp_xmalloc(sizeof(*dq) * (size_t)dim);

    for (int32_t i = 0; i < a->segs.count; i++)
        for (int32_t kv_head = 0; kv_head < a->heads.kv_heads; kv_head++) {
            int32_t r0 = a->segs.row0[i], r1 = a->segs.row0[i + 1];
            int32_t k0 = (a->heads.heads + kv_head) * dim, v0 = k0 + a->heads.kv_heads * dim;
            memset(dk, 0, sizeof(*dk) * room);
            memset(dv, 0, sizeof(*dv) * room);
            for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
                packed_bwd_head(a, r0, r1, h, dq, dk, dv);
            for (int32_t r = r0; r < r1; r++)
                for (int32_t j = 0; j < dim; j++) {
                    ref_put(&a->dqkv, r, k0 + j, dk[(r - r0) * dim + j]);
                    ref_put(&a->dqkv, r, v0 + j, dv[(r - r0) * dim + j]);
                }
        }
    free(dk);
    free(dv);
    free(dq);
    return HZP_OK;
}

void hzp_ref_fill_attn(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_attn_decode] = ref_attn_paged;
    op[HZP_OP_attn_prefill] = ref_attn_paged;
    op[HZP_OP_attn_packed] = ref_attn_packed;
    op[HZP_OP_attn_packed_bwd] = ref_attn_packed_bwd;
}
