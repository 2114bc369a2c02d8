/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/ranges.h - a product's steps, dealt out to the tasks of a run as one range each, of
 * which a task that has none left takes half of another's: each thread goes through memory in
 * order, and all end together, however fast each of them is.
 *
 * Thread: hzp_range_set before the run; the others in a task, of its own range.
 */
#pragma once

#include "base/base.h"

/* Steps that no task has begun, in one word: the next one, and above it the end. */
struct hzp_range {
    _Alignas(64) _Atomic uint64_t left;
};

static inline uint64_t hzp_range_of(uint32_t begin, uint32_t end)
{
    return begin | (uint64_t)end << 32;
}

static inline int hzp_range_length(uint64_t left)
{
    return (int)(left >> 32) - (int)(uint32_t)left;
}

static inline void hzp_range_set(struct hzp_range *range, int begin, int end)
{
    atomic_init(&range->left, hzp_range_of((uint32_t)begin, (uint32_t)end));
}

/* The next step; -1: none is left. */
static inline int hzp_range_next(struct hzp_range *range)
{
    uint64_t left = atomic_load_explicit(&range->left, memory_order_relaxed);

    do {
        if (hzp_range_length(left) == 0)
            return -1;
    } while (!atomic_compare_exchange_weak_explicit(&range->left, &left, left + 1,
                                                    memory_order_relaxed, memory_order_relaxed));
    return (int)(uint32_t)left;
}

/* Moves half of the longest range, its end, to range[own], which is empty; false: all are empty.
 * A step is never put back, so a word that is as it was read still means the same. */
static inline bool hzp_range_steal(struct hzp_range *range, int count, int own)
{
    for (;;) {
        uint64_t most = 0;
        int from = 0;
        for (int i = 0; i < count; i++) {
            uint64_t left = atomic_load_explicit(&range[i].left, memory_order_relaxed);
            if (hzp_range_length(left) > hzp_range_length(most)) {
                most = left;
                from = i;
            }
        }
        if (hzp_range_length(most) == 0)
            return false;
        uint32_t end = (uint32_t)(most >> 32);
        uint32_t cut = end - (uint32_t)(hzp_range_length(most) + 1) / 2;
        uint64_t rest = hzp_range_of((uint32_t)most, cut);
        if (!atomic_compare_exchange_strong_explicit(&range[from].left, &most, rest,
                                                     memory_order_relaxed, memory_order_relaxed))
            continue;
        atomic_store_explicit(&range[own].left, hzp_range_of(cut, end), memory_order_relaxed);
        return true;
    }
}
