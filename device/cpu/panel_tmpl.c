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

enum { LINE = 32 }; /* elements of k at a time: a cache line of bf16 */

INLINE size_t size_of(const struct hzp_mat *mat)
{
    return mat->type == HZP_E4M3 ? 1 : 2;
}

/* r[i], i < 4: four lanes, each one row's same four dwords; become four dwords of all those rows. */
INLINE void transpose(__m512i r[4])
{
    __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);

    r[0] = _mm512_unpacklo_epi64(a, c);
    r[1] = _mm512_unpackhi_epi64(a, c);
    r[2] = _mm512_unpacklo_epi64(b, d);
    r[3] = _mm512_unpackhi_epi64(b, d);
}

/* Sixteen bytes each from four places: loads put the lanes where they belong, no shuffle does. */
INLINE __m512i four_lanes(const char *a, const char *b, const char *c, const char *d)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)a));

    v = _mm512_mask_broadcast_i32x4(v, 0x00f0, _mm_loadu_si128((const __m128i *)b));
    v = _mm512_mask_broadcast_i32x4(v, 0x0f00, _mm_loadu_si128((const __m128i *)c));
    return _mm512_mask_broadcast_i32x4(v, 0xf000, _mm_loadu_si128((const __m128i *)d));
}

/* What will be packed next, fetched into the second-level cache a line at a time. */
struct ahead {
    const char *at; /* the first row's first line */
    ptrdiff_t row;  /* bytes from one row to the next */
    int rows;       /* of each line, at most 32 */
    int step;       /* bytes of LINE elements */
};

/* One line of all. */
INLINE void fetch(struct ahead *ahead)
{
    for (int i = 0; i < ahead->rows; i++)
        _mm_prefetch(ahead->at + i * ahead->row, _MM_HINT_T1);
    ahead->at += ahead->step;
}

