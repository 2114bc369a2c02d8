/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/tensor.h - the collectives of tensor parallelism (weights/tensor_slice.h),
 * between the products of a rank's slice.
 *
 *     embedding      a rank looks up the ids in its rows, others give zeros:   all-reduce of x
 *     O, Down        a rank's part of the sum; rank 0 adds its part to the
 *                    residual stream, the others begin with 0:                 all-reduce of x
 *                    or, where the ranks divide the rows (plan/shape.h), each adds to its own and
 *                    norms them:             reduce-scatter, then all-gather of the normed rows
 *     head           a rank's columns of the logits:                           all-gather
 *     update         of the norms of q and k, which every rank has for its heads:  all-reduce of
 *                    their gradients; of the sum of squares, in which vectors that all ranks
 *                    have count once; of the draft's checksum
 *     backward       of products cut by columns (q/k/v, gate/up, head) a
 *                    rank has a part of the input's gradient:                  all-reduce of it
 *
 * So the residual stream and its gradient, which norms read, have the same bits on every rank: sums
 * are in rank order.  Plans of all ranks differ in pointers, and in whether O and Down accumulate.
 *
 * Training's sums run beside its products: those of the backward pass beside the weights'
 * gradients, those of the forward pass beside the other half of the micro-batch (backward.h).
 *
 * Where several groups learn beside each other (model->data), those with the same slice exchange
 * its gradients:
 *
 *     update         of what each group has added up:                           all-reduce
 *     or, ordered, each micro-batch's are added to a rank's part of the sums, group by group:
 *                    reduce-scatter; before the update, the parts:              all-gather
 *
 * Collectives of one link are in one order on all ranks; the plan checker proves that a plan orders
 * them, as it does for memory that two items write.
 *
 * Where a model has no link all functions do nothing, but hzp_tensor_adds, which is true.
 *
 * Thread: engine.
 */
#pragma once

#include "mesh/link.h"
#include "nanobatch/model/model.h"
#include "nanobatch/plan/plan.h"

/* What a collective is for; with the layer its tag, by which ranks notice that plans differ. */
enum hzp_tensor_place {
    HZP_TENSOR_EMBED,
    HZP_TENSOR_O,
    HZP_TENSOR_DOWN,
    HZP_TENSOR_LOGITS,
    HZP_TENSOR_D_QKV, /* backward: the gradient of the product's input */
    HZP_TENSOR_D_GATE_UP,
    HZP_TENSOR_D_HEAD,
    HZP_TENSOR_UPDATE,
    HZP_TENSOR_STREAM, /* rows that the ranks have divided */
    HZP_TENSOR_NORMED,
    HZP_TENSOR_STATE, /* a piece of the trainer's state, for a checkpoint */
    HZP_TENSOR_DATA,  /* gradients, between groups; of the layer: which unit */
    HZP_TENSOR_PLACE_COUNT
};

/* Whether this rank's part of a sum is added to what its buffer holds. */
bool hzp_tensor_adds(const struct hzp_model *model);

/* The first row of the vocabulary that this rank has. */
int32_t hzp_tensor_vocab_first(const struct hzp_model *model);

/* mat, F32 without gaps between rows, becomes its sum over all ranks. */
void hzp_tensor_reduce(struct hzp_plan *plan, const struct hzp_model *model,
                       enum hzp_tensor_place place, struct hzp_mat mat);

/* The same in two items, for a chain that computes something else between them: what they name as
 * mat is not touched there.  Those that are begun end in the same order. */
void hzp_tensor_begin(struct hzp_plan *plan, const struct hzp_model *model,
                      enum hzp_tensor_place place, struct hzp_mat mat);
void hzp_tensor_end(struct hzp_plan *plan, const struct hzp_model *model,
                    enum hzp_tensor_place place, struct hzp_mat mat);

/* Between groups: the unit's sums become those of all groups. */
void hzp_data_reduce(struct hzp_plan *plan, const struct hzp_model *model,
                     const struct hzp_units *sums, int32_t u);
/* In the ordered mode: this rank's part of the unit's sums gets all groups' fresh gradients, in the
 * groups' order; every rank gets the others' parts.  The units' rooms are divided by the groups. */
void hzp_data_scatter(struct hzp_plan *plan, const struct hzp_model *model,
                      const struct hzp_units *fresh, const struct hzp_units *sums, int32_t u);
void hzp_data_gather(struct hzp_plan *plan, const struct hzp_model *model,
                     const struct hzp_units *sums, int32_t u);

/* This rank's rows of those that the ranks divide among them: they are a multiple of the ranks. */
struct hzp_mat hzp_tensor_own_rows(const struct hzp_model *model, struct hzp_mat mat);

/* own rows of `stream` += those of the sum of all ranks' part. */
void hzp_tensor_scatter(struct hzp_plan *plan, const struct hzp_model *model,
                        enum hzp_tensor_place place, struct hzp_mat part, struct hzp_mat stream);

/* Every rank gets the others' own rows of mat. */
void hzp_tensor_gather_rows(struct hzp_plan *plan, const struct hzp_model *model,
                            enum hzp_tensor_place place, struct hzp_mat mat);

/* The ranks' `own`, one row each, become the rows of a matrix at `at`. */
void hzp_tensor_gather_state(struct hzp_plan *plan, const struct hzp_model *model,
                             struct hzp_mat own, void *at);

/* `count` numbers of 8 bytes, F64 or U64, become their sums over all ranks. */
void hzp_tensor_reduce_wide(struct hzp_plan *plan, const struct hzp_model *model,
                            enum hzp_wire wire, void *at, int32_t count);

/* The block of the rows' `gathered` into which this rank's logits go: [rows][vocab / ranks].
 * gathered: [ranks rows][vocab / ranks] F32. */
struct hzp_mat hzp_tensor_own_logits(const struct hzp_model *model, struct hzp_mat gathered,
                                     struct hzp_mat logits);
/* This rank's columns of a matrix [rows][vocab]. */
struct hzp_mat hzp_tensor_own_cols(const struct hzp_model *model, struct hzp_mat logits);
/* All ranks' blocks to logits [rows][vocab]. */
void hzp_tensor_gather_logits(struct hzp_plan *plan, const struct hzp_model *model,
                              struct hzp_mat gathered, struct hzp_mat logits);
