/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/fp8.cu - quantizes rows to e4m3, and computes e4m3 products of few rows, and those
 * that cuBLASLt rejects (all of them before sm_90, some shapes from there on).
 *
 * Norm and SwiGLU in front of the quantization are part of it (codes): their result is written as
 * codes alone.
 *
 * Tensor cores get F16: every e4m3 is an F16, so operands and products are exact, and sums are
 * mma's in F32.  If there is no conversion instruction, the bits of an e4m3 below the sign are
 * shifted right by one: they are then the F16 of 2^-8 times its value, subnormals too, and the
 * result is multiplied by 2^16. mma sums over k in any order that both operands share: a lane's
 * four elements of a row are four neighbours in memory.
 */
#include "device/cuda/tensor.cuh"

#include "device/fp8.h"

/* ---- y, scale = x, rmsnorm(x) or swiglu(x) ---- */

enum { THREADS = 256 };

static __device__ inline uint32_t block_largest(uint32_t x)
{
    HZP_SHARED(uint32_t, part, [32]);
    int warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
    for (int m = 16; m > 0; m /= 2) {
        uint32_t other = __shfl_xor_sync(~0u, x, m);
        x = other > x ? other : x;
    }
    if (threadIdx.x % 32 == 0)
        part[warp] = x;
    __syncthreads();
    for (int i = 0; i < warps; i++)
        x = part[i] > x ? part[i] : x;
    return x;
}

static bool wide_codes(const struct hzp_mat *m)
{
    return (uintptr_t)m->ptr % 8 == 0 && (m->rows <= 1 || m->stride % 8 == 0);
}

enum { PLAIN, NORM, SWIGLU }; /* what is quantized: x, rmsnorm(x) or swiglu(x) */

/* N elements rounded to T, as the op that writes them would. */
template <class T, int N> static __device__ inline void round_to(float (&v)[N])
{
    if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            T rounded;
            store(&rounded, v[k]);
            v[k] = load(&rounded);
        }
    }
}

/* Elements c .. c + N of the row that is quantized.  The formulas are those of rows.cu. */
template <class T, int N, int OF>
static __device__ inline void inner(const struct hzp_codes_args &a, int r, int c, float rstd,
                                    float (&v)[N])
{
    float other[N];
    if constexpr (OF == NORM) {
        load_n(row_of<float>(a.x, r) + c, v);
        load_n((const T *)a.norm.ptr + c, other);
    } else {
        load_n(row_of<T>(a.x, r) + c, v);
    }
    if constexpr (OF == SWIGLU)
        load_n(row_of<T>(a.x, r) + a.y.cols + c, other);
    if constexpr (OF != PLAIN)
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = OF == NORM ? v[k] * rstd * other[k] : v[k] / (1 + expf(-v[k])) * other[k];
    round_to<T>(v);
}

