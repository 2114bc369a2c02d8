/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/limits.h"

#include "device/backend.h"

#include <string.h>

static bool is(const struct hzp_device *dev, const char *backend)
{
    return !strcmp(dev->backend->name, backend);
}

int hzp_device_limits(struct hzp_device *dev, struct hzp_limits *ret)
{
    return is(dev, "cpu")    ? hzp_cpu_limits(dev, ret)
           : is(dev, "cuda") ? hzp_cuda_limits(dev, ret)
                             : HZP_EUNSUP;
}

int hzp_device_read_rate(struct hzp_device *dev, const void *memory, size_t bytes, double *ret)
{
    return is(dev, "cpu") ? hzp_cpu_read_rate(dev, memory, bytes, ret) : HZP_EUNSUP;
}
