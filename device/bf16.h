/* SPDX-License-Identifier: Apache-2.0 */
/* device/bf16.h - converts bfloat16 to and from float, with the same bits on every backend.
 *
 * A bf16 is the upper half of a float.  Also splits an fp32 master weight into a bf16 and a signed
 * 16-bit residual (weights are served as the bf16; the optimizer keeps the residual).
 *
 * Thread: any.  C17, C++17 and CUDA.
 */
#pragma once

#include "base/base.h"

#ifdef __CUDACC__
#define HZP_INLINE static inline __host__ __device__
#else
#define HZP_INLINE static inline
#endif

HZP_INLINE uint32_t hzp_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

HZP_INLINE float hzp_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

HZP_INLINE float hzp_bf16_to_f32(uint16_t h)
{
    return hzp_f32_from_bits((uint32_t)h << 16);
}

/* Rounds to nearest, ties to even; overflow becomes infinite; NaN stays NaN (made quiet, because
 * the set bits of its fraction may all be in the dropped half). */
HZP_INLINE uint16_t hzp_bf16_from_f32(float x)
{
    uint32_t bits = hzp_f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* The fp32 master: bits = hi * 2^16 + residual, exactly. */
HZP_INLINE float hzp_master_join(uint16_t hi, int16_t residual)
{
    return hzp_f32_from_bits(((uint32_t)hi << 16) + (uint32_t)(int32_t)residual);
}

/* The inverse: hi is the master rounded to nearest, ties up (so that the residual fits 16 bits). */
HZP_INLINE void hzp_master_split(float master, uint16_t *ret_hi, int16_t *ret_residual)
{
    uint32_t bits = hzp_f32_bits(master);
    *ret_hi = (uint16_t)((bits + 0x8000u) >> 16);
    *ret_residual = (int16_t)(uint16_t)(bits & 0xffffu);
}
