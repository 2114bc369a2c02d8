/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/panel_tmpl.c - products of bf16 whose sums stand in the lanes of a vector.
 *
 * Both operands are copied into pairs of k: a vector of w holds one pair for each of 16 columns of
 * c, a broadcast of x the same pair of one row, and one instruction multiplies and adds both.  No
 * sum is ever folded over lanes, which is what the dot kernel spends a third of its time on where
 * k is short; instead w is transposed on the way in, which many rows of x share.  E4M3 is widened
 * on that way too.
 */
#include "device/cpu/fp8_tmpl.h"
#include "device/cpu/panel.h"

#ifdef __AVX512BF16__

enum {
    LINE = 32, /* elements of k at a time: a cache line of bf16 */
    COLS = 32, /* a panel's */
    ROWS = 12, /* a tile's, at most */
};

INLINE size_t size_of(const struct hzp_mat *mat)
{
    return mat->type == HZP_E4M3 ? 1 : 2;
}

/* What will be packed next, fetched into the second-level cache a line at a time. */
struct ahead {
    const char *at; /* the first row's first line */
    ptrdiff_t row;  /* bytes from one row to the next */
    int rows;       /* in each line, at most 32 */
    int step;       /* bytes of LINE elements */
};

/* One line of all. */
INLINE void fetch(struct ahead *ahead)
{
    for (int i = 0; i < ahead->rows; i++)
        _mm_prefetch(ahead->at + i * ahead->row, _MM_HINT_T1);
    ahead->at += ahead->step;
}

/* A line of each of 16 rows becomes 16 vectors of a dword a row, of which `rows` are written.  Each
 * line is read at once: of rows 4096 bytes apart fewer than 16 lines stay in the nearest cache. */
INLINE void pack_line(const char *const line[16], size_t at, uint32_t *dst, int stride, int rows)
{
    __m512i r[16];

    UNROLL
    for (int i = 0; i < 16; i++)
        r[i] = _mm512_loadu_si512(line[i] + at);
    transpose16(r);
    UNROLL
    for (int i = 0; i < 16; i++, dst += stride) {
        if (rows == 16)
            _mm512_storeu_si512(dst, r[i]);
        else
            _mm512_mask_storeu_epi32(dst, lanes(rows), r[i]);
    }
}

/* LINE elements of 16 rows of E4M3, from element k on, as BF16. */
INLINE void widen_line(const char *const line[16], int k, int left, uint16_t wide[16][LINE])
{
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(wide[i], words_of_e4m3((const uint8_t *)line[i] + k, left));
}

/* Up to 16 rows, contiguous along k, from k0 on for `count` elements, become for each pair of k a
 * vector of one dword a row; `stride` dwords from one pair to the next. */
INLINE void pack(const struct hzp_mat *mat, int row0, int rows, int k0, int count, uint32_t *dst,
                 int stride, struct ahead ahead)
{
    const char *line[16], *wide[16];
    uint16_t last[16][LINE];
    uint32_t out[16][16];
    bool narrow = mat->type == HZP_E4M3;
    size_t size = size_of(mat);
    int k = 0;

    for (int i = 0; i < 16; i++) {
        line[i] = (const char *)hzp_cpu_row(mat, row0 + HZP_MIN(i, rows - 1)) + (size_t)k0 * size;
        wide[i] = narrow ? (const char *)last[i] : line[i];
    }
    for (; k + LINE <= count; k += LINE, dst += 16 * stride) {
        fetch(&ahead);
        if (narrow)
            widen_line(line, k, LINE, last);
        if (rows == 16)
            pack_line(wide, narrow ? 0 : (size_t)k * 2, dst, stride, 16);
        else
            pack_line(wide, narrow ? 0 : (size_t)k * 2, dst, stride, rows);
    }
    if (k == count)
        return;
    if (narrow) {
        widen_line(line, k, count - k, last);
    } else {
        memset(last, 0, sizeof(last));
        for (int i = 0; i < 16; i++)
            memcpy(last[i], line[i] + (size_t)k * 2, (size_t)(count - k) * 2);
    }
    for (int i = 0; i < 16; i++)
        line[i] = (const char *)last[i];
    pack_line(line, 0, &out[0][0], 16, 16);
    for (int i = 0; i < HZP_DIV_UP(count - k, 2); i++)
        memcpy(dst + i * stride, out[i], (size_t)rows * 4);
}

