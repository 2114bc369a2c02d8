/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer.h - trains on samples in the device time that serving leaves: the loop's
 * second source.
 *
 *     idle -draw-> accumulate (micro-batches) -> wait -> update -> checked -> publish -> idle
 *                                                 |         |         |
 *                  for a slot, the bound, a checkpoint      +-- not finite: undone, counted,
 *                  logged
 *
 * With a gate (struct hzp_gate) a stage comes before publish: the draft's loss on held-out samples
 * is computed, by slices like those of learning.  Where it has risen too much, the draft is
 * abandoned, moments and residuals are copied back bit for bit, and its samples are rejected.  The
 * update counts as finished when it has passed, so the staleness bound holds as without.
 *
 * With trials (weights/trials.h) a draft that has passed these checks serves a share of the
 * requests first, and the trainer begins nothing until the verdict.  Promoted, it is published
 * like any other, and only then the update counts as finished.  Dropped, it is treated like a
 * draft that the gate refuses.  If something else needs the trainer meanwhile (a stop,
 * hzp_trainer_suspend) it is withdrawn: the same, but its samples are drawn again later.  No
 * checkpoint can be made of the state meanwhile, so none contains a trial.
 *
 * Where the queue draws by lesson (sample_queue.h) updates collect in the draft until their group
 * of lessons has had all its passes; then gate and trial judge the group, against the version
 * before it.  Moments and residuals are copied before its first update, so a group that is rejected
 * leaves no trace but its marks.  One that a stop or a suspension interrupts is undone in the same
 * way, and learned again later.  Its updates count as finished when it is published; a freeze waits
 * for that.
 *
 * With prepare_behind a stage comes before: its slices zero the memory, also while no sample
 * waits, and a checkpoint's moments and residuals are read meanwhile (hzp_trainer_load_rest).
 *
 * Work is offered in slices: a range of the current chain's items whose predicted duration fits
 * the time the step has left for training.  A version is published in deliver(), that is, between
 * two steps.
 *
 * Staleness.  Let F be the newest finished optimizer step, S the optimizer step of the serving
 * version, u = F - S, K the bound.  Only this module changes F (by finishing an update) and S (by
 * publishing).  An update begins only if u + 1 <= K, or if it will be published in the same
 * deliver() in which it finishes, after which u = 0.  So u <= K holds between any two steps, which
 * is when versions are read.  If K is lowered below u, the next step publishes what is finished,
 * whatever else limits training; during an update, which writes into that draft, its end does.  If
 * slow readers keep all slots occupied, the trainer has no draft and waits, and u does not grow.
 *
 * In a step whose offer says keep_version an update's last item is not offered, and nothing is
 * published, but for a lowered K.  So no update ends, and u does not grow.
 *
 * An unpublished update stays in its draft, which only the trainer accesses; the next update reads
 * and writes that draft in place.
 *
 * Where the model is one slice of several (weights/tensor_slice.h) this is rank 0 of a group that
 * computes each step together: slices carry what the other ranks make the same chains from
 * (learner/by_step.h).  The chains themselves reduce what has to be: loss and norm are those of the
 * whole model, the checksum is the sum of all slices'.
 *
 * Owns: gradients, moments, residuals, activations (hzp_train_space), the micro-batch.
 * Borrows: the version it reads, the draft it writes.
 *
 * Thread: engine, except pause, finish, read_stats and load_rest: any; and where a function says
 * so.
 */
#pragma once

#include "train/checks/gate.h"
#include "train/sites/sites.h"
#include "train/state/state_file.h"
#include "weights/trials.h"

/* What one update did: for logs, metrics and progress bars. */
struct hzp_update_report {
    int64_t optimizer_step;        /* from 1 */
    double loss;                   /* weighted mean over its learned tokens, before the update */
    double divisor;                /* of the sum of gradients, as the recipe says */
    double grad_norm;              /* after that division */
    struct hzp_ratio_stats ratios; /* of the micro-batches that this rank computed */
    float lr;
    int32_t learned_tokens, rows, samples;
    struct hzp_paths paths; /* of its micro-batches */
    /* The update's device time, the gate's part of it, and time from begin to end. */
    uint64_t device_ns, gate_ns, wall_ns;
    struct hzp_operations operations; /* of the micro-batches that this rank computed */
    double peak; /* operations per ns of the fastest product of training that this rank timed by
                  * itself; 0: none yet.  What utilisation is measured against */
    uint64_t version; /* version published with it; 0: none */
    bool skipped;     /* not finite: nothing changed */
    bool dropped;     /* not finite the second time in a row: this pass of its samples is skipped */
    bool broken;      /* the weights are not finite: the trainer has stopped */
    bool rejected;    /* the gate refused the draft, or its trial ended badly: nothing changed, its
                    * samples are not learned */
    bool withdrawn;   /* the trial was ended without a verdict: its samples are drawn again */
    uint32_t sites;   /* sites with whose averages its draft was made, as bits; 0: none */
    bool alone;       /* there is no update, only the average */
    uint64_t trial;   /* rejected, withdrawn: the version that was on trial; 0: none */
    double gate_before, gate_after; /* mean losses on the gate's samples; NaN: no gate */
    const char *gate_tag;           /* rejected: the tag whose loss rose; NULL: that of all */
    /* The smallest and largest sequence number drawn; 0: no sample of the log. */
    int64_t first_sequence, last_sequence;
};

