/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/decode_tmpl.h - products of a block of keys with queries, and of values with weights:
 * the inner loops of decode_tmpl.c.
 *
 * A block is up to ROWS rows of one kv head, one after another in memory, of F32, BF16 or E4M3
 * (codes, without their scales).  With pairs (bf16 queries, avx512_bf16) products of two bf16 are
 * added at a time, else floats.  While it computes, a block prefetches another.
 *
 * Only decode_tmpl.c includes it.  Thread: any.
 */
#pragma once

#include "device/cpu/fp8_tmpl.h"

enum {
    CHUNK = 256,            /* positions per chunk; each chunk has its own sums */
    ROWS = 16,              /* rows of a block */
    SCORES = CHUNK + ROWS,  /* scores of a head: blocks may write past the chunk's end */
    FETCH_BYTES = 16 << 10, /* prefetch distance: 4 K are 6 % slower, 24 K 5 % */
    HEADS_AT_ONCE = 4,
    NR = 4,
};

#ifdef __AVX512BF16__
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

INLINE size_t size_of(enum hzp_dtype type)
{
    return type == HZP_F32 ? 4 : type == HZP_BF16 ? 2 : 1;
}

/* A block to prefetch. */
struct wanted {
    const char *at;
    int n;
    bool far; /* into the second cache */
};

/* Prefetches two of its rows, from row r on: a few lines at a time, between other work, because a
 * core can have only a limited number of loads in flight.  Pages are scattered in memory, so the
 * hardware cannot predict them. */
INLINE void fetch_two(struct wanted want, int r, size_t row)
{
    if (r >= want.n)
        return;
    for (size_t i = 0; i < 2 * row; i += 64)
        if (want.far)
            fetch_far(want.at + (size_t)r * row + i);
        else
            fetch_near(want.at + (size_t)r * row + i);
}

/* Prefetches all rows from row r on. */
INLINE void fetch_rest(struct wanted want, int r, size_t row)
{
    for (; r < want.n; r += 2)
        fetch_two(want, r, row);
}

#if HAS_PAIRS

