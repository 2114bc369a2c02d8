/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/nvml.h - a device's free memory before this process has a context on it, by NVML:
 * the runtime's cudaMemGetInfo would make the context.
 *
 * libnvidia-ml.so.1 comes with the driver and is loaded for the one question; it is optional.
 *
 * Thread: any.
 */
#pragma once

#include "base/base.h"

/* Free bytes of the device at this place on the bus, such as "0000:41:00.0"; 0: not known. */
size_t hzp_cuda_nvml_free(const char *bus);
