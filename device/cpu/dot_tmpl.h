/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/dot_tmpl.h - stores four neighbouring elements of c, for products that fold their
 * sums.
 *
 * Only *_tmpl.c files include it.  Thread: any.
 */
#ifndef HZP_DEVICE_CPU_DOT_H
#define HZP_DEVICE_CPU_DOT_H

#include "device/cpu/vec_tmpl.h"

INLINE __m128 four_load(const void *p, size_t i, enum hzp_dtype type)
{
    if (type == HZP_F32)
        return _mm_loadu_ps((const float *)p + i);
    __m128i h = _mm_loadl_epi64((const __m128i *)((const uint16_t *)p + i));
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(h), 16));
}

/* Rounds to nearest, ties to even; NaN is made quiet. */
INLINE void four_store(void *p, size_t i, enum hzp_dtype type, __m128 x)
{
    if (type == HZP_F32) {
        _mm_storeu_ps((float *)p + i, x);
        return;
    }
    __m128i u = _mm_castps_si128(x), one = _mm_set1_epi32(1);
    __m128i odd = _mm_and_si128(_mm_srli_epi32(u, 16), one);
    __m128i up = _mm_add_epi32(_mm_add_epi32(u, _mm_set1_epi32(0x7fff)), odd);
    __m128i quiet = _mm_or_si128(u, _mm_set1_epi32(0x400000));
    up = _mm_blendv_epi8(up, quiet, _mm_castps_si128(_mm_cmpunord_ps(x, x)));
    up = _mm_srli_epi32(up, 16);
    _mm_storel_epi64((__m128i *)((uint16_t *)p + i), _mm_packus_epi32(up, up));
}

/* Stores c[m][n..n+left) from the finished sums. */
INLINE void dot_store(const struct hzp_matmul_args *a, int m, int n, int left, __m128 sum)
{
    size_t size = a->c.type == HZP_F32 ? 4 : 2, bias_size = a->bias.type == HZP_F32 ? 4 : 2;
    char *c = (char *)hzp_cpu_row(&a->c, m) + (size_t)n * size, old[16], bias[16];

    if (a->scale_a) {
        float by[4] = {0};
        for (int j = 0; j < left; j++)
            by[j] = a->scale_b[n + j];
        sum = _mm_mul_ps(_mm_mul_ps(sum, _mm_set1_ps(a->scale_a[m])), _mm_loadu_ps(by));
    }
    if (left == 4) {
        if (a->bias.ptr)
            sum = _mm_add_ps(sum, four_load(a->bias.ptr, (size_t)n, a->bias.type));
        if (a->accumulate)
            sum = _mm_add_ps(sum, four_load(c, 0, a->c.type));
        four_store(c, 0, a->c.type, sum);
        return;
    }
    if (a->bias.ptr) {
        memcpy(bias, (const char *)a->bias.ptr + (size_t)n * bias_size, (size_t)left * bias_size);
        sum = _mm_add_ps(sum, four_load(bias, 0, a->bias.type));
    }
    if (a->accumulate) {
        memcpy(old, c, (size_t)left * size);
        sum = _mm_add_ps(sum, four_load(old, 0, a->c.type));
    }
    four_store(old, 0, a->c.type, sum);
    memcpy(c, old, (size_t)left * size);
}

#endif
