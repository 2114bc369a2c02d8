/* SPDX-License-Identifier: Apache-2.0 */
/* device/q8.h - the optimizer's moments in 8 bits: a code for each element, a scale for each block.
 *
 * A block is 256 neighbouring elements of a unit; the last may be shorter.  A first moment is
 * M (k / 127)^4 with the sign of its code k, M the largest magnitude of its block; a second one is
 * (R (k / 255)^2)^2, R the largest root of its block.  Fourth powers have about as many codes in
 * each decade as the "dynamic" map of Dettmers et al. 2022 ("8-bit optimizers via block-wise
 * quantization"), over ten decades, and two square roots find a code.
 *
 * A first moment gets the nearest code.  A second one changes so little in an update that the
 * nearest would stay what it is: it is rounded up or down by chance, by a hash of its own bits, so
 * that a number gets one code wherever it lies.  Those above 0 have codes above 0: otherwise eps
 * alone would divide their steps.
 *
 * Thread: any.  C17, C++17 and CUDA.
 */
#pragma once

#include "device/bf16.h"

enum { HZP_Q8_BLOCK = 256 };

#define HZP_Q8_FIRST  127.0f
#define HZP_Q8_SECOND 255.0f

HZP_INLINE float hzp_q8_first(int8_t code, float scale)
{
    float q = (float)code / HZP_Q8_FIRST;
    return scale * (q * q * (q * fabsf(q)));
}

/* The root of a second moment. */
HZP_INLINE float hzp_q8_root(uint8_t code, float scale)
{
    float q = (float)code / HZP_Q8_SECOND;
    return scale * (q * q);
}

/* From -1/2 to 1/2; the last bits, in which backends differ, are left out of the hash. */
HZP_INLINE float hzp_q8_dither(float root)
{
    uint32_t hash = (hzp_f32_bits(root) >> 6) * 0x9e3779b1u;
    return (float)(hash >> 8) * 0x1p-24f - 0.5f;
}

/* The scale of a block whose largest number is this one: finite. */
HZP_INLINE float hzp_q8_scale(float largest)
{
    return fminf(largest, 3.4028234e38f);
}

HZP_INLINE int8_t hzp_q8_from_first(float m, float scale)
{
    float y = scale > 0 ? HZP_Q8_FIRST * sqrtf(sqrtf(fabsf(m) / scale)) : 0;
    return (int8_t)copysignf(rintf(fminf(y, HZP_Q8_FIRST)), m);
}

HZP_INLINE uint8_t hzp_q8_from_root(float root, float scale)
{
    float y = scale > 0 ? HZP_Q8_SECOND * sqrtf(root / scale) : 0;
    float code = fminf(rintf(y + hzp_q8_dither(root)), HZP_Q8_SECOND);
    return (uint8_t)fmaxf(code, root > 0 ? 1.0f : 0.0f);
}
