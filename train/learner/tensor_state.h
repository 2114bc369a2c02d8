/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/tensor_state.h - loads a checkpoint into ranks of which each has a slice of the
 * model (weights/tensor_slice.h): the files are those of one rank, whatever the number of ranks.
 * Saving: train/conductor/trainer_group.c.
 *
 * All ranks call it, before the first step: nothing else uses the link.  Rank 0 alone reads files.
 * Parts pass unit by unit: rank 0 needs memory for one whole unit and one slice of it, the others
 * for one slice.
 *
 * Each slice travels with its rank, its unit and its checksum, so no rank takes another's.  Of what
 * every rank has (norms), all must have the same.
 *
 * Thread: the link's, on every rank.
 */
#pragma once

#include "mesh/link.h"
#include "nanobatch/model/train_space.h"
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
 * Every rank returns the same code, with the text of the rank that failed: errors are
 * hzp_trainer_load's; HZP_EIO: the link, or a slice that arrived damaged; HZP_EINVAL: ranks do not
 * agree about what all have: the text names the unit and the rank; HZP_ENOMEM, HZP_EDEVICE.  After
 * an error moments and residuals are undefined. */
int hzp_tensor_state_load(const struct hzp_tensor_state *s, struct hzp_version *v, const char *dir,
                          bool same_recipe, struct hzp_trainer_numbers *ret, char *ret_note,
                          struct hzp_err_text *reterr);