/* Part of the peak that so many operations were, in the update's duration; NaN: not known. */
double hzp_update_utilisation(const struct hzp_update_report *report, uint64_t operations);

struct hzp_trainer_config {
    struct hzp_recipe recipe;
    struct hzp_model *model;
    struct hzp_sample_queue *queue;
    uint64_t quantum_flops;
    /* While requests run, the forward pass is cut into chunks of about this many rows; 0: not
     * cut. */
    int32_t chunk_rows;
    /* In a tensor-parallel group: least rows of each half of a micro-batch; halves take turns where
     * sums between ranks take long.  0: 128. */
    int32_t half_rows;
    /* Memory is zeroed by slices of the first steps instead of at create, so that a server can
     * answer before: on a CPU it takes seconds per GB.  Samples wait for it. */
    bool prepare_behind;
    bool host_state;   /* moments and residuals are in host memory (train_space.h) */
    int32_t ride_rows; /* serving rows for which there is room behind a micro-batch: ride.h */
    const struct hzp_gate *gate; /* borrowed, needs publish_every 1; NULL: none */
    struct hzp_trials *trials;   /* borrowed, the same, and one rank; NULL: drafts are published at
                                  * once */
    struct hzp_sites *sites;     /* borrowed, and one rank; NULL: none */
    /* How ranks divide gradients and optimizer state.  The model's layout is padded for it; ordered
     * may be set with one rank, too. */
    struct hzp_shards shards;
    /* Connects this rank, which is 0, with the others, which have learners (learner/by_link.h);
     * borrowed; NULL: one rank. */
    struct hzp_link *link;
    /* What paths of stages are planned for (stage_paths.h): bytes a second; 0: not stated. */
    double link_rate, link_latency_s;
    const struct hzp_model_config *whole; /* with tensor parallelism the whole model's; borrowed */
    struct hzp_link *group; /* with tensor parallelism: between the ranks of the group; borrowed */
    /* Called on the engine thread after each update, before the step's next turn; may only copy
     * and poke.  NULL: not called. */
    void (*on_update)(void *ctx, const struct hzp_update_report *report);
    void *ctx;
};

struct hzp_learner;
struct hzp_loop;
struct hzp_train_space;
struct hzp_trainer;

/* Allocates all its device memory here, none later.  With ranks: together with all of them.
 * HZP_EUNSUP: the model is one slice of several, and there are trials, chunks, or
 * prepare_behind. */
int hzp_trainer_create(const struct hzp_trainer_config *config, struct hzp_trainer **ret,
                       struct hzp_err_text *reterr);
void hzp_trainer_destroy(struct hzp_trainer *t); /* NULL: no effect */
struct hzp_source *hzp_trainer_source(struct hzp_trainer *t);

/* Thread: any.  A paused trainer finishes nothing and offers nothing; but its memory is prepared
 * if a freeze, a suspension or lost ranks wait for it. */
void hzp_trainer_pause(struct hzp_trainer *t, bool on);
/* Thread: any.  For a graceful stop: finishes the update in progress, publishes, and begins no
 * other. */
void hzp_trainer_finish(struct hzp_trainer *t);

/* An answer that `version` has served, to be compared with what training computes of its tokens:
 * the log-probabilities, how.old of the learned ones, whose kind is not XENT.  It is taken over,
 * and evaluated between two updates if that version serves then.  One waits at most, and all of
 * them take a fiftieth of the time; others are dropped, as are those longer than
 * hzp_trainer_tokens_max, and all where weights or model are in parts.  Poke the loop
 * afterwards.  Thread: any. */
