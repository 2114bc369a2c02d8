/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/stages.h - the micro-batches of an update on a rank that holds some of the layers
 * (weights/groups.h, stages): which task is next, and what it gets from and sends to other stages.
 *
 * Each task (nanobatch/model/stage_order.h) is a chain of its own.  When an update's micro-batches
 * begin, the transfers of all of its tasks are put into the collectives' list, in the order of the
 * tasks that need them.  One that receives is posted when its place is free, so it may arrive while
 * the task before is computed; one that sends, when the task has ended, and the next task begins
 * meanwhile.  A task waits for what it receives, and for its place.
 *
 * Thread: engine.
 */
#pragma once

#include "train/learner/collectives.h"

struct hzp_stages;

/* Borrows both.  The space has been made with these shards. */
struct hzp_stages *hzp_stages_create(struct hzp_collectives *x, struct hzp_train_space *space);
void hzp_stages_destroy(struct hzp_stages *s); /* NULL: no effect */

/* An update's micro-batches begin, of rows[i] rows each, along path[i]. */
void hzp_stages_begin(struct hzp_stages *s, const int32_t *rows, const struct hzp_stage_path *path,
                      int32_t micros);

/* The current task; NULL: all have ended, or no micro-batch comes to this stage. */
const struct hzp_stage_task *hzp_stages_task(const struct hzp_stages *s);
/* Builds its chain; *micro is its micro-batch, with all layers of this stage.  Without a task: the
 * chain that zeroes the sums of the gradients. */
void hzp_stages_build(struct hzp_stages *s, struct hzp_plan *chain, const struct hzp_version *v,
                      const struct hzp_micro *micro);
/* It has ended; loss: the sum of the losses of a head's. */
void hzp_stages_end(struct hzp_stages *s, double loss);
