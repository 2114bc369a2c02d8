/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/decode.cu - attention of one new token per sequence over its pages.
 *
 * It reads keys and values once and computes little, so the layout serves loads of 16 bytes
 * straight into the registers of the tensor cores' fragments: the assignment of a head's elements
 * to the columns of a product is free, as long as both factors use the same.  A work item is one
 * sequence, one kv head (its up to 16 query heads are the rows of the products) and one piece of
 * the context; each warp of a block takes 16 tokens at a time.  The block that ends last merges the
 * pieces.
 *
 * E4M3 pages (CODES) are widened to bf16 in registers, without their scales: scores are multiplied
 * by the keys' scales, weights by the values'.
 *
 * As many blocks are started as are resident at a time (of the SMs of the lane's share), and each
 * takes every so-many-th item of a list.  The list is made on the device, by each block for itself,
 * from the sequences' lengths: what is launched does not depend on them, so one graph serves all
 * contexts.
 *
 * The division into pieces depends only on the sequence's length: other sequences in the batch do
 * not change a bit of the result (except in batches so large that the scratch memory forces longer
 * pieces).
 */
#include "device/cuda/decode.cuh"
#include "device/cuda/tensor.cuh"
#include "device/fallback.h"

enum {
    WARPS = 4,
    STEP = 16,
    SHORT = 128,
    LONG = 512,
    LONG_FROM = 4096,
    RESIDENT = 3,
    RESIDENT_WIDE = 2, /* blocks per SM, by their registers */
    SEQS = 1024        /* sequences of one launch: their list is in shared memory */
};

struct decode_args {
    struct hzp_attn_paged_args a;
    float *part;      /* [pieces of sequences with several][ranks][rows][D + 2] */
    int64_t room;     /* room for these, for one rank */
    int32_t *counter; /* [sequences][ranks] */
    int tiles, ranks; /* groups of 16 query heads per kv head; of all kv heads */
    float scale;      /* includes log2(e): scores are exponents of 2 */
};

/* stretch: a factor on the length of every piece. */
static __host__ __device__ inline int piece_length(int n, int stretch)
{
    return (n > LONG_FROM ? LONG : SHORT) * stretch;
}

/* Where the 16 tokens begin in which the window of a sequence's last row begins. */
static __device__ __forceinline__ int window_from(const struct hzp_attn_paged_args &a, int seq)
{
    return first_seen(a.window, a.segs.pos0[seq]) / STEP * STEP;
}

static __host__ __device__ inline int pieces_of(int n, int stretch)
{
    return HZP_DIV_UP(n, piece_length(n, stretch));
}

/* A warp's state: query rows g and, if TALL, g + 8. */
template <int D, bool TALL> struct state {
    enum { ROWS = TALL ? 2 : 1 };
    uint4 q[D / 32][ROWS];
    float o[D / 8][TALL ? 4 : 2];
    float top[ROWS], mass[ROWS];
};

/* Where block b of 32 elements of a head begins for lane l: it has 8 of them.  With codes, 16
 * neighbours are a load, and the elements of two blocks. */
template <bool CODES> static __device__ __forceinline__ int key_element(int b, int l)
{
    return CODES ? b / 2 * 64 + l * 16 + b % 2 * 8 : b * 32 + l * 8;
}

/* Where the 8 values of block w of 64 begin for column n; likewise. */
template <int D, bool CODES> static __device__ __forceinline__ int value_element(int w, int n)
{
    return CODES && D == 128 ? n * 16 + w * 8 : w * 64 + n * 8;
}

/* sink: the heads' sinks, which the warp then counts as keys that it has seen, with values of 0, in
 * quarters of four lanes; NULL: none. */
template <int D, bool TALL, bool CODES>
static __device__ __forceinline__ void state_begin(state<D, TALL> &s, const uint16_t *q, int rows,
                                                   const uint16_t *sink)
{
    int g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < (TALL ? 2 : 1); i++) {
        s.top[i] = sink && g + 8 * i < rows ? load(sink + g + 8 * i) * 1.44269504f : -INFINITY;
        s.mass[i] = sink ? 0.25f : 0;
#pragma unroll
        for (int b = 0; b < D / 32; b++) {
            const uint16_t *from = q + (g + 8 * i) * D + key_element<CODES>(b, l);
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; k++) /* rows of the batch may have any alignment */
                w[k] = g + 8 * i < rows ? from[2 * k] | (uint32_t)from[2 * k + 1] << 16 : 0;
            s.q[b][i] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int k = 0; k < (TALL ? 4 : 2); k++)
            s.o[i][k] = 0;
}

