/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/model.h - what the builders of plans know of the model: its layout, its versions,
 * its rotary table.  The engine knows tokens; text exists only in api/.
 *
 * Thread: engine.
 */
#pragma once

#include "weights/versions.h"

struct hzp_model {
    struct hzp_device *dev;
    struct hzp_weights *weights;
    const struct hzp_layout *layout;
    const struct hzp_model_config *config; /* layout's */
    enum hzp_dtype act;                    /* type of weights and activations */
    /* The versions' E4M3 projections are for rows that only guess tokens (HZP_DEPTH_GUESS), which
     * then go through all layers; other rows read the weights themselves. */
    bool fp8_guesses;
    bool kv_e4m3;              /* keys and values in pages are E4M3; else of act */
    struct hzp_mat rope;       /* [positions][dim] F32, device memory, owned */
    struct hzp_mat rope_local; /* the same of layers that rotate by another theta; or absent */
    struct hzp_mat no_rope; /* the same with stride 0: turns nothing; absent: no layer needs it */
    /* Between the ranks of a slice, one for each tenant's collectives; NULL: one rank. */
    struct hzp_link *tensor, *tensor_train;
    /* Between the ranks that have this slice in other tensor-parallel groups, which learn beside
     * this one; NULL: there is one group. */
    struct hzp_link *data;
    int32_t positions; /* longest sequence this process accepts */
};

/* Whether serving's rows are multiplied by E4M3 projections. */
static inline bool hzp_model_serves_fp8(const struct hzp_model *model)
{
    return hzp_weights_fp8(model->weights) && !model->fp8_guesses;
}

/* The type of keys and values in pages. */
static inline enum hzp_dtype hzp_model_kv_type(const struct hzp_model *model)
{
    return model->kv_e4m3 ? HZP_E4M3 : model->act;
}

/* Bytes of the keys, or of the values, of one position in one layer, with their scales. */
static inline size_t hzp_kv_side_bytes(const struct hzp_model_config *config, enum hzp_dtype type)
{
    size_t head = (size_t)config->heads.dim * hzp_dtype_size(type);
    return (size_t)config->heads.kv_heads * (head + (type == HZP_E4M3 ? sizeof(float) : 0));
}

/* Computes the rotary table for `positions` positions.  dev and weights are borrowed.  HZP_ENOMEM,
 * HZP_EDEVICE. */
int hzp_model_create(struct hzp_device *dev, struct hzp_weights *weights, int32_t positions,
                     struct hzp_model **ret);
/* The other ranks that compute each product with this one (model/tensor.h): the link connects just
 * these, and its rank is that of the layout's slice.  `train` moves what training's items exchange,
 * `serve` the rest; with one link for both, both tenants' items need one order.  Borrowed; they
 * outlive the model, and nothing else posts on them while a plan runs. */
void hzp_model_set_tensor(struct hzp_model *model, struct hzp_link *serve, struct hzp_link *train);
/* The ranks with this slice in other groups, whose gradients are added to this one's.  Borrowed, as
 * the others, and used by training's items alone. */
void hzp_model_set_data(struct hzp_model *model, struct hzp_link *link);
void hzp_model_destroy(struct hzp_model *model); /* NULL: no effect */
