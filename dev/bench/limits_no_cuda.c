/* SPDX-License-Identifier: Apache-2.0 */
/* Built without CUDA. */
#include "dev/bench/limits.h"

int hzp_cuda_limits(struct hzp_device *dev, struct hzp_limits *ret)
{
    return HZP_EUNSUP;
}
