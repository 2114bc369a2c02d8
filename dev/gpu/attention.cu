/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math_constants.h>

/*
 * A warp works alone: it owns a ring of 8 KiB slots, one holding the keys or the values of 32
 * tokens of one head, filled by the tensor copy engine SLOTS - 1 ahead. Tokens are the rows of the
 * tensor core's left operand and the 4 query heads (padded to 8) its columns, so nothing of the
 * tall side is wasted. A slot is two boxes of 16 tokens (a page may be no larger), a box is [2
 * halves of 64 dimensions][16 tokens][128 bytes], swizzled by the engine: 16-byte column c of row r
 * lies at column c ^ (r & 7).
 */
static constexpr int BOX = 16;
static constexpr int BOX_BYTES = 4096;
static constexpr int SLOT_BYTES = 8192;

struct cursor {
    int seq, head, tile, tiles; /* tile counts inside (seq, head) */
    int len;                    /* tokens of seq */
};

/* Tiles per worker: the first `more` workers have one more than `per`. */
struct cut {
    uint32_t per, more;
};

static __device__ __forceinline__ cut cut_for(uint32_t total, uint32_t workers)
{
    cut c;
    c.per = total / workers;
    c.more = total - c.per * workers;
    return c;
}

static __device__ __forceinline__ uint32_t first_tile(cut c, uint32_t w)
{
    return w * c.per + min(w, c.more);
}

static __device__ __forceinline__ uint32_t worker_of(cut c, uint32_t u)
{
    uint32_t wide = c.more * (c.per + 1);
    return u < wide ? u / (c.per + 1) : c.more + (u - wide) / c.per;
}

static __device__ cursor find(const struct lab_attn &a, uint32_t u)
{
    int lo = 0;
    int hi = a.batch;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if ((uint32_t)a.tiles[mid] * LAB_KV <= u)
            lo = mid;
        else
            hi = mid;
    }
    cursor c;
    int rest = (int)(u - (uint32_t)a.tiles[lo] * LAB_KV);
    c.seq = lo;
    c.tiles = a.tiles[lo + 1] - a.tiles[lo];
    c.head = rest / c.tiles;
    c.tile = rest % c.tiles;
    c.len = a.len[lo];
    return c;
}

static __device__ __forceinline__ void step(const struct lab_attn &a, cursor &c)
{
    if (++c.tile < c.tiles)
        return;
    c.tile = 0;
    if (++c.head < LAB_KV)
        return;
    c.head = 0;
    if (++c.seq < a.batch) {
        c.tiles = a.tiles[c.seq + 1] - a.tiles[c.seq];
        c.len = a.len[c.seq];
    }
}

/* Rows of the pool where the two boxes of a tile's keys begin; -1: past the end of the sequence. */
static __device__ __forceinline__ int2 rows_of(const struct lab_attn &a, const cursor &c)
{
    int token = c.tile * LAB_TILE;
    const int32_t *pages = a.pages + (int64_t)c.seq * a.max_pages;
    int mask = (1 << a.page_shift) - 1;
    int2 r;
    r.x = ((pages[token >> a.page_shift] * 2 * LAB_KV + c.head) << a.page_shift) + (token & mask);
    token += BOX;
    r.y = -1;
    if (token < c.len)
        r.y =
            ((pages[token >> a.page_shift] * 2 * LAB_KV + c.head) << a.page_shift) + (token & mask);
    return r;
}

static __device__ __forceinline__ void expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* Fetches 16 tokens from row `row` of the pool; the barrier signals their arrival. */
static __device__ __forceinline__ void fetch(uint32_t box, uint32_t bar, const CUtensorMap *map,
                                             int row)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %2}], [%4];\n" ::"r"(box),
                 "l"(map), "r"(0), "r"(row), "r"(bar)
                 : "memory");
}

static __device__ __forceinline__ void await(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni out;\n"
                 "bra.uni again;\n"
                 "out:\n"
                 "}\n" ::"r"(bar),
                 "r"(parity)
                 : "memory");
    __syncwarp();
}

static __device__ __forceinline__ float power(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
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

static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t pack(float lo, float hi)
{
    __nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&p);
}

static __device__ __forceinline__ uint32_t transpose(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
    return y;
}

/*
 * What a warp keeps of one (sequence, head): o[t] is 16 of the 128 dimensions (rows) by 8 query
 * heads (columns; 4..7 are padding). A lane has columns 2 (lane % 4) and the next.
 */
