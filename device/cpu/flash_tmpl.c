/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/flash_tmpl.c - attn_prefill and attn_packed: attention of many rows a segment.
 *
 * Block by block of keys with a running maximum and sum (Milakov and Gimelshein 2018; Dao et al.
 * 2022), so that scores never leave the cache.  The query heads that share a kv head are rows of
 * one product, so keys and values are packed once for all of them.  A task is one kv head and one
 * range of a segment's queries.
 */
#include "device/cpu/tile_tmpl.h"

enum { ROWS = 192 }; /* rows of a task, about: queries times heads that share a kv head */

struct flash {
    struct hzp_mat qkv, out;
    struct hzp_heads heads;
    float scale;
    int64_t before;                          /* rows of qkv before those of out */
    float *lse;                              /* NULL: not kept */
    const struct hzp_attn_paged_args *paged; /* NULL: keys are in the rows themselves */
    const struct hzp_segs *segs;
    struct hzp_team *team;
    const int32_t (*item)[2]; /* segment, its first query */
    int items, queries;       /* of a task */
};

/* A task's work memory. */
struct flash_work {
    float *q, *s, *p, *o; /* [rows][k of dim], [rows][BLOCK], [rows][k of BLOCK], [rows][width] */
    float *rows, *keys, *values; /* one block in rows form; panels */
    float *top, *sum;            /* [rows] */
    size_t k;                    /* dwords of a row of q */
    int width;                   /* dim, rounded up to panels */
};

static size_t flash_work_make(bool pairs, int dim, int rows, float *base, struct flash_work *ret)
{
    size_t k = (size_t)k_dwords(pairs, dim), width = (size_t)HZP_ROUND_UP(dim, W);
    size_t n = (size_t)HZP_ROUND_UP(rows, 16), at = 0;
    float **part[9] = {&ret->q, &ret->s, &ret->p, &ret->o, &ret->rows, &ret->keys, &ret->values,
                       &ret->top, &ret->sum};
    size_t size[9] = {n * k, n * BLOCK, n * BLOCK, n * width, BLOCK * k, BLOCK * k,
                      BLOCK * width, n, n};

    for (int i = 0; i < 9; i++) {
        *part[i] = base ? base + at : NULL;
        at += HZP_ROUND_UP(size[i], (size_t)16);
    }
    ret->k = k;
    ret->width = (int)width;
    return at * sizeof(float);
}

/* Position p of segment seg, kv head h: its key; the value lies `values` bytes on. */
static const char *key_at(const struct flash *f, int seg, int h, int p, bool value)
{
    size_t dim = (size_t)f->heads.dim, size = f->qkv.type == HZP_F32 ? 4 : 2;

    if (f->paged) {
        const struct hzp_attn_paged_args *a = f->paged;
        int64_t page = a->page[(size_t)seg * (size_t)a->page_stride + (size_t)(p / a->kv.page_rows)];
        size_t row = ((size_t)page * (size_t)f->heads.kv_heads + (size_t)h) *
                         (size_t)a->kv.page_rows + (size_t)(p % a->kv.page_rows);
        return (const char *)(value ? a->kv.v : a->kv.k) + row * dim * size;
    }
    size_t head = (size_t)(f->heads.heads + h + (value ? f->heads.kv_heads : 0));
    int64_t row = f->before + f->segs->row0[seg] - f->segs->pos0[seg] + p;
    return (const char *)hzp_cpu_row(&f->qkv, row) + head * dim * size;
}

/* Keys or values k0 .. k0+n-1 into w->rows, zeros after them. */
INLINE void block_load(const struct flash *f, const struct flash_work *w, bool pairs, int seg,
                       int h, int k0, int n, bool value)
{
    for (int i = 0; i < n; i++)
        row_copy(pairs, key_at(f, seg, h, k0 + i, value), f->qkv.type, f->heads.dim,
                 w->rows + (size_t)i * w->k);
    if (n < BLOCK)
        memset(w->rows + (size_t)n * w->k, 0, (size_t)(BLOCK - n) * w->k * sizeof(float));
}

/* Row i sees the first n keys of the block: s becomes probabilities in p, o and sum follow the
 * running maximum. */
INLINE void softmax_row(const struct flash_work *w, bool pairs, int i, int n, float scale)
{
    float *s = w->s + (size_t)i * BLOCK, *o = w->o + (size_t)i * (size_t)w->width;
    float *p = w->p + (size_t)i * (size_t)k_dwords(pairs, BLOCK);
    vf top = vset(-INFINITY), sum = vzero(), factor = vset(scale);

    if (n <= 0) {
        memset(p, 0, (size_t)k_dwords(pairs, BLOCK) * sizeof(*p));
        return;
    }
    EACH(c, n, top = vmax(vkeep(vmul(vload(s + c, left), factor), -INFINITY, left), top););
    float high = fmaxf(vtop(top), w->top[i]);
    vf shift = vset(high == -INFINITY ? 0 : high);
    for (int c = 0; c < BLOCK; c += VL) {
        vf e = vzero();
        if (c < n) {
            int left = HZP_MIN(VL, n - c);
            e = vexp(vsub(vmul(vload(s + c, VL), factor), shift));
            e = vkeep(e, 0, left);
            sum = vadd(sum, e);
        }
        vstore(s + c, e, VL);
    }
    row_pack(pairs, s, BLOCK, p);
    if (high > w->top[i]) {
        float less = expf(w->top[i] - high);
        w->sum[i] *= less;
        w->top[i] = high;
        for (int c = 0; c < w->width; c += VL)
            vstore(o + c, vmul(vload(o + c, VL), vset(less)), VL);
    }
    w->sum[i] += vsum(sum);
}

