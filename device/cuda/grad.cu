/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/grad.cu - the loss and the backward ops other than products and attention: xent,
 * seq_loss, embed_bwd, rmsnorm_bwd, rope_bwd, swiglu_bwd, colsum.  No atomics: every sum has a
 * fixed order.
 */
#include "device/cuda/kernel.cuh"
#include "device/objective.h"

enum {
    THREADS = 256,
    LOSS_THREADS = 512,
    GROUPS_MAX = 128,
    GROUP_ROWS = 32,
    TILE = 32,
    DEEP = 8,
    END_THREADS = 32
};

/* ---- xent: one block per row, two passes ---- */

/* The largest element of x times `scale`, and the sum of exp(that - largest). */
template <int N>
static __device__ void row_mass(const float *x, int cols, float scale, float *ret_top,
                                double *ret_sum)
{
    float top = -INFINITY, sum = 0;
    for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
        float v[N];
        load_n(x + c, v);
#pragma unroll
        for (int k = 0; k < N; k++) {
            float z = v[k] * scale;
            if (z > top) {
                sum = sum * expf(top - z);
                top = z;
            }
            if (top > -INFINITY)
                sum += expf(fmaf(v[k], scale, -top));
        }
    }
    float all = block_max(top);
    *ret_top = all;
    *ret_sum = block_sum(top > -INFINITY ? (double)sum * exp((double)top - all) : 0.0);
}

/* -sum p log p, in thread 0; the row is read once more. */
template <int N>
static __device__ float row_entropy(const float *x, int cols, float scale, float top, double sum)
{
    float log_sum = (float)log(sum), mean = 0;
    for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
        float v[N];
        load_n(x + c, v);
#pragma unroll
        for (int k = 0; k < N; k++) {
            float z = fmaxf(fmaf(v[k], scale, -top) - log_sum, -1e4f); /* exp of it is 0 */
            mean += expf(z) * z;
        }
    }
    return (float)-block_sum((double)mean);
}

/* Thread 0 writes what a row gives beside dx; each thread gets what dx is multiplied by. */
template <bool MORE>
static __device__ float row_loss(const struct hzp_xent_args &a, int r, double lp, bool learned)
{
    float weight = a.weight ? a.weight[r] : 1;
    struct hzp_objective o = {-lp, 1, 1, 0};
    if (MORE && a.how && learned)
        o = hzp_objective_of(&a.how[r], lp);
    if (threadIdx.x == 0) {
        a.loss[r] = learned ? (float)(weight * o.value) : 0;
        if (MORE && a.lp)
            a.lp[r] = learned ? (float)lp : 0;
    }
    return learned ? (float)(weight * o.slope) : 0;
}

/* As row_loss, of a row of SOFT; thread k < count gets its token's element of dx, or at becomes
 * -1. */
static __device__ float soft_loss(const struct hzp_xent_args &a, int r, const float *x, double lse,
                                  int *ret_at, float *ret_hit)
{
    const struct hzp_soft &s = a.soft[r];
    double weight = a.weight ? a.weight[r] : 1, scale = a.how[r].inv_temperature;
    double lp[HZP_SOFT_MAX];
    for (int k = 0; k < s.count; k++)
        lp[k] = x[s.token[k]] * scale - lse;
    struct hzp_soft_objective o = hzp_soft_objective_of(&s, lp);
    int k = threadIdx.x;
    *ret_at = k < s.count ? s.token[k] : -1;
    if (*ret_at >= 0)
        *ret_hit = (float)(weight * scale * (o.inside * exp(lp[k]) - s.p[k])) *
                   cap_slope(x[*ret_at], a.cap);
    if (threadIdx.x == 0) {
        a.loss[r] = (float)(weight * o.value);
        if (a.lp)
            a.lp[r] = (float)(x[a.target[r]] * scale - lse);
    }
    return (float)(weight * o.outside);
}

/* OVER: a row of dx lies in the first half of x's, in BF16.  A tile of dx lies on floats of this tile
 * or earlier ones, so the block reads a tile before it writes it.  MORE: other losses than plain
 * cross-entropy, or further outputs; without them fewer registers let more blocks run at a time. */
