/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/few_tmpl.c - products x W^T of few rows, F32 and BF16 in F32 arithmetic.
 *
 * Written with the compilers' vector types, as wide_tmpl.c is.
 */
#include "device/cpu/few.h"
#include "device/cpu/wide_tmpl.h"

enum {
    DWORDS = LINE / 4, /* in a cache line */
    ROW_COLS = 2 * VL, /* columns of a product of one row */
    STRIP = 3 * VL,    /* and of more rows */
    PIECE_BYTES =
        128 << 10, /* piece of W that is read while the next comes into the second cache */
    AHEAD = 256,   /* bytes of a row between what is read and what is fetched */
    VECTORS_MAX = HZP_FEW_VECTORS,
    TILE_COLS = 12,
};

INLINE const char *w_row(const struct hzp_matmul_args *a, int n)
{
    return hzp_cpu_row(&a->b, n);
}

/* Reads and writes of memory stay before or behind it. */
#define IN_ORDER __asm__ volatile("" : : : "memory")

/* The vector is made here, in a register, and seen as new. */
#if defined(__AVX512F__)
#define OPAQUE(x) __asm__ volatile("" : "+v"(x))
#elif defined(__x86_64__) && (LANES == 4 || (LANES == 8 && defined(__AVX__)))
#define OPAQUE(x) __asm__ volatile("" : "+x"(x))
#else
#define OPAQUE(x) IN_ORDER
#endif

typedef uint32_t quad __attribute__((vector_size(16)));
typedef uint32_t quad_any __attribute__((vector_size(16), aligned(1), may_alias));

/* Rows 0, 4, .. of w, 16 bytes of each. */
INLINE vu quads(const char *w, size_t stride)
{
    const quad a = *(const quad_any *)w;
#if LANES == 4
    return a;
#else
    const quad b = *(const quad_any *)(w + 4 * stride);
#if LANES == 8
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
#else
    typedef uint32_t half __attribute__((vector_size(32)));
    const quad c = *(const quad_any *)(w + 8 * stride), d = *(const quad_any *)(w + 12 * stride);
    const half low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
    const half high = __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7);
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
#endif
}

/* Four dwords of VL rows of w: r[i] has dword i of each. */
INLINE void turn(const char *w, size_t stride, vu r[4])
{
    vu a = quads(w, stride), b = quads(w + stride, stride);
    vu c = quads(w + 2 * stride, stride), d = quads(w + 3 * stride, stride);
    vu ab = SHUFFLE(a, b, LOW_32), cd = SHUFFLE(c, d, LOW_32);

    r[0] = SHUFFLE(ab, cd, LOW_64);
    r[1] = SHUFFLE(ab, cd, HIGH_64);
    ab = SHUFFLE(a, b, HIGH_32), cd = SHUFFLE(c, d, HIGH_32);
    r[2] = SHUFFLE(ab, cd, LOW_64);
    r[3] = SHUFFLE(ab, cd, HIGH_64);
}

/* One row by a line of each of ROW_COLS rows of w, added to sums, while as many lines are fetched,
 * `apart` bytes from each other: a few at a time, or loads wait behind them.  Two vectors of sums
 * go side by side because each addition to a sum waits for the one before it. */
INLINE void row_line(const float *x, const char *w, size_t stride, const char *ahead, size_t apart,
                     bool near, float *sums, enum hzp_dtype type)
{
    vf s0 = load(sums), s1 = load(sums + VL);

    UNROLL
    for (int d = 0; d < DWORDS; d += 4, w += 16, x += 16 / size_of(type)) {
        vu r[4], q[4];
        for (int i = 0; i < ROW_COLS / 4; i++, ahead += apart)
            if (near)
                fetch_near(ahead);
            else
                fetch_far(ahead);
        IN_ORDER; /* or compilers gather what is fetched */
        turn(w, stride, r);
        turn(w + VL * stride, stride, q);
        UNROLL
        for (int i = 0; i < 4; i++) {
            if (type == HZP_F32) {
                s0 += x[i] * (vf)r[i];
                s1 += x[i] * (vf)q[i];
            } else {
                s0 += x[2 * i] * (vf)(r[i] << 16);
                s1 += x[2 * i] * (vf)(q[i] << 16);
                s0 += x[2 * i + 1] * (vf)(r[i] & 0xffff0000u);
                s1 += x[2 * i + 1] * (vf)(q[i] & 0xffff0000u);
            }
        }
    }
    save(sums, s0);
    save(sums + VL, s1);
}

