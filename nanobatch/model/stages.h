/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/stages.h - the stages of serving's layers, each cut into nano-operations in its
 * own way (plan/shape.h), and issued when what they need has been issued.
 *
 *     embed                        once
 *     qkv, attend, output, sum of O, MLP, sum of Down      in each layer
 *
 * A strand is the finest part of the rows, one nano-batch of the shape.  A nano-operation is a
 * stage's work on a run of neighbouring strands.  Each strand knows the items that its next one
 * needs: those that its rows were in last.  A nano-operation needs what its strands need, so two
 * depend on each other where their rows intersect, and nowhere else.
 *
 * Where rows of the batch have paths (batch.h) there is a strand for each run of neighbouring
 * segments with one path, and the shape's cuts do not apply.  A strand that does not go through a
 * layer has no items there: its stream stays where it is.  Neighbours that do are joined, except
 * for attention.
 *
 * Invariant: all strands of a run are at the same step when its nano-operation is issued, and then
 * advance together.  Where ranks divide the rows of a run, its sums belong to output and MLP.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/batch.h"
#include "nanobatch/model/layer.h"
#include "nanobatch/model/serve_space.h"
#include "nanobatch/plan/shape.h"

/* A nano-batch while the plan is built. */
struct hzp_strand {
    int32_t nano; /* its index in the shape */
    int32_t row0, rows;
    struct hzp_needs needs; /* its next item's */
    int32_t step;           /* the next one; none of its items has been issued (stages.h) */
    int32_t attend;         /* index of attention's part that has its rows */
    int32_t *append;        /* [layers] the rope items, which append its keys and values */
    bool fp8;               /* its products read E4M3 projections */
    const bool *goes;       /* [layers] whether it goes through each; NULL: through all */
};

/* A forward pass while the plan is built.  The caller fills the first group; all is borrowed. */
struct hzp_forward {
    struct hzp_plan *plan;
    const struct hzp_model *model;
    const struct hzp_version *version;
    struct hzp_batch *batch; /* at least one row */
    const struct hzp_kv *kv; /* [layers] */
    struct hzp_serve_space *space;
    const struct hzp_plan_shape *shape;

    struct hzp_strand strand[HZP_STRANDS_MAX];
    int32_t strands;
    struct hzp_nano attend[HZP_STRANDS_MAX]; /* attention's parts */
    /* the range that is being built, and the residual stream of all rows at its two ends */
    struct hzp_layer_range range;
    struct hzp_mat x_in, x_out;
};

/* The steps of a strand: 0 is the embedding; the others are those of each layer in turn
 * (hzp_strand_step). */
enum hzp_strand_step {
    HZP_STRAND_QKV,
    HZP_STRAND_ATTEND,
    HZP_STRAND_OUTPUT, /* O */
    HZP_STRAND_SUM_O,  /* over the ranks that compute products together */
    HZP_STRAND_MLP,
    HZP_STRAND_SUM_DOWN,
    HZP_STRAND_COUNT
};

/* The number of a step of this layer. */
static inline int32_t hzp_strand_step(int32_t layer, enum hzp_strand_step step)
{
    return 1 + layer * HZP_STRAND_COUNT + (int32_t)step;
}

/* Cuts the batch into strands, which have no items yet, and attention's parts. */
void hzp_strands_cut(struct hzp_forward *f);

/* Whether sums over ranks have a lane of their own, and can run beside other nano-batches'
 * products. */
bool hzp_strands_overlap(const struct hzp_plan_shape *shape);

/* Appends what is missing of strand i's items before step `to`, with what they need of other
 * strands. */
void hzp_strand_advance(struct hzp_forward *f, int32_t i, int32_t to);

/* Between resume and pause, items that are appended to the plan belong to strand i. */
void hzp_strand_resume(struct hzp_forward *f, int32_t i);
void hzp_strand_pause(struct hzp_forward *f, int32_t i);
