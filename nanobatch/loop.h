/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/loop.h - the engine thread: offer, plan, execute, deliver, reclaim.
 *
 *     offer      each source, most urgent first, appends work within the step's room (source.h)
 *     plan       serving's rows become ops, slices of chains are taken over
 *     execute    the plan runs on the device
 *     deliver    each source gets its results; here training may publish a version
 *     reclaim    memory whose last step has ended becomes free
 *
 * One version a step: it is read once, before the sources offer, so "published in step n" means
 * "visible from step n + 1".  An idle loop sleeps until hzp_loop_poke.
 *
 * One step ahead: where the device works on its own, step n + 1 is formed and issued while step n
 * runs, so the device does not wait for the host.  Sampled ids stay on the device
 * (hzp_batch_add_drawn).  A sequence that ends in step n may have a row in step n + 1, whose token
 * is discarded.  A step whose results a source needs before the next one is formed
 * (hzp_offer.settle) is waited for.  Slices on lanes of their own may outlive their step, by at
 * most the step after it.
 *
 * Device failure is final: the loop delivers the failure to every source and ends.
 *
 * Thread: run on the engine thread; poke, stop, read_stats any.
 */
#ifndef HZP_NANOBATCH_LOOP_H
#define HZP_NANOBATCH_LOOP_H

#include "nanobatch/build/forward.h"
#include "nanobatch/run/graphs.h"
#include "nanobatch/plan/plan_table.h"
#include "nanobatch/split/policy.h"
#include "nanobatch/source.h"

struct hzp_loop;

enum hzp_run_ahead {
    HZP_AHEAD_AUTO, /* where the device works on its own while the host does something else */
    HZP_AHEAD_NEVER,
    HZP_AHEAD_ALWAYS, /* wherever a plan queues up */
};

struct hzp_loop_config {
    struct hzp_model *model;
    struct hzp_serve_space *space; /* NULL: nothing serves */
    struct hzp_batch *batch;       /* NULL: nothing serves.  A second one of its kind is made */
    enum hzp_run_ahead run_ahead;
    struct hzp_source *source[6]; /* most urgent first */
    int32_t sources;
    struct hzp_policy policy; /* what training may take */
    uint64_t idle_ns; /* while no request runs: how long training may hold the device at a stretch;
                           * one step ahead, two steps share it */
    /* How steps are cut and spread over lanes, borrowed for the loop's life: those that only serve
     * (NULL: sequentially), and those in which training runs beside requests (NULL: as the former,
     * training in turn with them; split.h says for how long).  Where `beside` gives
     * training lanes of its own, its slice is as long as serving, or as goals allow.  A shape of
     * either kind, or of the table's, may let training ride (ride.h). */
    const struct hzp_plan_shape *shape, *beside;
    /* Borrowed: the shape of each step by its rows, instead of `shape`, and of `beside` where that
     * is NULL.  NULL: none. */
    const struct hzp_plan_table *plans;
    const struct hzp_tables *tables; /* borrowed: durations that `search` measured; NULL: none */
    bool check_plans;                /* prove every plan race-free before it runs */
};

int hzp_loop_create(const struct hzp_loop_config *config, struct hzp_loop **ret);
void hzp_loop_destroy(struct hzp_loop *loop); /* NULL: no effect */

/* The end of the start.  Where the device has graphs, steps of padding rows are run: every size of
 * decode step and one full step of prompts, on the current version, so that algorithms are chosen,
 * graphs of every slot of weights captured, and events made, before a request waits for them.
 * kv: of the pool, all of whose pages are free.  On every device then hzp_device_steady().  Before
 * the first turn. */
int hzp_loop_warm_up(struct hzp_loop *loop, const struct hzp_kv *kv);

/* Runs until stopped and no source is busy, or until the device fails (HZP_EDEVICE). */
int hzp_loop_run(struct hzp_loop *loop);

/* One turn without sleeping: for tests and offline runs.  0: nothing to do, and no step is in
 * flight; 1: a step was issued, or one in flight ended. */
int hzp_loop_turn(struct hzp_loop *loop);

void hzp_loop_poke(struct hzp_loop *loop);

/* hurry: busy sources are not waited for any longer. */
void hzp_loop_stop(struct hzp_loop *loop, bool hurry);

/* The split between serving and training: its policy, and what it predicted and measured. */
struct hzp_split *hzp_loop_split(struct hzp_loop *loop);

/* Where the time went, op by op (exec.h).  Thread: engine, or any once run has returned. */
struct hzp_profile;
const struct hzp_profile *hzp_loop_profile(const struct hzp_loop *loop);

/* Decode steps as graphs, so far.  Thread: as hzp_loop_profile. */
struct hzp_graphs_stats hzp_loop_graphs(const struct hzp_loop *loop);

struct hzp_loop_stats {
    uint64_t steps, serve_steps, train_steps;
    uint64_t ride_steps;                  /* in which training's rows rode in serving's products */
    uint64_t serve_ns, train_ns, idle_ns; /* device time by tenant */
    uint64_t ahead_steps;                 /* formed while the step before ran */
    /* The processor's time of the engine thread outside the device: forming steps, issuing them
     * (where issuing does not run them), delivering results; and how much of it while a step was
     * in flight. */
    uint64_t form_ns, issue_ns, deliver_ns, hidden_ns;
    bool failed;
};
void hzp_loop_read_stats(struct hzp_loop *loop, struct hzp_loop_stats *ret);

#endif
