/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/flash_tmpl.c - attn_prefill and attn_packed: attention of many rows per segment.
 *
 * Keys are processed block by block with a running maximum and sum (Milakov and Gimelshein 2018;
 * Dao et al. 2022), so that scores stay in the cache.  The query heads that share a kv head are
 * rows of one product, so keys and values are packed once for all of them.  A task is one kv head
 * and one range of a segment's queries.
 *
 * Codes of E4M3 pages are packed without their scales; scores are multiplied by the keys',
 * probabilities by the values' scales.
 */
#include "device/cpu/fp8_tmpl.h"
#include "device/cpu/tile_tmpl.h"

/* Rows are (query, head) pairs of the heads that share a kv head, ordered by query. */
enum {
    ROWS = 384,     /* target for the rows of a task, which share packed keys and values */
    ROWS_FEW = 192, /* the same if ROWS makes too few tasks */
    TASKS = 6,      /* tasks per thread, so that all threads end at about the same time */
    PART = 8 * TM,  /* rows processed together with a block: scores and sums stay in the L1 cache */
};

struct flash {
    struct hzp_mat qkv, out, sink;
    struct hzp_heads heads;
    float scale, cap;
    int window;
    int64_t before;                          /* rows of qkv before the rows of out */
    float *lse;                              /* NULL: not stored */
    const struct hzp_attn_paged_args *paged; /* NULL: keys are in the rows of qkv */
    const struct hzp_segs *segs;
    struct hzp_team *team;
    const int32_t (*item)[2]; /* [items]: segment and first query */
    int items, queries;       /* queries: of a task */
};

static bool has_scales(const struct flash *f)
{
    return f->paged && f->paged->kv.type == HZP_E4M3;
}

/* A task's work memory. */
struct flash_work {
    float *q, *o;                /* [rows][k of dim], [rows][width] */
    float *top, *sum;            /* [rows], [rows][VL]: the sum is folded at the end */
    float *s, *p;                /* [PART][BLOCK], [PART][k of BLOCK] */
    float *high, *shift, *less;  /* [PART] */
    float *rows, *keys, *values; /* one block in rows form; panels */
    float *k_scale, *v_scale;    /* [BLOCK] of E4M3 pages, with zeros after the last; else NULL */
    size_t k;                    /* dwords of a row of q */
    int width;                   /* dim, rounded up to panels */
};

static size_t flash_work_make(const struct flash *f, int rows, float *base, struct flash_work *ret)
{
    bool pairs = HZP_PAIRS(f->qkv.type);
    int dim = f->heads.dim;
    size_t k = (size_t)k_dwords(pairs, dim), width = (size_t)HZP_ROUND_UP(dim, W);
    size_t n = (size_t)HZP_ROUND_UP(rows, 16), at = 0;
    struct {
        float **ptr;
        size_t size;
    } part[] = {
        {&ret->q, n * k},        {&ret->o, n * width},    {&ret->top, n},
        {&ret->sum, n * VL},     {&ret->s, PART * BLOCK}, {&ret->p, PART * BLOCK},
        {&ret->high, PART},      {&ret->shift, PART},     {&ret->less, PART},
        {&ret->rows, BLOCK * k}, {&ret->keys, BLOCK * k}, {&ret->values, BLOCK * width},
        {&ret->k_scale, BLOCK},  {&ret->v_scale, BLOCK},
    };

    for (int i = 0; i < HZP_COUNT(part); i++) {
        *part[i].ptr = base ? base + at : NULL;
        at += HZP_ROUND_UP(part[i].size, (size_t)16);
    }
    if (!has_scales(f))
        ret->k_scale = ret->v_scale = NULL;
    ret->k = k;
    ret->width = (int)width;
    return at * sizeof(float);
}

/* Where position p of segment seg, kv head h lies in the pages, in rows of a head. */
static size_t page_row(const struct flash *f, int seg, int h, int p)
{
    const struct hzp_attn_paged_args *a = f->paged;
    int64_t page = hzp_attn_pages(a, seg)[p / a->kv.page_rows];
    return ((size_t)page * (size_t)f->heads.kv_heads + (size_t)h) * (size_t)a->kv.page_rows +
           (size_t)(p % a->kv.page_rows);
}

