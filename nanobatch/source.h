/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/source.h - where the work of a step comes from.
 *
 * The loop knows an array of sources, most urgent first, and nothing else about them: serve/ is
 * the first, train/ the second, tests bring their own.  A step passes from phase to phase as:
 *
 *     hzp_step     which step it is, and the version it serves from: fixed before sources offer
 *     hzp_room     what the step has room for: set by the loop, used up by sources in turn
 *     hzp_offer    what the sources want done: rows of serving, slices of chains
 *     hzp_outcome  what became of it
 *
 * The loop may run one step ahead: sources are then asked for step n + 1 while step n runs, and get
 * the outcome of n only after they have offered n + 1.  Slices may outlive their step, by at most
 * the step after it: a source with `slices` gets the outcome when the slices too have ended.  Every
 * source gets the outcomes of steps in their order.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_SOURCE_H
#define HZP_NANOBATCH_SOURCE_H

#include "nanobatch/build/batch.h"
#include "nanobatch/plan/plan.h"
#include "nanobatch/split/waits.h"
#include "nanobatch/time/time.h"

struct hzp_rider;

struct hzp_step {
    uint64_t number;   /* from 1; memory is reclaimed by it alone */
    uint64_t begin_ns; /* device clock */
    struct hzp_version *version;
    /* Rows of the step before, which is still in flight; NULL: its results are known. */
    const struct hzp_batch *in_flight;
};

struct hzp_room {
    int32_t rows;        /* of serving: sources subtract what they add */
    uint64_t train_ns;   /* slices may take so long together: the loop subtracts what was offered */
    uint64_t item_ns;    /* no item longer than this may be begun */
    int32_t ride_rows;   /* rows of serving that training's rows may ride with (ride.h); 0: none */
    double serve_max_ns; /* serving may take so long for its ITL goal; 0: no goal */
    const struct hzp_time *time;         /* how long work takes, */
    const struct hzp_op_times *op_times; /* and of it what holds for slices in this step */
};

/* Items [from, to) of a chain, which must stay as it is until the outcome.  from == to: no item
 * fitted; the split learns what the next one costs. */
struct hzp_slice {
    const struct hzp_plan *chain;
    int32_t from, to;
    enum hzp_tenant tenant; /* TRAIN: may go to the lanes of the step's shape; TRANSFER: stays
                                      on its own */
    const struct hzp_rider *rider; /* TRAIN: its forward pass may ride (ride.h); NULL: it may not */
};

enum { HZP_SLICES_MAX = 4 }; /* of one step */

/* Which results must be known before the next step is formed. */
enum hzp_settle { HZP_SETTLE_NOTHING, HZP_SETTLE_SERVING, HZP_SETTLE_ALL };

struct hzp_offer {
    struct hzp_batch *batch; /* serving's rows; empty when the step begins; NULL: nothing serves */
    const struct hzp_kv *kv; /* [layers], set with rows */
    struct hzp_waits waits;  /* set with rows */
    struct hzp_slice slice[HZP_SLICES_MAX]; /* training's are issued first, each kind in order */
    int32_t slices;
    enum hzp_settle settle; /* the most that any source needs */
};

/* The offer's slice of this chain; NULL: there is none. */
static inline const struct hzp_slice *hzp_offer_slice(const struct hzp_offer *offer,
                                                      const struct hzp_plan *chain)
{
    for (int32_t i = 0; i < offer->slices; i++)
        if (offer->slice[i].chain == chain)
            return &offer->slice[i];
    return NULL;
}

/* Whether any item of this tenant's slices is in the offer. */
static inline bool hzp_offer_has(const struct hzp_offer *offer, enum hzp_tenant tenant)
{
    for (int32_t i = 0; i < offer->slices; i++)
        if (offer->slice[i].tenant == tenant && offer->slice[i].to > offer->slice[i].from)
            return true;
    return false;
}

struct hzp_outcome {
    int status;                    /* < 0: the step failed, its results are void */
    uint64_t end_ns;               /* device clock, when the source got it */
    uint64_t ns[HZP_TENANT_COUNT]; /* how long each tenant's part took; of slices valid for sources
                                      with `slices` */
};

struct hzp_source {
    const char *name;
    bool slices; /* it offers slices, or must get outcomes as late as those that do */

    /* Appends work within the room; true if it did. */
    bool (*offer)(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer);

    /* The step has ended on the device (for sources with `slices`: its slices too), so memory that
     * it used last may be reclaimed.  After a failure the source fails its own work.  Called for
     * every step, whether or not the source offered anything. */
    void (*deliver)(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome);

    /* True while the source has work that must be done before a graceful stop. */
    bool (*busy)(struct hzp_source *source);
};

#endif
