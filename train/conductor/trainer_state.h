/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_state.h - the trainer's struct, private to the files that implement it.
 *
 * Thread: see the comments in the struct.
 */
#pragma once

#include "train/conductor/draw.h"
#include "train/conductor/pace.h"
#include "train/conductor/trainer.h"

/* The conductor's states; what each does is the table in conductor.c. */
enum hzp_trainer_stage {
    HZP_TRAINER_IDLE,
    HZP_TRAINER_PREPARE,    /* a chain that zeroes memory is in progress, or the next to be built */
    HZP_TRAINER_GATHER,     /* a chain that gathers a piece of the state is in progress */
    HZP_TRAINER_ACCUMULATE, /* a micro-batch's chain is in progress */
    HZP_TRAINER_WAIT,       /* gradients are complete; the update may not begin yet */
    HZP_TRAINER_UPDATE,     /* the update's chain is in progress, or only its tail */
    HZP_TRAINER_MERGE,      /* an average of sites is written into the draft: trainer_sites.c */
    HZP_TRAINER_GATE,       /* a micro-batch of the gate's samples is in progress */
    HZP_TRAINER_COMPARE,    /* an answer that was served is evaluated: trainer_compare.c */
    HZP_TRAINER_TRIAL,      /* the draft is on trial; no chain */
    HZP_TRAINER_UNDO,       /* the chain that copies the optimizer's state back is in progress */
    HZP_TRAINER_RESTORE,    /* the chain that quantizes an older version is in progress */
    HZP_TRAINER_BROKEN,     /* device or weights failed: the trainer offers nothing more */
    HZP_TRAINER_STAGES
};

/* What is left of a checkpoint's state of the optimizer (hzp_trainer_load_begin). */
enum hzp_rest_state { HZP_REST_NONE, HZP_REST_UNREAD, HZP_REST_FAILED };

struct hzp_group_gather; /* trainer_group.c */

struct hzp_trainer {
    /* fixed after create */
    struct hzp_source source;
    struct hzp_trainer_config config;
    struct hzp_learner *learner; /* executes what is decided here */

    /* engine thread */
    enum hzp_trainer_stage stage;
    /* in a tensor-parallel group that keeps checkpoints; NULL: none */
    struct hzp_group_gather *group;
    bool flush;             /* in this step: publish without offering a slice */
    size_t prepared;        /* bytes of the space in the chains so far */
    int32_t prepare_pieces; /* pieces of the next chain; 0: it is the first */
    struct {
        _Atomic(int) state;          /* enum hzp_rest_state */
        struct hzp_state_file *file; /* the thread's that reads it; NULL: nothing is left */
    } rest;
    struct hzp_draw draws_of[2], *draw;  /* draw: of the update whose micro-batches are computed */
    struct hzp_stage_paths *stage_paths; /* NULL: no stages, or all are visited */
    struct hzp_draw *other; /* drawn ahead, or of the update in its tail: trainer_update.c */
    bool ahead;             /* other holds samples that were dealt with the update's command */
    /* the newest step with which the end of the tail was offered; 0: not yet.  The step before it
     * may still be in flight */
    uint64_t tail_step;
    bool publishes; /* the current update will be published when it ends */
    bool open;      /* the other ranks wait for what becomes of the current update */
    int64_t draws;
    /* Where updates are published lesson by lesson (hzp_sample_queue_by_lesson): what the group in
     * the draft adds to these numbers when it is published. */
    struct {
        int64_t draws;
        uint64_t updates, learned_tokens;
    } group_of;
    struct hzp_track *use; /* operations of updates over the peak */
    uint64_t undecided_ns; /* device time of updates that may still be undone */
    double nadam_product;  /* for hzp_recipe_nadam, with nadam_done */
    int64_t nadam_done;
    int64_t reset_step;  /* the step after which moments were last zeroed: Adam counts from there */
    int32_t failures;    /* consecutive failures on the current samples */
    int32_t failed_told; /* how many of the queue's failed samples the store was told */
    int32_t rejected_told;
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
        struct hzp_work work;
        struct hzp_rank_filled filled; /* what was sent since the last work CLEAR */
    } asked;
    struct { /* units that wait in the stage to be sent by one work: trainer_restore.c */
        size_t elements;
        enum hzp_state_part part;
        int32_t unit, units;
        bool begun; /* the other ranks have been told that a version follows */
    } batch;
    void *gathered_unit; /* hzp_trainer_gather: a copy for the host; NULL: none yet */
    bool gathering;      /* engine thread: the collectives' list is that of the gather */
    bool rejoins;        /* under lock: lost ranks come back; see trainer_rejoin.h */
    atomic_bool parting; /* any thread: a rank was lost, and the ranks have not met again */
    char *loaded_dir;    /* the checkpoint whose state was loaded; NULL: none */

    struct {                      /* trainer_sites.c */
        struct hzp_version *lent; /* their thread reads it and its residuals; NULL: it does not */
        int phase;
        bool alone; /* the draft has an average and no update */
        bool open;  /* the draft has an average, of which nothing has become yet */
    } site;
    struct hzp_gate_check *gate; /* NULL: none */
    uint64_t gate_device_ns;     /* the update's device time before the evaluation began */
    int check;                   /* the check of the draft that is in progress */
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

    uint64_t compare_device_ns; /* now.device_ns when stage COMPARE began */

    /* under lock */
    struct hzp_lock lock;
    struct hzp_trainer_stats stats;
    struct {
        struct hzp_sample *sample; /* that waits to be compared; NULL: none */
        uint64_t version;          /* that answered it */
        uint64_t next_ns;          /* none is taken before */
    } compare;
};

