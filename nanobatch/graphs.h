/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/graphs.h - decode steps as graphs: what a step issues, given to the device in one go.
 *
 * A graph is keyed by everything its ops are told: their arguments' bytes, the lane, the lane's share.
 * Rows, positions, pages and ids stand in arrays that those point to, so the same key comes again
 * with every token; the weights' slot is a pointer in it, so each of the two slots has graphs of its
 * own and a swap of versions is the other graph.  The longest context is rounded up (by at most a
 * half) so that it changes seldom.  A key is captured when it comes for the second time; the one
 * that was used least recently makes room.
 *
 * Only steps without prompts are looked at, and of these the items of serving that come first, as far
 * as they are all on one lane and nobody else waits for one of them but the last.
 *
 * Off where the device has none, or with HZP_GRAPHS=0.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_GRAPHS_H
#define HZP_NANOBATCH_GRAPHS_H

#include "nanobatch/plan.h"

struct hzp_graphs;

/* NULL: none are to be had. */
struct hzp_graphs *hzp_graphs_create(struct hzp_device *dev);

/* NULL: no effect.  Before the lanes they were made on are closed. */
void hzp_graphs_destroy(struct hzp_graphs *graphs);

/* How many of the plan's first items may be one graph; 0: too few to be worth it. */
int32_t hzp_graphs_fit(const struct hzp_graphs *graphs, const struct hzp_plan *plan);

/* Issues the plan's first `items` (as hzp_graphs_fit said) on the lane, which has so many units of
 * its own, as one graph; when it ran goes to *span (hzp_lane_time; NULL: nobody asks).  1: done; 0:
 * nothing was issued, because this is new or does not go. */
int hzp_graphs_issue(struct hzp_graphs *graphs, const struct hzp_plan *plan, int32_t items,
                     struct hzp_lane *lane, int units, struct hzp_span *span);

struct hzp_graphs_stats {
    uint64_t launches, captures, evictions, refusals;
};
struct hzp_graphs_stats hzp_graphs_read_stats(const struct hzp_graphs *graphs); /* NULL: zeros */

#endif
