/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/link.h - the kernel of links between GPUs.
 *
 * Thread: the link's.
 */
#pragma once

#include "mesh/link.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Puts the sum on the stream, a cudaStream_t; its memory is the current device's.  Returns a code
 * of the CUDA runtime. */
int hzp_cuda_link_sum(const struct hzp_link_sum *sum, void *stream);

#ifdef __cplusplus
}
#endif