template <class T, int N, bool OVER, bool MORE> static __global__ void xent(struct hzp_xent_args a)
{
    int r = blockIdx.x, target = a.target[r], cols = a.x.cols;
    const float *x = row_of<float>(a.x, r);
    float top, scale = MORE && a.how ? a.how[r].inv_temperature : 1;
    double sum;
    row_mass<N>(x, cols, scale, &top, &sum);
    float at_target = target < 0 ? 0 : x[target], by, hit = 0;
    bool learned = target >= 0;
    int at = -1; /* SOFT: this thread's token */
    if (MORE && a.soft && learned && a.how[r].kind == HZP_LOSS_SOFT) {
        by = soft_loss(a, r, x, top + log(sum), &at, &hit) * scale;
        target = -1;
    } else {
        by = row_loss<MORE>(a, r, (double)at_target * scale - top - log(sum), learned) * scale;
    }
    if (MORE && a.entropy) {
        float entropy = row_entropy<N>(x, cols, scale, top, sum);
        if (threadIdx.x == 0)
            a.entropy[r] = learned ? entropy : 0;
    }
    if (!a.dx.ptr)
        return;
    T *dx = row_of<T>(a.dx, r);
    float share = (float)(1 / sum);
    __syncthreads(); /* dx may be x: all threads have read the target */
    for (int c0 = 0; c0 < cols; c0 += blockDim.x * N) {
        int c = c0 + threadIdx.x * N;
        float v[N];
        if (c < cols)
            load_n(x + c, v);
        if constexpr (OVER)
            __syncthreads();
        if (c >= cols)
            continue;
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] =
                !learned
                    ? 0
                    : by * cap_slope(v[k], a.cap) *
                          (expf(fmaf(v[k], scale, -top)) * share - (c + k == target ? 1.0f : 0.0f));
        store_n(dx + c, v);
    }
    if (MORE && a.soft) {
        __syncthreads();
        if (at >= 0)
            store(dx + at, hit);
    }
}

template <class T, bool OVER, bool MORE>
static int start_xent(struct hzp_lane *lane, const struct hzp_xent_args *a)
{
    if (wide(&a->x) && wide(&a->dx))
        start(lane, a->x.rows, LOSS_THREADS, 0, xent<T, 8, OVER, MORE>, *a);
    else
        start(lane, a->x.rows, LOSS_THREADS, 0, xent<T, 1, OVER, MORE>, *a);
    return hzp_cuda_launched(lane, "xent");
}

template <bool MORE> static int start_type(struct hzp_lane *lane, const struct hzp_xent_args *a)
{
    if (a->dx.ptr && a->dx.type == HZP_BF16)
        return a->dx.ptr == a->x.ptr ? start_xent<uint16_t, true, MORE>(lane, a)
                                     : start_xent<uint16_t, false, MORE>(lane, a);
    return start_xent<float, false, MORE>(lane, a);
}

extern "C" int hzp_cuda_xent(struct hzp_lane *lane, const void *args)
{
    const struct hzp_xent_args *a = (const struct hzp_xent_args *)args;
    if (a->x.rows == 0)
        return HZP_OK;
    return a->how || a->lp || a->entropy ? start_type<true>(lane, a) : start_type<false>(lane, a);
}

/* ---- seq_loss: one thread per sequence, of which a micro-batch has few ---- */

static __global__ void seq_loss(struct hzp_seq_loss_args a)
{
    EACH(i, a.seqs)
    hzp_sequence_loss(&a, (int32_t)i);
}

extern "C" int hzp_cuda_seq_loss(struct hzp_lane *lane, const void *args)
{
    const struct hzp_seq_loss_args *a = (const struct hzp_seq_loss_args *)args;
    if (a->seqs == 0)
        return HZP_OK;
    start(lane, grid_for(lane, a->seqs, END_THREADS), END_THREADS, 0, seq_loss, *a);
    return hzp_cuda_launched(lane, "seq_loss");
}

/* ---- embed_bwd: one block per row; the first row of an id adds all its rows, in order ---- */

