/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/wide_tmpl.c - products in F32 arithmetic of F32 or BF16 operands, any transposition.
 *
 * Both operands are copied into floats, BF16 is widened on the way, and so are transpositions done:
 * of op(a) as [k][rows of a tile], of op(b) as [k][COLS].  A tile is ROWS x NV vectors of sums; a
 * step of k loads NV vectors of op(b) and broadcasts one float of op(a) for each row.  The first
 * tile of a panel packs op(b) while it computes, one line of memory a row at a time, so that a
 * product of few rows costs little more than reading its weights; the others find it packed.
 *
 * Every sum starts at 0 and goes up in k, one multiplication with addition a step, on every
 * instruction set and for every number of rows.
 *
 * Written with the compilers' vector types instead of one instruction set's intrinsics: it is also
 * the kernel of CPUs without AVX2.  HZP_WIDE_LANES: floats of a vector, where it is not the
 * instruction set's own.
 */
#include "device/bf16.h"
#include "device/cpu/panel.h"

#include <string.h>
#ifdef __AVX2__
#include <immintrin.h> /* for what compilers make too much of */
#endif

#define HZP_PASTE_(a, b)   a##_##b
#define HZP_PASTE(a, b)    HZP_PASTE_(a, b)
#define HZP_ISA_NAME(name) HZP_PASTE(name, HZP_ISA)
#define INLINE             static inline __attribute__((always_inline))

#ifdef __clang__
#define UNROLL             _Pragma("clang loop unroll(full)")
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define UNROLL             _Pragma("GCC unroll 32")
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors wider than registers stay within this file */
#endif

#ifdef HZP_WIDE_LANES
#define LANES HZP_WIDE_LANES
#elif defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

/* 2 ROWS sums, two vectors of op(b) and one broadcast fill 16 registers, or 32. */
enum {
    VL = LANES,
    NV = 2,
    COLS = NV * VL,
    ROWS = VL == 16  ? 12
           : VL == 8 ? 6
                     : 4,
    CHUNK =
        2 * VL, /* elements of k that are packed at a time: short, so that the CPU begins to pack
                     * the next while sums of this one wait for each other */
    LINE = 64,
};

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef float vf_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef uint16_t vh_any __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

INLINE vf load(const float *p)
{
    return *(const vf_any *)p;
}

INLINE void save(float *p, vf x)
{
    *(vf_any *)p = x;
}

/* VL elements as floats. */
INLINE vf load_as(const void *p, enum hzp_dtype type)
{
    if (type == HZP_F32)
        return load(p);
#if LANES == 8 && defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16);
#else
    return (vf)(__builtin_convertvector(*(const vh_any *)p, vu) << 16);
#endif
}

/* To nearest even, NaN made quiet: hzp_bf16_from_f32. */
INLINE void save_as(void *p, vf x, enum hzp_dtype type)
{
    if (type == HZP_F32) {
        save(p, x);
        return;
    }
    vu u = (vu)x, nan = (vu)(x != x);
    vu up = u + 0x7fff + ((u >> 16) & 1);
    up = (up & ~nan) | ((u | 0x400000) & nan);
#if LANES == 8 && defined(__AVX2__)
    __m256i pairs = _mm256_packus_epi32((__m256i)(up >> 16), (__m256i)(up >> 16));
    _mm_storeu_si128(p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0x08)));
#else
    *(vh_any *)p = __builtin_convertvector(up >> 16, vh);
#endif
}

INLINE size_t size_of(enum hzp_dtype type)
{
    return type == HZP_F32 ? 4 : 2;
}

INLINE float one_of(const struct hzp_mat *mat, int64_t row, int64_t col)
{
    const void *p = hzp_cpu_row(mat, row);
    return mat->type == HZP_F32 ? ((const float *)p)[col]
                                : hzp_bf16_to_f32(((const uint16_t *)p)[col]);
}

/* Into the first-level cache. */
INLINE void fetch(const void *p)
{
    __builtin_prefetch(p, 0, 3);
}

/* Into the second. */
INLINE void fetch_far(const void *p)
{
    __builtin_prefetch(p, 0, 2);
}

