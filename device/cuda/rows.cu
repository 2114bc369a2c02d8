/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/rows.cu - ops on single rows: embed, rmsnorm, rope, swiglu, gather, cast, fill,
 * noise.  All are limited by memory: a thread moves 16 bytes if alignment allows it.
 */
#include "device/cuda/kernel.cuh"
#include "device/philox.h"

enum { THREADS = 256 };

/* y[r] = x[index[r] - first], with conversion from one type to another; zeros where x has no such
 * row. */
template <class T, class U, int N>
static __global__ void pick_rows(struct hzp_mat x, struct hzp_mat y, const int32_t *index,
                                 int32_t first)
{
    wait_for_earlier();
    let_next_begin();
    EACH(i, (int64_t)y.rows * (y.cols / N))
    {
        place p = place_of<N>(i, y.cols);
        float v[N] = {0};
        int64_t row = (int64_t)index[p.r] - first;
        if (row >= 0 && row < x.rows)
            load_n(row_of<T>(x, (int)row) + p.c, v);
        store_n(row_of<U>(y, p.r) + p.c, v);
    }
}

template <class T, class U>
static int pick(struct hzp_lane *lane, const struct hzp_mat &x, const struct hzp_mat &y,
                const int32_t *index, int32_t first, const char *op)
{
    return by_width(lane, y, wide(&x) && wide(&y), op, [&](auto n, unsigned grid) {
        start_few(lane, y.rows, grid, ELEMENT_THREADS, 0, pick_rows<T, U, decltype(n)::value>, x, y,
                  index, first);
    });
}

extern "C" int hzp_cuda_embed(struct hzp_lane *lane, const void *args)
{
    const struct hzp_embed_args *a = (const struct hzp_embed_args *)args;
    return with_type(a->table.type, [&](auto *t) {
        return pick<elem_of<decltype(t)>, float>(lane, a->table, a->y, a->id, a->first, "embed");
    });
}

extern "C" int hzp_cuda_gather(struct hzp_lane *lane, const void *args)
{
    const struct hzp_gather_args *a = (const struct hzp_gather_args *)args;
    return with_type(a->y.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        return pick<T, T>(lane, a->x, a->y, a->index, 0, "gather");
    });
}

template <class T>
static __global__ void scatter(struct hzp_mat x, struct hzp_mat y, const int32_t *index)
{
    EACH(i, (int64_t)x.rows * x.cols)
    {
        int64_t r = i / x.cols, c = i % x.cols;
        row_of<T>(y, index[r])[c] = row_of<T>(x, r)[c];
    }
}

/* Elements are moved as bits: four bytes or two. */
extern "C" int hzp_cuda_scatter(struct hzp_lane *lane, const void *args)
{
    const struct hzp_scatter_args *a = (const struct hzp_scatter_args *)args;
    return by_element(lane, a->x, false, "scatter", [&](auto *t, auto, unsigned grid) {
        start(lane, grid, ELEMENT_THREADS, 0, scatter<elem_of<decltype(t)>>, a->x, a->y, a->index);
    });
}

/* ---- rmsnorm: one block per row ---- */