void hzp_trainer_compare(struct hzp_trainer *t, struct hzp_sample *served, uint64_t version);
/* Whether one would be taken now.  Thread: any. */
bool hzp_trainer_compares(struct hzp_trainer *t);

/* A consistent state for a checkpoint, without copying it.  Freeze and thaw are functions of
 * border calls (nanobatch/border.h).  Freeze is done between two updates, at the latest when the
 * micro-batches in progress have ended; frozen() is then the version that moments and residuals
 * belong to, held until thaw.  From the first try of freeze until thaw no update begins;
 * micro-batches and serving continue.  Thread of frozen: the one that froze; engine. */
int hzp_trainer_freeze(void *trainer, const struct hzp_border *border);
int hzp_trainer_thaw(void *trainer, const struct hzp_border *border);
struct hzp_version *hzp_trainer_frozen(const struct hzp_trainer *t); /* NULL: it is not */

/* With sites, when the loop exists: starts their thread.  It has ended when the loop has, and
 * hzp_trainer_end_sites was called. */
int hzp_trainer_start_sites(struct hzp_trainer *t, struct hzp_loop *loop);
void hzp_trainer_end_sites(struct hzp_trainer *t);

/* True: moments and residuals belong to the current version and can be saved, because no update
 * runs and none is finished but unpublished. */
bool hzp_trainer_idle(const struct hzp_trainer *t);
/* The same, and the other ranks wait for rank 0, so that the engine thread may save.  With one
 * rank it is always so when hzp_trainer_idle says so. */
bool hzp_trainer_rests(const struct hzp_trainer *t);
struct hzp_train_space *hzp_trainer_space(struct hzp_trainer *t);
struct hzp_learner *hzp_trainer_learner(struct hzp_trainer *t);

struct hzp_trainer_stats {
    int64_t optimizer_step; /* the newest */
    uint64_t updates, skipped, learned_tokens, device_ns;
    struct hzp_operations operations;
    uint64_t lost_ns;       /* part of device_ns: what was undone, and the gate's evaluations */
    double peak, mfu, hfu;  /* as reported; the newest update's operations of the model, and of the
                             * hardware, over its duration times the peak; NaN: not known */
    uint64_t rows;          /* forward and backward rows, counted as each micro-batch ends */
    double loss, grad_norm; /* the newest update's, as are ratios */
    struct hzp_ratio_stats ratios;
    struct hzp_ratio_stats served; /* rows, k1, k3 of what was compared, the newest above all */
    uint64_t compared;             /* tokens */
    float lr;
    int32_t path_layers; /* of its micro-batches; 0: no update yet */
    int64_t draws;       /* completed draws of the queue, which a resumed run repeats */
    uint64_t dropped;    /* those given up because the update was not finite twice */
    bool preparing;      /* see prepare_behind, hzp_trainer_load_begin */
    bool paused, broken, waiting_for_swap, waiting_for_slot, on_trial;
    /* as of the newest step: rows per second while there is work, with what serving leaves (0: not
     * known); how long there has been work without progress; the age of the oldest sample that is
     * not finished */
    double rows_per_second;
    uint64_t stalled_ns, oldest_ns;
    uint64_t gate_evaluations, gate_rejected,
        gate_device_ns;             /* evaluations of drafts; drafts; time of all of it */
    double gate_before, gate_after; /* the newest one's; NaN: none yet */
    /* the newest rejection; sequence numbers 0: none yet */
    struct {
        int64_t optimizer_step, first_sequence, last_sequence, unix_ms;
        double before, after;
        const char *tag; /* NULL: all */
    } rejection;
    /* why the exchange with other ranks has failed; "": it has not.  Not broken: they come back */
    char failure[200];
};
void hzp_trainer_read_stats(struct hzp_trainer *t, struct hzp_trainer_stats *ret);
/* As configured.  Thread: any. */
struct hzp_trials *hzp_trainer_trials(const struct hzp_trainer *t);

/* True: the trainer can go on only when other ranks have; the caller may sleep until the link's
 * wake. */
bool hzp_trainer_awaits_ranks(const struct hzp_trainer *t);

/* With ranks, or a group: the loop that the trainer is a source of, which wakes when the trainer
 * can go on, and by which other threads exchange something with the other ranks; NULL: no
 * longer. */
void hzp_trainer_set_loop(struct hzp_trainer *t, struct hzp_loop *loop);

/* Whether other ranks that are lost come back.  If not, the trainer is broken by a loss. */
void hzp_trainer_set_rejoins(struct hzp_trainer *t, bool on);
/* A rank was lost, and the ranks will meet again: the trainer is asked to let go of the link, or
 * soon will be.  Any thread, the engine's too. */
