/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_state.h - the trainer's struct, private to the files that implement it.
 *
 * Thread: see the comments in the struct.
 */
#ifndef HZP_TRAIN_TRAINER_STATE_H
#define HZP_TRAIN_TRAINER_STATE_H

#include "base/thread.h"
#include "nanobatch/model/chain_work.h"
#include "nanobatch/model/ride.h"
#include "train/collectives.h"
#include "train/pace.h"
#include "train/trainer.h"
#include "train/trainer_rejoin.h"
#include "train/trainer_suspend.h"
#include "weights/safetensors.h"

#include <stdatomic.h>

enum hzp_trainer_stage {
    HZP_TRAINER_IDLE,
    HZP_TRAINER_PREPARE,    /* a chain that zeroes memory is in progress, or the next to be built */
    HZP_TRAINER_GATHER,     /* a chain that gathers a piece of the state is in progress */
    HZP_TRAINER_ACCUMULATE, /* a micro-batch's chain is in progress */
    HZP_TRAINER_WAIT,       /* gradients are complete; the update may not begin yet */
    HZP_TRAINER_UPDATE,     /* the update's chain is in progress */
    HZP_TRAINER_GATE,       /* a micro-batch of the gate's samples is in progress */
    HZP_TRAINER_TRIAL,      /* the draft is on trial; no chain */
    HZP_TRAINER_UNDO,       /* the chain that copies the optimizer's state back is in progress */
    HZP_TRAINER_RESTORE,    /* the chain that quantizes an older version is in progress */
    HZP_TRAINER_BROKEN,     /* device or weights failed: the trainer offers nothing more */
};

/* What is left of a checkpoint's state of the optimizer (hzp_trainer_load_begin). */
enum hzp_rest_state { HZP_REST_NONE, HZP_REST_UNREAD, HZP_REST_FAILED };

/* The samples drawn for one update, and the micro-batch of each. */
struct hzp_draw {
    const struct hzp_sample **sample; /* [count], borrowed from the queue */
    int32_t *bin;                     /* [count] index of its micro-batch; -1: no learned token */
    int32_t *bin_rows;                /* [bins] rows taken so far */
    int32_t count, bins, room;
    /* samples in micro-batches, but the sequence numbers of all */
    int32_t samples, rows, learned_tokens;
    double weight_sum; /* weights of the learned tokens, 1 each by default */
    int64_t first_sequence, last_sequence;
};

struct hzp_snapshot; /* train/snapshot.h */
struct hzp_state_whole;
struct hzp_group_gather; /* trainer_group.c */

struct hzp_trainer {
    /* fixed after create */
    struct hzp_source source;
    struct hzp_trainer_config config;
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_collectives *collectives; /* with the other ranks; NULL: there are none */
    struct hzp_rider rider;              /* the current micro-batch's */
    /* engine thread: the newest step had room for riding rows (hzp_room.ride_rows); the next
     * micro-batch is then cut into chunks */
    bool carried;