static __global__ void embed_bwd(struct hzp_embed_bwd_args a)
{
    HZP_SHARED(unsigned, same, [THREADS / 32]);
    int first = blockIdx.x, id = a.id[first], rows = a.dy.rows;
    int64_t row = (int64_t)id - a.first;
    bool earlier = row < 0 || row >= a.dtable.rows; /* or not in the table: of all threads alike */
    for (int i = threadIdx.x; i < first; i += THREADS)
        earlier |= a.id[i] == id;
    if (__syncthreads_or(earlier))
        return;
    float *into = row_of<float>(a.dtable, (int)row);
    for (int c0 = 0; c0 < a.dy.cols; c0 += THREADS * 4) {
        float sum[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int c = c0 + k * THREADS + threadIdx.x;
            sum[k] = c < a.dy.cols ? into[c] : 0;
        }
        for (int i0 = first; i0 < rows; i0 += THREADS) {
            int i = i0 + threadIdx.x;
            unsigned votes = __ballot_sync(~0u, i < rows && a.id[i] == id);
            if (threadIdx.x % 32 == 0)
                same[threadIdx.x / 32] = votes;
            __syncthreads();
            for (int w = 0; w < THREADS / 32; w++)
                for (unsigned left = same[w]; left; left &= left - 1) {
                    const float *dy = row_of<float>(a.dy, i0 + w * 32 + __ffs((int)left) - 1);
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        int c = c0 + k * THREADS + threadIdx.x;
                        if (c < a.dy.cols)
                            sum[k] += dy[c];
                    }
                }
            __syncthreads();
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int c = c0 + k * THREADS + threadIdx.x;
            if (c < a.dy.cols)
                into[c] = sum[k];
        }
    }
}

extern "C" int hzp_cuda_embed_bwd(struct hzp_lane *lane, const void *args)
{
    struct hzp_embed_bwd_args a = *(const struct hzp_embed_bwd_args *)args;
    if (a.dy.rows == 0)
        return HZP_OK;
    a.id = (const int32_t *)hzp_cuda_staged(lane, a.id, (size_t)a.dy.rows * sizeof(*a.id));
    start(lane, a.dy.rows, THREADS, 0, embed_bwd, a);
    return hzp_cuda_launched(lane, "embed_bwd");
}

/* ---- column sums: over groups of rows, then over the groups ---- */

/* value.at(r, c) gives the terms of N columns of a row, from column c on. */
struct value_plain {
    struct hzp_mat x;
    bool wide_rows() const
    {
        return wide(&x);
    }
    template <class T, int N> __device__ void at(int64_t r, int c, float (&ret)[N]) const
    {
        load_n(row_of<T>(x, r) + c, ret);
    }
};

struct value_normed { /* dy (x - centre) rstd */
    struct hzp_mat dy, x;
    const float *rstd, *centre; /* [rows]; centre NULL: 0 */
    bool wide_rows() const
    {
        return wide(&dy) && wide(&x);
    }
    template <class T, int N> __device__ void at(int64_t r, int c, float (&ret)[N]) const
    {
        float n[N], scale = rstd[r], less = centre ? centre[r] : 0;
        load_n(row_of<T>(dy, r) + c, ret);
        load_n(row_of<float>(x, r) + c, n);
#pragma unroll
        for (int k = 0; k < N; k++)
            ret[k] *= (n[k] - less) * scale;
    }
};

/* A thread has N columns.  A column's terms are added in the same order for each N. */
template <class T, int N, class VALUE>
static __global__ void group_sums(VALUE value, int rows, int cols, int group_rows, float *part)
{
    HZP_SHARED(float4, sums, [DEEP][TILE * N / 4]);
    int c0 = blockIdx.x * TILE * N, c = c0 + threadIdx.x * N;
    int64_t r0 = (int64_t)blockIdx.y * group_rows, r1 = HZP_MIN(r0 + group_rows, (int64_t)rows);
    float sum[N] = {};
    if (c < cols) {
#pragma unroll 2
        for (int64_t r = r0 + threadIdx.y; r < r1; r += DEEP) {
            float term[N];
            value.template at<T>(r, c, term);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += term[k];
        }
    }
    store_n((float *)sums[threadIdx.y] + threadIdx.x * N, sum);
    __syncthreads();
    for (int i = threadIdx.y * TILE + threadIdx.x; i < TILE * N && c0 + i < cols;
         i += TILE * DEEP) {
        double all = 0;
        for (int d = 0; d < DEEP; d++)
            all += ((const float *)sums[d])[i];
        part[(int64_t)blockIdx.y * cols + c0 + i] = (float)all;
    }
}

