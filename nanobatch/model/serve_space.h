/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/serve_space.h - the activations of serving's steps: one buffer of each, allocated
 * at the start for the largest step.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/model.h"
#include "nanobatch/model/space.h"

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
    struct hzp_mat narrow;  /* as in nanobatch/model/space.h, and its scales */
    float *narrow_scale;
    struct hzp_mat picked, picked_normed; /* [logits][width] F32, act */
    struct hzp_mat logits;                /* [logits][vocab] F32 */
    struct hzp_mat gathered, part, wide;  /* as in nanobatch/model/space.h */
};

/* Bytes the space will take: for the memory plan.  fp8: the weights have it, hzp_weights_fp8. */
size_t hzp_serve_space_bytes(const struct hzp_layout *layout, enum hzp_dtype act, bool fp8,
                             int32_t rows_max, int32_t logits_max);
int hzp_serve_space_create(const struct hzp_model *model, int32_t rows_max, int32_t logits_max,
                           struct hzp_serve_space **ret);
void hzp_serve_space_destroy(struct hzp_serve_space *space); /* NULL: no effect */
