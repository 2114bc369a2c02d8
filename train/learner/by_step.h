/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/by_step.h - a learner on a rank that computes each step together with rank 0: it
 * makes the chains of rank 0's learner from the work in the steps' records, and updates its slice
 * of the model (weights/tensor_slice.h).
 *
 * Documents, numbers of AdamW, and when a version is published all come with the records; whether
 * an update counts follows from its result, which the chain reduces over all ranks.  A gate's
 * evaluations are computed here, too, and their losses not looked at: a draft that rank 0 refuses
 * is given up at the end of the chain that copies moments and residuals back.
 *
 *     record            rank 0's learner          here
 *     first slice       has built the chain       _chain: builds it from the work
 *     items have run                              _ran: an update that ended well is in the draft
 *     another version   has published the draft   _publish: publishes it, too
 *
 * So all ranks are at the same place of the same chain after each step: a border between two chains
 * is one on every rank.
 *
 * Owns: its learner.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/step_record.h"
#include "train/learner/learner.h"

struct hzp_learner_by_step;

/* Bytes of the longest work of a chain (hzp_step_limits.work_bytes). */
int32_t hzp_learner_work_room(const struct hzp_recipe *recipe);

/* Allocates all its device memory here, none later.  config->undoes: rank 0 has a gate.
 * HZP_ENOMEM, HZP_EDEVICE. */
int hzp_learner_by_step_create(const struct hzp_learner_config *config,
                               struct hzp_learner_by_step **ret);
void hzp_learner_by_step_destroy(struct hzp_learner_by_step *b); /* NULL: no effect */
struct hzp_learner *hzp_learner_by_step_learner(struct hzp_learner_by_step *b);

/* The callbacks of struct hzp_member_config, whose ctx is the by_step.
 *
 * chain: HZP_EFORMAT: the work cannot be read; HZP_EINVAL: rank 0 is at another place of its chains
 * than this rank; HZP_EBUSY: no slot of weights is free.
 * publish: HZP_EINVAL: there is no finished update. */
int hzp_learner_by_step_chain(void *by_step, const struct hzp_step_record *record,
                              const struct hzp_plan **ret, struct hzp_err_text *reterr);
void hzp_learner_by_step_ran(void *by_step, const struct hzp_step_record *record,
                             const struct hzp_version *version, const struct hzp_batch *batch);
int hzp_learner_by_step_publish(void *by_step, uint64_t id, struct hzp_err_text *reterr);

struct hzp_learner_by_step_stats {
    uint64_t micros, halved;      /* halved: of the micro-batches, those whose halves take turns */
    uint64_t updates, skipped;    /* skipped: updates that were not finite */
    uint64_t evaluations, undone; /* a gate's micro-batches; updates it has refused */
    uint64_t publications;
};
void hzp_learner_by_step_read_stats(const struct hzp_learner_by_step *b,
                                    struct hzp_learner_by_step_stats *ret);