/* Many loads at a time: the blocks are too few to hide the wait for one. */
static __global__ void group_end(const float *part, int groups, int cols, float *y)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols)
        return;
    double sum = 0;
#pragma unroll 16
    for (int g = 0; g < groups; g++)
        sum += part[(int64_t)g * cols + c];
    y[c] = (float)(y[c] + sum);
}

/* The lane's scratch from float `used` on has the groups' sums. */
template <class T, int N, class VALUE>
static void column_sums_by(struct hzp_lane *lane, VALUE value, int rows, int cols, float *y,
                           int used)
{
    size_t room = hzp_cuda_lane(lane)->scratch_size / sizeof(float) - (size_t)used;
    int most = (int)HZP_MAX((size_t)1, HZP_MIN((size_t)GROUPS_MAX, room / (size_t)cols));
    int groups = HZP_MAX(1, HZP_MIN(most, HZP_DIV_UP(rows, GROUP_ROWS)));
    int group_rows = HZP_DIV_UP(rows, groups);
    float *part = (float *)hzp_cuda_lane(lane)->scratch + used;
    dim3 grid((unsigned)HZP_DIV_UP(cols, TILE * N), (unsigned)groups), block(TILE, DEEP);
    start(lane, grid, block, 0, group_sums<T, N, VALUE>, value, rows, cols, group_rows, part);
    start(lane, HZP_DIV_UP(cols, (int)END_THREADS), END_THREADS, 0, group_end, part, groups, cols,
          y);
}

template <class T, class VALUE>
static void column_sums(struct hzp_lane *lane, VALUE value, int rows, int cols, float *y,
                        int used = 0)
{
    if (value.wide_rows())
        column_sums_by<T, 8>(lane, value, rows, cols, y, used);
    else
        column_sums_by<T, 1>(lane, value, rows, cols, y, used);
}

extern "C" int hzp_cuda_colsum(struct hzp_lane *lane, const void *args)
{
    const struct hzp_colsum_args *a = (const struct hzp_colsum_args *)args;
    if (a->x.rows == 0 || a->x.cols == 0)
        return HZP_OK;
    return with_type(a->x.type, [&](auto *t) {
        value_plain value = {a->x};
        column_sums<elem_of<decltype(t)>>(lane, value, a->x.rows, a->x.cols, (float *)a->y.ptr);
        return hzp_cuda_launched(lane, "colsum");
    });
}

/* ---- rmsnorm_bwd ---- */

/* centres [rows]: gets the rows' means; not touched unless centred. */
template <class T, class W, int N>
static __global__ void rmsnorm_bwd(struct hzp_rmsnorm_bwd_args a, float *centres)
{
    int r = blockIdx.x, cols = a.x.cols;
    const float *x = row_of<float>(a.x, r);
    const T *dy = row_of<T>(a.dy, r);
    const W *weight = (const W *)a.w.ptr;
    float *dx = row_of<float>(a.dx, r), rstd = a.rstd[r], sum = 0, plus = a.plus_one ? 1.0f : 0.0f;
    float centre = 0, sum_dn = 0, mean_dn = 0;
    if (a.centred) {
        centre = row_mean<N>(x, cols);
        if (threadIdx.x == 0)
            centres[r] = centre;
    }
    for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
        float n[N], d[N], w[N];
        load_n(x + c, n);
        load_n(dy + c, d);
        load_n(weight + c, w);
#pragma unroll
        for (int k = 0; k < N; k++) {
            sum += d[k] * (w[k] + plus) * ((n[k] - centre) * rstd);
            sum_dn += d[k] * (w[k] + plus);
        }
    }
    float mean = block_sum(sum) / cols;
    if (a.centred)
        mean_dn = block_sum(sum_dn) / cols;
    for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
        float n[N], d[N], w[N], to[N];
        load_n(x + c, n);
        load_n(dy + c, d);
        load_n(weight + c, w);
        load_n(dx + c, to);