INLINE void step(int mr, vf acc[][2], const uint32_t *x, const uint32_t *w)
{
    __m512bh w0 = (__m512bh)_mm512_loadu_si512(w);
    __m512bh w1 = (__m512bh)_mm512_loadu_si512(w + 16);

    UNROLL
    for (int i = 0; i < mr; i++) {
        __m512bh v = (__m512bh)_mm512_set1_epi32((int)x[i]);
        acc[i][0] = _mm512_dpbf16_ps(acc[i][0], v, w0);
        acc[i][1] = _mm512_dpbf16_ps(acc[i][1], v, w1);
    }
}

/* What a tile fetches, a few lines a step, so that its own reads do not queue behind: rows of w, as
 * much of x as it reads itself, and the lines of c in which its sums will end. */
struct fetches {
    struct ahead w;
    const char *x; /* NULL: none */
    const char *c;
    size_t c_row;
    int c_lines; /* in each row */
};

/* from: the sums so far, [mr][COLS], NULL: there are none; to: where they go. */
INLINE void tile(int mr, const uint32_t *x, const uint32_t *w, int pairs, const float *from,
                 float *to, struct fetches f)
{
    vf acc[ROWS][2];
    int p = 0;

    UNROLL
    for (int i = 0; i < mr; i++)
        for (int h = 0; h < 2; h++)
            acc[i][h] = from ? vload(from + i * COLS + h * 16, VL) : vzero();
    for (; (f.w.rows || f.x || f.c_lines) && p + 16 <= pairs; f.w.at += f.w.step) {
        const char *line = f.w.at, *c = f.c;
        int x_lines = f.x ? mr : 0, c_rows = f.c_lines > 0 ? mr : 0;
        for (int t = 0; t < 16; t++, p++) {
            if (t < f.w.rows)
                _mm_prefetch(line, _MM_HINT_T1);
            if (t + 16 < f.w.rows)
                _mm_prefetch(line + 16 * f.w.row, _MM_HINT_T1);
            if (t < x_lines)
                _mm_prefetch(f.x + t * 64, _MM_HINT_T1);
            if (t < c_rows)
                fetch_to_write(c);
            line += f.w.row;
            c += f.c_row;
            step(mr, acc, x + (size_t)p * (size_t)mr, w + (size_t)p * COLS);
        }
        f.x += f.x ? mr * 64 : 0;
        f.c += 64;
        f.c_lines = HZP_MAX(f.c_lines - 1, 0);
    }
    for (; p < pairs; p++)
        step(mr, acc, x + (size_t)p * (size_t)mr, w + (size_t)p * COLS);
    UNROLL
    for (int i = 0; i < mr; i++)
        for (int h = 0; h < 2; h++)
            vstore(to + i * COLS + h * 16, acc[i][h], VL);
}

/* Not inlined: twelve of them in one function keep the compiler busy for a minute. */
#define TILE(mr)                                                                                   \
    static __attribute__((noinline)) void tile_##mr(const uint32_t *x, const uint32_t *w,          \
                                                    int pairs, const float *from, float *to,       \
                                                    const struct fetches *f)                       \
    {                                                                                              \
        tile(mr, x, w, pairs, from, to, *f);                                                       \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)

typedef void tile_fn(const uint32_t *x, const uint32_t *w, int pairs, const float *from, float *to,
                     const struct fetches *f);
static tile_fn *const tiles[ROWS + 1] = {NULL,   tile_1, tile_2, tile_3,  tile_4,  tile_5, tile_6,
                                         tile_7, tile_8, tile_9, tile_10, tile_11, tile_12};

