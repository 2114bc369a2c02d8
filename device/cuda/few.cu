/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/few.cu - products of a few rows with bf16 weights: one sequence decoding.  Also with
 * the norm in front of them and SwiGLU behind them.
 *
 * Each weight is used at most four times, so tensor cores would not help: the kernel is limited by
 * how many loads of 16 bytes are in flight.  A warp has COLS rows of weights and sums along them.
 * It is started early: until the kernel before it has ended, it has its first weights fetched.
 *
 * The norm costs no pass of its own: 1/rms is a factor of the whole sum, so a warp adds up the
 * squares of a row beside its products and divides at the end.  Every warp does so again; what that
 * costs is spread over its rows of weights, which are more with three or four rows of x.
 */
#include "device/cuda/kernel.cuh"

enum { WARPS = 4, FLIGHT = 8, ROWS_MAX = HZP_CUDA_FEW_ROWS };
enum { RESIDENT = 4 /* blocks that an SM has room for */ };

/* What is computed: rows of x, type of c, norm in front, SwiGLU behind. */
template <int M_, class U_, bool NORM_, bool GATED_> struct kind {
    static const int M = M_;
    using U = U_;
    static const bool NORM = NORM_, GATED = GATED_;
    /* Rows of weights a warp has: gated, the first half of them are of the gate.  Steps of k whose
     * weights are loaded at once; the loads in flight are always as many. */
    static const int COLS = NORM && M > 2 ? 4 : 2, AHEAD = FLIGHT / COLS;
    /* Columns of c that a warp computes. */
    static const int OUT = GATED ? COLS / 2 : COLS;
};

/* A warp's sums: of products, and of the squares of rows of x. */
template <class K> struct sums {
    float of[K::COLS][K::M], squares[K::M];
};

template <class K>
static __device__ __forceinline__ void add_products(sums<K> &sum, const uint4 (&w)[K::COLS],
                                                    const struct hzp_project_args &a, int k)
{
    float weight[K::COLS][8], norm[8];
#pragma unroll
    for (int c = 0; c < K::COLS; c++) {
        unpack(w[c].x, weight[c]), unpack(w[c].y, weight[c] + 2);
        unpack(w[c].z, weight[c] + 4), unpack(w[c].w, weight[c] + 6);
    }
    if constexpr (K::NORM)
        load_n((const uint16_t *)a.norm.ptr + k, norm);
#pragma unroll
    for (int m = 0; m < K::M; m++) {
        float in[8];
        if constexpr (K::NORM) {
            load_n(row_of<float>(a.product.a, m) + k, in);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum.squares[m] += in[i] * in[i];
                in[i] *= norm[i];
            }
        } else {
            load_n(row_of<uint16_t>(a.product.a, m) + k, in);
        }
#pragma unroll
        for (int c = 0; c < K::COLS; c++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum.of[c][m] += weight[c][i] * in[i];
    }
}

/* Fetches the weights of the warp's first turn: they depend on no kernel before this one. */
template <class K>
static __device__ __forceinline__ void fetch_first(const uint16_t *const (&w)[K::COLS], int depth,
                                                   int lane)
{
    for (int k = lane * 64; k < min(depth, K::AHEAD * 256); k += 32 * 64)
#pragma unroll
        for (int c = 0; c < K::COLS; c++)
            fetch_ahead(w[c] + k);
}

/* The row of weights that is the warp's c-th, where its first column of c is n0; those past the end
 * are the last. */
template <class K>
static __device__ __forceinline__ int weight_row(const struct hzp_mat &out, int n0, int c)
{
    int n = min(n0 + c % K::OUT, out.cols - 1);
    return K::GATED && c >= K::OUT ? out.cols + n : n;
}

template <class K>
static __device__ __forceinline__ void weights_find(const uint16_t *(&w)[K::COLS],
                                                    const struct hzp_matmul_args &p, int n0)
{
#pragma unroll
    for (int c = 0; c < K::COLS; c++)
        w[c] = row_of<uint16_t>(p.b, weight_row<K>(p.c, n0, c));
}

/* All of the warp's products. */
template <class K>
static __device__ __forceinline__ void add_all(sums<K> &sum, const uint16_t *const (&w)[K::COLS],
                                               const struct hzp_project_args &a, int depth,
                                               int lane)
{
    int k = lane * 8;
    for (; k + (K::AHEAD - 1) * 256 < depth; k += K::AHEAD * 256) {
        uint4 v[K::AHEAD][K::COLS];
#pragma unroll
        for (int i = 0; i < K::AHEAD; i++)
#pragma unroll
            for (int c = 0; c < K::COLS; c++)
                v[i][c] = __ldcs(reinterpret_cast<const uint4 *>(w[c] + k + i * 256));
#pragma unroll
        for (int i = 0; i < K::AHEAD; i++)
            add_products<K>(sum, v[i], a, k + i * 256);
    }
    for (; k < depth; k += 256) {
        uint4 v[K::COLS];
#pragma unroll
        for (int c = 0; c < K::COLS; c++)
            v[c] = __ldcs(reinterpret_cast<const uint4 *>(w[c] + k));
        add_products<K>(sum, v, a, k);
    }
}

