/* SPDX-License-Identifier: Apache-2.0 */
/* tests/serve/seeded.h - random numbers that depend only on a seed (SplitMix64).
 *
 * Thread: the seed's owner.
 */
#pragma once

#include <stdint.h>

/* A number in 0 .. below - 1. */
static inline uint32_t seeded(uint64_t *seed, uint32_t below)
{
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32) % below;
}