/* The key (or value) at position p of segment seg, kv head h. */
static const char *key_at(const struct flash *f, int seg, int h, int p, bool value)
{
    size_t dim = (size_t)f->heads.dim, size = f->qkv.type == HZP_F32 ? 4 : 2;

    if (f->paged) {
        const struct hzp_kv *kv = &f->paged->kv;
        size_t bytes = kv->type == HZP_E4M3 ? dim : dim * size;
        return (const char *)(value ? kv->v : kv->k) + page_row(f, seg, h, p) * bytes;
    }
    size_t head = (size_t)(f->heads.heads + h + (value ? f->heads.kv_heads : 0));
    int64_t row = f->before + f->segs->row0[seg] - f->segs->pos0[seg] + p;
    return (const char *)hzp_cpu_row(&f->qkv, row) + head * dim * size;
}

/* Copies one row of n codes into rows form. */
INLINE void codes_copy(bool pairs, const uint8_t *from, int n, float *y)
{
#ifdef __AVX512BF16__
    if (pairs) {
        uint16_t *to = (uint16_t *)y;
        if (n % 2)
            y[n / 2] = 0;
        for (int c = 0; c < n; c += 32) {
            int left = HZP_MIN(n - c, 32);
            __mmask32 some = left == 32 ? ~0u : (1u << left) - 1;
            _mm512_mask_storeu_epi16(to + c, some, words_of_e4m3(from + c, left));
        }
        return;
    }
#endif
    (void)pairs;
    EACH(c, n, vstore(y + c, vload_e4m3(from + c, left), left););
}

/* Loads codes k0 .. k0+n-1 and their scales; `scale` gets zeros after them. */
INLINE void codes_load(const struct flash *f, const struct flash_work *w, bool pairs, int seg,
                       int h, int k0, int n, bool value)
{
    const float *from = value ? f->paged->kv.v_scale : f->paged->kv.k_scale;
    float *scale = value ? w->v_scale : w->k_scale;

    for (int i = 0; i < n; i++) {
        codes_copy(pairs, (const uint8_t *)key_at(f, seg, h, k0 + i, value), f->heads.dim,
                   w->rows + (size_t)i * w->k);
        scale[i] = from[page_row(f, seg, h, k0 + i)];
    }
    for (int i = n; i < BLOCK; i++)
        scale[i] = 0;
}

/* Loads keys or values k0 .. k0+n-1 into w->rows, with zeros after them. */
INLINE void block_load(const struct flash *f, const struct flash_work *w, bool pairs, int seg,
                       int h, int k0, int n, bool value)
{
    if (w->k_scale)
        codes_load(f, w, pairs, seg, h, k0, n, value);
    for (int i = 0; i < n && !w->k_scale; i++)
        row_copy(pairs, key_at(f, seg, h, k0 + i, value), f->qkv.type, f->heads.dim,
                 w->rows + (size_t)i * w->k);
    if (n < BLOCK)
        memset(w->rows + (size_t)n * w->k, 0, (size_t)(BLOCK - n) * w->k * sizeof(float));
}

/* s[m][cols] = q k^T; whole vectors of columns, at least `cols`. */
INLINE void scores_of(bool pairs, int m, int cols, int k, const float *a, size_t lda,
                      const float *b, float *s)
{
    for (int n = 0; n < cols; n += W, b += (size_t)k * W) {
        int i = 0, nv = HZP_MIN(HZP_DIV_UP(cols - n, VL), TN);
        for (; i + TM <= m; i += TM) {
            const float *ai = a + (size_t)i * lda;
            float *si = s + (size_t)i * BLOCK + n;
            switch (nv) {
            case 1:
                tile_part(pairs, TM, 1, k, ai, lda, b, si, BLOCK, false, NULL);
                break;
#if defined(__AVX512F__)
            case 2:
                tile_part(pairs, TM, 2, k, ai, lda, b, si, BLOCK, false, NULL);
                break;
            case 3:
                tile_part(pairs, TM, 3, k, ai, lda, b, si, BLOCK, false, NULL);
                break;
#endif
            default:
                tile_part(pairs, TM, TN, k, ai, lda, b, si, BLOCK, false, NULL);
                break;
            }
        }
        for (; i < m; i++)
            tile_part(pairs, 1, TN, k, a + (size_t)i * lda, lda, b, s + (size_t)i * BLOCK + n,
                      BLOCK, false, NULL);
    }
}

