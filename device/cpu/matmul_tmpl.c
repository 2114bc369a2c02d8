/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/dot_tmpl.h"
#include "device/cpu/fp8_tmpl.h"
#include "device/cpu/matmul.h"

/* How one step along k reads and multiplies: floats, or bf16 that become floats, or W in E4M3 that
 * does.  PAIRS_E4M3: W becomes bf16, 32 a vector, and products of neighbours are added in the
 * instruction. */
enum kind { F32, WIDE, WIDE_E4M3, PAIRS_E4M3 };

#ifdef __AVX512F__
enum { MR = 6, MR_OUTER = 6 };
#else
enum { MR = 3, MR_OUTER = 3 };
#endif
enum { NR = 4, NV = 3 };

#ifdef __AVX512BF16__
typedef __m512bh vpair;
enum { PAIR_VL = 32 };
INLINE vpair pair_load(const uint16_t *p, int left)
{
    __m512i v = left >= PAIR_VL ? _mm512_loadu_si512(p)
                                : _mm512_maskz_loadu_epi16((__mmask32)((1u << left) - 1), p);
    return (vpair)v;
}
#endif

/* Step of k in elements. */
INLINE int k_step(enum kind kind)
{
    return kind == PAIRS_E4M3 ? 2 * VL : VL;
}

/* Bytes of an element of W. */
INLINE size_t w_bytes(enum kind kind)
{
    return kind == F32 ? 4 : kind == WIDE ? 2 : 1;
}

/* acc[m][j] += x[m][k..k+left) . w[j][k..k+left) */
INLINE void dot_step(int mr, enum kind kind, vf acc[MR][NR], const char *x, size_t ldx,
                     const char *const w[NR], int k, int left)
{
#ifdef __AVX512BF16__
    if (kind == PAIRS_E4M3) {
        vpair wv[NR];
        for (int j = 0; j < NR; j++)
            wv[j] = (vpair)words_of_e4m3((const uint8_t *)w[j] + k, left);
        for (int m = 0; m < mr; m++) {
            vpair xv = pair_load((const uint16_t *)(x + (size_t)m * ldx) + k, left);
            for (int j = 0; j < NR; j++)
                acc[m][j] = _mm512_dpbf16_ps(acc[m][j], xv, wv[j]);
        }
        return;
    }
#endif
    vf wv[NR];
    for (int j = 0; j < NR; j++)
        wv[j] = kind == WIDE_E4M3 ? vload_e4m3((const uint8_t *)w[j] + k, left)
                                  : vget(w[j], (size_t)k, kind == F32 ? HZP_F32 : HZP_BF16, left);
    for (int m = 0; m < mr; m++) {
        vf xv = vget(x + (size_t)m * ldx, (size_t)k, kind == F32 ? HZP_F32 : HZP_BF16, left);
        for (int j = 0; j < NR; j++)
            acc[m][j] = vfma(xv, wv[j], acc[m][j]);
    }
}

/* Four sums over lanes at once, each in the order of vsum. */
INLINE __m128 fold_four(const vf acc[NR])
{
    __m128 a = vfold4(acc[0]), b = vfold4(acc[1]), c = vfold4(acc[2]), d = vfold4(acc[3]);
    __m128 ab_lo = _mm_movelh_ps(a, b), ab_hi = _mm_movehl_ps(b, a);
    __m128 cd_lo = _mm_movelh_ps(c, d), cd_hi = _mm_movehl_ps(d, c);
    __m128 ab = _mm_add_ps(ab_lo, ab_hi), cd = _mm_add_ps(cd_lo, cd_hi);
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
}

/* One tile of mr x NR sums over block kb of k; part: the sums so far, and what the caller adds next
 * to; ahead: from this tile's rows of W to those that will be read next, 0: not now. */