INLINE void fetch_to_write(const void *p)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
    __builtin_prefetch(p, 1, 3);
#endif
}

/* Masks of two vectors, the second's lanes counted from VL on: dwords and pairs of dwords taken in
 * turns from either within quarters, and quarters. */
#if LANES == 16
#define LOW_32   0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define HIGH_32  2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define LOW_64   0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_64  2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define EVEN_128 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define ODD_128  4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#elif LANES == 8
#define LOW_32   0, 8, 1, 9, 4, 12, 5, 13
#define HIGH_32  2, 10, 3, 11, 6, 14, 7, 15
#define LOW_64   0, 1, 8, 9, 4, 5, 12, 13
#define HIGH_64  2, 3, 10, 11, 6, 7, 14, 15
#define EVEN_128 0, 1, 2, 3, 8, 9, 10, 11
#define ODD_128  4, 5, 6, 7, 12, 13, 14, 15
#else
#define LOW_32  0, 4, 1, 5
#define HIGH_32 2, 6, 3, 7
#define LOW_64  0, 1, 4, 5
#define HIGH_64 2, 3, 6, 7
#endif

/* r[i], i < VL: lane j of vector i becomes lane i of vector j. */
INLINE void transpose(vu r[VL])
{
    vu t[VL];

    UNROLL
    for (int i = 0; i < VL; i += 2) {
        t[i] = SHUFFLE(r[i], r[i + 1], LOW_32);
        t[i + 1] = SHUFFLE(r[i], r[i + 1], HIGH_32);
    }
    UNROLL
    for (int i = 0; i < VL; i += 4) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            r[i + 2 * h] = SHUFFLE(t[i + h], t[i + h + 2], LOW_64);
            r[i + 2 * h + 1] = SHUFFLE(t[i + h], t[i + h + 2], HIGH_64);
        }
    }
#if LANES == 8
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = SHUFFLE(r[i], r[i + 4], EVEN_128);
        t[i + 4] = SHUFFLE(r[i], r[i + 4], ODD_128);
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        r[i] = t[i];
#elif LANES == 16
    UNROLL
    for (int i = 0; i < 4; i++) {
        UNROLL
        for (int h = 0; h < 2; h++) { /* quarters 0 2 0 2, then 1 3 1 3, of two vectors */
            t[i + 8 * h] = SHUFFLE(r[i + 8 * h], r[i + 8 * h + 4], EVEN_128);
            t[i + 8 * h + 4] = SHUFFLE(r[i + 8 * h], r[i + 8 * h + 4], ODD_128);
        }
    }
    UNROLL
    for (int i = 0; i < 8; i++) {
        r[i] = SHUFFLE(t[i], t[i + 8], EVEN_128);
        r[i + 8] = SHUFFLE(t[i], t[i + 8], ODD_128);
    }
#endif
}

/* A panel's part of op(b): columns n .. n1 of c, elements k0 .. k0+count of k. */
struct part {
    int n, n1, k0, count;
};

struct source {
    const struct hzp_matmul_args *args;
    struct part part;
    const char *at,
        *ahead;    /* element (k0, n) of op(b); the same of the part to fetch, NULL: none */
    size_t stride; /* bytes from one row of b to the next */
};

/* CHUNK elements of k, from the part's element k on. */
typedef void pack_fn(const struct source *s, int k, float *w);

/* b's rows are columns of c: VL rows by VL dwords at a time. */
INLINE void pack_across(const struct source *s, int k, float *w, enum hzp_dtype type)
{
    const size_t size = size_of(type), step = VL * 4 / size;
    const char *from = s->at + (size_t)k * size;

    if (s->ahead && (size_t)k * size % LINE == 0) {
        const char *ahead = s->ahead + (size_t)k * size;
        for (int i = 0; i < COLS; i++, ahead += s->stride) {
            for (size_t line = 0; line < CHUNK * size; line += LINE)
                fetch(ahead + line);
        }
    }
    for (int g = 0; g < NV; g++, from += VL * s->stride, w += VL)
        for (size_t e = 0; e < CHUNK; e += step) {
            float *to = w + e * COLS;
            vu r[VL];
            UNROLL
            for (int i = 0; i < VL; i++)
                r[i] = *(const vu_any *)(from + (size_t)i * s->stride + e * size);
            transpose(r);
            UNROLL
            for (int i = 0; i < VL; i++) {
                if (type == HZP_F32) {
                    save(to + i * COLS, (vf)r[i]);
                } else {
                    save(to + 2 * i * COLS, (vf)(r[i] << 16));
                    save(to + (2 * i + 1) * COLS, (vf)(r[i] & 0xffff0000u));
                }
            }
        }
}