/* ROW_COLS rows of W, `stride` bytes from each other, and those that are read next. */
struct piece {
    const char *w, *next;
    size_t stride, next_stride;
    bool in_order; /* both are memory without gaps: it is fetched from its beginning on */
};

/* near: the rows are far from each other, and each is fetched into the first cache, a little ahead
 * of where it is read. */
INLINE void row_piece(const struct piece *p, size_t bytes, const float *x, float *sums, bool near,
                      enum hzp_dtype type)
{
    const size_t size = size_of(type);
    char last[ROW_COLS * LINE]; /* 0 times 0 changes no sum */
    size_t at = 0;

    save(sums, (vf){0});
    save(sums + VL, (vf){0});
    for (; at + LINE <= bytes; at += LINE, x += LINE / size) {
        size_t next = at + AHEAD;
        const char *f = p->w + next;
        size_t apart = p->stride;
        if (p->in_order) {
            f = p->next + at * ROW_COLS;
            apart = LINE;
        } else if (next >= bytes) {
            f = p->next + HZP_MIN(next - bytes, bytes - 1);
            apart = p->next_stride;
        }
        row_line(x, p->w + at, p->stride, f, apart, near, sums, type);
    }
    if (at == bytes)
        return;
    memset(last, 0, sizeof(last));
    for (int i = 0; i < ROW_COLS; i++)
        memcpy(last + i * LINE, p->w + (size_t)i * p->stride + at, bytes - at);
    row_line(x, last, LINE, last, LINE, near, sums, type); /* x is padded with zeros */
}

#define ROW_PIECE(name, near, type)                                                                \
    static __attribute__((noinline)) void row_piece_##name(const struct piece *p, size_t bytes,    \
                                                           const float *x, float *sums)            \
    {                                                                                              \
        row_piece(p, bytes, x, sums, near, type);                                                  \
    }
ROW_PIECE(f32, false, HZP_F32)
ROW_PIECE(bf16, false, HZP_BF16)
ROW_PIECE(near_f32, true, HZP_F32)
ROW_PIECE(near_bf16, true, HZP_BF16)

/* The columns that are read after those that end at `end`; after the last what follows W in memory,
 * often the next product's. */
INLINE int columns_after(const struct hzp_matmul_args *a, int end, struct hzp_stretch now,
                         struct hzp_stretch next)
{
    return end < now.end ? end : next.begin < next.end ? next.begin : a->c.cols;
}

/* The columns now.begin .. now.end, ROW_COLS neighbours at a time. */
static void row_near(const struct hzp_matmul_args *a, struct hzp_stretch now,
                     struct hzp_stretch next, const float *x)
{
    const size_t size = size_of(a->b.type), stride = (size_t)a->b.stride * size;
    const size_t bytes = (size_t)a->a.cols * size;
    struct piece p = {.stride = stride,
                      .next_stride = stride,
                      .in_order = stride == bytes && bytes * ROW_COLS <= PIECE_BYTES};

