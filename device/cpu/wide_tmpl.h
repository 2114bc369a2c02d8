/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/wide_tmpl.h - the vectors of wide_tmpl.c and few_tmpl.c: LANES floats, in the
 * compilers' own types.
 *
 * HZP_WIDE_LANES: LANES, where it is not the instruction set's own.
 *
 * Only those two include it.  Thread: any.
 */
#pragma once

#include "device/cpu/isa_tmpl.h"
#include "device/cpu/panel.h"
#include "device/fp8.h"

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors wider than registers stay within one file */
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
    CHUNK_E4M3 = 4 * VL, /* a dword of each */
    LINE = 64,
};
_Static_assert((int)ROWS <= (int)VL, "x_across packs at most VL rows");

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef float vf_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(4 * LANES), aligned(1), may_alias));
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
    return type == HZP_F32 ? 4 : type == HZP_BF16 ? 2 : 1;
}

INLINE int chunk_of(enum hzp_dtype type)
{
    return type == HZP_E4M3 ? CHUNK_E4M3 : CHUNK;
}

/* The codes in the highest byte of each lane, none of them NaN: seen as a float, a code without its
 * sign is 2^-120 of its value, those with exponent 0 too. */
INLINE vf of_e4m3(vu v)
{
    return (vf)((vu)((vi)v >> 4) & 0x87f00000u) * 0x1p120f;
}

/* 4 / size elements of k for each lane: dword i of a transposed block, as floats.  y: the first */
INLINE void widen(vu r, enum hzp_dtype type, vf *y)
{
    if (type == HZP_F32) {
        y[0] = (vf)r;
    } else if (type == HZP_BF16) {
        y[0] = (vf)(r << 16);
        y[1] = (vf)(r & 0xffff0000u);
    } else {
        y[0] = of_e4m3(r << 24);
        y[1] = of_e4m3(r << 16);
        y[2] = of_e4m3(r << 8);
        y[3] = of_e4m3(r);
    }
}

INLINE float one_of(const struct hzp_mat *mat, int64_t row, int64_t col)
{
    const void *p = hzp_cpu_row(mat, row);
    if (mat->type == HZP_E4M3)
        return hzp_e4m3_to_f32(((const uint8_t *)p)[col]);
    return mat->type == HZP_F32 ? ((const float *)p)[col]
                                : hzp_bf16_to_f32(((const uint16_t *)p)[col]);
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

/* Row m of c from finished sums of columns n .. n1; n1 - n = width, whole vectors, is fast. */
INLINE void store_as(const struct hzp_matmul_args *a, int m, int n, int n1, int width,
                     const float *sums, enum hzp_dtype type)
{
    size_t size = size_of(type);
    char *c = (char *)hzp_cpu_row(&a->c, m) + (size_t)n * size;
    const char *bias =
        a->bias.ptr ? (const char *)a->bias.ptr + (size_t)n * size_of(a->bias.type) : NULL;

    if (n1 - n == width) {
        UNROLL
        for (int j = 0; j < width; j += VL) {
            vf y = load(sums + j);
            if (a->scale_a)
                y = y * a->scale_a[m] * load(a->scale_b + n + j);
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
        if (a->scale_a)
            y = y * a->scale_a[m] * a->scale_b[n + j];
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

INLINE void store(const struct hzp_matmul_args *a, int m, int n, int n1, int width,
                  const float *sums)
{
    if (a->c.type == HZP_F32)
        store_as(a, m, n, n1, width, sums, HZP_F32);
    else
        store_as(a, m, n, n1, width, sums, HZP_BF16);
}
