/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/world.h - a whole engine on the virtual clock, its clients, and what must hold in
 * every step.
 *
 * One world follows from one seed: model, sizes, bounds, traffic, samples, faults.  The engine
 * is the real one (loop, scheduler, KV pool, trainer, version store); only the device is `sim`.
 * Three sources of the test stand before, between and behind the engine's two in the loop, and
 * every op passes through the test on its way to the device.  So the test sees what a step was
 * offered, what it read and wrote, what it produced, and what was published after it.
 *
 * Two steps may be in flight; what the test knows of each is its sim_leg.  The device computes
 * at issue, so the test keeps sampled tokens from the host until their step is served.
 *
 * The test keeps its own count of what it checks: the owner of each page, the content of each KV
 * slot, which updates succeeded, how long each op took.
 *
 * Some worlds have several ranks, which compute each step together (world_group.c).
 *
 * Thread: the test's; there is only one, but for the other ranks'.
 */
#pragma once

#include "device/backend.h"
#include "nanobatch/loop.h"
#include "nanobatch/model/ride.h"
#include "nanobatch/step_link.h"
#include "serve/scheduler.h"
#include "tests/serve/seeded.h"
#include "train/conductor/trainer.h"
#include "weights/fp8.h"

#include <stdio.h>

enum { SIM_VOCAB = 64, SIM_EOS = 2, SIM_SLOTS_MAX = 8, SIM_HELD_MAX = 2 };

/* Defects that may be planted on purpose, to prove that the test detects them. */
enum sim_sabotage {
    SIM_SOUND,
    SIM_PAGE_EARLY,     /* a page is returned one step before its sequence's last */
    SIM_PAGE_LEAK,      /* a page's reservation is never returned */
    SIM_PUBLISH_INSIDE, /* a version is published in the middle of a step */
    SIM_TWO_VERSIONS,   /* one op of a step reads another version's weights */
    SIM_WRITE_CURRENT,  /* the update writes into the version that serves */
    SIM_CANCEL_IGNORED,
    SIM_STALE,          /* the engine works with a larger bound than it was given */
    SIM_NAN_PUBLISHED,  /* an update that was not finite counts as finite */
    SIM_GREEDY_TRAINER, /* training takes more than its share */
    SIM_LAZY_TRAINER,   /* training does not use an idle device */
    SIM_LONG_QUEUE,     /* the queue takes one request too many */
    SIM_STARVED,        /* the oldest sequence gets no rows */
    SIM_PAGE_UNDER_WAY, /* a page of a finished request is returned while one of its steps runs */
    SIM_VERSION_EARLY,  /* a version's memory is returned while a step that reads it runs */
    SIM_WRONG_ID,       /* the device copies another sequence's token */
    SIM_UNSETTLED,      /* a request's row runs ahead of the token that its penalties count */
    SIM_STALE_AHEAD,    /* the loop runs ahead of an update that the staleness bound waits for */
    SIM_TOKEN_EARLY,    /* a token is read before its step has ended */
    SIM_AFTER_STOP,     /* tokens are shown after the one that ends the request */
    SIM_NO_WAIT,        /* lanes do not wait for each other */
    SIM_PUSH_FORGETS,   /* a preempted request loses the token drawn last */
    SIM_PUSH_CHANGES,   /* a preempted request comes back with another token */
    SIM_PUSH_HOARDED,   /* the pages of a preempted request are lost */
    SIM_RIDE_STALE,     /* training rides although it reads another version than the step */
    SIM_MIXED_PROMPT,   /* a prompt goes on with the next version's rows */
    SIM_SWAP_STORM,     /* versions are published while a restarted prompt is unfinished */
    SIM_LATE_SWAP,      /* a member of a group does not take over a version */
    SIM_SABOTAGES,
};
const char *sim_sabotage_name(enum sim_sabotage sabotage);
/* Beginnings of the names of the invariants that may detect it, separated by '|'. */
const char *sim_sabotage_invariants(enum sim_sabotage sabotage);

enum sim_traffic {
    SIM_STEADY,
    SIM_BURSTS,
    SIM_LONG,
    SIM_TINY,
    SIM_CHOICES,
    SIM_CANCELS,
    SIM_STORMS,
    SIM_TRACE_CHAT,  /* lengths of nanoflow_lmsys.csv */
    SIM_TRACE_AZURE, /* lengths of AzureLLMInferenceTrace_conv.csv */
    SIM_FOOLED,      /* clients leave early for a time, then no more: predictions fail */
    SIM_TRAFFICS,
};

/* Prompt and output lengths of real requests; count 0: the file is not there. */
struct sim_trace {
    int32_t (*length)[2];
    int32_t count;
};
void sim_trace_read(const char *name, const char *own, struct sim_trace *ret);

