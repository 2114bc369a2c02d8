/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/graphs.h - decode steps as device graphs (CUDA graphs): all ops of a step are
 * issued by one launch.
 *
 * A graph's key is everything its ops are given: the bytes of their arguments, their lanes and
 * waits, and the lanes' shares.  Rows, positions, pages and ids are in arrays behind pointers, so
 * the same key repeats with every token.  The key contains the pointer to the slot of the weights,
 * so each slot has its own graphs, and publishing a version switches to other graphs.  The number
 * of rows is padded to one of a few sizes (hzp_batch_pad); of contexts the key has only the longest
 * that there can be, because decode attention makes its list of work on the device.  A key is
 * captured at the start (hzp_graphs_make) or when it comes for the second time, together with its
 * variants: the same step on the other slots of weights.  So no change of versions waits for a
 * capture.  When all places are taken, or the driver's memory for graphs, the least recently used
 * set of variants is evicted.
 *
 * Only steps without prompts become graphs. The graph holds the items of serving, which come first,
 * except the ones that fetch tokens of the previous step and that change the table of pages: how
 * much those move varies freely. If the items are on several lanes, their waits for one another are
 * part of the graph; an item outside the graph that waits for one of them waits for the whole
 * graph.
 *
 * Steps that ranks compute together are issued op by op: NCCL wants a collective to be in a graph
 * on all ranks or on none, and each rank decides for itself when it captures.
 *
 * Off if the device has no graphs, or with HZP_GRAPHS=0.  A key whose capture has failed
 * three times, or whose graph alone is larger than the room for all, is not captured again; other
 * keys are.  Each such step is counted (device/fallback.h).  After the start, captures are
 * rationed, because requests wait for them: four, then one for every sixteen steps.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/batch.h"

/* A fence for each item of a plan that an item on another lane waits for.  Fences are opened when
 * they are first needed, and kept.  All 0: none. */
struct hzp_plan_fences {
    struct hzp_fence **fence; /* [opened] */
    int32_t *of;              /* [of_room]: of each item -1, or the index of its fence */
    int32_t opened, room, of_room;
};
/* Assigns them to items [from, to), of those that wait for each other, and opens `more` than that
 * if there are any.  HZP_ENOMEM, HZP_EDEVICE. */
int hzp_plan_fences_assign(struct hzp_plan_fences *f, struct hzp_device *dev,
                           const struct hzp_plan *plan, int32_t from, int32_t to, int32_t more);
void hzp_plan_fences_close(struct hzp_plan_fences *f);

struct hzp_graphs;

/* NULL: the device has no graphs, or they are off. */
struct hzp_graphs *hzp_graphs_create(struct hzp_device *dev);

/* Makes the plan's i-th variant: the same items for serving, from another slot's weights.  False:
 * there are no more. */
typedef bool hzp_graph_variant(void *ctx, const struct hzp_plan *plan, int32_t i,
                               struct hzp_plan *ret);

/* How many graphs are kept, and how much of the device's memory they may take, counted as `graph`
 * for each graph of the driver (one, or several where hzp_device_cuts_graphs) and `node` for each
 * item.  bytes 0: any. */
struct hzp_graphs_room {
    int32_t count;
    size_t bytes;
    size_t graph, node; /* bytes, as measured (driver.h) */
};

/* Sets how captures make their variants, and the room for graphs.  Call it before any graph is
 * made. */
void hzp_graphs_prepare(struct hzp_graphs *graphs, hzp_graph_variant *variant, void *ctx,
                        const struct hzp_graphs_room *room);

/* The most different graphs that decode steps of such batches need: sizes * slots of weights *
 * batches * shapes of a step (hzp_plan_shapes_each).  At most HZP_GRAPHS_MAX are kept. */
enum { HZP_GRAPHS_MIN = 128, HZP_GRAPHS_MAX = 1024 };
int32_t hzp_graphs_count(const struct hzp_batch_config *max, int32_t slots, int32_t batches,
                         int32_t shapes);

/* Ends the start: from here on requests may wait for a capture, and captures are rationed.  NULL:
 * no effect. */
void hzp_graphs_steady(struct hzp_graphs *graphs);

/* NULL: no effect.  Call it before the lanes of the graphs are closed. */
void hzp_graphs_destroy(struct hzp_graphs *graphs);

/* Items [from, to) of the plan, which may be issued as one graph. */
struct hzp_graph_part {
    int32_t from, to;
};

/* Finds the part of the plan that can be a graph. False: there is none, or it is too short to be
 * worth it. */
bool hzp_graphs_fit(const struct hzp_graphs *graphs, const struct hzp_plan *plan,
                    struct hzp_graph_part *ret);

/* Opens the fences that captures of this plan need, and so many more as hzp_flight_reserve does. */
int hzp_graphs_reserve(struct hzp_graphs *graphs, const struct hzp_plan *plan, int32_t more);

/* Captures this part of the plan and its variants, unless they exist already; runs nothing.
 */
void hzp_graphs_make(struct hzp_graphs *graphs, const struct hzp_plan *plan,
                     const struct hzp_graph_part *part, struct hzp_lane *const lane[HZP_LANE_COUNT],
                     const int shares[HZP_LANE_COUNT]);

/* Issues this part of the plan as one graph on the lane of the part's first item. The part is from
 * hzp_graphs_fit; the items before it were issued, and that lane waited for them. *span gets the
 * time it ran (hzp_lane_time; NULL: not wanted).  lane, shares: of all the plan's lanes, by enum
 * hzp_lane_name. 1: issued; 0: not issued, because the key is new or cannot be captured. */
int hzp_graphs_issue(struct hzp_graphs *graphs, const struct hzp_plan *plan,
                     const struct hzp_graph_part *part, struct hzp_lane *const lane[HZP_LANE_COUNT],
                     const int shares[HZP_LANE_COUNT], struct hzp_span *span);

struct hzp_graphs_stats {
    uint64_t launches, captures, evictions;
    uint64_t refusals[2]; /* failed captures on one lane; on several lanes */
    /* graphs of the driver that were launched: several a launch where the device cuts graphs */
    uint64_t pieces;
    uint64_t graphs, nodes, bytes; /* the driver's, kept now, as counted */
};
struct hzp_graphs_stats hzp_graphs_read_stats(const struct hzp_graphs *graphs); /* NULL: zeros */