/* W: the weights' type, T that of y; if they differ there is something to add. */
template <class W, class T, int N> static __global__ void rmsnorm(struct hzp_rmsnorm_args a)
{
    wait_for_earlier();
    let_next_begin();
    int r = blockIdx.x;
    const float *x = row_of<float>(a.x, r);
    T *y = row_of<T>(a.y, r);
    const float *add = a.add.ptr ? row_of<float>(a.add, r) : nullptr;
    float sum = 0, plus = a.plus_one ? 1.0f : 0.0f, centre = 0;
    if (a.centred)
        centre = row_mean<N>(x, a.x.cols);
    for (int c = threadIdx.x * N; c < a.x.cols; c += blockDim.x * N) {
        float v[N];
        load_n(x + c, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += (v[k] - centre) * (v[k] - centre);
    }
    float rstd = (float)(1 / sqrt((double)block_sum(sum) / a.x.cols + (double)a.eps));
    for (int c = threadIdx.x * N; c < a.x.cols; c += blockDim.x * N) {
        float v[N], w[N];
        load_n(x + c, v);
        load_n((const W *)a.w.ptr + c, w);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = (v[k] - centre) * rstd * (w[k] + plus);
        if (add) {
            load_n(add + c, w);
#pragma unroll
            for (int k = 0; k < N; k++)
                v[k] += w[k];
        }
        store_n(y + c, v);
    }
    if (a.rstd && threadIdx.x == 0)
        a.rstd[r] = rstd;
}

template <class W, class T>
static int rmsnorm_start(struct hzp_lane *lane, const struct hzp_rmsnorm_args *a)
{
    if (wide(&a->x) && wide(&a->w) && wide(&a->y) && wide(&a->add)) {
        int threads = HZP_MAX(32, HZP_MIN(512, HZP_ROUND_UP(a->x.cols / 8, 32)));
        start_few(lane, a->x.rows, a->x.rows, threads, 0, rmsnorm<W, T, 8>, *a);
    } else {
        start_few(lane, a->x.rows, a->x.rows, THREADS, 0, rmsnorm<W, T, 1>, *a);
    }
    return hzp_cuda_launched(lane, "rmsnorm");
}

extern "C" int hzp_cuda_rmsnorm(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rmsnorm_args *a = (const struct hzp_rmsnorm_args *)args;
    if (a->x.rows == 0)
        return HZP_OK;
    if (a->w.type == HZP_F32)
        return rmsnorm_start<float, float>(lane, a);
    return a->y.type == HZP_F32 ? rmsnorm_start<uint16_t, float>(lane, a)
                                : rmsnorm_start<uint16_t, uint16_t>(lane, a);
}

/* ---- rope, with the append to pages ---- */

/* The number of heads to process in a row: q, k, v; v needs nothing if the rotation is in place and
 * nothing is appended. */
static __device__ __host__ __forceinline__ int rope_items(const struct hzp_rope_args &a)
{
    bool v = a.kv.k || a.x.ptr != a.y.ptr;
    return a.heads.heads + (v ? 2 : 1) * a.heads.kv_heads;
}

/* The place in the pages for row r's head h (q, k, v in this order), in rows of a head; -1: not
 * appended. */
static __device__ __forceinline__ int64_t append_row(const struct hzp_rope_args &a, int64_t r,
                                                     int h)
{
    h -= a.heads.heads;
    if (h < 0 || !a.kv.k)
        return -1;
    int slot = a.slot[r];
    if (slot < 0)
        return -1;
    int64_t page = slot / a.kv.page_rows;
    int64_t head = page * a.heads.kv_heads + (h >= a.heads.kv_heads ? h - a.heads.kv_heads : h);
    return head * a.kv.page_rows + slot % a.kv.page_rows;
}

/* Where that row begins; NULL: not appended. */
template <class T>
static __device__ __forceinline__ T *append_at(const struct hzp_rope_args &a, int64_t r, int h)
{
    int64_t row = append_row(a, r, h);
    bool v = h >= a.heads.heads + a.heads.kv_heads;
    return row < 0 ? nullptr : (T *)(v ? a.kv.v : a.kv.k) + row * a.heads.dim;
}

static __device__ __forceinline__ float rope_rstd(const struct hzp_rope_args &a, float sum)
{
    return (float)(1 / sqrt((double)sum / a.heads.dim + (double)a.eps));
}

template <class T, int N>
static __device__ __forceinline__ void turn_both(float (&lo)[N], float (&hi)[N], const T *norm,
                                                 float rstd, float plus, const float *turn, int j,
                                                 int half)
{
    float c[N], s[N];
    if (norm) {
        float w[N], u[N];
        load_n(norm + j, w);
        load_n(norm + half + j, u);
#pragma unroll
        for (int k = 0; k < N; k++)
            lo[k] *= rstd * (w[k] + plus), hi[k] *= rstd * (u[k] + plus);
    }
    load_n(turn + j, c);
    load_n(turn + half + j, s);
#pragma unroll
    for (int k = 0; k < N; k++) {
        float x = lo[k];
        lo[k] = x * c[k] - hi[k] * s[k];
        hi[k] = hi[k] * c[k] + x * s[k];
    }
}

/* Quantizes a head of row r, as it is in y, to its place in the pages.  All threads of a warp call
 * it; the head has `threads` of them, and this one elements j .. j+N-1 of either half, and so on. */
template <class T, int N>
static __device__ __forceinline__ void append_codes(const struct hzp_rope_args &a, int64_t r, int h,
                                                    const T *y, int j, int threads, bool there)
{
    int half = a.heads.dim / 2;
    bool v = h >= a.heads.heads + a.heads.kv_heads;
    int64_t row = there ? append_row(a, r, h) : -1;
    uint32_t largest = 0;
    float x[N];
    for (int i = j; row >= 0 && i < half; i += threads * N)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            load_n(y + i + side * half, x);
#pragma unroll
            for (int k = 0; k < N; k++)
                largest = max(largest, __float_as_uint(x[k]) & 0x7fffffffu);
        }
    for (int m = threads / 2; m > 0; m /= 2)
        largest = max(largest, __shfl_xor_sync(~0u, largest, m));
    if (row < 0)
        return;
    float scale = hzp_e4m3_scale(largest);
    bool none = largest >= 0x7f800000u;
    uint8_t *to = (uint8_t *)(v ? a.kv.v : a.kv.k) + row * a.heads.dim;
    for (int i = j; i < half; i += threads * N)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            load_n(y + i + side * half, x);
#pragma unroll
            for (int k = 0; k < N; k++)
                x[k] = none ? 0 : x[k] / scale;
            store_codes(to + i + side * half, x);
        }
    if (j == 0)
        (v ? a.kv.v_scale : a.kv.k_scale)[row] = scale;
}

