/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/few.cu - products of a few rows with bf16 weights: one sequence decoding.
 *
 * Each weight is used at most four times, so tensor cores would not help: the kernel is limited by
 * how many loads of 16 bytes are in flight.  A warp has two rows of weights and sums along them.
 * It is started early: until the kernel before it has ended, it has its first weights fetched.
 */
#include "device/cuda/kernel.cuh"

enum { WARPS = 4, COLS = 2, AHEAD = 4, ROWS_MAX = HZP_CUDA_FEW_ROWS };

template <int M>
static __device__ __forceinline__ void add_products(float (&sum)[COLS][M], const uint4 (&w)[COLS],
                                                    const struct hzp_mat &x, int k)
{
    float weight[COLS][8];
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        unpack(w[c].x, weight[c]), unpack(w[c].y, weight[c] + 2);
        unpack(w[c].z, weight[c] + 4), unpack(w[c].w, weight[c] + 6);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        float in[8];
        load_n(row_of<uint16_t>(x, m) + k, in);
#pragma unroll
        for (int c = 0; c < COLS; c++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum[c][m] += weight[c][i] * in[i];
    }
}

/* Fetches the weights of the warp's first turn: they depend on no kernel before this one. */
static __device__ __forceinline__ void fetch_first(const uint16_t *const (&w)[COLS], int depth,
                                                   int lane)
{
    for (int k = lane * 64; k < min(depth, AHEAD * 256); k += 32 * 64)
#pragma unroll
        for (int c = 0; c < COLS; c++)
            fetch_ahead(w[c] + k);
}

template <int M, class U>
static __global__ void __launch_bounds__(WARPS * 32) matmul_few(struct hzp_matmul_args a, int depth)
{
    int lane = threadIdx.x % 32, n0 = (blockIdx.x * WARPS + threadIdx.x / 32) * COLS;
    const uint16_t *w[COLS];
#pragma unroll
    for (int c = 0; c < COLS; c++)
        w[c] = row_of<uint16_t>(a.b, min(n0 + c, a.c.cols - 1));
    fetch_first(w, depth, lane);
    wait_for_earlier();
    let_next_begin();
    if (n0 >= a.c.cols)
        return;
    float sum[COLS][M] = {};
    int k = lane * 8;
    for (; k + (AHEAD - 1) * 256 < depth; k += AHEAD * 256) {
        uint4 v[AHEAD][COLS];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int c = 0; c < COLS; c++)
                v[i][c] = __ldcs(reinterpret_cast<const uint4 *>(w[c] + k + i * 256));
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            add_products<M>(sum, v[i], a.a, k + i * 256);
    }
    for (; k < depth; k += 256) {
        uint4 v[COLS];
#pragma unroll
        for (int c = 0; c < COLS; c++)
            v[c] = __ldcs(reinterpret_cast<const uint4 *>(w[c] + k));
        add_products<M>(sum, v, a.a, k);
    }
#pragma unroll
    for (int c = 0; c < COLS; c++)
#pragma unroll
        for (int m = 0; m < M; m++) {
            float y = warp_sum(sum[c][m]);
            int n = n0 + c;
            if (lane != 0 || n >= a.c.cols)
                continue;
            U *to = row_of<U>(a.c, m) + n;
            if (a.bias.ptr)
                y += load((const uint16_t *)a.bias.ptr + n);
            if (a.accumulate)
                y += load(to);
            store(to, y);
        }
}

extern "C" bool hzp_cuda_few_fits(const struct hzp_matmul_args *a)
{
    return a->a.type == HZP_BF16 && a->c.rows <= ROWS_MAX && !a->trans_a && a->trans_b &&
           a->a.cols % 8 == 0 && (uintptr_t)a->a.ptr % 16 == 0 && (uintptr_t)a->b.ptr % 16 == 0 &&
           a->a.stride % 8 == 0 && a->b.stride % 8 == 0;
}

template <class U> static int launch(struct hzp_lane *lane, const struct hzp_matmul_args *a)
{
    unsigned blocks = (unsigned)HZP_DIV_UP(a->c.cols, WARPS * COLS);
    int depth = a->a.cols;
    switch (a->c.rows) {
    case 1:
        start_early(lane, blocks, WARPS * 32, 0, matmul_few<1, U>, *a, depth);
        break;
    case 2:
        start_early(lane, blocks, WARPS * 32, 0, matmul_few<2, U>, *a, depth);
        break;
    case 3:
        start_early(lane, blocks, WARPS * 32, 0, matmul_few<3, U>, *a, depth);
        break;
    default:
        start_early(lane, blocks, WARPS * 32, 0, matmul_few<4, U>, *a, depth);
    }
    return hzp_cuda_launched(lane, "matmul of few rows");
}

extern "C" int hzp_cuda_matmul_few(struct hzp_lane *lane, const struct hzp_matmul_args *a)
{
    return a->c.type == HZP_BF16 ? launch<uint16_t>(lane, a) : launch<float>(lane, a);
}