#pragma unroll
        for (int k = 0; k < N; k++)
            to[k] += rstd * (d[k] * (w[k] + plus) - (n[k] - centre) * rstd * mean - mean_dn);
        store_n(dx + c, to);
    }
}

extern "C" int hzp_cuda_rmsnorm_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rmsnorm_bwd_args *a = (const struct hzp_rmsnorm_bwd_args *)args;
    if (a->x.rows == 0 || a->x.cols == 0)
        return HZP_OK;
    bool fast = wide(&a->x) && wide(&a->dy) && wide(&a->w) && wide(&a->dx);
    float *centres = a->centred ? (float *)hzp_cuda_lane(lane)->scratch : nullptr;
    return with_type(a->dy.type, [&](auto *t) {
        return with_type(a->w.type, [&](auto *w) {
            using T = elem_of<decltype(t)>;
            using W = elem_of<decltype(w)>;
            if (fast)
                start(lane, a->x.rows, THREADS, 0, rmsnorm_bwd<T, W, 8>, *a, centres);
            else
                start(lane, a->x.rows, THREADS, 0, rmsnorm_bwd<T, W, 1>, *a, centres);
            if (a->dw.ptr) {
                value_normed value = {a->dy, a->x, a->rstd, centres};
                column_sums<T>(lane, value, a->x.rows, a->x.cols, (float *)a->dw.ptr,
                               a->centred ? a->x.rows : 0);
            }
            return hzp_cuda_launched(lane, "rmsnorm_bwd");
        });
    });
}

/* ---- rope_bwd: one warp per head of a row, the norms' gradients summed per warp ---- */

enum { ROPE_WARPS = 4, PAIRS_MAX = 8 };

/* One head: dn = dy rotated back, then the norm's backward.  dw: this lane's sums for its
 * elements. */
template <class T>
static __device__ void rope_bwd_head(const struct hzp_rope_bwd_args &a, int64_t r, int h,
                                     const T *norm, float (&dw)[2 * PAIRS_MAX])
{
    int dim = a.heads.dim, half = dim / 2, lane = threadIdx.x % 32;
    const T *dy = row_of<T>(a.dy, r) + (int64_t)h * dim;
    const T *x = norm ? row_of<T>(a.x, r) + (int64_t)h * dim : nullptr;
    T *dx = row_of<T>(a.dx, r) + (int64_t)h * dim;
    const float *turn = row_of<float>(a.table, a.pos[r]);
    float sum = 0, mean = 0, rstd = 1, plus = a.plus_one ? 1.0f : 0.0f;
    if (norm) {
        for (int j = lane; j < dim; j += 32)
            sum += load(x + j) * load(x + j);
        rstd = (float)(1 / sqrt((double)warp_sum(sum) / dim + (double)a.eps));
    }
    float lo[PAIRS_MAX], hi[PAIRS_MAX];
#pragma unroll
    for (int i = 0; i < PAIRS_MAX; i++) {
        int j = lane + 32 * i;
        if (j >= half)
            continue;
        float c = turn[j], s = turn[half + j], dlo = load(dy + j), dhi = load(dy + half + j);
        lo[i] = dlo * c + dhi * s;
        hi[i] = dhi * c - dlo * s;
        if (norm) {
            float nlo = load(x + j) * rstd, nhi = load(x + half + j) * rstd;
            dw[2 * i] += lo[i] * nlo;
            dw[2 * i + 1] += hi[i] * nhi;
            lo[i] *= load(norm + j) + plus;
            hi[i] *= load(norm + half + j) + plus;
            mean += lo[i] * nlo + hi[i] * nhi;
        }
    }
    mean = norm ? warp_sum(mean) / dim : 0;
#pragma unroll
    for (int i = 0; i < PAIRS_MAX; i++) {
        int j = lane + 32 * i;
        if (j >= half)
            continue;
        if (norm) {
            lo[i] = rstd * (lo[i] - load(x + j) * rstd * mean);
            hi[i] = rstd * (hi[i] - load(x + half + j) * rstd * mean);
        }
        store(dx + j, lo[i]);
        store(dx + half + j, hi[i]);
    }
}

