/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/plain.cu - products and attention for any type, width and stride, without tensor
 * cores: for F32, and for shapes and alignments that the fast kernels do not support.
 */
#include "device/cuda/flash.cuh"

/* ---- c = op(a) op(b) + bias + c ---- */

enum { SIDE = 16 };

template <class T, class U> static __global__ void matmul(struct hzp_matmul_args a, int depth)
{
    HZP_SHARED(float, sa, [SIDE][SIDE + 1]);
    HZP_SHARED(float, sb, [SIDE][SIDE + 1]);
    int tx = threadIdx.x, ty = threadIdx.y;
    int64_t i0 = (int64_t)blockIdx.y * SIDE, j0 = (int64_t)blockIdx.x * SIDE;
    float sum = 0;
    for (int k0 = 0; k0 < depth; k0 += SIDE) {
        /* the faster index is along memory */
        int64_t i = i0 + (a.trans_a ? tx : ty), ka = k0 + (a.trans_a ? ty : tx);
        float x = i < a.c.rows && ka < depth
                      ? load(a.trans_a ? row_of<T>(a.a, ka) + i : row_of<T>(a.a, i) + ka)
                      : 0;
        sa[a.trans_a ? tx : ty][a.trans_a ? ty : tx] = x;
        int64_t j = j0 + (a.trans_b ? ty : tx), kb = k0 + (a.trans_b ? tx : ty);
        float y = j < a.c.cols && kb < depth
                      ? load(a.trans_b ? row_of<T>(a.b, j) + kb : row_of<T>(a.b, kb) + j)
                      : 0;
        sb[a.trans_b ? tx : ty][a.trans_b ? ty : tx] = y;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < SIDE; k++)
            sum += sa[ty][k] * sb[k][tx];
        __syncthreads();
    }
    int64_t i = i0 + ty, j = j0 + tx;
    if (i >= a.c.rows || j >= a.c.cols)
        return;
    store_product<U>(a, i, j, sum);
}

extern "C" int hzp_cuda_matmul_plain(struct hzp_lane *lane, const struct hzp_matmul_args *a)
{
    int depth = a->trans_a ? a->a.rows : a->a.cols;
    dim3 grid((unsigned)HZP_DIV_UP(a->c.cols, (int)SIDE),
              (unsigned)HZP_DIV_UP(a->c.rows, (int)SIDE));
    dim3 block(SIDE, SIDE);
    if (a->a.type == HZP_E4M3 && a->c.type == HZP_F32)
        start(lane, grid, block, 0, matmul<uint8_t, float>, *a, depth);
    else if (a->a.type == HZP_E4M3)
        start(lane, grid, block, 0, matmul<uint8_t, uint16_t>, *a, depth);
    else if (a->a.type == HZP_F32)
        start(lane, grid, block, 0, matmul<float, float>, *a, depth);
    else if (a->c.type == HZP_F32)
        start(lane, grid, block, 0, matmul<uint16_t, float>, *a, depth);
    else
        start(lane, grid, block, 0, matmul<uint16_t, uint16_t>, *a, depth);
    return hzp_cuda_launched(lane, "matmul");
}

/* ---- projections: one warp per element of c ---- */

enum { PROJECT_THREADS = 128 };

static __device__ __forceinline__ float element(const struct hzp_mat &m, int64_t r, int64_t c)
{
    return m.type == HZP_F32    ? load(row_of<float>(m, r) + c)
           : m.type == HZP_BF16 ? load(row_of<uint16_t>(m, r) + c)
                                : load(row_of<uint8_t>(m, r) + c);
}

/* p[i][j], in every lane. */
static __device__ float project_sum(const struct hzp_project_args &a, int64_t i, int64_t j)
{
    const struct hzp_matmul_args &p = a.product;
    float sum = 0, squares = 0;
    for (int k = threadIdx.x % 32; k < p.a.cols; k += 32) {
        float x = element(p.a, i, k);
        squares += x * x;
        sum += (a.norm.ptr ? x * element(a.norm, 0, k) : x) * element(p.b, j, k);
    }
    sum = warp_sum(sum);
    squares = warp_sum(squares);
    if (a.norm.ptr && p.a.cols > 0)
        sum *= (float)(1 / sqrt((double)squares / p.a.cols + (double)a.eps));
    if (p.scale_a)
        sum = sum * p.scale_a[i] * p.scale_b[j];
    return p.bias.ptr ? sum + element(p.bias, 0, j) : sum;
}

