/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/decode_bulk.cu - attention of one new token per sequence over its pages, whose keys and
 * values the tensor copy engine fetches.  From sm_90 on, for pages of a multiple of 16 tokens;
 * decode.cu does everything else.
 *
 * Each warp works alone.  It has a ring of slots in shared memory, one slot for the keys or the
 * values of 32 tokens of one head; its first lane has them filled SLOTS - 1 ahead, also across work
 * items, and an mbarrier per slot says when they are there.  Every use of a slot begins with a
 * barrier of the warp, so the slot used before is free then and is filled again.  Tokens are the
 * rows of the tensor cores' left operand and the query heads its columns, so up to 8 heads of a
 * group (16 if TALL) waste nothing of it.
 *
 * A work item is a piece of one sequence's context for one rank: a kv head and up to 16 of its
 * query heads.  The pieces of all sequences, rank after rank, are a line of tiles of 32 tokens; the
 * line is cut into equal shares, one a warp, and a warp does the items that begin in its share.
 * Each block makes the list of pieces for itself from the sequences' lengths, as in decode.cu: what
 * is launched does not depend on them.  A second kernel merges the pieces of those sequences that
 * have several.
 *
 * The division into pieces depends only on the sequence's length: other sequences in the batch do
 * not change a bit of the result (except in batches so large that the scratch memory forces longer
 * pieces).
 *
 * Scores are exponents of 2 relative to a reference that moves only when a score exceeds it by 8:
 * sums in F32 carry that, and most tiles rescale nothing.
 *
 * E4M3 pages (CODES) are widened in registers, without their scales: scores are multiplied by the
 * keys' scales, weights by the values'.  Keys become F16, which takes one instruction for two codes
 * in place of four; so each query head is scaled by a power of 2 to the middle of F16's range, which
 * changes no element above 2^-28 of its largest.  Values become bf16, as the weights are.
 */
#include "device/cuda/decode.cuh"
#include "device/cuda/tensor.cuh"
#include "device/fallback.h"

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    TILE = 32,    /* tokens */
    RUN = 512,    /* tokens whose pages a warp knows: a group of 16 a lane */
    RING = 24576, /* bytes of a warp's slots */
    ALIGN = 1024, /* a slot's */
    PIECE = 128,  /* tokens at least; a sequence has PIECES at most */
    PIECES = 128,
    SEQS = 1024,       /* sequences of one launch: their list is in shared memory */
    MARGIN = 4,        /* floats behind the elements of a partial result */
    MERGE_WARPS = 4,   /* in a merging block */
    MERGE_BLOCKS = 16, /* per SM at most */
    REACH = 8          /* scores may exceed the reference by this, as exponents of 2 */
};

struct bulk_args {
    struct row_map keys, values;
    struct hzp_attn_paged_args a;
    int32_t *plan; /* [SEQS + 1]: pieces kept before each sequence's; the factor on their length */
    float *part;   /* [pieces of sequences with several][ranks][rows][D + MARGIN] */
    int64_t room;  /* room for these, for one rank */
    int tiles;     /* groups of 16 query heads per kv head */
    int ranks, rows;       /* groups of all kv heads; query heads of a group at most */
    uint32_t boxes, magic; /* boxes of a page; x / boxes = x magic / 2^32 if boxes > 1 */
    float scale;           /* includes log2(e) */
};

/* How shared memory holds keys or values. */
template <int D, bool CODES> struct shape {
    enum {
        ROW = CODES ? D : 2 * D,      /* bytes of a head's row */
        WIDE = ROW > 128 ? 128 : ROW, /* elements at once, one after the other */
        BOX = BOX_ROWS * ROW,         /* bytes of a copy */
        SLOT = TILE / BOX_ROWS * BOX,
        SLOTS = RING / SLOT,
        SCALES = CODES ? TILE * 4 : 0,    /* bytes of a slot's scales */
        LOADS = ROW / 32,                 /* loads of four matrices for a box */
        BARS = WARPS * RING,              /* where the barriers begin, */
        SCALE = BARS + WARPS * SLOTS * 8, /* the scales, */
        LIST = (SCALE + WARPS * SLOTS * SCALES + 127) / 128 * 128 /* and the list */
    };
};

