/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/learner.h - executes work (nanobatch/model/work.h) on one rank: builds the chain of
 * a work, offers its slices, and owns the draft that updates write.  Every rank has one, rank 0
 * too; it decides nothing about what is learned or published.
 *
 *     deal       -> chain of each micro-batch of this rank, one after the other -> ended
 *     update     -> chain -> ended            one rank, or ranks that compute each step together
 *                -> chain -> tail -> whole    ranks that learn beside each other
 *     eval, undo, gather -> chain -> ended
 *
 * Its work comes from the conductor on rank 0 (train/conductor/conductor.c); on other ranks it is
 * what rank 0 sends, over a link (by_link.h) or in steps' records (by_step.h).  In the second case
 * the first slice of a chain carries the bytes of its work.
 *
 * The tail: with several ranks an update's draft is gathered and audited after its chain, beside
 * the first micro-batch of the next update (collectives.h), which reads the draft.
 *
 * A rank that is a stage has a chain for each of its tasks (stages.h), of several micro-batches in
 * turn.
 *
 * Versions.  An update that is kept but not published stays in the draft, which the next one reads
 * and writes in place; otherwise chains read the current version, which is held from the deal on
 * until who deals lets go of it.
 *
 * Owns: gradients, moments, residuals, activations (hzp_train_space), the micro-batch, the draft.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/operations.h"
#include "nanobatch/model/ride.h"
#include "train/learner/stages.h"
#include "train/state/recipe.h"

struct hzp_learner_config {
    struct hzp_recipe recipe; /* only the numbers of rows, what is recomputed, and moment_type are
                               * used, all as on rank 0 */
    struct hzp_model *model;  /* borrowed */
    struct hzp_shards shards;
    struct hzp_link *link; /* between ranks that learn beside each other; borrowed; NULL: none */
    uint64_t quantum_flops;
    /* While requests run, the forward pass is cut into chunks of about this many rows; 0: not
     * cut. */
    int32_t chunk_rows;
    int32_t half_rows; /* least rows of each half of a micro-batch that is halved */
    int32_t ride_rows; /* serving rows for which there is room behind a micro-batch: ride.h */
    bool rides;        /* micro-batches may ride (ride.h) */
    bool undoes;       /* updates may be undone */
    bool host_state;   /* moments and residuals are in host memory (train_space.h) */
    bool unprepared;   /* memory is zeroed by chains instead of at create */
};

struct hzp_learner {
    /* fixed after create */
    struct hzp_learner_config config;
    struct hzp_train_space *space;
    struct hzp_micro *micro;             /* the one in progress */
    struct hzp_micro **micros;           /* [space->slots]: a stage has several in progress */
    struct hzp_stages *stages;           /* NULL: no stage */
    struct hzp_collectives *collectives; /* NULL: there are no ranks beside */
    struct hzp_track *track;             /* micro-batches and updates */

    /* the chain in progress; for others to read */
    struct hzp_plan chain;
    int32_t at, to;       /* items [0, at) have ended, [at, to) are offered or in flight */
    struct hzp_work work; /* what it was made from */
    uint64_t number;      /* its number, from 1, of those made from work; 0: none so far */
    struct hzp_version *draft;
    int32_t unpublished; /* updates that the draft has and no published version */
    bool tail;           /* the newest update's draft is gathered and audited */
    int64_t optimizer_step;
    double update_loss; /* of the update whose chain has ended: its micro-batches, of all ranks */
    struct hzp_ratio_stats update_ratios;    /* those that this rank computed */
    struct hzp_operations update_operations; /* the same */

    /* private */
    double loss_sum; /* of the micro-batches that have ended on this rank */
    struct hzp_ratio_stats ratios;
    struct hzp_operations operations;
    struct hzp_version *held; /* acquired while chains read it; NULL: they read the draft */
    bool reads_draft;         /* chains read the draft, not the current version */
    struct hzp_works deal;    /* the micro-batches of the update, and those of the next one */
    struct hzp_works ahead;   /* count 0: not known */
    struct hzp_works bytes;   /* the work that the chain was made from, for other ranks */
    int32_t bin; /* the first micro-batch of the current round; a stage's current one */
    int32_t *rows, rows_room;     /* the deal's micro-batches have so many, for the stages */
    struct hzp_stage_path *paths; /* and visit these */
    int32_t paths_room;
    bool chunks; /* the next micro-batch is cut into chunks */
    const struct hzp_op_times *op_times;
    struct hzp_rider rider;
    uint64_t chain_ns, update_ns; /* when the micro-batch's chain was built, and the update's */
    int64_t update_number;        /* the newest update's optimizer step */
};

/* Allocates all device memory, none later; with a link, together with the other ranks.  HZP_ENOMEM,
 * HZP_EDEVICE, HZP_EINVAL, HZP_EIO. */
int hzp_learner_create(const struct hzp_learner_config *config, struct hzp_learner **ret,
                       struct hzp_err_text *reterr);
void hzp_learner_destroy(struct hzp_learner *l); /* NULL: no effect */

/* The train space that a learner of this recipe needs: for the memory plan. */
struct hzp_train_space_config hzp_learner_space_config(const struct hzp_recipe *recipe,
                                                       const struct hzp_model_config *model,
                                                       uint64_t quantum_flops);

/* Appends the matrix products of micro-batches of several sizes, each shape once, for
 * hzp_loop_warm_up.  Call it before the loop runs: they overwrite gradients and activations.
 * HZP_ENOMEM. */
