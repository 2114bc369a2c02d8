/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/update.cu - the optimizer's update and the audit before publication: sumsq, adamw,
 * muon, audit.  Sums have two stages of fixed shape: results are bitwise repeatable.
 */
#include "device/cuda/kernel.cuh"
#include "device/philox.h"
#include "device/q8.h"

enum { THREADS = 256, PARTS_MAX = 1024 };

static unsigned parts_for(int64_t count)
{
    return (unsigned)HZP_MAX((int64_t)1,
                             HZP_MIN((int64_t)PARTS_MAX, HZP_DIV_UP(count, 4 * THREADS)));
}

template <int N> static __global__ void sumsq(struct hzp_mat x, double *part)
{
    double sum = 0;
    EACH(i, (int64_t)x.rows * (x.cols / N))
    {
        place p = place_of<N>(i, x.cols);
        float v[N];
        load_n(row_of<float>(x, p.r) + p.c, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += (double)v[k] * v[k];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

static __global__ void sumsq_end(const double *part, int parts, double *ret)
{
    double sum = 0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x)
        sum += part[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *ret += sum;
}

extern "C" int hzp_cuda_sumsq(struct hzp_lane *lane, const void *args)
{
    const struct hzp_sumsq_args *a = (const struct hzp_sumsq_args *)args;
    int64_t count = (int64_t)a->x.rows * a->x.cols;
    if (count == 0)
        return HZP_OK;
    double *part = (double *)hzp_cuda_lane(lane)->scratch;
    bool fast = wide(&a->x);
    unsigned parts = parts_for(fast ? count / 8 : count);
    if (fast)
        start(lane, parts, THREADS, 0, sumsq<8>, a->x, part);
    else
        start(lane, parts, THREADS, 0, sumsq<1>, a->x, part);
    start(lane, 1, THREADS, 0, sumsq_end, part, (int)parts, a->sum);
    return hzp_cuda_launched(lane, "sumsq");
}

/* ---- adamw ---- */

/* The values that are the same for all elements. */
struct adam {
    float beta1, beta2, rest1, rest2, keep, lr, eps, undo_m, undo_v;
    float part_g; /* NAdam's; its part_m is undo_m */
};

template <class T, class A, int N>
static __device__ __forceinline__ void master_get(const A &a, place p, float (&ret)[N])
{
    if constexpr (sizeof(T) == 4) {
        load_n(row_of<float>(a.from, p.r) + p.c, ret);
    } else {
        load_n(row_of<uint16_t>(a.from, p.r) + p.c, ret);
        const int16_t *low = row_of<int16_t>(a.residual, p.r) + p.c;
        if constexpr (N == 1) {
            ret[0] = __uint_as_float(__float_as_uint(ret[0]) + (uint32_t)(int32_t)low[0]);
        } else {
            uint4 v = *reinterpret_cast<const uint4 *>(low);
            uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int k = 0; k < N; k++) {
                int32_t l = (int32_t)(word[k / 2] << (k % 2 ? 0 : 16)) >> 16;
                ret[k] = __uint_as_float(__float_as_uint(ret[k]) + (uint32_t)l);
            }
        }
    }
}

template <class T, class A, int N>
static __device__ __forceinline__ void master_put(const A &a, place p, const float (&x)[N])
{
    if constexpr (sizeof(T) == 4) {
        store_n(row_of<float>(a.to, p.r) + p.c, x);
    } else {
        uint16_t *to = row_of<uint16_t>(a.to, p.r) + p.c;
        int16_t *low = row_of<int16_t>(a.residual, p.r) + p.c;
        if constexpr (N == 1) {
            hzp_master_split(x[0], to, low);
        } else {
            uint32_t hi[4], lo[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t first = __float_as_uint(x[2 * k]), second = __float_as_uint(x[2 * k + 1]);
                hi[k] = (first + 0x8000u) >> 16 | ((second + 0x8000u) & 0xffff0000u);
                lo[k] = (first & 0xffffu) | second << 16;
            }
            *reinterpret_cast<uint4 *>(to) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
            *reinterpret_cast<uint4 *>(low) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
        }
    }
}

/* What gradients are multiplied by; *ret_bad: the norm is not finite.  For all threads of a block. */
template <class A> static __device__ float gradient_scale(const A &a, bool *ret_bad)
{
    HZP_SHARED(float, scale);
    HZP_SHARED(int, bad);
    if (threadIdx.x == 0) {
        double norm = sqrt(*a.sumsq) * (double)a.grad_scale;
        bad = !isfinite(norm);
        scale = (float)(a.clip > 0 ? a.grad_scale * fmin(1.0, (double)a.clip / (norm + 1e-6))
                                   : (double)a.grad_scale);
    }
    __syncthreads();
    *ret_bad = bad;
    return scale;
}

template <class T, class M, class V, class G, int N>
static __global__ void adamw(struct hzp_adamw_args a, struct adam h)
{
    bool bad;
    float scale = gradient_scale(a, &bad);
    EACH(i, (int64_t)a.from.rows * (a.from.cols / N))
    {
        place at = place_of<N>(i, a.from.cols);
        float p[N], g[N], m[N], v[N];
        if (bad) {
            load_n(row_of<T>(a.from, at.r) + at.c, p);
            store_n(row_of<T>(a.to, at.r) + at.c, p);
            continue;
        }
        master_get<T>(a, at, p);
        load_n(row_of<G>(a.grad, at.r) + at.c, g);
        load_n(row_of<M>(a.m, at.r) + at.c, m);
        load_n(row_of<V>(a.v, at.r) + at.c, v);
#pragma unroll
        for (int k = 0; k < N; k++) {
            g[k] *= scale;
            m[k] = h.beta1 * m[k] + h.rest1 * g[k];
            v[k] = h.beta2 * v[k] + h.rest2 * g[k] * g[k];
            float along = m[k] * h.undo_m;
            if (h.part_g > 0)
                along += h.part_g * g[k];
            p[k] = p[k] * h.keep - h.lr * along / (sqrtf(v[k] * h.undo_v) + h.eps);
        }
        store_n(row_of<M>(a.m, at.r) + at.c, m);
        store_n(row_of<V>(a.v, at.r) + at.c, v);
        master_put<T>(a, at, p);
    }
}

template <class T, class M, class V, class G>
static int adamw_as(struct hzp_lane *lane, const struct hzp_adamw_args *a, const struct adam &h)
{
    int64_t count = (int64_t)a->from.rows * a->from.cols;
    bool fast = wide(&a->from) && wide(&a->to) && wide(&a->residual) && wide(&a->grad) &&
                wide(&a->m) && wide(&a->v);
    if (fast)
        start(lane, grid_for(lane, count / 8, THREADS), THREADS, 0, adamw<T, M, V, G, 8>, *a, h);
    else
        start(lane, grid_for(lane, count, THREADS), THREADS, 0, adamw<T, M, V, G, 1>, *a, h);
    return hzp_cuda_launched(lane, "adamw");
}

/* Eight codes, aligned to 8 bytes. */
static __device__ __forceinline__ void load_codes(const void *p, uint8_t (&ret)[8])
{
    uint2 word = *reinterpret_cast<const uint2 *>(p);
#pragma unroll
    for (int k = 0; k < 8; k++)
        ret[k] = (uint8_t)((k < 4 ? word.x : word.y) >> (8 * (k % 4)));
}

static __device__ __forceinline__ void store_bytes(void *p, const uint8_t (&code)[8])
{
    uint32_t word[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < 8; k++)
        word[k / 4] |= (uint32_t)code[k] << (8 * (k % 4));
    *reinterpret_cast<uint2 *>(p) = make_uint2(word[0], word[1]);
}

/* The update of eight elements with 8-bit moments: m becomes the first ones, root the roots of the
 * second ones. */
template <class T>
static __device__ __forceinline__ void adamw_eight(const struct hzp_adamw_args &a,
                                                   const struct adam &h, place at, float scale,
                                                   float (&m)[8], float (&root)[8])
{
    int block = at.c / HZP_Q8_BLOCK;
    float p[8], g[8], keep = a.decayed && at.c >= a.decayed ? 1 : h.keep;
    float first = a.m_scale[block], second = a.v_scale[block], undo = sqrtf(h.undo_v);
    uint8_t code_m[8], code_v[8];
    master_get<T>(a, at, p);
    load_n(row_of<float>(a.grad, 0) + at.c, g);
    load_codes(row_of<uint8_t>(a.m, 0) + at.c, code_m);
    load_codes(row_of<uint8_t>(a.v, 0) + at.c, code_v);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float old = hzp_q8_root(code_v[k], second);
        g[k] *= scale;
        m[k] = h.beta1 * hzp_q8_first((int8_t)code_m[k], first) + h.rest1 * g[k];
        root[k] = sqrtf(h.beta2 * (old * old) + h.rest2 * g[k] * g[k]);
        float along = m[k] * h.undo_m;
        if (h.part_g > 0)
            along += h.part_g * g[k];
        p[k] = p[k] * keep - h.lr * along / (root[k] * undo + h.eps);
    }
    master_put<T>(a, at, p);
}

/* Each warp updates a block of moments, each thread eight elements. */
template <class T> static __global__ void adamw_q8(struct hzp_adamw_args a, struct adam h)
{
    bool bad;
    float scale = gradient_scale(a, &bad);
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32);
    int64_t block = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    for (; block < HZP_DIV_UP(a.from.cols, HZP_Q8_BLOCK); block += warps) {
        place at = {0, (int32_t)(block * HZP_Q8_BLOCK + threadIdx.x % 32 * 8)};
        bool inside = at.c < a.from.cols;
        float m[8] = {0}, root[8] = {0}, top = 0, top_root = 0;
        if (bad && inside) {
            load_n(row_of<T>(a.from, 0) + at.c, m);
            store_n(row_of<T>(a.to, 0) + at.c, m);
        }
        if (bad)
            continue;
        if (inside)
            adamw_eight<T>(a, h, at, scale, m, root);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            top = fmaxf(top, fabsf(m[k]));
            top_root = fmaxf(top_root, root[k]);
        }
        float first = hzp_q8_scale(warp_max(top)), second = hzp_q8_scale(warp_max(top_root));
        uint8_t code_m[8], code_v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            code_m[k] = (uint8_t)hzp_q8_from_first(m[k], first);
            code_v[k] = hzp_q8_from_root(root[k], second);
        }
        if (inside) {
            store_bytes(row_of<uint8_t>(a.m, 0) + at.c, code_m);
            store_bytes(row_of<uint8_t>(a.v, 0) + at.c, code_v);
        }
        __syncwarp(); /* all have read the old scales */
        if (threadIdx.x % 32 == 0) {
            a.m_scale[block] = first;
            a.v_scale[block] = second;
        }
    }
}

