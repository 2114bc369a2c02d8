/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/thin_tmpl.c - products of few rows of bf16, both operands read along k.
 *
 * A tile is up to six rows of x by four of W, a vector of 16 partial sums for each pair, folded
 * once at the end of a block of k, sixteen at a time.
 */
#include "device/cpu/dot_tmpl.h"
#include "device/cpu/thin.h"

#ifdef __AVX512BF16__

enum { MR = HZP_THIN_ROWS, NR = HZP_THIN_COLS, LINE = HZP_THIN_LINE };

/* Where W is fetched: some tiles ahead in the order of work, which is strip by strip, block of k by
 * block of k, tile by tile. */
struct place {
    int n, kb, strip, strip_end, end;
    struct hzp_stretch next; /* the stretch that follows the one that ends at `end` */
};

INLINE void place_enter(struct place *p, struct hzp_stretch cols)
{
    p->n = p->strip = cols.begin;
    p->strip_end = HZP_MIN(cols.begin + HZP_THIN_STRIP, cols.end);
    p->end = cols.end;
    p->kb = 0;
}

/* One tile on; behind the last it stays where it is. */
INLINE void place_step(const struct hzp_thin *t, struct place *p)
{
    if (t->along && p->kb + 1 < t->k_tiles) {
        p->kb++;
        return;
    }
    p->n += NR;
    if (p->n < p->strip_end) {
        p->kb = t->along ? 0 : p->kb;
    } else if (!t->along && p->kb + 1 < t->k_tiles) {
        p->n = p->strip;
        p->kb++;
    } else if (p->strip_end < p->end) {
        place_enter(p, (struct hzp_stretch){p->strip_end, p->end});
    } else if (p->next.begin < p->next.end) {
        place_enter(p, p->next);
        p->next.begin = p->next.end;
    } else {
        p->n -= NR;
    }
}