/* b's rows go along c's. */
INLINE void pack_along(const struct source *s, int k, float *w, enum hzp_dtype type)
{
    const char *from = s->at + (size_t)k * s->stride;
    const char *ahead = s->ahead ? s->ahead + (size_t)k * s->stride : NULL;

    for (int i = 0; i < CHUNK; i++, from += s->stride, w += COLS) {
        if (ahead)
            fetch(ahead + (size_t)i * s->stride);
        UNROLL
        for (int v = 0; v < NV; v++)
            save(w + v * VL, load_as(from + (size_t)v * VL * size_of(type), type));
    }
}

static void pack_across_f32(const struct source *s, int k, float *w)
{
    pack_across(s, k, w, HZP_F32);
}
static void pack_across_bf16(const struct source *s, int k, float *w)
{
    pack_across(s, k, w, HZP_BF16);
}
static void pack_along_f32(const struct source *s, int k, float *w)
{
    pack_along(s, k, w, HZP_F32);
}
static void pack_along_bf16(const struct source *s, int k, float *w)
{
    pack_along(s, k, w, HZP_BF16);
}

/* Where fewer columns or fewer elements of k are left; missing columns are 0. */
static void pack_edge(const struct source *s, int k, float *w)
{
    const struct part *p = &s->part;
    const struct hzp_mat *b = &s->args->b;
    int cols = p->n1 - p->n;

    for (int end = HZP_MIN(k + CHUNK, p->count); k < end; k++, w += COLS)
        for (int j = 0; j < COLS; j++)
            w[j] = j >= cols          ? 0.f
                   : s->args->trans_b ? one_of(b, p->n + j, p->k0 + k)
                                      : one_of(b, p->k0 + k, p->n + j);
}

/* One tile's part of a block of k. */
struct tile {
    const float *x; /* [count][mr] */
    float *w;       /* [count][COLS] */
    int count;
    const float *from; /* [mr][COLS] the sums so far; NULL: none */
    float *to;         /* where they go */
    bool only;         /* no other tile reads what is packed */
    pack_fn *pack;     /* packs w's whole chunks; NULL: it is packed */
    const struct source *source;
};

INLINE void steps(int mr, vf acc[ROWS][NV], const float *x, const float *w, int count)
{
    _Pragma("GCC unroll 4") for (int k = 0; k < count; k++, x += mr, w += COLS)
    {
        vf v[NV];
        UNROLL
        for (int j = 0; j < NV; j++)
            v[j] = load(w + j * VL);
        UNROLL
        for (int i = 0; i < mr; i++) {
            float a = x[i];
            UNROLL
            for (int j = 0; j < NV; j++)
                acc[i][j] += a * v[j];
        }
    }
}

INLINE void tile(int mr, const struct tile *t)
{
    vf acc[ROWS][NV];
    int k = 0;

    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < NV; j++)
            acc[i][j] = t->from ? load(t->from + i * COLS + j * VL) : (vf){0};
    }
    for (; t->pack && k < t->count; k += CHUNK) {
        pack_fn *pack = k + CHUNK <= t->count ? t->pack : pack_edge;
        float *w = t->w + (t->only ? 0 : (size_t)k * COLS);
        pack(t->source, k, w);
        steps(mr, acc, t->x + (size_t)k * (size_t)mr, w, HZP_MIN(CHUNK, t->count - k));
    }
    if (k < t->count)
        steps(mr, acc, t->x, t->w, t->count);
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < NV; j++)
            save(t->to + i * COLS + j * VL, acc[i][j]);
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
#if LANES > 4
TILE(5)
TILE(6)
#endif
#if LANES > 8
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
#endif