/* The row's rstd, by the same sum as the op rmsnorm. */
template <int N> static __device__ inline float rstd_of(const struct hzp_codes_args &a, int r)
{
    float sum = 0;
    for (int c = threadIdx.x * N; c < a.x.cols; c += blockDim.x * N) {
        float v[N];
        load_n(row_of<float>(a.x, r) + c, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += v[k] * v[k];
    }
    return (float)(1 / sqrt((double)block_sum(sum) / a.x.cols + (double)a.eps));
}

/* One block per row.  What is quantized is computed twice, from rows that are in the cache by
 * then, rather than kept: a row need not fit into shared memory. */
template <class T, int N, int OF> static __global__ void codes(struct hzp_codes_args a)
{
    wait_for_earlier();
    let_next_begin();
    int r = blockIdx.x;
    uint8_t *y = row_of<uint8_t>(a.y, r);
    float rstd = 1;
    if constexpr (OF == NORM)
        rstd = rstd_of<N>(a, r);
    uint32_t largest = 0;
    for (int c = threadIdx.x * N; c < a.y.cols; c += blockDim.x * N) {
        float v[N];
        inner<T, N, OF>(a, r, c, rstd, v);
#pragma unroll
        for (int k = 0; k < N; k++) {
            uint32_t bits = __float_as_uint(v[k]) & 0x7fffffffu;
            largest = bits > largest ? bits : largest;
        }
    }
    largest = block_largest(largest);
    float scale = hzp_e4m3_scale(largest);
    bool none = largest >= 0x7f800000u;
    for (int c = threadIdx.x * N; c < a.y.cols; c += blockDim.x * N) {
        float v[N];
        inner<T, N, OF>(a, r, c, rstd, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = none ? 0 : v[k] / scale;
        store_codes(y + c, v);
    }
    if (threadIdx.x == 0)
        a.scale[r] = scale;
}

template <class T, int OF>
static int codes_start(struct hzp_lane *lane, const struct hzp_codes_args *a)
{
    if (a->x.rows == 0)
        return HZP_OK;
    int rows = a->x.rows, threads = HZP_MAX(32, HZP_MIN(512, HZP_ROUND_UP(a->y.cols / 8, 32)));
    bool eights = wide(&a->x) && wide(&a->norm) && wide_codes(&a->y) && a->y.cols % 8 == 0;
    if (eights)
        start_few(lane, rows, rows, threads, 0, codes<T, 8, OF>, *a);
    else
        start_few(lane, rows, rows, THREADS, 0, codes<T, 1, OF>, *a);
    return hzp_cuda_launched(lane, "codes");
}

extern "C" int hzp_cuda_codes(struct hzp_lane *lane, const void *args)
{
    const struct hzp_codes_args *a = (const struct hzp_codes_args *)args;
    return with_type(a->norm.ptr ? a->norm.type : a->x.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        return a->norm.ptr ? codes_start<T, NORM>(lane, a) : codes_start<T, SWIGLU>(lane, a);
    });
}

extern "C" int hzp_cuda_quantize(struct hzp_lane *lane, const void *args)
{
    const struct hzp_quantize_args *a = (const struct hzp_quantize_args *)args;
    struct hzp_codes_args codes = {.x = a->x, .norm = {}, .y = a->y, .scale = a->scale, .eps = 0};
    return with_type(
        a->x.type, [&](auto *t) { return codes_start<elem_of<decltype(t)>, PLAIN>(lane, &codes); });
}

/* ---- c = from + half ---- */

struct sum_args {
    struct hzp_mat half, from, c; /* from absent: none */
};

template <int N> static __global__ void add_half(struct sum_args a)
{
    int64_t count = (int64_t)a.c.rows * (a.c.cols / N);
    wait_for_earlier();
    let_next_begin();
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        place p = place_of<N>(i, a.c.cols);
        float v[N], w[N];
        load_n(row_of<uint16_t>(a.half, p.r) + p.c, v);
        if (a.from.ptr) {
            load_n(row_of<float>(a.from, p.r) + p.c, w);
#pragma unroll
            for (int k = 0; k < N; k++)
                v[k] += w[k];
        }
        store_n(row_of<float>(a.c, p.r) + p.c, v);
    }
}

extern "C" int hzp_cuda_add_half(struct hzp_lane *lane, const struct hzp_mat *half,
                                 const struct hzp_matmul_args *a)
{
    struct sum_args sum = {*half, a->from, a->c};
    if (a->accumulate && !a->from.ptr)
        sum.from = a->c;
    if (!a->accumulate)
        sum.from.ptr = NULL;
    int64_t count = (int64_t)a->c.rows * a->c.cols;
    if (wide(half) && wide(&sum.from) && wide(&a->c))
        start_few(lane, a->c.rows, grid_for(lane, count / 8, THREADS), THREADS, 0, add_half<8>,
                  sum);
    else
        start_few(lane, a->c.rows, grid_for(lane, count, THREADS), THREADS, 0, add_half<1>, sum);
    return hzp_cuda_launched(lane, "matmul");
}

/* ---- products ---- */

/* Four e4m3 as two pairs of F16, scaled by the factor that `back` removes. */
static __device__ __forceinline__ void widen(uint32_t four, uint32_t &lo, uint32_t &hi)
{
    if (has_e4m3()) {
        half_of_e4m3(four, lo, hi);
        return;
    }
    uint32_t top = (four & 0x80808080u) | (four >> 1 & 0x3f3f3f3fu), low = four << 7 & 0x80808080u;
    lo = __byte_perm(low, top, 0x5140);
    hi = __byte_perm(low, top, 0x7362);
}

/* Removes the scale of both widened factors from their sum of products. */
static __device__ __forceinline__ float back(float sum)
{
    return has_e4m3() ? sum : sum * 65536;
}

/* Few rows, limited by memory.  A warp has 16 rows of W, which are mma's rows, and every SLICES-th
 * group of 64 elements of k; x's rows are mma's columns, 8 NT of them.  The block adds the slices
 * in order.  A lane's 16 bytes are its elements of four mma. */