    for (int n = now.begin, end; n < now.end; n = end) {
        /* the last columns together with some before them */
        int first = HZP_MIN(n, a->c.cols - ROW_COLS);
        float sums[ROW_COLS];
        end = HZP_MIN(n + ROW_COLS, now.end);
        p.w = w_row(a, first);
        p.next = w_row(a, columns_after(a, end, now, next));
        if (a->b.type == HZP_F32)
            row_piece_f32(&p, bytes, x, sums);
        else
            row_piece_bf16(&p, bytes, x, sums);
        store(a, 0, n, end, ROW_COLS, sums + (n - first));
    }
}

/* The steps of a range, each a column of each of ROW_COLS streams through W: a CPU that recognises
 * streams fetches them far better than rows side by side, which begin anew every few lines. */
static void streams_run(const struct hzp_few *few, struct hzp_range *range, const void *own)
{
    const struct hzp_matmul_args *a = few->args;
    const size_t size = size_of(a->b.type), stride = (size_t)a->b.stride * size;
    const size_t bytes = (size_t)a->a.cols * size;
    int step = hzp_range_next(range), count = 0;
    float done[ROW_COLS][VL];

    if (step < 0)
        return;
    /* the thread whose streams these are: the first ones' are longer */
    int border = hzp_few_step(few, few->longer);
    int thread =
        step < border ? step / (few->streams + 2) : few->longer + (step - border) / few->streams;
    int cols = few->streams + 2 * (thread < few->longer), begin = hzp_few_step(few, thread);
    int n = begin * ROW_COLS + step - begin;
    struct piece p = {.stride = stride * (size_t)cols, .next_stride = stride * (size_t)cols};

    do {
        float sums[ROW_COLS];
        p.w = w_row(a, n + count);
        p.next = p.w + stride;
        if (a->b.type == HZP_F32)
            row_piece_near_f32(&p, bytes, own, sums);
        else
            row_piece_near_bf16(&p, bytes, own, sums);
        for (int s = 0; s < ROW_COLS; s++)
            done[s][count] = sums[s];
        count++;
        step = hzp_range_next(range);
        if (step >= 0 && count < VL)
            continue;
        for (int s = 0; s < ROW_COLS; s++)
            store(a, 0, n + s * cols, n + s * cols + count, VL, done[s]);
        n += count;
        count = 0;
    } while (step >= 0);
}

/* What one tile reads.  x: [k][nv * VL]; the lines of memory that are read next are `apart` bytes
 * from each other, nc of them for each line of w's rows. */
struct tile {
    const float *x;
    const char *w, *ahead;
    size_t stride, apart,
        along; /* bytes: from row to row of w; lines to fetch, of one turn, turns */
    int count;
};

/* A line of each of nc rows, all even elements of a vector before its odd ones.  Widened element
 * by element, as they are broadcast, they took a fifth of the product. */
INLINE void line_widen(int nc, const char *w, size_t stride, float *to)
{
    UNROLL
    for (int c = 0; c < nc; c++, w += stride, to += 2 * DWORDS) {
        UNROLL
        for (int d = 0; d < DWORDS; d += VL) {
            vf y[4];
            widen(*(const vu_any *)(w + d * 4), HZP_BF16, y);
            save(to + 2 * d, y[0]);
            save(to + 2 * d + VL, y[1]);
        }
    }
}

/* One element of each row of w, `apart` bytes from each other. */
INLINE void tile_step(int nv, int nc, const float *x, const char *w, size_t apart,
                      vf acc[TILE_COLS][VECTORS_MAX], enum hzp_dtype type)
{
    vf xs[VECTORS_MAX];

    UNROLL
    for (int v = 0; v < nv; v++) {
        xs[v] = load(x + v * VL);
        if (nv <= 2)
            OPAQUE(xs[v]); /* in a register, or it is loaded for each column; of more the compiler
                            * must be free to choose */
    }
    UNROLL
    for (int c = 0; c < nc; c++) {
        const void *at = w + (size_t)c * apart;
        float y = type == HZP_F32 ? *(const float *)at : hzp_bf16_to_f32(*(const uint16_t *)at);
        UNROLL
        for (int v = 0; v < nv; v++) {
            acc[c][v] += y * xs[v];
            OPAQUE(acc[c][v]);
        }
    }
}

