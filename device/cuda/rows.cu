/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/rows.cu - ops that touch each row by itself: embed, rmsnorm, rope, kv_append, swiglu,
 * gather, cast, fill.  All wait for memory: a thread moves 16 bytes where alignment allows it.
 */
#include "device/cuda/kernel.cuh"

enum { THREADS = 256 };

#define EACH(i, count)                                                                             \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (count);                  \
         i += (int64_t)gridDim.x * blockDim.x)

/* y[r] = x[index[r]], from one type to another. */
template <class T, class U, int N>
static __global__ void pick_rows(struct hzp_mat x, struct hzp_mat y, const int32_t *index)
{
    EACH(i, (int64_t)y.rows * (y.cols / N)) {
        place p = place_of<N>(i, y.cols);
        float v[N];
        load_n(row_of<T>(x, index[p.r]) + p.c, v);
        store_n(row_of<U>(y, p.r) + p.c, v);
    }
}

template <class T, class U>
static int pick(struct hzp_lane *lane, const struct hzp_mat &x, const struct hzp_mat &y,
                const int32_t *index, const char *op)
{
    int64_t count = (int64_t)y.rows * y.cols;
    if (count == 0)
        return HZP_OK;
    if (wide(&x) && wide(&y))
        start(lane, grid_for(lane, count / 8, THREADS), THREADS, 0, pick_rows<T, U, 8>, x, y,
              index);
    else
        start(lane, grid_for(lane, count, THREADS), THREADS, 0, pick_rows<T, U, 1>, x, y, index);
    return hzp_cuda_launched(lane, op);
}

extern "C" int hzp_cuda_embed(struct hzp_lane *lane, const void *args)
{
    const struct hzp_embed_args *a = (const struct hzp_embed_args *)args;
    return a->table.type == HZP_BF16 ? pick<uint16_t, float>(lane, a->table, a->y, a->id, "embed")
                                     : pick<float, float>(lane, a->table, a->y, a->id, "embed");
}

extern "C" int hzp_cuda_gather(struct hzp_lane *lane, const void *args)
{
    const struct hzp_gather_args *a = (const struct hzp_gather_args *)args;
    return a->y.type == HZP_BF16 ? pick<uint16_t, uint16_t>(lane, a->x, a->y, a->index, "gather")
                                 : pick<float, float>(lane, a->x, a->y, a->index, "gather");
}

/* ---- rmsnorm: a block a row ---- */

template <class T, int N> static __global__ void rmsnorm(struct hzp_rmsnorm_args a)
{
    int r = blockIdx.x;
    const float *x = row_of<float>(a.x, r);
    T *y = row_of<T>(a.y, r);
    float sum = 0;
    for (int c = threadIdx.x * N; c < a.x.cols; c += blockDim.x * N) {
        float v[N];
        load_n(x + c, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += v[k] * v[k];
    }
    float rstd = (float)(1 / sqrt((double)block_sum(sum) / a.x.cols + (double)a.eps));
    for (int c = threadIdx.x * N; c < a.x.cols; c += blockDim.x * N) {
        float v[N], w[N];
        load_n(x + c, v);
        load_n((const T *)a.w.ptr + c, w);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = v[k] * rstd * w[k];
        store_n(y + c, v);
    }
    if (a.rstd && threadIdx.x == 0)
        a.rstd[r] = rstd;
}

extern "C" int hzp_cuda_rmsnorm(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rmsnorm_args *a = (const struct hzp_rmsnorm_args *)args;
    if (a->x.rows == 0)
        return HZP_OK;
    return with_type(a->y.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        if (wide(&a->x) && wide(&a->w) && wide(&a->y)) {
            int threads = HZP_MAX(32, HZP_MIN(512, HZP_ROUND_UP(a->x.cols / 8, 32)));
            start(lane, a->x.rows, threads, 0, rmsnorm<T, 8>, *a);
        } else {
            start(lane, a->x.rows, THREADS, 0, rmsnorm<T, 1>, *a);
        }
        return hzp_cuda_launched(lane, "rmsnorm");
    });
}

/* ---- rope: a warp a head of a row ---- */

template <class T> static __device__ float head_rstd(const T *x, int dim, float eps)
{
    float sum = 0;
    for (int j = threadIdx.x % 32; j < dim; j += 32)
        sum += load(x + j) * load(x + j);
    return (float)(1 / sqrt((double)warp_sum(sum) / dim + (double)eps));
}

/* Two elements as one access where PAIR: halves then start at even places. */
template <class T, bool PAIR>
static __device__ __forceinline__ void load_pair(const T *p, float (&ret)[2])
{
    if constexpr (PAIR && sizeof(T) == 2) {
        unpack(*reinterpret_cast<const uint32_t *>(p), ret);
    } else if constexpr (PAIR) {
        float2 v = *reinterpret_cast<const float2 *>(p);
        ret[0] = v.x, ret[1] = v.y;
    } else {
        ret[0] = load(p);
    }
}

