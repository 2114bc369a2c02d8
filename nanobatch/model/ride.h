/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/ride.h - training's rows in serving's matrix products, so that the weights are
 * read once for both.
 *
 * A training chain goes forward chunk by chunk (backward.h).  While a chunk goes through the
 * layers, the rows behind it in the kept buffers belong to chunks that are not computed yet, or are
 * spare space reserved for riding.  Serving's rows of those layers are laid there, so a layer's
 * products, norms and activations find the rows of both tenants next to each other and become one
 * op for both.  Rope and attention stay each tenant's own.  Nothing is copied but the residual
 * stream of serving's rows, on their way in and out.  Backward, the loss and the head are not
 * shared.
 *
 * A slice rides as far as it contains whole layers of one chunk, if the chain reads the very
 * version that the step serves from; the rest of it runs as it would have.  The bits are the same
 * where ops do not depend on how many rows they have (F32 on the CPU: tested).
 *
 * The layers of both tenants are made here, from the pieces of attn.h and mlp.h; the builders of
 * the two tenants (forward.h, backward.h) do not know of it.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/backward.h"
#include "nanobatch/model/forward.h"
#include "nanobatch/time/op_times.h"

/* The micro-batch that a chain belongs to, given with the chain by the source that offers it: its
 * forward pass may ride.  All borrowed. */
struct hzp_rider {
    const struct hzp_version *version; /* that the chain reads */
    const struct hzp_micro *micro;
    const struct hzp_train_space *space;
};

/* What of a slice rides. */
struct hzp_ride {
    struct hzp_rider rider;
    int32_t chunk;          /* the micro-batch's chunk */
    int32_t layer0, layer1; /* in layers [layer0, layer1) */
    int32_t from, to;       /* items of the chain that it replaces */
};

/* The most layers of one chunk that lie whole within items [from, to) of the chain, `rows` rows of
 * serving behind them.  False: none; also where rows is 0, rider is NULL, the versions differ,
 * there is no room, or the micro-batch has a path of its own. */
bool hzp_ride_find(const struct hzp_rider *rider, const struct hzp_version *serving,
                   const struct hzp_plan *chain, int32_t from, int32_t to, int32_t rows,
                   struct hzp_ride *ret);

/* Where a slice ends that begins with item `from` and may last ns (hzp_slice_end), if `rows` rows
 * of serving would carry it: behind a whole layer, where it contains one.  Where nothing can ride
 * (as for hzp_ride_find) it is hzp_slice_end of the chain alone. */
int32_t hzp_ride_cut(const struct hzp_rider *rider, const struct hzp_version *serving,
                     const struct hzp_op_times *times, const struct hzp_plan *chain, int32_t from,
                     uint64_t ns, uint64_t item_ns, int32_t rows);

/* How long items [from, to) take together in a step with `rows` such rows; *ret_ride_ns: how much
 * of that is in serving's own items, 0 where nothing rides. */
double hzp_ride_slice_ns(const struct hzp_rider *rider, const struct hzp_version *serving,
                         const struct hzp_op_times *times, const struct hzp_plan *chain,
                         int32_t from, int32_t to, int32_t rows, double *ret_ride_ns);

/* Appends serving's forward pass of a batch in one nano-batch, with the ride in its layers.  need:
 * the item of the plan that the ride must wait for, -1: none.  Returns the last item that touches
 * rows behind the chunk: what follows of the chain needs it. */
int32_t hzp_ride_build(struct hzp_forward *f, const struct hzp_ride *ride, int32_t need);