enum { SLICES = 8, FEW_COLS = 16, FEW_DEPTH = 64, FEW_STRIDE = SLICES * FEW_DEPTH, FEW_AHEAD = 4 };
enum { FEW_RESIDENT = 2 /* blocks that an SM has room for */ };

static __device__ __forceinline__ uint4 load_codes(const uint8_t *p, bool there)
{
    return there ? *reinterpret_cast<const uint4 *>(p) : make_uint4(0, 0, 0, 0);
}

static __device__ __forceinline__ uint4 load_weights(const uint8_t *p, bool there)
{
    return there ? load_once(p) : make_uint4(0, 0, 0, 0);
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

template <int NT>
static __device__ __forceinline__ void add_few(float (&sum)[NT][4], const uint4 (&w)[2],
                                               const uint4 (&x)[NT])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t lo[2], hi[2], x_lo, x_hi;
        widen(word_of(w[0], i), lo[0], hi[0]);
        widen(word_of(w[1], i), lo[1], hi[1]);
#pragma unroll
        for (int t = 0; t < NT; t++) {
            widen(word_of(x[t], i), x_lo, x_hi);
            mma_half(sum[t], lo[0], lo[1], hi[0], hi[1], x_lo, x_hi);
        }
    }
}

/* S steps from k on, with all their weights loaded at once; elements at `end` or beyond are
 * zeros. */
template <int NT, int S>
static __device__ __forceinline__ void add_slices(float (&sum)[NT][4], const uint8_t *(&w)[2],
                                                  const uint8_t *(&x)[NT], int k, int end)
{
    uint4 weights[S][2];
#pragma unroll
    for (int s = 0; s < S; s++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            weights[s][i] = load_weights(w[i] + k + s * FEW_STRIDE, S > 1 || k < end);
#pragma unroll
    for (int s = 0; s < S; s++) {
        uint4 in[NT];
#pragma unroll
        for (int t = 0; t < NT; t++)
            in[t] = load_codes(x[t] + k + s * FEW_STRIDE, S > 1 || k < end);
        add_few<NT>(sum, weights[s], in);
    }
}

/* The sum over the slices, in order: element e of the block's. */
template <int NT>
static __device__ __forceinline__ float add_parts(const float (*part)[NT][32][4], int e)
{
    float y = 0;
    for (int s = 0; s < SLICES; s++)
        y += part[s][e / 128][e / 4 % 32][e % 4];
    return back(y);
}

/* silu(p[m][n]) p[m][width + n], given the sums of both. */
template <class U>
static __device__ __forceinline__ void store_gated(const struct hzp_matmul_args &a, int m, int n,
                                                   float gate, float up)
{
    gate = product_of(a, m, n, gate);
    up = product_of(a, m, a.c.cols + n, up);
    store(row_of<U>(a.c, m) + n, gate / (1 + expf(-gate)) * up);
}

/* The i-th of the two rows of W that a lane loads, for the columns of c from n0 on. */
template <bool GATED>
static __device__ __forceinline__ const uint8_t *few_row(const struct hzp_matmul_args &a, int n0,
                                                         int g, int i)
{
    int n = min(n0 + g + (GATED ? 0 : 8 * i), a.c.cols - 1);
    return row_of<uint8_t>(a.b, GATED ? n + i * a.c.cols : n);
}

/* The columns of c from n0 on that a block computes at a time. */
template <int NT, class U, bool GATED>
static __device__ __forceinline__ void few_columns(const struct hzp_matmul_args &a, int depth,
                                                   int n0, float (*part)[NT][32][4])
{
    int lane = threadIdx.x % 32, slice = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    const uint8_t *w[2] = {few_row<GATED>(a, n0, g, 0), few_row<GATED>(a, n0, g, 1)}, *x[NT];
#pragma unroll
    for (int t = 0; t < NT; t++)
        x[t] = row_of<uint8_t>(a.a, min(8 * t + g, a.c.rows - 1));
    float sum[NT][4] = {};
    int k0 = slice * FEW_DEPTH;
    for (; k0 + (FEW_AHEAD - 1) * FEW_STRIDE + FEW_DEPTH <= depth; k0 += FEW_AHEAD * FEW_STRIDE)
        add_slices<NT, FEW_AHEAD>(sum, w, x, k0 + 16 * q, depth);
    for (; k0 < depth; k0 += FEW_STRIDE)
        add_slices<NT, 1>(sum, w, x, k0 + 16 * q, depth);
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            part[slice][t][lane][j] = sum[t][j];
    __syncthreads();
    for (int e = threadIdx.x; e < NT * 128; e += SLICES * 32) {
        int t = e / 128, l = e / 4 % 32, j = e % 4;
        int m = 8 * t + 2 * (l % 4) + j % 2, n = n0 + l / 4 + (GATED ? 0 : j / 2 * 8);
        if (m >= a.c.rows || n >= a.c.cols)
            continue;
        if (!GATED)
            store_product<U>(a, m, n, add_parts<NT>(part, e));
        else if (j < 2)
            store_gated<U>(a, m, n, add_parts<NT>(part, e), add_parts<NT>(part, e + 2));
    }
}

/* GATED: SwiGLU follows; a block has 8 rows of W that are of the gate, and the 8 of `up` that belong
 * to them. */
template <int NT, class U, bool GATED>
static __global__ void __launch_bounds__(SLICES * 32) few_e4m3(struct hzp_matmul_args a, int depth)
{
    HZP_SHARED(float, part, [SLICES][NT][32][4]);
    const int wide = GATED ? FEW_COLS / 2 : FEW_COLS, n0 = blockIdx.x * wide;
    int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint8_t *w = few_row<GATED>(a, n0, lane / 4, i);
        for (int k = slice * FEW_DEPTH; lane % 4 == 0 && k < min(depth, 2 * FEW_STRIDE);
             k += FEW_STRIDE)
            fetch_ahead(w + k); /* the weights depend on no kernel before this one */
    }
    wait_for_earlier();
    let_next_begin();
    for (int n = n0; n < a.c.cols; n += gridDim.x * wide) {
        if (n > n0)
            __syncthreads(); /* other warps may still read the parts */
        few_columns<NT, U, GATED>(a, depth, n, part);
    }
}