static __global__ void project(struct hzp_project_args a)
{
    const struct hzp_mat &c = a.product.c;
    int64_t n = (int64_t)c.rows * c.cols;
    int64_t e = (int64_t)blockIdx.x * (PROJECT_THREADS / 32) + threadIdx.x / 32;
    if (e >= n)
        return;
    int64_t i = e / c.cols, j = e % c.cols;
    float y = project_sum(a, i, j);
    if (a.gated)
        y = y / (1 + expf(-y)) * project_sum(a, i, c.cols + j);
    if (threadIdx.x % 32 != 0)
        return;
    if (c.type == HZP_BF16)
        store(row_of<uint16_t>(c, i) + j, y);
    else
        store(row_of<float>(c, i) + j, y);
}

extern "C" int hzp_cuda_project_plain(struct hzp_lane *lane, const struct hzp_project_args *a)
{
    int64_t n = (int64_t)a->product.c.rows * a->product.c.cols;
    start(lane, (unsigned)HZP_DIV_UP(n, (int64_t)(PROJECT_THREADS / 32)), PROJECT_THREADS, 0,
          project, *a);
    return hzp_cuda_launched(lane, "project");
}

/* ---- attention: one warp per head of a row ---- */

enum { WARPS = 4, DIM_MAX = 512, PARTS = DIM_MAX / 32 };

/* Attention over the positions before n that args' window leaves: each lane has one position for the
 * scores, and some elements for the sum.  q: the head in shared memory; sink: as of sink_of.
 * Returns the log of the denominator. */
template <class T, class S, class A>
static __device__ float attend(const A &args, const S &source, const float *q, int n, float sink,
                               T *out)
{
    int dim = args.heads.dim;
    int lane = threadIdx.x % 32;
    float top = sink, mass = sink > -INFINITY && lane == 0 ? 1 : 0, sum[PARTS] = {};
    for (int p0 = first_seen(args.window, n - 1); p0 < n; p0 += 32) {
        float score = -INFINITY;
        if (p0 + lane < n) {
            const auto *k = source.k(p0 + lane);
            score = 0;
            for (int j = 0; j < dim; j++)
                score += q[j] * load(k + j);
            score = capped(score * args.scale * source.k_scale(p0 + lane), args.cap);
        }
        float next = fmaxf(top, warp_max(score)), shrink = expf(top - next);
        float p = p0 + lane < n ? expf(score - next) : 0;
        top = next;
        mass = mass * shrink + p;
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            sum[i] *= shrink;
        if (p0 + lane < n)
            p *= source.v_scale(p0 + lane);
        for (int t = 0; t < 32 && p0 + t < n; t++) {
            const auto *v = source.v(p0 + t);
            float share = __shfl_sync(~0u, p, t);
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                if (lane + 32 * i < dim)
                    sum[i] += share * load(v + lane + 32 * i);
        }
    }
    mass = warp_sum(mass);
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (lane + 32 * i < dim)
            store(out + lane + 32 * i, sum[i] / mass);
    return top + logf(mass);
}

/* The row and head of this warp; false: there is none. */
static __device__ bool warp_task(const struct hzp_segs &segs, int tiles, int *ret_seg, int *ret_row)
{
    int seg = blockIdx.x / tiles, at = (blockIdx.x % tiles) * WARPS + threadIdx.x / 32;
    *ret_seg = seg;
    *ret_row = segs.row0[seg] + at;
    return *ret_row < segs.row0[seg + 1];
}

template <class T> static __device__ void load_head(const T *from, int dim, float *ret)
{
    for (int j = threadIdx.x % 32; j < dim; j += 32)
        ret[j] = load(from + j);
    __syncwarp();
}