INLINE void dot_tile(const struct hzp_dot *d, int mr, enum kind kind, int m, int n, int n1, int kb,
                     float *part, ptrdiff_t ahead)
{
    const struct hzp_matmul_args *a = d->args;
    const char *x = d->x + (size_t)kb * d->block_bytes + (size_t)m * d->row_bytes, *w[NR];
    int k0 = kb * d->k_block, k_end = HZP_MIN(d->k_block, a->a.cols - k0), step = k_step(kind);
    size_t size = w_bytes(kind);
    bool last = k0 + k_end == a->a.cols;
    vf acc[MR][NR];
    int k = 0;

    for (int j = 0; j < NR; j++)
        w[j] = (const char *)hzp_cpu_row(&a->b, HZP_MIN(n + j, n1 - 1)) + (size_t)k0 * size;
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < NR; j++)
            acc[i][j] = kb > 0 ? vload(part + (i * NR + j) * VL, VL) : vzero();
    if (ahead)
        for (; k + step <= k_end; k += step) {
            for (int j = 0; j < NR; j++)
                _mm_prefetch(w[j] + ahead + (size_t)k * size, _MM_HINT_T0);
            dot_step(mr, kind, acc, x, d->row_bytes, w, k, step);
        }
    for (; k + step <= k_end; k += step)
        dot_step(mr, kind, acc, x, d->row_bytes, w, k, step);
    if (k < k_end)
        dot_step(mr, kind, acc, x, d->row_bytes, w, k, k_end - k);
    if (!last) {
        for (int i = 0; i < mr; i++)
            for (int j = 0; j < NR; j++)
                vstore(part + (i * NR + j) * VL, acc[i][j], VL);
        return;
    }
    for (int i = 0; i < mr; i++)
        dot_store(a, m + i, n, HZP_MIN(NR, n1 - n), fold_four(acc[i]));
}

INLINE void dot_tiles(const struct hzp_dot *d, enum kind kind, int mr, int m, int n, int n1, int kb,
                      float *part, ptrdiff_t ahead)
{
    switch (mr) {
    case 1:
        dot_tile(d, 1, kind, m, n, n1, kb, part, ahead);
        break;
    case 2:
        dot_tile(d, 2, kind, m, n, n1, kb, part, ahead);
        break;
    case 3:
        dot_tile(d, 3, kind, m, n, n1, kb, part, ahead);
        break;
#ifdef __AVX512F__
    case 4:
        dot_tile(d, 4, kind, m, n, n1, kb, part, ahead);
        break;
    case 5:
        dot_tile(d, 5, kind, m, n, n1, kb, part, ahead);
        break;
    case 6:
        dot_tile(d, 6, kind, m, n, n1, kb, part, ahead);
        break;
#endif
    }
}

INLINE void dot_kind(const struct hzp_dot *d, enum kind kind, int m0, int m1, int n0, int n1,
                     float *work)
{
    ptrdiff_t row = (ptrdiff_t)d->args->b.stride * (ptrdiff_t)w_bytes(kind);
    ptrdiff_t down = row * NR, back = row * (n0 - (n1 - 1) / NR * NR);
    int blocks = HZP_DIV_UP(HZP_MAX(d->args->a.cols, 1), d->k_block);

    for (int kb = 0; kb < blocks; kb++) {
        float *part = work;
        ptrdiff_t next = back + (ptrdiff_t)d->k_block * (ptrdiff_t)w_bytes(kind);
        for (int n = n0; n < n1; n += NR)
            for (int m = m0; m < m1; m += MR, part += MR * NR * VL) {
                ptrdiff_t ahead = n + NR < n1 || kb + 1 == blocks ? down : next;
                dot_tiles(d, kind, HZP_MIN(MR, m1 - m), m, n, n1, kb, part, m == m0 ? ahead : 0);
            }
    }
}

static void cpu_dot(const struct hzp_dot *d, int m0, int m1, int n0, int n1, float *work)
{
#ifdef __AVX512BF16__
    enum { QUARTER = PAIRS_E4M3 };
#else
    enum { QUARTER = WIDE_E4M3 };
#endif
    if (d->args->a.type == HZP_F32)
        dot_kind(d, F32, m0, m1, n0, n1, work);
    else if (d->args->a.type == HZP_BF16)
        dot_kind(d, WIDE, m0, m1, n0, n1, work);
    else
        dot_kind(d, (enum kind)QUARTER, m0, m1, n0, n1, work);
}