INLINE void tile(int nv, int nc, const struct tile *t, float *to, enum hzp_dtype type)
{
    const int line = LINE / (int)size_of(type), wide = nv * VL;
    const char *w = t->w, *ahead = t->ahead;
    const float *x = t->x;
    vf acc[TILE_COLS][VECTORS_MAX];
    int k = 0;

    UNROLL
    for (int c = 0; c < nc; c++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            acc[c][v] = (vf){0};
    }
    for (; k + line <= t->count; k += line, w += LINE, ahead += t->along) {
        _Alignas(LINE) float y[TILE_COLS * 2 * DWORDS];
        for (int c = 0; c < nc; c++)
            fetch_far(ahead + (size_t)c * t->apart);
        if (type == HZP_F32) {
            for (int e = 0; e < DWORDS; e++, x += wide)
                tile_step(nv, nc, x, w + e * 4, t->stride, acc, HZP_F32);
            continue;
        }
        line_widen(nc, w, t->stride, y);
        for (int d = 0; d < 2 * DWORDS; d += 2 * VL)
            for (int e = d; e < d + VL; e++, x += 2 * wide) {
                const char *even = (const char *)(y + e), *odd = (const char *)(y + VL + e);
                tile_step(nv, nc, x, even, 2 * LINE, acc, HZP_F32);
                tile_step(nv, nc, x + wide, odd, 2 * LINE, acc, HZP_F32);
            }
    }
    for (; k < t->count; k++, x += wide, w += size_of(type))
        tile_step(nv, nc, x, w, t->stride, acc, type);
    UNROLL
    for (int c = 0; c < nc; c++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            save(to + (c * nv + v) * VL, acc[c][v]);
    }
}

#define TILE(nv, nc, name, type)                                                                   \
    static __attribute__((noinline)) void tile_##nv##_##name(const struct tile *t, float *to)      \
    {                                                                                              \
        tile(nv, nc, t, to, type);                                                                 \
    }
#define TILES(nv, nc) TILE(nv, nc, f32, HZP_F32) TILE(nv, nc, bf16, HZP_BF16)
TILES(1, 12)
TILES(2, 6)
TILES(3, 4)

typedef void tile_fn(const struct tile *t, float *to);

/* A strip of c: sums is [columns][nv * VL]. */
INLINE void strip_store(const struct hzp_matmul_args *a, int nv, int n, int end, const float *sums)
{
    for (; n < end; n += VL, sums += VL * nv * VL)
        for (int v = 0; v * VL < a->c.rows; v++) {
            vu r[VL];
            UNROLL
            for (int i = 0; i < VL; i++)
                r[i] = (vu)load(sums + (i * nv + v) * VL);
            transpose(r);
            for (int i = 0; i < VL && v * VL + i < a->c.rows; i++) {
                float y[VL];
                save(y, (vf)r[i]);
                store(a, v * VL + i, n, HZP_MIN(n + VL, end), VL, y);
            }
        }
}

