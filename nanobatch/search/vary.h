/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/vary.h - small changes of a shape, from which the search climbs; and the usual
 * ways in which the stages of a layer are cut.
 *
 * What comes out may be no possible shape: the caller checks it (hzp_plan_shape_check).
 *
 * Thread: one at a time.
 */
#pragma once

#include "nanobatch/plan/shape.h"

struct hzp_vary {
    uint64_t seed, drawn; /* the same seed: the same changes */
    bool trains;          /* training's lanes may change */
    bool group;           /* several ranks compute products together, and exchange */
    int32_t rows;         /* rows of serving's step */
    int32_t overlap;      /* cores that each lane may have, shared with others; 0: they have own */
};

/* One change, drawn at random: rows between nano-batches, the order, a lane, cores (SMs) of a lane
 * or of a nano-operation, the number of nano-batches, which of them a stage joins, how ranks
 * exchange. */
void hzp_vary_change(struct hzp_vary *v, struct hzp_plan_shape *shape);

/* A number below n. */
int32_t hzp_vary_draw(struct hzp_vary *v, int32_t n);

/* The shape with lanes that share all cores: each item is limited to what its lane had, but for
 * one kind of op, which has all.  False: there is nothing to share. */
bool hzp_vary_shared(const struct hzp_vary *v, const struct hzp_plan_shape *shape,
                     enum hzp_kind kind, struct hzp_plan_shape *ret);

enum { HZP_VARY_CUTS = 6 };

/* Shapes with the same nano-batches, whose stages are cut in ways of their own; shapes with one
 * nano-batch have none.  Returns how many. */
int hzp_vary_cuts(const struct hzp_vary *v, const struct hzp_plan_shape *shape,
                  struct hzp_plan_shape ret[HZP_VARY_CUTS]);
