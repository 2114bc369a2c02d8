/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/throttle.h - three factors, each 0 .. 1, by which training's slice under goals is
 * reduced: goals that were missed, running slots in use, requests overdue without rows.
 *
 * Thread: any; pure functions.
 */
#ifndef HZP_NANOBATCH_SPLIT_THROTTLE_H
#define HZP_NANOBATCH_SPLIT_THROTTLE_H

#include "nanobatch/split/waits.h"

/* Missed goals: with m the miss rate (hzp_seen_miss_rate) and M the rate at which training ends,
 *
 *     factor = clamp(2 - 2 m / M, 0, 1)     M = 0.007; 0.01 for a goal derived from itl_stretch
 *
 * The goals are for the 99th percentile; M is below 0.01 because the miss rate lags.  A derived
 * goal is itl_stretch times the 99th percentile without training (at 1 serving alone misses it in
 * 1 % of cases); no margin is kept. */
double hzp_throttle_missed(double miss_rate, bool derived_goal);

/* Misses are rare enough for experiments (a long item, training beside serving): m <= 0.007 / 3. */
bool hzp_throttle_rarely_missed(double miss_rate);

/* Slots: longer steps serve less, if no more requests can join them.  With x the part of running
 * slots in use,
 *
 *     factor = clamp((0.95 - x) / (0.95 - 0.5), 0, 1)
 *
 * In between, steps find the length at which arriving and served requests balance.  slots 0: not
 * known, 1. */
double hzp_throttle_slots(int32_t running, int32_t slots);

/* Overdue requests: each step in which a waiting request is overdue multiplies the factor by 0.75;
 * every other step adds 0.05, up to 1. */
double hzp_throttle_overdue(double factor, bool overdue);

/* Whether a waiting request without rows in a step that began at begin_ns is overdue: submitted
 * longer ago than a quarter of the TTFT goal, or than 250 ms without one.  In turns (beside false)
 * every such request is, since all that training takes delays it; beside serving little does. */
bool hzp_overdue(const struct hzp_waits *waits, uint64_t begin_ns, uint64_t ttft_goal_ns,
                 bool beside);

#endif