static __device__ void dw_put(float *part, const float (&dw)[2 * PAIRS_MAX], int dim)
{
    int half = dim / 2;
#pragma unroll
    for (int i = 0; i < PAIRS_MAX; i++) {
        int j = threadIdx.x % 32 + 32 * i;
        if (j < half) {
            part[j] = dw[2 * i];
            part[half + j] = dw[2 * i + 1];
        }
    }
}

/* part: [warps of the grid][2][dim], first the q norm's sums, then the k norm's. */
template <class T>
static __global__ void rope_bwd(struct hzp_rope_bwd_args a, int heads, float *part)
{
    int dim = a.heads.dim, warp = blockIdx.x * ROPE_WARPS + threadIdx.x / 32;
    int warps = gridDim.x * ROPE_WARPS, q_heads = a.heads.heads, k_heads = a.heads.kv_heads;
    float dq[2 * PAIRS_MAX] = {}, dk[2 * PAIRS_MAX] = {};
    for (int64_t r = warp; r < a.dy.rows; r += warps) {
        for (int h = 0; h < q_heads; h++)
            rope_bwd_head<T>(a, r, h, (const T *)a.q_norm.ptr, dq);
        for (int h = q_heads; h < q_heads + k_heads; h++)
            rope_bwd_head<T>(a, r, h, (const T *)a.k_norm.ptr, dk);
        for (int c = (q_heads + k_heads) * dim + threadIdx.x % 32; c < heads * dim; c += 32)
            store(row_of<T>(a.dx, r) + c, load(row_of<T>(a.dy, r) + c));
    }
    if (part) {
        dw_put(part + (int64_t)warp * 2 * dim, dq, dim);
        dw_put(part + (int64_t)warp * 2 * dim + dim, dk, dim);
    }
}

/* ---- the same with 8 elements of either half of a head per thread: 1 << shift threads a head ---- */

/* Sums over the threads of a head. */
static __device__ __forceinline__ float head_sum(float x, int threads)
{
    for (int m = threads / 2; m > 0; m /= 2)
        x += __shfl_xor_sync(~0u, x, m);
    return x;
}

/* A thread's elements of one head. */
struct halves {
    float lo[8], hi[8];
    template <class T> __device__ __forceinline__ void take(const T *p, int half)
    {
        load_n(p, lo);
        load_n(p + half, hi);
    }
};

/* The norm's backward: d is the gradient of the normed head and becomes x's; dw gets the thread's
 * part of the norm's. */
template <class T>
static __device__ __forceinline__ void norm_back(const T *norm, const halves &x, int half,
                                                 int threads, float eps, float plus, halves &d,
                                                 halves &dw)
{
    float sum = 0, mean = 0;
    halves w;
    w.take(norm, half);
#pragma unroll
    for (int k = 0; k < 8; k++)
        sum += x.lo[k] * x.lo[k] + x.hi[k] * x.hi[k];
    float rstd = (float)(1 / sqrt((double)head_sum(sum, threads) / (2 * half) + (double)eps));
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float nlo = x.lo[k] * rstd, nhi = x.hi[k] * rstd;
        dw.lo[k] += d.lo[k] * nlo;
        dw.hi[k] += d.hi[k] * nhi;
        d.lo[k] *= w.lo[k] + plus;
        d.hi[k] *= w.hi[k] + plus;
        mean += d.lo[k] * nlo + d.hi[k] * nhi;
    }
    mean = head_sum(mean, threads) / (2 * half);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        d.lo[k] = rstd * (d.lo[k] - x.lo[k] * rstd * mean);
        d.hi[k] = rstd * (d.hi[k] - x.hi[k] * rstd * mean);
    }
}

