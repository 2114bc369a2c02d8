/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/loop.h - the engine thread: offer, plan, execute, deliver, reclaim.
 *
 *     border     what other threads have asked to be run between two steps (border.h)
 *     offer      each source, most urgent first, appends work within the step's room (source.h)
 *     plan       serving's rows become ops, slices of chains are taken over
 *     execute    the plan runs on the device
 *     deliver    each source gets its results; training may publish a version here
 *     reclaim    memory whose last step has ended is freed
 *
 * Each step uses one version: it is read once, before the sources offer, so "published in step n"
 * means "visible from the next step that is formed".  An idle loop sleeps until hzp_loop_poke.
 *
 * Running ahead: if the device works on its own, step n + 1 is formed and issued while step n
 * runs, so the device does not wait for the host.  Sampled ids stay on the device
 * (hzp_batch_add_drawn). A sequence that ends in step n may have a row in step n + 1, whose token
 * is discarded.  If a source needs a step's results before the next one is formed
 * (hzp_offer.settle), the loop waits for that step.  Slices on lanes of their own may outlive
 * their step, by at most the step after it.
 *
 * Device failure is final, and so is that of a rank of the group: the loop delivers the failure to
 * every source and to every border call, and ends.
 *
 * Thread: run on the engine thread; poke, stop, read_stats any; call, post, cancel any but it.
 */
#pragma once

#include "nanobatch/border.h"
#include "nanobatch/model/forward.h"
#include "nanobatch/plan/plan_table.h"
#include "nanobatch/run/graphs.h"
#include "nanobatch/source.h"
#include "nanobatch/split/policy.h"
#include "nanobatch/step_link.h"

struct hzp_loop;

enum hzp_run_ahead {
    HZP_AHEAD_AUTO, /* if the device works on its own while the host does something else */
    HZP_AHEAD_NEVER,
    HZP_AHEAD_ALWAYS, /* whenever a plan queues up */
};

struct hzp_loop_config {
    struct hzp_model *model;
    struct hzp_serve_space *space; /* NULL: no serving */
    struct hzp_batch *batch;       /* NULL: no serving.  The loop creates a second one like it */
    enum hzp_run_ahead run_ahead;
    struct hzp_source *source[6]; /* most urgent first */
    int32_t sources;
    struct hzp_policy policy; /* what training may take */
    /* While no request runs: how long training may hold the device without a break; when running
     * ahead, the two steps in flight share it. */
    uint64_t idle_ns;
    /* The shapes of steps, borrowed for the loop's life. shape: steps that only serve (NULL:
     * sequential). beside: steps in which training runs at the same time as requests (NULL:
     * `shape`, with training after serving; split.h says for how long).  If `beside` gives
     * training lanes of its own, its slice is as long as serving, or as goals allow.  A shape of
     * either kind, or of the table's, may let training ride (ride.h). */
    const struct hzp_plan_shape *shape, *beside;
    /* Borrowed: the shape of each step by its rows. It replaces `shape`, and `beside` if that is
     * NULL.  NULL: none. */
    const struct hzp_plan_table *plans;
    bool trains;                     /* a source offers slices of training */
    const struct hzp_tables *tables; /* borrowed: durations measured by `search`; NULL: none */
    bool check_plans;                /* prove every plan race-free before it runs */
    /* Other ranks compute each step together with this one, rank 0, which sends them its record
     * (step_link.h), borrowed; NULL: this process computes alone.  Slices are training's, one a
     * step, with their number and work; they run in turn behind serving's rows, which then have a
     * plain shape (hzp_plan_shape_plain): so collectives have one order. */
    struct hzp_step_link *group;
    /* device memory that graphs may take, and what one takes; bytes 0: any.  The loop counts. */
    struct hzp_graphs_room graphs;
};

/* The configuration is copied, what it points to is borrowed.  HZP_ENOMEM, HZP_EDEVICE.  Thread:
 * the engine's, as for all that does not say otherwise. */
int hzp_loop_create(const struct hzp_loop_config *config, struct hzp_loop **ret);
void hzp_loop_destroy(struct hzp_loop *loop); /* NULL: no effect */

