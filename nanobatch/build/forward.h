/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/build/forward.h - serving's rows to ops: the model's forward pass and sampling.
 *
 * A shape (plan/shape.h) cuts the rows into nano-batches.  Each nano-batch is a strand: a sequence
 * of items, each of which needs the one before it, on lanes of the strand's own.  The strands are
 * issued in the shape's order (one after another by default); the head (final norm, logits,
 * sampling) is one for all.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_BUILD_FORWARD_H
#define HZP_NANOBATCH_BUILD_FORWARD_H

#include "nanobatch/build/batch.h"
#include "nanobatch/build/layer.h"
#include "nanobatch/build/model.h"
#include "nanobatch/plan/plan.h"
#include "nanobatch/plan/shape.h"

/* Activations of one serving step: one buffer of each, used by every layer in turn. */
struct hzp_serve_space {
    struct hzp_device *dev;
    void *memory;
    size_t bytes;
    struct hzp_mat x;       /* [rows][width] F32: the residual stream */
    struct hzp_mat normed;  /* [rows][width] act */
    struct hzp_mat qkv;     /* [rows][(heads + 2 kv_heads) dim] act */
    struct hzp_mat attn;    /* [rows][heads dim] act */
    struct hzp_mat gate_up; /* [rows][2 inner] act, of the widest layer */
    struct hzp_mat inner;   /* [rows][inner] act, of the widest layer */
    struct hzp_mat narrow;  /* as in nanobatch/build/space.h, and its scales */
    float *narrow_scale;
    struct hzp_mat picked, picked_normed; /* [logits][width] F32, act */
    struct hzp_mat logits;                /* [logits][vocab] F32 */
    struct hzp_mat gathered, part;        /* as in nanobatch/build/space.h */
};

/* Bytes the space will take: for the memory plan.  fp8: the weights have it, hzp_weights_fp8. */
size_t hzp_serve_space_bytes(const struct hzp_layout *layout, enum hzp_dtype act, bool fp8,
                             int32_t rows_max, int32_t logits_max);
int hzp_serve_space_create(const struct hzp_model *model, int32_t rows_max, int32_t logits_max,
                           struct hzp_serve_space **ret);
void hzp_serve_space_destroy(struct hzp_serve_space *space); /* NULL: no effect */

/* Appends the whole forward pass and sampling of the batch, reading version v, cut and spread as
 * the shape says (NULL: hzp_plan_sequential); kv [layers].  The shape must outlive the plan's
 * building.  Where the device captures graphs the batch is padded first (hzp_batch_pad).  A batch
 * without rows: no effect. */
void hzp_forward_build(struct hzp_plan *plan, const struct hzp_model *model,
                       const struct hzp_version *v, struct hzp_batch *batch,
                       const struct hzp_kv *kv, struct hzp_serve_space *space,
                       const struct hzp_plan_shape *shape);

/* --- The same by ranges of layers ------------------------------------------------------------- */

/* A nano-batch while the plan is built. */
struct hzp_strand {
    struct hzp_nano nano;
    struct hzp_layer_space space; /* its rows of the serving space */
    const uint8_t *lane_of;
    int32_t tail, also[2]; /* items that its next item needs: as in struct hzp_plan */
    int32_t *append;       /* [layers] the rope items, which append keys and values */
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

    struct hzp_strand strand[HZP_NANO_MAX];
    int32_t strands;
};

/* Cuts the batch into strands. */
void hzp_forward_begin(struct hzp_forward *f);

/* Appends a range of layers and its ends.  The residual stream comes from *x_in, unless the range
 * has `embed`, and goes to *x_out: [rows + pads][width] F32 each, NULL: the space's own.  A range
 * with `head` and no layers reads *x_in; with `embed` and no layers it writes *x_out.  Ranges that
 * follow each other, in one plan or in several that run one after another, compute what the full
 * range does. */
void hzp_forward_range(struct hzp_forward *f, const struct hzp_layer_range *range,
                       const struct hzp_mat *x_in, const struct hzp_mat *x_out);

/* Later items of the plan belong to none of the strands. */
void hzp_forward_end(struct hzp_forward *f);

/* Between resume and pause, items that are appended to the plan belong to strand i. */
void hzp_forward_resume(struct hzp_forward *f, int32_t i);
void hzp_forward_pause(struct hzp_forward *f, int32_t i);

#endif
