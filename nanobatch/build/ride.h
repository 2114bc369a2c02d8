/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/build/ride.h - training's rows in serving's matrix products, so that the weights are
 * read once for both.
 *
 * A training chain goes forward chunk by chunk (backward.h).  While a chunk goes through the
 * layers, the rows behind it in the kept buffers belong to chunks that are not computed yet, or are
 * room left for this; so serving's rows of those layers are laid there, and a layer's products,
 * norms and activations have both tenants' rows next to each other: one op of the two together.
 * Rotation and attention stay each tenant's own.  Nothing is copied but the residual stream of
 * serving's rows, on their way in and out.  Backward, the loss and the head are not shared.
 *
 * A slice rides as far as it contains whole layers of one chunk, if the chain reads the very
 * version that the step serves from; the rest of it runs as it would have.  The bits are the same
 * where ops do not depend on how many rows they have (F32 on the CPU: tested).
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_BUILD_RIDE_H
#define HZP_NANOBATCH_BUILD_RIDE_H

#include "nanobatch/build/backward.h"
#include "nanobatch/build/forward.h"
#include "nanobatch/time/op_times.h"

/* Whose forward pass may ride: who offers a chain says so.  All borrowed. */
struct hzp_rider {
    const struct hzp_version *version; /* that the chain reads */
    const struct hzp_micro *micro;
    const struct hzp_train_space *space;
};

/* What of a slice rides. */
struct hzp_ride {
    struct hzp_rider rider;
    int32_t chunk;          /* of the micro-batch */
    int32_t layer0, layer1; /* in layers [layer0, layer1) */
    int32_t from, to;       /* the chain's items that it stands for */
    int32_t need;           /* item of the plan that it needs; -1: none */
    int32_t end; /* once built: the plan's last item that touches rows behind the chunk */
};

/* The most layers of one chunk that lie whole within items [from, to) of the chain, `rows` rows of
 * serving behind them.  False: none; also where the versions differ, rider is NULL, or there is no
 * room. */
bool hzp_ride_find(const struct hzp_rider *rider, const struct hzp_version *serving,
                   const struct hzp_plan *chain, int32_t from, int32_t to, int32_t rows,
                   struct hzp_ride *ret);

/* Where a slice ends that may last ns (hzp_slice_end), if `rows` rows of serving carry it: behind a
 * whole layer, where it contains one. */
int32_t hzp_ride_cut(const struct hzp_rider *rider, const struct hzp_op_times *times,
                     const struct hzp_plan *chain, int32_t from, uint64_t ns, uint64_t item_ns,
                     int32_t rows);

/* What a step's plan is made from. */
struct hzp_step_plan {
    const struct hzp_model *model;
    const struct hzp_version *version;
    struct hzp_batch *batch; /* NULL, or no rows: nothing serves */
    const struct hzp_kv *kv;
    struct hzp_serve_space *space;
    const struct hzp_plan_shape *shape; /* NULL: hzp_plan_sequential */
    const struct hzp_plan *chain;       /* NULL: nothing trains; else items [from, to) */
    int32_t from, to;
    const struct hzp_rider *rider; /* NULL: it does not ride */
};

/* Makes the whole plan.  True: the slice rides, as *ret_ride says (NULL: nobody asks). */
bool hzp_step_build(struct hzp_plan *plan, const struct hzp_step_plan *step,
                    struct hzp_ride *ret_ride);

#endif