static int adamw_codes(struct hzp_lane *lane, const struct hzp_adamw_args *a, const struct adam &h)
{
    unsigned grid = grid_for(lane, (int64_t)HZP_DIV_UP(a->from.cols, HZP_Q8_BLOCK) * 32, THREADS);
    if (a->from.type == HZP_BF16)
        start(lane, grid, THREADS, 0, adamw_q8<uint16_t>, *a, h);
    else
        start(lane, grid, THREADS, 0, adamw_q8<float>, *a, h);
    return hzp_cuda_launched(lane, "adamw");
}

extern "C" int hzp_cuda_adamw(struct hzp_lane *lane, const void *args)
{
    const struct hzp_adamw_args *a = (const struct hzp_adamw_args *)args;
    if (a->from.rows == 0 || a->from.cols == 0)
        return HZP_OK;
    struct adam h = {a->beta1, a->beta2};
    h.rest1 = (float)(1 - (double)a->beta1);
    h.rest2 = (float)(1 - (double)a->beta2);
    h.keep = (float)(1 - (double)a->lr * a->decay);
    h.lr = a->lr;
    h.eps = a->eps;
    h.undo_m = a->part_m > 0 ? a->part_m : (float)(1 / (1 - pow((double)a->beta1, a->t)));
    h.part_g = a->part_g;
    h.undo_v = (float)(1 / (1 - pow((double)a->beta2, a->t)));
    if (a->m.type == HZP_Q8)
        return adamw_codes(lane, a, h);
    return with_type(a->from.type, [&](auto *t) {
        return with_type(a->m.type, [&](auto *m) {
            return with_type(a->v.type, [&](auto *v) {
                return with_type(a->grad.type, [&](auto *g) {
                    return adamw_as<elem_of<decltype(t)>, elem_of<decltype(m)>,
                                    elem_of<decltype(v)>, elem_of<decltype(g)>>(lane, a, h);
                });
            });
        });
    });
}

