/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer.h - learns from samples with what serving leaves over: the loop's second source.
 *
 *     idle -draw-> accumulate (micro-batches) -> wait -> update -> checked -> publish -> idle
 *                                                 |         |         |
 *                  for a slot, the bound, a checkpoint      +-- not finite: undone, counted, logged
 *
 * Work is offered in slices: a range of the current chain's items, priced to fit what the step has
 * left for training.  A version is published in deliver(), that is, between two steps.
 *
 * Staleness.  Let F be the newest finished optimizer step, S the one that serves, u = F - S.  Only
 * this module moves either: F by finishing an update, S by publishing.  An update begins only if
 * u + 1 <= K or it is one that is published in the very deliver() in which it finishes, after which
 * u = 0; if K shrinks meanwhile, deliver() publishes as soon as u > K.  So between any two steps,
 * which is whenever a version is read, u <= K.  A slow reader can keep slots occupied; then the
 * trainer has no draft and waits, and u does not grow.
 *
 * An update that is not published stays in its draft, which only the trainer sees; the next one
 * reads and writes that draft in place.
 *
 * Owns: gradients, moments, residuals, activations (hzp_train_space), the micro-batch.
 * Borrows: the version it reads, the draft it writes.
 *
 * Thread: engine, except pause, finish, freeze, thaw, frozen and read_stats: any.
 */
#ifndef HZP_TRAIN_TRAINER_H
#define HZP_TRAIN_TRAINER_H

#include "nanobatch/build/backward.h"
#include "nanobatch/source.h"
#include "train/sample_queue.h"

enum hzp_lr_schedule { HZP_LR_CONSTANT, HZP_LR_COSINE };

struct hzp_recipe {
    float lr, beta1, beta2, eps, decay, clip;
    enum hzp_lr_schedule schedule;
    int32_t warmup_steps;
    int64_t total_steps; /* cosine ends here at lr * lr_floor */
    float lr_floor;
    int32_t update_tokens; /* tokens drawn for one update (gradient accumulation) */
    int32_t micro_rows;    /* rows of one micro-batch; also the longest document + 1 */
    int32_t publish_every; /* updates per version, >= 1 */
    enum hzp_dtype moment_type;
};

/* The rate of optimizer step t (from 1): linear warm-up to lr over warmup_steps, then constant, or
 * cosine down to lr * lr_floor at total_steps. */
float hzp_recipe_lr(const struct hzp_recipe *recipe, int64_t t);

/* HZP_EINVAL names the field that is out of range (HZP_F32 or HZP_BF16 moments, ...). */
int hzp_recipe_check(const struct hzp_recipe *recipe, struct hzp_err_text *reterr);

/* The train space a trainer of this recipe takes: for the memory plan. */
struct hzp_train_space_config hzp_trainer_space_config(const struct hzp_recipe *recipe,
                                                       const struct hzp_model_config *model,
                                                       uint64_t quantum_flops);

/* What one update did: for logs, metrics and progress bars. */
struct hzp_update_report {
    int64_t step; /* optimizer step, from 1 */
    double loss;  /* weighted mean over its learned tokens, before the update */
    double grad_norm;
    float lr;
    int32_t learned_tokens, rows, samples;
    uint64_t device_ns, wall_ns; /* of the update: device time given to it, begin to end */
    uint64_t version;            /* published by it; 0: none */
    bool skipped;                /* not finite: nothing changed */
    bool dropped; /* the second time in a row: this pass of its samples is given up */
    bool broken;  /* the weights themselves are not finite: the trainer has stopped */
    /* The smallest and largest sequence number that it drew; 0: none of the log. */
    int64_t first_sequence, last_sequence;
};

struct hzp_trainer_config {
    struct hzp_recipe recipe;
    struct hzp_model *model;
    struct hzp_sample_queue *queue;
    uint64_t quantum_flops;
    /* While requests run, forward goes in chunks of about so many rows; 0: in one. */
    int32_t chunk_rows;
    int32_t ride_rows; /* rows of serving for which there is room behind a micro-batch: ride.h */
    /* Called on the engine thread after each update, before the step's next turn; may copy and
     * poke, nothing else.  NULL: not called. */
    void (*on_update)(void *ctx, const struct hzp_update_report *report);
    void *ctx;
};

struct hzp_trainer;

/* Takes all its device memory now; none later. */
int hzp_trainer_create(const struct hzp_trainer_config *config, struct hzp_trainer **ret);
void hzp_trainer_destroy(struct hzp_trainer *t); /* NULL: no effect */
struct hzp_source *hzp_trainer_source(struct hzp_trainer *t);

/* Thread: any.  A paused trainer finishes nothing and offers nothing. */
void hzp_trainer_pause(struct hzp_trainer *t, bool on);
/* Thread: any.  For a graceful stop: finish the update in progress, publish, begin no other. */
void hzp_trainer_finish(struct hzp_trainer *t);

/* Thread: any.  A consistent state for a checkpoint, without copying it: after freeze (and a poke
 * of the loop) the engine grants it between two updates, at the latest when the micro-batches in
 * progress have ended; frozen() then returns the version that moments and residuals belong to,
 * held until thaw.  Until thaw (and a poke) no update begins; micro-batches and serving go on. */
void hzp_trainer_freeze(struct hzp_trainer *t);
struct hzp_version *hzp_trainer_frozen(struct hzp_trainer *t); /* NULL: not yet */
void hzp_trainer_thaw(struct hzp_trainer *t);

/* Moments and residuals, for checkpoints: they belong to the current version while no update runs
 * and none is finished but unpublished (idle). */
bool hzp_trainer_idle(const struct hzp_trainer *t);
struct hzp_train_space *hzp_trainer_space(struct hzp_trainer *t);

struct hzp_trainer_stats {
    int64_t step;
    uint64_t updates, skipped, learned_tokens, device_ns;
    uint64_t rows;          /* forward and backward: counted as each micro-batch ends */
    double loss, grad_norm; /* of the newest update */
    float lr;
    int64_t draws;    /* draws of the queue that are done: what a resumed run draws again */
    uint64_t dropped; /* of them, given up as not finite */
    bool paused, broken, waiting_for_swap, waiting_for_slot;
};
void hzp_trainer_read_stats(struct hzp_trainer *t, struct hzp_trainer_stats *ret);

/* Trainer state on disk: trainer.safetensors in dir (moments, residuals, step, draws, recipe),
 * in the directory that hzp_model_save writes.  Exact: a resumed run continues the same loss curve
 * bit for bit.  The file contains the checksum of the weights it belongs to.
 *
 * Save: v is the version the state belongs to (frozen, or the current one while idle);
 * note, NULL: none, is a string kept with it (which data it learned from), at most
 * HZP_TRAINER_NOTE_MAX bytes.  Thread: the one that called freeze, or engine. */
enum { HZP_TRAINER_NOTE_MAX = 1000 };
int hzp_trainer_save(struct hzp_trainer *t, const struct hzp_version *v, const char *dir,
                     const char *note, struct hzp_err_text *reterr);

/* Load, before the first turn: v is a draft that hzp_model_load filled from the same checkpoint;
 * its record gets step, loss, learned_through and checksum, and the caller publishes it.  Other
 * weights than those the state belongs to are refused (HZP_EFORMAT), another type of moments too;
 * same_recipe: so is any other recipe (HZP_EINVAL), naming what differs.
 * ret_note [HZP_TRAINER_NOTE_MAX + 1], NULL: not wanted. */
int hzp_trainer_load(struct hzp_trainer *t, struct hzp_version *v, const char *dir,
                     bool same_recipe, char *ret_note, struct hzp_err_text *reterr);

#endif