/* stretch: a factor on the length of every piece. */
static __host__ __device__ inline int piece_length(int n, int stretch)
{
    int length = PIECE;
    while (length * PIECES < n)
        length *= 2;
    return length * stretch;
}

/* ---- work ---- */

/* For each sequence: its length, the tiles before its first, the kept pieces before its first (of
 * sequences with several pieces: those whose results need memory). */
struct list {
    int *length, *before, *kept;
    int count, tiles, stretch; /* tiles: of all sequences */
};

static __device__ struct list list_make(const struct bulk_args &d, int *room)
{
    const int32_t *pos0 = d.a.segs.pos0;
    int count = d.a.segs.count, each = HZP_DIV_UP(count, (int)THREADS);
    int from = min((int)threadIdx.x * each, count), to = min(from + each, count);
    struct list w = {room, room + count, room + 2 * count, count, 0, 1};
    int2 mine;
    for (;; w.stretch *= 2) {
        mine = make_int2(0, 0);
        for (int i = from; i < to; i++) {
            int n = pos0[i] + 1, pieces = HZP_DIV_UP(n, piece_length(n, w.stretch));
            mine.x += HZP_DIV_UP(n, (int)TILE);
            mine.y += pieces > 1 ? pieces : 0;
        }
        if (block_sum(mine.y) <= d.room)
            break;
    }
    int2 before = sums_before<THREADS>(mine, &w.tiles);
    for (int i = from; i < to; i++) {
        int n = pos0[i] + 1, pieces = HZP_DIV_UP(n, piece_length(n, w.stretch));
        w.length[i] = n;
        w.before[i] = before.x;
        w.kept[i] = before.y;
        if (blockIdx.x == 0)
            d.plan[i] = before.y;
        before.x += HZP_DIV_UP(n, (int)TILE);
        before.y += pieces > 1 ? pieces : 0;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        d.plan[SEQS] = w.stretch;
    __syncthreads();
    return w;
}

/* A piece, and a run of its tokens: at most RUN of them. */
struct item {
    int rank, seq, length; /* the sequence's */
    int begin, end;        /* the piece's */
    int from, to;          /* the run's */
};

static __device__ __forceinline__ struct item item_at(const struct list &w, int rank, int seq,
                                                      int begin)
{
    int n = w.length[seq], end = min(n, begin + piece_length(n, w.stretch));
    return {rank, seq, n, begin, end, begin, min(end, begin + RUN)};
}

static __device__ __forceinline__ struct item item_after(const struct list &w, const struct item &i)
{
    if (i.end < i.length)
        return item_at(w, i.rank, i.seq, i.end);
    bool last = i.seq + 1 == w.count;
    return item_at(w, i.rank + last, last ? 0 : i.seq + 1, 0);
}

static __device__ __forceinline__ struct item run_after(const struct list &w, struct item i)
{
    if (i.to == i.end)
        return item_after(w, i);
    i.from = i.to;
    i.to = min(i.end, i.from + RUN);
    return i;
}

/* The place of an item's first tile in the line of all. */
static __device__ __forceinline__ int tile_of(const struct list &w, const struct item &i)
{
    return i.rank * w.tiles + w.before[i.seq] + i.begin / TILE;
}

/* The first item that begins at this tile of the line or behind it. */
static __device__ struct item item_from(const struct list &w, int tile)
{
    int rank = tile / w.tiles, rest = tile % w.tiles, low = 0, high = w.count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (w.before[middle] <= rest)
            low = middle;
        else
            high = middle - 1;
    }
    int n = w.length[low], length = piece_length(n, w.stretch);
    int begin = HZP_DIV_UP((rest - w.before[low]) * TILE, length) * length;
    if (begin >= n)
        return item_after(w, item_at(w, rank, low, (n - 1) / length * length));
    return item_at(w, rank, low, begin);
}

/* ---- fetching ---- */

/* Fetches the tiles of a warp's items, in turn keys and values, each into the slot after the last.
 * Lane l knows the row of the run's tokens 16l .. 16l+15 in the pages. */
