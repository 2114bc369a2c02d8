/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/engine.h - an assembly with a thread of its own: what serves requests, and trains.
 *
 * One thread, the engine's, opens the parts on the device (assembly.h), runs the loop, and closes
 * them in reverse: a device belongs to one thread for life.  Other threads hold the handle between
 * start and finish and use what is marked "any" in the modules' headers.
 *
 *     start -> OPENING -> RUNNING -stop-> (drains) -> ENDED -finish-> gone
 *                 |          |                          |
 *                 |          +-- the device failed -----+
 *                 +-- start returns the error
 *
 * Thread: any, except that start, stop and finish belong to the thread that made it.
 */
#ifndef HZP_API_ENGINE_ENGINE_H
#define HZP_API_ENGINE_ENGINE_H

#include "api/engine/assembly.h"
#include "api/learn/state.h"

struct hzp_engine_config {
    const struct hzp_engine_settings *settings; /* borrowed for the engine's life */
    int32_t slots;    /* versions of the weights; 0: as settings say if it trains, else 1 */
    bool provisional; /* a state directory that start makes is removed again, unless
                       * hzp_state_keep() */
    bool quiet;       /* does not print its memory plan */
    /* Called on the engine thread after every update; NULL: none. */
    void (*on_update)(void *ctx, const struct hzp_update_report *report);
    void *ctx;
    struct hzp_source *source; /* a third source of the loop, borrowed; NULL: none */
    struct hzp_source *first;  /* one before all others, borrowed; NULL: none */
};

struct hzp_engine {
    struct hzp_engine_config config;
    struct hzp_policy policy;  /* as started; hzp_loop_split() knows the present one */
    struct hzp_state *state;   /* NULL with no_train */
    struct hzp_assembly parts; /* constant while it runs; the trainer is NULL with no_train */
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

/* Closes everything, once no other thread uses it; stops it first, in a hurry, if it still runs.
 * The loop's result: HZP_EDEVICE if the device failed.  NULL: no effect. */
int hzp_engine_finish(struct hzp_engine *engine);

#endif
