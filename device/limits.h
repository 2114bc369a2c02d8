/* SPDX-License-Identifier: Apache-2.0 */
/* device/limits.h - what this machine can do at most, measured now.
 *
 * Benchmarks print a figure beside the limit measured in the same run: the machine is shared and
 * its clock moves, a ratio to a number in a data sheet says nothing.
 *
 * Thread: engine.
 */
#ifndef HZP_DEVICE_LIMITS_H
#define HZP_DEVICE_LIMITS_H

#include "device/device.h"

struct hzp_limits {
    double read_bytes_per_s;    /* reading memory far larger than the caches, all threads */
    double gemm_f32, gemm_bf16; /* operations per second of the library's matrix product at its best
                                   shape and layout; 0: the type is not to be had */
};

/* What a product of this type is held against: bf16 can be widened, so where the library has none
 * of its own, or a slow one, the rate of F32 counts. */
static inline double hzp_limits_gemm(const struct hzp_limits *limits, enum hzp_dtype type)
{
    return type == HZP_BF16 ? HZP_MAX(limits->gemm_bf16, limits->gemm_f32) : limits->gemm_f32;
}

/* Takes a few seconds.  HZP_EUNSUP: the backend does not measure. */
int hzp_device_limits(struct hzp_device *dev, struct hzp_limits *ret);

#endif