template <int D, bool CODES> struct fetcher {
    using S = shape<D, CODES>;
    const struct bulk_args &d;
    const struct list &w;
    uint32_t ring, bars, scales; /* the warp's, as shared addresses */
    int stop;                    /* the line's tile at which the warp's share ends */
    struct item run, next;       /* next: its pages are being loaded */
    bool some, more;             /* whether there is such a run */
    int row, page, inside;       /* next's page and the box within it */
    int token, first, second;    /* the tile to fetch, and the rows of its boxes */
    int put;

    __device__ __forceinline__ fetcher(const struct bulk_args &d, const struct list &w,
                                       uint32_t base, const struct item &begin, int stop)
        : d(d), w(w), stop(stop)
    {
        int warp = threadIdx.x / 32;
        ring = base + warp * RING;
        bars = base + S::BARS + warp * S::SLOTS * 8;
        scales = base + S::SCALE + warp * S::SLOTS * S::SCALES;
        put = first = second = 0;
        next = begin;
        more = tile_of(w, begin) < stop;
        load_pages();
        turn();
    }

    __device__ __forceinline__ void load_pages()
    {
        int t = next.from + threadIdx.x % 32 * BOX_ROWS, box = t / BOX_ROWS;
        int at = d.boxes == 1 ? box : (int)__umulhi((uint32_t)box, d.magic);
        inside = box - at * (int)d.boxes;
        page = more && t < next.to ? pages_of(d.a, next.seq)[at] : 0;
    }

    /* Begins the next run, and to load the pages of the one after it. */
    __device__ __forceinline__ void turn()
    {
        run = next;
        some = more;
        token = run.from;
        if (!some)
            return;
        row = ((page * d.a.heads.kv_heads + run.rank / d.tiles) * (int)d.boxes + inside) * BOX_ROWS;
        next = run_after(w, run);
        more = tile_of(w, next) < stop;
        load_pages();
    }

    __device__ __forceinline__ void fetch(const struct row_map *map, const float *scale)
    {
        if (threadIdx.x % 32 == 0) {
            uint32_t slot = ring + put * S::SLOT, bar = bars + put * 8;
            barrier_expect(bar, S::SLOT + S::SCALES);
            copy_rows(slot, bar, map, first);
            copy_rows(slot + S::BOX, bar, map, second);
            if constexpr (CODES) {
                uint32_t to = scales + put * S::SCALES;
                copy_bytes(to, bar, scale + first, S::SCALES / 2);
                copy_bytes(to + S::SCALES / 2, bar, scale + second, S::SCALES / 2);
            }
        }
    }

    __device__ __forceinline__ void keys()
    {
        if (some && token >= run.to)
            turn();
        if (some) {
            int box = (token - run.from) / BOX_ROWS;
            first = __shfl_sync(~0u, row, box);
            /* a tile of 16 tokens or fewer has its box twice */
            second = __shfl_sync(~0u, row, box + (token + BOX_ROWS < run.to));
            fetch(&d.keys, d.a.kv.k_scale);
        }
        put = put + 1 == S::SLOTS ? 0 : put + 1;
    }

    __device__ __forceinline__ void values()
    {
        if (some) {
            fetch(&d.values, d.a.kv.v_scale);
            token += TILE;
        }
        put = put + 1 == S::SLOTS ? 0 : put + 1;
    }
};

/* ---- arithmetic ---- */

/* A warp's state: query heads 8n + g as columns, g = lane / 4; of o, the sums of 16 elements a
 * block as rows, the columns are 8n + 2 (lane % 4) and the next. */
template <int D, bool TALL> struct state {
    enum { N = TALL ? 2 : 1 };
    uint32_t q[N][D / 16][2];
    float o[N][D / 16][4];
    float scale[N][2]; /* from scores to exponents of 2 */
    float top[N][2];   /* the reference, not scaled */
    float mass[N][2];
};

/* Scales a query head, of which four lanes hold a part each, to F16; returns what undoes it. */
template <int COUNT> static __device__ __forceinline__ float to_half(uint32_t (&q)[COUNT][2])
{
    float top = 0, pair[2];
#pragma unroll
    for (int i = 0; i < 2 * COUNT; i++) {
        unpack(q[i / 2][i % 2], pair);
        top = fmaxf(top, fmaxf(fabsf(pair[0]), fabsf(pair[1])));
    }
    /* 2^e <= top < 2^(e + 1); the factor is 2^(13 - e), for e from -100 to 127 */
    int e = min(max((int)(__float_as_uint(quad_max(top)) >> 23) - 127, -100), 127);
    float factor = __uint_as_float((uint32_t)(127 + 13 - e) << 23);
#pragma unroll
    for (int i = 0; i < 2 * COUNT; i++) {
        unpack(q[i / 2][i % 2], pair);
        q[i / 2][i % 2] = half_pair(pair[0] * factor, pair[1] * factor);
    }
    return __uint_as_float((uint32_t)(127 - 13 + e) << 23);
}