/* The index of token t of the sequence, in rows of one head: it fits into 32 bits, which saves
 * registers. */
static __device__ __forceinline__ int token_at(const struct hzp_attn_paged_args &a,
                                               const int32_t *page, int kv_head, int t)
{
    int at = t / a.kv.page_rows;
    return (page[at] * a.heads.kv_heads + kv_head) * a.kv.page_rows + t - at * a.kv.page_rows;
}

/* The positions of tokens t0 .. t0+15 in the pages; tokens at `end` or beyond do not count. A lane
 * needs the keys of tokens g and g + 8, and the values of 2l, 2l + 1, 2l + 8, 2l + 9.  WHOLE: all
 * 16 are in one page, so one position determines the others. */
template <bool WHOLE> struct places {
    int first, left; /* WHOLE: position of token t0; number of tokens from it to `end` */
    int k[2], v[4];  /* else: one per token; -1: it does not count */
};

/* Which of the 16 tokens index i of `places` refers to: 0, 1 are keys, 2 .. 5 values. */
static __device__ __forceinline__ int token_of(int i)
{
    int g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
    return i < 2 ? g + 8 * i : 2 * l + i % 2 + (i - 2) / 2 * 8;
}

template <bool WHOLE>
static __device__ __forceinline__ places<WHOLE>
places_find(const struct hzp_attn_paged_args &a, const int32_t *page, int kv_head, int t0, int end)
{
    places<WHOLE> p = {};
    if constexpr (WHOLE) {
        p.first = token_at(a, page, kv_head, t0);
        p.left = end - t0;
    } else {
#pragma unroll
        for (int i = 0; i < 6; i++) {
            int t = t0 + token_of(i);
            int &to = i < 2 ? p.k[i] : p.v[i < 2 ? 0 : i - 2];
            to = t < end ? token_at(a, page, kv_head, t) : -1;
        }
    }
    return p;
}

/* A vector (type V) of the token at index i of `places`, whose rows have D elements, starting at
 * element `at`. */
template <class V, int D, bool WHOLE, class E>
static __device__ __forceinline__ V fetch(const E *base, const places<WHOLE> &p, int i, int at)
{
    int token = i < 2 ? p.k[i] : p.v[i < 2 ? 0 : i - 2], t = token_of(i);
    if (WHOLE ? t >= p.left : token < 0)
        return V{};
    int64_t from = WHOLE ? (int64_t)p.first * D + t * D : (int64_t)token * D;
    return __ldg(reinterpret_cast<const V *>(base + from + at));
}

/* 8 codes as bf16. */
static __device__ __forceinline__ uint4 widen(uint32_t first, uint32_t second)
{
    uint4 v;
    bf16_of_e4m3(first, v.x, v.y);
    bf16_of_e4m3(second, v.z, v.w);
    return v;
}

/* This lane's keys and values of 16 tokens. */
template <int D, bool WHOLE>
static __device__ __forceinline__ void fetch_all(const uint16_t *key, const uint16_t *value,
                                                 const places<WHOLE> &at, uint4 (&k)[D / 32][2],
                                                 uint4 (&v)[D / 64][4])
{
    int g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
#pragma unroll
    for (int b = 0; b < D / 32; b++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            k[b][i] = fetch<uint4, D, WHOLE>(key, at, i, key_element<false>(b, l));
#pragma unroll
    for (int w = 0; w < D / 64; w++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[w][i] = fetch<uint4, D, WHOLE>(value, at, i + 2, value_element<D, false>(w, g));
}

template <int D, bool WHOLE>
static __device__ __forceinline__ void fetch_all(const uint8_t *key, const uint8_t *value,
                                                 const places<WHOLE> &at, uint4 (&k)[D / 32][2],
                                                 uint4 (&v)[D / 64][4])
{
    int g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
#pragma unroll
    for (int b = 0; b < D / 32; b += 2)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 x = fetch<uint4, D, WHOLE>(key, at, i, key_element<true>(b, l));
            k[b][i] = widen(x.x, x.y);
            k[b + 1][i] = widen(x.z, x.w);
        }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (D == 128) {
            uint4 x = fetch<uint4, D, WHOLE>(value, at, i + 2, value_element<D, true>(0, g));
            v[0][i] = widen(x.x, x.y);
            v[D / 64 - 1][i] = widen(x.z, x.w);
        } else {
            uint2 x = fetch<uint2, D, WHOLE>(value, at, i + 2, value_element<D, true>(0, g));
            v[0][i] = widen(x.x, x.y);
        }
    }
}