    /* engine thread */
    enum hzp_trainer_stage stage;
    struct hzp_plan chain;
    struct {             /* in a tensor-parallel group: what the others make the chain from */
        uint64_t number; /* the chain's, from 1; 0: none so far */
        char *data;      /* NULL: there is no such group */
        size_t bytes;
    } work;
    const struct hzp_op_times *op_times; /* the newest offer's, without which no chain begins */
    struct hzp_group_gather
        *group;              /* in a tensor-parallel group that keeps checkpoints; NULL: none */
    struct hzp_track *track; /* micro-batches, updates, versions */
    uint64_t chain_ns, update_ns; /* when the micro-batch's chain was built, and the update's */
    int32_t at, to;  /* items of the chain: [0, at) have ended, [at, to) are offered or in flight */
    bool flush;      /* in this step: publish without offering a slice */
    size_t prepared; /* bytes of the space in the chains so far */
    int32_t prepare_pieces; /* pieces of the next chain; 0: it is the first */
    struct {
        _Atomic(int) state; /* enum hzp_rest_state */
        /* the thread's that reads it; NULL: nothing is left */
        struct hzp_safetensors *file;
        char *path;
    } rest;
    struct hzp_draw draws_of[2], *draw; /* draw: of the update whose micro-batches are computed */
    struct hzp_draw *other; /* drawn ahead, or of the update in its tail: trainer_update.c */
    bool ahead;             /* other holds samples that were dealt with the update's command */
    bool tail;              /* the update's chain has ended; its draft is gathered and audited */
    /* the newest step with which the end of the tail was offered; 0: not yet.  The step before it
     * may still be in flight */
    uint64_t tail_step;
    /* first micro-batch of the current round: rank by rank, each rank has one of a round's */
    int32_t bin;
    struct hzp_version *held; /* the current version, acquired for this update; NULL: reads draft */
    struct hzp_version *draft; /* holds `unpublished` finished updates, or is being written */
    int32_t unpublished;
    bool publishes; /* the current update will be published when it ends */
    int64_t optimizer_step, draws;
    int64_t reset_step;  /* the step after which moments were last zeroed: Adam counts from there */
    int32_t failures;    /* consecutive failures on the current samples */
    int32_t failed_told; /* how many of the queue's failed samples the store was told */
    const int64_t *failed_before; /* [failed_before_count] samples, in earlier runs */
    int64_t failed_before_count;
    struct hzp_update_report now; /* the current update's */
    double loss_sum;              /* weighted losses of the current update's learned tokens */
    double weight_sum;            /* weights of its learned tokens, 1 each by default */
    uint64_t begin_ns;
    struct hzp_pace pace;
    double version_loss_sum, version_weight_sum; /* since the last publication */
    int64_t learned_through;
    struct hzp_learned learned;
    /* the version acquired while frozen, as a checkpoint saves it; NULL: not frozen */
    struct hzp_version *picture;

    struct hzp_loop *loop; /* set before it runs; NULL: none */
    /* What the thread that froze or suspended the trainer exchanges with the other ranks: gathers,
     * and what trainer_restore.c sends. */
    struct {
        struct hzp_rank_command command;
        const void *whole;             /* FILL: the unit */
        struct hzp_rank_filled filled; /* what was sent since the last command RESTORE */
    } asked;
    struct { /* units that wait to be sent with one command: trainer_restore.c */
        char *data;
        size_t elements, room; /* elements of data; room counts those of the largest type */
        enum hzp_state_part part;
        int32_t unit, units;
        bool begun; /* the other ranks have been told that an older version follows */
    } batch;
    void *gathered_unit; /* hzp_trainer_gather: a copy for the host; NULL: none yet */
    bool gathering;      /* engine thread: the collectives' list is that of the gather */
    bool rejoins;        /* under lock: lost ranks come back; see trainer_rejoin.h */
    atomic_bool parting; /* any thread: a rank was lost, and the ranks have not met again */
    char *loaded_dir;    /* the checkpoint whose state was loaded; NULL: none */

    struct hzp_trainer_gate *gate; /* trainer_gate.c; NULL: none */
    /* The version on trial is published when this step, or one after it, is delivered; 0: not yet.
     * The step before it may still be in flight. */
    uint64_t promotes;
    bool withdraws; /* the undo in progress gives the samples back */

    /* Border calls have asked for these: no update begins; nothing does. */
    bool freeze, suspend;
    bool suspended; /* suspend is done */

    bool holds_end; /* the loop must not end yet: trainer_group.c */

    /* any thread */
    atomic_bool paused, finishing;
    atomic_bool stops; /* the state is not to be learned with when the trainer is resumed */

    /* under lock */
    struct hzp_lock lock;
    struct hzp_trainer_stats stats;
};

/* --- trainer.c
 * -------------------------------------------------------------------------------- */

/* The version that the update's micro-batches read. */
static inline struct hzp_version *hzp_trainer_version(const struct hzp_trainer *t)
{
    return t->held ? t->held : t->draft;
}

/* Draws and packs the samples of the update after the one in t->draw into t->other.  False: there
 * is no other rank, or it cannot be known yet which samples those will be. */
bool hzp_trainer_draw_ahead(struct hzp_trainer *t);
/* Builds the chain of the micro-batch t->bin of t->draw. */
void hzp_trainer_build_micro(struct hzp_trainer *t);
/* t->now is that of the samples in t->draw from here on. */
void hzp_trainer_begin_report(struct hzp_trainer *t);

