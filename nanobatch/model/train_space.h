/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/train_space.h - the memory of training beside the weights: gradients, moments,
 * residuals in the units of the weights; activations of one micro-batch; scratch.
 *
 * backward.h and update.h build the chains that work in it; what it consists of is in
 * train_space_state.h.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/model.h"
#include "nanobatch/plan/plan.h"
#include "weights/unit_stream.h"

struct hzp_train_space;

/* As files and messages call them. */
const char *hzp_state_part_name(enum hzp_state_part part);
/* The units and the data type of a part, of a model with weights of this type; NULL: there is no
 * such part. */
const struct hzp_layout *hzp_state_layout(const struct hzp_layout *layout, enum hzp_dtype type,
                                          enum hzp_dtype moment_type, enum hzp_state_part part,
                                          enum hzp_dtype *ret_type);

/* Which activations of a layer are not kept for the backward pass, which computes them again from
 * those that are: none; gate|up; or all but the layer's input. */
enum hzp_recompute { HZP_RECOMPUTE_NONE, HZP_RECOMPUTE_MLP, HZP_RECOMPUTE_LAYER };

struct hzp_train_space_config {
    int32_t rows_max; /* most rows of a micro-batch; but one of a single document may
                                 * have `long_rows`, if those are more */
    int32_t long_rows;
    /* Of micro-batches of up to rows_max rows, and of longer ones: both use the same memory. */
    enum hzp_recompute recompute, recompute_long;
    int32_t head_rows;          /* most rows whose logits there are at a time */
    enum hzp_dtype moment_type; /* F32, BF16 or Q8 */
    uint64_t quantum_flops;     /* 0: never cut */
    bool forward_only;          /* evaluation: no gradients, moments, kept activations */
    int32_t ride_rows;          /* serving's rows that have room behind the micro-batch */
    bool backup;                /* room for a copy of the optimizer's state: hzp_update_save */
    /* Moments, residuals and their copy are in host memory that the device's ops read and write in
     * place: an update moves them once each way. */
    bool host_state;
    bool muon; /* room for the steps of hzp_update_hyper's momentum */
    bool fp8;  /* forward_only alone: products as serving's under fp8 */
    /* Its memory is neither zeroed nor touched at create, which takes seconds per GB on a CPU: the
     * owner runs the chains of hzp_train_space_prepare before any other. */
    bool unprepared;
    struct hzp_shards
        shards; /* how gradients and optimizer state are divided; forward_only: not used */
};

/* Bytes of device memory that hzp_train_space_create takes. */
size_t hzp_train_space_bytes(const struct hzp_layout *layout, enum hzp_dtype act,
                             const struct hzp_train_space_config *config);
/* The model and its layout are borrowed; so is the device.  HZP_ENOMEM, HZP_EDEVICE. */
int hzp_train_space_create(const struct hzp_model *model,
                           const struct hzp_train_space_config *config,
                           struct hzp_train_space **ret);
void hzp_train_space_destroy(struct hzp_train_space *space); /* NULL: no effect */

/* Appends items that zero the next pieces of an unprepared space's memory, at most so many of 1 MB;
 * *at, 0 at first, says how far it is.  False: all of it has been zeroed, nothing is appended. */
bool hzp_train_space_prepare(const struct hzp_train_space *space, struct hzp_plan *chain,
                             size_t *at, int32_t pieces);

/* The caller is about to fill moments and residuals of an unprepared space, which are zeroed now
 * and not by the chains.  No effect on another space.  HZP_ENOMEM, HZP_EDEVICE. */
int hzp_train_space_restore(struct hzp_train_space *space);

/* Gradients F32 (the sums over micro-batches), and the parts of the optimizer's state (NULL: there
 * is none, and of weights), in units as hzp_state_layout says, or this rank's shards of them, and
 * in device memory (but for host_state).  For checkpoints and tests; valid between chains. */
const struct hzp_units *hzp_train_space_grads(const struct hzp_train_space *space);
const struct hzp_units *hzp_train_space_part(const struct hzp_train_space *space,
                                             enum hzp_state_part part);

/* All parts become 0.  HZP_ENOMEM, HZP_EDEVICE. */
int hzp_train_space_clear(const struct hzp_train_space *space);

static inline const struct hzp_units *hzp_train_space_m(const struct hzp_train_space *space)
{
    return hzp_train_space_part(space, HZP_STATE_M);
}

static inline const struct hzp_units *hzp_train_space_v(const struct hzp_train_space *space)
{
    return hzp_train_space_part(space, HZP_STATE_V);
}

static inline const struct hzp_units *hzp_train_space_residual(const struct hzp_train_space *space)
{
    return hzp_train_space_part(space, HZP_STATE_RESIDUAL);
}

/* What an update's chain leaves behind, in memory the host sees. */
struct hzp_update_result {
    double sumsq;      /* sum over the unscaled gradients; not finite: the update changed nothing */
    uint64_t checksum; /* the draft's */
    int64_t nonfinite;
    double
        elsewhere; /* squares that another rank counts, of vectors that all ranks of slices have */
    double step;   /* Muon: the sum of squares of the matrix in progress */
};
