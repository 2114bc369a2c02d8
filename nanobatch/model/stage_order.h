/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/stage_order.h - in which order stages (weights/groups.h) work on the
 * micro-batches of an update.
 *
 * A micro-batch goes along a path of L stages, all in order without --skip, back to rank 0, which
 * has the head, and backward along the path to rank 0 again: 2 L + 1 tasks.  The order is that of a
 * simulated run: always the task that can begin first, of those the one farthest on its way.  So
 * forward and backward tasks alternate once the stages are busy (1F1B).  It is a pure function of
 * the arguments, so all ranks have the same.
 *
 * Invariants:
 * - Heads, and on each stage backward tasks, follow each other by micro-batches' numbers, so sums
 *   of gradients have that order.  Forward tasks may overtake, on paths that differ.
 * - A stage has at most hzp_stages_kept micro-batches whose backward task has not ended.
 * - Of three tasks of a rank in a row that pass on a gradient, the first one's has been taken
 *   before the third begins: there are two places for such gradients.  Rank 0's backward tasks pass
 *   none on, and have a place of their own.  (So the unfinished micro-batch of the lowest number
 *   waits for none of a higher number, and the run comes to an end on any paths.)
 * - What a task needs comes before it.  Ranks that do their tasks in this order, and exchange what
 *   each task needs in the order of the tasks that need it, never wait for each other in a circle.
 *
 * Thread: any.
 */
#pragma once

#include "nanobatch/model/path.h"
#include "weights/groups.h"

/* Stages of a path at most, other than all of them; it begins with 0 and has two or more. */
enum { HZP_STAGE_PATH_MAX = 16 };

struct hzp_stage_path {
    int32_t count; /* 0: all stages in order */
    uint8_t stage[HZP_STAGE_PATH_MAX];
};

enum hzp_stage_work { HZP_STAGE_FORWARD, HZP_STAGE_HEAD, HZP_STAGE_BACKWARD };

struct hzp_stage_task {
    enum hzp_stage_work work;
    int32_t stage, micro;
    int32_t visit; /* number of the micro-batch among those that come to this stage */
    int32_t input; /* the task that its input comes from, on another rank; -1: none */
};

struct hzp_stage_order {
    struct hzp_stage_task *task;
    int32_t tasks, room;
};

/* Micro-batches that a rank keeps at most between their forward and backward tasks; 1 without
 * stages. */
int32_t hzp_stages_kept(const struct hzp_shards *shards);

/* Replaces the order by that of so many micro-batches through the stages of this layout.  path
 * [micros]; NULL: all stages in order. */
void hzp_stage_order_make(struct hzp_stage_order *order, const struct hzp_shards *shards,
                          const struct hzp_layout *layout, int32_t micros,
                          const struct hzp_stage_path *path);
void hzp_stage_order_free(struct hzp_stage_order *order);

/* The layers of a path's stages; and the path that has them, HZP_EINVAL: there is none. */
void hzp_stage_path_layers(const struct hzp_stage_path *path, const struct hzp_shards *shards,
                           const struct hzp_layout *layout, struct hzp_path *ret);
int hzp_stage_path_read(const struct hzp_path *layers, const struct hzp_shards *shards,
                        const struct hzp_layout *layout, struct hzp_stage_path *ret);
