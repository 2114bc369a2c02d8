/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/decode.cuh - shared by the two kernels of decode attention (decode.cu,
 * decode_bulk.cu).
 */
#pragma once

#include "device/cuda/kernel.cuh"

/* Sums over the threads before this one, of two numbers; *ret_all: of the first, over all. */
template <int THREADS> static __device__ int2 sums_before(int2 x, int *ret_all)
{
    HZP_SHARED(int2, sum, [2][THREADS]);
    int t = threadIdx.x, at = 0;
    sum[0][t] = x;
    __syncthreads();
    for (int by = 1; by < THREADS; by *= 2, at ^= 1) {
        int2 v = sum[at][t];
        if (t >= by) {
            v.x += sum[at][t - by].x;
            v.y += sum[at][t - by].y;
        }
        sum[at ^ 1][t] = v;
        __syncthreads();
    }
    *ret_all = sum[at][THREADS - 1].x;
    return make_int2(sum[at][t].x - x.x, sum[at][t].y - x.y);
}

/* The sequences from `from` on, `most` of them at most. */
static inline struct hzp_attn_paged_args decode_part(const struct hzp_attn_paged_args &all,
                                                     int32_t from, int32_t most)
{
    struct hzp_attn_paged_args a = all;
    a.segs.count = HZP_MIN(all.segs.count - from, most);
    a.segs.row0 = all.segs.row0 + from;
    a.segs.pos0 = all.segs.pos0 + from;
    if (all.line)
        a.line = all.line + from;
    else
        a.page = all.page + (int64_t)from * all.page_stride;
    return a;
}