/* Which element of 16 the lane's fragment pairs begin with: of bf16 2l and 2l + 8, of codes, four
 * of which a register holds, 4l and 4l + 2. */
template <int D, bool TALL, bool CODES>
static __device__ __forceinline__ void state_begin(state<D, TALL> &s, const uint16_t *q, int rows,
                                                   float scale)
{
    int g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < state<D, TALL>::N; n++) {
        const uint16_t *from = q + (8 * n + g) * D + (CODES ? 4 : 2) * l;
        float back = 1;
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                s.q[n][i][h] = 0;
                if (8 * n + g < rows)
                    s.q[n][i][h] = __ldg(
                        reinterpret_cast<const uint32_t *>(from + 16 * i + h * (CODES ? 2 : 8)));
            }
        if constexpr (CODES)
            back = to_half(s.q[n]);
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s.o[n][i][k] = 0;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            s.scale[n][j] = scale;
            if constexpr (CODES) /* the column's head's scale */
                s.scale[n][j] *= __shfl_sync(~0u, back, (2 * l + j) * 4);
            s.top[n][j] = -INFINITY;
            s.mass[n][j] = 0;
        }
    }
}

/* The address of four matrices of a box: for load i of `first`, see load_at. */
template <int WIDE> static __device__ __forceinline__ uint32_t first_at(uint32_t slot, int r, int c)
{
    int turn = WIDE == 128 ? r % 8 : r / 2 % 4;
    return slot + r * WIDE + ((c ^ turn) << 4);
}

template <int WIDE> static __device__ __forceinline__ uint32_t load_at(uint32_t first, int i)
{
    return (first ^ i % (WIDE / 32) << 5) + i / (WIDE / 32) * (BOX_ROWS * WIDE);
}

/* Scores of 32 tokens: c[n][block of 16 tokens][as mma's d], rows are tokens. */
template <int D, bool TALL, bool CODES>
static __device__ __forceinline__ void scores(const state<D, TALL> &s, uint32_t slot,
                                              float (&c)[TALL ? 2 : 1][2][4])
{
    using S = shape<D, CODES>;
    constexpr int N = state<D, TALL>::N,
                  CHAINS = TALL || D == 64 ? 1 : 2; /* short chains of dependent products */
    float sum[CHAINS][N][2][4] = {};
    int lane = threadIdx.x % 32;
    uint32_t first = first_at<S::WIDE>(slot, lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < S::LOADS; i++)
#pragma unroll
        for (int b = 0; b < 2; b++) {
            uint32_t k[4], a[2][4];
            load_matrices(k, load_at<S::WIDE>(first, i) + b * S::BOX);
            if constexpr (CODES) {
#pragma unroll
                for (int h = 0; h < 4; h++)
                    half_of_e4m3(k[h], a[h / 2][h % 2], a[h / 2][h % 2 + 2]);
            }
#pragma unroll
            for (int h = 0; h < (CODES ? 2 : 1); h++)
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const int j = CODES ? 2 * i + h : i;
                    float(&to)[4] = sum[j % CHAINS][n][b];
                    const uint32_t(&q)[2] = s.q[n][j];
                    if constexpr (CODES)
                        mma_half(to, a[h][0], a[h][1], a[h][2], a[h][3], q[0], q[1]);
                    else
                        mma(to, k[0], k[1], k[2], k[3], q[0], q[1]);
                }
        }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            c[n][i / 4][i % 4] = CHAINS == 2
                                     ? sum[0][n][i / 4][i % 4] + sum[CHAINS - 1][n][i / 4][i % 4]
                                     : sum[0][n][i / 4][i % 4];
}

/* Multiplies by the tokens' scales; tokens from `left` on have none. */
template <int N>
static __device__ __forceinline__ void times(float (&c)[N][2][4], const float *scale, int left)
{
    int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int token = 8 * i + g;
        float by = token < left ? scale[token] : 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            c[n][i / 2][i % 2 * 2] *= by;
            c[n][i / 2][i % 2 * 2 + 1] *= by;
        }
    }
}

