/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/link/worker.h"

static size_t blocks_of(size_t bytes)
{
    return HZP_DIV_UP(bytes, (size_t)HZP_LINK_BLOCK);
}

/* Bytes of the bitmap: whole words. */
static size_t bitmap_of(size_t bytes)
{
    return HZP_DIV_UP(blocks_of(bytes), (size_t)32) * sizeof(uint32_t);
}

size_t hzp_sparse_room(size_t bytes)
{
    return bitmap_of(bytes) + bytes;
}

size_t hzp_sparse_fits(size_t room)
{
    size_t blocks = room / HZP_LINK_BLOCK;
    while (blocks && hzp_sparse_room(blocks * HZP_LINK_BLOCK) > room)
        blocks--;
    return blocks * HZP_LINK_BLOCK;
}

/* Whether a block of `bytes` is all zeros; -0 counts as zero. */
static bool is_zero(const char *block, size_t bytes)
{
    const uint32_t *word = (const uint32_t *)(const void *)block;
    uint32_t any = 0;
    for (size_t i = 0; i < bytes / sizeof(*word); i++)
        any |= word[i];
    return !(any & 0x7fffffffu);
}

size_t hzp_sparse_size(const void *from, size_t bytes)
{
    const char *block = from;
    size_t size = bitmap_of(bytes);
    for (size_t left = bytes, n; left; left -= n, block += n) {
        n = HZP_MIN(left, (size_t)HZP_LINK_BLOCK);
        size += is_zero(block, n) ? 0 : n;
    }
    return size;
}

size_t hzp_sparse_pack(const void *from, size_t bytes, void *to)
{
    uint32_t *bitmap = to;
    const char *block = from;
    size_t at = bitmap_of(bytes);
    memset(bitmap, 0, at);
    for (size_t b = 0; b < blocks_of(bytes); b++, block += HZP_LINK_BLOCK) {
        size_t n = HZP_MIN(bytes - b * HZP_LINK_BLOCK, (size_t)HZP_LINK_BLOCK);
        if (is_zero(block, n))
            continue;
        bitmap[b / 32] |= 1u << b % 32;
        memcpy((char *)to + at, block, n);
        at += n;
    }
    return at;
}

bool hzp_sparse_add(float *sum, size_t bytes, const void *packed, size_t size)
{
    const uint32_t *bitmap = packed;
    size_t at = bitmap_of(bytes);
    if (size < at)
        return false;
    for (size_t b = 0; b < blocks_of(bytes); b++) {
        if (!(bitmap[b / 32] >> b % 32 & 1))
            continue;
        size_t n = HZP_MIN(bytes - b * HZP_LINK_BLOCK, (size_t)HZP_LINK_BLOCK);
        if (size - at < n)
            return false;
        const float *from = (const float *)(const void *)((const char *)packed + at);
        float *to = sum + b * (HZP_LINK_BLOCK / sizeof(*sum));
        for (size_t i = 0; i < n / sizeof(*sum); i++)
            to[i] += from[i];
        at += n;
    }
    return at == size;
}
