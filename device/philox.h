/* SPDX-License-Identifier: Apache-2.0 */
/* device/philox.h - counter-based random numbers and the checksum's mixing function, for every
 * backend.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011):
 * a random word is a pure function of key and counter, so a draw does not depend on batch, thread
 * or order.
 *
 * Thread: any.  C17, C++17 and CUDA.
 */
#pragma once

#include "device/bf16.h"

/* Computes the block for this key and the counter c, in place. */
HZP_INLINE void hzp_philox_block(uint64_t key, uint32_t c[4])
{
    uint32_t c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    c[0] = c0, c[1] = c1, c[2] = c2, c[3] = c3;
}

/* Word 0 of that block. */
HZP_INLINE uint32_t hzp_philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t c[4] = {c0, c1, c2, c3};
    hzp_philox_block(key, c);
    return c[0];
}

/* Elements 4 i .. 4 i + 3 of the noise op before scaling: their standard deviation is 147.8. */
HZP_INLINE void hzp_noise_four(uint64_t seed, uint64_t i, float ret[4])
{
    uint32_t c[4] = {(uint32_t)i, (uint32_t)(i >> 32), 0, 1};
    hzp_philox_block(seed, c);
    for (int k = 0; k < 4; k++)
        ret[k] = (float)((int32_t)((c[k] & 255) + (c[k] >> 8 & 255) + (c[k] >> 16 & 255) +
                                   (c[k] >> 24)) -
                         510);
}

/* The factor by which the values of hzp_noise_four are multiplied, so that their standard deviation
 * is `deviation`. */
HZP_INLINE float hzp_noise_scale(float deviation)
{
    return deviation / 147.8f;
}

/* Gumbel noise of a random word: -log(-log(u)), u = (w + 0.5) 2^-32, in double because in float
 * the largest u would round to 1.  Between -3.2 and 23. */
HZP_INLINE double hzp_gumbel(uint32_t w)
{
    return -log(-log(((double)w + 0.5) * (1.0 / 4294967296.0)));
}

/* The noise added to the logit of `token`, see struct hzp_sample_row in device/ops.h. */
HZP_INLINE double hzp_draw_noise(uint64_t seed, uint32_t token, uint32_t position, uint32_t choice)
{
    return hzp_gumbel(hzp_philox(seed, token, position, choice, 0));
}

/* The SplitMix64 finaliser (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators). */
HZP_INLINE uint64_t hzp_mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The contribution of one word to audit's checksum. */
HZP_INLINE uint64_t hzp_audit_mix(uint64_t i, uint64_t word)
{
    return hzp_mix64(word + (i + 1) * 0x9e3779b97f4a7c15u);
}