/* Each head has 1 << shift threads of a warp, which process N elements of either half at a time.
 * ONCE: one iteration is enough, and the head stays in registers from its norm to its stores.
 * CODES: the pages are E4M3; a thread quantizes what it has just stored. */
template <class T, int N, bool ONCE, bool CODES>
static __global__ void __launch_bounds__(THREADS) rope(struct hzp_rope_args a, int shift)
{
    wait_for_earlier();
    let_next_begin();
    int dim = a.heads.dim, half = dim / 2, threads = 1 << shift;
    place p = place_of<1>((blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> shift, rope_items(a));
    int64_t r = p.r;
    int h = p.c, j = (int)(threadIdx.x % threads) * N;
    bool there = r < a.x.rows; /* threads past the end still take part in the sum */
    const T *x = row_of<T>(a.x, r) + (int64_t)h * dim;
    T *y = row_of<T>(a.y, r) + (int64_t)h * dim;
    float lo[N] = {}, hi[N] = {};
    float rstd = 1;
    if (ONCE && there && j < half) {
        load_n(x + j, lo);
        load_n(x + half + j, hi);
    }
    if (a.q_norm.ptr || a.k_norm.ptr) {
        float sum = 0;
        for (int i = j; !ONCE && there && i < half; i += threads * N) {
            load_n(x + i, lo);
            load_n(x + half + i, hi);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum += lo[k] * lo[k] + hi[k] * hi[k];
        }
#pragma unroll
        for (int k = 0; ONCE && k < N; k++)
            sum += lo[k] * lo[k] + hi[k] * hi[k];
        for (int m = threads / 2; m > 0; m /= 2)
            sum += __shfl_xor_sync(~0u, sum, m);
        rstd = rope_rstd(a, sum);
    }
    if (!there && !CODES)
        return;
    bool v = h >= a.heads.heads + a.heads.kv_heads, same = v && x == y;
    const T *norm = (const T *)(h < a.heads.heads ? a.q_norm.ptr : a.k_norm.ptr);
    const float *turn = there ? row_of<float>(a.table, a.pos[r]) : nullptr;
    T *to = CODES ? nullptr : append_at<T>(a, r, h);
    for (int i = j; there && i < half; i += threads * N) {
        if (!ONCE) {
            load_n(x + i, lo);
            load_n(x + half + i, hi);
        }
        if (!v)
            turn_both<T, N>(lo, hi, norm, rstd, a.plus_one ? 1.0f : 0.0f, turn, i, half);
        if (!same) {
            store_n(y + i, lo);
            store_n(y + half + i, hi);
        }
        if (to) {
            store_n(to + i, lo);
            store_n(to + half + i, hi);
        }
    }
    if (CODES)
        append_codes<T, N>(a, r, h, y, j, threads, there);
}

template <class T, bool CODES>
static void rope_start(struct hzp_lane *lane, const struct hzp_rope_args &a, bool fast, int shift)
{
    unsigned blocks =
        (unsigned)HZP_DIV_UP((int64_t)a.x.rows * rope_items(a) << shift, (int64_t)THREADS);
    if (fast)
        start_few(lane, a.x.rows, blocks, THREADS, 0, rope<T, 8, true, CODES>, a, shift);
    else
        start_few(lane, a.x.rows, blocks, THREADS, 0, rope<T, 1, false, CODES>, a, shift);
}

extern "C" int hzp_cuda_rope(struct hzp_lane *lane, const void *args)
{
    struct hzp_rope_args a = *(const struct hzp_rope_args *)args;
    if (a.x.rows == 0)
        return HZP_OK;
    size_t ints = (size_t)a.x.rows * sizeof(int32_t);
    bool fast = wide(&a.x) && wide(&a.y) && wide(&a.q_norm) && wide(&a.k_norm) && wide(&a.table) &&
                a.heads.dim % 16 == 0 && a.heads.dim <= 16 * 32 && (uintptr_t)a.kv.k % 16 == 0 &&
                (uintptr_t)a.kv.v % 16 == 0;
    int shift = fast ? 0 : 5;
    while (fast && 16 << shift < a.heads.dim)
        shift++;
    a.pos = (const int32_t *)hzp_cuda_staged(lane, a.pos, ints);
    if (a.kv.k)
        a.slot = (const int32_t *)hzp_cuda_staged(lane, a.slot, ints);
    return with_type(a.x.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        if (a.kv.k && a.kv.type == HZP_E4M3)
            rope_start<T, true>(lane, a, fast, shift);
        else
            rope_start<T, false>(lane, a, fast, shift);
        return hzp_cuda_launched(lane, "rope");
    });
}