/* P: the type of the pages' elements. */
template <class T, class P>
static __global__ void attn_paged(struct hzp_attn_paged_args a, int tiles)
{
    HZP_SHARED(float, q, [WARPS][DIM_MAX]);
    int seg, r, h = blockIdx.y, dim = a.heads.dim, warp = threadIdx.x / 32;
    if (!warp_task(a.segs, tiles, &seg, &r))
        return;
    load_head(row_of<T>(a.qkv, r) + h * dim, dim, q[warp]);
    int n = a.segs.pos0[seg] + r - a.segs.row0[seg] + 1;
    page_rows<P> source = pages_for<P>(a, seg, h, dim);
    attend(a, source, q[warp], n, sink_of(a.sink, h), row_of<T>(a.out, r) + h * dim);
}

template <class T> static __global__ void attn_packed(struct hzp_attn_packed_args a, int tiles)
{
    HZP_SHARED(float, q, [WARPS][DIM_MAX]);
    int seg, r, h = blockIdx.y, dim = a.heads.dim, warp = threadIdx.x / 32;
    if (!warp_task(a.segs, tiles, &seg, &r))
        return;
    int before = a.qkv.rows - a.out.rows, first = a.segs.row0[seg] - a.segs.pos0[seg];
    load_head(row_of<T>(a.qkv, before + r) + h * dim, dim, q[warp]);
    packed_rows<T> source = rows_for<T>(a.qkv, a.heads, before + first, h, dim);
    float lse = attend(a, source, q[warp], r - first + 1, sink_of(a.sink, h),
                       row_of<T>(a.out, r) + h * dim);
    if (a.lse && threadIdx.x % 32 == 0)
        a.lse[(int64_t)r * a.heads.heads + h] = lse;
}

static bool too_wide(struct hzp_lane *lane, int dim)
{
    if (dim <= DIM_MAX)
        return false;
    hzp_cuda_check(hzp_cuda_device(lane), cudaErrorInvalidValue,
                   "attention: a head of more than 512");
    return true;
}

extern "C" int hzp_cuda_attn_paged_plain(struct hzp_lane *lane, const struct hzp_attn_paged_args *a)
{
    int tiles = HZP_DIV_UP(a->segs.rows_max, (int)WARPS);
    dim3 grid((unsigned)a->segs.count * (unsigned)tiles, (unsigned)a->heads.heads);
    if (grid.x == 0)
        return HZP_OK;
    if (too_wide(lane, a->heads.dim))
        return HZP_EDEVICE;
    return with_type(a->qkv.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        if (a->kv.type == HZP_E4M3)
            start(lane, grid, WARPS * 32, 0, attn_paged<T, uint8_t>, *a, tiles);
        else
            start(lane, grid, WARPS * 32, 0, attn_paged<T, T>, *a, tiles);
        return hzp_cuda_launched(lane, "attention over pages");
    });
}

extern "C" int hzp_cuda_attn_packed_plain(struct hzp_lane *lane,
                                          const struct hzp_attn_packed_args *a)
{
    int tiles = HZP_DIV_UP(a->segs.rows_max, (int)WARPS);
    dim3 grid((unsigned)a->segs.count * (unsigned)tiles, (unsigned)a->heads.heads);
    if (grid.x == 0)
        return HZP_OK;
    if (too_wide(lane, a->heads.dim))
        return HZP_EDEVICE;
    return with_type(a->qkv.type, [&](auto *t) {
        start(lane, grid, WARPS * 32, 0, attn_packed<elem_of<decltype(t)>>, *a, tiles);
        return hzp_cuda_launched(lane, "attn_packed");
    });
}

/* ---- the backward: first D and dq by rows, then dk and dv by keys ---- */

static __device__ float dot(const float (&x)[PARTS], const float (&y)[PARTS])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        sum += x[i] * y[i];
    return warp_sum(sum);
}

template <class T> static __device__ void spread(const T *from, int dim, float (&ret)[PARTS])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int j = threadIdx.x % 32 + 32 * i;
        ret[i] = j < dim ? load(from + j) : 0;
    }
}

template <class T> static __device__ void gather_up(T *to, int dim, const float (&x)[PARTS])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int j = threadIdx.x % 32 + 32 * i;
        if (j < dim)
            store(to + j, x[i]);
    }
}

