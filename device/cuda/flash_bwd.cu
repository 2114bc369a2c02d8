/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/flash_bwd.cu - the backward of attention over packed documents, on the tensor cores.
 *
 * Two kernels instead of one: the first computes the gradients of a tile of keys and values in a
 * loop over the queries that see it; the second computes the gradient of a tile of queries in a
 * loop over the keys.  Scores are computed twice, which makes seven products instead of five, and
 * in return no sum needs atomics: results are bitwise repeatable.  Probabilities and dS are rounded
 * to bf16 before they are multiplied.
 */
#include "device/cuda/cudnn.h"
#include "device/cuda/flash.cuh"
#include "device/fallback.h"

enum { STEP = 32 /* rows of the other side per iteration */, SINK_THREADS = 256 };

struct bwd_args {
    struct hzp_attn_packed_bwd_args a;
    float *delta; /* [rows][heads]: sum of dout * out */
    int tiles;
    float scale2; /* includes log2(e): scores are exponents of 2 */
};

/* ---- delta: one warp per head of a row ---- */

template <int D> static __global__ void bwd_delta(struct bwd_args b)
{
    int64_t item = blockIdx.x * (int64_t)(FLASH_THREADS / 32) + threadIdx.x / 32;
    int heads = b.a.heads.heads;
    if (item >= (int64_t)b.a.out.rows * heads)
        return;
    int64_t r = item / heads;
    int h = (int)(item % heads), lane = threadIdx.x % 32;
    const uint16_t *out = row_of<uint16_t>(b.a.out, r) + h * D;
    const uint16_t *dout = row_of<uint16_t>(b.a.dout, r) + h * D;
    float sum = 0;
    for (int j = 2 * lane; j < D; j += 64) {
        float x[2], y[2];
        unpack(*reinterpret_cast<const uint32_t *>(out + j), x);
        unpack(*reinterpret_cast<const uint32_t *>(dout + j), y);
        sum += x[0] * y[0] + x[1] * y[1];
    }
    sum = warp_sum(sum);
    if (lane == 0)
        b.delta[item] = sum;
}

/* ---- products of a warp's 16 rows ---- */

/* c += rows 16*warp.. of tile_a times rows row0 .. row0+31 of tile_b, transposed. */
template <int D>
static __device__ __forceinline__ void product_rows(float (&c)[4][4], uint32_t tile_a,
                                                    uint32_t tile_b, int row0)
{
    int warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t x[4], y[4];
        load_a<D>(x, tile_a, 16 * warp, k);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            load_b_rows<D>(y, tile_b, row0 + 16 * n, k);
            mma(c[2 * n], x[0], x[1], x[2], x[3], y[0], y[1]);
            mma(c[2 * n + 1], x[0], x[1], x[2], x[3], y[2], y[3]);
        }
    }
}

/* Stores this lane's part of rows r0 and r0 + 8, columns at col. */
template <int D>
static __device__ __forceinline__ void
rows_put(const struct hzp_mat &m, const float (&sum)[D / 8][4], int64_t r0, int there, int col)
{
    int l = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (8 * r >= there)
            continue;
        uint16_t *to = row_of<uint16_t>(m, r0 + 8 * r) + col + 2 * l;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            *reinterpret_cast<uint32_t *>(to + 8 * i) = pack(sum[i][2 * r], sum[i][2 * r + 1]);
    }
}

/* ---- dk and dv of 64 keys ---- */

template <int D> struct keys_memory {
    uint16_t k[FLASH_TILE * D], v[FLASH_TILE * D];
    uint16_t q[2][STEP * D], dout[2][STEP * D];
    float lse[2][STEP], delta[2][STEP]; /* lse as an exponent of 2 */
};

