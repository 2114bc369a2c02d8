/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math_constants.h>

/* One stage is 16 tokens of one head: 4 KiB of keys, then 4 KiB of values. */
static constexpr int STAGE_BYTES = 8192;

struct cursor {
    int seq, head, unit, units; /* unit counts inside (seq, head) */
};

static __device__ __forceinline__ int64_t first_unit(int64_t total, int w, int workers)
{
    return total * w / workers;
}

static __device__ cursor find(const struct lab_attn &a, int64_t u)
{
    int lo = 0;
    int hi = a.batch;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if ((int64_t)a.units[mid] * LAB_KV <= u)
            lo = mid;
        else
            hi = mid;
    }
    cursor c;
    int rest = (int)(u - (int64_t)a.units[lo] * LAB_KV);
    c.seq = lo;
    c.units = a.units[lo + 1] - a.units[lo];
    c.head = rest / c.units;
    c.unit = rest % c.units;
    return c;
}

static __device__ __forceinline__ void step(const struct lab_attn &a, cursor &c)
{
    if (++c.unit < c.units)
        return;
    c.unit = 0;
    if (++c.head < LAB_KV)
        return;
    c.head = 0;
    if (++c.seq < a.batch)
        c.units = a.units[c.seq + 1] - a.units[c.seq];
}

static __device__ __forceinline__ int page_of(const struct lab_attn &a, const cursor &c)
{
    return a.pages[(int64_t)c.seq * a.max_pages + ((c.unit * LAB_UNIT) >> a.page_shift)];
}

static __device__ __forceinline__ void async16(uint32_t dst, const void *src, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src),
                 "r"(bytes)
                 : "memory");
}

/*
 * A tile's keys are 4 KiB in a row in memory. Rows of 256 bytes would put the 8 rows that one
 * ldmatrix reads in the same banks, so the 16-byte column is XORed with the row.
 */
static __device__ __forceinline__ void load(const struct lab_attn &a, const cursor &c, int page,
                                            uint32_t stage, int lane)
{
    int page_tokens = 1 << a.page_shift;
    int token = c.unit * LAB_UNIT;
    int valid = a.len[c.seq] - token;
    int64_t at = (((int64_t)page * 2 * LAB_KV + c.head) * page_tokens + (token & (page_tokens - 1)))
                 * LAB_DIM;
    const char *k = (const char *)(a.pool + at);
    const char *v = (const char *)(a.pool + at + (int64_t)LAB_KV * page_tokens * LAB_DIM);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int chunk = i * 32 + lane;
        int row = chunk >> 4;
        int col = chunk & 15;
        uint32_t dst = stage + row * 256 + ((col ^ (row & 7)) << 4);
        int bytes = row < valid ? 16 : 0; /* rows past the end become zeros */
        async16(dst, k + chunk * 16, bytes);
        async16(dst + 4096, v + chunk * 16, bytes);
    }
}

static __device__ __forceinline__ void ldm(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void ldm_trans(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Rows 8..15 of the left operand are padding and always zero. */
static __device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a2, uint32_t b0,
                                           uint32_t b1)
{
    uint32_t zero = 0;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(zero), "r"(a2), "r"(zero), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t pack(float lo, float hi)
{
    __nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&p);
}

/* What a warp keeps of one (sequence, head): 4 query rows on lanes 0..15, padding above. */
struct state {
    uint32_t q[16];
    float o[16][4];
    float top;  /* running maximum, in powers of two */
    float mass; /* this lane's part of the sum of weights */
};

static __device__ __forceinline__ void begin(const struct lab_attn &a, const cursor &c, state &s,
                                             int lane)
{
    const uint16_t *row = a.q + (int64_t)c.seq * a.q_stride
                          + (c.head * LAB_GROUP + (lane >> 2)) * LAB_DIM + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < 16; i++)
        s.q[i] = lane < 16 ? *reinterpret_cast<const uint32_t *>(row + i * 8) : 0;
#pragma unroll
    for (int i = 0; i < 16; i++)
        s.o[i][0] = s.o[i][1] = s.o[i][2] = s.o[i][3] = 0.0f;
    s.top = -CUDART_INF_F;
    s.mass = 0.0f;
}

