/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/wide_tmpl.c - products in F32 arithmetic of F32 or BF16 operands, any transposition,
 * and of E4M3 ones, forward.
 *
 * Both operands are copied into floats, narrower types are widened on the way, and so are
 * transpositions done:
 * of op(a) as [k][rows of a tile], of op(b) as [k][COLS].  A tile is ROWS x NV vectors of sums; a
 * step of k loads NV vectors of op(b) and broadcasts one float of op(a) for each row.  The first
 * tile of a panel packs op(b) while it computes, one line of memory a row at a time, so that a
 * product of few rows costs little more than reading its weights; the others find it packed.
 *
 * Every sum starts at 0 and goes up in k, one multiplication with addition a step, on every
 * instruction set and for every number of rows.
 *
 * Written with the compilers' vector types instead of one instruction set's intrinsics: it is also
 * the kernel of CPUs without AVX2.
 */
#include "device/cpu/wide_tmpl.h"

/* A panel's part of op(b): columns n .. n1 of c, elements k0 .. k0+count of k. */
struct part {
    int n, n1, k0, count;
};

struct source {
    const struct hzp_matmul_args *args;
    struct part part;
    const char *at,
        *ahead;       /* element (k0, n) of op(b); the same of the part to fetch, NULL: none */
    const char *line; /* what is fetched instead, line by line: as many bytes as are packed */
    size_t stride;    /* bytes from one row of b to the next */
};

/* A chunk of elements of k, from the part's element k on. */
typedef void pack_fn(const struct source *s, int k, float *w);

