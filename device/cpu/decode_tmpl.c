/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/decode_tmpl.c - attn_decode: one query per sequence, keys and values in pages.
 *
 * It is limited by memory, so a task reads one stream: it processes the pages of a piece of a
 * context, the kv heads of a page one after another in memory order, and prefetches what follows
 * FETCH_BYTES later in this order.  Query heads that share a kv head are processed together, so
 * keys and values are read once.
 *
 * A context is divided into chunks of fixed size whose results are merged in order.  The assignment
 * of chunks and heads to tasks depends on the other sequences and on the team, but does not change
 * a bit of the result.
 */
#include "device/cpu/vec_tmpl.h"

#include <stdlib.h>

enum {
    CHUNK = 256,            /* positions per chunk; each chunk has its own sums */
    ROWS = 16,              /* rows of a block */
    SCORES = CHUNK + ROWS,  /* scores of a head: blocks may write past the chunk's end */
    FETCH_BYTES = 16 << 10, /* prefetch distance: 4 K are 6 % slower, 24 K 5 % */
    HEADS_AT_ONCE = 4,
    NR = 4,
};

#ifdef __AVX512BF16__
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

/* The state of a chunk, or of a context so far, per query head of a task: the largest score, the
 * sum of exp(score - top), and the sum of the values with those weights.  With pairs the elements
 * of that sum are in the order of values_pairs. */
struct state {
    float *top, *sum, *value; /* [heads], [heads], [heads][wide] */
};

/* Chunks first .. last-1 of a segment. */
struct piece {
    int32_t seg, first, last;
    int32_t part; /* index of its first chunk state in decode.part; -1: it is the whole context */
};

struct decode {
    const struct hzp_attn_paged_args *args;
    struct hzp_team *team;
    struct piece *piece; /* longest first */
    int pieces;
    int group, wide; /* query heads per kv head; floats of a value's sum */
    int kv_each;     /* kv heads per task */
    int cuts;        /* tasks per piece: the kv heads over kv_each */
    float *part;     /* [parts][cuts] states */
    bool pairs;
};

/* The place of a block of rows of one kv head. A task reads, for each chunk, first the keys, then
 * the values; page by page, head by head. */
struct place {
    int p0, p1, end; /* positions of this chunk; end of the piece */
    /* first position of this page within the chunk; kv head; row of the block from there */
    int p, h, row;
    bool value;
};

/* A block to prefetch. */
struct wanted {
    const char *at;
    int n;
};

struct task {
    const struct decode *w;
    int seg, h0, h1; /* kv heads h0 .. h1-1 */
    float *q,
        *score; /* [heads][dim], with pairs [heads][dim / 16][16] twice each; [heads][SCORES] */
    struct state all, more;
    struct place ahead;
};

static size_t row_bytes(const struct decode *w)
{
    return (size_t)w->args->heads.dim * (w->args->kv.type == HZP_F32 ? 4 : 2);
}

static const char *row_at(const struct task *t, bool value, int h, int p)
{
    const struct hzp_attn_paged_args *a = t->w->args;
    int64_t page = hzp_attn_pages(a, t->seg)[p / a->kv.page_rows];
    size_t row = ((size_t)page * (size_t)a->heads.kv_heads + (size_t)h) * (size_t)a->kv.page_rows +
                 (size_t)(p % a->kv.page_rows);
    return (const char *)(value ? a->kv.v : a->kv.k) + row * row_bytes(t->w);
}

/* The number of positions of one page from p on, below p1. */
INLINE int page_left(const struct task *t, int p, int p1)
{
    int page_rows = t->w->args->kv.page_rows;
    return HZP_MIN(p1 - p, page_rows - p % page_rows);
}