INLINE void store(const struct hzp_matmul_args *a, int m, int n, int n1, const float *sums)
{
    void *c = hzp_cpu_row(&a->c, m);

    for (int h = 0; h < COLS && n + h < n1; h += 16) {
        int left = HZP_MIN(16, n1 - n - h);
        size_t at = (size_t)(n + h);
        vf y = vload(sums + h, VL);
        if (a->scale_a)
            y = vmul(vmul(y, vset(a->scale_a[m])), vload(a->scale_b + at, left));
        if (a->bias.ptr)
            y = vadd(y, vget(a->bias.ptr, at, a->bias.type, left));
        if (a->accumulate)
            y = vadd(y, vget(c, at, a->c.type, left));
        vput(c, at, a->c.type, y, left);
    }
}

/* A panel's part of w: columns n .. n1, elements k0 .. k0+count of k. */
struct part {
    int n, n1, k0, count;
};

/* The next of the group, panel by panel within a block of k; after the last the beginning of
 * `next`, which may be none. */
INLINE struct part part_after(const struct hzp_panel *p, struct part at, struct hzp_panel_cols now,
                              struct hzp_panel_cols next)
{
    int inner = p->args->a.cols, k0 = at.k0 + p->k_block;

    if (at.n1 < now.end)
        return (struct part){at.n1, HZP_MIN(at.n1 + COLS, now.end), at.k0, at.count};
    if (k0 >= inner) {
        now = next;
        k0 = 0;
    }
    return (struct part){now.begin, HZP_MIN(now.begin + COLS, now.end), k0,
                         HZP_MIN(p->k_block, inner - k0)};
}

/* How many of the next panel's rows are fetched while this one is packed: its part of the time. */
INLINE int while_packing(const struct hzp_panel *p, int rows)
{
    enum {
        PACK_CYCLES = 96,
        TILE_CYCLES = 16
    }; /* for 32 columns and a line of k: in all; for each row */
    return HZP_DIV_UP(rows * PACK_CYCLES, PACK_CYCLES + TILE_CYCLES * p->rows);
}

/* Rows *row .. end of part `of`, counted from its first. */
INLINE struct ahead take(const struct hzp_panel *p, const struct part *of, int *row, int end)
{
    const struct hzp_mat *w = &p->args->b;
    size_t size = size_of(w);
    struct ahead ahead = {NULL, (ptrdiff_t)((size_t)w->stride * size), HZP_MAX(end - *row, 0),
                          (int)(LINE * size)};

    if (ahead.rows)
        ahead.at = (const char *)hzp_cpu_row(w, of->n + *row) + (size_t)of->k0 * size;
    *row = end;
    return ahead;
}

/* The lines of c from row m and column n on. */
INLINE void take_c(const struct hzp_panel *p, int m, int n, int n1, struct fetches *f)
{
    size_t size = p->args->c.type == HZP_F32 ? 4 : 2;

    f->c = (const char *)hzp_cpu_row(&p->args->c, m) + (size_t)n * size;
    f->c_row = (size_t)p->args->c.stride * size;
    f->c_lines = HZP_DIV_UP((n1 - n) * (int)size, 64);
}

/* x's part of block b, of the block of k that begins at k0. */
INLINE uint32_t *x_part(const struct hzp_panel *p, int b, int k0)
{
    int pairs = HZP_DIV_UP(HZP_MIN(p->k_block, p->args->a.cols - k0), 2);

    return p->x + (size_t)(k0 / 2) * (size_t)p->rows + (size_t)hzp_panel_row(p, b) * (size_t)pairs;
}

