/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/thin_tmpl.c - products of few rows of bf16, both operands read along k.
 *
 * A tile is up to six rows of x by four of W, a vector of 16 partial sums for each pair, folded once
 * at the end of a block of k, sixteen at a time.
 */
#include "device/cpu/dot_tmpl.h"
#include "device/cpu/thin.h"

#ifdef __AVX512BF16__

enum { MR = HZP_THIN_ROWS, NR = HZP_THIN_COLS, LINE = HZP_THIN_LINE };

/* Where W is fetched: some tiles ahead in the order of work, which is strip by strip, block of k by
 * block of k, tile by tile. */
struct place {
    int n, kb, strip, strip_end, end;
    struct hzp_thin_cols next; /* the stretch that follows the one that ends at `end` */
};

INLINE void place_enter(const struct hzp_thin *t, struct place *p, struct hzp_thin_cols cols)
{
    p->n = p->strip = cols.begin;
    p->strip_end = HZP_MIN(cols.begin + t->strip, cols.end);
    p->end = cols.end;
    p->kb = 0;
}

/* One tile on; behind the last it stays where it is. */
INLINE void place_step(const struct hzp_thin *t, struct place *p)
{
    p->n += NR;
    if (p->n < p->strip_end)
        return;
    if (p->kb + 1 < t->k_blocks) {
        p->n = p->strip;
        p->kb++;
    } else if (p->strip_end < p->end) {
        place_enter(t, p, (struct hzp_thin_cols){p->strip_end, p->end});
    } else if (p->next.begin < p->next.end) {
        place_enter(t, p, p->next);
        p->next.begin = p->next.end;
    } else {
        p->n -= NR;
    }
}

/* Rows n .. n+3 of W in block kb, the last one again where there are fewer. */
INLINE void rows_at(const struct hzp_thin *t, int n, int end, int kb, const char *ret[NR])
{
    const char *row = (const char *)hzp_cpu_row(&t->args->b, n) +
                      (size_t)kb * (size_t)t->k_block * 2;
    size_t bytes = (size_t)t->args->b.stride * 2;

    for (int j = 0; j < NR; j++)
        ret[j] = row + (size_t)HZP_MIN(j, end - 1 - n) * bytes;
}

