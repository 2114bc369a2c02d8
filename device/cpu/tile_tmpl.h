/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/tile_tmpl.h - small matrix products of packed operands, for attention.
 *
 * All operands consist of dwords: with pairs, a dword is two bf16 neighbours along k and the
 * instruction multiplies and adds both; without, it is one float.  Three forms of an operand:
 *   rows    [rows][k]                  the left operand, which is broadcast
 *   panels  [cols / W][k][W]           the right operand
 *   woven   [rows'][cols]              rows' = pairs of rows with pairs, rows without: a panel
 *                                      along the rows is a plain copy of it
 * Missing rows and columns are zeros, so kernels need no tails.
 *
 * Only *_tmpl.c files include it.  Thread: any.
 */
#pragma once

#include "device/cpu/vec_tmpl.h"

#ifdef __AVX512F__
enum { TM = 6, TN = 4 };
#else
enum { TM = 6, TN = 2 };
#endif
enum { W = TN * VL, BLOCK = 64 }; /* width of a panel; rows or keys of a block of attention */

#ifdef __AVX512BF16__
#define HZP_PAIRS(type) ((type) == HZP_BF16)
#else
#define HZP_PAIRS(type) ((void)(type), false)
#endif

/* The number of dwords along k for n elements. */
INLINE int k_dwords(bool pairs, int n)
{
    return pairs ? (n + 1) / 2 : n;
}

INLINE vf tile_mac(bool pairs, vf acc, vf a, vf b)
{
#ifdef __AVX512BF16__
    if (pairs)
        return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
#endif
    return vfma(a, b, acc);
}

/* c[mr][nv VL] = a[mr][k] b[k][..W], plus c if `add`, or plus c[i] less[i] if that is given. */
INLINE void tile_part(bool pairs, int mr, int nv, int k, const float *a, size_t lda, const float *b,
                      float *c, size_t ldc, bool add, const float *less)
{
    vf acc[TM][TN];

    for (int i = 0; i < mr; i++)
        for (int j = 0; j < nv; j++)
            acc[i][j] = add ? vload(c + (size_t)i * ldc + j * VL, VL) : vzero();
    for (int i = 0; less && i < mr; i++)
        for (int j = 0; j < nv; j++)
            acc[i][j] = vmul(acc[i][j], vset(less[i]));
    for (int p = 0; p < k; p++) {
        vf bv[TN];
        for (int j = 0; j < nv; j++)
            bv[j] = vload(b + (size_t)p * W + j * VL, VL);
        for (int i = 0; i < mr; i++) {
            vf av = vset(a[(size_t)i * lda + (size_t)p]);
            for (int j = 0; j < nv; j++)
                acc[i][j] = tile_mac(pairs, acc[i][j], av, bv[j]);
        }
    }
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < nv; j++)
            vstore(c + (size_t)i * ldc + j * VL, acc[i][j], VL);
}

INLINE void tile(bool pairs, int mr, int k, const float *a, size_t lda, const float *b, float *c,
                 size_t ldc, bool add)
{
    tile_part(pairs, mr, TN, k, a, lda, b, c, ldc, add, NULL);
}

/* The last rows of a panel in one smaller tile. */
INLINE void tile_product_of(bool pairs, int m, int cols, int k, const float *a, size_t lda,
                            const float *b, float *c, size_t ldc, bool add)
{
    for (int n = 0; n < cols; n += W, b += (size_t)k * W) {
        int i = 0;
        for (; i + TM <= m; i += TM)
            tile(pairs, TM, k, a + (size_t)i * lda, lda, b, c + (size_t)i * ldc + n, ldc, add);
        const float *ar = a + (size_t)i * lda;
        float *cr = c + (size_t)i * ldc + n;
        switch (m - i) {
        case 1:
            tile(pairs, 1, k, ar, lda, b, cr, ldc, add);
            break;
        case 2:
            tile(pairs, 2, k, ar, lda, b, cr, ldc, add);
            break;
        case 3:
            tile(pairs, 3, k, ar, lda, b, cr, ldc, add);
            break;
        case 4:
            tile(pairs, 4, k, ar, lda, b, cr, ldc, add);
            break;
        case 5:
            tile(pairs, 5, k, ar, lda, b, cr, ldc, add);
            break;
        }
    }
}

/* Not inlined: the tiles are most of a kernel's code. */
static __attribute__((noinline, unused)) void tile_product_pairs(int m, int cols, int k,
                                                                 const float *a, size_t lda,
                                                                 const float *b, float *c,
                                                                 size_t ldc, bool add)
{
    if (add)
        tile_product_of(HZP_PAIRS(HZP_BF16), m, cols, k, a, lda, b, c, ldc, true);
    else
        tile_product_of(HZP_PAIRS(HZP_BF16), m, cols, k, a, lda, b, c, ldc, false);
}
static __attribute__((noinline)) void tile_product_floats(int m, int cols, int k, const float *a,
                                                          size_t lda, const float *b, float *c,
                                                          size_t ldc, bool add)
{
    if (add)
        tile_product_of(false, m, cols, k, a, lda, b, c, ldc, true);
    else
        tile_product_of(false, m, cols, k, a, lda, b, c, ldc, false);
}

/* c[m][cols] (+)= a[m][k] b; cols a multiple of W. */
INLINE void tile_product(bool pairs, int m, int cols, int k, const float *a, size_t lda,
                         const float *b, float *c, size_t ldc, bool add)
{
    if (pairs)
        tile_product_pairs(m, cols, k, a, lda, b, c, ldc, add);
    else
        tile_product_floats(m, cols, k, a, lda, b, c, ldc, add);
}

