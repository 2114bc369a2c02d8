/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer.h - learns from samples with what serving leaves over: the loop's second source.
 *
 *     idle -draw-> accumulate (micro-batches) -> update -> audit -> publish -> idle
 *                                                  |          |
 *                                                  +-- not finite: undone, counted, said
 *
 * Work is offered in slices: a range of the current chain's items, priced to fit what the step has
 * left for training.  A version is published in deliver(), that is, between two steps.
 *
 * Owns: gradients, moments, residuals, activations (hzp_train_space), the micro-batch.
 * Borrows: the version it reads, the draft it writes.
 *
 * Thread: engine, except pause, stats and drained: any.
 */
#ifndef HZP_TRAIN_TRAINER_H
#define HZP_TRAIN_TRAINER_H

#include "nanobatch/backward.h"
#include "nanobatch/source.h"
#include "train/sample_queue.h"

enum hzp_lr_schedule { HZP_LR_CONSTANT, HZP_LR_COSINE };

struct hzp_recipe {
    float lr, beta1, beta2, eps, decay, clip;
    enum hzp_lr_schedule schedule;
    int32_t warmup_steps;
    int64_t total_steps;     /* cosine ends here at lr * lr_floor */
    float lr_floor;
    int32_t update_tokens;   /* tokens drawn for one update (gradient accumulation) */
    int32_t micro_rows;      /* rows of one micro-batch; also the longest document + 1 */
    int32_t publish_every;   /* updates per version, >= 1 */
    enum hzp_dtype moment_type;
};

/* The rate of optimizer step t (from 1): linear warm-up to lr over warmup_steps, then constant, or
 * cosine down to lr * lr_floor at total_steps. */
float hzp_recipe_lr(const struct hzp_recipe *recipe, int64_t t);

/* What one update did: for logs, metrics and progress bars. */
struct hzp_update_report {
    int64_t step;            /* optimizer step, from 1 */
    double loss;             /* mean over its learned tokens, before the update */
    double grad_norm;
    float lr;
    int32_t learned_tokens, rows, samples;
    uint64_t device_ns, wall_ns; /* of the update: device time given to it, begin to end */
    uint64_t version;        /* published by it; 0: none */
    bool skipped;            /* not finite: nothing changed */
};

struct hzp_trainer_config {
    struct hzp_recipe recipe;
    struct hzp_model *model;
    struct hzp_sample_queue *queue;
    uint64_t quantum_flops;
    int64_t first_step;      /* optimizer steps already done (a resumed run) */
    /* Called on the engine thread after each update, before the step's next turn; may copy and
     * poke, nothing else.  NULL: nobody asks. */
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
/* Thread: any.  Finish the update in hand, begin none: what a graceful stop asks for. */
void hzp_trainer_finish(struct hzp_trainer *t);

/* Moments and residuals, for checkpoints; valid while the trainer is not between begin and end of
 * an update (hzp_trainer_idle). */
bool hzp_trainer_idle(const struct hzp_trainer *t);
struct hzp_train_space *hzp_trainer_space(struct hzp_trainer *t);

struct hzp_trainer_stats {
    int64_t step;
    uint64_t updates, skipped, learned_tokens, rows, device_ns;
    double loss, grad_norm; /* of the newest update */
    float lr;
    bool paused, waiting_for_swap, waiting_for_slot;
};
void hzp_trainer_read_stats(struct hzp_trainer *t, struct hzp_trainer_stats *ret);

/* Trainer state on disk: trainer.safetensors in dir (moments, residuals, step, recipe), beside the
 * weights that hzp_model_save writes.  Exact: a resumed run continues the same curve bit for bit. */
int hzp_trainer_save(struct hzp_trainer *t, const char *dir, struct hzp_err_text *reterr);
int hzp_trainer_load(struct hzp_trainer *t, const char *dir, struct hzp_err_text *reterr);

#endif