/* Elements d .. d+15 of keys k0 and k1, k0's in the lower half; zeros beyond `left`. */
INLINE __m512bh two_keys(bool narrow, const char *k0, const char *k1, int d, int left)
{
    __mmask16 some = lanes(HZP_MIN(16, left));
    bool whole = left >= 16;
    if (narrow) {
        __m128i a =
            whole ? _mm_loadu_si128((const __m128i *)(k0 + d)) : _mm_maskz_loadu_epi8(some, k0 + d);
        __m128i b =
            whole ? _mm_loadu_si128((const __m128i *)(k1 + d)) : _mm_maskz_loadu_epi8(some, k1 + d);
        return (__m512bh)words_of_codes(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
    }
    __m256i a = whole ? _mm256_loadu_si256((const __m256i *)(k0 + 2 * d))
                      : _mm256_maskz_loadu_epi16(some, k0 + 2 * d);
    __m256i b = whole ? _mm256_loadu_si256((const __m256i *)(k1 + 2 * d))
                      : _mm256_maskz_loadu_epi16(some, k1 + 2 * d);
    return (__m512bh)_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* Dot products of keys k0 and k1 with g queries: eight partial sums each, k0's in the lower
 * half. */
INLINE void dot_two(int g, bool narrow, int dim, const float *q, size_t ldq, const char *k0,
                    const char *k1, struct wanted want, int r, vf ret[HEADS_AT_ONCE])
{
    fetch_two(want, r, (size_t)dim * (narrow ? 1 : 2));
    for (int i = 0; i < g; i++)
        ret[i] = vzero();
    for (int d = 0; d < dim; d += 16) {
        __m512bh k = two_keys(narrow, k0, k1, d, dim - d);
        for (int i = 0; i < g; i++)
            ret[i] =
                _mm512_dpbf16_ps(ret[i], k, (__m512bh)_mm512_loadu_ps(q + (size_t)i * ldq + d));
    }
}

INLINE void dot_four(int g, bool narrow, int dim, const float *q, size_t ldq,
                     const char *const *key, struct wanted want, int r, vf ret[HEADS_AT_ONCE])
{
    vf a[HEADS_AT_ONCE], b[HEADS_AT_ONCE];

    dot_two(g, narrow, dim, q, ldq, key[0], key[1], want, r, a);
    dot_two(g, narrow, dim, q, ldq, key[2], key[3], want, r + 2, b);
    for (int i = 0; i < g; i++)
        ret[i] =
            vadd(_mm512_shuffle_f32x4(a[i], b[i], 0x88), _mm512_shuffle_f32x4(a[i], b[i], 0xdd));
}

INLINE void dot_eight(int g, bool narrow, int dim, const float *q, size_t ldq,
                      const char *const *key, struct wanted want, int r, vf ret[HEADS_AT_ONCE])
{
    vf a[HEADS_AT_ONCE], b[HEADS_AT_ONCE];

    dot_four(g, narrow, dim, q, ldq, key, want, r, a);
    dot_four(g, narrow, dim, q, ldq, key + 4, want, r + 4, b);
    for (int i = 0; i < g; i++) {
        __m512d x = _mm512_castps_pd(a[i]), y = _mm512_castps_pd(b[i]);
        ret[i] = vadd(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                      _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
}

/* Scores of g heads with n <= ROWS keys; ROWS floats are written.  Each fold halves the number of
 * partial sums per key and joins the keys of two vectors, so the keys are read in the order that
 * the last fold requires. */
INLINE void keys_pairs(int g, bool narrow, int dim, const float *q, const char *keys, int n,
                       float scale, struct wanted want, float *score)
{
    size_t row = (size_t)dim * (narrow ? 1 : 2), ldq = (size_t)HZP_ROUND_UP(dim, 16);
    const char *key[ROWS];
    vf a[HEADS_AT_ONCE], b[HEADS_AT_ONCE];

    for (int i = 0; i < ROWS; i++)
        key[i] = keys + (size_t)HZP_MIN(i % 4 * 4 + i / 4, n - 1) * row;
    dot_eight(g, narrow, dim, q, ldq, key, want, 0, a);
    dot_eight(g, narrow, dim, q, ldq, key + 8, want, 8, b);
    for (int i = 0; i < g; i++) {
        vf sum = vadd(_mm512_shuffle_ps(a[i], b[i], 0x88), _mm512_shuffle_ps(a[i], b[i], 0xdd));
        vstore(score + i * SCORES, vmul(sum, vset(scale)), VL);
    }
}

/* 32 elements of a row, or `left` if that is less. */
INLINE __m512i half_row(bool narrow, const char *row, int left)
{
    if (narrow)
        return words_of_e4m3((const uint8_t *)row, left);
    return left >= 32 ? _mm512_loadu_si512(row) : _mm512_maskz_loadu_epi16((1u << left) - 1, row);
}

/* Two rows are interleaved, and a dword of p holds the weights of both.  Of each 32 elements the
 * first vector then has 0-3, 8-11, 16-19, 24-27, and the second the others. */
INLINE void values_pairs(int g, bool narrow, int dim, const char *values, int n, const float *score,
                         struct wanted want, float *value)
{
    size_t size = narrow ? 1 : 2, row = (size_t)dim * size, wide = (size_t)HZP_ROUND_UP(dim, 32);

    for (int d0 = 0; d0 < dim; d0 += 64) {
        int nv = dim - d0 > 32 ? 4 : 2;
        vf acc[HEADS_AT_ONCE][4];
        float *at = value + d0;
        for (int i = 0; i < g; i++)
            for (int v = 0; v < nv; v++)
                acc[i][v] = vload(at + (size_t)i * wide + v * VL, VL);
        for (int p = 0; p < n; p += 2) {
            __m512bh woven[4];
            if (d0 == 0)
                fetch_two(want, p, row);
            for (int v = 0; v < nv; v += 2) {
                const char *x = values + (size_t)p * row + (size_t)(d0 + v * VL) * size;
                __m512i a = half_row(narrow, x, dim - d0 - v * VL);
                __m512i b = p + 1 < n ? half_row(narrow, x + row, dim - d0 - v * VL)
                                      : _mm512_setzero_si512();
                woven[v] = (__m512bh)_mm512_unpacklo_epi16(a, b);
                woven[v + 1] = (__m512bh)_mm512_unpackhi_epi16(a, b);
            }
            for (int i = 0; i < g; i++) {
                int32_t two;
                memcpy(&two, (const uint16_t *)(score + i * SCORES) + p, sizeof(two));
                for (int v = 0; v < nv; v++)
                    acc[i][v] =
                        _mm512_dpbf16_ps(acc[i][v], woven[v], (__m512bh)_mm512_set1_epi32(two));
            }
        }
        for (int i = 0; i < g; i++)
            for (int v = 0; v < nv; v++)
                vstore(at + (size_t)i * wide + v * VL, acc[i][v], VL);
    }
}

/* Elements d .. d+15 of a sum made by values_pairs. */
INLINE vf value_turned(const float *value, int d)
{
    vf a = vload(value + d / 32 * 32, VL), b = vload(value + d / 32 * 32 + VL, VL);
    vi at = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    if (d % 32)
        at = _mm512_or_si512(at, _mm512_set1_epi32(8));
    return _mm512_permutex2var_ps(a, at, b);
}

#else

INLINE void keys_pairs(int g, bool narrow, int dim, const float *q, const char *keys, int n,
                       float scale, struct wanted want, float *score)
{
    (void)g, (void)narrow, (void)dim, (void)q, (void)keys, (void)n, (void)scale, (void)want,
        (void)score;
}
INLINE void values_pairs(int g, bool narrow, int dim, const char *values, int n, const float *score,
                         struct wanted want, float *value)
{
    (void)g, (void)narrow, (void)dim, (void)values, (void)n, (void)score, (void)want, (void)value;
}
INLINE vf value_turned(const float *value, int d)
{
    return vload(value + d, VL);
}

#endif

/* Elements of a row of pages, without the scale. */
INLINE vf page_get(const void *p, size_t i, enum hzp_dtype type, int left)
{
    return type == HZP_E4M3 ? vload_e4m3((const uint8_t *)p + i, left) : vget(p, i, type, left);
}

/* Scores of g heads with NR keys; q: [g][dim] floats. */
INLINE void score_four(int g, enum hzp_dtype type, const float *q, const char *const key[NR],
                       int dim, float scale, v4 ret[HEADS_AT_ONCE])
{
    vf acc[HEADS_AT_ONCE][NR];

    UNROLL
    for (int i = 0; i < g; i++) {
        UNROLL
        for (int j = 0; j < NR; j++)
            acc[i][j] = vzero();
    }
    EACH(d, dim, {
        UNROLL
        for (int j = 0; j < NR; j++) {
            vf kv = page_get(key[j], (size_t)d, type, left);
            UNROLL
            for (int i = 0; i < g; i++)
                acc[i][j] = vfma(vload(q + i * dim + d, left), kv, acc[i][j]);
        }
    });
    UNROLL
    for (int i = 0; i < g; i++) {
        v4 sums =
            v4_sums(vfold4(acc[i][0]), vfold4(acc[i][1]), vfold4(acc[i][2]), vfold4(acc[i][3]));
        ret[i] = sums * v4_set(scale);
    }
}

INLINE void keys_plain(int g, enum hzp_dtype type, int dim, const float *q, const char *keys, int n,
                       float scale, struct wanted want, float *score)
{
    size_t row = (size_t)dim * size_of(type);

    for (int p = 0; p < n; p += NR) {
        const char *key[NR];
        v4 s[HEADS_AT_ONCE];
        fetch_two(want, p, row);
        fetch_two(want, p + 2, row);
        for (int j = 0; j < NR; j++)
            key[j] = keys + (size_t)HZP_MIN(p + j, n - 1) * row;
        score_four(g, type, q, key, dim, scale, s);
        for (int i = 0; i < g; i++)
            v4_store(score + i * SCORES + p, s[i]);
    }
}

/* value[i][d0 .. d0+nv*VL) += sum over p of score[i][p] v[p][d0 ..); the last vector has `left`
 * elements, and at d0 = 0 what is wanted is fetched. */
INLINE void values_wide(int g, int nv, enum hzp_dtype type, int dim, int d0, int last,
                        const char *values, int n, const float *score, struct wanted want,
                        float *value)
{
    size_t row = (size_t)dim * size_of(type);
    vf acc[HEADS_AT_ONCE][4];

    UNROLL
    for (int i = 0; i < g; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            acc[i][v] = vload(value + i * dim + d0 + v * VL, v + 1 < nv ? VL : last);
    }
    for (int p = 0; p < n; p++) {
        if (d0 == 0 && p % 2 == 0)
            fetch_two(want, p, row);
        UNROLL
        for (int v = 0; v < nv; v++) {
            vf vv = page_get(values + (size_t)p * row, (size_t)(d0 + v * VL), type,
                             v + 1 < nv ? VL : last);
            UNROLL
            for (int i = 0; i < g; i++)
                acc[i][v] = vfma(vset(score[i * SCORES + p]), vv, acc[i][v]);
        }
    }
    UNROLL
    for (int i = 0; i < g; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            vstore(value + i * dim + d0 + v * VL, acc[i][v], v + 1 < nv ? VL : last);
    }
}

/* value[i][d] += sum over p of score[i][p] v[p][d]. */
INLINE void values_plain(int g, enum hzp_dtype type, int dim, const char *values, int n,
                         const float *score, struct wanted want, float *value)
{
    const int nv = VL == 16 || g <= 3 ? 4 : 2; /* registers: g sums of each, and g scores */
    int d = 0;

    for (; d + nv * VL <= dim; d += nv * VL)
        values_wide(g, nv, type, dim, d, VL, values, n, score, want, value);
    for (; d < dim; d += VL)
        values_wide(g, 1, type, dim, d, HZP_MIN(VL, dim - d), values, n, score, want, value);
}

/* Multiplies the scores or weights of g heads with n <= ROWS rows by the rows' scales.  words: they
 * become bf16, from the same place on, with a 0 after an odd number of them. */
INLINE void rows_scale(int g, bool words, const float *scale, int n, float *score)
{
    for (int i = 0; i < g; i++, score += SCORES)
        EACH(c, n, {
            vf x = vmul(vload(score + c, left), vload(scale + c, left));
#if HAS_PAIRS
            if (words)
                _mm256_mask_storeu_epi16(score, lanes(HZP_ROUND_UP(n, 2)),
                                         (__m256i)_mm512_cvtneps_pbh(vkeep(x, 0, left)));
            else
#endif
                vstore(score + c, x, left);
        });
    (void)words;
}