typedef void tile_fn(const struct tile *t);
static tile_fn *const tiles[ROWS + 1] = {
    NULL,   tile_1, tile_2, tile_3,  tile_4,
#if LANES > 4
    tile_5, tile_6,
#endif
#if LANES > 8
    tile_7, tile_8, tile_9, tile_10, tile_11, tile_12,
#endif
};

INLINE void store_as(const struct hzp_matmul_args *a, int m, int n, int n1, const float *sums,
                     enum hzp_dtype type)
{
    size_t size = size_of(type);
    char *c = (char *)hzp_cpu_row(&a->c, m) + (size_t)n * size;
    const char *bias =
        a->bias.ptr ? (const char *)a->bias.ptr + (size_t)n * size_of(a->bias.type) : NULL;

    if (n1 - n == COLS) {
        UNROLL
        for (int j = 0; j < COLS; j += VL) {
            vf y = load(sums + j);
            if (bias)
                y += load_as(bias + (size_t)j * size_of(a->bias.type), a->bias.type);
            if (a->accumulate)
                y += load_as(c + (size_t)j * size, type);
            save_as(c + (size_t)j * size, y, type);
        }
        return;
    }
    for (int j = 0; j < n1 - n; j++) {
        float y = sums[j];
        if (bias)
            y += one_of(&a->bias, 0, n + j);
        if (a->accumulate)
            y += one_of(&a->c, m, n + j);
        if (type == HZP_F32)
            ((float *)(void *)c)[j] = y;
        else
            ((uint16_t *)(void *)c)[j] = hzp_bf16_from_f32(y);
    }
}

INLINE void store(const struct hzp_matmul_args *a, int m, int n, int n1, const float *sums)
{
    if (a->c.type == HZP_F32)
        store_as(a, m, n, n1, sums, HZP_F32);
    else
        store_as(a, m, n, n1, sums, HZP_BF16);
}

/* Element (k, n) of op(b). */
INLINE const char *b_at(const struct hzp_matmul_args *a, int k, int n)
{
    size_t size = size_of(a->b.type);

    return a->trans_b ? (const char *)hzp_cpu_row(&a->b, n) + (size_t)k * size
                      : (const char *)hzp_cpu_row(&a->b, k) + (size_t)n * size;
}

/* The lines of a part that will be packed next, a few at a time. */
struct fetches {
    const char *at;
    size_t stride;
    int lines, line, left; /* of a row, the next of this row, rows */
};

INLINE struct fetches fetches_of(const struct source *s, struct part part)
{
    int wide = s->args->trans_b ? part.count : part.n1 - part.n;

    return (struct fetches){.at = s->ahead,
                            .stride = s->stride,
                            .lines = HZP_DIV_UP(wide * (int)size_of(s->args->b.type), LINE),
                            .left = s->args->trans_b ? part.n1 - part.n : part.count};
}

INLINE void fetch_some(struct fetches *f, int count)
{
    for (; count > 0 && f->left > 0; count--) {
        fetch_far(f->at + f->line * LINE);
        if (++f->line == f->lines) {
            f->line = 0;
            f->left--;
            f->at += f->stride;
        }
    }
}

INLINE const float *x_part(const struct hzp_panel *p, int b, int k0, int count)
{
    return (const float *)(const void *)p->x + (size_t)k0 * (size_t)p->rows +
           (size_t)hzp_panel_row(p, b) * (size_t)count;
}

