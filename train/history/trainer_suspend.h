/* SPDX-License-Identifier: Apache-2.0 */
/* train/history/trainer_suspend.h - suspends learning between two updates, and makes an older
 * version serve again.
 *
 *     suspend -> [a draft is filled] -> publish_older -> [state is loaded or cleared, the queue
 *          replaced] -> resume
 *
 * With several ranks the others get the state when it is loaded or cleared, and then the version.
 *
 * Suspend, resume and publish_older are functions of border calls (nanobatch/border.h).  Serving
 * goes on meanwhile.  A trainer that stopped because its weights are not finite learns again
 * after an older version was published.
 *
 * Thread: any but the engine's, one at a time: the one that suspends; suspend, resume,
 * publish_older and tell_marks: engine.
 */
#pragma once

#include "train/conductor/trainer.h"

struct hzp_unit_source; /* weights/model_dir.h */

/* Done when the trainer reads and writes neither moments nor residuals nor the queue, as it is
 * until resume.  Micro-batches in progress are given up, and their samples drawn again later
 * (with several ranks, when those of the update have ended: all ranks take part in them, even
 * while training is paused); an update in progress ends and is published; nothing else begins.
 * Resume takes it back, also where it was not done yet. */
int hzp_trainer_suspend(void *trainer, const struct hzp_border *border);
int hzp_trainer_resume(void *trainer, const struct hzp_border *border);
bool hzp_trainer_suspended(const struct hzp_trainer *t);

/* A draft whose weights and record (parent, loss, gate's losses) are set, and the numbers that the
 * trainer continues from. */
struct hzp_trainer_older {
    struct hzp_trainer *trainer;
    struct hzp_version *draft;
    struct hzp_trainer_numbers numbers;
    uint64_t published; /* set when it is done: the version's id */
};
/* While suspended: publishes it; with fp8 weights a chain quantizes it before. */
int hzp_trainer_publish_older(void *older, const struct hzp_border *border);

/* Tells the store which samples no version will have learned (hzp_weights_add_unlearned): these
 * and those that the queue knows of, instead of all that it was told before. */
void hzp_trainer_tell_marks(struct hzp_trainer *t, const struct hzp_mark *mark, int32_t count);
/* Before the engine runs, and before the last function: samples that failed in earlier runs, which
 * no version will have learned either; borrowed. */
void hzp_trainer_set_failed(struct hzp_trainer *t, const int64_t *number, int64_t count);

/* While suspended: reads moments and residuals from the checkpoint that version v's weights are
 * of. After a failure they are undefined.  Errors as hzp_trainer_load. */
int hzp_trainer_load_suspended(struct hzp_trainer *t, const struct hzp_version *v, const char *dir,
                               struct hzp_trainer_numbers *ret, struct hzp_err_text *reterr);
/* While suspended: zeroes them.  HZP_EDEVICE, HZP_ENOMEM. */
int hzp_trainer_clear_suspended(struct hzp_trainer *t);

/* While suspended, after one of these: sends all ranks version v, which serves on this one, and
 * which they learn from; compared on all of them.  source: its whole units; NULL: this rank has
 * them, as it has in a server.  No effect with one rank.  After a failure the other ranks learn no
 * more.  HZP_EIO: a rank was lost, or has something else. */
int hzp_trainer_restore_ranks(struct hzp_trainer *t, const struct hzp_version *v,
                              const struct hzp_unit_source *source, struct hzp_err_text *reterr);

/* While suspended: the state is not to be learned with; the trainer stops when it is resumed, as
 * if its weights were not finite. */
void hzp_trainer_stop_learning(struct hzp_trainer *t);
/* It has stopped so, or because its weights are not finite: its state is not to be saved. */
bool hzp_trainer_stopped(struct hzp_trainer *t);