/* Heads [first, end) of row r, several at a time. */
template <class T>
static __device__ __forceinline__ void heads_back(const struct hzp_rope_bwd_args &a, int64_t r,
                                                  int first, int end, const T *norm,
                                                  const halves &turn, int shift, halves &dw)
{
    int dim = a.heads.dim, half = dim / 2, threads = 1 << shift, at = 32 >> shift;
    int lane = threadIdx.x % 32, j = lane % threads * 8;
    for (int h0 = first; h0 < end; h0 += at) {
        int h = h0 + (lane >> shift);
        bool there = h < end; /* the others take part in the sums */
        int64_t from = (int64_t)h * dim + j;
        halves dy = {}, d, x = {};
        if (there)
            dy.take(row_of<T>(a.dy, r) + from, half);
        if (there && norm)
            x.take(row_of<T>(a.x, r) + from, half);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            d.lo[k] = dy.lo[k] * turn.lo[k] + dy.hi[k] * turn.hi[k];
            d.hi[k] = dy.hi[k] * turn.lo[k] - dy.lo[k] * turn.hi[k];
        }
        if (norm)
            norm_back<T>(norm + j, x, half, threads, a.eps, a.plus_one ? 1.0f : 0.0f, d, dw);
        if (there) {
            store_n(row_of<T>(a.dx, r) + from, d.lo);
            store_n(row_of<T>(a.dx, r) + from + half, d.hi);
        }
    }
}

/* The sums of a warp's threads for the same elements. */
static __device__ void halves_put(float *part, halves dw, int half, int threads)
{
    int lane = threadIdx.x % 32, j = lane % threads * 8;
#pragma unroll
    for (int k = 0; k < 8; k++)
        for (int m = 16; m >= threads; m /= 2) {
            dw.lo[k] += __shfl_xor_sync(~0u, dw.lo[k], m);
            dw.hi[k] += __shfl_xor_sync(~0u, dw.hi[k], m);
        }
    for (int k = 0; k < 8 && lane < threads; k++) {
        part[j + k] = dw.lo[k];
        part[half + j + k] = dw.hi[k];
    }
}

template <class T>
static __global__ void __launch_bounds__(ROPE_WARPS * 32, 3)
    rope_bwd_wide(struct hzp_rope_bwd_args a, int heads, int shift, float *part)
{
    int dim = a.heads.dim, warp = blockIdx.x * ROPE_WARPS + threadIdx.x / 32;
    int warps = gridDim.x * ROPE_WARPS, q_end = a.heads.heads, k_end = q_end + a.heads.kv_heads;
    int lane = threadIdx.x % 32, threads = 1 << shift;
    halves dq = {}, dk = {};
    for (int64_t r = warp; r < a.dy.rows; r += warps) {
        halves turn;
        turn.take(row_of<float>(a.table, a.pos[r]) + lane % threads * 8, dim / 2);
        heads_back<T>(a, r, 0, q_end, (const T *)a.q_norm.ptr, turn, shift, dq);
        heads_back<T>(a, r, q_end, k_end, (const T *)a.k_norm.ptr, turn, shift, dk);
        for (int c = k_end * dim + lane * 8; c < heads * dim; c += 32 * 8) {
            float v[8];
            load_n(row_of<T>(a.dy, r) + c, v);
            store_n(row_of<T>(a.dx, r) + c, v);
        }
    }
    if (part) {
        halves_put(part + (int64_t)warp * 2 * dim, dq, dim / 2, threads);
        halves_put(part + (int64_t)warp * 2 * dim + dim, dk, dim / 2, threads);
    }
}

/* The threads of a head, as a power of two; -1: heads or rows are not groups of 8 elements. */
static int rope_shift(const struct hzp_rope_bwd_args *a)
{
    int shift = 0;
    while (16 << shift < a->heads.dim)
        shift++;
    bool fits = 16 << shift == a->heads.dim && shift <= 5 && wide(&a->dy) && wide(&a->dx) &&
                wide(&a->x) && wide(&a->table) && wide(&a->q_norm) && wide(&a->k_norm);
    return fits ? shift : -1;
}