/* A panel's part of w, while the first rows of the coming one are fetched. */
INLINE void w_pack(const struct hzp_panel *p, struct part at, struct part coming, int *row,
                   uint32_t *w)
{
    const struct hzp_mat *b = &p->args->b;
    int packing = while_packing(p, coming.n1 - coming.n), middle = packing / 2;

    pack(b, at.n, HZP_MIN(16, at.n1 - at.n), at.k0, at.count, w, COLS,
         take(p, &coming, row, middle));
    if (at.n1 > at.n + 16)
        pack(b, at.n + 16, at.n1 - at.n - 16, at.k0, at.count, w + 16, COLS,
             take(p, &coming, row, packing));
}

/* One panel's part, while it fetches the `coming` one.  sums: [rows][COLS] */
INLINE void part_run(const struct hzp_panel *p, struct part at, struct part coming, uint32_t *w,
                     float *sums)
{
    int pairs = HZP_DIV_UP(at.count, 2), row = 0, rows = coming.n1 - coming.n;
    bool last = at.k0 + at.count == p->args->a.cols;
    _Alignas(64) float done[ROWS * COLS]; /* stays in the nearest cache */

    w_pack(p, at, coming, &row, w);
    for (int b = 0; b < p->blocks; b++) {
        int m0 = hzp_panel_row(p, b), mr = hzp_panel_row(p, b + 1) - m0;
        struct fetches f = {take(p, &coming, &row, row + (rows - row) / (p->blocks - b)), NULL,
                            NULL, 0, 0};
        float *part = sums + (size_t)m0 * COLS, *to = last ? done : part;
        if (coming.n1 > coming.n && coming.k0 != at.k0)
            f.x = (const char *)x_part(p, b, coming.k0);
        if (last)
            take_c(p, p->m0 + m0, at.n, at.n1, &f);
        tiles[mr](x_part(p, b, at.k0), w, pairs, at.k0 == 0 ? NULL : part, to, &f);
        for (int i = 0; last && i < mr; i++)
            store(p->args, p->m0 + m0 + i, at.n, at.n1, done + i * COLS);
    }
}

static void cpu_panel(const struct hzp_panel *p, struct hzp_panel_cols now,
                      struct hzp_panel_cols next, void *own)
{
    float *sums = (float *)((char *)own + p->w_bytes);
    struct part at = {now.begin, HZP_MIN(now.begin + COLS, now.end), 0,
                      HZP_MIN(p->k_block, p->args->a.cols)};

    for (int k0 = 0; k0 < p->args->a.cols; k0 += p->k_block)
        for (int n = now.begin; n < now.end; n += COLS) {
            struct part coming = part_after(p, at, now, next);
            part_run(p, at, coming, own, sums + (size_t)(n - now.begin) * (size_t)p->rows);
            at = coming;
        }
}

/* Block b of x, while the next one is fetched. */
INLINE void pack_rows(const struct hzp_panel *p, int b)
{
    const struct hzp_mat *x = &p->args->a;
    int m0 = hzp_panel_row(p, b), m1 = hzp_panel_row(p, b + 1);
    int m2 = b + 1 < p->blocks ? hzp_panel_row(p, b + 2) : m1;
    size_t size = size_of(x);

    for (int k0 = 0; k0 < p->args->a.cols; k0 += p->k_block) {
        struct ahead ahead = {NULL, (ptrdiff_t)((size_t)x->stride * size), m2 - m1,
                              (int)(LINE * size)};
        if (m2 > m1)
            ahead.at = (const char *)hzp_cpu_row(x, p->m0 + m1) + (size_t)k0 * size;
        pack(x, p->m0 + m0, m1 - m0, k0, HZP_MIN(p->k_block, p->args->a.cols - k0),
             x_part(p, b, k0), m1 - m0, ahead);
    }
}

static void cpu_pack_x(const struct hzp_panel *p, int begin, int end)
{
    for (int b = begin; b < end; b++)
        pack_rows(p, b);
}

const struct hzp_panel_kernels HZP_ISA_NAME(hzp_cpu_panel) = {.rows = ROWS,
                                                              .cols = COLS,
                                                              .word = 2,
                                                              .k = 512,
                                                              .slab = 512,
                                                              .run = cpu_panel,
                                                              .pack = cpu_pack_x};

#endif