/* More rows: tiles of both in shared memory, one step of k loaded ahead; four warps, each for 64
 * rows of x by 32 of W.
 */
enum {
    TILE_ROWS = 128,
    TILE_COLS = 64,
    TILE_DEPTH = 128,
    TILE_STAGES = 2,
    TILE_THREADS = 128,
    STAGE = (TILE_ROWS + TILE_COLS) * TILE_DEPTH
};

static __device__ __forceinline__ void load_tiles(const struct hzp_matmul_args &a, int depth,
                                                  uint32_t stage, int m0, int n0, int k0)
{
    for (int i = threadIdx.x; i < (TILE_ROWS + TILE_COLS) * 8; i += TILE_THREADS) {
        int r = i / 8, c = i % 8, k = k0 + 16 * c;
        bool of_x = r < TILE_ROWS;
        int row = of_x ? m0 + r : n0 + r - TILE_ROWS, rows = of_x ? a.c.rows : a.c.cols;
        bool there = row < rows && k < depth;
        const uint8_t *from = row_of<uint8_t>(of_x ? a.a : a.b, there ? row : 0) + (there ? k : 0);
        uint32_t at = of_x ? tile_at<TILE_DEPTH / 2>(r, c)
                           : TILE_ROWS * TILE_DEPTH + tile_at<TILE_DEPTH / 2>(r - TILE_ROWS, c);
        copy_async(stage + at, from, there);
    }
    copy_commit();
}

/* One step of k for a warp's part. */
static __device__ __forceinline__ void add_tiles(float (&sum)[4][4][4], uint32_t stage, int row0,
                                                 int col0)
{
    uint32_t w_tile = stage + TILE_ROWS * TILE_DEPTH;
#pragma unroll 1
    for (int k = 0; k < TILE_DEPTH / 32; k++) {
        uint32_t x[4][4], w[2][4];
#pragma unroll
        for (int m = 0; m < 4; m++)
            load_a<TILE_DEPTH / 2>(x[m], stage, row0 + 16 * m, k);
#pragma unroll
        for (int n = 0; n < 2; n++)
            load_b_rows<TILE_DEPTH / 2>(w[n], w_tile, col0 + 16 * n, k);
#pragma unroll
        for (int h = 0; h < 2; h++) { /* 16 elements of k each */
            uint32_t lo[2], hi[2], b[4][2];
#pragma unroll
            for (int n = 0; n < 4; n++)
                widen(w[n / 2][n % 2 * 2 + h], b[n][0], b[n][1]);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                widen(x[m][2 * h], lo[0], hi[0]);
                widen(x[m][2 * h + 1], lo[1], hi[1]);
#pragma unroll
                for (int n = 0; n < 4; n++)
                    mma_half(sum[m][n], lo[0], lo[1], hi[0], hi[1], b[n][0], b[n][1]);
            }
        }
    }
}

