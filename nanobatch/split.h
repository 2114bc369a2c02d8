/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split.h - how the device is split between serving and training: how long training may
 * run in each step.
 *
 * The loop asks once a step, when serving's rows are known and before training offers, and tells
 * what the step really took when it has ended.  Several steps may be between the two: all that is
 * kept of one until it is told about is in its hzp_split_step.
 *
 * While requests run, training gets a share of the time that serving takes: what a long step earned
 * must not make another one long, so it is a usual step's share, and what an item took beyond it is
 * paid back by the steps behind it.  Over any run of steps training takes at most its share, two
 * items and one helping.  While none runs, it holds the device for idle_ns at a stretch.
 *
 * Thread: engine, except set_share: any.
 */
#ifndef HZP_NANOBATCH_SPLIT_H
#define HZP_NANOBATCH_SPLIT_H

#include "nanobatch/batch.h"
#include "nanobatch/exec.h"

#include <stdatomic.h>

/* So many steps with prompts in them may pass training over in a row. */
enum { HZP_SPLIT_PASSED_OVER_MAX = 8 };

struct hzp_split_config {
    double train_share; /* while requests run: training's time over serving's in one step */
    uint64_t idle_ns;   /* while none runs: how long training may hold the device at a stretch */
    bool beside;        /* training runs beside requests on lanes of its own, not in turn with them */
};

struct hzp_split {
    struct hzp_split_config config;
    _Atomic double train_share; /* any thread */
    double credit_ns; /* what training saved for its next item; < 0: it owes */
    double usual_ns;  /* of serving in a step that only decodes, averaged */
    double usual_beside_ns; /* the same, training beside it */
    int32_t passed_over;
};

/* One step, from begin to end. */
struct hzp_split_step {
    int32_t rows, decode_rows; /* serving's */
    uint64_t train_ns;         /* how long training may run in it */
    bool beside;               /* it may have both side by side, and after `taken`: it has */
    bool trains;               /* training came */
};

void hzp_split_init(struct hzp_split *split, const struct hzp_split_config *config);

/* A step that serves nothing, so far: training has the whole device. */
void hzp_split_begin(struct hzp_split *split, struct hzp_split_step *step);

/* Serving's rows are known (at least one).  Sets train_ns and beside. */
void hzp_split_serve(struct hzp_split *split, struct hzp_split_step *step,
                     const struct hzp_batch *batch);

/* All sources have offered: whether training came. */
void hzp_split_taken(struct hzp_split_step *step, bool trains);

/* The step has ended.  next_ns: the price of the next item of training's chain, 0: there is none.
 * Steps are told about in the order of their begin. */
void hzp_split_ended(struct hzp_split *split, const struct hzp_split_step *step,
                     const struct hzp_exec_times *times, double next_ns);

/* Thread: any; from the next step on. */
void hzp_split_set_share(struct hzp_split *split, double share);

#endif