/* o[m][width] = o * less + p v over the first k dwords of p's rows, which have kb dwords. */
INLINE void values_of(bool pairs, int m, int width, int k, int kb, const float *p, const float *b,
                      float *o, const float *less)
{
    for (int n = 0; n < width; n += W, b += (size_t)kb * W) {
        int i = 0;
        for (; i + TM <= m; i += TM)
            tile_part(pairs, TM, TN, k, p + (size_t)(i * kb), (size_t)kb, b,
                      o + (size_t)i * (size_t)width + n, (size_t)width, true, less + i);
        for (; i < m; i++)
            tile_part(pairs, 1, TN, k, p + (size_t)(i * kb), (size_t)kb, b,
                      o + (size_t)i * (size_t)width + n, (size_t)width, true, less + i);
    }
}

/* Not inlined: the tiles are most of the code. */
static __attribute__((noinline)) void scores_pairs(int m, int cols, int k, const float *a,
                                                   size_t lda, const float *b, float *s)
{
    scores_of(HZP_PAIRS(HZP_BF16), m, cols, k, a, lda, b, s);
}
static __attribute__((noinline)) void values_pairs(int m, int width, int k, int kb, const float *p,
                                                   const float *b, float *o, const float *less)
{
    values_of(HZP_PAIRS(HZP_BF16), m, width, k, kb, p, b, o, less);
}
#ifdef __AVX512BF16__
static __attribute__((noinline)) void scores_floats(int m, int cols, int k, const float *a,
                                                    size_t lda, const float *b, float *s)
{
    scores_of(false, m, cols, k, a, lda, b, s);
}
static __attribute__((noinline)) void values_floats(int m, int width, int k, int kb, const float *p,
                                                    const float *b, float *o, const float *less)
{
    values_of(false, m, width, k, kb, p, b, o, less);
}
#else
#define scores_floats scores_pairs /* there are no pairs here */
#define values_floats values_pairs
#endif

/* Turns row i's scores of the first n keys of the block into probabilities, times the values'
 * scales; the rest of p up to `cols`, the number of scores in s, becomes 0. */
INLINE void row_exp(const struct flash_work *w, bool pairs, int i, int at, int n, int cols, float f)
{
    const float *s = w->s + (size_t)at * BLOCK;
    float *p = w->p + (size_t)at * (size_t)k_dwords(pairs, BLOCK);
    vf sum = vzero(), factor = vset(f), shift = vset(w->shift[at]);

    for (int c = 0; c < cols; c += VL) {
        vf e = vzero();
        if (c < n) {
            vf x = vsub(vmul(vload(s + c, VL), factor), shift);
            e = vkeep(unit_exp(pairs, x), 0, HZP_MIN(VL, n - c));
            sum = vadd(sum, e);
            if (w->v_scale)
                e = vmul(e, vload(w->v_scale + c, VL));
        }
#ifdef __AVX512BF16__
        if (pairs)
            _mm256_storeu_si256((__m256i *)((uint16_t *)p + c), (__m256i)_mm512_cvtneps_pbh(e));
        else
#endif
            vstore(p + c, e, VL);
    }
    float *all = w->sum + (size_t)i * VL;
    vstore(all, vfma(vload(all, VL), vset(w->less[at]), sum), VL);
}

/* Processes rows i0 .. i0+m-1, of which row i0 + i sees the first n0 + (i0 + i) / group keys of the
 * block (n0 may be <= 0): turns scores into probabilities, and sets `less` to the factor for the
 * earlier sums. */
INLINE void softmax_rows(const struct flash_work *w, bool pairs, int i0, int m, int group, int n0,
                         int keys, int cols, float scale)
{
    vf factor = vset(scale * unit(pairs));

    for (int i = 0; i < m; i++) {
        const float *s = w->s + (size_t)i * BLOCK;
        int n = HZP_MIN(n0 + (i0 + i) / group, keys);
        vf top = vset(-INFINITY);
        EACH(c, n, top = vmax(vkeep(vmul(vload(s + c, left), factor), -INFINITY, left), top););
        float high = vtop(top);
        w->high[i] = HZP_MAX(high, w->top[i0 + i]);
    }
    EACH(i, m, {
        vf high = vload(w->high + i, left), before = vload(w->top + i0 + i, left);
        vf shift = vmax(high, vset(-3.4e38f)); /* not -inf: -inf - (-inf) would be NaN */
        vstore(w->less + i, unit_exp(pairs, vsub(before, shift)), left);
        vstore(w->shift + i, shift, left);
        vstore(w->top + i0 + i, high, left);
    });
    for (int i = 0; i < m; i++) {
        int n = HZP_MIN(n0 + (i0 + i) / group, keys);
        if (n == BLOCK)
            row_exp(w, pairs, i0 + i, i, BLOCK, BLOCK, scale * unit(pairs));
        else
            row_exp(w, pairs, i0 + i, i, n, cols, scale * unit(pairs));
    }
}

