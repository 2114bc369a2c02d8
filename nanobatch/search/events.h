/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/events.h - the discrete-event core of the simulator: tasks on lanes.
 *
 * Tasks of one lane run one after another, in their order.  A task begins when its lane is free, it
 * has been issued and the tasks it waits for have ended, plus the cost of the handover; while it
 * runs it advances at a rate that depends on what runs beside it.  What tasks are, how long they
 * take and how they slow one another is the caller's (simulate.h).
 *
 * Thread: any; one caller per object.
 */
#pragma once

#include "nanobatch/plan/plan.h"

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