/* --- conductor.c ------------------------------------------------------------------------------ */

/* The source, and the state that the trainer begins in. */
void hzp_conductor_init(struct hzp_trainer *t);
/* Whether the other ranks wait for work, or soon will, and no version is incomplete. */
bool hzp_trainer_listens(const struct hzp_trainer *t);
/* Takes notice of what other ranks have done.  < 0: the exchange with them has failed, and with it
 * training. */
int hzp_trainer_turn_ranks(struct hzp_trainer *t);

/* --- trainer_update.c ------------------------------------------------------------------------- */

/* Begins an update: draws its samples, and their micro-batches.  False: no sample of the draw can
 * be learned, and it counts as done. */
bool hzp_trainer_begin_draw(struct hzp_trainer *t);

/* True: updates collect in the draft until the group of lessons that they belong to has had all
 * its passes, and count as finished when it is published. */
bool hzp_trainer_by_lesson(const struct hzp_trainer *t);
/* The samples that are judged with the draft: those of the update, or by lesson of the group. */
struct hzp_sample_group hzp_trainer_judged(const struct hzp_trainer *t);
/* By lesson: the group has ended.  Begins the first check of its draft. */
void hzp_trainer_judge(struct hzp_trainer *t, const struct hzp_step *step);
/* By lesson: begins to undo the group, which is learned again later. */
void hzp_trainer_withdraw(struct hzp_trainer *t);
/* By lesson: the group in the draft is given up, and with it all that its updates have changed. */
void hzp_trainer_forget_group(struct hzp_trainer *t, enum hzp_group_verdict verdict);
/* True: with this many unpublished updates the server would exceed the staleness bound. */
bool hzp_trainer_over_bound(struct hzp_trainer *t, int32_t unpublished);
/* True: the update's chain is built.  False: it must wait; *ret_flush: wait until deliver() has
 * published the finished updates. */
bool hzp_trainer_begin_update(struct hzp_trainer *t, bool *ret_flush);
/* The chain has ended: of the update (with one rank), of an undo. */
void hzp_trainer_end_update(struct hzp_trainer *t, const struct hzp_step *step);
void hzp_trainer_end_undo(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns);
/* Builds the chain of an undo. */
void hzp_trainer_begin_undo(struct hzp_trainer *t);
/* The update counts, and its draft is published now or later; by lesson: the group does. */
void hzp_trainer_keep_update(struct hzp_trainer *t, const struct hzp_step *step);
/* The update has ended, whatever became of it. */
void hzp_trainer_close_update(struct hzp_trainer *t, const struct hzp_step *step);
/* The update in progress as the record of the version that it makes. */
void hzp_trainer_fill_record(struct hzp_trainer *t, struct hzp_version_record *record);
/* The samples of the update that ends. */
void hzp_trainer_add_learned(const struct hzp_trainer *t, struct hzp_learned *learned);
/* With several ranks: the update's chain has ended; its tail has. */
void hzp_trainer_begin_tail(struct hzp_trainer *t);
void hzp_trainer_end_tail(struct hzp_trainer *t, const struct hzp_step *step);
/* Publishes the finished updates, also while the next one accumulates gradients or waits, reading
 * the draft: it continues with the same weights, which are the current version then. */
void hzp_trainer_publish(struct hzp_trainer *t, const struct hzp_step *step);

/* --- trainer_ranks.c -------------------------------------------------------------------------- */

/* Tells the other ranks to update; t->ahead: with the micro-batches of t->other. */
void hzp_trainer_tell_update(struct hzp_trainer *t, const struct hzp_work *work);
/* Sends the works of the draw's micro-batches to the other ranks, if there are any. */
void hzp_trainer_tell_deal(struct hzp_trainer *t);

/* Gathers one unit of the optimizer's state on this rank: *ret, which is this rank's part of it,
 * becomes the whole unit in host memory, valid until the next call.  While the trainer is frozen,
 * the engine thread exchanges data for the thread that calls; otherwise the caller is that thread.
 * HZP_EIO. */
int hzp_trainer_gather(struct hzp_trainer *t, enum hzp_state_part part, int32_t u,
                       struct hzp_unit_view *ret, struct hzp_err_text *reterr);

/* Another thread, while the trainer is frozen or suspended, or the engine's between chains: sends
 * the other ranks this work, and exchanges what belongs to it.  HZP_EIO. */
