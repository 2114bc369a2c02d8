/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/collectives.h - what ranks that train together exchange: the work of each,
 * gradients, sums of squares, updated parameters, results.
 *
 * Rank 0 draws samples, packs them into micro-batches and decides when an update begins; it tells
 * the others by work (nanobatch/model/work.h).  Micro-batches are dealt in rounds: in round k the
 * rank at position p of HZP_GROUP_RANKS has micro-batch k R + p, so sums in the order of that group
 * are sums in the order of micro-batches.  From there on all ranks do the same:
 *
 *     micro-batch   forward and backward; a unit's gradients are scattered to their shards as soon
 *                   as they are complete (if gradients are sharded, or in the ordered mode); in the
 *                   last round they are then reduced to the shards of the optimizer state, while
 *                   the backward pass goes on; what an embedding adds is sent without its zeros,
 *                   and in the last round what a tied head has added is sent before
 *     update        sums of squares and losses are gathered; AdamW on the shard; the draft's units
 *                   are gathered behind it, so the gathered draft is what is published
 *     its tail      the units that have arrived are audited, by a chain of its own; results of all
 *                   ranks are compared: the draft is whole
 *
 * While the tail is in progress the next update's first micro-batch may be: it reads the draft, and
 * its items wait for the units they read.  For that the next update's micro-batches are dealt with
 * the work to update, in front of the transfers of the draft.
 *
 * Tensor-parallel groups that learn beside each other (model->data): the first rank of each group
 * is a rank here, and what all ranks of the groups exchange, each with those that have its slice,
 * are items of the chains (model/tensor.h).  Only works, losses and results are transfers, and one
 * of nothing in front of those items, for which they wait: it is done when all groups have come so
 * far, so no step of a group that serves waits for what another one computes.  No update runs
 * ahead, and the tail is only the comparison of the results.
 *
 * Stages (shards.stages, weights/groups.h): every rank has a part of each micro-batch, so a round
 * is one micro-batch; what its chains exchange is in stages.h.  In an update the sum of squares
 * goes from stage to stage, so it is added in the order of one rank; AdamW and the audit are of a
 * rank's own units, and the tail is only the comparison.
 *
 * A chain's transfers are in a list (nanobatch/run/transfers.h) with the items that depend on them.
 * They may outlive the chain of a micro-batch, whose items have ended then: the next chain begins
 * while they are in flight.
 *
 * Owns: the list, buffers for work, losses and results, the stage.  Borrows: link, model, train
 * space.  Parameters, gradients and the stage are device memory, which the link must be able to
 * move; everything else is host memory (struct hzp_transfer, host).
 *
 * Thread: engine; error and stage: also the thread for which a gather has ended.
 */
#pragma once

#include "nanobatch/model/work.h"
#include "nanobatch/run/transfers.h"
#include "nanobatch/source.h"
#include "train/table/sample_queue.h"

struct hzp_collectives;

struct hzp_collectives_config {
    struct hzp_link *link; /* borrowed */
    /* Of a group: the groups, each with all of its slice's state.  Of stages: as if each of them
     * had a shard of everything. */
    struct hzp_shards shards;
    struct hzp_model *model;
    struct hzp_train_space *space; /* made with the same shards; of a group: of one rank */
    int32_t micro_rows;
};

/* Opens the groups, together with all ranks.  HZP_EINVAL, HZP_EIO, HZP_ENOMEM. */
int hzp_collectives_create(const struct hzp_collectives_config *config,
                           struct hzp_collectives **ret, struct hzp_err_text *reterr);
void hzp_collectives_destroy(struct hzp_collectives *x); /* NULL: no effect */

/* How many ranks have a micro-batch each in a round; 1 with stages. */
int32_t hzp_collectives_ranks(const struct hzp_collectives *x);
int32_t hzp_collectives_position(const struct hzp_collectives *x); /* this rank's, in a round */

/* --- Work ------------------------------------------------------------------------------------- */

/* Rank 0: whether the work before has arrived, so that the next one may be sent. */
bool hzp_collectives_may_send(const struct hzp_collectives *x);
/* Rank 0: appends the work to the list, and the works that follow it (NULL: none), all copied. */
void hzp_collectives_send(struct hzp_collectives *x, const struct hzp_work *work,
                          const struct hzp_works *follow);
/* Other ranks: appends the receipt of the next work.  Once the list is done, hear reads it; where
 * works follow it (ret->follow), listen_follow and hear_follow get them in the same way.
 * HZP_EFORMAT: it is damaged. */
void hzp_collectives_listen(struct hzp_collectives *x);
int hzp_collectives_hear(struct hzp_collectives *x, struct hzp_work *ret,
                         struct hzp_err_text *reterr);
void hzp_collectives_listen_follow(struct hzp_collectives *x);
int hzp_collectives_hear_follow(struct hzp_collectives *x, struct hzp_works *ret,
                                struct hzp_err_text *reterr);

/* --- Chains and their transfers --------------------------------------------------------------- */

/* Builds the chain of this rank's micro-batch of a round, and appends its transfers: of the units
 * on its path, which all micro-batches of the round have.  One without rows: this rank has none in
 * the last round.  first, last: of the update. */
void hzp_collectives_micro(struct hzp_collectives *x, struct hzp_plan *chain,
                           const struct hzp_version *v, const struct hzp_micro *micro, bool first,
                           bool last);

/* Appends the transfers of such a chain that hzp_work_build has built: of a group of ranks that
 * compute each step together. */
