/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/warm.h - batches of made-up rows: at its start a server runs every kind of step
 * once with them, before requests arrive; and the products of made-up micro-batches.
 *
 * Decode rows attend to the first position of page 0 and store nothing; prompt rows store at the
 * beginning of the pool.  The tokens sampled for them are not read.  Where a record tells other
 * ranks the step (nanobatch/step_record.h), each segment has a line and pages of its own, and
 * decode rows store there too, because a record has no rows that store nothing.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/backward.h"
#include "nanobatch/model/step.h"
#include "nanobatch/run/exec.h"

struct hzp_warm {
    const struct hzp_kv *kv; /* the pool, all of whose pages are free */
    int32_t positions;       /* length of the longest sequence */
    int32_t lines;           /* rows of the page table, if records tell of the steps; 0: else */
};

/* Fills the batch with `rows` decode rows, one per sequence; at most the batch's sizes, and with
 * lines at most as many, and as many as there are pages. */
void hzp_warm_decode(struct hzp_batch *batch, const struct hzp_warm *warm, int32_t rows);

/* Fills the batch with so many prompt rows, as far as the batch and the pages have room for them,
 * and wants the logits of so many of them. */
void hzp_warm_prompts(struct hzp_batch *batch, const struct hzp_warm *warm, int32_t rows,
                      int32_t logits);

/* Fills the batch with both kinds of rows, so that a plan for them can be built. Do not run it: the
 * rows race for the same pages. */
void hzp_warm_mixed(struct hzp_batch *batch, const struct hzp_warm *warm);

/* Opens the fences of a flight for steps of this shape (step->shape), and leaves step->batch and
 * the plan filled: neither may run.  *ret_items: the largest number of items so far.  HZP_ENOMEM,
 * HZP_EDEVICE. */
int hzp_warm_reserve(struct hzp_flight *flight, struct hzp_plan *plan,
                     const struct hzp_step_plan *step, const struct hzp_warm *warm,
                     int32_t *ret_items);

/* Prepares events for two steps of so many items each, with a slice of training.  HZP_ENOMEM. */
int hzp_warm_times(const struct hzp_model *model, int32_t items);

/* Appends the products (hzp_micro_products) of a micro-batch of `most` rows, of half as many, and
 * so on down to 128, and the head's of fewer learned rows, down to 8, each shape once; micro is
 * empty afterwards.  Without a version: none.  HZP_ENOMEM. */
int hzp_warm_micros(struct hzp_plan *chain, const struct hzp_model *model, struct hzp_micro *micro,
                    int32_t most, struct hzp_train_space *space);