INLINE void flash_finish(const struct flash *f, const struct flash_work *w, bool pairs, int seg,
                         int q0, int rows, int h)
{
    int group = f->heads.heads / f->heads.kv_heads, dim = f->heads.dim;
    size_t size = f->out.type == HZP_F32 ? 4 : 2;

    for (int i = 0; i < rows; i++) {
        int head = h * group + i % group;
        int64_t row = (int64_t)f->segs->row0[seg] + q0 + i / group;
        char *y = (char *)hzp_cpu_row(&f->out, row) + (size_t)(head * dim) * size;
        const float *o = w->o + (size_t)i * (size_t)w->width;
        float sum = vsum(vload(w->sum + (size_t)i * VL, VL));
        vf scale = vset(1.f / sum);
        EACH(c, dim, vput(y, (size_t)c, f->out.type, vmul(vload(o + c, left), scale), left););
        if (f->lse)
            f->lse[(size_t)row * (size_t)f->heads.heads + (size_t)head] =
                w->top[i] / unit(pairs) + logf(sum);
    }
}

/* Multiplies m rows of scores by the keys' scales. */
INLINE void scores_scale(const struct flash_work *w, int m, int cols)
{
    for (int i = 0; i < m; i++)
        for (int c = 0; c < cols; c += VL) {
            float *s = w->s + (size_t)i * BLOCK + c;
            vstore(s, vmul(vload(s, VL), vload(w->k_scale + c, VL)), VL);
        }
}

/* Scales and caps scores of rows i0 .. i0+m-1; those of keys before a row's window become -inf. */
static __attribute__((noinline)) void scores_bound(const struct flash *f, float *s, int i0, int m,
                                                   int pos, int k0, int cols)
{
    int group = f->heads.heads / f->heads.kv_heads;
    vf cap = vset(f->cap), by = vset(f->cap > 0 ? f->scale / f->cap : f->scale);

    for (int i = 0; i < m; i++, s += BLOCK) {
        int first = hzp_attn_first(f->window, pos + (i0 + i) / group) - k0;
        for (int c = 0; c < cols; c += VL) {
            vf x = vmul(vload(s + c, VL), by);
            vstore(s + c, f->cap > 0 ? vmul(cap, vtanh(x)) : x, VL);
        }
        for (int c = 0; c < HZP_MIN(first, cols); c++)
            s[c] = -INFINITY;
    }
}

/* Adds the contribution of the packed keys k0 .. k0+keys-1 to all rows.  pos: of the first
 * query. */
INLINE void block_run(const struct flash *f, const struct flash_work *w, bool pairs, int rows,
                      int pos, int k0, int keys)
{
    int group = f->heads.heads / f->heads.kv_heads, kb = k_dwords(pairs, BLOCK);
    bool bound = f->window > 0 || f->cap > 0;

    for (int i0 = 0, m; i0 < rows; i0 += m) {
        m = HZP_MIN(rows - i0, PART);
        /* keys that the last of these rows sees */
        int seen = HZP_MIN(keys, pos + (i0 + m - 1) / group - k0 + 1);
        int cols = HZP_ROUND_UP(seen, VL);
        if (seen <= 0 || hzp_attn_first(f->window, pos + i0 / group) >= k0 + keys)
            continue;
        if (pairs)
            scores_pairs(m, cols, (int)w->k, w->q + (size_t)i0 * w->k, w->k, w->keys, w->s);
        else
            scores_floats(m, cols, (int)w->k, w->q + (size_t)i0 * w->k, w->k, w->keys, w->s);
        if (w->k_scale)
            scores_scale(w, m, cols);
        if (bound)
            scores_bound(f, w->s, i0, m, pos, k0, cols);
        softmax_rows(w, pairs, i0, m, group, pos - k0 + 1, keys, cols, bound ? 1 : f->scale);
        float *o = w->o + (size_t)i0 * (size_t)w->width;
        if (pairs)
            values_pairs(m, w->width, k_dwords(true, seen), kb, w->p, w->values, o, w->less);
        else
            values_floats(m, w->width, seen, kb, w->p, w->values, o, w->less);
    }
}

