/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/limits.h - measures the limits of this machine.
 *
 * Benchmarks print a figure beside the limit measured in the same run: the machine is shared and
 * its clock varies, so the ratio to a number in a data sheet would be meaningless.
 *
 * Thread: engine.
 */
#pragma once

#include "device/device.h"

struct hzp_limits {
    double read_bytes_per_s; /* reading memory far larger than the caches, with all threads */
    bool reads_vary;         /* with other processes' use of the memory (hzp_device_read_rate) */
    /* operations per second of the library's matrix product at its best shape and layout; 0: the
     * library does not support the type */
    double gemm_f32, gemm_bf16;
};

/* The limit for a product of this type. bf16 operands can be widened to F32, so the F32 rate
 * applies if the library has no bf16 product or a slower one. */
static inline double hzp_limits_gemm(const struct hzp_limits *limits, enum hzp_dtype type)
{
    return type == HZP_BF16 ? HZP_MAX(limits->gemm_bf16, limits->gemm_f32) : limits->gemm_f32;
}

/* Takes a few seconds.  HZP_EUNSUP: the backend does not measure. */
int hzp_device_limits(struct hzp_device *dev, struct hzp_limits *ret);

/* The rate now, in bytes per second, of reading this memory of the device, which should be far
 * larger than the caches: the mean of a few runs in the fastest way, a fraction of a second.  Where
 * the rate varies from one second to the next, and from one place in memory to another (a virtual
 * machine does not know which memory it has), what binds a figure is the rate of the
 * memory that it reads, taken in turns with it; read_bytes_per_s is the best moment of the whole
 * measurement.  HZP_EUNSUP: the rate does not vary (reads_vary), or the backend does not
 * measure. */
int hzp_device_read_rate(struct hzp_device *dev, const void *memory, size_t bytes, double *ret);

/* The backends' own parts of these. */
int hzp_cpu_limits(struct hzp_device *dev, struct hzp_limits *ret);
int hzp_cpu_read_rate(struct hzp_device *dev, const void *memory, size_t bytes, double *ret);
int hzp_cuda_limits(struct hzp_device *dev, struct hzp_limits *ret); /* HZP_EUNSUP: not built */