static __device__ __forceinline__ void tile(state &s, uint32_t stage, int left, int lane)
{
    float sc[4][4] = {};
    uint32_t b[4];
    int krow = (lane & 7) + ((lane >> 4) << 3);
    int kcol = (lane >> 3) & 1;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        ldm(b, stage + krow * 256 + (((2 * i + kcol) ^ (krow & 7)) << 4));
        mma(sc[i & 1], s.q[2 * i], s.q[2 * i + 1], b[0], b[1]);
        mma(sc[2 + (i & 1)], s.q[2 * i], s.q[2 * i + 1], b[2], b[3]);
    }
    const float scale = 1.4426950408889634f * 0.08838834764831845f;
    float v[4];
    int token = (lane & 3) * 2;
    v[0] = token < left ? (sc[0][0] + sc[1][0]) * scale : -CUDART_INF_F;
    v[1] = token + 1 < left ? (sc[0][1] + sc[1][1]) * scale : -CUDART_INF_F;
    v[2] = token + 8 < left ? (sc[2][0] + sc[3][0]) * scale : -CUDART_INF_F;
    v[3] = token + 9 < left ? (sc[2][1] + sc[3][1]) * scale : -CUDART_INF_F;
    float top = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    if (__any_sync(~0u, top > s.top)) {
        float next = fmaxf(top, s.top);
        float shrink = exp2f(s.top - next);
        s.top = next;
        s.mass *= shrink;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            s.o[i][0] *= shrink;
            s.o[i][1] *= shrink;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = exp2f(v[i] - s.top);
        s.mass += v[i];
    }
    /* Padding rows would weigh every token equally: drop them, rows 4..7 are never read. */
    uint32_t p0 = lane < 16 ? pack(v[0], v[1]) : 0;
    uint32_t p1 = lane < 16 ? pack(v[2], v[3]) : 0;
    int vrow = lane & 15;
    int vcol = lane >> 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        ldm_trans(b, stage + 4096 + vrow * 256 + (((2 * i + vcol) ^ (vrow & 7)) << 4));
        mma(s.o[2 * i], p0, p1, b[0], b[1]);
        mma(s.o[2 * i + 1], p0, p1, b[2], b[3]);
    }
}

static __device__ __forceinline__ void finish(const struct lab_attn &a, const cursor &c, state &s,
                                              bool whole, int64_t slot, int lane)
{
    s.mass += __shfl_xor_sync(~0u, s.mass, 1);
    s.mass += __shfl_xor_sync(~0u, s.mass, 2);
    if (lane >= 16)
        return;
    int row = lane >> 2;
    int col = (lane & 3) * 2;
    if (whole) {
        float inv = 1.0f / s.mass;
        uint16_t *o = a.out + ((int64_t)c.seq * LAB_HEADS + c.head * LAB_GROUP + row) * LAB_DIM + col;
#pragma unroll
        for (int i = 0; i < 16; i++)
            *reinterpret_cast<uint32_t *>(o + i * 8) = pack(s.o[i][0] * inv, s.o[i][1] * inv);
        return;
    }
    float *o = a.part + (slot * LAB_GROUP + row) * (LAB_DIM + 2);
#pragma unroll
    for (int i = 0; i < 16; i++)
        *reinterpret_cast<float2 *>(o + i * 8 + col) = make_float2(s.o[i][0], s.o[i][1]);
    if (col == 0)
        *reinterpret_cast<float2 *>(o + LAB_DIM) = make_float2(s.top, s.mass);
}

