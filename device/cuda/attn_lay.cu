/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/attn_lay.cu - lengths, offsets and page numbers of segments as cuDNN's plans read
 * them. */
#include "device/cuda/cudnn.h"
#include "device/cuda/kernel.cuh"

enum { LAY_THREADS = 128 };

/* One block for each segment that there is room for. */
static __global__ void __launch_bounds__(LAY_THREADS) attn_lay(struct hzp_attn_lay a)
{
    int i = blockIdx.x, t = threadIdx.x, last = a.segs - 1;
    bool is = i < a.segs;
    if (t == 0)
        a.to[i] = is ? a.rows[i] : 0;
    if (t == 1)
        a.to[HZP_ATTN_LAY_ROW + i] = is ? a.ctx[i] : 0;
    if (t < HZP_ATTN_LAY_MATS) {
        int end = last < 0 ? 0 : a.row0[last] + a.rows[last];
        int32_t *list = a.to + (2 + t) * HZP_ATTN_LAY_ROW;
        list[i] = (is ? a.row0[i] : end) * a.stride[t];
        if (i == a.room - 1)
            list[a.room] = end * a.stride[t];
    }
    if (!a.pages)
        return;
    int seg = is ? a.seg[i] : last < 0 ? 0 : a.seg[last];
    int pages = is ? (a.ctx[i] + a.page_rows - 1) / a.page_rows : 0;
    const int32_t *from = a.page + (int64_t)(a.line ? a.line[seg] : seg) * a.page_stride;
    for (int p = t; p < a.page_stride; p += LAY_THREADS)
        a.pages[(int64_t)i * a.page_stride + p] = from[p < pages ? p : 0];
}

extern "C" int hzp_cuda_attn_lay(struct hzp_lane *lane, const struct hzp_attn_lay *lay)
{
    start(lane, (unsigned)lay->room, LAY_THREADS, 0, attn_lay, *lay);
    return hzp_cuda_launched(lane, "lists of attention");
}
