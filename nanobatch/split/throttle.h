/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/throttle.h - three factors, each 0 .. 1, by which training's slice under goals is
 * reduced: goals that were missed, running slots in use, requests overdue without rows.
 *
 * Thread: any; pure functions.
 */
#pragma once

#include "nanobatch/split/waits.h"

/* Missed goals of the operator: with m the rate at which serving alone misses them
 * (hzp_seen_alone_miss_rate),
 *
 *     factor = clamp(2 - 2 m / 0.01, 0, 1)
 *
 * A goal derived from itl_stretch follows what serving alone does, and needs no such factor.  What
 * training makes late is bounded by aim.h. */
double hzp_throttle_missed(double alone_miss_rate);

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

/* Whether a request has no rows in this step while every running slot is taken: it waits until
 * another one ends, which any training makes later. */
bool hzp_crowded(const struct hzp_waits *waits);

/* Overdue requests: each step in which a waiting request is overdue multiplies the factor by 0.75;
 * every other step adds 0.05, up to 1. */
double hzp_throttle_overdue(double factor, bool overdue);

/* Whether a waiting request without rows in a step that began at begin_ns is overdue: submitted
 * longer ago than a quarter of the TTFT goal, or than 250 ms without one.  In turns (beside false)
 * every such request is, since all that training takes delays it; beside serving little does. */
bool hzp_overdue(const struct hzp_waits *waits, uint64_t begin_ns, uint64_t ttft_goal_ns,
                 bool beside);