/* ---- swiglu, cast, fill, noise ---- */

template <class T, int N> static __global__ void swiglu(struct hzp_swiglu_args a)
{
    wait_for_earlier();
    let_next_begin();
    EACH(i, (int64_t)a.y.rows * (a.y.cols / N))
    {
        place p = place_of<N>(i, a.y.cols);
        const T *x = row_of<T>(a.x, p.r) + p.c;
        float gate[N], up[N];
        load_n(x, gate);
        load_n(x + a.y.cols, up);
#pragma unroll
        for (int k = 0; k < N; k++)
            gate[k] = gate[k] / (1 + expf(-(a.gelu ? gelu_z(gate[k]) : gate[k]))) * up[k];
        store_n(row_of<T>(a.y, p.r) + p.c, gate);
    }
}

extern "C" int hzp_cuda_swiglu(struct hzp_lane *lane, const void *args)
{
    const struct hzp_swiglu_args *a = (const struct hzp_swiglu_args *)args;
    bool eight = wide(&a->x) && wide(&a->y);
    return by_element(lane, a->y, eight, "swiglu", [&](auto *t, auto n, unsigned grid) {
        start_few(lane, a->y.rows, grid, ELEMENT_THREADS, 0,
                  swiglu<elem_of<decltype(t)>, decltype(n)::value>, *a);
    });
}

