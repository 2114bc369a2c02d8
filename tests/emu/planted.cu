/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/planted.cu - see planted.h.  256 threads unless stated otherwise. */
#include "tests/emu/planted.h"

#include "device/cuda/tensor.cuh"

enum { N = HZP_PLANTED_FLOATS };

/* ---- global memory ---- */

static __global__ void copy_from(const float *in, float *io, int shift)
{
    io[threadIdx.x] = in[(int)threadIdx.x + shift];
}

static __global__ void copy_to(const float *in, float *io, int shift)
{
    io[(int)threadIdx.x + shift] = in[threadIdx.x];
}

static __global__ void copy_and_clear(float *in, float *io, bool clear)
{
    float x = in[threadIdx.x];
    io[threadIdx.x] = x;
    if (clear)
        in[threadIdx.x] = 0;
}

static __global__ void copy_vectors(const float *in, float *io, int shift_in, int shift_out)
{
    if (threadIdx.x < N / 4 - 1) {
        float4 v = *reinterpret_cast<const float4 *>(in + 4 * threadIdx.x + shift_in);
        *reinterpret_cast<float4 *>(io + 4 * threadIdx.x + shift_out) = v;
    } else if (threadIdx.x >= N - 4) {
        io[threadIdx.x] = in[threadIdx.x];
    }
}

static __global__ void copy_words(const uint16_t *in, float *io, int shift)
{
    uint32_t both = *reinterpret_cast<const uint32_t *>(in + 2 * (threadIdx.x % (N - 1)) + shift);
    if (threadIdx.x == N - 1)
        both = in[2 * N - 2] | (uint32_t)in[2 * N - 1] << 16;
    io[threadIdx.x] = __uint_as_float(both);
}

/* ---- shared memory ---- */

static __global__ void through_shared(const float *in, float *io, int past)
{
    HZP_SHARED(float, room, [N]);
    room[threadIdx.x] = in[threadIdx.x];
    if (threadIdx.x == 0)
        room[past] = in[past % N];
    __syncthreads();
    io[threadIdx.x] = room[threadIdx.x];
}

