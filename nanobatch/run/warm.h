/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/warm.h - batches of padding rows: at its start a server runs every kind of step
 * once with them, before requests arrive; and the products of made-up micro-batches.
 *
 * Decode rows attend to the first position of page 0 and store nothing; prompt rows store at the
 * beginning of the pool.  The tokens sampled for them are not read.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_RUN_WARM_H
#define HZP_NANOBATCH_RUN_WARM_H

#include "nanobatch/model/backward.h"
#include "nanobatch/model/batch.h"

/* Fills the batch with `rows` decode rows, one per sequence; at most the batch's sizes. */
void hzp_warm_decode(struct hzp_batch *batch, int32_t rows);

/* Fills the batch with so many prompt rows, as far as the batch and the pages have room for them,
 * and wants the logits of so many of them. */
void hzp_warm_prompts(struct hzp_batch *batch, const struct hzp_kv *kv, int32_t rows,
                      int32_t logits);

/* Fills the batch with both kinds of rows, so that a plan for them can be built. Do not run it: the
 * rows race for the same pages. */
void hzp_warm_mixed(struct hzp_batch *batch, const struct hzp_kv *kv);

/* Appends the products (hzp_micro_products) of a micro-batch of all rows that there is room for, of
 * half as many, and so on down to 128, and the head's of fewer learned rows, down to 8, each shape
 * once; micro is empty afterwards.  Without a version: none.  HZP_ENOMEM. */
int hzp_warm_micros(struct hzp_plan *chain, const struct hzp_model *model, struct hzp_micro *micro,
                    struct hzp_train_space *space);

#endif