bool hzp_trainer_rejoins(struct hzp_trainer *t);

/* From the first try of part to join: nothing is saved.  Any thread. */
bool hzp_trainer_parting(const struct hzp_trainer *t);

/* With ranks, before the loop runs: gives the others the current version, and the state that was
 * loaded (trainer_restore.c).  They call hzp_learner_by_link_receive.  It waits.  HZP_EIO. */
int hzp_trainer_send_start_state(struct hzp_trainer *t, struct hzp_err_text *reterr);

/* With ranks: tells the others, which are idle, that there is no more work, and waits until they
 * have heard it.  Call while idle, with the loop stopped; no effect after a failure. */
void hzp_trainer_dismiss_ranks(struct hzp_trainer *t);

/* Trainer state on disk: trainer.safetensors in dir (moments, residuals, optimizer step, draws,
 * recipe), in the directory that hzp_model_save writes.  Exact: a resumed run continues the same
 * loss curve bit for bit.  The file contains checksums of the weights it belongs to, of the
 * moments and of residuals.
 *
 * Save: v is the version the state belongs to (frozen, or the current one while idle); note (NULL:
 * none) is a string saved with it, which describes the training data, at most HZP_TRAINER_NOTE_MAX
 * bytes.  Thread: the one that called freeze, or engine, when the trainer rests. */
/* HZP_EIO: the file cannot be written, or with ranks the link failed; HZP_ENOMEM, HZP_EDEVICE. */
/* hzp_trainer_state: what is saved, a source as long as *ret, and v, are there. */
void hzp_trainer_state(struct hzp_trainer *t, const struct hzp_version *v,
                       struct hzp_train_state *ret);
int hzp_trainer_save(struct hzp_trainer *t, const struct hzp_version *v, const char *dir,
                     const char *note, struct hzp_err_text *reterr);

/* Tokens of the longest example that it learns.  Thread: any. */
int32_t hzp_trainer_tokens_max(const struct hzp_trainer *t);

/* Rank 0 of a group that computes each step together, before the loop runs and with a version:
 * checkpoints will be saved.  They are gathered in steps, so none can be saved when the loop has
 * ended; from here on it does not end, unless in a hurry, before hzp_trainer_let_end.  No effect
 * elsewhere.  HZP_ENOMEM. */
int hzp_trainer_keep_slices(struct hzp_trainer *t);
/* Functions of border calls.  Finished: done when the loop is to end, and nothing is learned or
 * published any more.  Let_end: the last checkpoint is saved. */
int hzp_trainer_finished(void *trainer, const struct hzp_border *border);
int hzp_trainer_let_end(void *trainer, const struct hzp_border *border);
/* There: the layout in which versions are saved; NULL: that of the weights here. */
const struct hzp_layout *hzp_trainer_whole_layout(const struct hzp_trainer *t);
/* There: bytes of host memory that units pass through. */
size_t hzp_trainer_slices_bytes(const struct hzp_layout *slice, int32_t ranks);

/* Load, before the first step: v is a draft that hzp_model_load filled from the same checkpoint;
 * its record gets optimizer step, loss, learned_through and checksum, and the caller publishes it.
 * Refused are weights other than those the state belongs to, damaged moments or residuals, and
 * another data type of moments (HZP_EFORMAT), and with same_recipe any other recipe (HZP_EINVAL,
 * naming what differs).
 * ret_note [HZP_TRAINER_NOTE_MAX + 1], NULL: not wanted. */
int hzp_trainer_load(struct hzp_trainer *t, struct hzp_version *v, const char *dir,
                     bool same_recipe, char *ret_note, struct hzp_err_text *reterr);

/* The same in two parts, so that a server can answer before it has read everything
 * (prepare_behind, one rank, a device in host memory; otherwise begin does all).  Begin reads the
 * numbers and checks everything but moments and residuals.  The rest is read by another thread,
 * once the loop exists; samples wait for it.  Poke the loop afterwards.  After a failure the
 * trainer stops, as if its weights were not finite: an older version may still serve again
 * (trainer_suspend.h). stop: HZP_ECANCELED soon after it is raised. */
int hzp_trainer_load_begin(struct hzp_trainer *t, struct hzp_version *v, const char *dir,
                           struct hzp_err_text *reterr);
int hzp_trainer_load_rest(struct hzp_trainer *t, const atomic_bool *stop,
                          struct hzp_err_text *reterr);