/* The scales of this lane's four columns of the scores. */
template <bool WHOLE>
static __device__ __forceinline__ void scales_fetch(const float *base, const places<WHOLE> &at,
                                                    float (&ret)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        ret[i] = fetch<float, 1, WHOLE>(base, at, i + 2, 0);
}

template <bool TALL>
static __device__ __forceinline__ void times(float (&c)[2][4], const float (&by)[4])
{
#pragma unroll
    for (int r = 0; r < (TALL ? 2 : 1); r++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[i / 2][2 * r + i % 2] *= by[i];
}

/* Scores of 16 tokens, as exponents of 2: c[block of 8 tokens][as mma's d]. */
template <int D, bool TALL>
static __device__ __forceinline__ void scores(const state<D, TALL> &s, const uint4 (&k)[D / 32][2],
                                              float (&c)[2][4])
{
#pragma unroll
    for (int b = 0; b < D / 32; b++) {
        const uint4 lo = s.q[b][0], hi = TALL ? s.q[b][TALL ? 1 : 0] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mma(c[i], lo.x, hi.x, lo.y, hi.y, k[b][i].x, k[b][i].y);
            mma(c[i], lo.z, hi.z, lo.w, hi.w, k[b][i].z, k[b][i].w);
        }
    }
}

/* Turns scores into weights and rescales the previous sums to the new maximum. */
template <int D, bool TALL>
static __device__ __forceinline__ void weights(state<D, TALL> &s, float (&c)[2][4], float scale,
                                               int t0, int first, int end)
{
    int l = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < (TALL ? 2 : 1); r++) {
        float top = s.top[r];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &x = c[i / 2][2 * r + i % 2];
            int t = t0 + i / 2 * 8 + 2 * l + i % 2;
            x = t < end && t >= first ? x * scale : -INFINITY;
            top = fmaxf(top, x);
        }
        top = quad_max(top);
        float shrink = exp_2(s.top[r] - top), sum = 0;
        s.top[r] = top;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &x = c[i / 2][2 * r + i % 2];
            x = exp_2(x - top);
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

/* o += weights * values; o[8w + j], column n is element j of value_element(w, n). */
template <int D, bool TALL>
static __device__ __forceinline__ void weigh(state<D, TALL> &s, const uint4 (&v)[D / 64][4],
                                             const float (&c)[2][4])
{
    uint32_t a0 = pack(c[0][0], c[0][1]), a2 = pack(c[1][0], c[1][1]), a1 = 0, a3 = 0;
    if (TALL) {
        a1 = pack(c[0][2], c[0][3]);
        a3 = pack(c[1][2], c[1][3]);
    }
#pragma unroll
    for (int w = 0; w < D / 64; w++) {
        const uint32_t first[4] = {v[w][0].x, v[w][0].y, v[w][0].z, v[w][0].w};
        const uint32_t second[4] = {v[w][1].x, v[w][1].y, v[w][1].z, v[w][1].w};
        const uint32_t third[4] = {v[w][2].x, v[w][2].y, v[w][2].z, v[w][2].w};
        const uint32_t fourth[4] = {v[w][3].x, v[w][3].y, v[w][3].z, v[w][3].w};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t take = j % 2 ? 0x7632 : 0x5410;
            uint32_t b0 = __byte_perm(first[j / 2], second[j / 2], take);
            uint32_t b1 = __byte_perm(third[j / 2], fourth[j / 2], take);
            if (TALL) {
                float(&o)[4] = reinterpret_cast<float(&)[4]>(s.o[8 * w + j]);
                mma(o, a0, a1, a2, a3, b0, b1);
            } else {
                float o[4] = {s.o[8 * w + j][0], s.o[8 * w + j][1], 0, 0};
                mma(o, a0, 0, a2, 0, b0, b1);
                s.o[8 * w + j][0] = o[0];
                s.o[8 * w + j][1] = o[1];
            }
        }
    }
}