/* --- trainer_update.c
 * ------------------------------------------------------------------------- */

/* True: with this many unpublished updates the server would exceed the staleness bound. */
bool hzp_trainer_over_bound(struct hzp_trainer *t, int32_t unpublished);
/* True: the update's chain is built.  False: it must wait; *ret_flush: wait until deliver() has
 * published the finished updates. */
bool hzp_trainer_begin_update(struct hzp_trainer *t, bool *ret_flush);
/* The chain has ended: of the update (with one rank), of the gate, of an undo. */
void hzp_trainer_end_update(struct hzp_trainer *t, const struct hzp_step *step);
void hzp_trainer_end_gate(struct hzp_trainer *t, const struct hzp_step *step);
void hzp_trainer_end_undo(struct hzp_trainer *t, const struct hzp_step *step);
/* Builds the chain of an undo. */
void hzp_trainer_begin_undo(struct hzp_trainer *t);
/* The update counts, and its draft is published now or later. */
void hzp_trainer_keep_update(struct hzp_trainer *t, const struct hzp_step *step);
/* The update has ended, whatever became of it. */
void hzp_trainer_close_update(struct hzp_trainer *t, const struct hzp_step *step);
/* The update in progress as the record of the version that it makes. */
void hzp_trainer_fill_record(struct hzp_trainer *t, struct hzp_version_record *record);
/* The samples of the update that ends. */
void hzp_trainer_add_learned(const struct hzp_trainer *t, struct hzp_learned *learned);
/* With several ranks: the update's chain has ended; its tail has. */
void hzp_trainer_begin_tail(struct hzp_trainer *t, const struct hzp_step *step);
void hzp_trainer_end_tail(struct hzp_trainer *t, const struct hzp_step *step);
/* Publishes the finished updates while the next one accumulates gradients or waits, reading the
 * draft: it continues with the same weights, now held as the current version. */
void hzp_trainer_publish_early(struct hzp_trainer *t, const struct hzp_step *step);

/* --- trainer_ranks.c
 * -------------------------------------------------------------------------- */

/* Numbers the micro-batches of the draw, which is packed, and sends them to the other ranks. */
void hzp_trainer_deal(struct hzp_trainer *t);
/* Tells the other ranks to update; t->ahead: with the micro-batches of t->other, as above. */
void hzp_trainer_tell_update(struct hzp_trainer *t, const struct hzp_update_hyper *hyper);

/* Gathers one unit of the optimizer's state on this rank: *ret is the whole unit in host memory,
 * valid until the next call. While the trainer is frozen, the engine thread exchanges data for the
 * thread that calls; otherwise the caller is that thread.  HZP_EIO. */
int hzp_trainer_gather(struct hzp_trainer *t, enum hzp_state_part part, int32_t u, const void **ret,
                       struct hzp_err_text *reterr);

/* Another thread, while the trainer is frozen or suspended: sends the other ranks this command,
 * and exchanges what belongs to it.  whole: of FILL.  HZP_EIO. */
int hzp_trainer_exchange(struct hzp_trainer *t, const struct hzp_rank_command *command,
                         const void *whole, struct hzp_err_text *reterr);

/* Engine thread: whether the other ranks may be told something; true with one rank. */
bool hzp_trainer_may_tell(const struct hzp_trainer *t);
/* With several ranks tells them whether the draft of the update has passed the gate. */
void hzp_trainer_tell_verdict(struct hzp_trainer *t, bool passed);

/* --- trainer_group.c
 * -------------------------------------------------------------------------- */

/* The model is one slice of several: whether the settings can be used then, and room for the work.
 * No effect with a whole model.  HZP_EUNSUP. */
int hzp_trainer_open_group(struct hzp_trainer *t, struct hzp_err_text *reterr);
/* Before the chain of a micro-batch is built: whether to cut it into halves, so that the sums of
 * each run beside products of the other, which are slower for that.  It is where sums take long,
 * by the times that items took before, and never where the device's streams order transfers,
 * because nothing is hidden there.  Builds the uncut chain in t->chain to add up its times. */