struct state {
    uint32_t q[16];
    float o[8][4];
    float top[2];  /* a reference near the running maximum, in powers of two */
    float mass[2]; /* this lane's part of the sum of weights */
};

static __device__ __forceinline__ void begin(const struct lab_attn &a, const cursor &c, state &s,
                                             int lane)
{
    const uint16_t *row = a.q + (int64_t)c.seq * a.q_stride +
                          (c.head * LAB_GROUP + (lane >> 2)) * LAB_DIM + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < 16; i++)
        s.q[i] = lane < 16 ? *reinterpret_cast<const uint32_t *>(row + i * 8) : 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        s.o[i][0] = s.o[i][1] = s.o[i][2] = s.o[i][3] = 0.0f;
    s.top[0] = s.top[1] = -CUDART_INF_F;
    s.mass[0] = s.mass[1] = 0.0f;
}

static __device__ __forceinline__ float over_rows(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

/* Weights of 32 tokens, ready as the right operands of the second product. */
static __device__ __forceinline__ void scores(state &s, uint32_t slot, int left, uint32_t (&p)[4],
                                              int lane)
{
    float sc[4][4] = {};
    uint32_t k[4];
    int row = lane & 15;
    uint32_t at = slot + row * 128 + (((lane >> 4) ^ (row & 7)) << 4);
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int b = 0; b < 2; b++) {
            ldm(k, (at ^ ((i & 3) << 5)) + (i >> 2) * 2048 + b * BOX_BYTES);
            mma(sc[2 * b + (i & 1)], k, s.q[2 * i], s.q[2 * i + 1]);
        }
    }
    const float scale = 1.4426950408889634f * 0.08838834764831845f;
    float v[8]; /* rows lane / 4 and 8, 16, 24 more; columns 0 and 1 */
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = (sc[i >> 2 << 1][i & 3] + sc[(i >> 2 << 1) + 1][i & 3]) * scale;
    if (left < LAB_TILE) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if ((lane >> 2) + (i >> 1) * 8 >= left)
                v[i] = -CUDART_INF_F;
    }
    /* The reference moves only when a score passes it by 2^8: fp32 sums carry that much. */
    float top[2];
#pragma unroll
    for (int c = 0; c < 2; c++)
        top[c] = fmaxf(fmaxf(v[c], v[2 + c]), fmaxf(v[4 + c], v[6 + c]));
    if (__any_sync(~0u, fmaxf(top[0] - s.top[0], top[1] - s.top[1]) > 8.0f)) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float next = fmaxf(s.top[c], over_rows(top[c]));
            float shrink = power(s.top[c] - next);
            s.top[c] = next;
            s.mass[c] *= shrink;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                s.o[i][c] *= shrink;
                s.o[i][2 + c] *= shrink;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = power(v[i] - s.top[i & 1]);
    s.mass[0] += (v[0] + v[2]) + (v[4] + v[6]);
    s.mass[1] += (v[1] + v[3]) + (v[5] + v[7]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        p[i] = transpose(pack(v[2 * i], v[2 * i + 1]));
}

/* Memory past the end is undefined, and 0 times a NaN is a NaN. */
static __device__ __noinline__ void clear(uint32_t slot, int left, int lane)
{
    for (int r = left; r < LAB_TILE; r++)
        asm volatile("st.shared.v2.b32 [%0], {%1, %1};\n" ::"r"(slot + (r >> 4) * BOX_BYTES +
                                                                (lane >> 4) * 2048 +
                                                                (r & 15) * 128 + (lane & 15) * 8),
                     "r"(0)
                     : "memory");
    __syncwarp();
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

static __device__ __forceinline__ void weigh(state &s, uint32_t slot, int left,
                                             const uint32_t (&p)[4], int lane)
{
    uint32_t v[4];
    int row = (lane & 7) + ((lane >> 4) << 3);
    uint32_t at = slot + row * 128 + ((((lane >> 3) & 1) ^ (row & 7)) << 4);
    if (left < LAB_TILE)
        clear(slot, left, lane);
#pragma unroll
    for (int b = 0; b < 2; b++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            ldm_trans(v, (at ^ ((i & 3) << 5)) + (i >> 2) * 2048 + b * BOX_BYTES);
            mma(s.o[i], v, p[2 * b], p[2 * b + 1]);
        }
    }
}

