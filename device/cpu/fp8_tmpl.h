/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/fp8_tmpl.h - converts vectors of e4m3 to floats and back (device/fp8.h defines the
 * bits).
 *
 * Widening requires codes that are not NaN, as device/ops.h promises.
 *
 * Thread: any.
 */
#pragma once

#include "device/cpu/vec_tmpl.h"
#include "device/fp8.h"

/* Where vload_e4m3 multiplies by 2^120: with its bits in the places of a float's, a code is 2^-120
 * of its value, also where its exponent is 0 and the float denormal. */

#ifdef __AVX512F__
/* The codes with exponent 0, m * 2^-9, as floats; the last 8 entries are never used. */
static const uint32_t small_e4m3[16] = {0,          0x3b000000, 0x3b800000, 0x3bc00000,
                                        0x3c000000, 0x3c200000, 0x3c400000, 0x3c600000};
#endif

#if defined(__AVX512F__)

INLINE vf vload_e4m3(const uint8_t *p, int left)
{
    __m128i b =
        left == VL ? _mm_loadu_si128((const __m128i *)p) : _mm_maskz_loadu_epi8(lanes(left), p);
    vi v = _mm512_cvtepi8_epi32(b), rest = _mm512_and_si512(v, _mm512_set1_epi32(0x7f));
    vi f = _mm512_add_epi32(_mm512_slli_epi32(rest, 20), _mm512_set1_epi32(0x3c000000));
    f = _mm512_mask_permutexvar_epi32(f, _mm512_cmplt_epi32_mask(rest, _mm512_set1_epi32(8)), rest,
                                      _mm512_loadu_si512(small_e4m3));
    v = _mm512_and_si512(v, _mm512_set1_epi32((int)0x80000000u));
    return _mm512_castsi512_ps(_mm512_or_si512(f, v));
}

/* x has no NaN and no infinity. */
INLINE void vstore_e4m3(uint8_t *p, vf x, int left)
{
    vi u = _mm512_castps_si512(x), rest = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    vi odd = _mm512_and_si512(_mm512_srli_epi32(rest, 20), _mm512_set1_epi32(1));
    vi code = _mm512_add_epi32(_mm512_add_epi32(rest, _mm512_set1_epi32(0x7ffff)), odd);
    vi small = _mm512_castps_si512(vadd(_mm512_castsi512_ps(rest), vset(0x1p14f)));
    code = _mm512_sub_epi32(_mm512_srli_epi32(code, 20), _mm512_set1_epi32(0x3c0));
    code = _mm512_mask_sub_epi32(code, _mm512_cmplt_epi32_mask(rest, _mm512_set1_epi32(0x3c800000)),
                                 small, _mm512_set1_epi32(0x46800000));
    code = _mm512_min_epi32(code, _mm512_set1_epi32(0x7e));
    u = _mm512_and_si512(_mm512_srli_epi32(u, 24), _mm512_set1_epi32(0x80));
    __m128i b = _mm512_cvtepi32_epi8(_mm512_or_si512(code, u));
    if (left == VL)
        _mm_storeu_si128((__m128i *)p, b);
    else
        _mm_mask_storeu_epi8(p, lanes(left), b);
}

/* The bits of the larger magnitudes. */
INLINE vi vlargest(vi a, vf x)
{
    vi bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
    return _mm512_max_epi32(a, bits);
}
INLINE vi vnone(void)
{
    return _mm512_setzero_si512();
}
INLINE uint32_t vlargest_of(vi a)
{
    return (uint32_t)_mm512_reduce_max_epi32(a);
}

#elif defined(__AVX2__)

INLINE vf vload_e4m3(const uint8_t *p, int left)
{
    uint64_t eight = 0;
    memcpy(&eight, p, left == VL ? sizeof(eight) : (size_t)left);
    vi v = _mm256_slli_epi32(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)eight)), 20);
    v = _mm256_and_si256(v, _mm256_set1_epi32((int)0x87f00000u));
    return _mm256_mul_ps(_mm256_castsi256_ps(v), vset(0x1p120f));
}

