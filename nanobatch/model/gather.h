/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/gather.h - a chain that brings a piece of the trainer's state together from ranks
 * of which each has a slice of the model (weights/tensor_slice.h).
 *
 * The piece is a range of elements of one unit, the same range of every rank's slice.  Pieces are
 * small, so that steps in which one is gathered stay short; between two chains the activations hold
 * nothing that is read again, so their memory takes the pieces.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/train_space.h"

struct hzp_gather {
    enum hzp_state_part part;
    int32_t unit;
    int64_t from; /* element of this rank's unit */
    int32_t count;
};

/* This rank's units of the part; weights: v's.  NULL: the model has no such part. */
const struct hzp_units *hzp_gather_units(const struct hzp_model *model, const struct hzp_version *v,
                                         const struct hzp_train_space *space,
                                         enum hzp_state_part part);

/* The most elements of a piece, of any part. */
int32_t hzp_gather_most(const struct hzp_model *model, const struct hzp_train_space *space);

/* Whether there is such a piece, and room for it. */
bool hzp_gather_valid(const struct hzp_model *model, const struct hzp_version *v,
                      const struct hzp_train_space *space, const struct hzp_gather *gather);

/* Appends the item, of a valid piece.  Afterwards the pieces of all ranks lie one behind the other
 * at hzp_gather_data, in device memory, until the next chain. */
void hzp_gather_build(struct hzp_plan *chain, const struct hzp_model *model,
                      const struct hzp_version *v, const struct hzp_train_space *space,
                      const struct hzp_gather *gather);
const void *hzp_gather_data(const struct hzp_train_space *space);