/* Sums of neighbours: lanes 0+1 and 2+3 of each quarter of a, then of b. */
INLINE vf fold_near(vf a, vf b)
{
    return vadd(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

/* Quarters 0+2 and 1+3 of a, then of b. */
INLINE vf fold_far(vf a, vf b)
{
    return vadd(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* Four vectors, four quarters of each to be added; quarter i of the result is of vector i. */
INLINE vf fold_rows(vf a, vf b, vf c, vf d)
{
    vf ab = fold_far(a, b), cd = fold_far(c, d);

    return vadd(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

INLINE void put(float *sums, __m128 v, bool first)
{
    _mm_storeu_ps(sums, first ? v : _mm_add_ps(_mm_loadu_ps(sums), v));
}

INLINE void step(int mr, vf acc[MR][NR], const uint16_t *x, const __m512i w[NR])
{
    UNROLL
    for (int i = 0; i < mr; i++) {
        __m512bh xv = (__m512bh)_mm512_loadu_si512(x + i * LINE);
        UNROLL
        for (int j = 0; j < NR; j++)
            acc[i][j] = _mm512_dpbf16_ps(acc[i][j], xv, (__m512bh)w[j]);
    }
}

/* What one tile reads and fetches.  Lines are fetched in the order in which they lie in memory:
 * rows in turns, as they are read, kept four streams under way, which took a quarter longer. */
struct tile {
    const uint16_t *x;
    const char *w[NR], *fetch;
    ptrdiff_t jump; /* from the end of a fetched row to the next one */
    int count;      /* elements of k */
    bool first;     /* there are no sums yet */
    float *sums;    /* [mr][HZP_THIN_STRIP] */
};

INLINE void tile(int mr, int fetches, const struct tile *t)
{
    vf acc[MR][NR], row[8];
    const uint16_t *x = t->x;
    size_t at = 0, end = (size_t)(t->count / LINE) * 64;
    const char *fetch = t->fetch;
    int left = t->count % LINE, turns = HZP_DIV_UP(t->count / LINE, fetches), turn = turns;
    __m512i w[NR];

    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < NR; j++)
            acc[i][j] = vzero();
    }
    for (; at < end; at += 64, x += mr * LINE) {
        UNROLL
        for (int j = 0; j < fetches; j++)
            _mm_prefetch(fetch + j * 64, _MM_HINT_T0);
        turn--;
        fetch += fetches * 64 + (turn ? 0 : t->jump);
        turn = turn ? turn : turns;
        UNROLL
        for (int j = 0; j < NR; j++)
            w[j] = _mm512_loadu_si512(t->w[j] + at);
        step(mr, acc, x, w);
    }
    if (left) {
        UNROLL
        for (int j = 0; j < NR; j++)
            w[j] = _mm512_maskz_loadu_epi16((__mmask32)((1u << left) - 1), t->w[j] + at);
        step(mr, acc, x, w);
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        row[i] = i < mr ? fold_near(fold_near(acc[i][0], acc[i][1]),
                                    fold_near(acc[i][2], acc[i][3]))
                        : vzero();
    UNROLL
    for (int i = 0; i < mr; i += 4) {
        vf s = fold_rows(row[i], row[i + 1], row[i + 2], row[i + 3]);
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
#define TILE(mr, fetches)                                                                          \
    static __attribute__((noinline)) void tile_##mr##_##fetches(const struct tile *t)              \
    {                                                                                              \
        tile(mr, fetches, t);                                                                      \
    }
#define TILES(mr) TILE(mr, 1) TILE(mr, 2) TILE(mr, 4)
TILES(1)
TILES(2)
TILES(3)
TILES(4)
TILES(5)
TILES(6)

typedef void tile_fn(const struct tile *t);
static tile_fn *const tiles_1[MR + 1] = {NULL,     tile_1_1, tile_2_1, tile_3_1,
                                         tile_4_1, tile_5_1, tile_6_1};
static tile_fn *const tiles_2[MR + 1] = {NULL,     tile_1_2, tile_2_2, tile_3_2,
                                         tile_4_2, tile_5_2, tile_6_2};
static tile_fn *const tiles_4[MR + 1] = {NULL,     tile_1_4, tile_2_4, tile_3_4,
                                         tile_4_4, tile_5_4, tile_6_4};

/* The finished sums of a strip. */
INLINE void store(const struct hzp_thin *t, int n, int count, const float *sums)
{
    const struct hzp_matmul_args *a = t->args;

    for (int m = 0; m < a->c.rows; m++, sums += HZP_THIN_STRIP) {
        void *c = hzp_cpu_row(&a->c, m);
        int h = 0;
        for (; h + VL <= count; h += VL) {
            size_t at = (size_t)(n + h);
            vf y = vload(sums + h, VL);
            if (a->bias.ptr)
                y = vadd(y, vget(a->bias.ptr, at, a->bias.type, VL));
            if (a->accumulate)
                y = vadd(y, vget(c, at, a->c.type, VL));
            vput(c, at, a->c.type, y, VL);
        }
        for (; h < count; h += 4)
            dot_store(a, m, n + h, HZP_MIN(4, count - h), _mm_loadu_ps(sums + h));
    }
}

static void cpu_start(const struct hzp_thin *t, struct hzp_thin_cols first, void *own)
{
    const struct hzp_mat *x = &t->args->a;
    struct place p = {0};
    const char *w[NR];
    uint16_t *to = own;

    place_enter(t, &p, first);
    for (int i = 0; i < t->ahead; i++, place_step(t, &p)) {
        rows_at(t, p.n, p.end, p.kb, w);
        for (int j = 0; j < NR; j++)
            for (int k = 0; k < t->k_block; k += LINE)
                _mm_prefetch(w[j] + k * 2, _MM_HINT_T0);
    }
    for (int k0 = 0; k0 < x->cols; k0 += t->k_block)
        for (int b = 0; b < t->blocks; b++) {
            int m0 = t->row[b], mr = t->row[b + 1] - m0;
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

/* All rows of x by the four columns of tile->w, from block kb of k on; each block of rows fetches its
 * part of the four rows of W at `fetch`. */
INLINE void column(const struct hzp_thin *t, int kb, const uint16_t *own, float *sums,
                   const char *const fetch[NR], struct tile *tile)
{
    int k0 = kb * t->k_block, rows = t->args->c.rows, at = 0;
    const uint16_t *x = own + (size_t)k0 * (size_t)rows;

    tile->first = kb == 0;
    tile->count = HZP_MAX(HZP_MIN(t->k_block, t->args->a.cols - k0), 0);
    for (int b = 0; b < t->blocks; b++) {
        int mr = t->row[b + 1] - t->row[b];
        int part = t->blocks == 1 ? 4 : t->blocks == 2 || (t->blocks == 3 && b == 0) ? 2 : 1;
        tile_fn *const *tiles = part == 4 ? tiles_4 : part == 2 ? tiles_2 : tiles_1;
        tile->x = x;
        tile->sums = sums + t->row[b] * HZP_THIN_STRIP;
        tile->fetch = at < NR ? fetch[at] : tile->w[0];
        tiles[mr](tile);
        at += part;
        x += mr * HZP_ROUND_UP(tile->count, LINE);
    }
}

static void cpu_run(const struct hzp_thin *t, struct hzp_thin_cols now, struct hzp_thin_cols next,
                    void *own)
{
    float *sums = (float *)((char *)own + t->sums);
    struct place fetch = {.next = next};
    struct tile tile = {.jump = (ptrdiff_t)t->args->b.stride * 2 - (ptrdiff_t)t->k_block * 2};
    const char *ahead[NR];

    if (t->k_blocks == 1 && t->args->b.stride == t->args->b.cols)
        tile.jump = 0;
    place_enter(t, &fetch, now);
    for (int i = 0; i < t->ahead; i++)
        place_step(t, &fetch);
    for (int strip = now.begin, end; strip < now.end; strip = end) {
        end = HZP_MIN(strip + t->strip, now.end);
        for (int kb = 0; kb < t->k_blocks; kb++)
            for (int n = strip; n < end; n += NR) {
                rows_at(t, n, now.end, kb, tile.w);
                rows_at(t, fetch.n, fetch.end, fetch.kb, ahead);
                column(t, kb, own, sums + (n - strip), ahead, &tile);
                place_step(t, &fetch);
            }
        store(t, strip, end - strip, sums);
    }
}

const struct hzp_thin_kernels HZP_ISA_NAME(hzp_cpu_thin) = {cpu_start, cpu_run};

#endif
