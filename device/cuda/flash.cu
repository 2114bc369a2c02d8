/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/flash.cu - attention of many rows on the tensor cores: prefill over pages, training
 * over packed documents.
 *
 * Online softmax over tiles of keys (Dao et al.: FlashAttention, NeurIPS 2022; the loop over keys
 * inside a block of queries as in FlashAttention-2, ICLR 2024).  A block has 64 query rows of one
 * head, a warp 16 of them; tiles of 64 keys and values arrive asynchronously, one ahead.  The
 * longest blocks start first.
 *
 * Codes of E4M3 pages arrive in the same way, and are widened to the one bf16 tile of keys and of
 * values, without their scales: scores are multiplied by the keys' scales, weights by the values'.
 */
#include "device/cuda/cudnn.h"
#include "device/cuda/flash.cuh"
#include "device/fallback.h"

struct flash_args {
    struct hzp_mat qkv, out, sink;
    struct hzp_kv kv; /* prefill */
    struct hzp_segs segs;
    const int32_t *page;
    const int32_t *line;
    int32_t page_stride;
    struct hzp_heads heads;
    float *lse;  /* packed, may be NULL */
    float scale; /* includes log2(e): scores are exponents of 2 */
    int window, tiles;
};

template <int D, class S> struct flash_memory {
    enum { TILES = S::CODES ? 1 : 2, CODES = S::CODES ? FLASH_TILE : 1 };
    uint16_t q[FLASH_TILE * D], k[TILES][FLASH_TILE * D], v[TILES][FLASH_TILE * D];
    alignas(16) uint8_t code[2][CODES * D]; /* keys, values of the next tiles */
    float scale[2][CODES];                  /* scales of the tiles' */
};

/* A warp's state: 16 query rows; the sums of their outputs, maxima and sums of weights of rows g,
 * g+8. */
template <int D> struct flash_state {
    uint32_t q[D / 16][4];
    float o[D / 8][4];
    float top[2], mass[2];
};

/* 16 rows by 64 keys, as mma's d. */
template <int D>
static __device__ __forceinline__ void tile_scores(const flash_state<D> &s, uint32_t k_tile,
                                                   float (&c)[8][4])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            load_b_rows<D>(b, k_tile, 16 * n, k);
            mma(c[2 * n], s.q[k][0], s.q[k][1], s.q[k][2], s.q[k][3], b[0], b[1]);
            mma(c[2 * n + 1], s.q[k][0], s.q[k][1], s.q[k][2], s.q[k][3], b[2], b[3]);
        }
}

/* Turns scores into weights.  limit: how many of the tile's keys row g of this warp sees, if it sees
 * those from `first` on. */
template <int D>
static __device__ __forceinline__ void tile_weights(flash_state<D> &s, float (&c)[8][4],
                                                    float scale, int first, int limit)
{
    int l = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = s.top[r];
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float &x = c[i][2 * r + k];
                int at = 8 * i + 2 * l + k - 8 * r;
                x = at < limit && at >= first ? x * scale : -INFINITY;
                top = fmaxf(top, x);
            }
        top = quad_max(top);
        float from =
            top == -INFINITY ? 0 : top; /* no key was seen yet, or the row is past the end */
        float shrink = exp_2(s.top[r] - from), sum = 0;
        s.top[r] = top;
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float &x = c[i][2 * r + k];
                x = exp_2(x - from);
                sum += x;
            }
        s.mass[r] = s.mass[r] * shrink + sum;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            s.o[i][2 * r] *= shrink;
            s.o[i][2 * r + 1] *= shrink;
        }
    }
}

/* Multiplies the columns of scores or weights by the rows' scales. */
static __device__ __forceinline__ void tile_times(float (&c)[8][4], const float *scale)
{
    int l = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float by = scale[8 * i + 2 * l + k];
            c[i][k] *= by;
            c[i][2 + k] *= by;
        }
}

/* Rows r0 and r0 + 8 of the batch (this lane's part); there: how many rows from r0 exist. */
template <int D>
static __device__ __forceinline__ void tile_finish(const flash_args &a, flash_state<D> &s,
                                                   int64_t r0, int there, int head)
{
    int l = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float mass = quad_sum(s.mass[r]);
        if (8 * r >= there)
            continue;
        float share = 1 / mass;
        uint16_t *out = row_of<uint16_t>(a.out, r0 + 8 * r) + head * D + 2 * l;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            *reinterpret_cast<uint32_t *>(out + 8 * i) =
                pack(s.o[i][2 * r] * share, s.o[i][2 * r + 1] * share);
        if (a.lse && l == 0)
            a.lse[(r0 + 8 * r) * a.heads.heads + head] = s.top[r] * 0.69314718f + logf(mass);
    }
}

template <int D, class E>
static __device__ __forceinline__ page_rows<E> source_of(const flash_args &a, int seg, int head,
                                                         const page_rows<E> *)
{
    return pages_for<E>(a, seg, head, D);
}