template <class T>
static __global__ void packed_bwd_q(struct hzp_attn_packed_bwd_args a, int tiles, float *delta)
{
    int seg, r, h = blockIdx.y, dim = a.heads.dim;
    if (!warp_task(a.segs, tiles, &seg, &r))
        return;
    float q[PARTS], dout[PARTS], k[PARTS], dq[PARTS] = {};
    spread(row_of<T>(a.out, r) + h * dim, dim, k);
    spread(row_of<T>(a.dout, r) + h * dim, dim, dout);
    spread(row_of<T>(a.qkv, r) + h * dim, dim, q);
    float d = dot(dout, k), lse = a.lse[(int64_t)r * a.heads.heads + h];
    if (threadIdx.x % 32 == 0)
        delta[(int64_t)r * a.heads.heads + h] = d;
    int row0 = a.segs.row0[seg];
    packed_rows<T> source = rows_for<T>(a.qkv, a.heads, row0, h, dim);
    for (int p = first_seen(a.window, r - row0); p <= r - row0; p++) {
        float v[PARTS];
        spread(source.k(p), dim, k);
        spread(source.v(p), dim, v);
        float x = capped(dot(q, k) * a.scale, a.cap), slope = cap_slope(x, a.cap) * a.scale;
        float ds = expf(x - lse) * (dot(dout, v) - d) * slope;
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            dq[i] += ds * k[i];
    }
    gather_up(row_of<T>(a.dqkv, r) + h * dim, dim, dq);
}

template <class T>
static __global__ void packed_bwd_kv(struct hzp_attn_packed_bwd_args a, int tiles,
                                     const float *delta)
{
    int seg, p, kv_head = blockIdx.y, dim = a.heads.dim, heads = a.heads.heads;
    if (!warp_task(a.segs, tiles, &seg, &p))
        return;
    int group = heads / a.heads.kv_heads, k0 = (heads + kv_head) * dim;
    int v0 = k0 + a.heads.kv_heads * dim, end = a.segs.row0[seg + 1];
    if (a.window > 0)
        end = min(end, p + a.window);
    float k[PARTS], v[PARTS], dk[PARTS] = {}, dv[PARTS] = {};
    spread(row_of<T>(a.qkv, p) + k0, dim, k);
    spread(row_of<T>(a.qkv, p) + v0, dim, v);
    for (int h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (int r = p; r < end; r++) {
            float q[PARTS], dout[PARTS];
            spread(row_of<T>(a.qkv, r) + h * dim, dim, q);
            spread(row_of<T>(a.dout, r) + h * dim, dim, dout);
            float x = capped(dot(q, k) * a.scale, a.cap), slope = cap_slope(x, a.cap) * a.scale;
            float prob = expf(x - a.lse[(int64_t)r * heads + h]);
            float ds = prob * (dot(dout, v) - delta[(int64_t)r * heads + h]) * slope;
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                dv[i] += prob * dout[i];
                dk[i] += ds * q[i];
            }
        }
    gather_up(row_of<T>(a.dqkv, p) + k0, dim, dk);
    gather_up(row_of<T>(a.dqkv, p) + v0, dim, dv);
}

extern "C" int hzp_cuda_attn_packed_bwd_plain(struct hzp_lane *lane,
                                              const struct hzp_attn_packed_bwd_args *a)
{
    int tiles = HZP_DIV_UP(a->segs.rows_max, (int)WARPS);
    float *delta = (float *)hzp_cuda_lane(lane)->scratch;
    dim3 rows((unsigned)a->segs.count * (unsigned)tiles, (unsigned)a->heads.heads);
    dim3 keys(rows.x, (unsigned)a->heads.kv_heads);
    if (rows.x == 0)
        return HZP_OK;
    if (too_wide(lane, a->heads.dim))
        return HZP_EDEVICE;
    return with_type(a->qkv.type, [&](auto *t) {
        using T = elem_of<decltype(t)>;
        start(lane, rows, WARPS * 32, 0, packed_bwd_q<T>, *a, tiles, delta);
        start(lane, keys, WARPS * 32, 0, packed_bwd_kv<T>, *a, tiles, delta);
        return hzp_cuda_launched(lane, "attn_packed_bwd");
    });
}
