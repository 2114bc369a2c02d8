/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/start_state.h - how the other ranks get rank 0's first version and the optimizer's
 * state that belongs to it, when a run begins: unit by unit over the link, so only rank 0 reads
 * files.
 *
 * Where parameters are sharded (z3 > 1) no rank has whole units, so each rank has filled its own
 * shards from the same files before; only the numbers are compared then.
 *
 * All functions wait, so they are called before the loop runs, on all ranks.  At the end the ranks
 * tell each other whether they have succeeded, so all fail if one does.
 *
 * Thread: engine.
 */
#pragma once

#include "train/learner/collectives.h"

/* What a run begins with. */
struct hzp_start_state {
    struct hzp_collectives *collectives;
    const struct hzp_model *model;
    struct hzp_train_space *space;
    struct hzp_version *version;     /* on rank 0: published; on the others: a draft, or current */
    int64_t optimizer_step;          /* the newest; in: of rank 0, out: of the others */
    uint64_t version_id;             /* out, of the others: rank 0's id of the version */
    const char *state_dir;           /* rank 0: a checkpoint with trainer.safetensors; NULL: none */
    const struct hzp_recipe *recipe; /* rank 0 */
};

/* Rank 0, and the others.  HZP_EIO: the link failed; other errors name the rank that failed. */
int hzp_start_state_send(struct hzp_start_state *s, struct hzp_err_text *reterr);
int hzp_start_state_receive(struct hzp_start_state *s, struct hzp_err_text *reterr);