/* Rows n .. n+3 of W in block kb, the last one again where there are fewer. */
INLINE void rows_at(const struct hzp_thin *t, int n, int end, int kb, const char *ret[NR])
{
    const char *row =
        (const char *)hzp_cpu_row(&t->args->b, n) + (size_t)kb * (size_t)t->k_tile * 2;
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

/* Up to four rows' sums, one in each quarter of v. */
INLINE void put_rows(int rows, float *sums, vf v, bool first)
{
    put(sums, _mm512_castps512_ps128(v), first);
    if (rows > 1)
        put(sums + HZP_THIN_STRIP, _mm512_extractf32x4_ps(v, 1), first);
    if (rows > 2)
        put(sums + 2 * HZP_THIN_STRIP, _mm512_extractf32x4_ps(v, 2), first);
    if (rows > 3)
        put(sums + 3 * HZP_THIN_STRIP, _mm512_extractf32x4_ps(v, 3), first);
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
 * fetching rows in turns, as they are read, makes four streams, which took a quarter longer. */
struct tile {
    const uint16_t *x;
    const char *w[NR], *ahead[NR];
    const char *fetch; /* one of ahead */
    size_t row;        /* bytes from one fetched row to the next; 0: they follow each other */
    int count, fold;   /* elements of k: all, and after how many sums are folded */
    bool first;        /* there are no sums yet */
    bool whole;        /* there are four rows of W */
    float *sums;       /* [mr][HZP_THIN_STRIP] */
};

INLINE void line_fetch(const char *p, enum hzp_thin_fetch how)
{
    if (how == HZP_THIN_FAR)
        _mm_prefetch(p, _MM_HINT_T1);
    else
        _mm_prefetch(p, _MM_HINT_T0);
}

INLINE void tile(int mr, int fetches, enum hzp_thin_fetch how, const struct tile *t)
{
    const char *fetch = t->fetch;
    const uint16_t *x = t->x;
    int turns = HZP_DIV_UP(t->count / LINE, fetches), turn = turns;
    size_t at = 0, jump = t->row ? t->row - (size_t)turns * (size_t)fetches * 64 : 0;

    for (int k = 0; k == 0 || k < t->count; k += t->fold) {
        vf acc[MR][NR], row[8];
        int count = HZP_MIN(t->fold, t->count - k), left = count % LINE;
        size_t end = at + (size_t)(count / LINE) * 64;
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
                line_fetch(fetch + j * 64, how);
            turn--;
            fetch += fetches * 64 + (turn ? 0 : jump);
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
            row[i] =
                i < mr ? fold_near(fold_near(acc[i][0], acc[i][1]), fold_near(acc[i][2], acc[i][3]))
                       : vzero();
        put_rows(mr, t->sums, fold_rows(row[0], row[1], row[2], row[3]), t->first && k == 0);
        if (mr > 4)
            put_rows(mr - 4, t->sums + 4 * HZP_THIN_STRIP,
                     fold_rows(row[4], row[5], row[6], row[7]), t->first && k == 0);
    }
}

/* Not inlined: together they keep the compiler busy for long. */
#define TILE(mr, fetches, name, how)                                                               \
    static __attribute__((noinline)) void tile_##mr##_##fetches##_##name(const struct tile *t)     \
    {                                                                                              \
        tile(mr, fetches, how, t);                                                                 \
    }
#define TILES_AS(mr, name, how) TILE(mr, 1, name, how) TILE(mr, 2, name, how) TILE(mr, 4, name, how)
#define TILES(mr)               TILES_AS(mr, near, HZP_THIN_NEAR) TILES_AS(mr, far, HZP_THIN_FAR)
TILES(1)
TILES(2)
TILES(3)
TILES(4)
TILES(5)
TILES(6)

typedef void tile_fn(const struct tile *t);
#define EACH_ROWS(f, name)                                                                         \
    {                                                                                              \
        NULL, tile_1_##f##_##name, tile_2_##f##_##name, tile_3_##f##_##name, tile_4_##f##_##name,  \
            tile_5_##f##_##name, tile_6_##f##_##name                                               \
    }
/* By hzp_thin_fetch, by the logarithm of the number of lines fetched at a time, by rows. */
static tile_fn *const tiles_of[2][3][MR + 1] = {
    [HZP_THIN_NEAR] = {EACH_ROWS(1, near), EACH_ROWS(2, near), EACH_ROWS(4, near)},
    [HZP_THIN_FAR] = {EACH_ROWS(1, far), EACH_ROWS(2, far), EACH_ROWS(4, far)}};

/* The same of whole lines of one block of k, that fetches one row or nothing: what products of more
 * than 24 rows spend their time in, 1 to 4 % less so than in the one above.  (16 rows are no faster
 * with it.)  Sums are added up in the same order. */
INLINE void plain(int mr, bool fetches, enum hzp_thin_fetch how, const uint16_t *x, const char *w,
                  size_t row, size_t bytes, const char *fetch, float *sums, bool first)
{
    vf acc[MR][NR], fold[8];
    const char *w3 = w + 3 * row;

    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < NR; j++)
            acc[i][j] = vzero();
    }
    for (size_t at = 0; at < bytes; at += 64, x += mr * LINE) {
        if (fetches)
            line_fetch(fetch + at, how);
        __m512i v[NR] = {_mm512_loadu_si512(w + at), _mm512_loadu_si512(w + row + at),
                         _mm512_loadu_si512(w + 2 * row + at), _mm512_loadu_si512(w3 + at)};
        step(mr, acc, x, v);
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        fold[i] = i < mr
                      ? fold_near(fold_near(acc[i][0], acc[i][1]), fold_near(acc[i][2], acc[i][3]))
                      : vzero();
    put_rows(mr, sums, fold_rows(fold[0], fold[1], fold[2], fold[3]), first);
    if (mr > 4)
        put_rows(mr - 4, sums + 4 * HZP_THIN_STRIP, fold_rows(fold[4], fold[5], fold[6], fold[7]),
                 first);
}

typedef void plain_fn(const uint16_t *x, const char *w, size_t row, size_t bytes, const char *fetch,
                      float *sums, bool first);
#define PLAIN(mr, fetches, name, how)                                                              \
    static __attribute__((noinline)) void plain_##mr##_##name(                                     \
        const uint16_t *x, const char *w, size_t row, size_t bytes, const char *fetch,             \
        float *sums, bool first)                                                                   \
    {                                                                                              \
        if (first)                                                                                 \
            plain(mr, fetches, how, x, w, row, bytes, fetch, sums, true);                          \
        else                                                                                       \
            plain(mr, fetches, how, x, w, row, bytes, fetch, sums, false);                         \
    }