/* The last phase of the start.  If the device has graphs, this runs steps of padding rows: every
 * size of decode step and of step with prompts, on the current version; and once more as in a step
 * with training, where that has another shape or other shares.  So algorithms are chosen, graphs
 * of every slot of weights captured, and events made, before a request arrives.  kv: of the pool,
 * all of whose pages must be free; NULL: nothing serves.  products: of training (NULL: none),
 * each run once with the whole device, and with each share that training has on lanes where
 * nothing serves. Then, on every device, it calls hzp_device_steady().  Call it before the first
 * turn.
 *
 * In a group these are steps that records tell of, so that all ranks run the same ones, with their
 * collectives in one order; nothing is captured, and the numbers of later steps follow theirs.
 * Each rank is steady before its first step with requests.  HZP_EIO, HZP_EDEVICE: a rank failed. */
int hzp_loop_warm_up(struct hzp_loop *loop, const struct hzp_kv *kv,
                     const struct hzp_plan *products);

/* Runs until stopped and no source is busy, or until the device fails (HZP_EDEVICE), or another
 * rank of the group (HZP_EIO).  The group is told of the end. */
int hzp_loop_run(struct hzp_loop *loop);

/* One turn without sleeping: for tests and offline runs.  0: there is nothing to do and no step is
 * in flight; 1: a step was issued, or one in flight ended. */
int hzp_loop_turn(struct hzp_loop *loop);

/* Wakes the engine thread, because a source has new work.  Thread: any. */
void hzp_loop_poke(struct hzp_loop *loop);
void hzp_loop_wake(void *loop); /* the same, as a callback */
/* Sleeps until poked or for at most wait_ns: for callers of hzp_loop_turn. */
void hzp_loop_sleep(struct hzp_loop *loop, uint64_t wait_ns);

/* Border calls (border.h).  Call runs fn on the engine thread at a border and returns its result;
 * it waits as long as fn says HZP_EBUSY.  HZP_ECANCELED: the loop has ended, or ends before fn is
 * done; the error of its failure if it failed.  Post does not wait: *call is the loop's until
 * ended; await waits for that; cancel takes it back and returns HZP_ECANCELED, or its result if
 * it has ended. */
int hzp_loop_call(struct hzp_loop *loop, hzp_border_fn *fn, void *ctx);
void hzp_loop_post(struct hzp_loop *loop, struct hzp_border_call *call);
bool hzp_loop_ended(struct hzp_loop *loop, const struct hzp_border_call *call, int *ret);
int hzp_loop_await(struct hzp_loop *loop, const struct hzp_border_call *call);
int hzp_loop_cancel(struct hzp_loop *loop, struct hzp_border_call *call);
/* The loop is not turned any more: all border calls end. */
void hzp_loop_close_borders(struct hzp_loop *loop);
/* What the function of a call would be told: for the engine's own thread between two turns. */
struct hzp_border hzp_loop_border(const struct hzp_loop *loop);

/* hurry: do not wait for busy sources. */
void hzp_loop_stop(struct hzp_loop *loop, bool hurry);

/* The split between serving and training: its policy, and its predictions and measurements. */
struct hzp_split *hzp_loop_split(struct hzp_loop *loop);

/* Device time per op (exec.h).  Thread: engine, or any once run has returned. */
struct hzp_profile;
const struct hzp_profile *hzp_loop_profile(const struct hzp_loop *loop);

/* Captures and launches of decode graphs so far.  Thread: as hzp_loop_profile. */
struct hzp_graphs_stats hzp_loop_graphs(const struct hzp_loop *loop);

struct hzp_loop_stats {
    uint64_t steps, serve_steps, train_steps;
    uint64_t ride_steps; /* steps in which training's rows rode in serving's products */
    uint64_t serve_ns, train_ns, idle_ns; /* device time by tenant */
    uint64_t ahead_steps;                 /* steps formed while the step before ran */
    /* CPU time of the engine thread outside the device: forming steps, issuing them (if issuing
     * does not run them), delivering results; hidden: how much of it was spent while a step was in
     * flight. */
    uint64_t form_ns, issue_ns, deliver_ns, hidden_ns;
    bool failed;
};
void hzp_loop_read_stats(struct hzp_loop *loop, struct hzp_loop_stats *ret);

/* Steps that served, by their rows: [decode rows][prompt rows], each 0, 1, 2-3, 4-7, ... and the
 * last one all above.  ns: until serving's results were there. */
enum { HZP_LOOP_ROWS = 12 };
struct hzp_loop_rows {
    uint64_t steps[HZP_LOOP_ROWS][HZP_LOOP_ROWS], ns[HZP_LOOP_ROWS][HZP_LOOP_ROWS];
};
int hzp_loop_rows_of(int32_t rows); /* 0 .. HZP_LOOP_ROWS - 1 */
/* Thread: any. */
void hzp_loop_read_rows(const struct hzp_loop *loop, struct hzp_loop_rows *ret);