/* ---- muon ---- */

template <class M, int N> static __global__ void muon_before(struct hzp_muon_args a)
{
    bool bad;
    float by = (1 - a.momentum) * gradient_scale(a, &bad);
    EACH(i, (int64_t)a.x.rows * (a.x.cols / N))
    {
        place at = place_of<N>(i, a.x.cols);
        float x[N] = {0}, m[N];
        if (!bad) {
            load_n(row_of<float>(a.grad, at.r) + at.c, x);
            load_n(row_of<M>(a.m, at.r) + at.c, m);
#pragma unroll
            for (int k = 0; k < N; k++) {
                m[k] = a.momentum * m[k] + by * x[k];
                x[k] = a.momentum * m[k] + by * x[k];
            }
            store_n(row_of<M>(a.m, at.r) + at.c, m);
        }
        store_n(row_of<float>(a.x, at.r) + at.c, x);
    }
}

template <class T, class X, int N> static __global__ void muon_after(struct hzp_muon_args a)
{
    bool bad;
    gradient_scale(a, &bad);
    EACH(i, (int64_t)a.x.rows * (a.x.cols / N))
    {
        place at = place_of<N>(i, a.x.cols);
        float p[N], x[N];
        if (bad) {
            load_n(row_of<T>(a.from, at.r) + at.c, p);
            store_n(row_of<T>(a.to, at.r) + at.c, p);
            continue;
        }
        master_get<T>(a, at, p);
        load_n(row_of<X>(a.x, at.r) + at.c, x);
#pragma unroll
        for (int k = 0; k < N; k++)
            p[k] = p[k] * a.keep - a.step * x[k];
        master_put<T>(a, at, p);
    }
}