/* Returns the next block to prefetch and advances past it. */
INLINE struct wanted ahead(struct task *t)
{
    struct place *a = &t->ahead;

    if (a->p0 >= a->end)
        return (struct wanted){NULL, 0};
    int left = page_left(t, a->p, a->p1), n = HZP_MIN(left - a->row, ROWS);
    struct wanted want = {row_at(t, a->value, a->h, a->p + a->row), n};

    a->row += n;
    if (a->row < left)
        return want;
    a->row = 0;
    if (++a->h < t->h1)
        return want;
    a->h = t->h0;
    a->p += left;
    if (a->p < a->p1)
        return want;
    if (a->value) {
        a->p0 = a->p1;
        a->p1 = HZP_MIN(a->p0 + CHUNK, a->end);
    }
    a->p = a->p0;
    a->value = !a->value;
    return want;
}

/* Prefetches two of its rows, from row r on: a few lines at a time, between other work, because a
 * core can have only a limited number of loads in flight.  Pages are scattered in memory, so the
 * hardware cannot predict them. */
INLINE void fetch_two(struct wanted want, int r, size_t row)
{
    if (r < want.n)
        for (size_t i = 0; i < 2 * row; i += 64)
            fetch_near(want.at + (size_t)r * row + i);
}

/* Prefetches all rows from row r on. */
INLINE void fetch_rest(struct wanted want, int r, size_t row)
{
    for (; r < want.n; r += 2)
        fetch_two(want, r, row);
}

#if HAS_PAIRS

/* Dot products of keys k0 and k1 with g queries: eight partial sums each, k0's in the lower
 * half. */
INLINE void dot_two(int g, int dim, const float *q, size_t ldq, const char *k0, const char *k1,
                    struct wanted want, int r, vf ret[HEADS_AT_ONCE])
{
    fetch_two(want, r, (size_t)dim * 2);
    for (int i = 0; i < g; i++)
        ret[i] = vzero();
    for (int d = 0; d < dim; d += 16) {
        __mmask16 some = lanes(HZP_MIN(16, dim - d));
        bool whole = dim - d >= 16;
        __m256i a = whole ? _mm256_loadu_si256((const __m256i *)(k0 + 2 * d))
                          : _mm256_maskz_loadu_epi16(some, k0 + 2 * d);
        __m256i b = whole ? _mm256_loadu_si256((const __m256i *)(k1 + 2 * d))
                          : _mm256_maskz_loadu_epi16(some, k1 + 2 * d);
        __m512bh k = (__m512bh)_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
        for (int i = 0; i < g; i++)
            ret[i] =
                _mm512_dpbf16_ps(ret[i], k, (__m512bh)_mm512_loadu_ps(q + (size_t)i * ldq + d));
    }
}

INLINE void dot_four(int g, int dim, const float *q, size_t ldq, const char *const *key,
                     struct wanted want, int r, vf ret[HEADS_AT_ONCE])
{
    vf a[HEADS_AT_ONCE], b[HEADS_AT_ONCE];

    dot_two(g, dim, q, ldq, key[0], key[1], want, r, a);
    dot_two(g, dim, q, ldq, key[2], key[3], want, r + 2, b);
    for (int i = 0; i < g; i++)
        ret[i] =
            vadd(_mm512_shuffle_f32x4(a[i], b[i], 0x88), _mm512_shuffle_f32x4(a[i], b[i], 0xdd));
}

INLINE void dot_eight(int g, int dim, const float *q, size_t ldq, const char *const *key,
                      struct wanted want, int r, vf ret[HEADS_AT_ONCE])
{
    vf a[HEADS_AT_ONCE], b[HEADS_AT_ONCE];