/* The columns of c from n0 on that a warp computes at a time. */
template <class K>
static __device__ __forceinline__ void columns(const struct hzp_project_args &a, int depth,
                                               const uint16_t *const (&w)[K::COLS], int n0,
                                               int lane)
{
    const struct hzp_matmul_args &p = a.product;
    sums<K> sum = {};
    add_all<K>(sum, w, a, depth, lane);
#pragma unroll
    for (int m = 0; m < K::M; m++) {
        float y[K::COLS], rstd = 1;
        if constexpr (K::NORM)
            rstd = (float)(1 / sqrt((double)warp_sum(sum.squares[m]) / depth + (double)a.eps));
#pragma unroll
        for (int c = 0; c < K::COLS; c++) {
            y[c] = warp_sum(sum.of[c][m]) * rstd;
            if (p.bias.ptr)
                y[c] += load((const uint16_t *)p.bias.ptr + weight_row<K>(p.c, n0, c));
        }
#pragma unroll
        for (int c = 0; c < K::OUT; c++) {
            if (lane != 0 || n0 + c >= p.c.cols)
                continue;
            typename K::U *to = row_of<typename K::U>(p.c, m) + n0 + c;
            if constexpr (K::GATED)
                y[c] = y[c] / (1 + expf(-y[c])) * y[K::OUT + c];
            else if (p.accumulate)
                y[c] += load(p.from.ptr ? row_of<typename K::U>(p.from, m) + n0 + c : to);
            store(to, y[c]);
        }
    }
}

template <class K>
static __global__ void __launch_bounds__(WARPS * 32) few(struct hzp_project_args a, int depth)
{
    int lane = threadIdx.x % 32, n0 = (blockIdx.x * WARPS + threadIdx.x / 32) * K::OUT;
    const uint16_t *w[K::COLS];
    weights_find<K>(w, a.product, n0);
    fetch_first<K>(w, depth, lane);
    wait_for_earlier();
    let_next_begin();
    while (n0 < a.product.c.cols) {
        columns<K>(a, depth, w, n0, lane);
        n0 += gridDim.x * WARPS * K::OUT;
        weights_find<K>(w, a.product, n0);
    }
}

template <int M, class U, bool NORM, bool GATED>
static void start_rows(struct hzp_lane *lane, const struct hzp_project_args &a)
{
    using K = kind<M, U, NORM, GATED>;
    unsigned blocks = grid_within(lane, HZP_DIV_UP(a.product.c.cols, WARPS * K::OUT), RESIDENT);
    start_early(lane, blocks, WARPS * 32, 0, few<K>, a, a.product.a.cols);
}

template <bool NORM, bool GATED>
static void start_kind(struct hzp_lane *lane, const struct hzp_project_args &a)
{
    with_type(a.product.c.type, [&](auto *t) {
        using U = elem_of<decltype(t)>;
        int rows = a.product.c.rows;
        if (rows == 1)
            start_rows<1, U, NORM, GATED>(lane, a);
        else if (rows == 2)
            start_rows<2, U, NORM, GATED>(lane, a);
        else if (rows == 3)
            start_rows<3, U, NORM, GATED>(lane, a);
        else
            start_rows<4, U, NORM, GATED>(lane, a);
        return HZP_OK;
    });
}

static bool aligned(const struct hzp_mat *m)
{
    size_t size = m->type == HZP_F32 ? 4 : 2;
    return (uintptr_t)m->ptr % 16 == 0 && (size_t)m->stride * size % 16 == 0;
}

/* Whether the kernel can do the product, apart from the type of a. */
static bool shape_fits(const struct hzp_matmul_args *a)
{
    return a->b.type == HZP_BF16 && a->c.rows <= ROWS_MAX && !a->trans_a && a->trans_b &&
           a->a.cols % 8 == 0 && aligned(&a->a) && aligned(&a->b);
}

extern "C" bool hzp_cuda_few_fits(const struct hzp_matmul_args *a)
{
    return a->a.type == HZP_BF16 && shape_fits(a);
}

extern "C" int hzp_cuda_matmul_few(struct hzp_lane *lane, const struct hzp_matmul_args *a)
{
    struct hzp_project_args args = {};
    args.product = *a;
    start_kind<false, false>(lane, args);
    return hzp_cuda_launched(lane, "matmul of few rows");
}

/* ---- with norm and SwiGLU ---- */

/* Whether SwiGLU is all there is around a product of few rows of e4m3. */
static bool gated_e4m3(const struct hzp_project_args *a)
{
    return a->gated && a->product.c.rows <= ROWS_MAX && hzp_cuda_e4m3_fits(&a->product);
}

static bool projects(const struct hzp_project_args *a)
{
    if (!a->norm.ptr)
        return a->gated && (gated_e4m3(a) || hzp_cuda_few_fits(&a->product));
    return shape_fits(&a->product) && (uintptr_t)a->norm.ptr % 16 == 0 && a->product.a.cols > 0;
}

extern "C" bool hzp_cuda_projects(const struct hzp_device *dev, const struct hzp_project_args *a)
{
    return ((const struct hzp_cuda_device *)dev)->fuses && projects(a);
}

extern "C" int hzp_cuda_project(struct hzp_lane *lane, const void *args)
{
    const struct hzp_project_args *a = (const struct hzp_project_args *)args;
    if (a->product.c.rows == 0 || a->product.c.cols == 0)
        return HZP_OK;
    if (!projects(a))
        return hzp_cuda_project_plain(lane, a);
    if (gated_e4m3(a))
        return hzp_cuda_gated_e4m3(lane, &a->product);
    if (!a->norm.ptr)
        start_kind<false, true>(lane, *a);
    else if (a->gated)
        start_kind<true, true>(lane, *a);
    else
        start_kind<true, false>(lane, *a);
    return hzp_cuda_launched(lane, "projection of few rows");
}
