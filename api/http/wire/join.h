/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/join.h - in how many steps the tokens of a stream are joined, to be written at
 * once.
 *
 * Writing to a stream costs processor time, most of it in the kernel, which serving lacks where it
 * computes on the same processors.  The tokens of all streams are written in flushes; what a flush
 * costs depends on the number of streams, and little on how many tokens each of them has.  With
 *
 *     c    processor time of a flush: of the I/O threads and of the notifying thread
 *     t    time between two steps that have tokens for streams
 *     P    processors that this process may use
 *     T    I/O threads
 *     k    a flush is of the tokens of so many steps
 *
 * writing takes c / (k t P) of all processors, and c / (k t T) of the I/O threads.  So
 *
 *     k = ceil(max(c / (0.05 t P), c / (0.5 t T)))
 *
 * keeps the former at 5 % and the latter at 50 % at most.  A token waits for up to (k - 1) t, the
 * joining window, which is at most a bound (--stream-join-ms):
 *
 *     k <= 1 + floor(bound / t)
 *
 * c and t are averages in which the newest period counts one half:
 *
 *     c = (c + spent / flushes) / 2,  t = (t + time / steps) / 2     the first: of the period alone
 *
 * Thread: any; pure functions.
 */
#pragma once

#include "base/base.h"

struct hzp_join {
    /* set by the owner */
    int processors, threads; /* P, T; at least 1 */
    uint64_t bound_ns;       /* 0: nothing is joined */
    /* learned */
    double flush_ns, step_ns; /* c, t; 0: nothing is known, nothing is joined */
};

/* A period. */
struct hzp_join_seen {
    uint64_t time_ns, spent_ns; /* how long it was; the processor time of its flushes */
    int64_t flushes, steps;     /* at least one */
};

void hzp_join_learn(struct hzp_join *join, const struct hzp_join_seen *seen);

/* k; at least 1. */
int32_t hzp_join_steps(const struct hzp_join *join);

/* The joining window (k - 1) t, in nanoseconds. */
uint64_t hzp_join_window(const struct hzp_join *join);