int hzp_trainer_exchange(struct hzp_trainer *t, const struct hzp_work *work,
                         struct hzp_err_text *reterr);

/* Engine thread: whether the other ranks may be told something; true with one rank. */
bool hzp_trainer_may_tell(const struct hzp_trainer *t);
/* With several ranks tells them what becomes of the open draft: it is published, or undone. */
void hzp_trainer_tell_verdict(struct hzp_trainer *t, bool passed);

/* --- trainer_group.c -------------------------------------------------------------------------- */

/* The model is one slice of several: whether the settings can be used then.  HZP_EUNSUP. */
int hzp_trainer_check_group(const struct hzp_trainer_config *config, struct hzp_err_text *reterr);
/* hzp_trainer_load, together with all other ranks (tensor_state.h); *ret is the state's. */
int hzp_trainer_load_slices(struct hzp_trainer *t, struct hzp_version *v, const char *dir,
                            bool same_recipe, struct hzp_trainer_numbers *ret, char *ret_note,
                            struct hzp_err_text *reterr);
/* Version and state as no rank has them, put together; NULL: this rank has them whole, or keeps no
 * checkpoints.  Read by the thread that froze the trainer. */
const struct hzp_unit_source *hzp_trainer_whole(const struct hzp_trainer *t);
void hzp_trainer_close_group(struct hzp_trainer *t);

/* --- trainer_behind.c ------------------------------------------------------------------------- */

/* Builds the next chain of the preparation, or ends it.  False: there is nothing to offer, because
 * the state is still being read, or could not be, and the trainer has stopped. */
bool hzp_trainer_prepare_next(struct hzp_trainer *t);

/* Tells the store which samples have been given up or rejected, before a version covers them. */
void hzp_trainer_note_unlearned(struct hzp_trainer *t);

/* --- trainer_checks.c ------------------------------------------------------------------------- */

/* The update has ended well: begins the first check of its draft.  Without any, or when all have
 * passed, the update is kept and closed. */
void hzp_trainer_check(struct hzp_trainer *t, const struct hzp_step *step);
/* The check in progress has passed: the next one follows. */
void hzp_trainer_passed(struct hzp_trainer *t, const struct hzp_step *step);
/* Whether the draft that the update in progress makes is to be on trial. */
bool hzp_trainer_tries(const struct hzp_trainer *t);
/* Whether there is any check, so that an update may have to be undone. */
bool hzp_trainer_checks(const struct hzp_trainer *t);
/* Whether the end of the chain in progress may pass the last check. */
bool hzp_trainer_decides(const struct hzp_trainer *t);
/* A chain of the gate's has ended. */
void hzp_trainer_end_gate(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns);

/* --- trainer_compare.c ------------------------------------------------------------------------ */

/* Idle: begins to evaluate an answer that waits.  False: there is none, or it must wait. */
bool hzp_trainer_compare_begin(struct hzp_trainer *t);
/* In stage COMPARE: its chain has ended. */
void hzp_trainer_end_compare(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns);

/* --- trainer_sites.c -------------------------------------------------------------------------- */

/* The draft is good: whether an average is written into it, after which its checks begin. */
bool hzp_trainer_merge(struct hzp_trainer *t);
/* Idle: begins a draft that has only an average.  False: there is none, or it must wait. */
bool hzp_trainer_merge_alone(struct hzp_trainer *t);
/* In stage MERGE: whether its chain may be offered; it has ended. */
bool hzp_trainer_merge_turn(struct hzp_trainer *t);
void hzp_trainer_end_merge(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns);
/* What became of the draft; kept: it is published, or will be. */
void hzp_trainer_note_merged(struct hzp_trainer *t, bool kept);

/* --- trainer_trial.c ------------------------------------------------------------------------- */

/* Whether trials are only looked at: then none is dropped or withdrawn, and no copy of moments and
 * residuals is needed. */
bool hzp_trainer_observes(const struct hzp_trainer *t);
/* The draft passed every other check: it serves a share of the requests from here on. */
void hzp_trainer_trial_begin(struct hzp_trainer *t);
/* In stage TRIAL: looks whether it is over.  False: it is, and the chain of the undo is next.
 * True: the step has no slice; t->promotes says whether it publishes the version. */
bool hzp_trainer_trial_turn(struct hzp_trainer *t, const struct hzp_step *step,
                            struct hzp_offer *offer);
/* When t->promotes says so, and the step is delivered: publishes it, and the update counts. */
void hzp_trainer_trial_promote(struct hzp_trainer *t, const struct hzp_step *step);
/* The trainer breaks off: nothing comes of the trial or its draft. */
void hzp_trainer_trial_break_off(struct hzp_trainer *t);
/* Ends it without a verdict; one that is only looked at is published by the next step. */
void hzp_trainer_trial_withdraw(struct hzp_trainer *t, const char *why);

/* --- trainer_save.c --------------------------------------------------------------------------- */

/* What is left of a checkpoint's state is not read any more. */
void hzp_trainer_drop_rest(struct hzp_trainer *t);
