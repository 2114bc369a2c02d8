/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_bf16.h of the block emulator: the conversions that kernels use.
 *
 * Thread: one.  C++17.
 */
#pragma once

#include <cuda_runtime.h>

#include "device/bf16.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

/* To nearest, ties to even; every NaN becomes the one that the GPU makes. */
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __nv_bfloat16{x != x ? (uint16_t)0x7fff : hzp_bf16_from_f32(x)};
}

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return hzp_bf16_to_f32(x.bits);
}

static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}

static inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits)
{
    return __nv_bfloat16{bits};
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return __nv_bfloat162{__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