template <class T, bool PAIR>
static __device__ __forceinline__ void store_pair(T *p, const float (&x)[2])
{
    if constexpr (PAIR && sizeof(T) == 2)
        *reinterpret_cast<uint32_t *>(p) = pack(x[0], x[1]);
    else if constexpr (PAIR)
        *reinterpret_cast<float2 *>(p) = make_float2(x[0], x[1]);
    else
        store(p, x[0]);
}

template <class T, bool PAIR>
static __global__ void rope(struct hzp_rope_args a, int items)
{
    constexpr int N = PAIR ? 2 : 1;
    int64_t item = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    if (item >= (int64_t)a.x.rows * items)
        return;
    int64_t r = item / items;
    int h = (int)(item % items), dim = a.heads.dim, half = dim / 2, lane = threadIdx.x % 32;
    const T *x = row_of<T>(a.x, r) + (int64_t)h * dim;
    T *y = row_of<T>(a.y, r) + (int64_t)h * dim;
    if (h >= a.heads.heads + a.heads.kv_heads) {
        for (int j = lane * N; j < dim; j += 32 * N) {
            float v[2];
            load_pair<T, PAIR>(x + j, v);
            store_pair<T, PAIR>(y + j, v);
        }
        return;
    }
    const T *norm = (const T *)(h < a.heads.heads ? a.q_norm.ptr : a.k_norm.ptr);
    float rstd = norm ? head_rstd(x, dim, a.eps) : 1;
    const float *turn = row_of<float>(a.table, a.pos[r]);
    for (int j = lane * N; j < half; j += 32 * N) {
        float lo[2], hi[2], to_lo[2], to_hi[2];
        load_pair<T, PAIR>(x + j, lo);
        load_pair<T, PAIR>(x + half + j, hi);
#pragma unroll
        for (int k = 0; k < N; k++) {
            float c = turn[j + k], s = turn[half + j + k];
            if (norm) {
                lo[k] *= rstd * load(norm + j + k);
                hi[k] *= rstd * load(norm + half + j + k);
            }
            to_lo[k] = lo[k] * c - hi[k] * s;
            to_hi[k] = hi[k] * c + lo[k] * s;
        }
        store_pair<T, PAIR>(y + j, to_lo);
        store_pair<T, PAIR>(y + half + j, to_hi);
    }
}

static bool paired(const struct hzp_mat *m, int dim)
{
    size_t size = m->type == HZP_F32 ? 4 : 2;
    return dim % 4 == 0 && (uintptr_t)m->ptr % (2 * size) == 0 && m->stride % 2 == 0;
}

extern "C" int hzp_cuda_rope(struct hzp_lane *lane, const void *args)
{
    struct hzp_rope_args a = *(const struct hzp_rope_args *)args;
    if (a.x.rows == 0)
        return HZP_OK;
    int items = a.heads.heads + a.heads.kv_heads + (a.x.ptr == a.y.ptr ? 0 : a.heads.kv_heads);
    unsigned blocks = (unsigned)HZP_DIV_UP((int64_t)a.x.rows * items, (int64_t)(THREADS / 32));
    a.pos = (const int32_t *)hzp_cuda_staged(lane, a.pos, (size_t)a.x.rows * sizeof(*a.pos));
    return with_type(a.x.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        if (paired(&a.x, a.heads.dim) && paired(&a.y, a.heads.dim))
            start(lane, blocks, THREADS, 0, rope<T, true>, a, items);
        else
            start(lane, blocks, THREADS, 0, rope<T, false>, a, items);
        return hzp_cuda_launched(lane, "rope");
    });
}

/* ---- kv_append ---- */

template <class T, int N> static __global__ void kv_append(struct hzp_kv_append_args a)
{
    int dim = a.heads.dim, width = 2 * a.heads.kv_heads * dim;
    EACH(i, (int64_t)a.qkv.rows * (width / N)) {
        place p = place_of<N>(i, width);
        int slot = a.slot[p.r];
        if (slot < 0)
            continue;
        int head = p.c / dim, j = p.c % dim;
        bool v = head >= a.heads.kv_heads;
        int64_t page = slot / a.kv.page_rows;
        int at = slot % a.kv.page_rows;
        int64_t to = ((page * a.heads.kv_heads + (v ? head - a.heads.kv_heads : head)) *
                          a.kv.page_rows + at) * dim + j;
        float x[N];
        load_n(row_of<T>(a.qkv, p.r) + a.heads.heads * dim + p.c, x);
        store_n((T *)(v ? a.kv.v : a.kv.k) + to, x);
    }
}

