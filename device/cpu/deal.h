/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/deal.h - the columns of a product, dealt out to the threads of a team in contiguous
 * stretches, large ones first, so that each thread reads W along one stream and all end together.
 *
 * Thread: any; one deal belongs to one product.
 */
#pragma once

#include "base/base.h"

struct hzp_deal {
    int cols, threads;
    int least, round;  /* columns of a stretch: at least, and a multiple of (but for the last) */
    _Atomic int taken; /* columns */
};

/* Columns begin .. end-1; none if equal. */
struct hzp_stretch {
    int begin, end;
};

static inline bool hzp_deal_empty(const struct hzp_deal *deal)
{
    return atomic_load_explicit(&deal->taken, memory_order_relaxed) >= deal->cols;
}

/* The next columns: a part of what is left. */
static inline struct hzp_stretch hzp_deal_take(struct hzp_deal *deal)
{
    int begin = atomic_load_explicit(&deal->taken, memory_order_relaxed), end;

    do {
        int want = HZP_MAX((deal->cols - begin) / (2 * deal->threads), deal->least);
        int rounds = HZP_DIV_UP(want, deal->round);
        end = begin + HZP_MIN(rounds * deal->round, deal->cols - begin);
    } while (!atomic_compare_exchange_weak_explicit(&deal->taken, &begin, end, memory_order_relaxed,
                                                    memory_order_relaxed));
    return (struct hzp_stretch){begin, end};
}