template <int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32) attend(const __grid_constant__ struct lab_attn a)
{
    extern __shared__ __align__(128) unsigned char smem[];
    int lane = threadIdx.x & 31;
    int warp = threadIdx.x >> 5;
    int worker = blockIdx.x * WARPS + warp;
    int workers = gridDim.x * WARPS;
    int64_t total = (int64_t)a.units[a.batch] * LAB_KV;
    int64_t from = first_unit(total, worker, workers);
    int64_t to = first_unit(total, worker + 1, workers);
    if (from >= to)
        return;
    uint32_t ring = (uint32_t)__cvta_generic_to_shared(smem) + warp * STAGES * STAGE_BYTES;

    cursor ahead = find(a, from);
    cursor here = ahead;
    int64_t issued = from;
    int page = page_of(a, ahead);
    int put = 0;
    auto issue = [&]() {
        if (issued < to) {
            load(a, ahead, page, ring + put * STAGE_BYTES, lane);
            if (++issued < to) {
                step(a, ahead);
                page = page_of(a, ahead); /* one unit early, so its latency hides */
            }
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        put = put + 1 == STAGES ? 0 : put + 1;
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        issue();

    state s;
    int get = 0;
    bool fresh = true;
    bool whole = false;
    int64_t start = from;
    for (int64_t u = from; u < to; u++) {
        if (fresh) {
            begin(a, here, s, lane);
            whole = here.unit == 0;
            start = u;
            fresh = false;
        }
        asm volatile("cp.async.wait_group %0;\n" ::"n"(STAGES - 2) : "memory");
        __syncwarp();
        issue();
        tile(s, ring + get * STAGE_BYTES, a.len[here.seq] - here.unit * LAB_UNIT, lane);
        get = get + 1 == STAGES ? 0 : get + 1;
        bool last = here.unit + 1 == here.units;
        if (last || u + 1 == to) {
            finish(a, here, s, whole && last, 2 * (int64_t)worker + (start != from), lane);
            fresh = true;
        }
        if (u + 1 < to)
            step(a, here);
    }
}

/* One warp a (sequence, head): joins what several workers left. */
__global__ void merge(const __grid_constant__ struct lab_attn a, int workers)
{
    int lane = threadIdx.x & 31;
    int64_t total = (int64_t)a.units[a.batch] * LAB_KV;
    int warps = gridDim.x * (blockDim.x >> 5);
    for (int t = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); t < a.batch * LAB_KV; t += warps) {
        int seq = t / LAB_KV;
        int head = t % LAB_KV;
        int units = a.units[seq + 1] - a.units[seq];
        int64_t u0 = (int64_t)a.units[seq] * LAB_KV + (int64_t)head * units;
        int64_t u1 = u0 + units;
        int w0 = (int)(u0 * workers / total);
        while (first_unit(total, w0 + 1, workers) <= u0)
            w0++;
        while (first_unit(total, w0, workers) > u0)
            w0--;
        if (first_unit(total, w0 + 1, workers) >= u1)
            continue; /* one worker did it all and wrote it */
        for (int g = 0; g < LAB_GROUP; g++) {
            float4 sum = make_float4(0, 0, 0, 0);
            float top = -CUDART_INF_F;
            float mass = 0;
            for (int w = w0; w < workers; w++) {
                int64_t f = first_unit(total, w, workers);
                if (f >= u1)
                    break;
                if (f == first_unit(total, w + 1, workers))
                    continue;
                int64_t slot = 2 * (int64_t)w + (f < u0);
                const float *p = a.part + (slot * LAB_GROUP + g) * (LAB_DIM + 2);
                float next = fmaxf(top, p[LAB_DIM]);
                float old = exp2f(top - next);
                float add = exp2f(p[LAB_DIM] - next);
                float2 x = *reinterpret_cast<const float2 *>(p + lane * 4);
                float2 y = *reinterpret_cast<const float2 *>(p + lane * 4 + 2);
                sum = make_float4(sum.x * old + x.x * add, sum.y * old + x.y * add,
                                  sum.z * old + y.x * add, sum.w * old + y.y * add);
                mass = mass * old + p[LAB_DIM + 1] * add;
                top = next;
            }
            float inv = 1.0f / mass;
            uint16_t *o = a.out + ((int64_t)seq * LAB_HEADS + head * LAB_GROUP + g) * LAB_DIM + lane * 4;
            *reinterpret_cast<uint2 *>(o) =
                make_uint2(pack(sum.x * inv, sum.y * inv), pack(sum.z * inv, sum.w * inv));
        }
    }
}

struct variant {
    void (*kernel)(const struct lab_attn);
    int warps, stages;
};

static const variant VARIANTS[] = {
    {attend<8, 3>, 8, 3}, {attend<4, 6>, 4, 6}, {attend<12, 2>, 12, 2},
    {attend<6, 4>, 6, 4}, {attend<4, 3>, 4, 3}, {attend<4, 2>, 4, 2},
};

extern "C" int lab_attn_variants(void)
{
    return (int)(sizeof VARIANTS / sizeof VARIANTS[0]);
}

extern "C" cudaError_t lab_attn_prepare(int v, struct lab_attn_variant *out)
{
    const variant &t = VARIANTS[v];
    out->warps = t.warps;
    out->stages = t.stages;
    out->smem = t.warps * t.stages * STAGE_BYTES;
    cudaError_t e = cudaFuncSetAttribute((const void *)t.kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, out->smem);
    if (e != cudaSuccess)
        return e;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out->per_sm, (const void *)t.kernel,
                                                         t.warps * 32, out->smem);
}

extern "C" cudaError_t lab_attn_launch(const struct lab_attn *a, int v, int blocks,
                                       cudaStream_t stream)
{
    const variant &t = VARIANTS[v];
    t.kernel<<<blocks, t.warps * 32, t.warps * t.stages * STAGE_BYTES, stream>>>(*a);
    cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
        return e;
    int tasks = (a->batch * LAB_KV + 3) / 4;
    merge<<<tasks < 8 * blocks ? tasks : 8 * blocks, 128, 0, stream>>>(*a, blocks * t.warps);
    return cudaGetLastError();
}