static __device__ __forceinline__ float rows_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

/* Moves the references to the maximum, and rescales the sums. */
template <int D, bool TALL>
static __device__ __forceinline__ void rescale(state<D, TALL> &s,
                                               const float (&top)[TALL ? 2 : 1][2])
{
#pragma unroll
    for (int n = 0; n < state<D, TALL>::N; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float next = fmaxf(s.top[n][j], rows_max(top[n][j]));
            float shrink = exp_2((s.top[n][j] - next) * s.scale[n][j]);
            s.top[n][j] = next;
            s.mass[n][j] *= shrink;
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                s.o[n][i][j] *= shrink;
                s.o[n][i][j + 2] *= shrink;
            }
        }
}

/* Turns scores into weights; tokens from `left` on have none. */
template <int D, bool TALL>
static __device__ __forceinline__ void weights(state<D, TALL> &s, float (&c)[TALL ? 2 : 1][2][4],
                                               int left)
{
    constexpr int N = state<D, TALL>::N;
    float top[N][2];
    bool exceeds = false;
    if (left < TILE) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                if ((int)threadIdx.x % 32 / 4 + i / 2 * 8 >= left)
                    c[n][i / 4][i % 4] = -INFINITY;
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            top[n][j] = fmaxf(fmaxf(c[n][0][j], c[n][0][j + 2]), fmaxf(c[n][1][j], c[n][1][j + 2]));
            exceeds |= (top[n][j] - s.top[n][j]) * s.scale[n][j] > REACH;
        }
    if (__any_sync(~0u, exceeds))
        rescale<D, TALL>(s, top);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float scale = s.scale[n][j], less = s.top[n][j] * scale, sum = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = c[n][i / 2][i % 2 * 2 + j];
                x = exp_2(fmaf(x, scale, -less));
                sum += x;
            }
            s.mass[n][j] += sum;
        }
}

/* Values from token `left` on as zeros: what follows a sequence in its page may be a NaN. */
template <int ROW, int WIDE> static __device__ void clear(unsigned char *slot, int left)
{
    for (int r = left; r < TILE; r++)
        for (int i = threadIdx.x % 32 * 4; i < ROW; i += 128)
            *reinterpret_cast<uint32_t *>(slot + r / BOX_ROWS * (BOX_ROWS * ROW) +
                                          i / WIDE * (BOX_ROWS * WIDE) + r % BOX_ROWS * WIDE +
                                          i % WIDE) = 0;
    bulk_fence();
    __syncwarp();
}

/* o += weights * values; rows are elements 16i .. of the head: of bf16 g and g + 8, of codes 2g and
 * 2g + 1. */
template <int D, bool TALL, bool CODES>
static __device__ __forceinline__ void weigh(state<D, TALL> &s, uint32_t slot,
                                             const float (&c)[TALL ? 2 : 1][2][4])
{
    using S = shape<D, CODES>;
    constexpr int N = state<D, TALL>::N;
    uint32_t p[N][2][2];
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[n][i / 2][i % 2] =
                transpose(pack(c[n][i / 2][i % 2 * 2], c[n][i / 2][i % 2 * 2 + 1]));
    uint32_t first = CODES ? first_at<S::WIDE>(slot, lane % 16, lane / 16)
                           : first_at<S::WIDE>(slot, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
        for (int i = 0; i < S::LOADS; i++) {
            uint32_t v[4], a[2][4];
            load_transposed(v, load_at<S::WIDE>(first, i) + b * S::BOX);
            if constexpr (CODES) {
#pragma unroll
                for (int h = 0; h < 4; h++)
                    bf16_of_e4m3_turns(v[h], a[h / 2][h % 2 * 2], a[h / 2][h % 2 * 2 + 1]);
            }
#pragma unroll
            for (int h = 0; h < (CODES ? 2 : 1); h++)
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const uint32_t(&x)[4] = CODES ? a[h] : v;
                    mma(s.o[n][CODES ? 2 * i + h : i], x[0], x[1], x[2], x[3], p[n][b][0],
                        p[n][b][1]);
                }
        }
}

