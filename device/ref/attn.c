/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/attn.c - appending to pages, attention over them, attention over packed documents and
 * its backward. */
#include "device/ref/ref.h"

/* One row of a kv head in pages. */
struct page_row {
    struct hzp_mat mat; /* [1][dim] */
    float *scale;       /* NULL: none */
};

/* The row of kv head kv_head at `slot`: page * page_rows + offset. */
static struct page_row page_row(const struct hzp_kv *kv, bool value, const struct hzp_heads *heads,
                                int64_t slot, int32_t kv_head)
{
    int64_t page = slot / kv->page_rows, at = slot % kv->page_rows;
    size_t row = (size_t)((page * heads->kv_heads + kv_head) * kv->page_rows + at);
    size_t bytes = (size_t)heads->dim * hzp_dtype_size(kv->type);
    char *ptr = (char *)(value ? kv->v : kv->k) + row * bytes;
    float *scale = value ? kv->v_scale : kv->k_scale;
    return (struct page_row){{ptr, 1, heads->dim, heads->dim, kv->type},
                             scale ? scale + row : NULL};
}

static double page_get(const struct page_row *row, int32_t c)
{
    const uint8_t *code = row->mat.ptr;
    return row->scale ? (double)hzp_e4m3_to_f32(code[c]) * *row->scale : ref_get(&row->mat, 0, c);
}

/* Stores y[r][c0 ..] in a row of pages. */
static void page_put(const struct page_row *row, const struct hzp_mat *y, int32_t r, int32_t c0)
{
    if (row->scale)
        hzp_ref_quantize_row(y, r, c0, row->mat.cols, row->mat.ptr, row->scale);
    else
        for (int32_t c = 0; c < row->mat.cols; c++)
            ref_put(&row->mat, 0, c, ref_get(y, r, c0 + c));
}

/* Appends the k and v in rope's output y to the pages. */
void hzp_ref_append(const struct hzp_rope_args *a)
{
    const struct hzp_heads *h = &a->heads;
    for (int32_t r = 0; r < a->y.rows; r++) {
        if (a->slot[r] < 0)
            continue;
        for (int32_t i = 0; i < h->kv_heads; i++) {
            struct page_row k = page_row(&a->kv, false, h, a->slot[r], i);
            struct page_row v = page_row(&a->kv, true, h, a->slot[r], i);
            page_put(&k, &a->y, r, (h->heads + i) * h->dim);
            page_put(&v, &a->y, r, (h->heads + h->kv_heads + i) * h->dim);
        }
    }
}

/* The sink of head h; -inf: there is none. */
static double sink_of(const struct hzp_mat *sink, int32_t h)
{
    return sink->ptr ? ref_get(sink, 0, h) : -INFINITY;
}

/* Turns score[0 .. n-1] into probabilities; returns the log of the denominator. */
static double softmax(double *score, int32_t n, double sink)
{
    double top = sink, sum = 0;
    for (int32_t p = 0; p < n; p++)
        top = fmax(top, score[p]);
    sum += exp(sink - top);
    for (int32_t p = 0; p < n; p++)
        sum += score[p] = exp(score[p] - top);
    for (int32_t p = 0; p < n; p++)
        score[p] /= sum;
    return top + log(sum);
}

static double capped(double score, float cap)
{
    return cap > 0 ? cap * tanh(score / cap) : score;
}

/* Row r, query head h, over the positions of the sequence with these pages that precede the n-th.
 */