int hzp_learner_products(struct hzp_learner *l, struct hzp_plan *chain);

/* --- Work ------------------------------------------------------------------------------------- */

/* Begins the micro-batches of an update; the works are copied.  The draft is read if it holds
 * updates.  HZP_EFORMAT: they cannot be read. */
int hzp_learner_deal(struct hzp_learner *l, const struct hzp_works *works,
                     struct hzp_err_text *reterr);
/* Whether they can be read: HZP_OK, HZP_EFORMAT.  It overwrites the micro-batch. */
int hzp_learner_check(struct hzp_learner *l, const struct hzp_works *works,
                      struct hzp_err_text *reterr);

/* Begins the update's chain.  ahead: the micro-batches of the next one, which can be read, copied;
 * NULL or none: they are not known.  HZP_EBUSY: no slot of weights is free for the draft. */
int hzp_learner_update(struct hzp_learner *l, const struct hzp_work *work,
                       const struct hzp_works *ahead);

/* Begins the chain of an evaluation, of the documents in l->micro, of an undo, or of a gather. */
void hzp_learner_begin(struct hzp_learner *l, const struct hzp_work *work);

/* In a rank that computes each step together with rank 0: reads a work's bytes into l->work and
 * l->micro (HZP_EFORMAT), and begins its chain, an update's when it has a draft. */
int hzp_learner_read(struct hzp_learner *l, const void *data, size_t bytes,
                     struct hzp_err_text *reterr);
void hzp_learner_begin_read(struct hzp_learner *l);

/* Begins a chain that is made from no work, for the caller to fill. */
struct hzp_plan *hzp_learner_begin_chain(struct hzp_learner *l);

/* The version that the next chain reads. */
struct hzp_version *hzp_learner_version(const struct hzp_learner *l);

/* --- Steps ------------------------------------------------------------------------------------ */

/* On rank 0, in each offer: how micro-batches are cut that are begun from here on. */
void hzp_learner_note_room(struct hzp_learner *l, const struct hzp_room *room);
/* Items [0, limit) of the chain may be offered: the others wait for other ranks. */
int32_t hzp_learner_limit(const struct hzp_learner *l);
/* Offers a slice of the chain, of items before `limit`; returns it. */
struct hzp_slice *hzp_learner_offer(struct hzp_learner *l, const struct hzp_step *step,
                                    const struct hzp_room *room, struct hzp_offer *offer,
                                    int32_t limit);
/* Takes notice of the slices that have ended.  True: items of the chain have run. */
bool hzp_learner_deliver(struct hzp_learner *l, const struct hzp_offer *offer);
/* Takes notice of what other ranks have done; < 0: the exchange with them has failed, for good. */
int hzp_learner_turn(struct hzp_learner *l);

/* Whether the chain has ended; an update's when its results are known. */
bool hzp_learner_ended(const struct hzp_learner *l);
/* Whether the chain is the last one of its micro-batch here. */
bool hzp_learner_ends_micro(const struct hzp_learner *l);
/* Goes on when the chain has ended with step last_step: with the next micro-batch of the deal, or
 * with the tail of an update and, beside it, the micro-batches that were dealt with it.  False: the
 * work has ended, and the caller says what is next. */
bool hzp_learner_next(struct hzp_learner *l, uint64_t last_step);
/* Whether the micro-batches of the next update have begun beside the tail. */
bool hzp_learner_runs_ahead(const struct hzp_learner *l);
/* The draft in the tail is whole and audited on all ranks. */
bool hzp_learner_whole(const struct hzp_learner *l);

/* --- Versions --------------------------------------------------------------------------------- */

/* What became of an update whose results are known. */
enum hzp_learned_as {
    HZP_UPDATE_GOOD,
    HZP_UPDATE_NOT_FINITE, /* its gradients: nothing has changed but the draft */
    HZP_WEIGHTS_NOT_FINITE /* moments and residuals have changed, only a checkpoint restores them */
};
enum hzp_learned_as hzp_learner_result(const struct hzp_learner *l);
/* Ends the update's tail, which is whole; the same result. */
enum hzp_learned_as hzp_learner_end_tail(struct hzp_learner *l);
/* The update counts: the draft holds one more. */
void hzp_learner_keep(struct hzp_learner *l);
/* Takes a slot for the draft, if there is none.  HZP_EBUSY. */
int hzp_learner_take_draft(struct hzp_learner *l);
/* Holds the current version, if chains read it and it is not held yet: after a publication, while
 * micro-batches of the next update are in progress. */
void hzp_learner_hold(struct hzp_learner *l);
/* The update that was dealt has ended, or is given up: the version is not read after last_step. */
void hzp_learner_let_go(struct hzp_learner *l, uint64_t last_step);
/* Publishes the draft. */
void hzp_learner_publish(struct hzp_learner *l, uint64_t last_step);
/* Gives the draft up, if there is one, with the updates in it. */
void hzp_learner_abandon(struct hzp_learner *l);
/* The draft belongs to someone else from here on. */
void hzp_learner_leave_draft(struct hzp_learner *l);
/* Gives up the chain, none of whose items is in flight, and the rest of its work. */
void hzp_learner_drop_chain(struct hzp_learner *l);

/* The ranks beside this one are lost and their link is closed: the chain and the tail are given up,
 * none of whose items is in flight. */
void hzp_learner_part(struct hzp_learner *l);