/* Stores the outputs, or the partial results of a piece. */
template <int D, bool TALL, bool CODES>
static __device__ __forceinline__ void finish(const struct bulk_args &d, const struct list &w,
                                              const struct item &item, const state<D, TALL> &s)
{
    constexpr int PITCH = D + MARGIN;
    int g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
    int group = d.a.heads.heads / d.a.heads.kv_heads, tile = item.rank % d.tiles;
    int head0 = item.rank / d.tiles * group + tile * 16, rows = min(group - tile * 16, 16);
    int length = piece_length(item.length, w.stretch), pieces = HZP_DIV_UP(item.length, length);
    int64_t at = (int64_t)w.kept[item.seq] * d.ranks + item.rank * pieces + item.begin / length;
#pragma unroll
    for (int n = 0; n < state<D, TALL>::N; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int head = 8 * n + 2 * l + j;
            float mass = s.mass[n][j];
#pragma unroll
            for (int m = 4; m < 32; m *= 2)
                mass += __shfl_xor_sync(~0u, mass, m);
            if (head >= rows)
                continue;
            uint16_t *out = row_of<uint16_t>(d.a.out, d.a.segs.row0[item.seq]) + (head0 + head) * D;
            float *part = d.part + (at * d.rows + head) * PITCH;
            float share = 1 / mass;
#pragma unroll
            for (int i = 0; i < D / 16; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int e = 16 * i + (CODES ? 2 * g + h : g + 8 * h);
                    if (pieces == 1)
                        store(out + e, s.o[n][i][j + 2 * h] * share);
                    else
                        part[e] = s.o[n][i][j + 2 * h];
                }
            if (pieces > 1 && g == 0) {
                part[D] = s.top[n][j] * s.scale[n][j];
                part[D + 1] = mass;
            }
        }
}

/* ---- the kernels ---- */

template <int D, bool TALL, bool CODES>
static __device__ __forceinline__ void attend(const struct bulk_args &d, const struct list &w,
                                              unsigned char *room, uint32_t base)
{
    using S = shape<D, CODES>;
    int warp = threadIdx.x / 32;
    int64_t all = (int64_t)w.tiles * d.ranks, workers = (int64_t)gridDim.x * WARPS;
    int64_t worker = (int64_t)blockIdx.x * WARPS + warp;
    int begin = (int)(all * worker / workers), stop = (int)(all * (worker + 1) / workers);
    if (begin >= stop)
        return;
    struct item item = item_from(w, begin);
    if (tile_of(w, item) >= stop)
        return;
    fetcher<D, CODES> f(d, w, base, item, stop);
#pragma unroll
    for (int i = 0; i < S::SLOTS - 1; i++)
        if (i % 2)
            f.values();
        else
            f.keys();

    const float *scales = reinterpret_cast<const float *>(room + S::SCALE) + warp * S::SLOTS * TILE;
    int group = d.a.heads.heads / d.a.heads.kv_heads, get = 0;
    uint32_t parity = 0;
    auto turn = [&]() {
        if (++get == S::SLOTS) {
            get = 0;
            parity ^= 1;
        }
    };
    auto await = [&]() {
        barrier_wait(f.bars + get * 8, parity);
        __syncwarp(); /* the slot used before is free */
    };
    for (; tile_of(w, item) < stop; item = item_after(w, item)) {
        state<D, TALL> s;
        int tile = item.rank % d.tiles * 16, head0 = item.rank / d.tiles * group + tile;
        state_begin<D, TALL, CODES>(s,
                                    row_of<uint16_t>(d.a.qkv, d.a.segs.row0[item.seq]) + head0 * D,
                                    min(group - tile, 16), d.scale);
        for (int left = item.end - item.begin; left > 0; left -= TILE) {
            float c[TALL ? 2 : 1][2][4];
            await();
            if (S::SLOTS % 2)
                f.keys();
            else
                f.values();
            scores<D, TALL, CODES>(s, f.ring + get * S::SLOT, c);
            if constexpr (CODES)
                times(c, scales + get * TILE, left);
            weights<D, TALL>(s, c, left);
            turn();
            await();
            if (S::SLOTS % 2)
                f.values();
            else
                f.keys();
            if constexpr (CODES) {
                times(c, scales + get * TILE, left);
            } else if (left < TILE) {
                clear<S::ROW, S::WIDE>(room + warp * RING + get * S::SLOT, left);
            }
            weigh<D, TALL, CODES>(s, f.ring + get * S::SLOT, c);
            turn();
        }
        finish<D, TALL, CODES>(d, w, item, s);
    }
}

