/* SPDX-License-Identifier: Apache-2.0 */
/* train/checks/evaluate.h - computes the mean loss of a version on held-out samples.
 *
 * Thread: engine, between steps.
 */
#pragma once

#include "nanobatch/model/backward.h"
#include "train/table/sample_log.h"

struct hzp_evaluator;

/* rows_max: of a micro-batch.  fp8: with the products of serving in fp8.  Allocates all its memory
 * here. */
int hzp_evaluator_create(struct hzp_model *model, int32_t rows_max, bool fp8,
                         struct hzp_evaluator **ret);
void hzp_evaluator_destroy(struct hzp_evaluator *e); /* NULL: no effect */

/* From now on with the layers of this depth (nanobatch/model/path.h); at first with all. */
void hzp_evaluator_set_depth(struct hzp_evaluator *e, int32_t depth);

/* Writes what version v says of the pair's learned tokens, as their reference. */
int hzp_evaluator_refer(struct hzp_evaluator *e, const struct hzp_version *v,
                        struct hzp_sample *pair);

/* *ret_loss: mean over the learned tokens, in nats; *ret_tokens: their number.  NaN and 0 if there
 * are none.  A sample of more than rows_max + 1 tokens is split into pieces, each beginning with
 * the last token of the one before. */
int hzp_evaluator_run(struct hzp_evaluator *e, const struct hzp_version *v,
                      struct hzp_sample *const *sample, int32_t count, double *ret_loss,
                      int64_t *ret_tokens);
