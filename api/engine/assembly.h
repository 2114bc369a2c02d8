/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/assembly.h - assembles an engine from its parts: device, weights, model, trainer,
 * serving, rig and loop.
 *
 * The server, `train`, `eval`, `plan`, `search` and the benchmarks all open their parts here.  Each
 * opens the stages that it needs, in this order:
 *
 *     read          configuration, layout and tokenizer: no device, any thread
 *     open          device, plan table, memory plan, weights, model
 *     open_trainer  the trainer, over the caller's queue
 *     open_learner  instead, on a rank other than 0: what gets its work from rank 0
 *     fill          the first version's contents, published
 *     open_serving  KV pages, spaces, batch, scheduler
 *     open_rig      synthetic steps instead of a scheduler: for plans and measurements
 *     open_loop     the loop over the existing sources, warmed up
 *     close         closes in reverse order whatever was opened
 *
 * The assembly owns what it opened.  It borrows its configuration's settings, the trainer's queue
 * and the loop's other sources, which must outlive it.  All device memory is planned before any is
 * allocated (memory_plan.h), and none is allocated after the last stage.
 *
 * Errors: a stage that fails sets reterr; the caller then closes the assembly.
 *
 * Thread: one, from open to close, because a device belongs to one thread for its lifetime; read
 * and the part of close that needs no device may run on another thread.
 */
#pragma once

#include "api/engine/axes.h"
#include "api/engine/memory_plan.h"
#include "api/front/message.h"
#include "nanobatch/search/rig.h"
#include "serve/scheduler.h"
#include "text/chat/structure.h"
#include "train/learner/by_link.h"
#include "train/learner/by_step.h"

/* The maximum sizes of a rig's steps. */
struct hzp_assembly_rig {
    int32_t decode, depth, prefill, train; /* rows, see struct hzp_rig_config */
    int64_t kv_tokens;                     /* 0: as many as the rows need */
    int32_t page_rows;
    enum hzp_dtype moment_type;
    uint64_t quantum_flops; /* training work is cut into pieces of this size; 0: not cut */
    bool updates;           /* a second slot of weights, which updates write */
    bool host_state;        /* moments and residuals are in host memory */
    bool rides;             /* room for training rows that ride in serving's products */
};

/* Settings are borrowed.  NULL: the part is not opened. */
struct hzp_assembly_config {
    const struct hzp_device_settings *device;
    const struct hzp_model_settings *model;
    const struct hzp_serving_settings *serving;
    const struct hzp_training_settings *training;
    const struct hzp_split_settings *split; /* with serving */
    const struct hzp_assembly_rig *rig;     /* instead of serving and training */
    const char *source_dir; /* config.json and tokenizer; NULL: the model's directory */
    bool tokenizer;         /* true: the tokenizer is opened */
    int32_t layers_max;     /* 0: all; else the model is cut to this many layers */
    int32_t slots;          /* slots of weights; 0: 1 */
    /* Updates by which the serving version may be behind.  It is reported without training, too. */
    int32_t max_staleness;
    int32_t positions; /* without serving, training and rig: the longest sequence */
    int32_t executors; /* the caller's, besides the loop's: for the memory plan */
    bool quiet;        /* prints neither device nor memory plan */
    /* The connection with the other ranks, of host memory, borrowed; NULL: there is one rank.
     * Rank 0 opens a trainer, the others a learner. */
    struct hzp_link *link;
    const struct hzp_ranks_settings *ranks; /* with link, and with group */
    bool serves;   /* with link: rank 0 serves, so every rank has whole units */
    bool gated;    /* updates may be undone, by rank 0's gate, or because they are of one lesson */
    bool untested; /* with link: without a self-test, because rank 0 runs already */
    bool copies;   /* checkpoints are written from a copy, if the memory plan has room for it */
    /* The connection of ranks that compute each step together (group.h), borrowed; NULL: none.
     * Each has its slice of the model (weights/tensor_slice.h).  Several such groups, each of
     * ranks->tensor neighbouring ranks, may learn beside each other.  member: this is not rank 0,
     * so it has KV pages and spaces, and no scheduler. */
    struct hzp_link *group;
    bool member;
};

