/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/vec_tmpl.h - vectors of floats, with the same names for AVX2, AVX-512 and any other
 * CPU (vec_base_tmpl.h).
 *
 * Only *_tmpl.c files include it.  Loads and stores take the number of elements that are left,
 * 1 .. VL; if that is the constant VL the mask is optimized away.
 *
 * Thread: any.
 */
#pragma once

#include "device/cpu/isa_tmpl.h"

/* Runs the body for i = 0, VL, 2 VL ...; `left` is VL, in the last iteration the remainder. */
#define EACH(i, n, ...)                                                                            \
    do {                                                                                           \
        int i = 0;                                                                                 \
        for (; i + VL <= (n); i += VL) {                                                           \
            const int left = VL;                                                                   \
            (void)left;                                                                            \
            __VA_ARGS__                                                                            \
        }                                                                                          \
        if (i < (n)) {                                                                             \
            const int left = (n)-i;                                                                \
            (void)left;                                                                            \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)

/* Four floats, on every instruction set. */
typedef float v4 __attribute__((vector_size(16), may_alias));
typedef int32_t v4i __attribute__((vector_size(16), may_alias));
typedef uint32_t v4u __attribute__((vector_size(16), may_alias));
typedef uint16_t v4h __attribute__((vector_size(8), may_alias));

/* Lanes of two, the second's counted from 4 on. */
#ifdef __clang__
#define V4_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define V4_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (v4i){__VA_ARGS__})
#endif

INLINE v4 v4_load(const float *p)
{
    v4 a;
    memcpy(&a, p, sizeof(a));
    return a;
}
INLINE void v4_store(float *p, v4 a)
{
    memcpy(p, &a, sizeof(a));
}
INLINE v4 v4_set(float x)
{
    return (v4){x, x, x, x};
}
INLINE v4 v4_of_bf16(v4h h)
{
    return (v4)(__builtin_convertvector(h, v4u) << 16);
}
/* Rounds to nearest, ties to even; NaN is made quiet. */
INLINE v4h v4_to_bf16(v4 a)
{
    v4u u = (v4u)a, nan = (v4u)(a != a);
    v4u up = u + 0x7fff + ((u >> 16) & 1);
    up = (up & ~nan) | ((u | 0x400000) & nan);
    return __builtin_convertvector(up >> 16, v4h);
}
/* Each lane the sum of one vector's lanes, added up in the order of v4_sum. */
INLINE v4 v4_sums(v4 a, v4 b, v4 c, v4 d)
{
    v4 ab = V4_SHUFFLE(a, b, 0, 1, 4, 5) + V4_SHUFFLE(a, b, 2, 3, 6, 7);
    v4 cd = V4_SHUFFLE(c, d, 0, 1, 4, 5) + V4_SHUFFLE(c, d, 2, 3, 6, 7);
    return V4_SHUFFLE(ab, cd, 0, 2, 4, 6) + V4_SHUFFLE(ab, cd, 1, 3, 5, 7);
}
INLINE float v4_sum(v4 a)
{
    a += V4_SHUFFLE(a, a, 2, 3, 2, 3);
    return a[0] + a[1];
}

#ifdef __AVX2__ /* with AVX-512 it is there, too */
#ifdef __AVX512F__
enum { VL = 16 };
typedef __m512 vf;
typedef __m512i vi;
#define MM(op) _mm512_##op
#else
enum { VL = 8 };
typedef __m256 vf;
typedef __m256i vi;
#define MM(op) _mm256_##op
#endif

#define vset(x)        MM(set1_ps)(x)
#define vzero()        MM(setzero_ps)()
#define vadd(a, b)     MM(add_ps)(a, b)
#define vsub(a, b)     MM(sub_ps)(a, b)
#define vmul(a, b)     MM(mul_ps)(a, b)
#define vdiv(a, b)     MM(div_ps)(a, b)
#define vfma(a, b, c)  MM(fmadd_ps)(a, b, c)
#define vfnma(a, b, c) MM(fnmadd_ps)(a, b, c)
#define vmax(a, b)     MM(max_ps)(a, b) /* the second operand if either is NaN */
#define vmin(a, b)     MM(min_ps)(a, b)
#define vsqrt(a)       MM(sqrt_ps)(a)
#endif

#if defined(__AVX512F__)

INLINE __mmask16 lanes(int left)
{
    return (__mmask16)((1u << left) - 1);
}
INLINE vf vload(const float *p, int left)
{
    return left == VL ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(lanes(left), p);
}
INLINE void vstore(float *p, vf a, int left)
{
    if (left == VL)
        _mm512_storeu_ps(p, a);
    else
        _mm512_mask_storeu_ps(p, lanes(left), a);
}
INLINE vf vload_bf16(const uint16_t *p, int left)
{
    __m256i h = left == VL ? _mm256_loadu_si256((const __m256i *)p)
                           : _mm256_maskz_loadu_epi16(lanes(left), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
/* Rounds to nearest, ties to even; NaN is made quiet, denormals are kept (vcvtneps2bf16 would flush
 * them). */
INLINE __m256i vto_bf16(vf a)
{
    vi u = _mm512_castps_si512(a), one = _mm512_set1_epi32(1);
    vi odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
    vi up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}
INLINE void vstore_bf16(uint16_t *p, vf a, int left)
{
    if (left == VL)
        _mm256_storeu_si256((__m256i *)p, vto_bf16(a));
    else
        _mm256_mask_storeu_epi16(p, lanes(left), vto_bf16(a));
}
/* Adds the upper half to the lower until four lanes are left: every sum over lanes adds in this
 * order. */
INLINE v4 vfold4(vf a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
INLINE float vtop(vf a)
{
    return _mm512_reduce_max_ps(a);
}
/* x in the first `left` lanes, else `other`. */
INLINE vf vkeep(vf x, float other, int left)
{
    return left == VL ? x : _mm512_mask_mov_ps(vset(other), lanes(left), x);
}
/* x in lanes where at >= from, else 0. */
INLINE vf vselect_from(vf x, vf at, float from)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(at, vset(from), _CMP_GE_OQ), x);
}
/* One bit per lane. */
INLINE int vany_above(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
INLINE int vany_at_least(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}
/* NaN becomes minus infinity. */
INLINE vf vno_nan(vf a)
{
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), vset(-INFINITY));
}

/* For vexp: the range of x, whole numbers, 2^n y. */
static const float exp_low = -105.f, exp_high = 89.f;
INLINE vf vround(vf x)
{
    return _mm512_roundscale_ps(x, 8);
}
INLINE vf vscale(vf y, vf n, vf x)
{
    return _mm512_scalef_ps(y, n);
}

/* r[i], i < 16: dword j of row i becomes dword i of row j. */
INLINE void transpose16(vi r[16])
{
    vi t[16];

    UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4)
        for (int h = 0; h < 2; h++) {
            r[i + 2 * h] = _mm512_unpacklo_epi64(t[i + h], t[i + h + 2]);
            r[i + 2 * h + 1] = _mm512_unpackhi_epi64(t[i + h], t[i + h + 2]);
        }
    UNROLL
    for (int i = 0; i < 4; i++)
        for (int h = 0; h < 2; h++) {
            t[i + 8 * h] = _mm512_shuffle_i32x4(r[i + 8 * h], r[i + 8 * h + 4], 0x88);
            t[i + 8 * h + 4] = _mm512_shuffle_i32x4(r[i + 8 * h], r[i + 8 * h + 4], 0xdd);
        }
    UNROLL
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

#elif defined(__AVX2__)

INLINE vi lanes(int left)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf vload(const float *p, int left)
{
    return left == VL ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lanes(left));
}
INLINE void vstore(float *p, vf a, int left)
{
    if (left == VL)
        _mm256_storeu_ps(p, a);
    else
        _mm256_maskstore_ps(p, lanes(left), a);
}
INLINE vf vload_bf16(const uint16_t *p, int left)
{
    __m128i h;
    if (left == VL) {
        h = _mm_loadu_si128((const __m128i *)p);
    } else {
        uint16_t t[8] = {0};
        for (int i = 0; i < left; i++)
            t[i] = p[i];
        h = _mm_loadu_si128((const __m128i *)t);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
/* Rounds to nearest, ties to even; NaN is made quiet. */
INLINE __m128i vto_bf16(vf a)
{
    vi u = _mm256_castps_si256(a), one = _mm256_set1_epi32(1);
    vi odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
    vi up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    vi quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    vi nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    up = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
    up = _mm256_permute4x64_epi64(_mm256_packus_epi32(up, up), 0x08);
    return _mm256_castsi256_si128(up);
}
INLINE void vstore_bf16(uint16_t *p, vf a, int left)
{
    __m128i h = vto_bf16(a);
    if (left == VL) {
        _mm_storeu_si128((__m128i *)p, h);
    } else {
        uint16_t t[8];
        _mm_storeu_si128((__m128i *)t, h);
        for (int i = 0; i < left; i++)
            p[i] = t[i];
    }
}
/* Adds the upper half to the lower until four lanes are left: every sum over lanes adds in this
 * order. */
INLINE v4 vfold4(vf a)
{
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
INLINE float vtop(vf a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
/* x in the first `left` lanes, else `other`. */
INLINE vf vkeep(vf x, float other, int left)
{
    return left == VL ? x : _mm256_blendv_ps(vset(other), x, _mm256_castsi256_ps(lanes(left)));
}
/* x in lanes where at >= from, else 0. */
INLINE vf vselect_from(vf x, vf at, float from)
{
    return _mm256_and_ps(_mm256_cmp_ps(at, vset(from), _CMP_GE_OQ), x);
}
/* One bit per lane. */
INLINE int vany_above(vf a, vf b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
INLINE int vany_at_least(vf a, vf b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}
/* NaN becomes minus infinity. */
INLINE vf vno_nan(vf a)
{
    return _mm256_blendv_ps(a, vset(-INFINITY), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}

/* For vexp: the range of x, whole numbers; 2^n y, and 0 or infinity where x is out of range. */
static const float exp_low = -87.33f, exp_high = 88.72f;
INLINE vf vround(vf x)
{
    return _mm256_round_ps(x, 8);
}
/* In two halves, because 2^n itself may not be a normal number. */
INLINE vf vscale(vf y, vf n, vf x)
{
    vi e = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(e, 1), rest = _mm256_sub_epi32(e, half);
    vi bias = _mm256_set1_epi32(127);
    y = vmul(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    y = vmul(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
    y = _mm256_blendv_ps(y, vset(INFINITY), _mm256_cmp_ps(x, vset(exp_high), _CMP_GT_OQ));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, vset(exp_low), _CMP_LT_OQ), y);
}

#else
#include "device/cpu/vec_base_tmpl.h"
#endif

/* exp, relative error below 3e-7: 2^n times a polynomial on [-ln2/2, ln2/2]; denormal results may
 * be 0. */
INLINE vf vexp(vf x)
{
    vf inside = vmax(vset(exp_low), vmin(vset(exp_high), x));
    vf n = vround(vmul(inside, vset(1.44269504088896341f)));
    vf r = vfnma(n, vset(0.693359375f), inside);
    r = vfnma(n, vset(-2.12194440e-4f), r);
    vf y = vset(1.9875691500e-4f);
    y = vfma(y, r, vset(1.3981999507e-3f));
    y = vfma(y, r, vset(8.3334519073e-3f));
    y = vfma(y, r, vset(4.1665795894e-2f));
    y = vfma(y, r, vset(1.6666665459e-1f));
    y = vfma(y, r, vset(5.0000001201e-1f));
    y = vadd(vfma(y, vmul(r, r), r), vset(1.f));
    return vscale(y, n, x);
}

INLINE float vsum(vf a)
{
    return v4_sum(vfold4(a));
}

/* Absolute error below 3e-7. */
INLINE vf vtanh(vf x)
{
    vf e = vexp(vmul(vset(2.f), vmax(vset(-16.f), vmin(vset(16.f), x)))), one = vset(1.f);
    return vdiv(vsub(e, one), vadd(e, one));
}

/* GELU by tanh is g / (1 + exp(-z)) of this z. */
INLINE vf gelu_sigmoid_of(vf g)
{
    return vmul(g, vfma(vmul(g, g), vset(HZP_GELU_3), vset(HZP_GELU_1)));
}

/* Elements from i on of an F32 or BF16 array. */
INLINE vf vget(const void *p, size_t i, enum hzp_dtype type, int left)
{
    return type == HZP_BF16 ? vload_bf16((const uint16_t *)p + i, left)
                            : vload((const float *)p + i, left);
}
/* The same of a norm's weights. */
INLINE vf vweight(const struct hzp_mat *w, size_t i, enum hzp_dtype type, bool plus_one, int left)
{
    vf v = vget(w->ptr, i, type, left);
    return plus_one ? vadd(v, vset(1.f)) : v;
}
/* The mean of a row, which a centred norm subtracts. */
INLINE vf vcentre(const float *x, int cols, bool centred)
{
    vf sum = vzero();
    if (centred)
        EACH(c, cols, sum = vadd(sum, vload(x + c, left)););
    return vset(vsum(sum) / (float)HZP_MAX(cols, 1));
}
/* Element i of a row of F32 or BF16. */
INLINE float velement(const struct hzp_mat *m, int i)
{
    return m->type == HZP_F32 ? ((const float *)m->ptr)[i]
                              : hzp_bf16_to_f32(((const uint16_t *)m->ptr)[i]);
}
INLINE void vput(void *p, size_t i, enum hzp_dtype type, vf x, int left)
{
    if (type == HZP_BF16)
        vstore_bf16((uint16_t *)p + i, x, left);
    else
        vstore((float *)p + i, x, left);
}
