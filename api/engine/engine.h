/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/engine.h - wires the engine together and runs it on its own thread.
 *
 * One thread, the engine's, opens device, model, KV pages, scheduler and trainer, runs the loop,
 * and closes everything in reverse: a device belongs to one thread for life.  Everybody else holds
 * the handle between start and finish and uses what is marked "any" in the modules' headers.
 *
 *     start -> OPENING -> RUNNING -stop-> (drains) -> ENDED -finish-> gone
 *                 |          |                          |
 *                 |          +-- the device failed -----+
 *                 +-- start answers the error
 *
 * All memory is planned before any is taken: hzp_memory_plan() in memory_plan.h.
 *
 * Thread: any, except that start, stop and finish belong to who made it.
 */
#ifndef HZP_API_ENGINE_ENGINE_H
#define HZP_API_ENGINE_ENGINE_H

#include "api/engine/memory_plan.h"
#include "api/cli/options.h"
#include "api/learn/state.h"
#include "api/text/tokenizer.h"
#include "nanobatch/loop.h"
#include "serve/scheduler.h"
#include "train/trainer.h"

struct hzp_engine_config {
    const struct hzp_options *options; /* borrowed for the engine's life */
    bool quiet;                        /* says nothing of its memory plan */
    /* Called on the engine thread after every update; NULL: nobody asks. */
    void (*on_update)(void *ctx, const struct hzp_update_report *report);
    void *ctx;
    struct hzp_source *source; /* a third source of the loop, borrowed; NULL: none */
    struct hzp_source *first;  /* one before all others, borrowed; NULL: none */
};

struct hzp_engine {
    struct hzp_engine_config config;
    struct hzp_tokenizer *tok;
    struct hzp_model_config model_config;
    struct hzp_policy policy; /* as started; hzp_loop_split() knows the present one */
    struct hzp_layout layout;
    bool layout_made;
    struct hzp_state *state; /* NULL with --no-train */

    /* made by the engine thread, constant while it runs */
    struct hzp_memory_plan plan;
    struct hzp_device *dev;
    struct hzp_weights *weights;
    struct hzp_model *model;
    struct hzp_kvpool *pool;
    struct hzp_serve_space *space;
    struct hzp_batch *batch;
    struct hzp_scheduler *scheduler;
    struct hzp_trainer *trainer; /* NULL with --no-train */
    struct hzp_loop *loop;
    struct hzp_tables tables;     /* of the same file; empty: none */
    struct hzp_plan_table plans;  /* of --plans; empty: none */
    struct hzp_plan_shape beside; /* of steps that serve and train, with --train-units or --ride */
    int32_t chunk_rows; /* training goes forward in chunks of so many; 0: it never rides */

    struct hzp_engine_thread *thread;
};

/* Starts the thread and waits until the model can serve, or says why it cannot. */
int hzp_engine_start(const struct hzp_engine_config *config, struct hzp_engine **ret,
                     struct hzp_err_text *reterr);

/* No new requests; those in flight finish, and so does the update in hand.  hurry: they do not. */
void hzp_engine_stop(struct hzp_engine *engine, bool hurry);

/* Waits for the loop's end, at most so long.  True: it has ended, and what had to be saved is. */
bool hzp_engine_wait(struct hzp_engine *engine, uint64_t wait_ns);

/* True while the loop runs. */
bool hzp_engine_running(struct hzp_engine *engine);

/* Closes everything, once nobody uses it any more; stops it first, in a hurry, if it still runs.
 * The loop's result: HZP_EDEVICE if the device failed.  NULL: no effect. */
int hzp_engine_finish(struct hzp_engine *engine);

/* Weights of a shape, for measuring: the draft is noise of deviation 0.02, made on the device, the
 * same on each, norms 1. */
int hzp_engine_noise(struct hzp_device *dev, struct hzp_weights *weights,
                     struct hzp_version *draft);

/* Loads model_dir's weights into a draft, through host memory where the device's is not the host's,
 * and sets its record's checksum; the caller publishes it. */
int hzp_engine_load(struct hzp_device *dev, struct hzp_weights *weights, struct hzp_version *draft,
                    const char *model_dir, struct hzp_err_text *reterr);

/* The type of weights in memory that options.dtype means for this model. */
enum hzp_dtype hzp_engine_dtype(const struct hzp_options *options,
                                const struct hzp_model_config *config);

/* The recipe that the options describe. */
void hzp_engine_recipe(const struct hzp_options *options, struct hzp_recipe *ret);

#endif