/* One panel's part, while the `coming` one is fetched.  sums: [rows][COLS] */
INLINE void part_run(const struct hzp_panel *p, struct part at, struct part coming, float *w,
                     float *sums)
{
    static pack_fn *const packs[2][2] = {{pack_along_f32, pack_along_bf16},
                                         {pack_across_f32, pack_across_bf16}};
    enum {
        AT_ONCE = 2
    }; /* blocks: of so few the coming part is fetched while this one is packed */
    const struct hzp_matmul_args *a = p->args;
    struct source source = {a, at, b_at(a, at.k0, at.n), NULL,
                            (size_t)a->b.stride * size_of(a->b.type)};
    struct tile t = {.w = w, .count = at.count, .source = &source, .only = p->blocks == 1};
    bool last = at.k0 + at.count == p->inner;
    float done[ROWS * COLS]; /* stays in the nearest cache */

    struct fetches fetches = {.left = 0};
    int share = 0;

    t.pack = at.n1 - at.n < COLS ? pack_edge : packs[!!a->trans_b][a->b.type == HZP_BF16];
    if (coming.n1 - coming.n == COLS)
        source.ahead = b_at(a, coming.k0, coming.n);
    if (source.ahead && p->blocks > AT_ONCE) {
        fetches = fetches_of(&source, coming);
        share = HZP_DIV_UP(fetches.lines * fetches.left, p->blocks);
        source.ahead = NULL;
    }
    for (int b = 0; b < p->blocks; b++, t.pack = NULL) {
        int m0 = hzp_panel_row(p, b), mr = hzp_panel_row(p, b + 1) - m0;
        float *part = sums + (size_t)m0 * COLS;
        fetch_some(&fetches, share);
        for (int i = 0; last && i < mr; i++)
            fetch_to_write((const char *)hzp_cpu_row(&a->c, p->m0 + m0 + i) +
                           (size_t)at.n * size_of(a->c.type));
        t.x = x_part(p, b, at.k0, at.count);
        t.from = at.k0 == 0 ? NULL : part;
        t.to = last ? done : part;
        tiles[mr](&t);
        for (int i = 0; last && i < mr; i++)
            store(a, p->m0 + m0 + i, at.n, at.n1, done + i * COLS);
    }
}

/* The part after `at`: where k goes first, the next block of k, else the next panel of the group;
 * after the last the beginning of `next`, which may be none. */
INLINE struct part part_after(const struct hzp_panel *p, struct part at, struct hzp_panel_cols now,
                              struct hzp_panel_cols next)
{
    int k0 = at.k0 + p->k_block, n = at.n1;

    if (p->along) {
        if (k0 < p->inner) {
            n = at.n;
        } else {
            k0 = 0;
            if (n >= now.end)
                now = next, n = next.begin;
        }
    } else if (n < now.end) {
        k0 = at.k0;
    } else if (k0 < p->inner) {
        n = now.begin;
    } else {
        k0 = 0;
        now = next;
        n = next.begin;
    }
    return (struct part){n, HZP_MIN(n + COLS, now.end), k0, HZP_MIN(p->k_block, p->inner - k0)};
}

/* One row of c, b's rows its columns: what is transposed is multiplied at once.  Sums of ROW_GROUPS
 * vectors are accumulated at once, because each addition to a sum waits for the one before it. */
enum {
    ROW_GROUPS = 4,
    ROW_COLS = ROW_GROUPS * VL,
    ROW_AHEAD = 256, /* bytes of each of b's rows between what is read and what is fetched */
};

/* VL dwords of VL rows of b, times x, which has as many elements.  (The compiler would keep
 * broadcasts of x for all groups, on the stack: each group is a turn of a loop that it cannot see
 * through.) */
INLINE vf row_step(vf acc, const float *x, const char *from, size_t stride, enum hzp_dtype type)
{
    vu r[VL];

    UNROLL
    for (int i = 0; i < VL; i += 4) {
        r[i] = *(const vu_any *)from;
        r[i + 1] = *(const vu_any *)(from + stride);
        r[i + 2] = *(const vu_any *)(from + 2 * stride);
        r[i + 3] = *(const vu_any *)(from + 3 * stride);
        from += 4 * stride;
    }
    transpose(r);
    UNROLL
    for (int i = 0; i < VL; i++) {
        if (type == HZP_F32) {
            acc += x[i] * (vf)r[i];
        } else {
            acc += x[2 * i] * (vf)(r[i] << 16);
            acc += x[2 * i + 1] * (vf)(r[i] & 0xffff0000u);
        }
    }
    return acc;
}

