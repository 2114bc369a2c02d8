/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/tensor_state.h - loads a checkpoint into ranks of which each has a slice of the
 * model (weights/tensor_slice.h): the files are those of one rank, whatever the number of ranks.
 * Saving: train/conductor/trainer_group.c.
 *
 * All ranks call it, before the first step: nothing else uses the link.  Each reads the file and
 * keeps its slices, as it has read its slice of the weights from the same directory.  Rank 0 reads
 * these whole and compares the checksum of each rank's slice, so no rank has other weights.  Each
 * rank needs memory for one whole unit and one slice of it.
 *
 * Thread: the link's, on every rank.
 */
#pragma once

#include "mesh/link.h"
#include "train/state/state_file.h"

/* All borrowed. */
struct hzp_tensor_state {
    const struct hzp_model *model;        /* this rank's slice */
    const struct hzp_model_config *whole; /* the whole model */
    struct hzp_train_space *space;        /* this rank's; its state is not sharded otherwise */
    const struct hzp_recipe *recipe;      /* the same on all ranks */
    struct hzp_link *link;                /* between just these ranks */
};

/* Fills the ranks' moments and residuals from trainer.safetensors in dir, whose weights v holds
 * already (hzp_model_load reads a slice).  Sets v's optimizer step, loss and learned_through, and
 * on every rank *ret and ret_note (HZP_TRAINER_NOTE_MAX + 1 bytes; NULL: not wanted).  ret's
 * checksum is that of the whole weights; v's is left as it is.
 *
 * Every rank fails if one does; one that has not failed itself names it.  Errors are
 * hzp_trainer_load's; HZP_EFORMAT: also a rank that has other weights; HZP_EIO: also the link;
 * HZP_ENOMEM, HZP_EDEVICE.  After an error moments and residuals are undefined. */
int hzp_tensor_state_load(const struct hzp_tensor_state *s, struct hzp_version *v, const char *dir,
                          bool same_recipe, struct hzp_trainer_numbers *ret, char *ret_note,
                          struct hzp_err_text *reterr);