void hzp_collectives_group_micro(struct hzp_collectives *x, const struct hzp_plan *chain,
                                 bool first);

/* When that chain has ended: the sum of the micro-batch's losses; 0: it had none.  When the update
 * is done, hzp_collectives_loss is the sum of micro-batch `bin` of the update, of whichever
 * rank. */
void hzp_collectives_note_loss(struct hzp_collectives *x, double loss);
double hzp_collectives_loss(const struct hzp_collectives *x, int32_t bin);

/* Builds the update's chain, and appends its transfers and those of its tail.  ahead: a micro-batch
 * follows at once. */
void hzp_collectives_update(struct hzp_collectives *x, struct hzp_plan *chain,
                            const struct hzp_version *v, struct hzp_version *draft,
                            const struct hzp_update_hyper *hyper, bool ahead);
/* The transfers of an update's chain that hzp_work_build has built: of a group, as above. */
void hzp_collectives_group_update(struct hzp_collectives *x, const struct hzp_plan *chain,
                                  const struct hzp_version *draft);
/* Whether the losses and the norm are known, which are in the train space then; so it is when the
 * update's chain has ended. */
bool hzp_collectives_updated(const struct hzp_collectives *x);

/* The tail, when the update's chain has ended: builds the audit's chain. */
void hzp_collectives_audit(struct hzp_collectives *x);
/* Offers a slice of it, of units that have arrived; NULL: none is to be offered now. */
const struct hzp_slice *hzp_collectives_offer_audit(struct hzp_collectives *x,
                                                    const struct hzp_step *step,
                                                    const struct hzp_room *room,
                                                    struct hzp_offer *offer);
void hzp_collectives_deliver_audit(struct hzp_collectives *x, const struct hzp_offer *offer);
/* Items [0, limit) of it may be offered; for tests. */
int32_t hzp_collectives_audit_limit(const struct hzp_collectives *x);
/* The draft is whole and audited on all ranks, and they agree: the results in the train space are
 * those of all ranks.  Until the next update. */
bool hzp_collectives_whole(const struct hzp_collectives *x);

/* What is gathered for a checkpoint: the optimizer's state, or the current version's weights. */
/* Units that are gathered together: so many from u on. */
int32_t hzp_collectives_gathered(const struct hzp_collectives *x, int32_t u);
/* Appends the gather of the units of a work READ into the stage.  Once it is done,
 * hzp_collectives_state is unit u of them there, whole, on the ranks that share a copy with rank 0;
 * valid until the next one. */
void hzp_collectives_gather_state(struct hzp_collectives *x, const struct hzp_work *work);
const void *hzp_collectives_state(const struct hzp_collectives *x, const struct hzp_work *work,
                                  int32_t u);

/* Device memory for the largest unit, in F32: through it whole units of the optimizer's state pass
 * that are gathered for a checkpoint or come from one.  hzp_device_copy gets at its contents. */
void *hzp_collectives_stage(struct hzp_collectives *x);
size_t hzp_collectives_stage_bytes(const struct hzp_layout *layout);

/* --- A version that rank 0 sends -------------------------------------------------------------- */

/* What a rank has been sent since the last work CLEAR. */
struct hzp_rank_filled {
    uint64_t received; /* checksums of the units, as they were sent */
    uint64_t weights;  /* checksums of this rank's part of the weights, where they are used */
    int64_t rank;
};

/* Most elements of all units that one work WRITE may name, which lie one behind the other in the
 * stage. */
size_t hzp_collectives_fill_elements(const struct hzp_collectives *x);
/* Appends the transfer of whole units, for the work WRITE: from rank 0's stage to all others.  v:
 * the version that is sent, on another rank the one it is received into. */
void hzp_collectives_fill(struct hzp_collectives *x, const struct hzp_work *work,
                          const struct hzp_version *v);
/* Another rank, once it is done: copies this rank's parts to where they belong (weights: in draft),
 * and adds the checksums to *filled. */
void hzp_collectives_keep(struct hzp_collectives *x, const struct hzp_work *work,
                          const struct hzp_version *draft, struct hzp_rank_filled *filled);
/* Appends the comparison, for a work ADOPT: all ranks have received the same, and hold weights
 * of the work's checksum (0: all copies the same); otherwise the list fails, on all ranks.
 * Another version is read from here on. */
void hzp_collectives_compare(struct hzp_collectives *x, const struct hzp_rank_filled *mine);

/* --- The list --------------------------------------------------------------------------------- */

/* The list is cleared when it is done and something is appended.  turn: takes notice of what is
 * done, and posts what is due when items [0, ended) of the chain have ended; < 0: it failed, for
 * good, and *hzp_collectives_error says why. */
int hzp_collectives_turn(struct hzp_collectives *x, int32_t ended);
bool hzp_collectives_done(const struct hzp_collectives *x);
/* Waits until the list is done, with no chain in progress: at the start and the end, not while the
 * loop runs. */
int hzp_collectives_wait(struct hzp_collectives *x);
const char *hzp_collectives_error(const struct hzp_collectives *x);
/* Fails it, if it has not failed; from then on it does not use the link. */
void hzp_collectives_fail(struct hzp_collectives *x, const char *why);
/* Whether no item of the audit is in flight. */
bool hzp_collectives_quiet(const struct hzp_collectives *x);
struct hzp_link *hzp_collectives_link(const struct hzp_collectives *x);

/* The list; for the limit of what may be offered, and for tests. */
struct hzp_transfers *hzp_collectives_transfers(struct hzp_collectives *x);
