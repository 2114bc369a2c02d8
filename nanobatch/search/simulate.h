/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/simulate.h - predicts how long a plan takes: a discrete-event simulation with
 * the times of tables.h.
 *
 * Items of one lane run one after another. An item begins when its lane is free, it has been issued
 * and the items it waits for have ended, plus the cost of the handover.  While items of several
 * lanes run, each advances at a rate that is the product of its class's pairwise rates beside the
 * others (hzp_tables_rate).  A plan of one lane has the whole device, as in exec.c.
 *
 * The link between ranks is a resource of its own beside compute and memory: exchanges take what
 * was measured for their bytes, on all ranks at once, and slow others down, and are slowed, by
 * their class's rates.  On a lane of their own they take no core.
 *
 * Thread: one at a time.
 */
#pragma once

#include "nanobatch/plan/plan.h"
#include "nanobatch/time/tables.h"

struct hzp_simulator;

struct hzp_simulated {
    double ns;                         /* from the first issue to the last end */
    double serve_end_ns, train_end_ns; /* when the tenant's last item ends; 0: it has no items */
    double train_ran_ns;   /* sum of the durations of training's items as they ran beside others */
    double train_alone_ns; /* sum of the times of training's items alone on the whole device */
    double busy_ns[HZP_LANE_COUNT]; /* time in which an item ran, per lane */
};

/* The tables are borrowed and must not change. */
int hzp_simulator_create(const struct hzp_tables *tables, struct hzp_simulator **ret);
void hzp_simulator_destroy(struct hzp_simulator *sim); /* NULL: no effect */

/* The plan must be one that hzp_plan_check passes: waits point back. */
void hzp_simulate(struct hzp_simulator *sim, const struct hzp_plan *plan,
                  struct hzp_simulated *ret);

/* How long item i of the plan takes alone on so many cores (SMs). */
double hzp_simulator_alone_ns(struct hzp_simulator *sim, const struct hzp_item *item, bool again,
                              int32_t cores);

/* Sets again[i] for products whose weights another nano-batch has read just before; again
 * [plan->items]. */
void hzp_plan_find_again(const struct hzp_plan *plan, bool *again);

/* The discrete-event core of the simulator: tasks on lanes.
 *
 * Tasks of one lane run one after another, in their order.  A task begins when its lane is free, it
 * has been issued and the tasks it waits for have ended, plus the cost of the handover; while it
 * runs it advances at a rate that depends on what runs beside it.  What tasks are, how long they
 * take and how they slow one another is the caller's (simulate.h). */

struct hzp_task {
    double alone_ns;      /* with nothing beside it */
    int32_t wait0, waits; /* its range in `wait`, which holds indices of earlier tasks */
    uint8_t lane;         /* enum hzp_lane_name */
};

struct hzp_events {
    const struct hzp_task *task; /* [tasks] */
    const int32_t *wait;
    int32_t tasks;
    double gap_ns;                 /* between two tasks of a lane */
    double handover_ns, wakeup_ns; /* from the end of a task of another lane; if the lane slept */
    /* When task i has entered its lane's queue; NULL: at 0. */
    double (*issued)(void *ctx, int32_t i);
    /* The rate at which task i advances beside the running tasks of the other lanes. */
    double (*rate)(void *ctx, int32_t i, const int32_t *others, int count);
    void *ctx;
};

/* Fills begin, end [tasks] and busy_ns: the time in which a task ran, per lane.  order [tasks] is
 * room for the lanes' queues. */
void hzp_events_run(const struct hzp_events *events, double *begin, double *end, int32_t *order,
                    double busy_ns[HZP_LANE_COUNT]);
