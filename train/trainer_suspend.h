/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_suspend.h - suspends learning between two updates, and makes an older version serve
 * again.
 *
 *     suspend -> suspended -> ask_draft -> draft -> [it is filled] -> ask_publish -> published
 *          -> [state is loaded or cleared, the queue replaced] -> resume
 *
 * With several ranks the others get the state when it is loaded or cleared, and then the version.
 *
 * The engine thread does what is asked for in its next turns, so poke the loop after suspend, ask
 * and resume, and look until it is done.  Serving goes on meanwhile.  A trainer that stopped
 * because its weights are not finite learns again after an older version was published.
 *
 * Thread: any but the engine's, one at a time.
 */
#ifndef HZP_TRAIN_TRAINER_HOLD_H
#define HZP_TRAIN_TRAINER_HOLD_H

#include "train/trainer.h"

struct hzp_unit_source; /* weights/model_dir.h */

/* Micro-batches in progress are given up, and their samples drawn again later (with several ranks,
 * when those of the update have ended: all ranks take part in them, even while training is
 * paused); an update in progress ends and is published; nothing else begins. */
void hzp_trainer_suspend(struct hzp_trainer *t);
/* True: from now on, until resume, the trainer reads and writes neither moments nor residuals nor
 * the queue. */
bool hzp_trainer_suspended(struct hzp_trainer *t);
void hzp_trainer_resume(struct hzp_trainer *t);

/* Asks for a draft: the slot that still holds version id, with its contents; or, if there is none
 * and only is false, a free one.  Waits while that slot has readers, or no slot is free. */
void hzp_trainer_ask_draft(struct hzp_trainer *t, uint64_t id, bool only);
/* HZP_EBUSY: not yet; HZP_ENOENT: no slot holds the version.  *ret is the caller's to fill until
 * ask_publish or ask_drop; *ret_revived: it has the version's contents. */
int hzp_trainer_draft(struct hzp_trainer *t, struct hzp_version **ret, bool *ret_revived);

/* Asks to publish the draft, whose weights and record (parent, loss, gate's losses) are set; the
 * trainer continues from these numbers. */
void hzp_trainer_ask_publish(struct hzp_trainer *t, const struct hzp_trainer_numbers *numbers);
uint64_t hzp_trainer_published(struct hzp_trainer *t); /* its id; 0: not yet */

/* Asks to tell the store which samples no version will have learned (hzp_weights_add_unlearned):
 * these and those that the queue knows of, instead of all that it was told before.  Borrowed until
 * told. */
void hzp_trainer_ask_marks(struct hzp_trainer *t, const struct hzp_mark *mark, int32_t count);
bool hzp_trainer_told(struct hzp_trainer *t);
/* Before the engine runs, and before the next function: samples that failed in earlier runs, which
 * no version will have learned either; borrowed. */
void hzp_trainer_set_failed(struct hzp_trainer *t, const int64_t *number, int64_t count);
/* Engine thread: as ask_marks, at once. */
void hzp_trainer_tell_marks(struct hzp_trainer *t, const struct hzp_mark *mark, int32_t count);

/* Asks to free the draft, or to give none; dropped: it is done. */
void hzp_trainer_ask_drop(struct hzp_trainer *t);
bool hzp_trainer_dropped(struct hzp_trainer *t);

/* While suspended: reads moments and residuals from the checkpoint that version v's weights are of.
 * After a failure they are undefined.  Errors as hzp_trainer_load. */
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

/* While suspended: the state is not to be learned with; the trainer stops when it is resumed, as if
 * its weights were not finite. */
void hzp_trainer_stop_learning(struct hzp_trainer *t);
/* It has stopped so, or because its weights are not finite: its state is not to be saved. */
bool hzp_trainer_stopped(struct hzp_trainer *t);

/* The numbers in a checkpoint's trainer.safetensors. */
int hzp_trainer_read_numbers(const char *dir, struct hzp_trainer_numbers *ret,
                             struct hzp_err_text *reterr);

#endif