template <class T, class U, int N> static __global__ void cast(struct hzp_cast_args a)
{
    if (a.squares)
        a.scale /= fmaxf((float)sqrt(*a.squares), 1e-7f);
    EACH(i, (int64_t)a.y.rows * (a.y.cols / N))
    {
        place p = place_of<N>(i, a.y.cols);
        float v[N];
        load_n(row_of<T>(a.x, p.r) + p.c, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = capped(v[k] * a.scale, a.cap);
        store_n(row_of<U>(a.y, p.r) + p.c, v);
    }
}

extern "C" int hzp_cuda_cast(struct hzp_lane *lane, const void *args)
{
    struct hzp_cast_args a = *(const struct hzp_cast_args *)args;
    bool eight = wide(&a.x) && wide(&a.y);
    a.scale = a.scale ? a.scale : 1;
    return by_element(lane, a.y, eight, "cast", [&](auto *u, auto n, unsigned grid) {
        with_type(a.x.type, [&](auto *t) {
            start(lane, grid, ELEMENT_THREADS, 0,
                  cast<elem_of<decltype(t)>, elem_of<decltype(u)>, decltype(n)::value>, a);
            return HZP_OK;
        });
    });
}

template <class T, int N> static __global__ void fill(struct hzp_fill_args a)
{
    float v[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        v[k] = a.value;
    EACH(i, (int64_t)a.y.rows * (a.y.cols / N))
    {
        place p = place_of<N>(i, a.y.cols);
        store_n(row_of<T>(a.y, p.r) + p.c, v);
    }
}

extern "C" int hzp_cuda_fill(struct hzp_lane *lane, const void *args)
{
    const struct hzp_fill_args *a = (const struct hzp_fill_args *)args;
    return by_element(lane, a->y, wide(&a->y), "fill", [&](auto *t, auto n, unsigned grid) {
        start(lane, grid, ELEMENT_THREADS, 0, fill<elem_of<decltype(t)>, decltype(n)::value>, *a);
    });
}

/* N = 8: first is a multiple of 4. */
template <class T, int N> static __global__ void noise(struct hzp_noise_args a)
{
    float scale = hzp_noise_scale(a.deviation);
    EACH(i, (int64_t)a.y.rows * a.y.cols / N)
    {
        place p = place_of<N>(i, a.y.cols);
        uint64_t at = a.first + (uint64_t)i * N;
        float four[4], v[N];
        hzp_noise_four(a.seed, at / 4, four);
        v[0] = four[0];
        if constexpr (N == 1) {
#pragma unroll
            for (int k = 1; k < 4; k++)
                v[0] = (int)(at % 4) == k ? four[k] : v[0];
        } else {
#pragma unroll
            for (int k = 1; k < N; k++) {
                if (k % 4 == 0)
                    hzp_noise_four(a.seed, at / 4 + k / 4, four);
                v[k] = four[k % 4];
            }
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] *= scale;
        store_n(row_of<T>(a.y, p.r) + p.c, v);
    }
}

extern "C" int hzp_cuda_noise(struct hzp_lane *lane, const void *args)
{
    const struct hzp_noise_args *a = (const struct hzp_noise_args *)args;
    bool eight = wide(&a->y) && a->first % 4 == 0;
    return by_element(lane, a->y, eight, "noise", [&](auto *t, auto n, unsigned grid) {
        start(lane, grid, ELEMENT_THREADS, 0, noise<elem_of<decltype(t)>, decltype(n)::value>, *a);
    });
}
