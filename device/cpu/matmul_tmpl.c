/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/dot_tmpl.h"
#include "device/cpu/fp8_tmpl.h"
#include "device/cpu/matmul.h"

/* How one step along k multiplies bf16 by W: W in bf16, both become floats; W in E4M3, likewise; or
 * that W becomes bf16, 32 a vector, and products of neighbours are added in the instruction. */
enum kind { WIDE, WIDE_E4M3, PAIRS_E4M3 };

#ifdef __AVX512F__
enum { MR = 6 };
#else
enum { MR = 3 };
#endif
enum { NR = 4 };

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
    return kind == WIDE ? 2 : 1;
}

/* acc[m][j] += x[m][k..k+left) . w[j][k..k+left) */
INLINE void dot_step(int mr, enum kind kind, vf acc[][NR], const char *x, size_t ldx,
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
        wv[j] = kind == WIDE ? vload_bf16((const uint16_t *)(const void *)w[j] + k, left)
                             : vload_e4m3((const uint8_t *)w[j] + k, left);
    for (int m = 0; m < mr; m++) {
        vf xv = vload_bf16((const uint16_t *)(x + (size_t)m * ldx) + k, left);
        for (int j = 0; j < NR; j++)
            acc[m][j] = vfma(xv, wv[j], acc[m][j]);
    }
}

/* Four sums over lanes at once, each in the order of vsum. */
INLINE v4 fold_four(const vf acc[NR])
{
    return v4_sums(vfold4(acc[0]), vfold4(acc[1]), vfold4(acc[2]), vfold4(acc[3]));
}

/* One tile of mr x NR sums over block kb of k; part: the sums so far, and what the caller adds next
 * to; ahead: from this tile's rows of W to those that will be read next, 0: not now. */
INLINE void dot_tile(const struct hzp_dot *d, int mr, enum kind kind, int m, int n, int n1, int kb,
                     float *part, ptrdiff_t ahead)
{
    const struct hzp_matmul_args *a = d->args;
    const char *x = d->x + (size_t)kb * d->block_bytes + (size_t)m * d->row_bytes, *w[NR];
    int k0 = kb * d->k_block, k_end = HZP_MIN(d->k_block, a->a.cols - k0), step = k_step(kind);
    bool last = k0 + k_end == a->a.cols;
    vf acc[MR][NR];
    int k = 0;

    for (int j = 0; j < NR; j++)
        w[j] =
            (const char *)hzp_cpu_row(&a->b, HZP_MIN(n + j, n1 - 1)) + (size_t)k0 * w_bytes(kind);
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < NR; j++)
            acc[i][j] = kb > 0 ? vload(part + (i * NR + j) * VL, VL) : vzero();
    if (ahead)
        for (; k + step <= k_end; k += step) {
            for (int j = 0; j < NR; j++)
                fetch_near(w[j] + ahead + (size_t)k * w_bytes(kind));
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
    ptrdiff_t size = (ptrdiff_t)w_bytes(kind), row = d->args->b.stride * size;
    ptrdiff_t down = row * NR, back = row * (n0 - (n1 - 1) / NR * NR);
    int blocks = HZP_DIV_UP(HZP_MAX(d->args->a.cols, 1), d->k_block);

    for (int kb = 0; kb < blocks; kb++) {
        float *part = work;
        ptrdiff_t next = back + d->k_block * size;
        for (int n = n0; n < n1; n += NR)
            for (int m = m0; m < m1; m += MR, part += MR * NR * VL) {
                ptrdiff_t ahead = n + NR < n1 || kb + 1 == blocks ? down : next;
                dot_tiles(d, kind, HZP_MIN(MR, m1 - m), m, n, n1, kb, part, m == m0 ? ahead : 0);
            }
    }
}

/* One row of x by columns n .. n + NR * cols: NR streams through W, each `cols` rows long, which
 * CPUs that recognise streams fetch better than neighbouring rows. */
INLINE void dot_streams(const struct hzp_dot *d, enum kind kind, int m, int n, int cols)
{
    enum { AHEAD = 2048, LINE = 64 };
    const struct hzp_matmul_args *a = d->args;
    const char *x = d->x + (size_t)m * d->row_bytes, *w[NR];
    int step = k_step(kind), line = LINE / (int)w_bytes(kind);
    float done[NR][4];

    for (int i = 0; i < cols; i++) {
        vf acc[1][NR];
        float sums[4];
        int k = 0;
        for (int j = 0; j < NR; j++) {
            w[j] = (const char *)hzp_cpu_row(&a->b, n + j * cols + i);
            acc[0][j] = vzero();
        }
        for (; k + line <= a->a.cols; k += line) {
            for (int j = 0; j < NR; j++)
                fetch_near(w[j] + (size_t)k * w_bytes(kind) + AHEAD);
            for (int e = 0; e < line; e += step)
                dot_step(1, kind, acc, x, d->row_bytes, w, k + e, step);
        }
        for (; k < a->a.cols; k += step)
            dot_step(1, kind, acc, x, d->row_bytes, w, k, HZP_MIN(step, a->a.cols - k));
        v4_store(sums, fold_four(acc[0]));
        for (int j = 0; j < NR; j++)
            done[j][i % 4] = sums[j];
        if (i % 4 < 3 && i + 1 < cols)
            continue;
        for (int j = 0; j < NR; j++)
            dot_store(a, m, n + j * cols + i - i % 4, i % 4 + 1, v4_load(done[j]));
    }
}

static void cpu_dot(const struct hzp_dot *d, int m0, int m1, int n0, int n1, float *work)
{
#ifdef __AVX512BF16__
    enum { QUARTER = PAIRS_E4M3 };
#else
    enum { QUARTER = WIDE_E4M3 };
#endif
    bool words = d->args->a.type == HZP_BF16;

    if (d->streams) {
        int cols = (n1 - n0) / NR;
        if (words)
            dot_streams(d, WIDE, m0, n0, cols);
        else
            dot_streams(d, (enum kind)QUARTER, m0, n0, cols);
        n0 += NR * cols;
    }
    if (words)
        dot_kind(d, WIDE, m0, m1, n0, n1, work);
    else
        dot_kind(d, (enum kind)QUARTER, m0, m1, n0, n1, work);
}

static void widen(const uint8_t *from, uint16_t *to, int count)
{
    EACH(i, count, vstore_bf16(to + i, vload_e4m3(from + i, left), left););
}

const struct hzp_cpu_product HZP_ISA_NAME(hzp_cpu_product) = {
    .dot = cpu_dot,
    .widen = widen,
#ifdef __AVX512BF16__
    .thin = &HZP_ISA_NAME(hzp_cpu_thin),
    .panel = &HZP_ISA_NAME(hzp_cpu_panel),
#endif
    .wide = &HZP_ISA_NAME(hzp_cpu_wide),
    .few = &HZP_ISA_NAME(hzp_cpu_few),
#ifdef __AVX512F__
    .one = &hzp_cpu_few_avx2, /* bound by memory, and half as many lines under way are faster */
#else
    .one = &HZP_ISA_NAME(hzp_cpu_few),
#endif
};

static int cpu_matmul(struct hzp_lane *lane, const void *args)
{
    hzp_cpu_matmul_take(lane, args);
    return hzp_cpu_matmul(lane, args, &HZP_ISA_NAME(hzp_cpu_product));
}

void HZP_ISA_NAME(hzp_cpu_fill_matmul)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_matmul] = cpu_matmul;
}