/* Columns n .. n + ROW_COLS; ahead: where the next ROW_COLS begin. */
INLINE void row_cols(const struct hzp_panel *p, int n, const char *ahead, float *sums,
                     enum hzp_dtype type)
{
    const size_t size = size_of(type), stride = (size_t)p->args->b.stride * size;
    const int step = (int)(VL * 4 / size), line = (int)(LINE / size);
    const float *x = (const float *)(const void *)p->x;
    const char *from = b_at(p->args, 0, n);
    int k = 0;

    for (int g = 0; g < ROW_GROUPS; g++)
        save(sums + g * VL, (vf){0});
    for (; k + step <= p->inner; k += step) {
        size_t at = (size_t)k * size, next = at + ROW_AHEAD, end = (size_t)p->inner * size;
        const char *f = next < end ? from + next : ahead + HZP_MIN(next - end, end), *w = from + at;
        int fetches = k % line == 0 ? VL : 0;
        for (int g = 0; g < ROW_GROUPS; g++, w += VL * stride) {
            for (int i = 0; i < fetches; i++, f += stride)
                fetch(f);
            save(sums + g * VL, row_step(load(sums + g * VL), x + k, w, stride, type));
            __asm__ volatile("" : : : "memory");
        }
    }
    if (k == p->inner)
        return;
    char last[VL][VL * 4]; /* 0 times 0 changes no sum */
    float xs[2 * VL] = {0};
    memset(last, 0, sizeof(last));
    memcpy(xs, x + k, (size_t)(p->inner - k) * sizeof(*x));
    for (int g = 0; g < ROW_GROUPS; g++) {
        for (int i = 0; i < VL; i++)
            memcpy(last[i], from + (size_t)(g * VL + i) * stride + (size_t)k * size,
                   (size_t)(p->inner - k) * size);
        save(sums + g * VL, row_step(load(sums + g * VL), xs, last[0], sizeof(last[0]), type));
    }
}

static void row_cols_f32(const struct hzp_panel *p, int n, const char *ahead, float *sums)
{
    row_cols(p, n, ahead, sums, HZP_F32);
}

static void row_cols_bf16(const struct hzp_panel *p, int n, const char *ahead, float *sums)
{
    row_cols(p, n, ahead, sums, HZP_BF16);
}

/* Returns the first column that is left. */
static int row_run(const struct hzp_panel *p, struct hzp_panel_cols now, struct hzp_panel_cols next)
{
    int n = now.begin;

    for (; n + ROW_COLS <= now.end; n += ROW_COLS) {
        float sums[ROW_COLS];
        int after = n + 2 * ROW_COLS <= now.end         ? n + ROW_COLS
                    : next.end - next.begin >= ROW_COLS ? next.begin
                                                        : n; /* nothing new */
        if (p->args->b.type == HZP_F32)
            row_cols_f32(p, n, b_at(p->args, 0, after), sums);
        else
            row_cols_bf16(p, n, b_at(p->args, 0, after), sums);
        for (int c = 0; c < ROW_COLS; c += COLS)
            store(p->args, p->m0, n + c, n + c + COLS, sums + c);
    }
    return n;
}

static void wide_run(const struct hzp_panel *p, struct hzp_panel_cols now,
                     struct hzp_panel_cols next, void *own)
{
    float *sums = (float *)(void *)((char *)own + p->w_bytes);

    if (p->rows == 1 && p->args->trans_b) {
        now.begin = row_run(p, now, next);
        if (now.begin == now.end)
            return;
    }
    int blocks = HZP_MAX(HZP_DIV_UP(p->inner, p->k_block), 1);
    int parts = blocks * HZP_DIV_UP(now.end - now.begin, COLS);
    struct part at = {now.begin, HZP_MIN(now.begin + COLS, now.end), 0,
                      HZP_MIN(p->k_block, p->inner)};

    for (int i = 0; i < parts; i++) {
        struct part coming = part_after(p, at, now, next);
        size_t panel = p->along ? 0 : (size_t)(at.n - now.begin) / COLS;
        part_run(p, at, coming, own, sums + panel * (size_t)p->rows * COLS);
        at = coming;
    }
}

