/* SPDX-License-Identifier: Apache-2.0 */
/* train/group_learner.h - learning on a rank that computes each step together with rank 0: it makes
 * the chains of rank 0's trainer from the work in the steps' records, and updates its slice of the
 * model (weights/tensor_slice.h).
 *
 * It decides nothing.  Documents, numbers of AdamW, and when a version is published all come with
 * the records; whether an update counts follows from its result, which the chain reduces over all
 * ranks.  A gate's evaluations are computed here, too, and their losses not looked at: a draft that
 * rank 0 refuses is given up at the end of the chain that copies moments and residuals back.  As in
 * the trainer an update that is not published yet stays in the draft, which the next one reads and
 * writes in place.
 *
 *     record            rank 0's trainer          here
 *     first slice       has built the chain       _chain: builds it from the work
 *     items have run                              _ran: an update that ended well is in the draft
 *     another version   has published the draft   _publish: publishes it, too
 *
 * So all ranks are at the same place of the same chain after each step: a border between two chains
 * is one on every rank.
 *
 * Owns: gradients, moments, residuals, activations (hzp_train_space), the micro-batch, the draft.
 *
 * Thread: engine.
 */
#ifndef HZP_TRAIN_GROUP_LEARNER_H
#define HZP_TRAIN_GROUP_LEARNER_H

#include "nanobatch/step_record.h"
#include "train/trainer.h"

struct hzp_group_learner;

struct hzp_group_learner_config {
    struct hzp_recipe recipe; /* only micro_rows and moment_type are used; both as on rank 0 */
    struct hzp_model *model;  /* one slice of several */
    uint64_t quantum_flops;   /* as on rank 0 */
    bool gate;                /* rank 0 has one: there is room for what a refused draft undoes */
};

/* Bytes of the longest work of a chain (hzp_step_limits.work_bytes). */
int32_t hzp_group_work_room(const struct hzp_recipe *recipe);

/* Allocates all its device memory here, none later.  The model is borrowed.  HZP_ENOMEM,
 * HZP_EDEVICE. */
int hzp_group_learner_create(const struct hzp_group_learner_config *config,
                             struct hzp_group_learner **ret);
void hzp_group_learner_destroy(struct hzp_group_learner *l); /* NULL: no effect */

/* For checkpoints and tests; valid between chains. */
struct hzp_train_space *hzp_group_learner_space(struct hzp_group_learner *l);

/* As hzp_trainer_products. */
int hzp_group_learner_products(struct hzp_group_learner *l, struct hzp_plan *chain);

/* The callbacks of struct hzp_member_config, whose ctx is the learner.
 *
 * chain: HZP_EFORMAT: the work cannot be read; HZP_EINVAL: rank 0 is at another place of its chains
 * than this rank; HZP_EBUSY: no slot of weights is free.
 * publish: HZP_EINVAL: there is no finished update. */
int hzp_group_learner_chain(void *learner, const struct hzp_step_record *record,
                            const struct hzp_plan **ret, struct hzp_err_text *reterr);
void hzp_group_learner_ran(void *learner, const struct hzp_step_record *record,
                           const struct hzp_version *version, const struct hzp_batch *batch);
int hzp_group_learner_publish(void *learner, uint64_t id, struct hzp_err_text *reterr);

struct hzp_group_learner_stats {
    uint64_t micros, halved;      /* halved: of the micro-batches, those whose halves take turns */
    uint64_t updates, skipped;    /* skipped: updates that were not finite */
    uint64_t evaluations, undone; /* a gate's micro-batches; updates it has refused */
    uint64_t publications;
};
void hzp_group_learner_read_stats(const struct hzp_group_learner *l,
                                  struct hzp_group_learner_stats *ret);

#endif