template <int D> static __global__ void __launch_bounds__(FLASH_THREADS) bwd_keys(struct bwd_args b)
{
    HZP_SHARED_DYNAMIC(unsigned char, room);
    keys_memory<D> &m = *reinterpret_cast<keys_memory<D> *>(room);
    const struct hzp_attn_packed_bwd_args &a = b.a;
    int seg = blockIdx.x / b.tiles, first = blockIdx.x % b.tiles * FLASH_TILE, kv_head = blockIdx.y;
    int row0 = a.segs.row0[seg], rows = a.segs.row0[seg + 1] - row0;
    if (first >= rows)
        return;
    int heads = a.heads.heads, group = heads / a.heads.kv_heads, there = min(rows - first, 64);
    int k_col = (heads + kv_head) * D, v_col = k_col + a.heads.kv_heads * D;
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
    const uint16_t *k_from = row_of<uint16_t>(a.qkv, row0 + first) + k_col;
    int64_t stride = a.qkv.stride;
    tile_fetch<D, FLASH_TILE>(shared_at(m.k), there, [&](int r) { return k_from + r * stride; });
    tile_fetch<D, FLASH_TILE>(shared_at(m.v), there,
                              [&](int r) { return k_from + v_col - k_col + r * stride; });
    /* the queries that see these keys: from `first` on, for each head of the group */
    int end = a.window > 0 ? min(rows, first + there - 1 + a.window) : rows;
    int steps = (end - first + STEP - 1) / STEP, all = steps * group;
    auto fetch = [&](int step, int into) {
        int head = kv_head * group + step / steps, q0 = first + step % steps * STEP;
        const uint16_t *q = row_of<uint16_t>(a.qkv, row0 + q0) + head * D;
        const uint16_t *dout = row_of<uint16_t>(a.dout, row0 + q0) + head * D;
        tile_fetch<D, STEP>(shared_at(m.q[into]), rows - q0, [&](int r) { return q + r * stride; });
        tile_fetch<D, STEP>(shared_at(m.dout[into]), rows - q0,
                            [&](int r) { return dout + r * (int64_t)a.dout.stride; });
        if (threadIdx.x < STEP) {
            bool is = q0 + (int)threadIdx.x < rows;
            int64_t at = (int64_t)(row0 + q0 + threadIdx.x) * heads + head;
            m.lse[into][threadIdx.x] = is ? a.lse[at] * 1.44269504f : INFINITY;
            m.delta[into][threadIdx.x] = is ? b.delta[at] : 0;
        }
        copy_commit();
    };
    fetch(0, 0);
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    for (int step = 0; step < all; step++) {
        int turn = step & 1, q0 = first + step % steps * STEP;
        if (step + 1 < all)
            fetch(step + 1, turn ^ 1);
        else
            copy_commit();
        copy_wait<1>();
        __syncthreads();
        float p[4][4], ds[4][4];
        product_rows<D>(p, shared_at(m.k), shared_at(m.q[turn]), 0);
        product_rows<D>(ds, shared_at(m.v), shared_at(m.dout[turn]), 0);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int query = 8 * i + 2 * l + e % 2, key = first + 16 * warp + g + e / 2 * 8;
                bool sees = key <= q0 + query && key >= first_seen(a.window, q0 + query);
                float prob = sees ? exp_2(p[i][e] * b.scale2 - m.lse[turn][query]) : 0;
                p[i][e] = prob;
                ds[i][e] = prob * (ds[i][e] - m.delta[turn][query]) * a.scale;
            }
        product_cols<D>(dv, p, shared_at(m.dout[turn]), 0);
        product_cols<D>(dk, ds, shared_at(m.q[turn]), 0);
        __syncthreads();
    }
    int at = 16 * warp + g;
    rows_put<D>(a.dqkv, dk, row0 + first + at, there - at, k_col);
    rows_put<D>(a.dqkv, dv, row0 + first + at, there - at, v_col);
}

/* ---- dq of 64 rows ---- */

template <int D> struct rows_memory {
    uint16_t q[FLASH_TILE * D], dout[FLASH_TILE * D];
    uint16_t k[2][STEP * D], v[2][STEP * D];
};