static __global__ void rope_bwd_end(const float *part, int warps, int dim, float *dq, float *dk)
{
    double sum = 0;
    int j = blockIdx.x; /* element of [2][dim] */
    for (int w = threadIdx.x; w < warps; w += blockDim.x)
        sum += part[(int64_t)w * 2 * dim + j];
    sum = block_sum(sum);
    float *to = j < dim ? dq : dk;
    if (threadIdx.x == 0 && to)
        to[j % dim] = (float)(to[j % dim] + sum);
}

extern "C" int hzp_cuda_rope_bwd(struct hzp_lane *lane, const void *args)
{
    struct hzp_rope_bwd_args a = *(const struct hzp_rope_bwd_args *)args;
    if (a.dy.rows == 0)
        return HZP_OK;
    if (a.heads.dim > 64 * PAIRS_MAX) {
        hzp_cuda_device(lane)->failed = true;
        return HZP_EDEVICE;
    }
    int heads = a.heads.heads + a.heads.kv_heads + (a.dy.ptr == a.dx.ptr ? 0 : a.heads.kv_heads);
    int most = hzp_cuda_device(lane)->sms * 8;
    int blocks = HZP_MIN(HZP_DIV_UP(a.dy.rows, (int)ROPE_WARPS), most);
    bool wanted = a.dq_norm.ptr || a.dk_norm.ptr;
    float *part = wanted ? (float *)hzp_cuda_lane(lane)->scratch : nullptr;
    a.pos = (const int32_t *)hzp_cuda_staged(lane, a.pos, (size_t)a.dy.rows * sizeof(*a.pos));
    return with_type(a.dy.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        int shift = rope_shift(&a);
        if (shift >= 0)
            start(lane, blocks, ROPE_WARPS * 32, 0, rope_bwd_wide<T>, a, heads, shift, part);
        else
            start(lane, blocks, ROPE_WARPS * 32, 0, rope_bwd<T>, a, heads, part);
        if (wanted)
            start(lane, 2 * a.heads.dim, THREADS, 0, rope_bwd_end, part, blocks * ROPE_WARPS,
                  a.heads.dim, (float *)a.dq_norm.ptr, (float *)a.dk_norm.ptr);
        return hzp_cuda_launched(lane, "rope_bwd");
    });
}

/* ---- swiglu_bwd ---- */

template <class T, int N> static __global__ void swiglu_bwd(struct hzp_swiglu_bwd_args a)
{
    int width = a.dy.cols;
    EACH(i, (int64_t)a.dy.rows * (width / N))
    {
        place p = place_of<N>(i, width);
        const T *x = row_of<T>(a.x, p.r) + p.c;
        T *dx = row_of<T>(a.dx, p.r) + p.c;
        float g[N], u[N], dy[N];
        load_n(x, g);
        load_n(x + width, u);
        load_n(row_of<T>(a.dy, p.r) + p.c, dy);
#pragma unroll
        for (int k = 0; k < N; k++) {
            /* 1 - s from exp(g): computing it from s would lose all precision near s = 1 */
            float gate = g[k], z = a.gelu ? gelu_z(gate) : gate;
            float slope = a.gelu ? fmaf(gate * gate, 3 * HZP_GELU_3, HZP_GELU_1) : 1;
            float s = 1 / (1 + expf(-z)), rest = 1 / (1 + expf(z));
            g[k] = dy[k] * u[k] * s * (1 + gate * slope * rest);
            u[k] = dy[k] * gate * s;
        }
        store_n(dx, g);
        store_n(dx + width, u);
    }
}

extern "C" int hzp_cuda_swiglu_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_swiglu_bwd_args *a = (const struct hzp_swiglu_bwd_args *)args;
    bool eight = wide(&a->x) && wide(&a->dy) && wide(&a->dx);
    return by_element(lane, a->dy, eight, "swiglu_bwd", [&](auto *t, auto n, unsigned grid) {
        start(lane, grid, ELEMENT_THREADS, 0, swiglu_bwd<elem_of<decltype(t)>, decltype(n)::value>,
              *a);
    });
}