/* What a sequence contributes to one step. */
struct sim_part {
    uint64_t step;
    int32_t pos0, rows, row0; /* row0: its first row in the batch */
    bool drawn;               /* its token is drawn by the step before */
};

/* One request as its client and the test know it. */
struct sim_life {
    struct hzp_request *rq;
    uint64_t number;
    int32_t *page;           /* [pages of its worst case] those seen in steps, in order */
    int32_t pages, worst;    /* pages seen; the most it can need */
    int32_t held;            /* pages it has, including that of its next row */
    int32_t prompt_end;      /* rows computed in pieces: prompt and what was drawn before */
    uint64_t prompt_version; /* computes those rows */
    int32_t restarts;        /* swaps that found them begun and unfinished, since admitted */
    int32_t kept;            /* pages that it had at the last of them */
    bool passed_over;        /* a step since then had room and no row for it */
    int32_t fed;             /* positions stored once the steps formed so far have ended */
    struct sim_part part[2]; /* of step n: part[n % 2] */
    uint64_t last_step;      /* the newest step with its rows; 0: none */
    int32_t seen;            /* outputs checked so far */
    int32_t *told;           /* [max_tokens] tokens shown: they never change again */
    bool ignores_eos;
    int32_t wakes;
    uint64_t deadline; /* the turn by which it must be final */
    uint64_t row_turn; /* the last turn that gave it a row */
    bool cancel, pushed;
    int32_t pushes; /* preemptions noticed */
};

/* A request that is gone, or was preempted, while one of its steps is in flight. */
struct sim_ghost {
    uint64_t until; /* the step's number */
    int32_t held;   /* pages it held */
};

/* A step from its forming to its landing. */
struct sim_leg {
    uint64_t number, version_id;
    const struct hzp_version *version;
    const struct hzp_step *step;
    struct hzp_offer *offer;
    int32_t *token; /* [logits_max] the tokens drawn, kept from the host until the step is served */
    int32_t tokens;
    bool served, landed;
    uint64_t begin_ns[2], end_ns[2]; /* of serving's ops, of training's; 0: none */
};

struct sim_world {
    /* from the seed */
    uint64_t seed, random;
    bool verbose, immediate, exact_prices, ahead, shaped, rides;
    struct hzp_plan_shape shape, beside;
    enum sim_sabotage sabotage;
    bool sabotaged; /* once is enough */
    enum sim_traffic traffic;
    const struct sim_trace *trace;
    int32_t turns_max;
    int32_t pages, page_rows, positions, max_staleness, slots, bodies_per_mille;
    int32_t nan_per_mille, audit_per_mille, cancel_per_mille;
    double train_share, rate; /* rate: the device's speed over the estimate */
    int64_t fail_at;          /* the op's number; 0: the device never fails */
    struct hzp_scheduler_config scheduler_config;
    struct hzp_batch_config batch_config;
    struct hzp_recipe recipe;
    struct hzp_sample_queue_config queue_config;

    /* the engine */
    struct hzp_device *dev;
    struct hzp_backend backend;
    struct hzp_fence *fence; /* the backend's own */
    hzp_op_fn *op[HZP_OP_COUNT];
    struct hzp_layout layout;
    struct hzp_weights *weights;
    struct hzp_model *model;
    struct hzp_kvpool *pool;
    struct hzp_serve_space *space;
    struct hzp_batch *batch;
    struct hzp_scheduler *scheduler;
    struct hzp_sample_queue *queue;
    struct hzp_trainer *trainer;
    struct hzp_loop *loop;
    struct hzp_source first, mid, last;

    /* ranks that compute each step together; ranks 0: there is one */
    int32_t ranks;
    struct sim_group *group;
    struct hzp_step_link *records;
    struct hzp_source writer; /* publishes in the trainer's place */
    uint64_t exchanges, exchange_ns, member_steps;

    /* clients; lives in the order in which they were accepted */
    struct sim_life **life;
    int32_t lives, lives_room;
    struct sim_life **owner; /* [pages] */
    uint64_t *touched;       /* [pages] the newest step that touches the page */
    struct sim_ghost *ghost; /* [ghosts] */
    int32_t ghosts, ghosts_room;
    int32_t *shadow;           /* [pages * page_rows] token whose key and value lie there, */
    uint64_t *shadow_version;  /* and the version that computed them */
    int64_t pushed, learnable; /* sequence numbers given to samples; the last one worth learning */
    uint64_t accepted, refused, ended[HZP_REQUEST_FAILED + 1], tokens, swapped;
    uint64_t samples_refused, pushes, stalls, restarts, kept_steps;

