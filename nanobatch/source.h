/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/source.h - where the work of a step comes from.
 *
 * The loop knows an array of sources, most urgent first, and nothing else about them: serve/ is
 * the first, train/ the second, tests bring their own.  A source appends to the step within what
 * is left of its budget, and hears when the step has ended.
 *
 * The loop may run one step ahead: a source is then asked for step n + 1 while step n runs, and
 * hears of n only after it has offered n + 1.  Training's slice may outlive its step, by at most
 * the step behind it: who offers slices hears of the step when the slice too has ended.  Every
 * source hears of steps in their order.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_SOURCE_H
#define HZP_NANOBATCH_SOURCE_H

#include "nanobatch/build/batch.h"
#include "nanobatch/plan/plan.h"
#include "nanobatch/time/time.h"
#include "nanobatch/split/waits.h"

/* What of a step must be known before the next one is formed. */
enum hzp_settle { HZP_SETTLE_NOTHING, HZP_SETTLE_SERVING, HZP_SETTLE_ALL };

struct hzp_rider;

struct hzp_step {
    uint64_t number;                  /* from 1; the only clock for reclaiming memory */
    uint64_t begin_ns, end_ns;        /* device clock; end_ns valid in deliver */
    int32_t rows_left;                /* of the dense batch */
    uint64_t train_ns;                /* how long training may run in this step */
    uint64_t item_ns;                 /* no item of training longer than this may be begun */
    struct hzp_batch *batch;          /* serving's rows */
    const struct hzp_step *under_way; /* in offer: the step before, whose results are not known;
                                         NULL: they are */
    enum hzp_settle settle;           /* raised by sources in offer */
    const struct hzp_kv *kv;          /* [layers], set by the source that filled the batch */
    struct hzp_version *version;      /* the one version this step serves from */
    const struct hzp_plan *chain;     /* training's slice: items [from, to) */
    int32_t from, to;
    int32_t ride_rows; /* so many rows of serving would carry training's; 0: none would */
    const struct hzp_rider
        *rider;          /* set with the chain by who offers it: its forward pass may ride */
    uint64_t trained_ns; /* how long the slice took; valid in deliver */
    uint64_t served_ns;  /* how long serving's part took; valid in deliver */
    double serve_max_ns; /* for the ITL goal, serving's part may take so long; 0: no goal */
    const struct hzp_time *time;         /* how long work takes */
    const struct hzp_op_times *op_times; /* of it, the one that holds for training in this step */
    struct hzp_waits waits;              /* set by the source that filled the batch */
};

struct hzp_source {
    const char *name;
    bool slices; /* it offers slices, or must hear of steps as late as who does */

    /* Appends work; true if it did. */
    bool (*offer)(struct hzp_source *source, struct hzp_step *step);

    /* The step has ended on the device (its slice too, for who has `slices`): what it used last may
     * be reclaimed.  status < 0: it failed and its results are void; the source fails its own work.
     * Called for every step, whether or not the source offered anything. */
    void (*deliver)(struct hzp_source *source, const struct hzp_step *step, int status);

    /* True while the source has work that must be done before a graceful stop. */
    bool (*busy)(struct hzp_source *source);
};

#endif