PLAIN(5, false, none, HZP_THIN_NEAR)
PLAIN(6, false, none, HZP_THIN_NEAR)
PLAIN(5, true, near, HZP_THIN_NEAR)
PLAIN(6, true, near, HZP_THIN_NEAR)
PLAIN(5, true, far, HZP_THIN_FAR)
PLAIN(6, true, far, HZP_THIN_FAR)

/* More than four blocks have five or six rows each. */
static plain_fn *const plain_none[MR + 1] = {[5] = plain_5_none, [6] = plain_6_none};
static plain_fn *const plain_fetch[2][MR + 1] = {
    [HZP_THIN_NEAR] = {[5] = plain_5_near, [6] = plain_6_near},
    [HZP_THIN_FAR] = {[5] = plain_5_far, [6] = plain_6_far}};

/* The finished sums of a strip; type, bias and add are known where it is inlined. */
INLINE void store_as(const struct hzp_matmul_args *a, int n, int count, const float *sums,
                     enum hzp_dtype type, bool bias, bool add)
{
    for (int m = 0; m < a->c.rows; m++, sums += HZP_THIN_STRIP) {
        void *c = hzp_cpu_row(&a->c, m);
        int h = 0;
        for (; h + VL <= count; h += VL) {
            size_t at = (size_t)(n + h);
            vf y = vload(sums + h, VL);
            if (bias)
                y = vadd(y, vget(a->bias.ptr, at, a->bias.type, VL));
            if (add)
                y = vadd(y, vget(c, at, type, VL));
            vput(c, at, type, y, VL);
        }
        for (; h < count; h += 4)
            dot_store(a, m, n + h, HZP_MIN(4, count - h), _mm_loadu_ps(sums + h));
    }
}

INLINE void store(const struct hzp_thin *t, int n, int count, const float *sums)
{
    const struct hzp_matmul_args *a = t->args;
    bool bias = a->bias.ptr != NULL, add = a->accumulate;

    if (!bias && a->c.type == HZP_BF16 && !add)
        store_as(a, n, count, sums, HZP_BF16, false, false);
    else if (!bias && a->c.type == HZP_F32 && add)
        store_as(a, n, count, sums, HZP_F32, false, true);
    else
        store_as(a, n, count, sums, a->c.type, bias, add);
}

/* A strip of c, before its sums begin. */
INLINE void fetch_c(const struct hzp_matmul_args *a, int n, int end)
{
    size_t size = a->c.type == HZP_F32 ? 4 : 2;

    for (int m = 0; m < a->c.rows; m++) {
        const char *c = hzp_cpu_row(&a->c, m);
        for (size_t at = (size_t)n * size; at < (size_t)end * size; at += 64)
            fetch_to_write(c + at);
    }
}