    /* the step */
    uint64_t turn;
    struct sim_leg leg[2];       /* of step n: leg[n % 2] */
    const struct hzp_step *step; /* the newest step formed, or being formed, */
    struct hzp_room *room;       /* its room, */
    bool has_room;               /* for rows of serving, */
    struct hzp_offer *offer;     /* and what the sources offer */
    uint64_t served, landed;     /* the newest step of each kind */
    uint64_t ahead_steps, refs, extra_rows, outlived, met, swaps_in_flight;
    bool in_plan;          /* ops issued now belong to the step */
    struct hzp_span *span; /* of the next op */
    int32_t train_at, step_ops;
    const struct hzp_version *chain_version; /* of the slice; NULL: it may not ride */
    struct hzp_rider lie;                    /* planted by the sabotage */
    uint64_t rode, rode_not; /* steps in which training rode; in which it read another version */
    uint64_t serving_id;
    uint64_t seen_serve_ns, seen_train_ns; /* of this step's ops */
    int32_t idle_turns;                    /* consecutive turns in which the device was not used */
    bool chain_open;                       /* the newest slice was not its chain's last */

    /* the store's slots, by memory */
    struct {
        char *begin, *end;
        struct hzp_version *version; /* set once it has been current */
    } slot[SIM_SLOTS_MAX];
    int32_t slots_seen;
    bool noting_slots;
    struct hzp_version *held[SIM_HELD_MAX];
    struct hzp_version *stray; /* the draft of a sabotage */

    /* training */
    bool poisoned, broken, frozen, paused;
    struct hzp_border_call freeze, thaw; /* freeze.fn NULL: not asked for */
    int64_t good_updates;
    uint64_t bad_updates, publications;
    uint64_t longest_item_ns, serve_steps, train_steps, ops;
    double excess_ns, least_excess_ns; /* training beyond its share, and the least so far */
    uint64_t longest_step_ns;
    bool goals;       /* this world gets a goal, */
    uint64_t goal_ns; /* the goal once it is set; 0: not yet */
    uint64_t gaps, trained_gaps, late_gaps, last_tokens_ns;
    bool failed;
};

/* Prints the one line that reproduces it, and ends the process. */
HZP_NORETURN void sim_broken(struct sim_world *w, const char *invariant, const char *format, ...)
    HZP_PRINTF(3, 4);
#define SIM_CHECK(w, condition, ...)                                                               \
    do {                                                                                           \
        if (!(condition))                                                                          \
            sim_broken((w), __VA_ARGS__);                                                          \
    } while (0)

static inline struct sim_leg *sim_leg_of(struct sim_world *w, uint64_t step)
{
    return &w->leg[step % 2];
}

/* A number in 0 .. below - 1; and true with a probability in thousandths. */
static inline int32_t sim_random(struct sim_world *w, int32_t below)
{
    return (int32_t)seeded(&w->random, (uint32_t)below);
}
static inline bool sim_chance(struct sim_world *w, int32_t per_mille)
{
    return sim_random(w, 1000) < per_mille;
}

/* world.c: builds an engine from a seed, and takes it down. */
void sim_open(struct sim_world *w);
void sim_close(struct sim_world *w);

/* world.c: of the whole model. */
struct hzp_model_config sim_model(const struct sim_world *w);

/* world_group.c: a world of several ranks.  end: before the loop is destroyed. */
void sim_group_open(struct sim_world *w);
void sim_group_end(struct sim_world *w);
void sim_group_close(struct sim_world *w);
void sim_group_note(struct sim_world *w, uint64_t step, uint64_t version);

/* watch.c: writes the tokens of a step that is served, if the records are the world's. */
void sim_show_tokens(const struct hzp_step_link *records, uint64_t step, int32_t *ret);

/* watch.c: the ops on their way to the device, and the two sources. */
void sim_watch_device(struct sim_world *w); /* NULL: nothing is watched any more */
int sim_alloc(struct hzp_device *dev, enum hzp_mem where, size_t size, void **ret);
void sim_watch_loop(struct sim_world *w);
void sim_on_update(void *ctx, const struct hzp_update_report *report);

/* serving.c: what must hold of requests, pages and queue. */
void sim_check_batch(struct sim_world *w);
void sim_check_results(struct sim_world *w, const struct hzp_step *step, int status);
const struct hzp_slice *sim_slice(const struct sim_world *w); /* training's slice; no items: none */
void sim_check_pool(struct sim_world *w);

/* goals.c: what must hold once a goal is set. */
void sim_check_goals(struct sim_world *w, const struct hzp_outcome *outcome);

/* clients.c: the clients between turns. */
void sim_clients(struct sim_world *w, bool more);
void sim_haunt(struct sim_world *w, const struct sim_life *life);
void sim_collect(struct sim_world *w); /* removes final requests */