bool hzp_trainer_halves(struct hzp_trainer *t, const struct hzp_micro *micro);
/* t->chain has been built from this, and for a micro-batch from t->micro: the next slice is the
 * first of it.  No effect with a whole model. */
void hzp_trainer_note_work(struct hzp_trainer *t, const struct hzp_chain_work *work);
/* Completes the slice of t->chain: number and, of the first with items, work. */
void hzp_trainer_tell_work(const struct hzp_trainer *t, struct hzp_slice *slice);
/* hzp_trainer_load, together with all other ranks (tensor_state.h); *ret is the state's. */
int hzp_trainer_load_slices(struct hzp_trainer *t, struct hzp_version *v, const char *dir,
                            bool same_recipe, struct hzp_trainer_numbers *ret, char *ret_note,
                            struct hzp_err_text *reterr);
/* Version and state as no rank has them, put together; NULL: this rank has them whole, or keeps no
 * checkpoints.  Read by the thread that froze the trainer. */
const struct hzp_state_whole *hzp_trainer_whole(const struct hzp_trainer *t);
void hzp_trainer_close_group(struct hzp_trainer *t);

/* --- trainer_restore.c
 * ------------------------------------------------------------------------ */

/* While suspended, with several ranks: what follows belongs to an older version; a unit of its
 * state.  No effect with one rank.  HZP_EIO. */
int hzp_trainer_restore_begin(struct hzp_trainer *t, struct hzp_err_text *reterr);
int hzp_trainer_restore_unit(struct hzp_trainer *t, enum hzp_state_part part, int32_t u,
                             const struct hzp_unit_view *whole, struct hzp_err_text *reterr);

/* --- trainer_behind.c
 * ------------------------------------------------------------------------- */

/* Builds the next chain of the preparation, or ends it.  False: there is nothing to offer, because
 * the state is still being read, or could not be, and the trainer has stopped. */
bool hzp_trainer_prepare_next(struct hzp_trainer *t);

/* --- trainer_state.c
 * -------------------------------------------------------------------------- */

/* What is left of a checkpoint's state is not read any more. */
void hzp_trainer_drop_rest(struct hzp_trainer *t);

/* --- trainer.c
 * -------------------------------------------------------------------------------- */

/* Takes notice of what other ranks have done.  < 0: the exchange with them has failed, and with it
 * training. */
int hzp_trainer_turn_ranks(struct hzp_trainer *t);

/* --- trainer_suspend.c
 * ------------------------------------------------------------------------ */

/* Tells the store which samples have been given up, before a version covers them. */
void hzp_trainer_note_unlearned(struct hzp_trainer *t);

/* --- trainer_gate.c
 * --------------------------------------------------------------------------- */

/* The configuration is borrowed.  It cannot fail. */
int hzp_trainer_gate_create(const struct hzp_gate *config, struct hzp_trainer_gate **ret);
void hzp_trainer_gate_destroy(struct hzp_trainer_gate *gate); /* NULL: no effect */

/* The update's chain has ended well: builds the first chain of the evaluation. */
void hzp_trainer_gate_begin(struct hzp_trainer *t);
/* Whether the end of the chain in progress decides about the draft. */
bool hzp_trainer_gate_decides(const struct hzp_trainer *t);
/* A chain of the evaluation has ended: builds the next, or decides. */
enum hzp_gate_result { HZP_GATE_GOES_ON, HZP_GATE_PASSED, HZP_GATE_REFUSED };
enum hzp_gate_result hzp_trainer_gate_next(struct hzp_trainer *t);
/* The draft that passed is published: its losses are those of the serving version from here on. */
void hzp_trainer_gate_accept(struct hzp_trainer *t);
/* Another version serves than the one whose losses are known. */
void hzp_trainer_gate_forget(struct hzp_trainer *t);

/* --- trainer_trial.c ------------------------------------------------------------------------- */

/* The draft passed every other check: it serves a share of the requests from here on. */
void hzp_trainer_trial_begin(struct hzp_trainer *t);
/* In stage TRIAL: looks whether it is over.  False: it is, and the chain of the undo is next.
 * True: the step has no slice; t->promotes says whether it publishes the version. */