static void cpu_start(const struct hzp_thin *t, struct hzp_stretch first, void *own)
{
    const struct hzp_mat *x = &t->args->a;
    struct place p = {0};
    const char *w[NR];
    uint16_t *to = own;

    place_enter(&p, first);
    for (int i = 0; i < t->ahead; i++, place_step(t, &p)) {
        rows_at(t, p.n, p.end, p.kb, w);
        for (int j = 0; j < NR; j++)
            for (int k = 0; k < t->k_tile; k += LINE)
                _mm_prefetch(w[j] + k * 2, _MM_HINT_T0);
    }
    for (int k0 = 0; k0 < x->cols; k0 += t->k_tile)
        for (int b = 0; b < t->blocks; b++) {
            int m0 = t->row[b], mr = t->row[b + 1] - m0;
            int count = HZP_MIN(t->k_tile, x->cols - k0), lines = HZP_DIV_UP(count, LINE);
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

/* What columns does, where plain will do. */
INLINE void plain_columns(const struct hzp_thin *t, int kb, int inner, const uint16_t *x,
                          struct tile *tile, int count)
{
    size_t row = (size_t)t->args->b.stride * 2;

    for (int b = 0; b < t->blocks; b++) {
        int mr = t->row[b + 1] - t->row[b];
        bool fetches = b < NR;
        for (struct tile *i = tile; i < tile + count; i++) {
            (fetches ? plain_fetch[t->fetch] : plain_none)[mr](
                x, i->w[0], row, (size_t)inner * 2, i->ahead[fetches ? b : 0], i->sums, kb == 0);
            i->sums += mr * HZP_THIN_STRIP;
        }
        x += mr * inner;
    }
}

/* All rows of x by the columns of one tile of W or two, from tile kb of k on.  With two of them
 * each block of x comes into the first-level cache once for both. */
INLINE void columns(const struct hzp_thin *t, int kb, const uint16_t *own, struct tile *tile,
                    int count)
{
    int k0 = kb * t->k_tile, rows = t->args->c.rows, at = 0;
    int inner = HZP_MAX(HZP_MIN(t->k_tile, t->args->a.cols - k0), 0);
    const uint16_t *x = own + (size_t)k0 * (size_t)rows;

    if (t->blocks > NR && inner > 0 && inner % LINE == 0 && inner <= t->k_fold &&
        tile[count - 1].whole) {
        plain_columns(t, kb, inner, x, tile, count);
        return;
    }
    for (int b = 0; b < t->blocks; b++) {
        int mr = t->row[b + 1] - t->row[b];
        int part = t->blocks == 1 ? 4 : t->blocks == 2 || (t->blocks == 3 && b == 0) ? 2 : 1;
        tile_fn *const *tiles = tiles_of[t->fetch][part / 2];
        for (struct tile *i = tile; i < tile + count; i++) {
            i->count = inner;
            i->first = kb == 0;
            i->x = x;
            i->fetch = at < NR ? i->ahead[at] : i->w[0];
            tiles[mr](i);
            i->sums += mr * HZP_THIN_STRIP;
        }
        at += part;
        x += mr * HZP_ROUND_UP(inner, LINE);
    }
}

/* ---- one row of x ---- */

enum {
    ACROSS = HZP_THIN_ACROSS,
    PIECE_BYTES = 128 << 10, /* most bytes of ACROSS rows that are fetched as they lie */
    AHEAD_ROW = 256,         /* bytes of a row between what is read and what is fetched, else */
};

/* Reads of memory stay before or behind it: compilers gather what is fetched otherwise. */
#define IN_ORDER __asm__ volatile("" : : : "memory")

/* Rows of W and where the lines are that are fetched meanwhile. */
struct piece {
    const char *w, *ahead;
    size_t stride, apart; /* bytes: from row to row, from one fetched line to the next */
    size_t along;         /* from the lines fetched in one turn to those of the next */
};

/* acc[j] += x times a line of row j.  Before each line that is loaded one is fetched: where four
 * were, loads waited behind them. */
INLINE void piece_line(const struct piece *p, size_t at, __m512bh x, const char *ahead,
                       vf acc[ACROSS])
{
    const char *w = p->w + at;

    UNROLL
    for (int j = 0; j < ACROSS; j++, ahead += p->apart) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        IN_ORDER;
        acc[j] =
            _mm512_dpbf16_ps(acc[j], x, (__m512bh)_mm512_loadu_si512(w + (size_t)j * p->stride));
        IN_ORDER;
    }
}

/* sums[0 .. ACROSS): added up as in a tile.  x: padded with zeros to whole lines. */
static __attribute__((noinline)) void piece_sum(const struct piece *p, const uint16_t *x, int cols,
                                                int fold, float *sums)
{
    const char *ahead = p->ahead;

    for (int k = 0; k == 0 || k < cols; k += fold) {
        int end = HZP_MIN(k + fold, cols), at = k;
        vf acc[ACROSS], row[4], sum;

        UNROLL
        for (int j = 0; j < ACROSS; j++)
            acc[j] = vzero();
        for (; at + LINE <= end; at += LINE, ahead += p->along)
            piece_line(p, (size_t)at * 2, (__m512bh)_mm512_loadu_si512(x + at), ahead, acc);
        if (at < end) {
            __mmask32 left = (__mmask32)((1u << (end - at)) - 1);
            __m512bh xv = (__m512bh)_mm512_loadu_si512(x + at);
            const char *w = p->w + (size_t)at * 2;
            UNROLL
            for (int j = 0; j < ACROSS; j++)
                acc[j] = _mm512_dpbf16_ps(
                    acc[j], xv,
                    (__m512bh)_mm512_maskz_loadu_epi16(left, w + (size_t)j * p->stride));
        }
        UNROLL
        for (int j = 0; j < 4; j++)
            row[j] = fold_near(fold_near(acc[4 * j], acc[4 * j + 1]),
                               fold_near(acc[4 * j + 2], acc[4 * j + 3]));
        sum = fold_rows(row[0], row[1], row[2], row[3]);
        _mm512_storeu_ps(sums, k == 0 ? sum : vadd(_mm512_loadu_ps(sums), sum));
    }
}

/* The columns of a stretch.  The last ones of c, if they are fewer than ACROSS, are computed
 * together with some before them. */
static void across_run(const struct hzp_thin *t, struct hzp_stretch now, struct hzp_stretch next,
                       const uint16_t *x)
{
    const struct hzp_matmul_args *a = t->args;
    const size_t stride = (size_t)a->b.stride * 2, bytes = (size_t)a->a.cols * 2;
    const bool lined_up = stride == bytes && bytes * ACROSS <= PIECE_BYTES;
    const char *w = a->b.ptr;
    struct piece p = {.stride = stride,
                      .apart = lined_up ? HZP_THIN_LINE * 2 : stride,
                      .along = HZP_THIN_LINE * 2 * (lined_up ? ACROSS : 1)};

    for (int n = now.begin, end; n < now.end; n = end) {
        int first = HZP_MIN(n, a->c.cols - ACROSS);
        float sums[HZP_THIN_STRIP];
        end = HZP_MIN(n + ACROSS, now.end);
        int after = end < now.end ? end : next.begin < next.end ? next.begin : a->c.cols;
        p.w = w + (size_t)first * stride;
        p.ahead = lined_up ? w + (size_t)after * stride : p.w + AHEAD_ROW;
        piece_sum(&p, x, a->a.cols, t->k_fold, sums);
        store(t, n, end - n, sums + (n - first));
    }
}

static void cpu_run(const struct hzp_thin *t, struct hzp_stretch now, struct hzp_stretch next,
                    void *own)
{
    float *sums = (float *)((char *)own + t->sums);
    struct place fetch = {.next = next};
    struct tile tile[2];
    bool lined_up = t->k_tiles == 1 && t->args->b.stride == t->args->b.cols;

    for (int i = 0; i < 2; i++)
        tile[i] =
            (struct tile){.fold = t->k_fold, .row = lined_up ? 0 : (size_t)t->args->b.stride * 2};
    if (t->across) {
        across_run(t, now, next, own);
        return;
    }
    place_enter(&fetch, now);
    for (int i = 0; i < t->ahead; i++)
        place_step(t, &fetch);
    for (int strip = now.begin, end; strip < now.end; strip = end) {
        end = HZP_MIN(strip + HZP_THIN_STRIP, now.end);
        int steps = HZP_DIV_UP(end - strip, NR) * t->k_tiles;
        struct place p = {.n = strip, .strip = strip, .strip_end = end, .end = end};
        fetch_c(t->args, strip, end);
        for (int count; steps > 0; steps -= count) {
            int kb = p.kb;
            count = t->pairs && p.n + NR < end ? 2 : 1;
            for (int i = 0; i < count; i++, place_step(t, &p), place_step(t, &fetch)) {
                rows_at(t, p.n, now.end, p.kb, tile[i].w);
                rows_at(t, fetch.n, fetch.end, fetch.kb, tile[i].ahead);
                tile[i].sums = sums + (p.n - strip);
                tile[i].whole = p.n + NR <= now.end;
            }
            columns(t, kb, own, tile, count);
        }
        store(t, strip, end - strip, sums);
    }
}

const struct hzp_thin_kernels HZP_ISA_NAME(hzp_cpu_thin) = {cpu_start, cpu_run};

#endif