static __device__ __forceinline__ void finish(const struct lab_attn &a, const cursor &c, state &s,
                                              bool whole, uint32_t slot, int lane)
{
#pragma unroll
    for (int j = 0; j < 2; j++)
        for (int m = 4; m < 32; m *= 2)
            s.mass[j] += __shfl_xor_sync(~0u, s.mass[j], m);
    int head = (lane & 3) * 2;
    int dim = lane >> 2;
    if (head >= LAB_GROUP)
        return;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (whole) {
            float inv = 1.0f / s.mass[j];
            __nv_bfloat16 *o =
                (__nv_bfloat16 *)a.out +
                ((int64_t)c.seq * LAB_HEADS + c.head * LAB_GROUP + head + j) * LAB_DIM;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                o[i * 16 + dim] = __float2bfloat16(s.o[i][j] * inv);
                o[i * 16 + dim + 8] = __float2bfloat16(s.o[i][2 + j] * inv);
            }
            continue;
        }
        float *o = a.part + ((int64_t)slot * LAB_GROUP + head + j) * (LAB_DIM + 2);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            o[i * 16 + dim] = s.o[i][j];
            o[i * 16 + dim + 8] = s.o[i][2 + j];
        }
        if (dim == 0)
            *reinterpret_cast<float2 *>(o + LAB_DIM) = make_float2(s.top[j], s.mass[j]);
    }
}

template <int WARPS, int SLOTS>
__global__ void __launch_bounds__(WARPS * 32, 1) attend(const __grid_constant__ struct lab_attn a)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    int lane = threadIdx.x & 31;
    int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0); /* tells the compiler that it is uniform */
    uint32_t worker = blockIdx.x * WARPS + warp;
    cut share = cut_for((uint32_t)a.tiles[a.batch] * LAB_KV, gridDim.x * WARPS);
    uint32_t from = first_tile(share, worker);
    uint32_t to = first_tile(share, worker + 1);
    if (from >= to)
        return;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(smem);
    uint32_t ring = base + warp * SLOTS * SLOT_BYTES;
    uint32_t bars = base + WARPS * SLOTS * SLOT_BYTES + warp * SLOTS * 8;
    if (lane == 0) {
        for (int i = 0; i < SLOTS; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n" ::"r"(bars + i * 8) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    }
    __syncwarp();

    cursor ahead = find(a, from);
    cursor here = ahead;
    uint32_t fetched = from; /* tiles whose keys are fetched or being fetched */
    int2 next = rows_of(a, ahead);
    int2 now = next;
    int to_values = LAB_KV << a.page_shift; /* rows from keys to values of the same token */
    int put = 0;
    auto fill = [&](int plus) {
        int x = __shfl_sync(~0u, now.x, 0);
        int y = __shfl_sync(~0u, now.y, 0);
        if (lane == 0) {
            uint32_t slot = ring + put * SLOT_BYTES;
            uint32_t bar = bars + put * 8;
            expect(bar, y < 0 ? BOX_BYTES : SLOT_BYTES);
            fetch(slot, bar, &a.map, x + plus);
            if (y >= 0)
                fetch(slot + BOX_BYTES, bar, &a.map, y + plus);
        }
    };
    auto fetch_keys = [&]() {
        if (fetched < to) {
            now = next;
            fill(0);
            if (fetched + 1 < to) {
                step(a, ahead);
                next = rows_of(a, ahead); /* one tile early, to hide its latency */
            }
        }
        put = put + 1 == SLOTS ? 0 : put + 1;
    };
    auto fetch_values = [&]() {
        if (fetched < to)
            fill(to_values);
        fetched++;
        put = put + 1 == SLOTS ? 0 : put + 1;
    };
    /* SLOTS - 1 slots ahead; afterwards each fetch alternates with a use. */
#pragma unroll
    for (int i = 0; i < SLOTS - 1; i++)
        if (i & 1)
            fetch_values();
        else
            fetch_keys();

    state s;
    uint32_t p[4];
    int get = 0;
    uint32_t parity = 0;
    auto turn = [&]() {
        if (++get == SLOTS) {
            get = 0;
            parity ^= 1;
        }
    };
    bool fresh = true;
    bool whole = false;
    uint32_t start = from;
    for (uint32_t u = from; u < to; u++) {
        if (fresh) {
            begin(a, here, s, lane);
            whole = here.tile == 0;
            start = u;
            fresh = false;
        }
        int left = here.len - here.tile * LAB_TILE;
        await(bars + get * 8, parity);
        if ((SLOTS & 1) != 0)
            fetch_keys();
        else
            fetch_values();
        scores(s, ring + get * SLOT_BYTES, left, p, lane);
        turn();
        await(bars + get * 8, parity);
        if ((SLOTS & 1) != 0)
            fetch_values();
        else
            fetch_keys();
        weigh(s, ring + get * SLOT_BYTES, left, p, lane);
        turn();
        bool last = here.tile + 1 == here.tiles;
        if (last || u + 1 == to) {
            finish(a, here, s, whole && last, 2 * worker + (start != from), lane);
            fresh = true;
        }
        if (u + 1 < to)
            step(a, here);
    }
}

/* One warp per query head: combines the partial results of several workers. */
__global__ void merge(const __grid_constant__ struct lab_attn a, uint32_t workers)
{
    int lane = threadIdx.x & 31;
    cut share = cut_for((uint32_t)a.tiles[a.batch] * LAB_KV, workers);
    int warps = gridDim.x * (blockDim.x >> 5);
    for (int t = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); t < a.batch * LAB_HEADS;
         t += warps) {
        int seq = t / LAB_HEADS;
        int head = t % LAB_HEADS;
        uint32_t tiles = a.tiles[seq + 1] - a.tiles[seq];
        uint32_t u0 = (uint32_t)a.tiles[seq] * LAB_KV + head / LAB_GROUP * tiles;
        uint32_t u1 = u0 + tiles;
        uint32_t w = worker_of(share, u0);
        if (first_tile(share, w + 1) >= u1)
            continue; /* a single worker did all of it and wrote the result */
        float4 sum = make_float4(0, 0, 0, 0);
        float top = -CUDART_INF_F;
        float mass = 0;
        for (; first_tile(share, w) < u1 && w < workers; w++) {
            uint32_t slot = 2 * w + (first_tile(share, w) < u0);
            const float *p =
                a.part + ((int64_t)slot * LAB_GROUP + head % LAB_GROUP) * (LAB_DIM + 2);
            float2 x = *reinterpret_cast<const float2 *>(p + lane * 4);
            float2 y = *reinterpret_cast<const float2 *>(p + lane * 4 + 2);
            float2 m = *reinterpret_cast<const float2 *>(p + LAB_DIM);
            float next = fmaxf(top, m.x);
            float old = exp2f(top - next);
            float add = exp2f(m.x - next);
            sum = make_float4(sum.x * old + x.x * add, sum.y * old + x.y * add,
                              sum.z * old + y.x * add, sum.w * old + y.y * add);
            mass = mass * old + m.y * add;
            top = next;
        }
        float inv = 1.0f / mass;
        *reinterpret_cast<uint2 *>(a.out + (int64_t)t * LAB_DIM + lane * 4) =
            make_uint2(pack(sum.x * inv, sum.y * inv), pack(sum.z * inv, sum.w * inv));
    }
}

