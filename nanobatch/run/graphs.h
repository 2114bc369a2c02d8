/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/graphs.h - decode steps as graphs: what a step issues, given to the device in one
 * go.
 *
 * A graph is keyed by everything its ops are told: their arguments' bytes, their lanes and waits,
 * the lanes' shares.  Rows, positions, pages and ids stand in arrays that those point to, so the
 * same key comes again with every token; the weights' slot is a pointer in it, so each of the two
 * slots has graphs of its own and a swap of versions is the other graph.  The number of rows is one
 * of a few (hzp_batch_pad), and the longest context is rounded up (by at most a half) so that it
 * changes seldom.  A key is captured at the start (hzp_graphs_make) or when it comes for the second
 * time, and its twins with it: the same step on the other slots of weights.  So no swap of versions
 * waits for a capture. The set of twins that was used least recently makes room, where there are
 * more than were reserved.
 *
 * Only steps without prompts are looked at, and of these all items of serving, which come first,
 * but the one that fetches tokens of the step before: how many of them there are is no bucket.
 * Where they are on several lanes, their waits for one another are the graph's; who waits for one
 * of them from outside waits for all.
 *
 * Off where the device has none, or with HZP_GRAPHS=0.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_RUN_GRAPHS_H
#define HZP_NANOBATCH_RUN_GRAPHS_H

#include "nanobatch/build/batch.h"
#include "nanobatch/plan/plan.h"

struct hzp_graphs;

/* NULL: none are to be had. */
struct hzp_graphs *hzp_graphs_create(struct hzp_device *dev);

/* Makes the plan's i-th twin: the same items for serving, from another slot's weights; false: there
 * are no more. */
typedef bool hzp_graph_twin(void *ctx, const struct hzp_plan *plan, int32_t i,
                            struct hzp_plan *ret);

/* Every capture from here on has twins, and so many graphs have room.  Before any is made. */
void hzp_graphs_prepare(struct hzp_graphs *graphs, hzp_graph_twin *twin, void *ctx, int32_t count);

/* How many there are of decode steps of such batches: sizes times contexts times slots of weights
 * times batches; what is beyond HZP_GRAPHS_MAX takes turns. */
enum { HZP_GRAPHS_MIN = 128, HZP_GRAPHS_MAX = 1024 };
int32_t hzp_graphs_count(const struct hzp_batch_config *max, int32_t positions, int32_t slots,
                         int32_t batches);

/* NULL: no effect.  Before the lanes they were made on are closed. */
void hzp_graphs_destroy(struct hzp_graphs *graphs);

/* The plan's items [from, to), which may be one graph. */
struct hzp_graph_part {
    int32_t from, to;
};

/* False: none, or too few to be worth it. */
bool hzp_graphs_fit(const struct hzp_graphs *graphs, const struct hzp_plan *plan,
                    struct hzp_graph_part *ret);

/* What captures of such a plan need beside the graph is made now: fences. */
int hzp_graphs_reserve(struct hzp_graphs *graphs, const struct hzp_plan *plan);

/* Captures this part of the plan and its twins, if that was not yet done; runs nothing. */
void hzp_graphs_make(struct hzp_graphs *graphs, const struct hzp_plan *plan,
                     const struct hzp_graph_part *part, struct hzp_lane *const lane[HZP_LANE_COUNT],
                     const int units[HZP_LANE_COUNT]);

/* Issues this part of the plan (as hzp_graphs_fit said; what comes before it was issued, and the
 * lane of its first item waited for it) as one graph on that lane; when it ran goes to *span
 * (hzp_lane_time; NULL: nobody asks).  lane, units: of all the plan's lanes, by enum hzp_lane_name.
 * 1: done; 0: nothing was issued, because this is new or does not go. */
int hzp_graphs_issue(struct hzp_graphs *graphs, const struct hzp_plan *plan,
                     const struct hzp_graph_part *part, struct hzp_lane *const lane[HZP_LANE_COUNT],
                     const int units[HZP_LANE_COUNT], struct hzp_span *span);

struct hzp_graphs_stats {
    uint64_t launches, captures, evictions;
    uint64_t refusals[2]; /* of one lane, of several */
};
struct hzp_graphs_stats hzp_graphs_read_stats(const struct hzp_graphs *graphs); /* NULL: zeros */

#endif
