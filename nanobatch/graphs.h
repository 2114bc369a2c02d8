/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/graphs.h - decode steps as graphs: what a step issues, given to the device in one go.
 *
 * A graph is keyed by everything its ops are told: their arguments' bytes, their lanes and waits, the
 * lanes' shares.  Rows, positions, pages and ids stand in arrays that those point to, so the same key
 * comes again with every token; the weights' slot is a pointer in it, so each of the two slots has
 * graphs of its own and a swap of versions is the other graph.  The number of rows is one of a few
 * (hzp_batch_pad), and the longest context is rounded up (by at most a half) so that it changes
 * seldom.  A key is captured when it comes for the second time; the one that was used least recently
 * makes room.
 *
 * Only steps without prompts are looked at, and of these all items of serving, which come first, but
 * the one that fetches tokens of the step before: how many of them there are is no bucket.  Where they
 * are on several lanes, their waits for one another are the graph's; who waits for one of them from
 * outside waits for all.
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

/* The plan's items [from, to), which may be one graph. */
struct hzp_graph_part {
    int32_t from, to;
};

/* False: none, or too few to be worth it. */
bool hzp_graphs_fit(const struct hzp_graphs *graphs, const struct hzp_plan *plan,
                    struct hzp_graph_part *ret);

/* Issues this part of the plan (as hzp_graphs_fit said; what comes before it was issued, and the lane of
 * its first item waited for it) as one graph on that lane; when it ran goes to *span (hzp_lane_time;
 * NULL: nobody asks).  lane, units: of all the plan's lanes, by enum hzp_lane_name.  1: done; 0: nothing
 * was issued, because this is new or does not go. */
int hzp_graphs_issue(struct hzp_graphs *graphs, const struct hzp_plan *plan,
                     const struct hzp_graph_part *part, struct hzp_lane *const lane[HZP_LANE_COUNT],
                     const int units[HZP_LANE_COUNT], struct hzp_span *span);

struct hzp_graphs_stats {
    uint64_t launches, captures, evictions;
    uint64_t refusals[2]; /* of one lane, of several */
};
struct hzp_graphs_stats hzp_graphs_read_stats(const struct hzp_graphs *graphs); /* NULL: zeros */

#endif
