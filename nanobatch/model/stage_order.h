/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/stage_order.h - in which order stages (weights/groups.h) work on the
 * micro-batches of an update.
 *
 * A micro-batch goes through all stages, back to rank 0, which has the head, and backward through
 * all stages to rank 0 again: 2 S + 1 tasks.  The order is that of a simulated run: always the task
 * that can begin first, of those the one farthest on its way.  So forward and backward tasks
 * alternate once the stages are busy (1F1B).  It is a pure function of the arguments, so all ranks
 * have the same.
 *
 * Invariants:
 * - In each place of the way micro-batches follow each other by number, so sums of gradients have
 *   that order.
 * - A stage has at most hzp_stages_kept micro-batches whose backward task has not ended.
 * - Of three tasks of a rank in a row that pass on a gradient, the first one's has been taken
 *   before the third begins: there are two places for such gradients.
 * - What a task needs comes before it.  Ranks that do their tasks in this order, and exchange what
 *   each task needs in the order of the tasks that need it, never wait for each other in a circle.
 *
 * Thread: any.
 */
#pragma once

#include "weights/groups.h"

enum hzp_stage_work { HZP_STAGE_FORWARD, HZP_STAGE_HEAD, HZP_STAGE_BACKWARD };

struct hzp_stage_task {
    enum hzp_stage_work work;
    int32_t stage, micro;
    int32_t input; /* the task that its input comes from, on another rank; -1: none */
};

struct hzp_stage_order {
    struct hzp_stage_task *task;
    int32_t tasks, room;
};

/* Micro-batches that a rank keeps at most between their forward and backward tasks; 1 without
 * stages. */
int32_t hzp_stages_kept(const struct hzp_shards *shards);

/* Replaces the order by that of so many micro-batches through the stages of this layout. */
void hzp_stage_order_make(struct hzp_stage_order *order, const struct hzp_shards *shards,
                          const struct hzp_layout *layout, int32_t micros);
void hzp_stage_order_free(struct hzp_stage_order *order);