static void paged_head(const struct hzp_attn_paged_args *a, const int32_t *page, int32_t r,
                       int32_t h, int32_t n, double *score, double *sum)
{
    int32_t dim = a->heads.dim, kv_head = h / (a->heads.heads / a->heads.kv_heads);
    int32_t page_rows = a->kv.page_rows, first = hzp_attn_first(a->window, n - 1);

    for (int32_t p = first; p < n; p++) {
        int64_t slot = (int64_t)page[p / page_rows] * page_rows + p % page_rows;
        struct page_row k = page_row(&a->kv, false, &a->heads, slot, kv_head);
        double dot = 0;
        for (int32_t j = 0; j < dim; j++)
            dot += (double)ref_get(&a->qkv, r, h * dim + j) * page_get(&k, j);
        score[p] = capped(dot * a->scale, a->cap);
    }
    softmax(score + first, n - first, sink_of(&a->sink, h));
    for (int32_t j = 0; j < dim; j++)
        sum[j] = 0;
    for (int32_t p = first; p < n; p++) {
        int64_t slot = (int64_t)page[p / page_rows] * page_rows + p % page_rows;
        struct page_row v = page_row(&a->kv, true, &a->heads, slot, kv_head);
        for (int32_t j = 0; j < dim; j++)
            sum[j] += score[p] * page_get(&v, j);
    }
    for (int32_t j = 0; j < dim; j++)
        ref_put(&a->out, r, h * dim + j, sum[j]);
}

static int ref_attn_paged(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_paged_args *a = args;
    HZP_FREED double *score = hzp_xmalloc(sizeof(*score) * (size_t)HZP_MAX(a->segs.ctx_max, 1));
    HZP_FREED double *sum = hzp_xmalloc(sizeof(*sum) * (size_t)a->heads.dim);

    for (int32_t i = 0; i < a->segs.count; i++)
        for (int32_t r = a->segs.row0[i]; r < a->segs.row0[i + 1]; r++)
            for (int32_t h = 0; h < a->heads.heads; h++) {
                int32_t n = a->segs.pos0[i] + r - a->segs.row0[i] + 1;
                paged_head(a, hzp_attn_pages(a, i), r, h, n, score, sum);
            }
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
    HZP_FREED double *score = hzp_xmalloc(sizeof(*score) * (size_t)HZP_MAX(a->segs.ctx_max, 1));

    for (int32_t i = 0; i < a->segs.count; i++)
        for (int32_t r = before + a->segs.row0[i]; r < before + a->segs.row0[i + 1]; r++)
            for (int32_t h = 0; h < heads; h++) {
                int32_t r0 = before + a->segs.row0[i] - a->segs.pos0[i];
                r0 += hzp_attn_first(a->window, r - r0);
                int32_t v0 = (heads + kv_heads + h / (heads / kv_heads)) * dim;
                for (int32_t p = r0; p <= r; p++)
                    score[p - r0] =
                        capped(packed_score(&a->qkv, &a->heads, h, r, p) * a->scale, a->cap);
                double lse = softmax(score, r - r0 + 1, sink_of(&a->sink, h));
                for (int32_t j = 0; j < dim; j++) {
                    double sum = 0;
                    for (int32_t p = r0; p <= r; p++)
                        sum += score[p - r0] * ref_get(&a->qkv, p, v0 + j);
                    ref_put(&a->out, r - before, h * dim + j, sum);
                }
                if (a->lse)
                    a->lse[(size_t)(r - before) * (size_t)heads + (size_t)h] = (float)lse;
            }
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
        if (a->dsink.ptr)
            ref_add(&a->dsink, 0, h, -exp(sink_of(&a->sink, h) - lse) * d);
        for (int32_t p = r0 + hzp_attn_first(a->window, r - r0); p <= r; p++) {
            double x = capped(packed_score(&a->qkv, &a->heads, h, r, p) * a->scale, a->cap);
            double prob = exp(x - lse), slope = a->cap > 0 ? 1 - x / a->cap * (x / a->cap) : 1;
            double dprob = 0;
            for (int32_t j = 0; j < dim; j++)
                dprob += (double)ref_get(&a->dout, r, h * dim + j) * ref_get(&a->qkv, p, v0 + j);
            double ds = prob * (dprob - d) * slope * a->scale;
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
    HZP_FREED double *dq = hzp_xmalloc(sizeof(*dq) * (size_t)dim);

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
    return HZP_OK;
}

void hzp_ref_fill_attn(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_attn_decode] = ref_attn_paged;
    op[HZP_OP_attn_prefill] = ref_attn_paged;
    op[HZP_OP_attn_packed] = ref_attn_packed;
    op[HZP_OP_attn_packed_bwd] = ref_attn_packed_bwd;
}