template <int D> static __global__ void __launch_bounds__(FLASH_THREADS) bwd_rows(struct bwd_args b)
{
    HZP_SHARED_DYNAMIC(unsigned char, room);
    rows_memory<D> &m = *reinterpret_cast<rows_memory<D> *>(room);
    const struct hzp_attn_packed_bwd_args &a = b.a;
    int seg = blockIdx.x / b.tiles, first = (b.tiles - 1 - blockIdx.x % b.tiles) * FLASH_TILE;
    int head = blockIdx.y, heads = a.heads.heads, kv_head = head / (heads / a.heads.kv_heads);
    int row0 = a.segs.row0[seg], rows = a.segs.row0[seg + 1] - row0;
    if (first >= rows)
        return;
    int there = min(rows - first, 64), keys = first + there;
    int k_col = (heads + kv_head) * D, v_col = k_col + a.heads.kv_heads * D;
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
    int64_t stride = a.qkv.stride;
    const uint16_t *q = row_of<uint16_t>(a.qkv, row0 + first) + head * D;
    const uint16_t *dout = row_of<uint16_t>(a.dout, row0 + first) + head * D;
    const uint16_t *k = row_of<uint16_t>(a.qkv, row0) + k_col;
    tile_fetch<D, FLASH_TILE>(shared_at(m.q), there, [&](int r) { return q + r * stride; });
    tile_fetch<D, FLASH_TILE>(shared_at(m.dout), there,
                              [&](int r) { return dout + r * (int64_t)a.dout.stride; });
    auto fetch = [&](int p0, int into) {
        tile_fetch<D, STEP>(shared_at(m.k[into]), keys - p0,
                            [&](int r) { return k + (p0 + r) * stride; });
        tile_fetch<D, STEP>(shared_at(m.v[into]), keys - p0,
                            [&](int r) { return k + v_col - k_col + (p0 + r) * stride; });
        copy_commit();
    };
    int begin = first_seen(a.window, first) / STEP * STEP;
    fetch(begin, 0);
    float lse[2], delta[2], dq[D / 8][4] = {};
    for (int r = 0; r < 2; r++) {
        int at = 16 * warp + g + 8 * r;
        int64_t from = (int64_t)(row0 + first + at) * heads + head;
        lse[r] = at < there ? a.lse[from] * 1.44269504f : INFINITY;
        delta[r] = at < there ? b.delta[from] : 0;
    }
    for (int p0 = begin, turn = 0; p0 < keys; p0 += STEP, turn ^= 1) {
        if (p0 + STEP < keys)
            fetch(p0 + STEP, turn ^ 1);
        else
            copy_commit();
        copy_wait<1>();
        __syncthreads();
        float p[4][4], ds[4][4];
        product_rows<D>(p, shared_at(m.q), shared_at(m.k[turn]), 0);
        product_rows<D>(ds, shared_at(m.dout), shared_at(m.v[turn]), 0);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int key = p0 + 8 * i + 2 * l + e % 2, query = first + 16 * warp + g + e / 2 * 8;
                bool sees = key <= query && key >= first_seen(a.window, query);
                float prob = sees ? exp_2(p[i][e] * b.scale2 - lse[e / 2]) : 0;
                ds[i][e] = prob * (ds[i][e] - delta[e / 2]) * a.scale;
            }
        product_cols<D>(dq, ds, shared_at(m.k[turn]), 0);
        __syncthreads();
    }
    int at = 16 * warp + g;
    rows_put<D>(a.dqkv, dq, row0 + first + at, there - at, head * D);
}

template <int D> static int launch(struct hzp_lane *lane, struct bwd_args &b)
{
    const struct hzp_heads &heads = b.a.heads;
    b.tiles = HZP_DIV_UP(b.a.segs.rows_max, (int)FLASH_TILE);
    unsigned blocks = (unsigned)b.a.segs.count * (unsigned)b.tiles;
    if (blocks == 0)
        return HZP_OK;
    int64_t items = (int64_t)b.a.out.rows * heads.heads;
    HZP_TRY(flash_room(lane, bwd_keys<D>, sizeof(keys_memory<D>)));
    HZP_TRY(flash_room(lane, bwd_rows<D>, sizeof(rows_memory<D>)));
    dim3 keys(blocks, (unsigned)heads.kv_heads), rows(blocks, (unsigned)heads.heads);
    start(lane, (unsigned)HZP_DIV_UP(items, (int64_t)FLASH_THREADS / 32), FLASH_THREADS, 0,
          bwd_delta<D>, b);
    start(lane, keys, FLASH_THREADS, sizeof(keys_memory<D>), bwd_keys<D>, b);
    start(lane, rows, FLASH_THREADS, sizeof(rows_memory<D>), bwd_rows<D>, b);
    return hzp_cuda_launched(lane, "attn_packed_bwd");
}

