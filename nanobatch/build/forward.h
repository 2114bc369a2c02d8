/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/build/forward.h - rows to ops: the model's forward pass, for serving and for training.
 *
 * There is one description of a transformer layer here and its transpose in backward.h; serving
 * and training differ in where attention finds keys and values and in what is kept.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_BUILD_FORWARD_H
#define HZP_NANOBATCH_BUILD_FORWARD_H

#include "nanobatch/build/batch.h"
#include "nanobatch/build/model.h"
#include "nanobatch/plan/plan.h"
#include "nanobatch/plan/shape.h"

struct hzp_ride;

/* Activations of one serving step: one buffer of each, used by every layer in turn. */
struct hzp_serve_space {
    struct hzp_device *dev;
    void *memory;
    size_t bytes;
    struct hzp_mat x;       /* [rows][width] F32: the residual stream */
    struct hzp_mat normed;  /* [rows][width] act */
    struct hzp_mat qkv;     /* [rows][(heads + 2 kv_heads) dim] act */
    struct hzp_mat attn;    /* [rows][heads dim] act */
    struct hzp_mat gate_up; /* [rows][2 inner] act */
    struct hzp_mat inner;   /* [rows][inner] act */
    struct hzp_mat narrow;  /* as in nanobatch/build/layer.h, and its scales */
    float *narrow_scale;
    struct hzp_mat picked, picked_normed; /* [logits][width] F32, act */
    struct hzp_mat logits;                /* [logits][vocab] F32 */
};

/* Bytes the space will take: for the memory plan.  fp8: the weights have it, hzp_weights_fp8. */
size_t hzp_serve_space_bytes(const struct hzp_model_config *config, enum hzp_dtype act, bool fp8,
                             int32_t rows_max, int32_t logits_max);
int hzp_serve_space_create(const struct hzp_model *model, int32_t rows_max, int32_t logits_max,
                           struct hzp_serve_space **ret);
void hzp_serve_space_destroy(struct hzp_serve_space *space); /* NULL: no effect */

/* Appends the whole forward pass and sampling of the batch, reading version v, cut and spread as
 * the shape says (NULL: hzp_plan_sequential); kv [layers].  The shape must outlive the plan's
 * building. */
void hzp_forward_build(struct hzp_plan *plan, const struct hzp_model *model,
                       const struct hzp_version *v, struct hzp_batch *batch,
                       const struct hzp_kv *kv, struct hzp_serve_space *space,
                       const struct hzp_plan_shape *shape);

/* The same, with training's rows riding in it (NULL: none): all of the ride is then in the plan.  A
 * shape that carries it has one nano-batch. */
void hzp_forward_build_with(struct hzp_plan *plan, const struct hzp_model *model,
                            const struct hzp_version *v, struct hzp_batch *batch,
                            const struct hzp_kv *kv, struct hzp_serve_space *space,
                            const struct hzp_plan_shape *shape, struct hzp_ride *ride);

#endif