template <int D, bool TALL, bool CODES>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_decode_bulk(const __grid_constant__ struct bulk_args d)
{
    if (!has_bulk())
        return;
    using S = shape<D, CODES>;
    HZP_SHARED_DYNAMIC(unsigned char, space);
    unsigned char *room = space + (ALIGN - shared_at(space) % ALIGN) % ALIGN;
    uint32_t base = shared_at(room), bars = base + S::BARS + threadIdx.x / 32 * S::SLOTS * 8;
    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < S::SLOTS; i++)
            barrier_make(bars + i * 8, 1);
        bulk_fence();
    }
    wait_for_earlier(), let_next_begin();
    struct list w = list_make(d, reinterpret_cast<int *>(room + S::LIST));
    attend<D, TALL, CODES>(d, w, room, base);
}

/* Merges the pieces of sequences that have several; a warp for each of their query heads. */
template <int D>
static __global__ void attn_decode_merge(const __grid_constant__ struct bulk_args d)
{
    constexpr int PITCH = D + MARGIN, E = D / 32; /* elements of a lane */
    wait_for_earlier();
    let_next_begin();
    const struct hzp_attn_paged_args &a = d.a;
    int lane = threadIdx.x % 32, group = a.heads.heads / a.heads.kv_heads;
    int warps = gridDim.x * MERGE_WARPS, stretch = d.plan[SEQS];
    int64_t apart = (int64_t)d.rows * PITCH;
    for (int i = blockIdx.x * MERGE_WARPS + threadIdx.x / 32; i < a.segs.count * a.heads.heads;
         i += warps) {
        int seq = i / a.heads.heads, head = i % a.heads.heads, n = a.segs.pos0[seq] + 1;
        int pieces = HZP_DIV_UP(n, piece_length(n, stretch)), of_group = head % group;
        if (pieces == 1)
            continue;
        int rank = head / group * d.tiles + of_group / 16;
        int64_t first = (int64_t)d.plan[seq] * d.ranks + rank * pieces;
        const float *part = d.part + (first * d.rows + of_group % 16) * PITCH;
        float top = -INFINITY, mass = 0, sum[E] = {};
        for (int p = lane; p < pieces; p += 32)
            top = fmaxf(top, part[p * apart + D]);
        top = warp_max(top);
        for (int p0 = 0; p0 < pieces; p0 += 32) {
            int p = p0 + lane;
            float share = p < pieces ? exp_2(part[p * apart + D] - top) : 0;
            mass += p < pieces ? share * part[p * apart + D + 1] : 0;
#pragma unroll 8
            for (int k = 0; k < min(pieces - p0, 32); k++) {
                float by = __shfl_sync(~0u, share, k);
                const float *from = part + (p0 + k) * apart + lane * E;
                if constexpr (E == 4) {
                    float4 v = *reinterpret_cast<const float4 *>(from);
                    sum[0] += by * v.x, sum[1] += by * v.y, sum[2] += by * v.z, sum[3] += by * v.w;
                } else {
                    float2 v = *reinterpret_cast<const float2 *>(from);
                    sum[0] += by * v.x, sum[1] += by * v.y;
                }
            }
        }
        mass = warp_sum(mass);
        uint16_t *out = row_of<uint16_t>(a.out, a.segs.row0[seq]) + head * D + lane * E;
#pragma unroll
        for (int k = 0; k < E; k++)
            store(out + k, sum[k] / mass);
    }
}

/* ---- launching ---- */