static void widen(const uint8_t *from, uint16_t *to, int count)
{
    EACH(i, count, vstore_bf16(to + i, vload_e4m3(from + i, left), left););
}

/* Elements of op(a) and op(b) as floats, any flags. */
INLINE float outer_a(const struct hzp_matmul_args *a, int m, int k)
{
    size_t i = a->trans_a ? (size_t)k * (size_t)a->a.stride + (size_t)m
                          : (size_t)m * (size_t)a->a.stride + (size_t)k;
    return a->a.type == HZP_BF16 ? hzp_bf16_to_f32(((const uint16_t *)a->a.ptr)[i])
                                 : ((const float *)a->a.ptr)[i];
}

INLINE vf outer_b(const struct hzp_matmul_args *a, int k, int n, int left)
{
    if (!a->trans_b)
        return vget(a->b.ptr, (size_t)k * (size_t)a->b.stride + (size_t)n, a->b.type, left);
    float v[VL] = {0};
    for (int j = 0; j < left; j++) {
        size_t i = (size_t)(n + j) * (size_t)a->b.stride + (size_t)k;
        v[j] = a->b.type == HZP_BF16 ? hzp_bf16_to_f32(((const uint16_t *)a->b.ptr)[i])
                                     : ((const float *)a->b.ptr)[i];
    }
    return vload(v, VL);
}

INLINE void outer_store(const struct hzp_matmul_args *a, int m, int n, int left, vf y)
{
    void *c = hzp_cpu_row(&a->c, m);
    if (a->bias.ptr)
        y = vadd(y, vget(a->bias.ptr, (size_t)n, a->bias.type, left));
    if (a->accumulate)
        y = vadd(y, vget(c, (size_t)n, a->c.type, left));
    vput(c, (size_t)n, a->c.type, y, left);
}

/* mr rows by up to NV vectors of c. */
INLINE void outer_tile(const struct hzp_matmul_args *a, int mr, int m, int n, int width)
{
    vf acc[MR_OUTER][NV];
    int k_end = a->trans_a ? a->a.rows : a->a.cols;
    int nv = HZP_DIV_UP(width, VL);

    for (int i = 0; i < mr; i++)
        for (int v = 0; v < NV; v++)
            acc[i][v] = vzero();
    for (int k = 0; k < k_end; k++) {
        vf b[NV];
        for (int v = 0; v < NV; v++)
            b[v] = v < nv ? outer_b(a, k, n + v * VL, HZP_MIN(VL, width - v * VL)) : vzero();
        for (int i = 0; i < mr; i++) {
            vf s = vset(outer_a(a, m + i, k));
            for (int v = 0; v < NV; v++)
                acc[i][v] = vfma(s, b[v], acc[i][v]);
        }
    }
    for (int i = 0; i < mr; i++)
        for (int v = 0; v < nv; v++)
            outer_store(a, m + i, n + v * VL, HZP_MIN(VL, width - v * VL), acc[i][v]);
}

static void cpu_outer(const struct hzp_matmul_args *a, int m0, int m1, int n0, int n1)
{
    for (int n = n0; n < n1; n += NV * VL) {
        int width = HZP_MIN(NV * VL, n1 - n), m = m0;
        for (; m + MR_OUTER <= m1; m += MR_OUTER)
            outer_tile(a, MR_OUTER, m, n, width);
        for (; m < m1; m++)
            outer_tile(a, 1, m, n, width);
    }
}

#ifdef __AVX512BF16__
static const struct hzp_cpu_product product = {cpu_dot, cpu_outer, &HZP_ISA_NAME(hzp_cpu_thin),
                                               &HZP_ISA_NAME(hzp_cpu_panel), widen};
#else
static const struct hzp_cpu_product product = {cpu_dot, cpu_outer, NULL, NULL, widen};
#endif

static int cpu_matmul(struct hzp_lane *lane, const void *args)
{
    return hzp_cpu_matmul(lane, args, &product);
}

void HZP_ISA_NAME(hzp_cpu_fill_matmul)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_matmul] = cpu_matmul;
}
