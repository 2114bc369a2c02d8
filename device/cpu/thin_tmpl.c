/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/thin_tmpl.c - products of few rows of bf16, both operands read along k.
 *
 * A tile is up to six rows of x by four of W, a vector of 16 partial sums for each pair, folded once
 * at the end of a block of k, sixteen at a time.
 */
#include "device/cpu/thin.h"
#include "device/cpu/vec_tmpl.h"

#ifdef __AVX512BF16__

enum { MR = HZP_THIN_ROWS, NR = HZP_THIN_COLS, LINE = HZP_THIN_LINE };

/* A place in the order of work: strip by strip, block of k by block of k, tile by tile. */
struct place {
    struct hzp_thin_cols cols, next; /* the stretch it is in, and the one after it */
    int strip, strip_end, kb, n;
};

INLINE struct place place_at(const struct hzp_thin *t, struct hzp_thin_cols cols,
                             struct hzp_thin_cols next)
{
    return (struct place){cols, next, cols.begin, HZP_MIN(cols.begin + t->strip, cols.end), 0,
                          cols.begin};
}

/* One tile on; false: behind the last. */
INLINE bool place_step(const struct hzp_thin *t, struct place *p)
{
    p->n += NR;
    if (p->n < p->strip_end)
        return true;
    p->n = p->strip;
    if (++p->kb < t->k_blocks)
        return true;
    if (p->strip_end < p->cols.end) {
        p->kb = 0;
        p->n = p->strip = p->strip_end;
        p->strip_end = HZP_MIN(p->strip + t->strip, p->cols.end);
        return true;
    }
    if (p->next.begin == p->next.end) {
        p->kb = 0; /* stays here */
        return false;
    }
    *p = place_at(t, p->next, (struct hzp_thin_cols){0, 0});
    return true;
}

/* Row n + j of W in block kb. */
INLINE const char *place_row(const struct hzp_thin *t, const struct place *p, int j)
{
    int n = HZP_MIN(p->n + j, p->cols.end - 1);
    return (const char *)hzp_cpu_row(&t->args->b, n) + (size_t)p->kb * (size_t)t->k_block * 2;
}

/* Sums of neighbours: lanes 0+1 and 2+3 of each quarter of a, then of b. */
INLINE vf fold_near(vf a, vf b)
{
    return vadd(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

/* Four columns of four rows; quarter i of the result is row i. */
INLINE vf fold(const vf a[4][NR])
{
    vf r[4], far[2];

    for (int i = 0; i < 4; i++)
        r[i] = fold_near(fold_near(a[i][0], a[i][1]), fold_near(a[i][2], a[i][3]));
    for (int i = 0; i < 2; i++)
        far[i] = vadd(_mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0x44),
                      _mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0xee));
    return vadd(_mm512_shuffle_f32x4(far[0], far[1], 0x88),
                _mm512_shuffle_f32x4(far[0], far[1], 0xdd));
}

INLINE void put(float *sums, __m128 v, bool first)
{
    _mm_storeu_ps(sums, first ? v : _mm_add_ps(_mm_loadu_ps(sums), v));
}

INLINE void step(int mr, vf acc[8][NR], const uint16_t *x, const __m512i w[NR])
{
    for (int i = 0; i < mr; i++) {
        __m512bh xv = (__m512bh)_mm512_loadu_si512(x + i * LINE);
        for (int j = 0; j < NR; j++)
            acc[i][j] = _mm512_dpbf16_ps(acc[i][j], xv, (__m512bh)w[j]);
    }
}

/* What one tile reads and fetches. */
struct tile {
    const uint16_t *x;
    const char *w[NR], *fetch[NR];
    int count;   /* elements of k */
    int fetches; /* how many of fetch: 0, 1, 2 or 4 */
    bool first;  /* there are no sums yet */
    float *sums; /* [mr][HZP_THIN_STRIP] */
};

INLINE void tile_lines(int mr, int fetches, const struct tile *t, vf acc[8][NR])
{
    const uint16_t *x = t->x;
    __m512i w[NR];

    for (size_t at = 0; at < (size_t)(t->count / LINE) * 64; at += 64, x += mr * LINE) {
        for (int j = 0; j < fetches; j++)
            _mm_prefetch(t->fetch[j] + at, _MM_HINT_T0);
        for (int j = 0; j < NR; j++)
            w[j] = _mm512_loadu_si512(t->w[j] + at);
        step(mr, acc, x, w);
    }
}

INLINE void tile(int mr, const struct tile *t)
{
    vf acc[8][NR];
    int lines = t->count / LINE, left = t->count % LINE;

    for (int i = 0; i < 8; i++)
        for (int j = 0; j < NR; j++)
            acc[i][j] = vzero();
    switch (t->fetches) {
    case 0: tile_lines(mr, 0, t, acc); break;
    case 1: tile_lines(mr, 1, t, acc); break;
    case 2: tile_lines(mr, 2, t, acc); break;
    default: tile_lines(mr, 4, t, acc); break;
    }
    if (left) {
        __m512i w[NR];
        for (int j = 0; j < NR; j++)
            w[j] = _mm512_maskz_loadu_epi16((__mmask32)((1u << left) - 1),
                                            t->w[j] + (size_t)lines * 64);
        step(mr, acc, t->x + (size_t)lines * (size_t)mr * LINE, w);
    }
    for (int i = 0; i < mr; i += 4) {
        vf s = fold(acc + i);
        float *sums = t->sums + i * HZP_THIN_STRIP;
        put(sums, _mm512_castps512_ps128(s), t->first);
        if (i + 1 < mr)
            put(sums + HZP_THIN_STRIP, _mm512_extractf32x4_ps(s, 1), t->first);
        if (i + 2 < mr)
            put(sums + 2 * HZP_THIN_STRIP, _mm512_extractf32x4_ps(s, 2), t->first);
        if (i + 3 < mr)
            put(sums + 3 * HZP_THIN_STRIP, _mm512_extractf32x4_ps(s, 3), t->first);
    }
}