extern "C" int hzp_cuda_kv_append(struct hzp_lane *lane, const void *args)
{
    struct hzp_kv_append_args a = *(const struct hzp_kv_append_args *)args;
    int64_t count = (int64_t)a.qkv.rows * 2 * a.heads.kv_heads * a.heads.dim;
    if (count == 0)
        return HZP_OK;
    a.slot = (const int32_t *)hzp_cuda_staged(lane, a.slot, (size_t)a.qkv.rows * sizeof(*a.slot));
    bool fast = wide(&a.qkv) && a.heads.dim % 8 == 0 && (uintptr_t)a.kv.k % 16 == 0 &&
                (uintptr_t)a.kv.v % 16 == 0;
    return with_type(a.qkv.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        if (fast)
            start(lane, grid_for(lane, count / 8, THREADS), THREADS, 0, kv_append<T, 8>, a);
        else
            start(lane, grid_for(lane, count, THREADS), THREADS, 0, kv_append<T, 1>, a);
        return hzp_cuda_launched(lane, "kv_append");
    });
}

/* ---- swiglu, cast, fill ---- */

template <class T, int N> static __global__ void swiglu(struct hzp_swiglu_args a)
{
    EACH(i, (int64_t)a.y.rows * (a.y.cols / N)) {
        place p = place_of<N>(i, a.y.cols);
        const T *x = row_of<T>(a.x, p.r) + p.c;
        float gate[N], up[N];
        load_n(x, gate);
        load_n(x + a.y.cols, up);
#pragma unroll
        for (int k = 0; k < N; k++)
            gate[k] = gate[k] / (1 + expf(-gate[k])) * up[k];
        store_n(row_of<T>(a.y, p.r) + p.c, gate);
    }
}

extern "C" int hzp_cuda_swiglu(struct hzp_lane *lane, const void *args)
{
    const struct hzp_swiglu_args *a = (const struct hzp_swiglu_args *)args;
    int64_t count = (int64_t)a->y.rows * a->y.cols;
    if (count == 0)
        return HZP_OK;
    return with_type(a->y.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        if (wide(&a->x) && wide(&a->y))
            start(lane, grid_for(lane, count / 8, THREADS), THREADS, 0, swiglu<T, 8>, *a);
        else
            start(lane, grid_for(lane, count, THREADS), THREADS, 0, swiglu<T, 1>, *a);
        return hzp_cuda_launched(lane, "swiglu");
    });
}

template <class T, class U, int N> static __global__ void cast(struct hzp_cast_args a)
{
    EACH(i, (int64_t)a.y.rows * (a.y.cols / N)) {
        place p = place_of<N>(i, a.y.cols);
        float v[N];
        load_n(row_of<T>(a.x, p.r) + p.c, v);
        store_n(row_of<U>(a.y, p.r) + p.c, v);
    }
}

template <class T, class U>
static int cast_as(struct hzp_lane *lane, const struct hzp_cast_args *a)
{
    int64_t count = (int64_t)a->y.rows * a->y.cols;
    if (wide(&a->x) && wide(&a->y))
        start(lane, grid_for(lane, count / 8, THREADS), THREADS, 0, cast<T, U, 8>, *a);
    else
        start(lane, grid_for(lane, count, THREADS), THREADS, 0, cast<T, U, 1>, *a);
    return hzp_cuda_launched(lane, "cast");
}

extern "C" int hzp_cuda_cast(struct hzp_lane *lane, const void *args)
{
    const struct hzp_cast_args *a = (const struct hzp_cast_args *)args;
    if (a->y.rows == 0 || a->y.cols == 0)
        return HZP_OK;
    if (a->x.type == HZP_BF16)
        return a->y.type == HZP_BF16 ? cast_as<uint16_t, uint16_t>(lane, a)
                                     : cast_as<uint16_t, float>(lane, a);
    return a->y.type == HZP_BF16 ? cast_as<float, uint16_t>(lane, a) : cast_as<float, float>(lane, a);
}

template <class T, int N> static __global__ void fill(struct hzp_fill_args a)
{
    float v[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        v[k] = a.value;
    EACH(i, (int64_t)a.y.rows * (a.y.cols / N)) {
        place p = place_of<N>(i, a.y.cols);
        store_n(row_of<T>(a.y, p.r) + p.c, v);
    }
}

extern "C" int hzp_cuda_fill(struct hzp_lane *lane, const void *args)
{
    const struct hzp_fill_args *a = (const struct hzp_fill_args *)args;
    int64_t count = (int64_t)a->y.rows * a->y.cols;
    if (count == 0)
        return HZP_OK;
    return with_type(a->y.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        if (wide(&a->y))
            start(lane, grid_for(lane, count / 8, THREADS), THREADS, 0, fill<T, 8>, *a);
        else
            start(lane, grid_for(lane, count, THREADS), THREADS, 0, fill<T, 1>, *a);
        return hzp_cuda_launched(lane, "fill");
    });
}
