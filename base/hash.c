/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

uint64_t hzp_fnv(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}