INLINE void flash_finish(const struct flash *f, const struct flash_work *w, int seg, int q0, int n,
                         int h)
{
    int group = f->heads.heads / f->heads.kv_heads, dim = f->heads.dim;
    size_t size = f->out.type == HZP_F32 ? 4 : 2;

    for (int g = 0; g < group; g++)
        for (int i = 0; i < n; i++) {
            int at = g * n + i, head = h * group + g;
            int64_t row = (int64_t)f->segs->row0[seg] + q0 + i;
            char *y = (char *)hzp_cpu_row(&f->out, row) + (size_t)(head * dim) * size;
            const float *o = w->o + (size_t)at * (size_t)w->width;
            vf scale = vset(1.f / w->sum[at]);
            EACH(c, dim, vput(y, (size_t)c, f->out.type, vmul(vload(o + c, left), scale), left););
            if (f->lse)
                f->lse[(size_t)row * (size_t)f->heads.heads + (size_t)head] =
                    w->top[at] + logf(w->sum[at]);
        }
}

INLINE void flash_run(const struct flash *f, const struct flash_work *w, bool pairs, int seg,
                      int q0, int n, int h)
{
    int group = f->heads.heads / f->heads.kv_heads, dim = f->heads.dim, rows = group * n;
    int pos = f->segs->pos0[seg] + q0; /* of the first query */
    size_t size = f->qkv.type == HZP_F32 ? 4 : 2;

    for (int g = 0; g < group; g++)
        for (int i = 0; i < n; i++)
            row_copy(pairs,
                     (const char *)hzp_cpu_row(&f->qkv, f->before + f->segs->row0[seg] + q0 + i) +
                         (size_t)((h * group + g) * dim) * size,
                     f->qkv.type, dim, w->q + (size_t)(g * n + i) * w->k);
    for (int i = 0; i < rows; i++) {
        w->top[i] = -INFINITY;
        w->sum[i] = 0;
    }
    memset(w->o, 0, (size_t)rows * (size_t)w->width * sizeof(float));
    for (int k0 = 0; k0 < pos + n; k0 += BLOCK) {
        int keys = HZP_MIN(BLOCK, pos + n - k0), kb = k_dwords(pairs, BLOCK);

        block_load(f, w, pairs, seg, h, k0, keys, false);
        panels_of_rows(w->rows, w->k, (int)w->k, w->keys);
        block_load(f, w, pairs, seg, h, k0, keys, true);
        panels_of_cols(pairs, w->rows, w->k, dim, w->values);
        tile_product(pairs, rows, BLOCK, (int)w->k, w->q, w->k, w->keys, w->s, BLOCK, false);
        for (int i = 0; i < rows; i++)
            softmax_row(w, pairs, i, HZP_MIN(keys, pos + i % n - k0 + 1), f->scale);
        tile_product(pairs, rows, w->width, kb, w->p, (size_t)kb, w->values, w->o,
                     (size_t)w->width, true);
    }
    flash_finish(f, w, seg, q0, n, h);
}

static void flash_task(void *ctx, int task, int thread)
{
    const struct flash *f = ctx;
    int item = f->items - 1 - task / f->heads.kv_heads; /* late queries see most: begin with them */
    int seg = f->item[item][0], q0 = f->item[item][1], h = task % f->heads.kv_heads;
    int n = HZP_MIN(f->queries, f->segs->row0[seg + 1] - f->segs->row0[seg] - q0);
    int rows = f->queries * (f->heads.heads / f->heads.kv_heads);
    struct flash_work w;

    flash_work_make(HZP_PAIRS(f->qkv.type), f->heads.dim, rows, hzp_team_own(f->team, thread), &w);
    if (HZP_PAIRS(f->qkv.type))
        flash_run(f, &w, true, seg, q0, n, h);
    else
        flash_run(f, &w, false, seg, q0, n, h);
}

static int flash_issue(struct flash *f)
{
    int group = f->heads.heads / f->heads.kv_heads, items = 0;
    int32_t(*item)[2];
    struct flash_work w;

    f->queries = HZP_MIN(HZP_MAX(16, ROWS / group), HZP_MAX(1, f->segs->rows_max));
    for (int i = 0; i < f->segs->count; i++)
        items += HZP_DIV_UP(f->segs->row0[i + 1] - f->segs->row0[i], f->queries);
    HZP_TRY(hzp_team_reserve(f->team, (size_t)items * sizeof(*item),
                             flash_work_make(HZP_PAIRS(f->qkv.type), f->heads.dim,
                                             f->queries * group, NULL, &w)));
    item = hzp_team_shared(f->team);
    f->item = (const int32_t(*)[2])item;
    for (int i = 0; i < f->segs->count; i++)
        for (int q = 0; q < f->segs->row0[i + 1] - f->segs->row0[i]; q += f->queries) {
            item[f->items][0] = i;
            item[f->items++][1] = q;
        }
    hzp_team_run(f->team, items * f->heads.kv_heads, flash_task, f);
    return HZP_OK;
}

static int cpu_attn_prefill(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_paged_args *a = args;
    struct flash f = {.qkv = a->qkv, .out = a->out, .heads = a->heads, .scale = a->scale,
                      .paged = a, .segs = &a->segs, .team = hzp_cpu_team(lane)};
    return flash_issue(&f);
}

static int cpu_attn_packed(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_packed_args *a = args;
    struct flash f = {.qkv = a->qkv, .out = a->out, .heads = a->heads, .scale = a->scale,
                      .before = a->qkv.rows - a->out.rows, .lse = a->lse, .segs = &a->segs,
                      .team = hzp_cpu_team(lane)};
    return flash_issue(&f);
}

void HZP_ISA_NAME(hzp_cpu_fill_flash)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_attn_prefill] = cpu_attn_prefill;
    op[HZP_OP_attn_packed] = cpu_attn_packed;
}
