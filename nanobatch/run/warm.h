/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/warm.h - batches that nobody asked for, with which a server's start goes once
 * through the steps that will come.
 *
 * Decode rows attend to the first position of page 0 and store nothing; prompts' rows store at the
 * beginning of the pool.  What anybody draws nobody reads.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_RUN_WARM_H
#define HZP_NANOBATCH_RUN_WARM_H

#include "nanobatch/build/batch.h"

/* So many sequences that decode; not more than fit (all of its sizes). */
void hzp_warm_decode(struct hzp_batch *batch, int32_t rows);

/* Prompts, as many rows as the batch and the pages have room for. */
void hzp_warm_prompts(struct hzp_batch *batch, const struct hzp_kv *kv);

/* As many of both as show what a plan of them looks like; it would be a race to run it. */
void hzp_warm_mixed(struct hzp_batch *batch, const struct hzp_kv *kv);

#endif
