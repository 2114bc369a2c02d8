/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/stub_link.c - replaces device/cuda/link.c without CUDA.  Apart from stub.c, because
 * tests bring a CUDA backend of their own. */
#include "mesh/link.h"

const struct hzp_link_streams *hzp_cuda_link_streams(void)
{
    return NULL;
}