extern "C" int hzp_cuda_muon(struct hzp_lane *lane, const void *args)
{
    const struct hzp_muon_args a = *(const struct hzp_muon_args *)args;
    int64_t count = (int64_t)a.x.rows * a.x.cols;
    if (count == 0)
        return HZP_OK;
    bool fast = wide(&a.x) && wide(&a.grad) && wide(&a.m) && wide(&a.from) && wide(&a.to) &&
                wide(&a.residual);
    unsigned grid = grid_for(lane, fast ? count / 8 : count, THREADS);
    return with_type(a.from.ptr ? a.x.type : a.m.type, [&](auto *x) {
        using X = elem_of<decltype(x)>;
        if (!a.from.ptr && fast)
            start(lane, grid, THREADS, 0, muon_before<X, 8>, a);
        else if (!a.from.ptr)
            start(lane, grid, THREADS, 0, muon_before<X, 1>, a);
        else
            with_type(a.from.type, [&](auto *t) {
                using T = elem_of<decltype(t)>;
                if (fast)
                    start(lane, grid, THREADS, 0, muon_after<T, X, 8>, a);
                else
                    start(lane, grid, THREADS, 0, muon_after<T, X, 1>, a);
                return HZP_OK;
            });
        return hzp_cuda_launched(lane, "muon");
    });
}

/* ---- audit ---- */

static __device__ __forceinline__ unsigned nonfinite_in(uint64_t word, int type)
{
    unsigned count = 0;
    if (type == HZP_BF16)
        for (int k = 0; k < 4; k++)
            count += ((word >> (16 * k)) & 0x7f80u) == 0x7f80u;
    else if (type == HZP_F32)
        for (int k = 0; k < 2; k++)
            count += ((word >> (32 * k)) & 0x7f800000u) == 0x7f800000u;
    return count;
}

static __global__ void audit(const uint64_t *word, int64_t words, int type,
                             unsigned long long *part)
{
    unsigned long long sum = 0, bad = 0;
    EACH(i, words)
    {
        uint64_t w = word[i];
        sum += hzp_audit_mix((uint64_t)i, w);
        bad += nonfinite_in(w, type);
    }
    sum = block_sum(sum);
    bad = block_sum(bad);
    if (threadIdx.x == 0) {
        part[2 * blockIdx.x] = sum;
        part[2 * blockIdx.x + 1] = bad;
    }
}

static __global__ void audit_end(const unsigned long long *part, int parts, uint64_t *checksum,
                                 int64_t *nonfinite)
{
    unsigned long long sum = 0, bad = 0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) {
        sum += part[2 * i];
        bad += part[2 * i + 1];
    }
    sum = block_sum(sum);
    bad = block_sum(bad);
    if (threadIdx.x == 0) {
        *checksum += sum;
        *nonfinite += (int64_t)bad;
    }
}

extern "C" int hzp_cuda_audit(struct hzp_lane *lane, const void *args)
{
    const struct hzp_audit_args *a = (const struct hzp_audit_args *)args;
    int64_t words = (int64_t)a->x.rows * a->x.cols * (int64_t)hzp_dtype_size(a->x.type) / 8;
    if (words == 0)
        return HZP_OK;
    unsigned long long *part = (unsigned long long *)hzp_cuda_lane(lane)->scratch;
    unsigned parts = parts_for(words);
    start(lane, parts, THREADS, 0, audit, (const uint64_t *)a->x.ptr, words, a->x.type, part);
    start(lane, 1, THREADS, 0, audit_end, part, (int)parts, a->checksum, a->nonfinite);
    return hzp_cuda_launched(lane, "audit");
}
