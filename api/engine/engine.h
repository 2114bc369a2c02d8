/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/engine.h - runs an assembly on its own thread: serves requests, and trains.
 *
 * The engine's thread opens the parts on the device (assembly.h), runs the loop, and closes the
 * parts in reverse order, because a device belongs to one thread for its lifetime.  Other threads
 * hold the handle between start and finish and may call the functions that the modules' headers
 * mark "any".
 *
 *     start -> OPENING -> RUNNING -stop-> (drains) -> ENDED -finish-> gone
 *                 |          |                          |
 *                 |          +-- the device failed -----+
 *                 +-- start returns the error
 *
 * Thread: any, except start, stop and finish: the thread that created it.
 */
#pragma once

#include "api/engine/assembly.h"
#include "api/engine/effect.h"
#include "api/front/front.h"
#include "api/rollout/rollouts.h"

struct hzp_engine_config {
    const struct hzp_engine_settings *settings; /* borrowed for the engine's lifetime */
    int32_t slots; /* slots of weights; 0: as in the settings if it trains, else 1 */
    const char *checkpoint_options; /* serve.options of checkpoints; NULL: none; borrowed */
    bool provisional;               /* a state directory created by start is removed again, unless
                       * hzp_state_keep() was called */
    bool effects;                   /* what lessons change is measured, as the settings say */
    bool quiet;                     /* do not print the memory plan */
    bool log_updates;               /* write a line of the log for each update and version */
    /* Called on the engine thread after every update; NULL: none. */
    void (*on_update)(void *ctx, const struct hzp_update_report *report);
    void *ctx;
    struct hzp_source *source; /* a third source of the loop, borrowed; NULL: none */
    struct hzp_source *first;  /* a source before all others, borrowed; NULL: none */
    struct hzp_ranks *ranks;   /* for what is reported of them, borrowed; NULL: one rank */
    /* The connection with the other ranks, which run hzp_follow, borrowed; this is rank 0.  NULL:
     * there is one rank. */
    struct hzp_link *link;
    /* The other ranks serve too (hzp_follow); borrowed for start.  NULL: they do not. */
    const struct hzp_front_config *replicas;
};

struct hzp_engine {
    struct hzp_engine_config config;
    struct hzp_policy policy;      /* as at start; hzp_loop_split() has the current one */
    struct hzp_state *state;       /* NULL with no_train */
    struct hzp_assembly parts;     /* constant while it runs; the trainer is NULL with no_train */
    struct hzp_front *front;       /* NULL: no replicas; constant while it runs */
    struct hzp_effects *effects;   /* NULL: what lessons change is not measured */
    struct hzp_rollouts *rollouts; /* NULL: not as `effects` asks */
    struct hzp_sites *sites;       /* NULL: no --mesh; constant while it runs */
    struct hzp_trials *trials;     /* that drafts pass before they are published; NULL: none */
    struct hzp_trials *observed;   /* that they are only looked at in; NULL: they are not */
    bool by_lesson;                /* versions are those of groups of lessons */
    struct hzp_engine_thread *thread;
    bool again; /* engine thread: a damaged checkpoint was set aside while opening */
};

/* Starts the thread and waits until the engine can serve, or returns the error.  If the newest
 * checkpoint turns out to be damaged and an older one is whole, it starts from that. */
int hzp_engine_start(const struct hzp_engine_config *config, struct hzp_engine **ret,
                     struct hzp_err_text *reterr);

/* Submits all requests or none, to this process's scheduler or to a replica, and wakes who computes
 * them.  Errors of hzp_scheduler_submit_all.  Thread: any. */
int hzp_engine_submit(struct hzp_engine *engine, struct hzp_request *const *rq, int32_t count,
                      struct hzp_err_text *reterr);
/* A request's `cancel` was raised.  Thread: any. */
void hzp_engine_poke(struct hzp_engine *engine);

/* No new requests are accepted; running requests and the update in progress finish. hurry: they are
 * aborted. */
void hzp_engine_stop(struct hzp_engine *engine, bool hurry);

/* Waits at most wait_ns for the loop's end.  True: it has ended and everything is saved. */
bool hzp_engine_wait(struct hzp_engine *engine, uint64_t wait_ns);

/* True while the loop runs. */
bool hzp_engine_running(struct hzp_engine *engine);

/* Closes everything, when no other thread uses it any more; if it still runs it is first stopped in
 * a hurry.  Returns the loop's result: HZP_EDEVICE if the device failed, HZP_EIO if the last
 * checkpoint or versions could not be written.  NULL: no effect. */
int hzp_engine_finish(struct hzp_engine *engine);