/* x has no NaN and no infinity. */
INLINE void vstore_e4m3(uint8_t *p, vf x, int left)
{
    vi u = _mm256_castps_si256(x), rest = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    vi odd = _mm256_and_si256(_mm256_srli_epi32(rest, 20), _mm256_set1_epi32(1));
    vi code = _mm256_add_epi32(_mm256_add_epi32(rest, _mm256_set1_epi32(0x7ffff)), odd);
    vi small = _mm256_castps_si256(vadd(_mm256_castsi256_ps(rest), vset(0x1p14f)));
    code = _mm256_sub_epi32(_mm256_srli_epi32(code, 20), _mm256_set1_epi32(0x3c0));
    small = _mm256_sub_epi32(small, _mm256_set1_epi32(0x46800000));
    code = _mm256_blendv_epi8(code, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), rest));
    code = _mm256_min_epi32(code, _mm256_set1_epi32(0x7e));
    u = _mm256_and_si256(_mm256_srli_epi32(u, 24), _mm256_set1_epi32(0x80));
    code = _mm256_or_si256(code, u);
    code = _mm256_permute4x64_epi64(_mm256_packus_epi32(code, code), 0x08);
    __m128i words = _mm256_castsi256_si128(code);
    long long eight = _mm_cvtsi128_si64(_mm_packus_epi16(words, words));
    memcpy(p, &eight, left == VL ? sizeof(eight) : (size_t)left);
}

/* The bits of the larger magnitudes. */
INLINE vi vlargest(vi a, vf x)
{
    vi bits = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
    return _mm256_max_epi32(a, bits);
}
INLINE vi vnone(void)
{
    return _mm256_setzero_si256();
}
INLINE uint32_t vlargest_of(vi a)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

#else

typedef int8_t v4b __attribute__((vector_size(4)));

INLINE vf vload_e4m3(const uint8_t *p, int left)
{
    v4b b = {0};
    memcpy(&b, p, left == VL ? sizeof(b) : (size_t)left);
    vi v = (__builtin_convertvector(b, vi) << 20) & (int32_t)0x87f00000u;
    return (vf)v * vset(0x1p120f);
}

/* x has no NaN and no infinity. */
INLINE void vstore_e4m3(uint8_t *p, vf x, int left)
{
    vi u = (vi)x, rest = u & 0x7fffffff, odd = (rest >> 20) & 1;
    vi code = ((rest + 0x7ffff + odd) >> 20) - 0x3c0;
    vi small = (vi)((vf)rest + vset(0x1p14f)) - 0x46800000;
    code = (vi)vpick(rest < 0x3c800000, (vf)small, (vf)code);
    code = (vi)vpick(code < 0x7e, (vf)code, (vf)(vi){0x7e, 0x7e, 0x7e, 0x7e});
    v4b b = __builtin_convertvector(code | ((u >> 24) & 0x80), v4b);
    memcpy(p, &b, left == VL ? sizeof(b) : (size_t)left);
}

/* The bits of the larger magnitudes. */
INLINE vi vlargest(vi a, vf x)
{
    vi bits = (vi)x & 0x7fffffff;
    return (vi)vpick(a > bits, (vf)a, (vf)bits);
}
INLINE vi vnone(void)
{
    return (vi){0, 0, 0, 0};
}
INLINE uint32_t vlargest_of(vi a)
{
    return (uint32_t)HZP_MAX(HZP_MAX(a[0], a[1]), HZP_MAX(a[2], a[3]));
}

#endif

/* Quantizes a row of n elements, as device/ops.h says of `quantize`; returns its scale. */
INLINE float to_e4m3(const void *x, enum hzp_dtype type, int n, uint8_t *y)
{
    vi largest = vnone();

    EACH(c, n, largest = vlargest(largest, vget(x, (size_t)c, type, left)););
    float scale = hzp_e4m3_scale(vlargest_of(largest));
    if (isnan(scale)) {
        memset(y, 0, (size_t)n);
        return scale;
    }
    vf by = vset(scale);
    EACH(c, n, vstore_e4m3(y + c, vdiv(vget(x, (size_t)c, type, left), by), left););
    return scale;
}

#ifdef __AVX512BF16__
/* 32 codes as bf16. */
INLINE __m512i words_of_codes(__m256i b)
{
    static const uint16_t small[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    __m512i v = _mm512_cvtepi8_epi16(b);
    __m512i f = _mm512_and_si512(_mm512_slli_epi16(v, 4), _mm512_set1_epi16(0x7f0));
    __mmask32 tiny = _mm512_testn_epi16_mask(v, _mm512_set1_epi16(0x78));
    f = _mm512_add_epi16(f, _mm512_set1_epi16(0x3c00));
    f = _mm512_mask_permutexvar_epi16(f, tiny, v, _mm512_loadu_si512(small));
    /* f | (v & sign) */
    return _mm512_ternarylogic_epi32(f, v, _mm512_set1_epi16((short)0x8000), 0xf8);
}
/* The same from memory; elements at `left` or beyond are 0. */
INLINE __m512i words_of_e4m3(const uint8_t *p, int left)
{
    return words_of_codes(left >= 32 ? _mm256_loadu_si256((const __m256i *)p)
                                     : _mm256_maskz_loadu_epi8((__mmask32)((1u << left) - 1), p));
}
#endif
