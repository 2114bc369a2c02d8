/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/link_sum.cu - adds what ranks have sent, in the order of ranks: the same bits as a
 * link of host memory. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/link.h"

enum { THREADS = 256, BLOCKS_MAX = 256 };

static __global__ void link_sum(struct hzp_link_sum s)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < s.elements;
         i += (size_t)gridDim.x * blockDim.x) {
        float sum = s.onto ? s.dst[i] : 0;
        for (int m = 0; m < s.members; m++) {
            float x = m == s.index ? s.own[i] : s.others[(size_t)m * s.stride + i];
            sum = m == 0 && !s.onto ? x : sum + x;
        }
        s.dst[i] = sum;
    }
}

extern "C" int hzp_cuda_link_sum(const struct hzp_link_sum *sum, void *stream)
{
    struct hzp_cuda_lane lane = {}; /* a kernel needs nothing else of it */
    size_t blocks = HZP_DIV_UP(sum->elements, (size_t)THREADS);
    if (blocks == 0)
        return (int)cudaSuccess;
    lane.stream = (cudaStream_t)stream;
    start(&lane.base, (unsigned)HZP_MIN(blocks, (size_t)BLOCKS_MAX), THREADS, 0, link_sum, *sum);
    return (int)cudaGetLastError();
}