/* Copies one row of n elements into rows form. */
INLINE void row_copy(bool pairs, const void *x, enum hzp_dtype type, int n, float *y)
{
#ifdef __AVX512BF16__
    if (pairs) { /* without memcpy: a call costs as much as the copy */
        const uint16_t *from = x;
        uint16_t *to = (uint16_t *)y;
        int c = 0;
        if (n % 2)
            y[n / 2] = 0;
        for (; c + 32 <= n; c += 32)
            _mm512_storeu_si512(to + c, _mm512_loadu_si512(from + c));
        if (c < n) {
            __mmask32 left = (1u << (n - c)) - 1;
            _mm512_mask_storeu_epi16(to + c, left, _mm512_maskz_loadu_epi16(left, from + c));
        }
        return;
    }
#endif
    (void)pairs;
    if (type == HZP_F32) {
        memcpy(y, x, (size_t)n * 4);
    } else {
        EACH(c, n, vstore(y + c, vload_bf16((const uint16_t *)x + c, left), left););
    }
}

/* y[cols][ldy] = x[rows][ldx] transposed, dwords. */
#ifdef __AVX512F__
INLINE void transpose_block(const float *x, size_t ldx, float *y, size_t ldy)
{
    vi r[16];

    for (int i = 0; i < 16; i++)
        r[i] = _mm512_loadu_si512(x + (size_t)i * ldx);
    transpose16(r);
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(y + (size_t)i * ldy, r[i]);
}
#endif

static __attribute__((noinline)) void transpose(const float *x, size_t ldx, int rows, int cols,
                                                float *y, size_t ldy)
{
    int r = 0;
#ifdef __AVX512F__
    for (; r + 16 <= rows; r += 16) {
        int c = 0;
        for (; c + 16 <= cols; c += 16)
            transpose_block(x + (size_t)r * ldx + c, ldx, y + (size_t)c * ldy + r, ldy);
        for (; c < cols; c++)
            for (int i = r; i < r + 16; i++)
                y[(size_t)c * ldy + (size_t)i] = x[(size_t)i * ldx + (size_t)c];
    }
#endif
    for (; r < rows; r++)
        for (int c = 0; c < cols; c++)
            y[(size_t)c * ldy + (size_t)r] = x[(size_t)r * ldx + (size_t)c];
}

/* Packs a block of rows (BLOCK of them, ldx dwords apart, k dwords each) as panels: the rows become
 * the columns. */
INLINE void panels_of_rows(const float *x, size_t ldx, int k, float *y)
{
    for (int n = 0; n < BLOCK; n += W, y += (size_t)k * W)
        transpose(x + (size_t)n * ldx, ldx, W, k, y, W);
}

/* Dwords of woven row p from column c on, made from its one or two rows in rows form; `left`
 * elements. */
INLINE vf weave(bool pairs, const float *x, size_t ldx, int p, int c, int left)
{
#ifdef __AVX512BF16__
    if (pairs) {
        const uint16_t *a = (const uint16_t *)(x + (size_t)(2 * p) * ldx) + c;
        const uint16_t *b = (const uint16_t *)(x + (size_t)(2 * p + 1) * ldx) + c;
        __m256i lo = _mm256_maskz_loadu_epi16(lanes(left), a);
        __m256i hi = _mm256_maskz_loadu_epi16(lanes(left), b);
        return _mm512_castsi512_ps(_mm512_or_si512(
            _mm512_cvtepu16_epi32(lo), _mm512_slli_epi32(_mm512_cvtepu16_epi32(hi), 16)));
    }
#endif
    return vload(x + (size_t)p * ldx + c, left);
}

/* Packs a block of rows, n elements wide, as panels along the rows: columns stay columns. y:
 * [ROUND_UP(n, W) / W][k_dwords(BLOCK)][W]. */
INLINE void panels_of_cols(bool pairs, const float *x, size_t ldx, int n, float *y)
{
    int k = k_dwords(pairs, BLOCK);

    for (int n0 = 0; n0 < n; n0 += W, y += (size_t)k * W)
        for (int p = 0; p < k; p++)
            for (int j = 0; j < W; j += VL) {
                int left = HZP_MIN(VL, n - n0 - j);
                vf v = left > 0 ? weave(pairs, x, ldx, p, n0 + j, left) : vzero();
                vstore(y + (size_t)p * W + j, v, VL);
            }
}

/* Converts n floats, a multiple of VL, to elements of rows form. */
INLINE void row_pack(bool pairs, const float *x, int n, float *y)
{
#ifdef __AVX512BF16__
    if (pairs) {
        for (int c = 0; c < n; c += VL)
            _mm256_storeu_si256((__m256i *)((uint16_t *)y + c),
                                (__m256i)_mm512_cvtneps_pbh(vload(x + c, VL)));
        return;
    }
#endif
    if (x != y)
        memcpy(y, x, (size_t)n * sizeof(*y));
}

/* The unit of scores, in which exp is cheapest: with pairs, exponents of 2. */
INLINE float unit(bool pairs)
{
    return pairs ? 1.44269504088896341f : 1.f;
}

/* exp of x in units, relative error below 2e-7: with pairs a polynomial of least relative error for
 * 2^r on [-1/2, 1/2], by Remez. */
INLINE vf unit_exp(bool pairs, vf x)
{
#ifdef __AVX512F__
    if (pairs) {
        x = vmax(vset(-160.f), x);
        vf n = _mm512_roundscale_ps(x, 8), r = vsub(x, n), y = vset(1.327647245e-3f);
        y = vfma(y, r, vset(9.675540961e-3f));
        y = vfma(y, r, vset(5.550713092e-2f));
        y = vfma(y, r, vset(2.402212024e-1f));
        y = vfma(y, r, vset(6.931469440e-1f));
        y = vfma(y, r, vset(1.f));
        return _mm512_scalef_ps(y, n);
    }
#endif
    return vexp(x);
}