static void rows_run(const struct hzp_few *few, struct hzp_stretch now, struct hzp_stretch next,
                     const float *x)
{
    static tile_fn *const f32[] = {NULL, tile_1_f32, tile_2_f32, tile_3_f32};
    static tile_fn *const bf16[] = {NULL, tile_1_bf16, tile_2_bf16, tile_3_bf16};
    const struct hzp_matmul_args *a = few->args;
    const size_t size = size_of(a->b.type), stride = (size_t)a->b.stride * size;
    const int nv = few->vectors, nc = TILE_COLS / nv, inner = a->a.cols;
    const bool lined_up = stride == (size_t)inner * size;
    tile_fn *run = (a->b.type == HZP_F32 ? f32 : bf16)[nv];
    struct tile t = {.x = x,
                     .stride = stride,
                     .apart = lined_up ? LINE : stride,
                     .along = lined_up ? (size_t)nc * LINE : LINE,
                     .count = inner};
    float sums[(STRIP + VL) * VECTORS_MAX * VL]; /* strip_store reads whole vectors of columns */

    memset(sums + STRIP * nv * VL, 0, sizeof(*sums) * (size_t)(VL * nv * VL));
    for (int n = now.begin, end; n < now.end; n = end) {
        end = HZP_MIN(n + STRIP, now.end);
        int first = HZP_MIN(n, a->c.cols - STRIP), skip = n - first;
        int after = columns_after(a, end, now, next);
        for (int c = 0; c < STRIP; c += nc) {
            t.w = w_row(a, first + c);
            t.ahead = w_row(a, after + c);
            run(&t, sums + c * nv * VL);
        }
        strip_store(a, nv, n, end, sums + skip * nv * VL);
    }
}

/* x transposed: VL rows by a vector's dwords at a time; lanes without a row get the last one. */
INLINE void x_turn(const struct hzp_few *few, float *to, enum hzp_dtype type)
{
    const struct hzp_mat *x = &few->args->a;
    const size_t size = size_of(type);
    const int step = (int)(VL * 4 / size), wide = few->vectors * VL;

    for (int v = 0; v < few->vectors; v++, to += VL) {
        const char *from[VL];
        int k = 0;
        for (int i = 0; i < VL; i++)
            from[i] = hzp_cpu_row(x, HZP_MIN(v * VL + i, x->rows - 1));
        for (; k + step <= x->cols; k += step) {
            vu r[VL];
            vf y[4 * VL];
            UNROLL
            for (int i = 0; i < VL; i++)
                r[i] = *(const vu_any *)(from[i] + (size_t)k * size);
            transpose(r);
            UNROLL
            for (int i = 0; i < VL; i++)
                widen(r[i], type, y + (size_t)i * (4 / size));
            UNROLL
            for (int i = 0; i < step; i++)
                save(to + (size_t)(k + i) * (size_t)wide, y[i]);
        }
        for (; k < x->cols; k++)
            for (int i = 0; i < VL; i++)
                to[(size_t)k * (size_t)wide + (size_t)i] =
                    one_of(x, HZP_MIN(v * VL + i, x->rows - 1), k);
    }
}

static void few_start(const struct hzp_few *few, void *own)
{
    const struct hzp_mat *x = &few->args->a;
    float *to = own;
    int k = 0;

    if (few->vectors && x->type == HZP_F32) {
        x_turn(few, to, HZP_F32);
    } else if (few->vectors) {
        x_turn(few, to, HZP_BF16);
    } else {
        const char *from = hzp_cpu_row(x, 0);
        for (; k + VL <= x->cols; k += VL)
            save(to + k, load_as(from + (size_t)k * size_of(x->type), x->type));
        for (; k < x->cols; k++)
            to[k] = one_of(x, 0, k);
        for (; k < HZP_ROUND_UP(x->cols, LINE / 2); k++)
            to[k] = 0.f;
    }
}

static void few_run(const struct hzp_few *few, struct hzp_stretch now, struct hzp_stretch next,
                    void *own)
{
    if (few->vectors)
        rows_run(few, now, next, own);
    else
        row_near(few->args, now, next, own);
}

const struct hzp_few_kernels HZP_ISA_NAME(hzp_cpu_few) = {
    .lanes = VL,
    .strip = STRIP,
#if LANES == 8
    .least = {[1] = 8, [2] = 13, [3] = 23}, /* measured with AVX2 */
#elif LANES == 16
    .least = {[1] = 10, [2] = 24, [3] = 44}, /* with AVX-512 on AMD's Zen 4 */
#endif
    .streams = ROW_COLS,
    .start = few_start,
    .run = few_run,
    .run_streams = streams_run};