static __global__ void through_dynamic(const float *in, float *io)
{
    HZP_SHARED_DYNAMIC(float, room);
    room[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    io[threadIdx.x] = room[threadIdx.x];
}

static __global__ void fill_some(const float *in, float *io, int step)
{
    HZP_SHARED(float, room, [N]);
    if (threadIdx.x % step == 0)
        room[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    io[threadIdx.x] = room[threadIdx.x];
}

/* The second block must not see what the first one left. */
static __global__ void fill_in_block(const float *in, float *io, int blocks)
{
    HZP_SHARED(float, room, [N]);
    if ((int)blockIdx.x < blocks)
        room[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float x = room[threadIdx.x];
    if (blockIdx.x == gridDim.x - 1)
        io[threadIdx.x] = x;
}

static __global__ void count_up(const float *in, float *io, bool clear, bool atomically)
{
    HZP_SHARED(int, count);
    if (clear && threadIdx.x == 0)
        count = 0;
    __syncthreads();
    if (atomically)
        atomicAdd(&count, 1);
    else
        count = count + 1;
    __syncthreads();
    io[threadIdx.x] = in[threadIdx.x] + (float)(count - N);
}

static __global__ void turn_around(const float *in, float *io, bool barrier, bool twice)
{
    HZP_SHARED(float, room, [N]);
    room[threadIdx.x] = 0;
    __syncthreads();
    room[threadIdx.x] = in[threadIdx.x];
    if (barrier)
        __syncthreads();
    float x = room[N - 1 - threadIdx.x];
    if (!twice)
        __syncthreads();
    room[threadIdx.x] = x;
    __syncthreads();
    io[threadIdx.x] = room[threadIdx.x];
}

static __global__ void write_once(const float *in, float *io, int writers)
{
    HZP_SHARED(float, one);
    if ((int)threadIdx.x < writers)
        one = in[0];
    __syncthreads();
    io[threadIdx.x] = in[threadIdx.x] + one - one;
}

static __global__ void turn_warps(const float *in, float *io, bool sync)
{
    HZP_SHARED(float, room, [N]);
    room[threadIdx.x] = 0;
    __syncthreads();
    room[threadIdx.x] = in[threadIdx.x];
    if (sync)
        __syncwarp();
    io[threadIdx.x] = room[threadIdx.x ^ 31];
}

/* block_sum without its first barrier. */
static __device__ float hasty_sum(float x, bool barrier)
{
    HZP_SHARED(float, part, [8]);
    x = warp_sum(x);
    if (barrier)
        __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 8; i++)
        sum += part[i];
    return sum;
}

static __global__ void sum_twice(const float *in, float *io, bool barrier)
{
    float first = hasty_sum(1, barrier), second = hasty_sum(2, barrier);
    io[threadIdx.x] = in[threadIdx.x] + (second - 2 * first);
}

/* ---- global memory between threads and blocks ---- */

static __global__ void turn_global(const float *in, float *io, bool barrier)
{
    io[threadIdx.x] = in[threadIdx.x];
    if (barrier)
        __syncthreads();
    float x = io[N - 1 - threadIdx.x];
    __syncthreads();
    io[threadIdx.x] = x;
}

/* 64 threads per block. */
static __global__ void store_parts(const float *in, float *io, int blocks)
{
    int i = blockIdx.x % blocks * 64 + threadIdx.x;
    io[i] = in[i];
    if (blocks < 4)
        io[i + 128] = in[i + 128];
}

/* The member that is false is the mistake. */
struct handing {
    bool barrier, ask, fence, fence_after;
};

/* The last block to arrive combines what all blocks have left in `in`. */
static __global__ void hand_over(float *in, int *counter, float *io, handing with)
{
    HZP_SHARED(bool, last);
    int i = blockIdx.x * 64 + threadIdx.x;
    in[i] = (float)(i * i % 311);
    if (with.fence)
        __threadfence();
    if (with.barrier)
        __syncthreads();
    if (threadIdx.x == 0)
        last = with.ask ? atomicAdd(counter, 1) == 3 : true;
    __syncthreads();
    if (!last)
        return;
    if (with.fence_after)
        __threadfence();
    if (with.ask && threadIdx.x == 0)
        *counter = 0;
    for (int k = threadIdx.x; k < N; k += 64)
        io[k] = in[k];
}

/* ---- barriers and warps ---- */

static __global__ void branch_barrier(const float *in, float *io, unsigned border)
{
    HZP_SHARED(float, room, [N]);
    room[threadIdx.x] = in[threadIdx.x];
    if (threadIdx.x < border)
        __syncthreads();
    else
        __syncthreads();
    io[threadIdx.x] = room[N - 1 - threadIdx.x];
}

static __global__ void return_early(const float *in, float *io, unsigned border)
{
    HZP_SHARED(float, room, [N]);
    io[threadIdx.x] = in[N - 1 - threadIdx.x];
    room[threadIdx.x] = in[threadIdx.x];
    if (threadIdx.x >= border)
        return;
    __syncthreads();
    io[threadIdx.x] = room[N - 1 - threadIdx.x];
}

static __global__ void branch_shuffle(const float *in, float *io, unsigned border)
{
    float x = in[threadIdx.x];
    if (threadIdx.x % 32 < border)
        x = __shfl_xor_sync(~0u, x, 31);
    io[threadIdx.x] = x;
}

static __global__ void mask_shuffle(const float *in, float *io, unsigned mask)
{
    float x = in[threadIdx.x];
    if (mask >> (threadIdx.x % 32) & 1)
        x = __shfl_xor_sync(mask, x, 31);
    io[threadIdx.x] = x;
}

static __global__ void vote_shuffle(const float *in, float *io, unsigned border)
{
    float x = in[threadIdx.x];
    if (threadIdx.x % 32 < border)
        x = __shfl_xor_sync(~0u, x, 31);
    else
        x = (float)__ballot_sync(~0u, 1);
    io[threadIdx.x] = x;
}

/* ---- asynchronous copies, tensor cores: 64 threads ---- */

template <int PENDING, bool WAIT, bool BARRIER>
static __global__ void copy_tiles(const float *in, float *io, bool busy, int shift)
{
    HZP_SHARED_DYNAMIC(float, room);
    float sum = 0;
    for (int i = 0; i < 4; i++)
        room[threadIdx.x + 64 * i] = 0;
    __syncthreads();
    if (busy) {
        sum = room[N - 1 - threadIdx.x];
        if (shift == 0)
            __syncthreads();
        shift = 0;
    }
    copy_async(shared_at(room) + 16 * threadIdx.x, in + 4 * threadIdx.x + shift, true);
    copy_commit();
    if (WAIT)
        copy_wait<PENDING>();
    if (BARRIER)
        __syncthreads();
    for (int i = 0; i < 4; i++)
        io[threadIdx.x + 64 * i] = room[threadIdx.x + 64 * i] + sum;
}

static __global__ void copy_blind(const float *in, float *io, bool wait)
{
    HZP_SHARED_DYNAMIC(float, room);
    copy_async(shared_at(room) + 16 * threadIdx.x, in + 4 * threadIdx.x, true);
    copy_commit();
    if (wait)
        copy_wait<0>();
    for (int i = 0; i < 4; i++)
        io[threadIdx.x + 64 * i] = in[threadIdx.x + 64 * i];
}

/* The member that is false is the mistake. */
struct bulk_use {
    bool wait, all_wait, free, store_fence, barrier_fence, none_left;
    uint32_t parity;
    int expect, shift;
};

/* 32 threads: two halves through one slot.  A ballot keeps the lanes together and orders nothing. */
static __global__ void copy_bulk(const float *in, float *io, bulk_use with)
{
    enum { HALF = N / 2, BYTES = HALF * sizeof(float) };
    HZP_SHARED_DYNAMIC(float, room);
    HZP_SHARED(uint64_t, bar);
    uint32_t at = shared_at(&bar), to = shared_at(room);
    for (int k = threadIdx.x; k < HALF; k += 32)
        room[k] = 0;
    if (with.store_fence)
        bulk_fence();
    __syncwarp();
    if (threadIdx.x == 0) {
        barrier_make(at, 1);
        if (with.barrier_fence)
            bulk_fence();
    }
    for (int i = 0; i < 2; i++) {
        if (threadIdx.x == 0) {
            barrier_expect(at, BYTES + with.expect);
            copy_bytes(to, at, in + i * HALF + with.shift, BYTES);
        }
        __syncwarp();
        if (with.wait && (with.all_wait || threadIdx.x == 0))
            barrier_wait(at, with.parity ^ i);
        __ballot_sync(~0u, 1);
        for (int k = threadIdx.x; k < HALF; k += 32)
            io[i * HALF + k] = room[k];
        if (with.free)
            __syncwarp();
        else
            __ballot_sync(~0u, 1);
    }
    if (threadIdx.x == 0 && !with.none_left) {
        barrier_expect(at, BYTES);
        copy_bytes(to, at, in, BYTES);
    }
}

static __global__ void matrix_rows(const float *in, float *io, int shift)
{
    HZP_SHARED_DYNAMIC(float, room);
    uint32_t r[4];
    for (int i = threadIdx.x; i < N; i += 32)
        room[i] = in[i];
    __syncwarp();
    load_matrices(r, shared_at(room) + 16 * threadIdx.x + shift);
    for (int i = 0; i < 4; i++) { /* four words a row: matrix i has rows 8i .. 8i+7 */
        io[32 * i + threadIdx.x] = __uint_as_float(r[i]);
        io[128 + 32 * i + threadIdx.x] = in[128 + 32 * i + threadIdx.x];
    }
}

/* ---- which is which ---- */

static void run_memory(enum hzp_planted which, bool wrong, const float *in, float *io)
{
    struct hzp_lane *lane = nullptr;
    static float host[N];
    memcpy(host, in, sizeof(host));
    switch (which) {
    case HZP_PLANTED_past_the_end:
        start(lane, 1, N, 0, copy_from, in, io, wrong);
        break;
    case HZP_PLANTED_before_the_begin:
        start(lane, 1, N, 0, copy_to, in, io, wrong ? -1 : 0);
        break;
    case HZP_PLANTED_other_allocation:
        start(lane, 1, N, 0, copy_from, in, io, wrong ? 8192 : 0);
        break;
    case HZP_PLANTED_host_memory:
        start(lane, 1, N, 0, copy_from, wrong ? host : in, io, 0);
        break;
    case HZP_PLANTED_past_shared:
        start(lane, 1, N, 0, through_shared, in, io, wrong ? N : 0);
        break;
    case HZP_PLANTED_past_dynamic:
        start(lane, 1, N, (N - wrong) * sizeof(float), through_dynamic, in, io);
        break;
    case HZP_PLANTED_input_written:
        hzp_emu_watch(in, N * sizeof(float));
        hzp_emu_allow(in, N * sizeof(float), false);
        start(lane, 1, N, 0, copy_and_clear, (float *)in, io, wrong);
        hzp_emu_unwatch(in, N * sizeof(float));
        break;
    case HZP_PLANTED_gap_written:
        hzp_emu_watch(io, N * sizeof(float));
        hzp_emu_allow(io, (N - wrong) * sizeof(float), true);
        start(lane, 1, N, 0, copy_from, in, io, 0);
        hzp_emu_unwatch(io, N * sizeof(float));
        break;
    case HZP_PLANTED_vector_load:
        start(lane, 1, N, 0, copy_vectors, in, io, wrong, 0);
        break;
    case HZP_PLANTED_vector_store:
        start(lane, 1, N, 0, copy_vectors, in, io, 0, wrong);
        break;
    case HZP_PLANTED_word_of_halves:
        start(lane, 1, N, 0, copy_words, (const uint16_t *)in, io, wrong);
        break;
    default:
        start(lane, 1, 32, (N + 4) * sizeof(float), matrix_rows, in, io, wrong ? 4 : 0);
    }
}

static void run_shared(enum hzp_planted which, bool wrong, const float *in, float *io)
{
    struct hzp_lane *lane = nullptr;
    static int *counter;
    if (!counter)
        counter = (int *)hzp_emu_alloc(sizeof(*counter));
    switch (which) {
    case HZP_PLANTED_half_unwritten:
        start(lane, 1, N, 0, fill_some, in, io, 1 + wrong);
        break;
    case HZP_PLANTED_last_block_s:
        start(lane, 2, N, 0, fill_in_block, in, io, 2 - wrong);
        break;
    case HZP_PLANTED_atomic_unwritten:
        start(lane, 1, N, 0, count_up, in, io, !wrong, true);
        break;
    case HZP_PLANTED_plain_count:
        start(lane, 1, N, 0, count_up, in, io, true, !wrong);
        break;
    case HZP_PLANTED_write_then_read:
        start(lane, 1, N, 0, turn_around, in, io, !wrong, false);
        break;
    case HZP_PLANTED_read_then_write:
        start(lane, 1, N, 0, turn_around, in, io, true, wrong);
        break;
    case HZP_PLANTED_two_writers:
        start(lane, 1, N, 0, write_once, in, io, 1 + wrong);
        break;
    case HZP_PLANTED_lanes_without_syncwarp:
        start(lane, 1, N, 0, turn_warps, in, io, !wrong);
        break;
    case HZP_PLANTED_sums_reused:
        start(lane, 1, N, 0, sum_twice, in, io, !wrong);
        break;
    case HZP_PLANTED_global_no_barrier:
        start(lane, 1, N, 0, turn_global, in, io, !wrong);
        break;
    case HZP_PLANTED_two_blocks_store:
        start(lane, 4, 64, 0, store_parts, in, io, wrong ? 2 : 4);
        break;
    case HZP_PLANTED_handed_over_early:
    case HZP_PLANTED_taken_unasked:
    case HZP_PLANTED_handed_over_unfenced:
    case HZP_PLANTED_taken_unfenced:
        *counter = 0;
        start(lane, 4, 64, 0, hand_over, (float *)in, counter, io,
              handing{!wrong || which != HZP_PLANTED_handed_over_early,
                      !wrong || which != HZP_PLANTED_taken_unasked,
                      !wrong || which != HZP_PLANTED_handed_over_unfenced,
                      !wrong || which != HZP_PLANTED_taken_unfenced});
        break;
    case HZP_PLANTED_barrier_in_branch:
        start(lane, 1, N, 0, branch_barrier, in, io, wrong ? 32 : N);
        break;
    case HZP_PLANTED_barrier_after_return:
        start(lane, 1, N, 0, return_early, in, io, wrong ? 32 : N);
        break;
    case HZP_PLANTED_shuffle_in_branch:
        start(lane, 1, N, 0, branch_shuffle, in, io, wrong ? 16 : 32);
        break;
    case HZP_PLANTED_mask_too_small:
        start(lane, 1, N, 0, mask_shuffle, in, io, wrong ? 0xffffu : ~0u);
        break;
    default:
        start(lane, 1, N, 0, vote_shuffle, in, io, wrong ? 16 : 32);
    }
}

static void run_copies(enum hzp_planted which, bool wrong, const float *in, float *io)
{
    struct hzp_lane *lane = nullptr;
    size_t room = N * sizeof(float);
    auto right = copy_tiles<0, true, true>;
    switch (which) {
    case HZP_PLANTED_copy_not_waited:
        start(lane, 1, 64, room, wrong ? copy_tiles<0, false, true> : right, in, io, false, 0);
        break;
    case HZP_PLANTED_copy_one_too_few:
        start(lane, 1, 64, room, wrong ? copy_tiles<1, true, true> : right, in, io, false, 0);
        break;
    case HZP_PLANTED_copy_no_barrier:
        start(lane, 1, 64, room, wrong ? copy_tiles<0, true, false> : right, in, io, false, 0);
        break;
    case HZP_PLANTED_copy_over_readers:
        start(lane, 1, 64, room, right, in, io, true, wrong);
        break;
    case HZP_PLANTED_copy_misaligned:
        start(lane, 1, 64, room, right, in, io, false, wrong);
        break;
    case HZP_PLANTED_copy_left:
        start(lane, 1, 64, room, copy_blind, in, io, !wrong);
        break;
    case HZP_PLANTED_too_many_threads:
        start(lane, 1, wrong ? 1056 : N, 0, copy_from, in, io, 0);
        break;
    default:
        cudaFuncSetAttribute(through_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             wrong ? HZP_EMU_SHARED_DEFAULT : 50000);
        start(lane, 1, N, 50000, through_dynamic, in, io);
    }
}

static void run_bulk(enum hzp_planted which, bool wrong, const float *in, float *io)
{
    bulk_use with = {true, true, true, true, true, true, 0, 0, 0};
    bool no = !wrong;
    switch (which) {
    case HZP_PLANTED_bulk_not_waited:
        with.wait = no;
        break;
    case HZP_PLANTED_bulk_wrong_phase:
        with.parity = wrong;
        break;
    case HZP_PLANTED_bulk_expects_more:
        with.expect = wrong ? 16 : 0;
        break;
    case HZP_PLANTED_bulk_expects_less:
        with.expect = wrong ? -16 : 0;
        break;
    case HZP_PLANTED_bulk_left:
        with.none_left = no;
        break;
    case HZP_PLANTED_bulk_stores_unfenced:
        with.store_fence = no;
        break;
    case HZP_PLANTED_bulk_barrier_unfenced:
        with.barrier_fence = no;
        break;
    case HZP_PLANTED_bulk_slot_reused:
        with.free = no;
        break;
    case HZP_PLANTED_bulk_one_lane_waits:
        with.all_wait = no;
        break;
    case HZP_PLANTED_bulk_misaligned:
        with.shift = wrong;
        break;
    default:
        with.shift = wrong ? 4 : 0;
    }
    start(nullptr, 1, 32, N / 2 * sizeof(float), copy_bulk, in, io, with);
}

/* ---- started early ---- */

static __global__ void copy_early(const float *in, float *io, bool late, int waiting)
{
    float x = 0;
    if (late)
        x = in[threadIdx.x];
    if ((int)threadIdx.x < waiting)
        wait_for_earlier();
    if (!late && (int)threadIdx.x < waiting)
        x = in[threadIdx.x];
    if ((int)threadIdx.x < waiting)
        io[threadIdx.x] = x;
}

static void run_early(enum hzp_planted which, bool wrong, const float *in, float *io)
{
    start_early(nullptr, 1, N, 0, copy_early, in, io,
                wrong && which == HZP_PLANTED_read_before_wait,
                wrong && which == HZP_PLANTED_never_waits ? N - 1 : N);
}

extern "C" void hzp_planted_run(enum hzp_planted which, bool wrong, const float *in, float *io)
{
    if (which < HZP_PLANTED_half_unwritten)
        run_memory(which, wrong, in, io);
    else if (which < HZP_PLANTED_copy_not_waited)
        run_shared(which, wrong, in, io);
    else if (which >= HZP_PLANTED_bulk_not_waited && which <= HZP_PLANTED_bulk_past_the_end)
        run_bulk(which, wrong, in, io);
    else if (which == HZP_PLANTED_read_before_wait || which == HZP_PLANTED_never_waits)
        run_early(which, wrong, in, io);
    else
        run_copies(which, wrong, in, io);
}

extern "C" float hzp_planted_result(enum hzp_planted which, const float *in, int i)
{
    switch (which) {
    case HZP_PLANTED_write_then_read:
    case HZP_PLANTED_read_then_write:
    case HZP_PLANTED_global_no_barrier:
    case HZP_PLANTED_barrier_in_branch:
    case HZP_PLANTED_barrier_after_return:
        return in[N - 1 - i];
    case HZP_PLANTED_lanes_without_syncwarp:
    case HZP_PLANTED_shuffle_in_branch:
    case HZP_PLANTED_mask_too_small:
    case HZP_PLANTED_shuffle_and_vote:
        return in[i ^ 31];
    default:
        return in[i];
    }
}

/* ---- definitions ---- */

/* b_rows: b is [16 columns][16], summed along its rows; else [16][16 columns]. */
static __global__ void product(const uint16_t *a, const uint16_t *b, bool b_rows, float *c)
{
    enum { D = 64 }; /* tiles have this width: the matrices are their first 16 columns */
    HZP_SHARED_DYNAMIC(uint16_t, room);
    uint32_t at_a = shared_at(room), at_b = shared_at(room + 16 * D), x[4], y[4];
    for (int i = threadIdx.x; i < 16 * D / 8; i += 32) {
        int r = i / (D / 8), col = i % (D / 8);
        copy_async(at_a + tile_at<D>(r, col), a + (col < 2 ? r * 16 + col * 8 : 0), col < 2);
        copy_async(at_b + tile_at<D>(r, col), b + (col < 2 ? r * 16 + col * 8 : 0), col < 2);
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    load_a<D>(x, at_a, 0, 0);
    if (b_rows)
        load_b_rows<D>(y, at_b, 0, 0);
    else
        load_b_cols<D>(y, at_b, 0, 0);
    float d[2][4] = {};
    mma(d[0], x[0], x[1], x[2], x[3], y[0], y[1]);
    mma(d[1], x[0], x[1], x[2], x[3], y[2], y[3]);
    int g = threadIdx.x / 4, l = threadIdx.x % 4;
    for (int n = 0; n < 2; n++)
        for (int e = 0; e < 4; e++)
            c[(g + e / 2 * 8) * 16 + 8 * n + 2 * l + e % 2] = d[n][e];
}

extern "C" void hzp_planted_product(const uint16_t *a, const uint16_t *b, bool b_rows, float *c)
{
    start(nullptr, 1, 32, 2 * 16 * 64 * sizeof(uint16_t), product, a, b, b_rows, c);
}

static __global__ void coordinates(uint32_t *ret)
{
    uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    uint32_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    uint32_t i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    ret[i] = i;
}

extern "C" void hzp_planted_coordinates(uint32_t *ret)
{
    start(nullptr, dim3(2, 3, 2), dim3(5, 3, 4), 0, coordinates, ret);
}

static __global__ void lanes(uint32_t *ret)
{
    unsigned lane = threadIdx.x;
    uint32_t kind[HZP_PLANTED_LANE_KINDS] = {
        __shfl_sync(~0u, lane, 5),
        __shfl_sync(~0u, lane, 3, 8),
        __shfl_xor_sync(~0u, lane, 3),
        __shfl_up_sync(~0u, lane, 1),
        __shfl_down_sync(~0u, lane, 2, 16),
        __ballot_sync(~0u, lane % 3 == 0),
        (uint32_t)__any_sync(~0u, lane == 7),
        (uint32_t)__all_sync(~0u, lane < 31),
        __reduce_add_sync(~0u, lane),
        (uint32_t)__reduce_min_sync(~0u, (int)lane - 9),
        __reduce_max_sync(~0u, lane),
        __byte_perm(0x03020100u + lane, 0x07060504u, 0x7410),
        transpose(2 * lane | (2 * lane + 1) << 16),
    };
    for (int i = 0; i < HZP_PLANTED_LANE_KINDS; i++)
        ret[32 * i + lane] = kind[i];
}

extern "C" void hzp_planted_lanes(uint32_t *ret)
{
    start(nullptr, 1, 32, 0, lanes, ret);
}

static __global__ void box(row_map map, int row, uint8_t *ret)
{
    HZP_SHARED_DYNAMIC(uint8_t, space);
    HZP_SHARED(uint64_t, bar);
    uint32_t at = shared_at(&bar), size = BOX_ROWS * map.row_bytes;
    uint8_t *room = space + (1024 - shared_at(space) % 1024) % 1024;
    if (threadIdx.x == 0) {
        barrier_make(at, 1);
        bulk_fence();
        barrier_expect(at, (int)size);
        copy_rows(shared_at(room), at, &map, row);
        barrier_wait(at, 0);
        for (uint32_t i = 0; i < size; i++)
            ret[i] = room[i];
    }
}

extern "C" void hzp_planted_box(const uint8_t *rows, int count, int row_bytes, int row,
                                uint8_t *ret)
{
    row_map map;
    row_map_make(&map, rows, count, row_bytes);
    start(nullptr, 1, 1, 1024 + BOX_ROWS * 256, box, map, row, ret);
}

static __global__ void sums(const uint32_t *x, uint32_t *ret, int count)
{
    HZP_SHARED(unsigned, sum);
    if (threadIdx.x == 0)
        sum = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        atomicAdd(&sum, x[i]);
    if (__syncthreads_or(i < count) && threadIdx.x == 0)
        atomicAdd(ret, sum);
}

extern "C" void hzp_planted_sums(const uint32_t *x, uint32_t *ret, int count)
{
    start(nullptr, HZP_DIV_UP(count, 96), 96, 0, sums, x, ret, count);
}
