/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/checkpoint.h - directories named checkpoint-NUMBER: model directories with the
 * trainer's state.
 *
 * One is written beside its place and renamed, so a directory of that name is always whole.
 *
 * Thread: one at a time for a parent directory.
 */
#ifndef HZP_API_LEARN_CHECKPOINT_H
#define HZP_API_LEARN_CHECKPOINT_H

#include "train/trainer.h"

/* Makes path and its parents where they are absent.  *ret_existed (NULL: nobody asks): how much of
 * the path, in bytes, was there before. */
int hzp_checkpoint_make_dir(const char *path, size_t *ret_existed, struct hzp_err_text *reterr);

/* Removes what make_dir made, as far as it is empty. */
void hzp_checkpoint_unmake_dir(const char *path, size_t existed);

/* Writes parent/checkpoint-number from version v and the trainer's state that belongs to it (see
 * hzp_trainer_save for when that may be called).  source_dir: whose config and tokenizer files are
 * copied.  One of that number is replaced. */
int hzp_checkpoint_write(const char *parent, uint64_t number, const struct hzp_model *model,
                         struct hzp_trainer *trainer, const struct hzp_version *v,
                         const char *source_dir, const char *note, struct hzp_err_text *reterr);

/* Only the model, as a directory that loads: of a version that is held. */
int hzp_checkpoint_save_model(const char *dir, const struct hzp_model *model,
                              const struct hzp_version *v, const char *source_dir,
                              struct hzp_err_text *reterr);

/* The largest number among parent's checkpoints; 0: there is none. */
uint64_t hzp_checkpoint_newest(const char *parent);

/* Removes all but the `keep` newest, and what an interrupted write left. */
void hzp_checkpoint_prune(const char *parent, int64_t keep);

#endif
