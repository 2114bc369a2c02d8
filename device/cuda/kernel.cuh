/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/kernel.cuh - shared by the kernels: loads and stores as floats, vectors of elements,
 * sums over a warp or a block, and the alignment checks of the launchers.
 */
#pragma once

#include "device/bf16.h"
#include "device/cuda/machine.cuh"

/* BF16 elements are uint16_t, F32 elements float, E4M3 elements uint8_t (no NaN among them). */
static __device__ __forceinline__ float load(const float *p)
{
    return *p;
}

static __device__ __forceinline__ float load(const uint16_t *p)
{
    return __uint_as_float((uint32_t)*p << 16);
}

static __device__ __forceinline__ float load(const uint8_t *p)
{
    uint32_t code = *p;
    return __uint_as_float((code & 0x80u) << 24 | (code & 0x7fu) << 20) * 0x1p120f;
}

static __device__ __forceinline__ void store(float *p, float x)
{
    *p = x;
}

static __device__ __forceinline__ void store(uint16_t *p, float x)
{
    *p = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

static __device__ __forceinline__ uint32_t pack(float lo, float hi)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&both);
}

static __device__ __forceinline__ void unpack(uint32_t both, float *ret)
{
    ret[0] = __uint_as_float(both << 16);
    ret[1] = __uint_as_float(both & 0xffff0000u);
}

/* The page numbers of a segment; line is NULL unless they are in a table. */
template <class A> static __device__ __forceinline__ const int32_t *pages_of(const A &a, int seg)
{
    return a.page + (int64_t)(a.line ? a.line[seg] : seg) * a.page_stride;
}

/* The first position that a row at position pos sees. */
static __device__ __forceinline__ int first_seen(int window, int pos)
{
    return window > 0 ? max(pos - window + 1, 0) : 0;
}

/* A score, capped if there is a cap. */
static __device__ __forceinline__ float capped(float x, float cap)
{
    return cap > 0 ? cap * tanhf(x / cap) : x;
}

/* The derivative of a capped number, given that. */
static __device__ __forceinline__ float cap_slope(float x, float cap)
{
    return cap > 0 ? 1 - x / cap * (x / cap) : 1;
}

/* GELU by tanh is g / (1 + exp(-z)) of this z. */
static __device__ __forceinline__ float gelu_z(float g)
{
    return g * fmaf(g * g, HZP_GELU_3, HZP_GELU_1);
}

/* N elements, N = 1 or 8; 8 elements must be aligned to 16 bytes. */
template <int N> static __device__ __forceinline__ void load_n(const float *p, float (&ret)[N])
{
    if constexpr (N == 1) {
        ret[0] = *p;
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float4 v = *reinterpret_cast<const float4 *>(p + i);
            ret[i] = v.x, ret[i + 1] = v.y, ret[i + 2] = v.z, ret[i + 3] = v.w;
        }
    }
}

template <int N> static __device__ __forceinline__ void load_n(const uint16_t *p, float (&ret)[N])
{
    if constexpr (N == 1) {
        ret[0] = load(p);
    } else {
        uint4 v = *reinterpret_cast<const uint4 *>(p);
        unpack(v.x, ret), unpack(v.y, ret + 2), unpack(v.z, ret + 4), unpack(v.w, ret + 6);
    }
}

template <int N> static __device__ __forceinline__ void store_n(float *p, const float (&x)[N])
{
    if constexpr (N == 1) {
        *p = x[0];
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4)
            *reinterpret_cast<float4 *>(p + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
}

template <int N> static __device__ __forceinline__ void store_n(uint16_t *p, const float (&x)[N])
{
    if constexpr (N == 1)
        store(p, x[0]);
    else
        *reinterpret_cast<uint4 *>(p) =
            make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}

/* N elements to e4m3, N = 1 or 8; 8 codes must be aligned to 8 bytes. */
template <int N> static __device__ __forceinline__ void store_codes(uint8_t *y, const float (&q)[N])
{
    if constexpr (N == 1) {
        *y = (uint8_t)e4m3_pair(q[0], 0);
    } else {
        uint2 v = make_uint2(e4m3_pair(q[0], q[1]) | e4m3_pair(q[2], q[3]) << 16,
                             e4m3_pair(q[4], q[5]) | e4m3_pair(q[6], q[7]) << 16);
        *reinterpret_cast<uint2 *>(y) = v;
    }
}

template <class T> static __device__ __forceinline__ T *row_of(const struct hzp_mat &m, int64_t r)
{
    return (T *)m.ptr + r * m.stride;
}

/* Element [i][j] of a product, given its sum: with scales and bias. */
static __device__ __forceinline__ float product_of(const struct hzp_matmul_args &a, int64_t i,
                                                   int64_t j, float sum)
{
    if (a.scale_a)
        sum = sum * a.scale_a[i] * a.scale_b[j];
    if (a.bias.ptr)
        sum += a.bias.type == HZP_BF16 ? load((const uint16_t *)a.bias.ptr + j)
                                       : load((const float *)a.bias.ptr + j);
    return sum;
}

/* Stores c[i][j] of a product, given its sum. */
template <class U>
static __device__ __forceinline__ void store_product(const struct hzp_matmul_args &a, int64_t i,
                                                     int64_t j, float sum)
{
    U *c = row_of<U>(a.c, i) + j;
    sum = product_of(a, i, j, sum);
    if (a.accumulate)
        sum += load(a.from.ptr ? row_of<U>(a.from, i) + j : c);
    store(c, sum);
}

template <class T> static __device__ __forceinline__ T warp_sum(T x)
{
#pragma unroll
    for (int m = 16; m > 0; m /= 2)
        x += __shfl_xor_sync(~0u, x, m);
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int m = 16; m > 0; m /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, m));
    return x;
}