/* Stores the warp's sums in shared memory: each row's D elements, its maximum and its sum of
 * weights. */
template <int D, bool TALL, bool CODES>
static __device__ __forceinline__ void state_put(const state<D, TALL> &s, float *to)
{
    int g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < (TALL ? 2 : 1); r++) {
        float *row = to + (g + 8 * r) * (D + 2), mass = quad_sum(s.mass[r]);
#pragma unroll
        for (int w = 0; w < D / 64; w++)
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int n = 0; n < 2; n++)
                    row[value_element<D, CODES>(w, 2 * l + n) + j] = s.o[8 * w + j][2 * r + n];
        if (l == 0) {
            row[D] = s.top[r];
            row[D + 1] = mass;
        }
    }
}

/* Merges `count` partial results, which are `apart` floats apart, for element j: returns the sum,
 * and the maximum and the sum of weights of all. */
static __device__ __forceinline__ float merge(const float *part, int count, int64_t apart, int D,
                                              int j, float *ret_top, float *ret_mass)
{
    float top = -INFINITY, mass = 0, sum = 0;
    for (int i = 0; i < count; i++)
        top = fmaxf(top, part[i * apart + D]);
    for (int i = 0; i < count; i++) {
        float share = part[i * apart + D] == -INFINITY ? 0 : exp_2(part[i * apart + D] - top);
        mass += share * part[i * apart + D + 1];
        sum += share * part[i * apart + j];
    }
    *ret_top = top;
    *ret_mass = mass;
    return sum;
}

/* True in the last block to finish among the pieces of its sequence and kv head. */
static __device__ bool ends_last(int32_t *counter, int pieces)
{
    HZP_SHARED(bool, last);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1) == pieces - 1;
        if (last)
            *counter = 0;
    }
    __syncthreads();
    if (last)
        __threadfence();
    return last;
}

/* The list of work: the pieces of all sequences, for each rank (kv head and group of its query
 * heads) in turn. */
struct work {
    int pieces, stretch;
};

/* Makes the list: first[i], the number of pieces before sequence i's; kept[i], of these the ones of
 * sequences with several pieces, whose partial results need memory.  Pieces are lengthened until
 * those fit. */
static __device__ struct work work_list(const struct decode_args &d, int *first, int *kept)
{
    auto length = [&](int i) { return d.a.segs.pos0[i] + 1 - window_from(d.a, i); };
    int count = d.a.segs.count, each = HZP_DIV_UP(count, WARPS * 32);
    int from = min((int)threadIdx.x * each, count), to = min(from + each, count);
    struct work work = {0, 1};
    int2 mine;
    for (;; work.stretch *= 2) {
        mine = make_int2(0, 0);
        for (int i = from; i < to; i++) {
            int pieces = pieces_of(length(i), work.stretch);
            mine.x += pieces;
            mine.y += pieces > 1 ? pieces : 0;
        }
        if (block_sum(mine.y) <= d.room)
            break;
    }
    int2 before = sums_before<WARPS * 32>(mine, &work.pieces);
    for (int i = from; i < to; i++) {
        int pieces = pieces_of(length(i), work.stretch);
        first[i] = before.x;
        kept[i] = before.y;
        before.x += pieces;
        before.y += pieces > 1 ? pieces : 0;
    }
    __syncthreads();
    return work;
}

