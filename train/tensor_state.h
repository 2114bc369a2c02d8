/* SPDX-License-Identifier: Apache-2.0 */
/* train/tensor_state.h - checkpoints of a trainer whose model is cut into tensor slices
 * (weights/tensor_slice.h): the files are those of one rank, so they may be saved at any number of
 * ranks and loaded at any other.
 *
 * All ranks call save and load, in the same order, at a chain's border: no chain and no step is in
 * flight, and nothing else uses the link.  Rank 0 alone reads and writes files.  Parts pass unit by
 * unit: rank 0 needs memory for one whole unit and one slice of it, the others for one slice.
 *
 * Each slice travels with its rank, its unit and its checksum, so no rank takes another's.  What
 * every rank has (norms, their moments and residuals) is taken from rank 0, when all have the same.
 *
 * Thread: the link's, on every rank.
 */
#ifndef HZP_TRAIN_TENSOR_STATE_H
#define HZP_TRAIN_TENSOR_STATE_H

#include "device/link.h"
#include "nanobatch/build/train_space.h"
#include "train/trainer.h"

/* All borrowed. */
struct hzp_tensor_state {
    const struct hzp_model *model;        /* this rank's slice */
    const struct hzp_model_config *whole; /* the whole model */
    struct hzp_train_space *space;        /* this rank's; its state is not sharded otherwise */
    const struct hzp_recipe *recipe;      /* the same on all ranks */
    struct hzp_link *link;                /* between just these ranks */
};

/* Writes version v as a model directory (hzp_tensor_save), and trainer.safetensors in it.  Of the
 * other ranks only v counts: numbers (whose checksum is not read), dir, source_dir and note (NULL:
 * "") are rank 0's.  v is the same version on every rank, and belongs to the state that the space
 * holds: after rank 0's last step the others still have its newest version as a draft
 * (hzp_group_learner_publish).
 *
 * Every rank returns the same code, with the text of the rank that failed.  HZP_EIO: a file, the
 * link, or a slice that arrived damaged; HZP_EINVAL: ranks do not agree about what all have: the
 * text names the unit and the rank, and no file was completed; HZP_ENOMEM, HZP_EDEVICE.  After an
 * error the directory is of no use. */
int hzp_tensor_state_save(const struct hzp_tensor_state *s, const struct hzp_version *v,
                          const struct hzp_trainer_numbers *numbers, const char *dir,
                          const char *source_dir, const char *note, struct hzp_err_text *reterr);

/* Fills the ranks' moments and residuals from trainer.safetensors in dir, whose weights v holds
 * already (hzp_model_load reads a slice).  Sets v's optimizer step, loss and learned_through, and
 * on every rank *ret and ret_note (HZP_TRAINER_NOTE_MAX + 1 bytes; NULL: not wanted).  ret's
 * checksum is that of the whole weights; v's is left as it is.
 *
 * Errors are hzp_trainer_load's, and those of save; every rank returns the same.  After an error
 * moments and residuals are undefined. */
int hzp_tensor_state_load(const struct hzp_tensor_state *s, struct hzp_version *v, const char *dir,
                          bool same_recipe, struct hzp_trainer_numbers *ret, char *ret_note,
                          struct hzp_err_text *reterr);

#endif
