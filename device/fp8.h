/* SPDX-License-Identifier: Apache-2.0 */
/* device/fp8.h - converts e4m3 to and from float, with the same bits on every backend.
 *
 * A sign, four bits of exponent (bias 7), three of mantissa; no infinities: 0x7f and 0xff are NaN,
 * 0x7e is 448, the largest, exponent 0 is m * 2^-9 (Micikevicius et al. 2022, "FP8 formats for deep
 * learning").  Every e4m3 is a BF16 and an F16, exactly.
 *
 * The scale of a row is its largest magnitude / 448, so that this element gets the largest code;
 * the scale of a row of zeros is the smallest normal float.
 *
 * Thread: any.  C17, C++17 and CUDA.
 */
#pragma once

#include "device/bf16.h"

#define HZP_E4M3_MAX 448.0f

HZP_INLINE float hzp_e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, rest = code & 0x7fu;
    if (rest == 0x7f)
        return hzp_f32_from_bits(sign | 0x7fc00000u);
    if (rest < 8)
        return hzp_f32_from_bits(sign | hzp_f32_bits((float)rest * 0x1p-9f));
    return hzp_f32_from_bits(sign | ((rest << 20) + 0x3c000000u));
}

/* Rounds to nearest, ties to even; values above 448 become 448; NaN becomes 0x7f, whatever its
 * sign. */
HZP_INLINE uint8_t hzp_e4m3_from_f32(float x)
{
    uint32_t bits = hzp_f32_bits(x), rest = bits & 0x7fffffffu, code;
    if (rest > 0x7f800000u)
        return 0x7f;
    if (rest >= 0x43e00000u) /* 448 */
        code = 0x7e;
    else if (rest >= 0x3c800000u) /* 2^-6, the smallest normal number */
        code = ((rest + 0x7ffffu + ((rest >> 20) & 1u)) >> 20) - 0x3c0u;
    else /* the last place of 2^14 is 2^-9: adding it rounds to that */
        code = hzp_f32_bits(hzp_f32_from_bits(rest) + 0x1p14f) - 0x46800000u;
    return (uint8_t)(code | (bits >> 24 & 0x80u));
}

/* The scale of a row. largest: the bits of its largest magnitude, compared as unsigned numbers, so
 * that NaN and infinities are the largest; the scale is NaN for those. */
HZP_INLINE float hzp_e4m3_scale(uint32_t largest)
{
    if (largest >= 0x7f800000u)
        return hzp_f32_from_bits(0x7fc00000u);
    float scale = hzp_f32_from_bits(largest) / HZP_E4M3_MAX;
    return scale > 0x1p-126f ? scale : 0x1p-126f;
}
