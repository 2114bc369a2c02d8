/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/loop_state.h - the loop's private structs, shared by the files that implement it:
 * loop.c (create, run, turn), loop_form.c (forming a step), loop_warm.c (the last phase of the
 * start).
 *
 * Thread: see the comments in struct hzp_loop.
 */
#pragma once

#include "base/timeline.h"
#include "nanobatch/loop.h"
#include "nanobatch/model/ride.h"
#include "nanobatch/model/step.h"
#include "nanobatch/split/split.h"

struct hzp_loop_counters {
    _Atomic uint64_t steps, serve_steps, train_steps, serve_ns, train_ns, idle_ns;
    /* Since when the engine thread has been idle; 0: it is not.  Odd idle_turn: the two are being
     * changed (a sequence lock; the engine thread is the only writer). */
    _Atomic uint64_t idle_since, idle_turn;
    _Atomic uint64_t ride_steps;
    _Atomic uint64_t ahead_steps, form_ns, issue_ns, deliver_ns, hidden_ns;
    _Atomic uint64_t rows_steps[HZP_LOOP_ROWS][HZP_LOOP_ROWS];
    _Atomic uint64_t rows_ns[HZP_LOOP_ROWS][HZP_LOOP_ROWS];
    atomic_bool failed;
};

enum hzp_stage { HZP_STEP_LANDED, HZP_STEP_FORMED, HZP_STEP_ISSUED, HZP_STEP_SERVED };

/* The state of one step from its forming to its landing, passed from phase to phase. */
struct hzp_active_step {
    enum hzp_stage stage;
    struct hzp_step step;
    struct hzp_room room;
    struct hzp_offer offer;
    struct hzp_split_step split; /* the split's state for this step */
    struct hzp_batch *batch;     /* NULL: no serving */
    struct hzp_plan plan;
    const struct hzp_plan_shape *shape; /* serving's part; NULL: sequential */
    struct hzp_outcome outcome;
    struct hzp_flight *flight;
    uint64_t tokens_ns; /* when serving's part was delivered */
    uint64_t current;   /* id of the current version when the step was begun; 0: none */
    bool warms;         /* a step of the start (loop_warm.c) */
};

struct hzp_loop {
    /* fixed after create */
    struct hzp_loop_config config;
    struct hzp_plan_shapes shapes; /* that steps may have: those of the configuration */
    struct hzp_exec *exec;
    bool ahead;
    /* engine thread */
    struct hzp_active_step active[2]; /* step n is active[n % 2] */
    /* numbers of the newest formed and the newest landed step; number <= landed + 2 */
    uint64_t number, landed;
    bool keep_version; /* as the newest step says; false once none could be formed after it */
    /* turns, for seeing whether the engine thread hangs; steps; NULL: a simulated device */
    struct hzp_track *turns, *steps;
    struct hzp_plan joined; /* scratch plan for checking two steps in flight together */
    struct hzp_time time;
    struct hzp_split split;
    /* any thread */
    struct hzp_wake wake;
    struct hzp_borders borders;
    atomic_bool stop, hurry;
    struct hzp_loop_counters counters;
};

static inline void hzp_count(_Atomic uint64_t *counter, uint64_t n)
{
    /* Relaxed: readers display the counters and need no order between them. */
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline struct hzp_active_step *hzp_loop_step(struct hzp_loop *loop, uint64_t number)
{
    return &loop->active[number % 2];
}

/* The newest formed step, if it has not landed; else NULL. */
static inline struct hzp_active_step *hzp_loop_newest(struct hzp_loop *loop)
{
    return loop->number > loop->landed ? hzp_loop_step(loop, loop->number) : NULL;
}

/* CPU time of this thread. */
static inline uint64_t hzp_host_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Counts the host's work since `begin`; hidden: a step was in flight meanwhile. */
static inline void hzp_loop_count_host(struct hzp_loop *loop, _Atomic uint64_t *counter,
                                       uint64_t begin, bool hidden)
{
    uint64_t took = hzp_host_ns() - begin;
    hzp_count(counter, took);
    if (hidden)
        hzp_count(&loop->counters.hidden_ns, took);
}

/* The inputs for planning serving's part of the step. */
static inline struct hzp_step_plan hzp_step_serving(const struct hzp_loop *loop,
                                                    const struct hzp_active_step *active)
{
    return (struct hzp_step_plan){.model = loop->config.model,
                                  .version = active->step.version,
                                  .batch = active->batch,
                                  .kv = active->offer.kv,
                                  .space = loop->config.space,
                                  .shape = active->shape};
}

static inline bool hzp_step_serves(const struct hzp_active_step *active)
{
    return active->batch && active->batch->rows > 0;
}

/* ---- loop.c ---- */

/* Sends the record of a planned step to the other ranks of the group, if there is one. */
int hzp_loop_tell_group(struct hzp_loop *loop, const struct hzp_active_step *active);

/* Logs why steps do not go on, and tells the group. */
void hzp_loop_tell_failure(struct hzp_loop *loop, int status);

/* ---- loop_form.c ---- */

/* The shape of a step of these rows.  with: HZP_TENANT_TRAIN if training is in it too, else
 * HZP_TENANT_SERVE.  NULL: sequential; with training in a group that computes each step together,
 * whose collectives have one order: as without, but training follows a plain shape. */
const struct hzp_plan_shape *hzp_loop_shape(const struct hzp_loop *loop,
                                            const struct hzp_batch *batch, enum hzp_tenant with);

/* Forms the next step: asks the sources and makes the plan.  NULL: there is nothing to do, and the
 * step's number is reused. */
struct hzp_active_step *hzp_loop_form(struct hzp_loop *loop);