/* Not inlined: together they keep the compiler busy for long. */
#define TILE(mr)                                                                                   \
    static __attribute__((noinline)) void tile_##mr(const struct tile *t)                          \
    {                                                                                              \
        tile(mr, t);                                                                               \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)

typedef void tile_fn(const struct tile *t);
static tile_fn *const tiles[MR + 1] = {NULL, tile_1, tile_2, tile_3, tile_4, tile_5, tile_6};

/* The finished sums of a strip. */
INLINE void store(const struct hzp_thin *t, int n, int count, const float *sums)
{
    const struct hzp_matmul_args *a = t->args;

    for (int m = 0; m < a->c.rows; m++, sums += HZP_THIN_STRIP) {
        void *c = hzp_cpu_row(&a->c, m);
        for (int h = 0; h < count; h += VL) {
            int left = HZP_MIN(VL, count - h);
            size_t at = (size_t)(n + h);
            vf y = vload(sums + h, left);
            if (a->bias.ptr)
                y = vadd(y, vget(a->bias.ptr, at, a->bias.type, left));
            if (a->accumulate)
                y = vadd(y, vget(c, at, a->c.type, left));
            vput(c, at, a->c.type, y, left);
        }
    }
}

static void cpu_start(const struct hzp_thin *t, struct hzp_thin_cols first, void *own)
{
    const struct hzp_mat *x = &t->args->a;
    struct place p = place_at(t, first, (struct hzp_thin_cols){0, 0});
    uint16_t *to = own;

    for (int i = 0, more = 1; i < t->ahead && more; i++, more = place_step(t, &p))
        for (int j = 0; j < NR; j++)
            for (int k = 0; k < t->k_block; k += LINE)
                _mm_prefetch(place_row(t, &p, j) + k * 2, _MM_HINT_T0);
    for (int k0 = 0; k0 < x->cols; k0 += t->k_block)
        for (int b = 0; b < t->blocks; b++) {
            int m0 = hzp_thin_row(t, b), mr = hzp_thin_row(t, b + 1) - m0;
            int count = HZP_MIN(t->k_block, x->cols - k0), lines = HZP_DIV_UP(count, LINE);
            for (int i = 0; i < mr; i++) {
                const uint16_t *from = (const uint16_t *)hzp_cpu_row(x, m0 + i) + k0;
                for (int l = 0; l < lines; l++) {
                    int left = count - l * LINE;
                    __m512i v = left >= LINE ? _mm512_loadu_si512(from + l * LINE)
                                             : _mm512_maskz_loadu_epi16(
                                                   (__mmask32)((1u << left) - 1), from + l * LINE);
                    _mm512_storeu_si512(to + (l * mr + i) * LINE, v);
                }
            }
            to += lines * mr * LINE;
        }
}

static void cpu_run(const struct hzp_thin *t, struct hzp_thin_cols now, struct hzp_thin_cols next,
                    void *own)
{
    const struct hzp_matmul_args *a = t->args;
    struct place p = place_at(t, now, (struct hzp_thin_cols){0, 0}), fetch = place_at(t, now, next);
    float *sums = (float *)((char *)own + t->sums);
    bool more = true, ahead = true;

    for (int i = 0; i < t->ahead && ahead; i++)
        ahead = place_step(t, &fetch);
    while (more) {
        struct place at = p;
        int k0 = at.kb * t->k_block;
        struct tile tile = {.first = at.kb == 0,
                            .count = HZP_MAX(HZP_MIN(t->k_block, a->a.cols - k0), 0)};
        const uint16_t *x = (const uint16_t *)own + (size_t)k0 * (size_t)a->c.rows;
        int padded = HZP_ROUND_UP(tile.count, LINE);
        for (int j = 0; j < NR; j++)
            tile.w[j] = place_row(t, &at, j);
        for (int b = 0; b < t->blocks; b++) {
            int m0 = hzp_thin_row(t, b), mr = hzp_thin_row(t, b + 1) - m0;
            int f0 = NR * b / t->blocks, f1 = NR * (b + 1) / t->blocks;
            tile.x = x + (size_t)m0 * (size_t)padded;
            tile.sums = sums + m0 * HZP_THIN_STRIP + (at.n - at.strip);
            tile.fetches = ahead ? f1 - f0 : 0;
            for (int j = f0; j < f1; j++)
                tile.fetch[j - f0] = place_row(t, &fetch, j);
            tiles[mr](&tile);
        }
        more = place_step(t, &p);
        if (ahead)
            ahead = place_step(t, &fetch);
        if (!more || p.strip != at.strip)
            store(t, at.strip, at.strip_end - at.strip, sums);
    }
}

const struct hzp_thin_kernels HZP_ISA_NAME(hzp_cpu_thin) = {cpu_start, cpu_run};

#endif