/* A line of each of 16 rows becomes 16 vectors of a dword a row, of which `rows` are written. */
INLINE void pack_line(const char *const line[16], size_t at, uint32_t *dst, int stride, int rows)
{
    for (int q = 0; q < 4; q++, at += 16) {
        __m512i r[4];
        for (int i = 0; i < 4; i++)
            r[i] = four_lanes(line[i] + at, line[4 + i] + at, line[8 + i] + at, line[12 + i] + at);
        transpose(r);
        for (int i = 0; i < 4; i++, dst += stride) {
            if (rows == 16)
                _mm512_storeu_si512(dst, r[i]);
            else
                _mm512_mask_storeu_epi32(dst, lanes(rows), r[i]);
        }
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

    for (int i = 0; i < mr; i++) {
        __m512bh v = (__m512bh)_mm512_set1_epi32((int)x[i]);
        acc[i][0] = _mm512_dpbf16_ps(acc[i][0], v, w0);
        acc[i][1] = _mm512_dpbf16_ps(acc[i][1], v, w1);
    }
}

/* part: the sums so far, [mr][HZP_PANEL_COLS]; first: there are none. */
INLINE void tile(int mr, const uint32_t *x, const uint32_t *w, int pairs, float *part, bool first,
                 struct ahead ahead)
{
    vf acc[HZP_PANEL_ROWS][2];
    int p = 0;

    for (int i = 0; i < mr; i++)
        for (int h = 0; h < 2; h++)
            acc[i][h] = first ? vzero() : vload(part + i * HZP_PANEL_COLS + h * 16, VL);
    for (; ahead.rows && p + 16 <= pairs; ahead.at += ahead.step) {
        const char *line = ahead.at;
        for (int t = 0; t < 16; t++, p++) {
            if (t < ahead.rows)
                _mm_prefetch(line, _MM_HINT_T1);
            if (t + 16 < ahead.rows)
                _mm_prefetch(line + 16 * ahead.row, _MM_HINT_T1);
            line += ahead.row;
            step(mr, acc, x + (size_t)p * (size_t)mr, w + (size_t)p * HZP_PANEL_COLS);
        }
    }
    for (; p < pairs; p++)
        step(mr, acc, x + (size_t)p * (size_t)mr, w + (size_t)p * HZP_PANEL_COLS);
    for (int i = 0; i < mr; i++)
        for (int h = 0; h < 2; h++)
            vstore(part + i * HZP_PANEL_COLS + h * 16, acc[i][h], VL);
}

/* Not inlined: twelve of them in one function keep the compiler busy for a minute. */
#define TILE(mr)                                                                                   \
    static __attribute__((noinline)) void tile_##mr(const uint32_t *x, const uint32_t *w,          \
                                                    int pairs, float *part, bool first,            \
                                                    struct ahead ahead)                            \
    {                                                                                              \
        tile(mr, x, w, pairs, part, first, ahead);                                                 \
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

typedef void tile_fn(const uint32_t *x, const uint32_t *w, int pairs, float *part, bool first,
                     struct ahead ahead);
static tile_fn *const tiles[HZP_PANEL_ROWS + 1] = {NULL,   tile_1, tile_2, tile_3, tile_4,
                                                   tile_5, tile_6, tile_7, tile_8, tile_9,
                                                   tile_10, tile_11, tile_12};

INLINE void store(const struct hzp_matmul_args *a, int m, int n, int n1, const float *sums)
{
    void *c = hzp_cpu_row(&a->c, m);

    for (int h = 0; h < HZP_PANEL_COLS && n + h < n1; h += 16) {
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

/* The block of c that a tile will end in, before it begins. */
INLINE void fetch_c(const struct hzp_matmul_args *a, int m, int rows, int n, int n1)
{
    size_t size = a->c.type == HZP_F32 ? 4 : 2;

    for (int i = 0; i < rows; i++) {
        const char *c = hzp_cpu_row(&a->c, m + i);
        for (size_t at = (size_t)n * size; at < (size_t)n1 * size; at += 64)
            fetch_to_write(c + at);
    }
}

/* Of the next panel's rows so many are fetched while this one is packed: its part of the time. */
INLINE int while_packing(const struct hzp_panel *p, int rows)
{
    enum { PACK_CYCLES = 96, TILE_CYCLES = 16 }; /* of 32 columns and a line of k: all; each row */
    return HZP_DIV_UP(rows * PACK_CYCLES, PACK_CYCLES + TILE_CYCLES * p->rows);
}

INLINE struct ahead take(const struct hzp_panel *p, int *row, int end)
{
    size_t size = size_of(&p->args->b);
    struct ahead ahead = {hzp_cpu_row(&p->args->b, *row),
                          (ptrdiff_t)((size_t)p->args->b.stride * size), HZP_MAX(end - *row, 0),
                          (int)(LINE * size)};
    *row += ahead.rows;
    return ahead;
}

/* The columns from n on; those from `next` on come after them. */
static void cpu_panel(const struct hzp_panel *p, int n, int next, void *own)
{
    int n1 = HZP_MIN(n + HZP_PANEL_COLS, p->args->c.cols), inner = p->args->a.cols;
    uint32_t *w = own;
    float *part = (float *)((char *)own + HZP_PANEL_W_BYTES);

    for (int k0 = 0; k0 < inner; k0 += HZP_PANEL_K) {
        int count = HZP_MIN(HZP_PANEL_K, inner - k0);
        bool last = k0 + count == inner;
        int row = HZP_MIN(next, p->args->c.cols - 1);
        int end = last ? HZP_MIN(next + HZP_PANEL_COLS, p->args->c.cols) : row;
        int packing = row + while_packing(p, end - row), middle = (row + packing) / 2;

        pack(&p->args->b, n, HZP_MIN(16, n1 - n), k0, count, w, HZP_PANEL_COLS,
             take(p, &row, middle));
        if (n1 > n + 16)
            pack(&p->args->b, n + 16, n1 - n - 16, k0, count, w + 16, HZP_PANEL_COLS,
                 take(p, &row, packing));
        for (int b = 0, spread = HZP_MIN(p->blocks, 8); b < p->blocks; b++) {
            int m0 = hzp_panel_row(p, b), mr = hzp_panel_row(p, b + 1) - m0;
            const uint32_t *x = p->x + (size_t)(k0 / 2) * (size_t)mr +
                                (size_t)m0 * (size_t)HZP_DIV_UP(inner, 2);
            if (last)
                fetch_c(p->args, p->m0 + m0, mr, n, n1);
            int upto = b < spread ? row + (end - row) / (spread - b) : row;
            tiles[mr](x, w, HZP_DIV_UP(count, 2), part + (size_t)m0 * HZP_PANEL_COLS, k0 == 0,
                      take(p, &row, upto));
            for (int i = 0; last && i < mr; i++)
                store(p->args, p->m0 + m0 + i, n, n1, part + (size_t)(m0 + i) * HZP_PANEL_COLS);
        }
    }
}

/* Block b of x. */
static void cpu_pack_x(const struct hzp_panel *p, int b)
{
    int m0 = hzp_panel_row(p, b), mr = hzp_panel_row(p, b + 1) - m0, inner = p->args->a.cols;

    pack(&p->args->a, p->m0 + m0, mr, 0, inner,
         p->x + (size_t)m0 * (size_t)HZP_DIV_UP(inner, 2), mr, (struct ahead){0});
}

const struct hzp_panel_kernels HZP_ISA_NAME(hzp_cpu_panel) = {cpu_panel, cpu_pack_x};

#endif
