/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/source.h - the interface through which the loop gets the work of a step.
 *
 * The loop knows an array of sources, most urgent first, and nothing else about them: serve/ is the
 * first, train/ the second, and tests have sources of their own.  A step passes from phase to phase
 * as:
 *
 *     hzp_step     the step's number and the version it serves from: fixed before sources offer
 *     hzp_room     how much the step can hold: set by the loop, used up by the sources in turn
 *     hzp_offer    the work of the sources: rows of serving, slices of chains
 *     hzp_outcome  the result
 *
 * The loop may run one step ahead: it then asks sources for step n + 1 while step n runs, and
 * delivers the outcome of n only after they have offered n + 1.  Slices may outlive their step, by
 * at most the step after it: a source with `slices` gets the outcome when the slices too have
 * ended.  Every source gets the outcomes of steps in their order.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/batch.h"
#include "nanobatch/split/waits.h"
#include "nanobatch/time/time.h"

struct hzp_rider;

struct hzp_step {
    uint64_t number;   /* from 1; reclaiming memory depends on it alone */
    uint64_t begin_ns; /* device clock */
    /* The current version; a source that offers rows may choose another one (hzp_offer.version),
     * which is then here for the sources behind it and in deliver(). */
    struct hzp_version *version;
    /* Rows of the previous step, which is still in flight; NULL: its results are known. */
    const struct hzp_batch *in_flight;
};

struct hzp_room {
    int32_t rows;        /* rows left for serving: sources decrease it by what they add */
    uint64_t train_ns;   /* time left for all slices: the loop subtracts what was offered */
    uint64_t item_ns;    /* an item longer than this must not be started */
    int32_t ride_rows;   /* serving's rows that training's rows may ride with (ride.h); 0: none */
    double serve_max_ns; /* how long serving may take to meet its ITL goal; 0: no goal */
    const struct hzp_time *time; /* predicted durations */
    /* the set of op times in `time` that applies to slices of this step: whole or beside */
    const struct hzp_op_times *op_times;
};

/* Items [from, to) of a chain of training, which must not change until the outcome.  from == to: no
 * item fitted; the split learns what the next one costs. */
struct hzp_slice {
    const struct hzp_plan *chain;
    int32_t from, to;
    const struct hzp_rider *rider; /* lets its forward pass ride (ride.h); NULL: it may not */
    /* In a group that computes each step together: which chain it is, from 1, and with its first
     * slice what the others build it from (model/work.h); borrowed. */
    uint64_t number;
    const void *work;
    size_t work_bytes;
};

enum { HZP_SLICES_MAX = 4 }; /* in one step */

/* Which results must be known before the next step is formed. */
enum hzp_settle { HZP_SETTLE_NOTHING, HZP_SETTLE_SERVING, HZP_SETTLE_ALL };

struct hzp_offer {
    struct hzp_batch *batch; /* serving's rows; empty when the step begins; NULL: no serving */
    const struct hzp_kv *kv; /* [layers], set together with rows */
    /* set together with rows: the version that they are computed by, which the source has acquired
     * (weights/versions.h); NULL: the current one */
    struct hzp_version *version;
    struct hzp_waits waits;                 /* set together with rows */
    struct hzp_slice slice[HZP_SLICES_MAX]; /* issued in this order */
    int32_t slices;
    enum hzp_settle settle; /* the strictest need of any source */
    /* a source asks that this step ends no update and publishes no version; it sees to it that
     * this is so for a bounded number of steps only (serve/scheduler.h) */
    bool keep_version;
    uint64_t learn_age_ns; /* how long training's oldest work has been waiting; 0: there is none */
};

/* Appends a slice; the offer has fewer than HZP_SLICES_MAX.  Returns it, for the source to finish
 * before its `offer` returns. */
static inline struct hzp_slice *hzp_offer_add(struct hzp_offer *offer,
                                              const struct hzp_slice *slice)
{
    HZP_ASSERT(offer->slices < HZP_SLICES_MAX);
    offer->slice[offer->slices] = *slice;
    return &offer->slice[offer->slices++];
}

/* The offer's slice of this chain, or NULL. */
static inline const struct hzp_slice *hzp_offer_slice(const struct hzp_offer *offer,
                                                      const struct hzp_plan *chain)
{
    for (int32_t i = 0; i < offer->slices; i++)
        if (offer->slice[i].chain == chain)
            return &offer->slice[i];
    return NULL;
}

/* Whether the offer has any item in its slices. */
static inline bool hzp_offer_trains(const struct hzp_offer *offer)
{
    for (int32_t i = 0; i < offer->slices; i++)
        if (offer->slice[i].to > offer->slice[i].from)
            return true;
    return false;
}

struct hzp_outcome {
    int status;      /* < 0: the step failed and its results are invalid */
    uint64_t end_ns; /* device clock, when the outcome was delivered */
    /* how long each tenant's part took; slice times are final only for sources with `slices` */
    uint64_t ns[HZP_TENANT_COUNT];
};

struct hzp_source {
    const char *name;
    bool slices; /* the source offers slices, or needs outcomes as late as sources that do */

    /* Appends work within the room; returns whether it added any. */
    bool (*offer)(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer);

    /* The step has ended on the device (for sources with `slices`: its slices too), so memory last
     * used by it may be reclaimed.  After a failure the source fails its own work.  Called for
     * every step, whether or not the source offered anything. */
    void (*deliver)(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome);

    /* True while the source has work that must be done before a graceful stop. */
    bool (*busy)(struct hzp_source *source);

    /* True while the source has work that must be done before any stop, also one in a hurry.  NULL:
     * never. */
    bool (*owes)(struct hzp_source *source);

    /* The time (device clock) at which the source wants to be asked again although there is no
     * work; UINT64_MAX: none.  NULL: the same. */
    uint64_t (*due_ns)(struct hzp_source *source);
};