template <int D, class E>
static __device__ __forceinline__ packed_rows<E> source_of(const flash_args &a, int seg, int head,
                                                           const packed_rows<E> *)
{
    int row0 = a.qkv.rows - a.out.rows + a.segs.row0[seg] - a.segs.pos0[seg];
    return rows_for<E>(a.qkv, a.heads, row0, head, D);
}

/* Begins to bring the keys and values of positions p0 .. p0+there-1 to tiles `into`, or their codes;
 * *ret_scale is then the scale that this thread stores with the tiles. */
template <int D, class S>
static __device__ __forceinline__ void tiles_fetch(flash_memory<D, S> &m, const S &source, int p0,
                                                   int there, int into, float *ret_scale)
{
    auto key = [&](int r) { return source.k(p0 + r); };
    auto value = [&](int r) { return source.v(p0 + r); };
    if constexpr (S::CODES) {
        tile_fetch<D, FLASH_TILE>(shared_at(m.code[0]), there, key);
        tile_fetch<D, FLASH_TILE>(shared_at(m.code[1]), there, value);
        int r = threadIdx.x % FLASH_TILE;
        const float *from = threadIdx.x / FLASH_TILE ? source.value_scale : source.key_scale;
        *ret_scale = r < there ? from[source.at(p0 + r)] : 0;
    } else {
        tile_fetch<D, FLASH_TILE>(shared_at(m.k[into]), there, key);
        tile_fetch<D, FLASH_TILE>(shared_at(m.v[into]), there, value);
    }
    copy_commit();
}

template <int D, class S>
static __global__ void __launch_bounds__(FLASH_THREADS, 2) flash(flash_args a)
{
    HZP_SHARED_DYNAMIC(unsigned char, room);
    flash_memory<D, S> &m = *reinterpret_cast<flash_memory<D, S> *>(room);
    int seg = blockIdx.x / a.tiles, tile = a.tiles - 1 - blockIdx.x % a.tiles, head = blockIdx.y;
    int row0 = a.segs.row0[seg], rows = a.segs.row0[seg + 1] - row0, first = tile * FLASH_TILE;
    if (first >= rows)
        return;
    int there = min(rows - first, (int)FLASH_TILE), pos = a.segs.pos0[seg] + first,
        keys = pos + there;
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    S source = source_of<D>(a, seg, head, (const S *)nullptr);
    constexpr uint32_t BYTES = FLASH_TILE * D * 2;
    uint32_t q_tile = shared_at(m.q);
    uint32_t k_tile = shared_at(m.k[0]);
    uint32_t v_tile = shared_at(m.v[0]);
    const uint16_t *q = row_of<uint16_t>(a.qkv, a.qkv.rows - a.out.rows + row0 + first) + head * D;
    tile_fetch<D, FLASH_TILE>(q_tile, there, [&](int r) { return q + (int64_t)r * a.qkv.stride; });
    int begin = first_seen(a.window, pos) / FLASH_TILE * FLASH_TILE;
    float scale = 0;
    tiles_fetch<D, S>(m, source, begin, keys - begin, 0, &scale);

    flash_state<D> s;
    /* a sink is a key that was seen, with a value of 0; four lanes have quarters of its weight */
    s.top[0] = s.top[1] = sink_of(a.sink, head) * 1.44269504f;
    s.mass[0] = s.mass[1] = a.sink.ptr ? 0.25f : 0;
#pragma unroll
    for (int i = 0; i < D / 8; i++)
        s.o[i][0] = s.o[i][1] = s.o[i][2] = s.o[i][3] = 0;
    for (int p0 = begin, turn = 0; p0 < keys; p0 += FLASH_TILE, turn ^= 1) {
        if constexpr (S::CODES) {
            copy_wait<0>();
            __syncthreads(); /* all codes are there, and all warps have read the tiles */
            tile_widen<D, FLASH_TILE>(m.k[0], m.code[0]);
            tile_widen<D, FLASH_TILE>(m.v[0], m.code[1]);
            m.scale[threadIdx.x / FLASH_TILE][threadIdx.x % FLASH_TILE] = scale;
            __syncthreads();
            turn = 0;
        }
        if (p0 + FLASH_TILE < keys)
            tiles_fetch<D, S>(m, source, p0 + FLASH_TILE, keys - p0 - FLASH_TILE, turn ^ 1, &scale);
        else
            copy_commit(); /* an empty group keeps the count of the wait below the same */
        if constexpr (!S::CODES) {
            copy_wait<1>();
            __syncthreads();
        }
        if (p0 == begin)
#pragma unroll
            for (int k = 0; k < D / 16; k++)
                load_a<D>(s.q[k], q_tile, 16 * warp, k);
        float c[8][4];
        tile_scores<D>(s, k_tile + turn * BYTES, c);
        if constexpr (S::CODES)
            tile_times(c, m.scale[0]);
        int seen = pos + 16 * warp + g + 1 - p0;
        tile_weights<D>(s, c, a.scale, a.window > 0 ? seen - a.window : -8, seen);
        if constexpr (S::CODES)
            tile_times(c, m.scale[1]);
        product_cols<D>(s.o, c, v_tile + turn * BYTES, 0);
        if constexpr (!S::CODES)
            __syncthreads(); /* all warps have read the tile before it is filled again */
    }
    int at = 16 * warp + g;
    tile_finish<D>(a, s, row0 + first + at, there - at, head);
}