/* The sum over a block of at most 32 whole warps, in every thread; always in the same order. */
template <class T> static __device__ T block_sum(T x)
{
    HZP_SHARED(T, part, [32]);
    int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads(); /* part may still be read for the previous sum */
    if (threadIdx.x % 32 == 0)
        part[warp] = x;
    __syncthreads();
    T sum = 0;
    for (int i = 0; i < warps; i++)
        sum += part[i];
    return sum;
}

/* Attention's sink of head h; -inf: there is none. */
static __device__ __forceinline__ float sink_of(const struct hzp_mat &sink, int h)
{
    return !sink.ptr              ? -INFINITY
           : sink.type == HZP_F32 ? ((const float *)sink.ptr)[h]
                                  : load((const uint16_t *)sink.ptr + h);
}

/* The mean of a row of F32, in every thread of the block. */
template <int N> static __device__ float row_mean(const float *x, int cols)
{
    float sum = 0, v[N];
    for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
        load_n(x + c, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += v[k];
    }
    return block_sum(sum) / cols;
}

static __device__ inline float block_max(float x)
{
    HZP_SHARED(float, part, [32]);
    int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[warp] = x;
    __syncthreads();
    float top = part[0];
    for (int i = 1; i < warps; i++)
        top = fmaxf(top, part[i]);
    return top;
}

/* The numbers i below `count` that fall to a thread. */
#define EACH(i, count)                                                                             \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (count);                  \
         i += (int64_t)gridDim.x * blockDim.x)

/* The row and column of the i-th group of N elements of a matrix. */
struct place {
    int64_t r;
    int32_t c;
};

template <int N> static __device__ __forceinline__ place place_of(int64_t i, int32_t cols)
{
    int32_t per_row = cols / N;
    place p;
    if (i < 0x7fffffff) {
        p.r = (uint32_t)i / (uint32_t)per_row;
        p.c = (int32_t)((uint32_t)i % (uint32_t)per_row) * N;
    } else {
        p.r = i / per_row;
        p.c = (int32_t)(i % per_row) * N;
    }
    return p;
}

/* ---- launchers ---- */

/* Whether rows are groups of 8 elements, each aligned to 16 bytes. */
static inline bool wide(const struct hzp_mat *m)
{
    size_t size = m->type == HZP_F32 ? 4 : 2;
    return !m->ptr || ((uintptr_t)m->ptr % 16 == 0 && m->cols % 8 == 0 &&
                       (m->rows <= 1 || (size_t)m->stride * size % 16 == 0));
}

/* The number of blocks for `count` threads' worth of work with `threads` per block, at most a few
 * waves. */
static inline unsigned grid_for(struct hzp_lane *lane, int64_t count, int threads)
{
    int64_t blocks = HZP_DIV_UP(count, (int64_t)threads);
    int64_t most = (int64_t)hzp_cuda_sms(lane) * (hzp_cuda_by_grid(lane) ? 2048 / threads : 32);
    return (unsigned)HZP_MAX((int64_t)1, HZP_MIN(blocks, most));
}

/* The number of blocks of a kernel that needs `blocks`, or fewer that each do several blocks' work:
 * where the lane's limit is held by grids, as many as fit on its SMs, `resident` on each. */
static inline unsigned grid_within(struct hzp_lane *lane, int64_t blocks, int resident)
{
    int64_t most = (int64_t)hzp_cuda_sms(lane) * resident;
    return (unsigned)(hzp_cuda_by_grid(lane) ? HZP_MIN(blocks, most) : blocks);
}

/* Starts a kernel that waits for what came before it (wait_for_earlier): early in a step of as few
 * rows as HZP_CUDA_EARLY says. */
template <class... P, class... A>
static inline void start_few(struct hzp_lane *lane, int rows, dim3 grid, dim3 block, size_t shared,
                             void (*kernel)(P...), const A &...args)
{
    if (rows <= hzp_cuda_device(lane)->early)
        start_early(lane, grid, block, shared, kernel, args...);
    else
        start(lane, grid, block, shared, kernel, args...);
}

/* Calls f with a null pointer of the element type. */
template <class F> static int with_type(enum hzp_dtype type, F f)
{
    return type == HZP_BF16 ? f((uint16_t *)nullptr) : f((float *)nullptr);
}

template <class P> using elem_of = typename std::remove_pointer<P>::type;

enum { ELEMENT_THREADS = 256 };

/* Launches a kernel that goes over the elements of a matrix, 8 at a time where `eight`, else one.
 * f(n, grid) starts it: n a constant, ELEMENT_THREADS per block. */
template <class F>
static int by_width(struct hzp_lane *lane, const struct hzp_mat &m, bool eight, const char *op, F f)
{
    int64_t count = (int64_t)m.rows * m.cols;
    if (count == 0)
        return HZP_OK;
    if (eight)
        f(std::integral_constant<int, 8>(), grid_for(lane, count / 8, ELEMENT_THREADS));
    else
        f(std::integral_constant<int, 1>(), grid_for(lane, count, ELEMENT_THREADS));
    return hzp_cuda_launched(lane, op);
}

/* The same of a kernel for the matrix's type: f(t, n, grid), t as with_type has it. */
template <class F>
static int by_element(struct hzp_lane *lane, const struct hzp_mat &m, bool eight, const char *op,
                      F f)
{
    return with_type(m.type, [&](auto *t) {
        return by_width(lane, m, eight, op, [&](auto n, unsigned grid) { f(t, n, grid); });
    });
}