/* b's rows are columns of c: VL rows by VL dwords at a time. */
INLINE void pack_across(const struct source *s, int k, float *w, enum hzp_dtype type)
{
    const size_t size = size_of(type), step = VL * 4 / size, chunk = (size_t)chunk_of(type);
    const char *from = s->at + (size_t)k * size;

    if (s->line) {
        const char *line = s->line + (size_t)k * COLS * size;
        for (size_t i = 0; i < chunk * COLS * size; i += LINE)
            fetch_far(line + i);
    } else if (s->ahead && (size_t)k * size % LINE == 0) {
        const char *ahead = s->ahead + (size_t)k * size;
        for (int i = 0; i < COLS; i++, ahead += s->stride) {
            for (size_t line = 0; line < chunk * size; line += LINE)
                fetch_near(ahead + line);
        }
    }
    for (int g = 0; g < NV; g++, from += VL * s->stride, w += VL)
        for (size_t e = 0; e < chunk; e += step) {
            float *to = w + e * COLS;
            vf y[4];
            vu r[VL];
            UNROLL
            for (int i = 0; i < VL; i++)
                r[i] = *(const vu_any *)(from + (size_t)i * s->stride + e * size);
            transpose(r);
            UNROLL
            for (int i = 0; i < VL; i++) {
                widen(r[i], type, y);
                /* no UNROLL: F32 has one turn, and gcc warns of a loop that is gone */
                for (size_t h = 0; h < 4 / size; h++, to += COLS)
                    save(to, y[h]);
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
            fetch_near(ahead + (size_t)i * s->stride);
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
static void pack_across_e4m3(const struct source *s, int k, float *w)
{
    pack_across(s, k, w, HZP_E4M3);
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
    int cols = p->n1 - p->n, chunk = chunk_of(b->type);

    for (int end = HZP_MIN(k + chunk, p->count); k < end; k++, w += COLS)
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
    int chunk;         /* elements of k that are packed at a time */
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
    for (; t->pack && k < t->count; k += t->chunk) {
        pack_fn *pack = k + t->chunk <= t->count ? t->pack : pack_edge;
        float *w = t->w + (t->only ? 0 : (size_t)k * COLS);
        pack(t->source, k, w);
        steps(mr, acc, t->x + (size_t)k * (size_t)mr, w, HZP_MIN(t->chunk, t->count - k));
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
    int lines, line, left; /* lines of a row, the next line of this row, rows left */
};

INLINE struct fetches fetches_of(const struct source *s, struct part part)
{
    int wide = s->args->trans_b ? part.count : part.n1 - part.n;

    return (struct fetches){.at = s->ahead,
                            .stride = s->stride,
                            .lines = HZP_DIV_UP(wide * (int)size_of(s->args->b.type), LINE),
                            .left = s->args->trans_b ? part.n1 - part.n : part.count};
}

/* As many bytes as part `at` has, from source->line on. */
INLINE struct fetches lines_of(const struct source *s, struct part at)
{
    size_t bytes = (size_t)at.count * COLS * size_of(s->args->b.type);

    return (struct fetches){
        .at = s->line, .lines = (int)HZP_DIV_UP(bytes, (size_t)LINE), .left = 1};
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

/* One panel's part, while the `coming` one is fetched, or as much from `line` on.  sums:
 * [rows][COLS] */
INLINE void part_run(const struct hzp_panel *p, struct part at, struct part coming,
                     const char *line, float *w, float *sums)
{
    static pack_fn *const along[] = {[HZP_F32] = pack_along_f32, [HZP_BF16] = pack_along_bf16};
    static pack_fn *const across[] = {
        [HZP_F32] = pack_across_f32, [HZP_BF16] = pack_across_bf16, [HZP_E4M3] = pack_across_e4m3};
    enum {
        AT_ONCE = 2
    }; /* blocks: of so few the coming part is fetched while this one is packed */
    const struct hzp_matmul_args *a = p->args;
    struct source source = {a,    at,   b_at(a, at.k0, at.n),
                            NULL, line, (size_t)a->b.stride * size_of(a->b.type)};
    struct tile t = {.w = w,
                     .count = at.count,
                     .chunk = chunk_of(a->b.type),
                     .source = &source,
                     .only = p->blocks == 1};
    bool last = at.k0 + at.count == p->inner;
    float done[ROWS * COLS]; /* stays in the nearest cache */

    struct fetches fetches = {.left = 0};
    int share = 0;

    t.pack = at.n1 - at.n < COLS ? pack_edge : a->trans_b ? across[a->b.type] : along[a->b.type];
    if (coming.n1 - coming.n == COLS)
        source.ahead = b_at(a, coming.k0, coming.n);
    if ((source.ahead || line) && p->blocks > AT_ONCE) {
        fetches = line ? lines_of(&source, at) : fetches_of(&source, coming);
        share = HZP_DIV_UP(fetches.lines * fetches.left, p->blocks);
        source.ahead = source.line = NULL;
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
            store(a, p->m0 + m0 + i, at.n, at.n1, COLS, done + i * COLS);
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

/* Where b's rows follow each other in memory without a gap, panels do too, each packed as a whole
 * before the next: part `at` of the next one, as long in bytes, which is fetched in the order of
 * memory; NULL: there is none.  Rows fetched in turns are 16 streams, which the CPU does not
 * recognise: a product of four rows took a quarter longer so. */
INLINE const char *next_panel(const struct hzp_panel *p, struct part at, struct hzp_panel_cols now,
                              struct hzp_panel_cols next)
{
    const struct hzp_matmul_args *a = p->args;
    int n = at.n1 < now.end ? at.n1 : next.begin, end = at.n1 < now.end ? now.end : next.end;

    if (!p->along || !a->trans_b || a->b.stride != p->inner || end - n < COLS)
        return NULL;
    return b_at(a, 0, n) + (size_t)at.k0 * COLS * size_of(a->b.type);
}

static void wide_run(const struct hzp_panel *p, struct hzp_panel_cols now,
                     struct hzp_panel_cols next, void *own)
{
    float *sums = (float *)(void *)((char *)own + p->w_bytes);

    int blocks = HZP_MAX(HZP_DIV_UP(p->inner, p->k_block), 1);
    int parts = blocks * HZP_DIV_UP(now.end - now.begin, COLS);
    struct part at = {now.begin, HZP_MIN(now.begin + COLS, now.end), 0,
                      HZP_MIN(p->k_block, p->inner)};

    for (int i = 0; i < parts; i++) {
        struct part coming = part_after(p, at, now, next);
        size_t panel = p->along ? 0 : (size_t)(at.n - now.begin) / COLS;
        part_run(p, at, coming, next_panel(p, at, now, next), own,
                 sums + panel * (size_t)p->rows * COLS);
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
        vf y[4 * VL];
        UNROLL
        for (int i = 0; i < VL; i++)
            r[i] = *(const vu_any *)(from[i] + (size_t)k * size);
        transpose(r);
        UNROLL
        for (int i = 0; i < VL; i++)
            widen(r[i], type, y + (size_t)i * (4 / size));
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
        fetch_near(from + (size_t)i * stride);
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
    else if (p->args->a.type == HZP_BF16)
        pack_as(p, begin, end, HZP_BF16);
    else
        pack_as(p, begin, end, HZP_E4M3);
}

const struct hzp_panel_kernels HZP_ISA_NAME(hzp_cpu_wide) = {
    .rows = ROWS, .cols = COLS, .word = 1, .run = wide_run, .pack = wide_pack};