template <int D, class S> static int launch(struct hzp_lane *lane, flash_args &a, const char *op)
{
    a.tiles = HZP_DIV_UP(a.segs.rows_max, (int)FLASH_TILE);
    a.scale = (float)((double)a.scale * 1.4426950408889634);
    dim3 grid((unsigned)a.segs.count * (unsigned)a.tiles, (unsigned)a.heads.heads);
    if (grid.x == 0)
        return HZP_OK;
    HZP_TRY(flash_room(lane, flash<D, S>, sizeof(flash_memory<D, S>)));
    start(lane, grid, FLASH_THREADS, sizeof(flash_memory<D, S>), flash<D, S>, a);
    return hzp_cuda_launched(lane, op);
}

static void segs_stage(struct hzp_lane *lane, struct hzp_segs *segs)
{
    size_t count = (size_t)segs->count;
    segs->row0 = (const int32_t *)hzp_cuda_staged(lane, segs->row0, (count + 1) * 4);
    if (count > 0)
        segs->pos0 = (const int32_t *)hzp_cuda_staged(lane, segs->pos0, count * 4);
}

static int own_prefill(struct hzp_lane *lane, const void *args)
{
    struct hzp_attn_paged_args p = *(const struct hzp_attn_paged_args *)args;
    int dim = p.heads.dim;
    hzp_cuda_pages_staged(lane, &p);
    flash_args a = {p.qkv,         p.out,   p.sink,  p.kv,    p.segs,   p.page, p.line,
                    p.page_stride, p.heads, nullptr, p.scale, p.window, 0};
    if (p.kv.type == HZP_E4M3)
        return dim == 64 ? launch<64, page_rows<uint8_t>>(lane, a, "attn_prefill")
                         : launch<128, page_rows<uint8_t>>(lane, a, "attn_prefill");
    return dim == 64 ? launch<64, page_rows<uint16_t>>(lane, a, "attn_prefill")
                     : launch<128, page_rows<uint16_t>>(lane, a, "attn_prefill");
}

extern "C" int hzp_cuda_attn_prefill(struct hzp_lane *lane, const void *args)
{
    struct hzp_attn_paged_args p = *(const struct hzp_attn_paged_args *)args;
    int dim = p.heads.dim;
    if (p.segs.count == 0)
        return HZP_OK;
    if (flash_fits(&p.qkv, dim) && flash_fits(&p.out, dim) && (uintptr_t)p.kv.k % 16 == 0 &&
        (uintptr_t)p.kv.v % 16 == 0 && !p.cap)
        return p.window || p.sink.ptr
                   ? own_prefill(lane, args)
                   : hzp_cudnn_attention(lane, HZP_OP_attn_prefill, args, own_prefill);
    hzp_cuda_pages_staged(lane, &p);
    hzp_device_fallback(lane->dev, HZP_FALLBACK_attention, p.heads.heads, p.heads.kv_heads, dim,
                        "prompts of a type, width, alignment or cap without a kernel");
    return hzp_cuda_attn_paged_plain(lane, &p);
}

static int own_packed(struct hzp_lane *lane, const void *args)
{
    struct hzp_attn_packed_args p = *(const struct hzp_attn_packed_args *)args;
    segs_stage(lane, &p.segs);
    flash_args a = {p.qkv, p.out,   p.sink, {},      p.segs,   nullptr, nullptr,
                    0,     p.heads, p.lse,  p.scale, p.window, 0};
    return p.heads.dim == 64 ? launch<64, packed_rows<uint16_t>>(lane, a, "attn_packed")
                             : launch<128, packed_rows<uint16_t>>(lane, a, "attn_packed");
}

extern "C" int hzp_cuda_attn_packed(struct hzp_lane *lane, const void *args)
{
    struct hzp_attn_packed_args p = *(const struct hzp_attn_packed_args *)args;
    int dim = p.heads.dim;
    if (p.segs.count == 0)
        return HZP_OK;
    if (flash_fits(&p.qkv, dim) && flash_fits(&p.out, dim) && !p.cap)
        return p.window || p.sink.ptr
                   ? own_packed(lane, args)
                   : hzp_cudnn_attention(lane, HZP_OP_attn_packed, args, own_packed);
    segs_stage(lane, &p.segs);
    hzp_device_fallback(lane->dev, HZP_FALLBACK_attention, p.heads.heads, p.heads.kv_heads, dim,
                        "training of a type, width, alignment or cap without a kernel");
    return hzp_cuda_attn_packed_plain(lane, &p);
}
