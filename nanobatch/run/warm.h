/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/warm.h - batches of padding rows, with which a server's start runs every kind of
 * step once before requests come.
 *
 * Decode rows attend to the first position of page 0 and store nothing; prompt rows store at the
 * beginning of the pool.  Their draws are not read.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_RUN_WARM_H
#define HZP_NANOBATCH_RUN_WARM_H

#include "nanobatch/build/batch.h"

/* Decode rows of so many sequences; at most the batch's sizes. */
void hzp_warm_decode(struct hzp_batch *batch, int32_t rows);

/* Prompt rows, as many as the batch and the pages have room for. */
void hzp_warm_prompts(struct hzp_batch *batch, const struct hzp_kv *kv);

/* Both kinds of rows, so that a plan of them can be built; to run it would be a race. */
void hzp_warm_mixed(struct hzp_batch *batch, const struct hzp_kv *kv);

#endif