template <class U>
static __global__ void __launch_bounds__(TILE_THREADS)
    tiles_e4m3(struct hzp_matmul_args a, int depth)
{
    HZP_SHARED_DYNAMIC(unsigned char, memory);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int m0 = blockIdx.y * TILE_ROWS, n0 = blockIdx.x * TILE_COLS;
    int row0 = warp / 2 * 64, col0 = warp % 2 * 32;
    int steps = (depth + TILE_DEPTH - 1) / TILE_DEPTH;
    uint32_t stage = shared_at(memory);
    float sum[4][4][4] = {};
    wait_for_earlier();
    let_next_begin();
    load_tiles(a, depth, stage, m0, n0, 0);
    for (int s = 0; s < steps; s++) {
        if (s + 1 < steps) {
            load_tiles(a, depth, stage + (s + 1) % TILE_STAGES * STAGE, m0, n0,
                       (s + 1) * TILE_DEPTH);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        add_tiles(sum, stage + s % TILE_STAGES * STAGE, row0, col0);
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int r = m0 + row0 + 16 * m + lane / 4 + j / 2 * 8;
                int c = n0 + col0 + 8 * n + lane % 4 * 2 + j % 2;
                if (r < a.c.rows && c < a.c.cols)
                    store_product<U>(a, r, c, back(sum[m][n][j]));
            }
}

extern "C" bool hzp_cuda_e4m3_fits(const struct hzp_matmul_args *a)
{
    const struct hzp_mat *mat[] = {&a->a, &a->b};
    for (int i = 0; i < 2; i++)
        if ((uintptr_t)mat[i]->ptr % 16 != 0 || mat[i]->cols % 16 != 0 ||
            (mat[i]->rows > 1 && mat[i]->stride % 16 != 0))
            return false;
    return a->a.type == HZP_E4M3;
}

template <class U> static int product_e4m3(struct hzp_lane *lane, const struct hzp_matmul_args *a)
{
    unsigned blocks = grid_within(lane, HZP_DIV_UP(a->c.cols, (int)FEW_COLS), FEW_RESIDENT);
    int depth = a->a.cols, rows = a->c.rows;
    if (rows <= 8) {
        start_few(lane, rows, blocks, SLICES * 32, 0, few_e4m3<1, U, false>, *a, depth);
    } else if (rows <= 16) {
        start_few(lane, rows, blocks, SLICES * 32, 0, few_e4m3<2, U, false>, *a, depth);
    } else if (rows <= 32) {
        start_few(lane, rows, blocks, SLICES * 32, 0, few_e4m3<4, U, false>, *a, depth);
    } else {
        dim3 grid((unsigned)HZP_DIV_UP(a->c.cols, (int)TILE_COLS),
                  (unsigned)HZP_DIV_UP(rows, (int)TILE_ROWS));
        start_few(lane, rows, grid, TILE_THREADS, TILE_STAGES * STAGE, tiles_e4m3<U>, *a, depth);
    }
    return hzp_cuda_launched(lane, "matmul of e4m3");
}

extern "C" int hzp_cuda_matmul_e4m3(struct hzp_lane *lane, const struct hzp_matmul_args *a)
{
    return a->c.type == HZP_BF16 ? product_e4m3<uint16_t>(lane, a) : product_e4m3<float>(lane, a);
}

extern "C" int hzp_cuda_gated_e4m3(struct hzp_lane *lane, const struct hzp_matmul_args *a)
{
    unsigned blocks = grid_within(lane, HZP_DIV_UP(a->c.cols, FEW_COLS / 2), FEW_RESIDENT);
    int depth = a->a.cols;
    with_type(a->c.type, [&](auto *t) {
        using U = elem_of<decltype(t)>;
        start_early(lane, blocks, SLICES * 32, 0, few_e4m3<1, U, true>, *a, depth);
        return HZP_OK;
    });
    return hzp_cuda_launched(lane, "gated matmul of e4m3");
}