struct variant {
    void (*kernel)(const struct lab_attn);
    int warps, slots;
};

static const variant VARIANTS[] = {
    {attend<9, 3>, 9, 3}, {attend<8, 3>, 8, 3},   {attend<6, 4>, 6, 4},
    {attend<5, 5>, 5, 5}, {attend<13, 2>, 13, 2},
};

static int smem_bytes(const variant &t)
{
    return t.warps * t.slots * (SLOT_BYTES + 8);
}

extern "C" CUresult lab_attn_map(struct lab_attn *a, int64_t pages)
{
    cuuint64_t dims[3] = {64, (cuuint64_t)pages * 2 * LAB_KV << a->page_shift, 2};
    cuuint64_t strides[2] = {LAB_DIM * 2, 128};
    cuuint32_t box[3] = {64, BOX, 2};
    cuuint32_t ones[3] = {1, 1, 1};
    return cuTensorMapEncodeTiled(&a->map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)a->pool,
                                  dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

extern "C" int lab_attn_variants(void)
{
    return (int)(sizeof VARIANTS / sizeof VARIANTS[0]);
}

extern "C" cudaError_t lab_attn_prepare(int v, struct lab_attn_variant *out)
{
    const variant &t = VARIANTS[v];
    out->warps = t.warps;
    out->slots = t.slots;
    out->smem = smem_bytes(t);
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
    t.kernel<<<blocks, t.warps * 32, smem_bytes(t), stream>>>(*a);
    cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
        return e;
    int tasks = a->batch * LAB_HEADS / 4;
    int most = 16 * blocks, used = tasks < most ? tasks : most;
    merge<<<used, 128, 0, stream>>>(*a, blocks * t.warps);
    return cudaGetLastError();
}