    dot_four(g, dim, q, ldq, key, want, r, a);
    dot_four(g, dim, q, ldq, key + 4, want, r + 4, b);
    for (int i = 0; i < g; i++) {
        __m512d x = _mm512_castps_pd(a[i]), y = _mm512_castps_pd(b[i]);
        ret[i] = vadd(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                      _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
}

/* Scores of g heads with n <= ROWS keys; ROWS floats are written.  Each fold halves the number of
 * partial sums per key and joins the keys of two vectors, so the keys are read in the order that
 * the last fold requires. */
INLINE void keys_pairs(int g, int dim, const float *q, const char *keys, int n, float scale,
                       struct wanted want, float *score)
{
    size_t row = (size_t)dim * 2, ldq = (size_t)HZP_ROUND_UP(dim, 16);
    const char *key[ROWS];
    vf a[HEADS_AT_ONCE], b[HEADS_AT_ONCE];

    for (int i = 0; i < ROWS; i++)
        key[i] = keys + (size_t)HZP_MIN(i % 4 * 4 + i / 4, n - 1) * row;
    dot_eight(g, dim, q, ldq, key, want, 0, a);
    dot_eight(g, dim, q, ldq, key + 8, want, 8, b);
    for (int i = 0; i < g; i++) {
        vf sum = vadd(_mm512_shuffle_ps(a[i], b[i], 0x88), _mm512_shuffle_ps(a[i], b[i], 0xdd));
        vstore(score + i * SCORES, vmul(sum, vset(scale)), VL);
    }
}

/* 32 elements of a row, or `left` if that is less. */
INLINE __m512i half_row(const char *row, int left)
{
    return left >= 32 ? _mm512_loadu_si512(row) : _mm512_maskz_loadu_epi16((1u << left) - 1, row);
}

/* Two rows are interleaved, and a dword of p holds the weights of both.  Of each 32 elements the
 * first vector then has 0-3, 8-11, 16-19, 24-27, and the second the others. */
INLINE void values_pairs(int g, int dim, const char *values, int n, const float *score,
                         struct wanted want, float *value)
{
    size_t row = (size_t)dim * 2, wide = (size_t)HZP_ROUND_UP(dim, 32);

    for (int d0 = 0; d0 < dim; d0 += 64) {
        int nv = dim - d0 > 32 ? 4 : 2;
        vf acc[HEADS_AT_ONCE][4];
        float *at = value + d0;
        for (int i = 0; i < g; i++)
            for (int v = 0; v < nv; v++)
                acc[i][v] = vload(at + (size_t)i * wide + v * VL, VL);
        for (int p = 0; p < n; p += 2) {
            __m512bh woven[4];
            if (d0 == 0)
                fetch_two(want, p, row);
            for (int v = 0; v < nv; v += 2) {
                const char *x = values + (size_t)p * row + (d0 + v * VL) * 2;
                __m512i a = half_row(x, dim - d0 - v * VL);
                __m512i b =
                    p + 1 < n ? half_row(x + row, dim - d0 - v * VL) : _mm512_setzero_si512();
                woven[v] = (__m512bh)_mm512_unpacklo_epi16(a, b);
                woven[v + 1] = (__m512bh)_mm512_unpackhi_epi16(a, b);
            }
            for (int i = 0; i < g; i++) {
                int32_t two;
                memcpy(&two, (const uint16_t *)(score + i * SCORES) + p, sizeof(two));
                for (int v = 0; v < nv; v++)
                    acc[i][v] =
                        _mm512_dpbf16_ps(acc[i][v], woven[v], (__m512bh)_mm512_set1_epi32(two));
            }
        }
        for (int i = 0; i < g; i++)
            for (int v = 0; v < nv; v++)
                vstore(at + (size_t)i * wide + v * VL, acc[i][v], VL);
    }
}

/* Elements d .. d+15 of a sum made by values_pairs. */
INLINE vf value_turned(const float *value, int d)
{
    vf a = vload(value + d / 32 * 32, VL), b = vload(value + d / 32 * 32 + VL, VL);
    vi at = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    if (d % 32)
        at = _mm512_or_si512(at, _mm512_set1_epi32(8));
    return _mm512_permutex2var_ps(a, at, b);
}

#else

INLINE void keys_pairs(int g, int dim, const float *q, const char *keys, int n, float scale,
                       struct wanted want, float *score)
{
    (void)g, (void)dim, (void)q, (void)keys, (void)n, (void)scale, (void)want, (void)score;
}
INLINE void values_pairs(int g, int dim, const char *values, int n, const float *score,
                         struct wanted want, float *value)
{
    (void)g, (void)dim, (void)values, (void)n, (void)score, (void)want, (void)value;
}
INLINE vf value_turned(const float *value, int d)
{
    return vload(value + d, VL);
}

#endif

/* Scores of g heads with NR keys; q: [g][dim] floats. */
INLINE void score_four(int g, enum hzp_dtype type, const float *q, const char *const key[NR],
                       int dim, float scale, v4 ret[HEADS_AT_ONCE])
{
    vf acc[HEADS_AT_ONCE][NR];

    UNROLL
    for (int i = 0; i < g; i++) {
        UNROLL
        for (int j = 0; j < NR; j++)
            acc[i][j] = vzero();
    }
    EACH(d, dim, {
        UNROLL
        for (int j = 0; j < NR; j++) {
            vf kv = vget(key[j], (size_t)d, type, left);
            UNROLL
            for (int i = 0; i < g; i++)
                acc[i][j] = vfma(vload(q + i * dim + d, left), kv, acc[i][j]);
        }
    });
    UNROLL
    for (int i = 0; i < g; i++) {
        v4 sums =
            v4_sums(vfold4(acc[i][0]), vfold4(acc[i][1]), vfold4(acc[i][2]), vfold4(acc[i][3]));
        ret[i] = sums * v4_set(scale);
    }
}

INLINE void keys_plain(int g, enum hzp_dtype type, int dim, const float *q, const char *keys, int n,
                       float scale, struct wanted want, float *score)
{
    size_t row = (size_t)dim * (type == HZP_F32 ? 4 : 2);

    for (int p = 0; p < n; p += NR) {
        const char *key[NR];
        v4 s[HEADS_AT_ONCE];
        fetch_two(want, p, row);
        fetch_two(want, p + 2, row);
        for (int j = 0; j < NR; j++)
            key[j] = keys + (size_t)HZP_MIN(p + j, n - 1) * row;
        score_four(g, type, q, key, dim, scale, s);
        for (int i = 0; i < g; i++)
            v4_store(score + i * SCORES + p, s[i]);
    }
}

/* value[i][d0 .. d0+nv*VL) += sum over p of score[i][p] v[p][d0 ..); the last vector has `left`
 * elements, and at d0 = 0 what is wanted is fetched. */
INLINE void values_wide(int g, int nv, enum hzp_dtype type, int dim, int d0, int last,
                        const char *values, int n, const float *score, struct wanted want,
                        float *value)
{
    size_t row = (size_t)dim * (type == HZP_F32 ? 4 : 2);
    vf acc[HEADS_AT_ONCE][4];

    UNROLL
    for (int i = 0; i < g; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            acc[i][v] = vload(value + i * dim + d0 + v * VL, v + 1 < nv ? VL : last);
    }
    for (int p = 0; p < n; p++) {
        if (d0 == 0 && p % 2 == 0)
            fetch_two(want, p, row);
        UNROLL
        for (int v = 0; v < nv; v++) {
            vf vv =
                vget(values + (size_t)p * row, (size_t)(d0 + v * VL), type, v + 1 < nv ? VL : last);
            UNROLL
            for (int i = 0; i < g; i++)
                acc[i][v] = vfma(vset(score[i * SCORES + p]), vv, acc[i][v]);
        }
    }
    UNROLL
    for (int i = 0; i < g; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            vstore(value + i * dim + d0 + v * VL, acc[i][v], v + 1 < nv ? VL : last);
    }
}

/* value[i][d] += sum over p of score[i][p] v[p][d]. */
INLINE void values_plain(int g, enum hzp_dtype type, int dim, const char *values, int n,
                         const float *score, struct wanted want, float *value)
{
    const int nv = VL == 16 || g <= 3 ? 4 : 2; /* registers: g sums of each, and g scores */
    int d = 0;

    for (; d + nv * VL <= dim; d += nv * VL)
        values_wide(g, nv, type, dim, d, VL, values, n, score, want, value);
    for (; d < dim; d += VL)
        values_wide(g, 1, type, dim, d, HZP_MIN(VL, dim - d), values, n, score, want, value);
}

/* Turns scores into exp(score - top), with pairs as bf16 in the same place, and writes zeros up to
 * a whole vector; returns their sum. */
INLINE float chunk_softmax(bool pairs, float *score, int n, float *ret_top)
{
    vf top = vset(-INFINITY), sum = vzero();

    EACH(c, n, top = vmax(vkeep(vload(score + c, left), -INFINITY, left), top););
    float high = vtop(top);
    vf shift = vset(high == -INFINITY ? 0 : high);
    EACH(c, n, {
        vf e = vkeep(vexp(vsub(vload(score + c, left), shift)), 0, left);
#if HAS_PAIRS
        if (pairs)
            _mm256_storeu_si256((__m256i *)((uint16_t *)score + c), (__m256i)_mm512_cvtneps_pbh(e));
        else
#endif
            vstore(score + c, e, left);
        sum = vadd(sum, e);
    });
    (void)pairs;
    *ret_top = high;
    return vsum(sum);
}

/* Processes heads i .. i+g-1 of the task, all of kv head h, with n keys or values, at position `at`
 * of the chunk. */
INLINE void block_run(const struct task *t, int g, bool pairs, enum hzp_dtype type, int dim,
                      bool value, int i, const char *rows, int n, int at, struct wanted want,
                      struct state out)
{
    const struct hzp_attn_paged_args *a = t->w->args;
    float *score = t->score + i * SCORES;

    if (!pairs && !value) /* keys_plain and values prefetch only so many rows */
        fetch_rest(want, HZP_ROUND_UP(n, NR), row_bytes(t->w));
    else if (value)
        fetch_rest(want, HZP_ROUND_UP(n, 2), row_bytes(t->w));

    if (value) {
        float *sum = out.value + (size_t)i * (size_t)t->w->wide;
        if (pairs)
            values_pairs(g, dim, rows, n, (float *)((uint16_t *)score + at), want, sum);
        else
            values_plain(g, type, dim, rows, n, score + at, want, sum);
    } else if (pairs) {
        keys_pairs(g, dim, t->q + (size_t)i * (size_t)HZP_ROUND_UP(dim, 16), rows, n, a->scale,
                   want, score + at);
    } else {
        keys_plain(g, type, dim, t->q + (size_t)i * (size_t)dim, rows, n, a->scale, want,
                   score + at);
    }
}

/* Processes all keys, or all values, of positions p0 .. p1-1. */
INLINE void rows_run(struct task *t, bool pairs, enum hzp_dtype type, int dim, bool value, int p0,
                     int p1, struct state out)
{
    int group = t->w->group;

    for (int p = p0, left; p < p1; p += left) {
        left = page_left(t, p, p1);
        for (int h = t->h0; h < t->h1; h++) {
            const char *rows = row_at(t, value, h, p);
            for (int r = 0, n; r < left; r += n, rows += (size_t)n * row_bytes(t->w)) {
                int i = (h - t->h0) * group, end = i + group, at = p - p0 + r;
                n = HZP_MIN(left - r, ROWS);
                struct wanted want = ahead(t);
                for (; i + 4 <= end; i += 4, want.n = 0)
                    block_run(t, 4, pairs, type, dim, value, i, rows, n, at, want, out);
                switch (end - i) {
                case 1:
                    block_run(t, 1, pairs, type, dim, value, i, rows, n, at, want, out);
                    break;
                case 2:
                    block_run(t, 2, pairs, type, dim, value, i, rows, n, at, want, out);
                    break;
                case 3:
                    block_run(t, 3, pairs, type, dim, value, i, rows, n, at, want, out);
                    break;
                }
            }
        }
    }
}

/* Processes positions p0 .. p1-1, p1 - p0 <= CHUNK. */
INLINE void chunk_run_as(struct task *t, bool pairs, enum hzp_dtype type, int dim, int p0, int p1,
                         struct state out)
{
    int heads = (t->h1 - t->h0) * t->w->group;

    rows_run(t, pairs, type, dim, false, p0, p1, out);
    for (int i = 0; i < heads; i++)
        out.sum[i] = chunk_softmax(pairs, t->score + i * SCORES, p1 - p0, &out.top[i]);
    memset(out.value, 0, (size_t)heads * (size_t)t->w->wide * sizeof(*out.value));
    rows_run(t, pairs, type, dim, true, p0, p1, out);
}

static void chunk_run(struct task *t, int p0, int p1, struct state out)
{
    int dim = t->w->args->heads.dim;

    if (t->w->args->kv.type == HZP_F32)
        chunk_run_as(t, false, HZP_F32, dim, p0, p1, out);
#if !HAS_PAIRS
    else if (dim == 64)
        chunk_run_as(t, false, HZP_BF16, 64, p0, p1, out);
    else if (dim == 128)
        chunk_run_as(t, false, HZP_BF16, 128, p0, p1, out);
    else
        chunk_run_as(t, false, HZP_BF16, dim, p0, p1, out);
#else
    else if (dim == 64)
        chunk_run_as(t, HAS_PAIRS, HZP_BF16, 64, p0, p1, out);
    else if (dim == 128)
        chunk_run_as(t, HAS_PAIRS, HZP_BF16, 128, p0, p1, out);
    else
        chunk_run_as(t, HAS_PAIRS, HZP_BF16, dim, p0, p1, out);
#endif
}

/* x = x a + y b, n floats. */
INLINE void blend(float *x, const float *y, int n, float a, float b)
{
    EACH(d, n, {
        vf v = vmul(vload(x + d, left), vset(a));
        vstore(x + d, vfma(vload(y + d, left), vset(b), v), left);
    });
}

/* Merges `more` into `all`, for `heads` heads. */
static void state_merge(const struct decode *w, int heads, struct state all, struct state more)
{
    EACH(g, heads, {
        vf x = vload(all.top + g, left), y = vload(more.top + g, left), top = vmax(x, y);
        /* a finite shift: if both are -inf, exp(-inf - shift) is 0, and -inf - (-inf) would be
         * NaN */
        vf shift = vmax(top, vset(-3.4e38f));
        vf a = vexp(vsub(x, shift)), b = vexp(vsub(y, shift));
        vf sum = vmul(vload(all.sum + g, left), a);
        float scale[2][VL];
        vstore(all.sum + g, vfma(vload(more.sum + g, left), b, sum), left);
        vstore(all.top + g, top, left);
        vstore(scale[0], a, VL);
        vstore(scale[1], b, VL);
        for (int i = 0; i < left; i++) {
            size_t at = (size_t)(g + i) * (size_t)w->wide;
            blend(all.value + at, more.value + at, w->wide, scale[0][i], scale[1][i]);
        }
    });
}

/* Writes the outputs of query heads head0 .. head0+heads-1. */
static void state_finish(const struct decode *w, struct state all, int seg, int head0, int heads)
{
    const struct hzp_attn_paged_args *a = w->args;
    int dim = a->heads.dim;
    size_t size = a->out.type == HZP_F32 ? 4 : 2;

    for (int g = 0; g < heads; g++) {
        char *y =
            (char *)hzp_cpu_row(&a->out, a->segs.row0[seg]) + (size_t)((head0 + g) * dim) * size;
        const float *value = all.value + (size_t)g * (size_t)w->wide;
        vf scale = vset(1.f / all.sum[g]);
        EACH(d, dim, {
            vf v = w->pairs ? value_turned(value, d) : vload(value + d, left);
            vput(y, (size_t)d, a->out.type, vmul(v, scale), left);
        });
    }
}

static size_t state_floats(const struct decode *w)
{
    size_t heads = (size_t)(w->kv_each * w->group);
    return 2 * HZP_ROUND_UP(heads, (size_t)16) + HZP_ROUND_UP(heads * (size_t)w->wide, (size_t)16);
}

static struct state state_at(const struct decode *w, float *base)
{
    size_t heads = HZP_ROUND_UP((size_t)(w->kv_each * w->group), (size_t)16);
    return (struct state){base, base + heads, base + 2 * heads};
}

static struct state part_at(const struct decode *w, int part, int cut)
{
    return state_at(w, w->part + ((size_t)part * (size_t)w->cuts + (size_t)cut) * state_floats(w));
}

/* Floats of a thread's memory: two states, queries, scores. */
static size_t own_floats(const struct decode *w)
{
    size_t heads = (size_t)(w->kv_each * w->group);
    size_t q = heads * (size_t)HZP_ROUND_UP(w->args->heads.dim, 16);
    return 2 * state_floats(w) + q + heads * SCORES;
}

/* The task's queries, with pairs groups of sixteen elements of each twice, so that one vector is
 * multiplied with two keys; else as floats. */
static void queries_copy(const struct task *t, int heads)
{
    const struct hzp_attn_paged_args *a = t->w->args;
    const char *row = hzp_cpu_row(&a->qkv, a->segs.row0[t->seg]);
    int dim = a->heads.dim, first = t->h0 * t->w->group * dim;
    float *to = t->q;

#if HAS_PAIRS
    if (t->w->pairs) {
        const uint16_t *q = (const uint16_t *)(const void *)row + first;
        for (int i = 0; i < heads; i++, q += dim)
            for (int d = 0; d < dim; d += 16, to += 16) {
                __m256i x = _mm256_maskz_loadu_epi16(lanes(HZP_MIN(16, dim - d)), q + d);
                _mm512_storeu_si512(to, _mm512_broadcast_i64x4(x));
            }
        return;
    }
#endif
    EACH(d, heads * dim, vstore(to + d, vget(row, (size_t)(first + d), a->qkv.type, left), left););
}

static struct task task_make(const struct decode *w, const struct piece *piece, int cut, int thread)
{
    float *own = hzp_team_own(w->team, thread);
    size_t floats = state_floats(w);
    int h0 = cut * w->kv_each, h1 = HZP_MIN(h0 + w->kv_each, w->args->heads.kv_heads);
    int heads = (h1 - h0) * w->group, context = w->args->segs.pos0[piece->seg] + 1;
    int first = piece->first * CHUNK, end = HZP_MIN(piece->last * CHUNK, context);
    struct task t = {
        .w = w,
        .seg = piece->seg,
        .h0 = h0,
        .h1 = h1,
        .all = state_at(w, own),
        .more = state_at(w, own + floats),
        .score = own + 2 * floats,
        .q = own + 2 * floats + heads * SCORES,
        .ahead = {.p0 = first, .p1 = HZP_MIN(first + CHUNK, end), .end = end, .p = first, .h = h0}};

    for (size_t bytes = 0; bytes < FETCH_BYTES; bytes += ROWS * row_bytes(w))
        fetch_rest(ahead(&t), 0, row_bytes(w));
    queries_copy(&t, heads);
    return t;
}

static void piece_task(void *ctx, int task, int thread)
{
    const struct decode *w = ctx;
    const struct piece *piece = &w->piece[task / w->cuts];
    int cut = task % w->cuts;
    struct task t = task_make(w, piece, cut, thread);
    int heads = (t.h1 - t.h0) * w->group, context = w->args->segs.pos0[piece->seg] + 1;

    for (int c = piece->first; c < piece->last; c++) {
        int p0 = c * CHUNK, p1 = HZP_MIN(p0 + CHUNK, context);
        if (piece->part >= 0) {
            chunk_run(&t, p0, p1, part_at(w, piece->part + c - piece->first, cut));
        } else if (c == 0) {
            chunk_run(&t, p0, p1, t.all);
        } else {
            chunk_run(&t, p0, p1, t.more);
            state_merge(w, heads, t.all, t.more);
        }
    }
    if (piece->part < 0)
        state_finish(w, t.all, t.seg, t.h0 * w->group, heads);
}

/* Merges the states of a context's chunks, in order, into the first; runs for the context's first
 * piece only. */
static void merge_task(void *ctx, int task, int thread)
{
    const struct decode *w = ctx;
    const struct piece *piece = &w->piece[task / w->cuts];
    int cut = task % w->cuts, h0 = cut * w->kv_each;
    int heads = (HZP_MIN(h0 + w->kv_each, w->args->heads.kv_heads) - h0) * w->group;
    int chunks = HZP_DIV_UP(w->args->segs.pos0[piece->seg] + 1, CHUNK);
    struct state all;

    (void)thread;
    if (piece->part < 0 || piece->first > 0)
        return;
    all = part_at(w, piece->part, cut);
    for (int c = 1; c < chunks; c++)
        state_merge(w, heads, all, part_at(w, piece->part + c, cut));
    state_finish(w, all, piece->seg, h0 * w->group, heads);
}

static int by_length(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    int longer = (y->last - y->first) - (x->last - x->first);

    if (longer != 0)
        return longer;
    return x->seg != y->seg ? x->seg - y->seg : x->first - y->first;
}

/* Divides contexts into pieces of at most `most` chunks, in ret (NULL: they are only counted);
 * returns how many, and in *ret_parts how many chunk states they need. */
static int pieces_cut(const struct hzp_segs *segs, int most, struct piece *ret, int *ret_parts)
{
    int count = 0, parts = 0;

    for (int s = 0; s < segs->count; s++) {
        int chunks = HZP_DIV_UP(segs->pos0[s] + 1, CHUNK), part = parts;
        for (int c = 0; c < chunks; c += most, count++)
            if (ret)
                ret[count] =
                    (struct piece){s, c, HZP_MIN(c + most, chunks), chunks > most ? part + c : -1};
        parts += chunks > most ? chunks : 0;
    }
    *ret_parts = parts;
    return count;
}

static int cpu_attn_decode(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_paged_args *a = args;
    struct hzp_team *team = hzp_cpu_team(lane);
    bool pairs = HAS_PAIRS && a->kv.type == HZP_BF16;
    struct decode w = {.args = a,
                       .team = team,
                       .pairs = pairs,
                       .cuts = 1,
                       .group = a->heads.heads / a->heads.kv_heads,
                       .wide = pairs ? HZP_ROUND_UP(a->heads.dim, 32) : a->heads.dim,
                       .kv_each = a->heads.kv_heads};
    int threads = hzp_team_threads(team), most = INT32_MAX, parts;
    int64_t chunks = 0;

    for (int i = 0; i < a->segs.count; i++)
        chunks += HZP_DIV_UP(a->segs.pos0[i] + 1, CHUNK);
    if (threads > 1 && chunks > 0) {
        most = (int)HZP_MAX(chunks / (8 * threads), 1);
        w.cuts = (int)HZP_MIN(HZP_DIV_UP(4 * threads, chunks), a->heads.kv_heads);
        w.kv_each = HZP_DIV_UP(a->heads.kv_heads, w.cuts);
        w.cuts = HZP_DIV_UP(a->heads.kv_heads, w.kv_each);
    }
    w.pieces = pieces_cut(&a->segs, most, NULL, &parts);
    size_t list = HZP_ROUND_UP((size_t)w.pieces * sizeof(*w.piece), (size_t)64);
    size_t part = (size_t)parts * (size_t)w.cuts * state_floats(&w) * sizeof(float);
    HZP_TRY(hzp_team_reserve(team, list + part, own_floats(&w) * sizeof(float)));
    w.piece = hzp_team_shared(team);
    w.part = (float *)((char *)hzp_team_shared(team) + list);
    pieces_cut(&a->segs, most, w.piece, &parts);
    qsort(w.piece, (size_t)w.pieces, sizeof(*w.piece), by_length);
    hzp_team_run(team, w.pieces * w.cuts, piece_task, &w);
    if (parts > 0)
        hzp_team_run(team, w.pieces * w.cuts, merge_task, &w);
    return HZP_OK;
}

void HZP_ISA_NAME(hzp_cpu_fill_decode)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_attn_decode] = cpu_attn_decode;
}