/* Its arguments with staged segments; false: no room for its row sums. */
static bool bwd_begin(struct hzp_lane *lane, const void *args, struct bwd_args *b)
{
    struct hzp_attn_packed_bwd_args *a = &b->a;
    *b = {*(const struct hzp_attn_packed_bwd_args *)args};
    size_t count = (size_t)a->segs.count;
    a->segs.row0 = (const int32_t *)hzp_cuda_staged(lane, a->segs.row0, (count + 1) * 4);
    a->segs.pos0 = (const int32_t *)hzp_cuda_staged(lane, a->segs.pos0, count * 4);
    b->delta = (float *)hzp_cuda_lane(lane)->scratch;
    b->scale2 = (float)((double)a->scale * 1.4426950408889634);
    size_t need = (size_t)a->out.rows * (size_t)a->heads.heads * sizeof(float);
    return need <= hzp_cuda_lane(lane)->scratch_size;
}

static int no_room(struct hzp_lane *lane)
{
    return hzp_cuda_check(hzp_cuda_device(lane), cudaErrorMemoryAllocation,
                          "attn_packed_bwd: room for its row sums");
}

static int own_packed_bwd(struct hzp_lane *lane, const void *args)
{
    struct bwd_args b;
    if (!bwd_begin(lane, args, &b))
        return no_room(lane);
    return b.a.heads.dim == 64 ? launch<64>(lane, b) : launch<128>(lane, b);
}

/* ---- dsink: one block per head, behind what has left delta ---- */

static __global__ void sink_bwd(struct bwd_args b)
{
    int head = blockIdx.x, heads = b.a.heads.heads, end = b.a.segs.row0[b.a.segs.count];
    float sink = sink_of(b.a.sink, head), sum = 0;
    for (int r = b.a.segs.row0[0] + threadIdx.x; r < end; r += blockDim.x)
        sum += expf(sink - b.a.lse[(int64_t)r * heads + head]) * b.delta[(int64_t)r * heads + head];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        ((float *)b.a.dsink.ptr)[head] -= sum;
}

static int packed_bwd(struct hzp_lane *lane, const struct hzp_attn_packed_bwd_args *a)
{
    struct bwd_args b;
    int dim = a->heads.dim;
    if (flash_fits(&a->qkv, dim) && flash_fits(&a->dout, dim) && flash_fits(&a->out, dim) &&
        flash_fits(&a->dqkv, dim) && !a->cap)
        return a->window || a->sink.ptr
                   ? own_packed_bwd(lane, a)
                   : hzp_cudnn_attention(lane, HZP_OP_attn_packed_bwd, a, own_packed_bwd);
    if (!bwd_begin(lane, a, &b))
        return no_room(lane);
    hzp_device_fallback(lane->dev, HZP_FALLBACK_attention, a->heads.heads, a->heads.kv_heads, dim,
                        "gradients of a type, width, alignment or cap without a kernel");
    return hzp_cuda_attn_packed_bwd_plain(lane, &b.a);
}

extern "C" int hzp_cuda_attn_packed_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_packed_bwd_args *a = (const struct hzp_attn_packed_bwd_args *)args;
    struct bwd_args b;
    if (a->segs.count == 0)
        return HZP_OK;
    HZP_TRY(packed_bwd(lane, a));
    if (!a->dsink.ptr)
        return HZP_OK;
    if (!bwd_begin(lane, a, &b))
        return no_room(lane);
    start(lane, (unsigned)a->heads.heads, SINK_THREADS, 0, sink_bwd, b);
    return hzp_cuda_launched(lane, "attn_packed_bwd");
}