/* The sequence that piece p belongs to. */
static __device__ __forceinline__ int sequence_of(const int *first, int count, int p)
{
    int low = 0, high = count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (first[middle] <= p)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The type of the pages' elements. */
template <bool CODES> struct element {
    using type = uint16_t;
};
template <> struct element<true> {
    using type = uint8_t;
};

/* One item: a piece of a sequence, for a rank; kept: as in work_list. */
struct item {
    int seq, rank, piece, kept, stretch;
};

template <int D, bool TALL, bool WHOLE, bool CODES>
static __device__ __forceinline__ void attend(const struct decode_args &d, struct item item)
{
    constexpr int ROWS = TALL ? 16 : 8;
    HZP_SHARED(float, sums, [WARPS][ROWS][D + 2]);
    const struct hzp_attn_paged_args &a = d.a;
    int seq = item.seq, kv_head = item.rank / d.tiles, tile = item.rank % d.tiles;
    constexpr bool WINDOWS = !(TALL && D == 128); /* there are no registers left for them */
    int from = WINDOWS ? window_from(a, seq) : 0;
    int seen = WINDOWS && D > 64 ? first_seen(a.window, a.segs.pos0[seq]) : 0;
    int n = a.segs.pos0[seq] + 1 - from, length = piece_length(n, item.stretch);
    int begin = from + item.piece * length, end = min(from + n, begin + length);
    int pieces = HZP_DIV_UP(n, length);
    int group = a.heads.heads / a.heads.kv_heads, rows = min(group - tile * 16, 16);
    int head0 = kv_head * group + tile * 16, warp = threadIdx.x / 32;
    int64_t row = a.segs.row0[seq];
    const int32_t *page = pages_of(a, seq);
    using E = typename element<CODES>::type;

    state<D, TALL> s;
    const uint16_t *sink = (const uint16_t *)a.sink.ptr;
    sink = sink && item.piece == 0 && warp == 0 ? sink + head0 : nullptr;
    state_begin<D, TALL, CODES>(s, row_of<uint16_t>(a.qkv, row) + head0 * D, rows, sink);
    for (int t0 = begin + warp * STEP; t0 < end; t0 += WARPS * STEP) {
        places<WHOLE> at = places_find<WHOLE>(a, page, kv_head, t0, end);
        uint4 k[D / 32][2], v[D / 64][4];
        float k_scale[4], v_scale[4], c[2][4] = {};
        fetch_all<D, WHOLE>((const E *)a.kv.k, (const E *)a.kv.v, at, k, v);
        if constexpr (CODES) {
            scales_fetch<WHOLE>(a.kv.k_scale, at, k_scale);
            scales_fetch<WHOLE>(a.kv.v_scale, at, v_scale);
        }
        scores<D, TALL>(s, k, c);
        if constexpr (CODES)
            times<TALL>(c, k_scale);
        int first = seen; /* with D 64 it is read again each time: no register keeps it */
        if (WINDOWS && D == 64 && a.window > 0)
            first = first_seen(a.window, *(const volatile int32_t *)&a.segs.pos0[seq]);
        weights<D, TALL>(s, c, d.scale, t0, first, end);
        if constexpr (CODES)
            times<TALL>(c, v_scale);
        weigh<D, TALL>(s, v, c);
    }
    state_put<D, TALL, CODES>(s, &sums[warp][0][0]);
    __syncthreads();

    int64_t apart = ROWS * (D + 2);
    float *part = d.part + ((int64_t)item.kept * d.ranks + item.rank * pieces) * apart;
    uint16_t *out = row_of<uint16_t>(a.out, row) + head0 * D;
    for (int i = threadIdx.x; i < rows * D; i += WARPS * 32) {
        int r = i / D, j = i % D;
        float top, mass, sum = merge(&sums[0][r][0], WARPS, apart, D, j, &top, &mass);
        if (pieces == 1) {
            store(out + i, sum / mass);
            continue;
        }
        float *to = part + item.piece * apart + r * (D + 2);
        to[j] = sum;
        if (j == 0) {
            to[D] = top;
            to[D + 1] = mass;
        }
    }
    if (pieces == 1 || !ends_last(d.counter + seq * d.ranks + item.rank, pieces))
        return;
    for (int i = threadIdx.x; i < rows * D; i += WARPS * 32) {
        float top, mass, sum = merge(part + i / D * (D + 2), pieces, apart, D, i % D, &top, &mass);
        store(out + i, sum / mass);
    }
}

template <int D, bool TALL, bool WHOLE, bool CODES>
static __global__ void __launch_bounds__(WARPS * 32) attn_decode(struct decode_args d)
{
    HZP_SHARED_DYNAMIC(int, list);
    wait_for_earlier();
    let_next_begin();
    int count = d.a.segs.count, *first = list, *kept = list + count;
    struct work work = work_list(d, first, kept);
    for (int64_t i = blockIdx.x; i < (int64_t)work.pieces * d.ranks; i += gridDim.x) {
        int rank = (int)(i / work.pieces), p = (int)(i % work.pieces);
        int seq = sequence_of(first, count, p);
        struct item item = {seq, rank, p - first[seq], kept[seq], work.stretch};
        attend<D, TALL, WHOLE, CODES>(d, item);
        __syncthreads(); /* other warps may still read the sums */
    }
}

template <int D, bool TALL, bool WHOLE, bool CODES>
static int launch(struct hzp_lane *lane, const struct decode_args &d)
{
    int64_t most = (int64_t)hzp_cuda_sms(lane) * (TALL && D == 128 ? RESIDENT_WIDE : RESIDENT);
    int whole = pieces_of(d.a.segs.ctx_max, 1);
    int cut = pieces_of(HZP_MIN(d.a.segs.ctx_max, (int)LONG_FROM), 1);
    int64_t items = (int64_t)d.a.segs.count * d.ranks * HZP_MAX(whole, cut);
    start_few(lane, d.a.segs.count, (unsigned)HZP_MAX(HZP_MIN(items, most), (int64_t)1), WARPS * 32,
              2 * (size_t)d.a.segs.count * sizeof(int), attn_decode<D, TALL, WHOLE, CODES>, d);
    return hzp_cuda_launched(lane, "attn_decode");
}

template <int D, bool TALL> static int launch(struct hzp_lane *lane, const struct decode_args &d)
{
    bool whole = d.a.kv.page_rows % STEP == 0;
    if (d.a.kv.type == HZP_E4M3)
        return whole ? launch<D, TALL, true, true>(lane, d) : launch<D, TALL, false, true>(lane, d);
    return whole ? launch<D, TALL, true, false>(lane, d) : launch<D, TALL, false, false>(lane, d);
}

static int launch(struct hzp_lane *lane, const struct decode_args &d)
{
    bool tall = d.a.heads.heads / d.a.heads.kv_heads > 8;
    if (d.a.heads.dim == 64)
        return tall ? launch<64, true>(lane, d) : launch<64, false>(lane, d);
    return tall ? launch<128, true>(lane, d) : launch<128, false>(lane, d);
}

extern "C" int hzp_cuda_attn_decode(struct hzp_lane *lane, const void *args)
{
    struct decode_args d = {*(const struct hzp_attn_paged_args *)args};
    struct hzp_attn_paged_args *a = &d.a;
    if (a->segs.count == 0)
        return HZP_OK;
    hzp_cuda_pages_staged(lane, a);
    int group = a->heads.heads / a->heads.kv_heads, dim = a->heads.dim;
    size_t partial = 16 * ((size_t)dim + 2) * sizeof(float);
    d.tiles = HZP_DIV_UP(group, 16);
    d.ranks = a->heads.kv_heads * d.tiles;
    d.scale = (float)((double)a->scale * 1.4426950408889634);
    d.part = (float *)hzp_cuda_lane(lane)->scratch;
    d.room = (int64_t)(hzp_cuda_lane(lane)->scratch_size / partial) / d.ranks;
    d.counter = hzp_cuda_lane(lane)->counter;
    bool fits = a->qkv.type == HZP_BF16 && (dim == 64 || dim == 128) &&
                (uintptr_t)a->kv.k % 16 == 0 && (uintptr_t)a->kv.v % 16 == 0 &&
                (int64_t)a->kv.pages * a->kv.page_rows * a->heads.kv_heads <= INT32_MAX &&
                d.ranks <= HZP_CUDA_COUNTERS / SEQS && !a->cap &&
                !(a->window && dim == 128 && group > 8);
    if (!fits) {
        hzp_device_fallback(lane->dev, HZP_FALLBACK_attention, a->heads.heads, a->heads.kv_heads,
                            dim, "decode of a type, width, alignment or cap without a kernel");
        return hzp_cuda_attn_paged_plain(lane, a);
    }
    const char *slow = NULL;
    bool bulk = !a->window && !a->sink.ptr; /* the copy engine's kernel knows neither */
    if (bulk && hzp_cuda_decode_bulk_fits(lane, a)) {
        int r = hzp_cuda_decode_bulk(lane, a);
        if (r != HZP_EUNSUP)
            return r;
        slow = "the driver describes no pages to the copy engine";
    } else if (bulk && hzp_cuda_device(lane)->bulk) {
        slow = "the copy engine takes pages of a multiple of 16 rows, and aligned scales and rows";
    }
    if (slow)
        hzp_device_fallback(lane->dev, HZP_FALLBACK_attention, a->heads.heads, a->heads.kv_heads,
                            dim, slow);
    const struct hzp_attn_paged_args all = *a;
    for (int32_t from = 0; from < all.segs.count; from += SEQS) {
        *a = decode_part(all, from, SEQS);
        HZP_TRY(launch(lane, d));
    }
    return HZP_OK;
}