template <int D, bool TALL, bool CODES>
static int launch(struct hzp_lane *lane, const struct bulk_args &d)
{
    using S = shape<D, CODES>;
    int count = d.a.segs.count, sms = hzp_cuda_sms(lane), ctx = d.a.segs.ctx_max;
    size_t bytes = ALIGN + S::LIST + 3 * (size_t)count * sizeof(int);
    auto kernel = attn_decode_bulk<D, TALL, CODES>;
    int64_t items = (int64_t)count * d.ranks * HZP_DIV_UP(ctx, (int)PIECE);
    int64_t blocks = HZP_MAX(HZP_MIN(HZP_DIV_UP(items, (int64_t)WARPS), (int64_t)sms), (int64_t)1);
    HZP_TRY(hzp_cuda_check(hzp_cuda_device(lane),
                           cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                (int)(ALIGN + S::LIST + 3 * SEQS * sizeof(int))),
                           "attn_decode"));
    start_few(lane, count, (unsigned)blocks, THREADS, bytes, kernel, d);
    if (ctx > PIECE) {
        int64_t heads = (int64_t)count * d.a.heads.heads;
        blocks = HZP_MIN(HZP_DIV_UP(heads, (int64_t)MERGE_WARPS), (int64_t)sms * MERGE_BLOCKS);
        start_few(lane, count, (unsigned)blocks, MERGE_WARPS * 32, 0, attn_decode_merge<D>, d);
    }
    return hzp_cuda_launched(lane, "attn_decode");
}

template <int D> static int launch(struct hzp_lane *lane, const struct bulk_args &d)
{
    bool tall = d.a.heads.heads / d.a.heads.kv_heads > 8;
    if (d.a.kv.type == HZP_E4M3)
        return tall ? launch<D, true, true>(lane, d) : launch<D, false, true>(lane, d);
    return tall ? launch<D, true, false>(lane, d) : launch<D, false, false>(lane, d);
}

extern "C" bool hzp_cuda_decode_bulk_fits(struct hzp_lane *lane,
                                          const struct hzp_attn_paged_args *a)
{
    int group = a->heads.heads / a->heads.kv_heads;
    int64_t ranks = (int64_t)a->heads.kv_heads * HZP_DIV_UP(group, 16);
    int64_t boxes = a->kv.page_rows / BOX_ROWS, ctx = a->segs.ctx_max;
    int64_t seqs = HZP_MIN(a->segs.count, (int32_t)SEQS);
    return hzp_cuda_device(lane)->bulk && a->kv.page_rows % BOX_ROWS == 0 && a->scale > 0 &&
           (uintptr_t)a->qkv.ptr % 4 == 0 && a->qkv.stride % 2 == 0 &&
           (uintptr_t)a->kv.k_scale % 16 == 0 && (uintptr_t)a->kv.v_scale % 16 == 0 &&
           (ctx / BOX_ROWS + RUN) * boxes < UINT32_MAX &&
           (HZP_DIV_UP(ctx, (int64_t)TILE) * seqs + 1) * (ranks + 1) < INT32_MAX;
}

/* HZP_EUNSUP: the driver cannot describe the pages. */
extern "C" int hzp_cuda_decode_bulk(struct hzp_lane *lane, const struct hzp_attn_paged_args *args)
{
    struct bulk_args d = {};
    const struct hzp_attn_paged_args all = *args;
    int group = all.heads.heads / all.heads.kv_heads, dim = all.heads.dim;
    int row_bytes = dim * (all.kv.type == HZP_E4M3 ? 1 : 2);
    int64_t rows = (int64_t)all.kv.pages * all.kv.page_rows * all.heads.kv_heads;
    if (!row_map_make(&d.keys, all.kv.k, rows, row_bytes) ||
        !row_map_make(&d.values, all.kv.v, rows, row_bytes))
        return HZP_EUNSUP;
    const size_t plan = HZP_ROUND_UP((SEQS + 1) * sizeof(int32_t), (size_t)256);
    d.tiles = HZP_DIV_UP(group, 16);
    d.ranks = all.heads.kv_heads * d.tiles;
    d.rows = HZP_MIN(group, 16);
    d.plan = (int32_t *)hzp_cuda_lane(lane)->scratch;
    d.part = (float *)(hzp_cuda_lane(lane)->scratch + plan);
    d.room = (int64_t)((hzp_cuda_lane(lane)->scratch_size - plan) /
                       ((size_t)d.rows * (size_t)(dim + MARGIN) * sizeof(float))) /
             d.ranks;
    d.boxes = (uint32_t)all.kv.page_rows / BOX_ROWS;
    d.magic = (uint32_t)(((uint64_t)1 << 32) / d.boxes + 1);
    d.scale = (float)((double)all.scale * 1.4426950408889634);
    for (int32_t from = 0; from < all.segs.count; from += SEQS) {
        d.a = decode_part(all, from, SEQS);
        HZP_TRY(dim == 64 ? launch<64>(lane, d) : launch<128>(lane, d));
    }
    return HZP_OK;
}