struct hzp_assembly {
    struct hzp_assembly_config is;
    /* read */
    const char *source_dir; /* NULL: the built-in model */
    struct hzp_model_config config;
    struct hzp_layout layout;
    struct hzp_layout whole; /* in a tensor group: the whole model's (hzp_assembly_whole) */
    bool layout_made;
    struct hzp_tokenizer *tok;
    struct hzp_chat *chat; /* NULL: the model has no chat template */
    struct hzp_structures *structures;
    /* open */
    struct hzp_device *dev;
    struct hzp_link *link;               /* moves the device's memory: is.link, or one over it */
    struct hzp_axes axes;                /* in a tensor group; a rig's tensor links are is.group */
    struct hzp_plan_table plans;         /* as the serving settings say; empty: none */
    struct hzp_tables tables;            /* from the same file; empty: none */
    int32_t train_cores;                 /* cores of training beside requests; 0: it takes turns */
    int32_t chunk_rows;                  /* chunk of training's forward pass; 0: it never rides */
    uint8_t speed[HZP_STAGE_SPEEDS_MAX]; /* each stage's, if it was measured */
    struct hzp_shards
        shards; /* how weights and training are divided; all zero: one rank, not ordered */
    struct hzp_memory_plan plan; /* without serving and training only what weights need */
    struct hzp_weights *weights;
    struct hzp_model *model;
    /* open_trainer */
    struct hzp_trainer *trainer;
    /* open_learner: one of both */
    struct hzp_learner_by_link *by_link;
    struct hzp_learner_by_step *by_step;
    /* open_serving */
    struct hzp_kvpool *pool;
    struct hzp_tier *tier; /* NULL: what falls out of the prefix cache is gone */
    struct hzp_serve_space *space;
    struct hzp_driver_memory driver;
    struct hzp_page_table *pages; /* NULL: the device's memory is the host's */
    struct hzp_batch *batch;
    struct hzp_scheduler *scheduler;
    const struct hzp_gate *gate;   /* the trainer's; set before open by the caller; NULL: none */
    struct hzp_trials *trials;     /* the same */
    struct hzp_sites *sites;       /* the same */
    struct hzp_step_link *records; /* on rank 0 of a tensor group; NULL: none */
    /* open_rig */
    struct hzp_rig *rig;
    /* open_loop */
    struct hzp_plan_shape
        beside; /* for steps that serve and train, with --train-share cores or --train-share ride */
    struct hzp_loop *loop;
};

/* Reads what needs no device into *ret, which is overwritten; *ret may be closed after a failure,
 * too.  Without a directory the model is a built-in one of 135 million parameters with random
 * weights. */
int hzp_assembly_read(const struct hzp_assembly_config *config, struct hzp_assembly *ret,
                      struct hzp_err_text *reterr);

/* first_id: id of the first version to be published, >= 1.  HZP_EINVAL: settings that contradict
 * each other or do not fit the device; HZP_ENOMEM: the memory plan does not fit, or the device has
 * less memory than it reports. */
int hzp_assembly_open(struct hzp_assembly *a, uint64_t first_id, struct hzp_err_text *reterr);

/* Opens a trainer with a->plan.recipe, which the caller may have changed since open. on_update: see
 * struct hzp_trainer_config. */
int hzp_assembly_open_trainer(struct hzp_assembly *a, struct hzp_sample_queue *queue,
                              void (*on_update)(void *, const struct hzp_update_report *),
                              void *ctx, struct hzp_err_text *reterr);

/* Opens a learner instead of a trainer, on a rank other than 0: by_step, where another rank leads
 * its group, otherwise by_link. */
int hzp_assembly_open_learner(struct hzp_assembly *a, struct hzp_err_text *reterr);

/* The layout in which versions are saved: of the whole model, also where `layout` is a slice. */
const struct hzp_layout *hzp_assembly_whole(const struct hzp_assembly *a);

/* Begins a draft, fills it by calling fill() (NULL: with the model's weights, or noise if there is
 * no directory), quantizes it if the store keeps e4m3 copies, and publishes it.  On a device that
 * does not compute, nothing is written. */
int hzp_assembly_fill(struct hzp_assembly *a,
                      int (*fill)(void *ctx, struct hzp_version *draft,
                                  struct hzp_err_text *reterr),
                      void *ctx, struct hzp_err_text *reterr);

/* Requires serving settings. */
int hzp_assembly_open_serving(struct hzp_assembly *a, struct hzp_err_text *reterr);

/* What records of steps may hold at most; after open. */
struct hzp_step_limits hzp_assembly_step_limits(const struct hzp_assembly *a);

/* What this rank serves with, as ranks that serve together compare it; after open_serving.
 * HZP_EDEVICE. */
int hzp_assembly_hello(struct hzp_assembly *a, struct hzp_hello *ret, struct hzp_err_text *reterr);

struct hzp_assembly_loop {
    struct hzp_policy policy; /* limits of training */
    uint64_t idle_ns;         /* longest stretch of training while no request runs */
    /* Sources before and after those of the scheduler and the trainer; NULL: none. */
    struct hzp_source *first, *last;
    struct hzp_source *elsewhere; /* the front's (api/front/front.h); NULL: none */
};
/* With the sources that are open, and warms it up (hzp_loop_warm_up).  HZP_ENOMEM, HZP_EDEVICE. */
int hzp_assembly_open_loop(struct hzp_assembly *a, const struct hzp_assembly_loop *loop,
                           struct hzp_err_text *reterr);

/* close_device closes the device and everything that uses it, on the device's thread.  The other
 * function then closes the rest, on any thread; no effect on a zeroed or closed assembly. */
void hzp_assembly_close_device(struct hzp_assembly *a);

void hzp_assembly_close(struct hzp_assembly *a);

/* The configuration of the model that the settings name, or of the built-in one. */
int hzp_assembly_model(const struct hzp_model_settings *settings, struct hzp_model_config *ret,
                       struct hzp_err_text *reterr);

/* Calls read, open, fill and open_rig on the calling thread. noise: weights are random even if
 * there is a directory.  The caller closes the assembly. */
int hzp_assembly_rig(const struct hzp_assembly_config *config, bool noise, struct hzp_assembly *ret,
                     struct hzp_err_text *reterr);
