/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/split.h - how the device is split between serving and training: how long training
 * may run in each step.
 *
 * The loop asks once a step, when serving's rows are known and before training offers, and reports
 * what the step really took when it has ended.  Several steps may be between the two: all that is
 * kept of a step until then is in its hzp_split_step.
 *
 * The rules are small controllers, each a few pure functions with its formula in its header;
 * split.c combines them, once, in hzp_split_serve:
 *
 *     aim.h          a: the part of a goal that a prediction may take
 *     deadline.h     L: how long the step may last for the ITL and TTFT goals, and the slice that
 *                    this leaves beside serving's predicted part
 *     throttle.h     three factors: recent misses, running slots in use, overdue requests
 *     share.h        the credit C of train_share and train_max, the floor F of train_min
 *     exceptions.h   steps without training, items longer than allowed
 *
 *     slice = min(deadline slice x missed x slots x overdue, credit)
 *     slice = max(slice, F)                        once the floor is due, whatever the goals say;
 *                                                  it grows with the age of what waits
 *     slice = 0                                    in a step that training skips
 *
 * An item that does not fit is not started, except as exceptions.h allows.  Predictions
 * (nanobatch/time/step_times.h) may take a part of the goal that follows from what was late before
 * (aim.h).  Where serving alone misses a goal of the operator's, training gets only train_min.
 *
 * A goal that is not set is derived: itl_stretch times the 99th percentile of ITL, or TTFT, without
 * training (seen.h); beside an operator's ITL goal the TTFT may be longer by that goal.  A derived
 * goal bounds prompt rows only in a step that begins late because of training, and slots and
 * overdue requests do not count unless the operator has set a TTFT goal; but while a request waits
 * for a slot, training has no more than the floor.
 *
 * With its own lanes training runs beside serving for as long as the serving part takes; its slice
 * ends up to an item later, so that its lane does not run dry, and the next one is shorter by as
 * much; not where the share leaves the next step none.  The time by which serving takes longer for
 * it is what the share counts (share.h), where the operator has set no ITL goal.  Remaining time is
 * used in a separate step (`hold`) that runs training alone on the whole device, while
 * serving is held: meanwhile requests accumulate that then decode together, and decoding reads the
 * weights once for all of them.  A step that would miss its goal beside training takes turns
 * instead.
 *
 * While no request runs, training holds the device for idle_ns at a stretch, less where the TTFT
 * goal needs it.
 *
 * Thread: engine, except set_policy, policy and read: any.
 */
#pragma once

#include "base/thread.h"
#include "nanobatch/run/exec.h"
#include "nanobatch/split/exceptions.h"
#include "nanobatch/split/report.h"
#include "nanobatch/split/share.h"
#include "nanobatch/time/time.h"

struct hzp_waits;

struct hzp_split_config {
    struct hzp_policy policy;
    uint64_t idle_ns; /* while no request runs: training may hold the device so long at a stretch */
    bool early;       /* tokens are delivered before the slice ends (in turns), so the slice counts
                       * in the next ITL */
    struct hzp_time *time; /* borrowed; what steps take is asked of it, and learned in it */
};

/* One step, from begin to end. */
struct hzp_split_step {
    struct hzp_step_shape shape;
    int32_t rows, decode_rows; /* serving's */
    uint64_t begin_ns;
    uint64_t train_ns;   /* how long training may run in it */
    uint64_t item_ns;    /* no item longer than this may be begun */
    uint64_t hold_ns;    /* how long serving may be held behind it, for training alone */
    double serve_max_ns; /* with an ITL goal: how long serving's part may take; 0: no goal */
    bool hold;           /* training-only step: serving is held */
    bool beside;         /* on input: allowed; after hzp_split_taken: happened */
    bool trains;         /* training came */
    bool overrun;        /* one item may be longer than goals allow */
    enum hzp_split_limit limit;
    double alone_ns;       /* predicted: of serving's rows, */
    double itl_ns;         /* and of the ITL that ends with it */
    double slice_ns;       /* by op times: of training's items */
    double ride_ns;        /* part of that in serving's own items: set before `taken` by the loop */
    double carry_ns;       /* part of the slice before, and of a hold, that falls into this ITL */
    double owes_ns;        /* what the slice takes beyond a usual share, until the step has ended */
    double late_ns;        /* beside: predicted, how much longer the slice takes than serving */
    uint64_t number;       /* counts the steps formed */
    uint64_t first_ns[16]; /* submission times of the requests that get their first token */
    int32_t firsts;
};

