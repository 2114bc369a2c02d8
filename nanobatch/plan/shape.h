/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/plan/shape.h - how a step is cut into nano-batches and spread over lanes: the builders
 * make every plan from a shape.
 *
 * Serving's rows are cut into nano-batches of consecutive rows.  Each is a strand, a sequence of
 * items that go to lanes by the kind of their op.  The strands are issued one after another, in
 * turns of a layer, or in turns that end behind attention, so that one nano-batch's attention can
 * run at the same time as the next one's products.  All nano-batches share one head (final norm,
 * logits, sampling). Training's items follow on lanes of the shape's choice; or they ride in
 * serving's products (model/ride.h) as far as they can, and the rest follows.
 *
 * Where several ranks compute each product together (weights/tensor_slice.h), all collectives go to
 * one lane, perhaps one of their own, where those of one nano-batch run beside the products of the
 * next; and a nano-batch adds up what its ranks have computed in one of two ways (enum
 * hzp_plan_reduce).
 *
 * A layer has stages, and each is cut in its own way: a stage may compute neighbouring nano-batches
 * as one nano-operation.  So the nano-batches are the finest parts, and attention, say, works on
 * one part of all rows while products work on two.  A nano-operation needs those of the stage
 * before that have rows in common with it, and no others.
 *
 * A shape only says where items go and in which order they are issued: every shape of a step
 * computes the same bits if the device's ops do not depend on how rows are split (tested for F32 on
 * the CPU).
 *
 * Thread: any; pure.
 */
#pragma once

#include "nanobatch/plan/plan.h"

enum hzp_plan_order {
    HZP_ORDER_STRANDS, /* one strand after another */
    HZP_ORDER_LAYERS,  /* layer by layer: A0 B0 A1 B1 ... */
    HZP_ORDER_SKEWED,  /* as LAYERS, but each turn ends after attention: pipelining */
    HZP_ORDER_COUNT
};

/* What follows the products of O and Down on ranks that compute them together. */
enum hzp_plan_reduce {
    HZP_REDUCE_ALL, /* an all-reduce: every rank has the residual stream of all rows */
    /* A reduce-scatter: each rank has the stream of its part of the rows, adds to it and norms it;
     * an all-gather of the normed rows.  For nano-batches whose rows the ranks divide; others go as
     * HZP_REDUCE_ALL. */
    HZP_REDUCE_SCATTERED,
    HZP_REDUCE_COUNT
};

/* The stages of a layer. */
enum hzp_layer_stage {
    HZP_STAGE_QKV,      /* norm, product, rope, what goes to the pages of keys and values */
    HZP_STAGE_ATTEND,   /* attention of decode rows and of prompts */
    HZP_STAGE_REST,     /* O, the norm, gate and up, SwiGLU, Down; the embedding too */
    HZP_STAGE_EXCHANGE, /* the sums over ranks behind O and Down */
    HZP_STAGE_COUNT
};
const char *
hzp_layer_stage_name(enum hzp_layer_stage stage); /* "qkv", "attention", "rest", "exchange" */

struct hzp_plan_shape {
    int32_t nanos; /* 1 .. HZP_NANO_MAX */
    /* >= 0, the sum > 0: nano-batch i gets weight[i] / sum of the rows */
    int32_t weight[HZP_NANO_MAX];
    /* bit i: the stage computes nano-batches i and i + 1 as one; 0: each alone.  Where ranks divide
     * the rows of one of the two, all stages but attention must agree. */
    uint8_t joined[HZP_STAGE_COUNT];
    /* enum hzp_lane_name; nano-batches computed as one go to the lanes of the first */
    uint8_t lane[HZP_NANO_MAX][HZP_KIND_COUNT];
    /* cores (SMs) of its lane that a nano-operation uses at most, as its lane; 0: all.  The shares
     * of a CPU's lanes may sum to more than the cores; with these, what runs at the same time can
     * still have cores of its own. */
    int16_t cores[HZP_NANO_MAX][HZP_KIND_COUNT];
    uint8_t train_lane[HZP_KIND_COUNT];
    /* cores (SMs) of each lane that computes, if several do; 0: an equal part */
    int16_t share[HZP_LANE_COUNT];
    uint8_t order; /* enum hzp_plan_order */
    /* The lane of collectives: one for those of all nano-batches, because all ranks need one order
     * of them. With another lane than HZP_LANE_COMPUTE, turns of a layer are cut in two, each
     * ending with what the ranks exchange behind O or Down: where they divide rows, with the norm
     * of their own and its all-gather. A CPU gives this lane a thread, and no core;
     * share[HZP_LANE_COMPUTE] may leave it one. */
    uint8_t network_lane;
    uint8_t reduce[HZP_NANO_MAX]; /* for each nano-batch: enum hzp_plan_reduce */
    /* The chunk size in rows in which training rides; 0: it does not ride.  If it rides, there is
     * one nano-batch and training has no lane of its own. */
    int32_t ride;
};

/* One nano-batch, everything on one lane: used when no better shape is known. */
extern const struct hzp_plan_shape hzp_plan_sequential;

/* HZP_EINVAL names what is wrong. */
int hzp_plan_shape_check(const struct hzp_plan_shape *shape, struct hzp_err_text *reterr);

/* Cuts `rows` rows into nano-batches: nano-batch i has rows [ret[i], ret[i + 1]), ret[nanos] =
 * rows.  Where `ranks` ranks divide a nano-batch's rows (HZP_REDUCE_SCATTERED), its cuts are
 * multiples of their number, but the last. */
void hzp_plan_shape_cuts(const struct hzp_plan_shape *shape, int32_t rows, int32_t ranks,
                         int32_t ret[HZP_NANO_MAX + 1]);

/* How many nano-operations the stage has in each layer, if every nano-batch has rows. */
int32_t hzp_plan_shape_parts(const struct hzp_plan_shape *shape, enum hzp_layer_stage stage);

/* Removes the last nano-batch; there are at least two. */
void hzp_plan_shape_drop(struct hzp_plan_shape *shape);

/* The lanes that items of such steps use, bit l for enum hzp_lane_name l; shape NULL: none. */
uint32_t hzp_plan_shape_lanes(const struct hzp_plan_shape *shape);

/* A bound of the runs of items on one lane, without a wait for another lane among them, that a step
 * of decode rows on one rank has in a model of so many layers: 1 for the sequential shape. */
int64_t hzp_plan_shape_runs(const struct hzp_plan_shape *shape, int32_t layers);

/* The lanes that the shape names for serving's items, and for training's: bit l for enum
 * hzp_lane_name l. */
uint32_t hzp_plan_shape_serves(const struct hzp_plan_shape *shape);
uint32_t hzp_plan_shape_trains(const struct hzp_plan_shape *shape);

/* Whether training has a lane that serving does not use, so that the two run at the same time. */
bool hzp_plan_shape_beside(const struct hzp_plan_shape *shape);

/* From here on hzp_plan_take sends the items of a training chain to the lanes the shape names. */
void hzp_plan_for_training(struct hzp_plan *plan, const struct hzp_plan_shape *shape);