bool hzp_trainer_trial_turn(struct hzp_trainer *t, const struct hzp_step *step,
                            struct hzp_offer *offer);
/* When t->promotes says so, and the step is delivered: publishes it, and the update counts. */
void hzp_trainer_trial_promote(struct hzp_trainer *t, const struct hzp_step *step);
/* Ends it without a verdict. */
void hzp_trainer_trial_withdraw(struct hzp_trainer *t, const char *why);

/* --- trainer_save.c
 * --------------------------------------------------------------------------- */

#define HZP_STATE_FORMAT "hzpserve-trainer-1"

/* A version and its state that no rank has whole: they pass through one unit of memory. */
struct hzp_state_whole {
    /* Receives the whole model, each unit in the same host memory; layout NULL: there is no such
     * part. */
    struct hzp_units part[HZP_STATE_WEIGHTS + 1];
    /* Unit u, put together: *ret is valid until the next call. */
    int (*read)(void *ctx, enum hzp_state_part part, int32_t u, const void **ret,
                struct hzp_err_text *reterr);
    /* Unit u of moments or residuals, as the file has it. */
    int (*take)(void *ctx, enum hzp_state_part part, int32_t u, const struct hzp_unit_view *whole,
                struct hzp_err_text *reterr);
    void *ctx;
};

/* What is read of a version and its state: of a trainer that stands still, of a copy, or of
 * ranks that have parts of them. */
struct hzp_state_reader {
    struct hzp_trainer *t;
    const struct hzp_version *v;
    const struct hzp_snapshot *copy;     /* instead of both; NULL: none */
    const struct hzp_state_whole *whole; /* instead of all of them; NULL: none */
};
/* The whole unit in host memory, valid until the next call; *ret_owned: freed by the caller. */
int hzp_state_read(const struct hzp_state_reader *reader, enum hzp_state_part part, int32_t u,
                   struct hzp_unit_view *ret, void **ret_owned, struct hzp_err_text *reterr);
/* All but the checksum. */
void hzp_state_numbers(struct hzp_trainer *t, const struct hzp_version *v,
                       struct hzp_trainer_numbers *ret);
/* The checksum that hzp_units_checksum makes of whole units. */
int hzp_state_sum(const struct hzp_state_reader *reader, enum hzp_state_part part, uint64_t *ret,
                  struct hzp_err_text *reterr);
/* Writes trainer.safetensors in dir. */
int hzp_state_write(const struct hzp_state_reader *reader,
                    const struct hzp_trainer_numbers *numbers, const struct hzp_recipe *recipe,
                    const char *dir, const char *note, struct hzp_err_text *reterr);
/* The data type of a state's units on disk. */
enum hzp_disk_type hzp_state_disk_type(const struct hzp_units *units);
/* HZP_EINVAL, naming the field: the file was written with another recipe; all false: only the
 * moments' type counts. */
int hzp_state_compare_recipe(const struct hzp_recipe *recipe, const struct hzp_safetensors *st,
                             const char *path, bool all, struct hzp_err_text *reterr);
/* The checksum of the weights in the version's memory; where this rank has only its shards of
 * them, that of the record.  path: what it is for. */
int hzp_state_weights_checksum(const struct hzp_model *model, const struct hzp_version *v,
                               const char *path, uint64_t *ret, struct hzp_err_text *reterr);

/* --- trainer_state.c
 * -------------------------------------------------------------------------- */

/* Reads trainer.safetensors in dir into the space: of each unit what is resident.  See
 * hzp_trainer_load. */
int hzp_trainer_load_state(const struct hzp_model *model, const struct hzp_recipe *recipe,
                           struct hzp_train_space *space, struct hzp_version *v, const char *dir,
                           bool same_recipe, struct hzp_trainer_numbers *ret,
                           struct hzp_err_text *reterr);
/* The same, with the same errors, for what no rank has whole: reads the weights to compare their
 * checksum, then hands over unit by unit.  ret_note: as in hzp_trainer_load. */
int hzp_trainer_load_whole(const struct hzp_state_whole *to, const struct hzp_recipe *recipe,
                           const char *dir, bool same_recipe, struct hzp_trainer_numbers *ret,
                           char *ret_note, struct hzp_err_text *reterr);

#endif