/* Steps formed that have not ended, and the last one that has. */
struct hzp_split_pipeline {
    double carry_ns;     /* the newest formed step's slice, which falls into the next ITL */
    double in_flight_ns; /* predicted: of steps formed that have not ended */
    /* by how much the newest slice beside serving ends later than that, as far as is known, and
     * what the newest formed step adds to it; steps formed so far */
    double late_ns, newest_late_ns;
    uint64_t formed;
    uint64_t hold_ns;       /* the next step may hold serving so long; 0: not */
    uint64_t held_ns;       /* training's time in such steps since the last tokens */
    uint64_t last_train_ns; /* training of the last step that ended, behind its tokens */
    uint64_t last_tokens_ns;
    bool last_served;
};

struct hzp_split {
    struct hzp_split_config config;
    /* engine thread */
    struct hzp_policy policy; /* the one that holds; its goals may be derived from itl_stretch: */
    struct {
        bool itl, ttft;
    } derived;
    bool may_beside; /* for the newest step that serves */
    struct hzp_seen seen;
    struct hzp_credit credit;
    double floor_ns;       /* share.h */
    uint64_t learn_age_ns; /* age of the oldest work that waits for training; 0: none waits */
    double overdue_factor; /* throttle.h */
    struct hzp_exceptions exceptions;
    struct hzp_split_pipeline pipeline;
    double host_ns;      /* the part of an ITL in which the device is idle, averaged */
    double next_ns;      /* the last known duration of training's next item; 0: none */
    int32_t prompt_rows; /* the last step's that had any */
    /* under lock */
    struct hzp_lock lock;
    struct hzp_policy wanted;
    struct hzp_split_report report;
    /* any thread */
    atomic_bool changed;
};

void hzp_split_init(struct hzp_split *split, const struct hzp_split_config *config);
void hzp_split_fini(struct hzp_split *split);

/* A step that serves nothing, so far: training has the whole device.  now_ns: the device's clock.
 * With step->hold it stays so: serving is not asked.  If training has nothing to do then either,
 * another begin gives a step that serves. */
void hzp_split_begin(struct hzp_split *split, struct hzp_split_step *step, uint64_t now_ns);

/* Serving's rows are known (at least one).  Sets train_ns, item_ns, hold_ns and beside.  waits
 * NULL: no prompt waits.  beside: training may run beside these rows, on lanes of its own. */
void hzp_split_serve(struct hzp_split *split, struct hzp_split_step *step,
                     const struct hzp_batch *batch, const struct hzp_waits *waits, bool beside);

/* How long training's oldest work has been waiting; 0: there is none.  Holds for the steps that end
 * from now on. */
void hzp_split_age(struct hzp_split *split, uint64_t age_ns);

/* All sources have offered.  with: HZP_TENANT_TRAIN if training came, and its slice will take
 * slice_ns; else HZP_TENANT_SERVE. */
void hzp_split_taken(struct hzp_split *split, struct hzp_split_step *step, enum hzp_tenant with,
                     double slice_ns);

/* The step has ended.  tokens_ns: when serving's results were out, by the device's clock.  next_ns:
 * how long the next item of training's chain will take, 0: there is none.  Steps are reported in
 * the order of their begin. */
void hzp_split_ended(struct hzp_split *split, const struct hzp_split_step *step,
                     const struct hzp_exec_times *times, uint64_t tokens_ns, double next_ns);

/* Thread: any.  Checked by the caller; holds from the next step on. */
void hzp_split_set_policy(struct hzp_split *split, const struct hzp_policy *policy);
void hzp_split_policy(struct hzp_split *split, struct hzp_policy *ret);

/* Thread: any.  A large copy. */
void hzp_split_read(struct hzp_split *split, uint64_t now_ns, struct hzp_split_report *ret);
