/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/checkpoint.h - directories named checkpoint-NUMBER: model directories with the
 * trainer's state.
 *
 * A checkpoint is written under another name and then renamed, so a directory of that name is
 * always complete.
 *
 * Thread: any; one at a time per parent directory.
 */
#pragma once

#include "api/learn/retention.h"
#include "train/history/snapshot.h"

/* Writes parent/checkpoint-number of a state: a trainer's (hzp_trainer_save says when), or a
 * snapshot's.  texts_dir: its config and tokenizer files are copied.  options: contents of
 * serve.options, with which the checkpoint is served like the model that it is of; NULL: none.  An
 * existing checkpoint of that number is replaced. */
int hzp_checkpoint_write(const char *parent, uint64_t number, const struct hzp_train_state *state,
                         const char *texts_dir, const char *options, const char *note,
                         struct hzp_err_text *reterr);

/* Writes only the model and its serve.options, as a directory that can be loaded.  *ret_checksum:
 * the weights'; NULL: not wanted. */
int hzp_checkpoint_save_model(const char *dir, const struct hzp_unit_source *source,
                              const char *texts_dir, const char *options, uint64_t *ret_checksum,
                              struct hzp_err_text *reterr);

/* The largest number among parent's checkpoints; 0: none. */
uint64_t hzp_checkpoint_newest(const char *parent);

/* The largest number below `below`; 0: none. */
uint64_t hzp_checkpoint_below(const char *parent, uint64_t below);

/* Removes what interrupted writes left behind, and checkpoints, but never one that the policy keeps
 * (a tagged one is that of a name below, or has a file named keep in it), or a directory of another
 * name.  needed [count]: names that stay in any case. */
void hzp_checkpoint_prune(const char *parent, const struct hzp_retention *policy,
                          const char *const *needed, int32_t count);

/* How many bytes the plain files of a directory have together; 0: none. */
int64_t hzp_checkpoint_bytes(const char *path);

/* HZP_OK: the directory has a configuration, weights and a trainer's state, whose files are as long
 * as their headers say.  HZP_ENOENT, HZP_EFORMAT: not so; HZP_EIO: it could not be read.  Contents
 * are checked when they are loaded. */
int hzp_checkpoint_whole(const char *dir, struct hzp_err_text *reterr);

/* Makes directory `to` with the plain files of `from`, as links to them (copies where the file
 * system has none), without those that are left out.  HZP_EIO. */
int hzp_checkpoint_link(const char *from, const char *to, const char *const *left_out,
                        int32_t count, struct hzp_err_text *reterr);

/* Copies the weights' files of directory `from` to `to`, where they replace those of that name;
 * blocks are shared where the file system can.  HZP_EIO. */
int hzp_checkpoint_copy_weights(const char *from, const char *to, struct hzp_err_text *reterr);

/* Renames directory `from` to `to`, which it replaces, and syncs both `from` and `parent`, which
 * holds them, so that it is on disk.  HZP_EIO. */
int hzp_checkpoint_put_in_place(const char *parent, const char *from, const char *to,
                                struct hzp_err_text *reterr);

/* Removes a directory and the plain files in it; a subdirectory is not removed, and then neither is
 * the directory (HZP_EIO).  HZP_OK also if there is none. */
int hzp_checkpoint_remove(const char *path);

/* Renames the checkpoint, which is damaged, to NAME.damaged, so that it is neither used nor pruned;
 * no effect if it is not there. */
int hzp_checkpoint_set_aside(const char *parent, const char *name, struct hzp_err_text *reterr);