/* mr rows of a, which go along k, as [k][mr]. */
INLINE void x_across(const struct hzp_mat *a, int m, int mr, int k0, int count, float *to,
                     enum hzp_dtype type)
{
    const size_t size = size_of(type);
    const int step = (int)(VL * 4 / size);
    const char *from[VL];
    int k = 0;

    for (int i = 0; i < VL; i++)
        from[i] = (const char *)hzp_cpu_row(a, m + HZP_MIN(i, mr - 1)) + (size_t)k0 * size;
    for (; k + step <= count; k += step) {
        float *p = to + (size_t)k * (size_t)mr;
        /* what a store writes beyond mr floats belongs to later elements of k, if there are any */
        bool spill = (count - k - step + 1) * mr >= VL;
        vu r[VL];
        vf y[2 * VL];
        UNROLL
        for (int i = 0; i < VL; i++)
            r[i] = *(const vu_any *)(from[i] + (size_t)k * size);
        transpose(r);
        UNROLL
        for (int i = 0; i < VL; i++) {
            if (type == HZP_F32) {
                y[i] = (vf)r[i];
            } else {
                y[2 * i] = (vf)(r[i] << 16);
                y[2 * i + 1] = (vf)(r[i] & 0xffff0000u);
            }
        }
        if (spill) {
            UNROLL
            for (int i = 0; i < step; i++)
                save(p + i * mr, y[i]);
        } else {
            for (int i = 0; i < step; i++)
                memcpy(p + i * mr, &y[i], (size_t)mr * sizeof(*p));
        }
    }
    for (; k < count; k++)
        for (int i = 0; i < mr; i++)
            to[(size_t)k * (size_t)mr + (size_t)i] = one_of(a, m + i, k0 + k);
}

/* Elements k .. end of mr columns of a, whose rows go along m. */
INLINE void x_along(const struct hzp_mat *a, int m, int mr, int k0, int k, int end, int count,
                    float *to, enum hzp_dtype type)
{
    const char *from = (const char *)hzp_cpu_row(a, k0) + (size_t)m * size_of(type);
    size_t stride = (size_t)a->stride * size_of(type);

    for (int i = end; i < HZP_MIN(2 * end - k, count); i++)
        fetch(from + (size_t)i * stride);
    for (; k < end; k++) {
        float *p = to + (size_t)k * (size_t)mr;
        if (m + VL <= a->cols && (count - k) * mr >= VL) {
            save(p, load_as(from + (size_t)k * stride, type));
            continue;
        }
        for (int i = 0; i < mr; i++)
            p[i] = one_of(a, k0 + k, m + i);
    }
}

INLINE void pack_as(const struct hzp_panel *p, int begin, int end, enum hzp_dtype type)
{
    enum { AT_ONCE = 8 }; /* rows of a: as many of its lines as one set of the cache holds */
    const struct hzp_matmul_args *a = p->args;

    for (int k0 = 0; k0 < p->inner; k0 += p->k_block) {
        int count = HZP_MIN(p->k_block, p->inner - k0);
        for (int k = 0; k < count; k += a->trans_a ? AT_ONCE : count)
            for (int b = begin; b < end; b++) {
                int m0 = hzp_panel_row(p, b), mr = hzp_panel_row(p, b + 1) - m0;
                float *to = (float *)(void *)p->x +
                            (x_part(p, b, k0, count) - (const float *)(const void *)p->x);
                if (a->trans_a)
                    x_along(&a->a, p->m0 + m0, mr, k0, k, HZP_MIN(k + AT_ONCE, count), count, to,
                            type);
                else
                    x_across(&a->a, p->m0 + m0, mr, k0, count, to, type);
            }
    }
}

static void wide_pack(const struct hzp_panel *p, int begin, int end)
{
    if (p->args->a.type == HZP_F32)
        pack_as(p, begin, end, HZP_F32);
    else
        pack_as(p, begin, end, HZP_BF16);
}

const struct hzp_panel_kernels HZP_ISA_NAME(hzp_cpu_wide) = {
    .rows = ROWS, .cols = COLS, .word = 1, .run = wide_run, .pack = wide_pack};