INLINE void flash_run(const struct flash *f, const struct flash_work *w, bool pairs, int seg,
                      int q0, int n, int h)
{
    int group = f->heads.heads / f->heads.kv_heads, dim = f->heads.dim, rows = group * n;
    int pos = f->segs->pos0[seg] + q0; /* position of the first query */
    size_t size = f->qkv.type == HZP_F32 ? 4 : 2;

    for (int i = 0; i < rows; i++) {
        const char *q = hzp_cpu_row(&f->qkv, f->before + f->segs->row0[seg] + q0 + i / group);
        row_copy(pairs, q + (size_t)((h * group + i % group) * dim) * size, f->qkv.type, dim,
                 w->q + (size_t)i * w->k);
        w->top[i] = -INFINITY;
    }
    memset(w->sum, 0, (size_t)rows * VL * sizeof(float));
    for (int i = 0; f->sink.ptr && i < rows; i++) { /* a key that was seen, with a value of 0 */
        w->top[i] = velement(&f->sink, h * group + i % group) * unit(pairs);
        w->sum[(size_t)i * VL] = 1;
    }
    memset(w->o, 0, (size_t)rows * (size_t)w->width * sizeof(float));
    for (int k0 = hzp_attn_first(f->window, pos) / BLOCK * BLOCK; k0 < pos + n; k0 += BLOCK) {
        int keys = HZP_MIN(BLOCK, pos + n - k0);

        block_load(f, w, pairs, seg, h, k0, keys, false);
        panels_of_rows(w->rows, w->k, (int)w->k, w->keys);
        block_load(f, w, pairs, seg, h, k0, keys, true);
        panels_of_cols(pairs, w->rows, w->k, dim, w->values);
        block_run(f, w, pairs, rows, pos, k0, keys);
    }
    flash_finish(f, w, pairs, seg, q0, rows, h);
}

static void flash_task(void *ctx, int task, int thread)
{
    const struct flash *f = ctx;
    /* late queries see most keys: start with them */
    int item = f->items - 1 - task / f->heads.kv_heads;
    int seg = f->item[item][0], q0 = f->item[item][1], h = task % f->heads.kv_heads;
    int n = HZP_MIN(f->queries, f->segs->row0[seg + 1] - f->segs->row0[seg] - q0);
    int rows = f->queries * (f->heads.heads / f->heads.kv_heads);
    struct flash_work w;

    flash_work_make(f, rows, hzp_team_own(f->team, thread), &w);
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

    for (int most = ROWS, few = TASKS * hzp_team_threads(f->team); most >= ROWS_FEW; most /= 2) {
        f->queries = HZP_MIN(HZP_MAX(16, most / group), HZP_MAX(1, f->segs->rows_max));
        items = 0;
        for (int i = 0; i < f->segs->count; i++)
            items += HZP_DIV_UP(f->segs->row0[i + 1] - f->segs->row0[i], f->queries);
        if ((int64_t)items * f->heads.kv_heads >= few)
            break;
    }
    HZP_TRY(hzp_team_reserve(f->team, (size_t)items * sizeof(*item),
                             flash_work_make(f, f->queries * group, NULL, &w)));
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
    struct flash f = {.qkv = a->qkv,
                      .out = a->out,
                      .sink = a->sink,
                      .heads = a->heads,
                      .scale = a->scale,
                      .cap = a->cap,
                      .window = a->window,
                      .paged = a,
                      .segs = &a->segs,
                      .team = hzp_cpu_team(lane)};
    return flash_issue(&f);
}

static int cpu_attn_packed(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_packed_args *a = args;
    struct flash f = {.qkv = a->qkv,
                      .out = a->out,
                      .sink = a->sink,
                      .heads = a->heads,
                      .scale = a->scale,
                      .cap = a->cap,
                      .window = a->window,
                      .before = a->qkv.rows - a->out.rows,
                      .lse = a->lse,
                      .segs = &a->segs,
                      .team = hzp_cpu_team(lane)};
    return flash_issue(&f);
}

void HZP_ISA_NAME(hzp_cpu_fill_flash)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_attn_prefill] = cpu_attn_prefill;
    op[HZP_OP_attn_packed] = cpu_attn_packed;
}
