/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/attn.h - the attention half of a transformer layer, forward and backward.
 *
 *     normed   = rmsnorm(x_in)           qkv_bare = normed Wqkv^T + bias
 *     qkv      = rope(qkv_bare)          attn     = attention(qkv)
 *     x_mid    = x_in + attn Wo^T
 *
 * rope includes the norms of queries and keys where the model has them.  The forward pass is in
 * pieces: the product before attention, rope and attention, the product behind it.  Attention
 * differs by tenant: serving finds keys and values in pages, to which its rope appends; training
 * finds them in the micro-batch's own rows.
 *
 * The backward pass computes the norm again from x_in; keeping it would cost more memory than the
 * pass over it costs time.
 *
 * The pieces do not set plan->layer: layer.h and stages.h do.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/product.h"

struct hzp_nano;

/* Serving's attention: the rows of a nano-batch over this layer's pages.  Rows of one segment may
 * lie in several nano-batches; the later ones then need what the earlier ones append. */
struct hzp_paged {
    const struct hzp_nano *nano;
    const struct hzp_kv *kv;  /* this layer's */
    struct hzp_needs appends; /* items of other rows that append what rows of the same sequences
                               * read here */
    int32_t decode, prefill;  /* out: the items of decode rows and of pieces of prompts; -1: none */
};

/* Training's attention: documents in the rows themselves and in the rows before them. */
struct hzp_packed {
    struct hzp_segs segs;
    const int32_t *pos; /* [rows] */
    int32_t row0, rows; /* rows of the micro-batch */
    int32_t before;     /* rows before row0 that belong to the first document */
};

/* 1 / sqrt(dim): the scale of attention scores. */
float hzp_attn_scale(const struct hzp_model *model);

/* x_in -> qkv_bare. */
void hzp_attn_project(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_layer_space *s);

/* qkv_bare -> qkv by the rows' positions; keys and values also go to their slots of kv's pages.
 * pos, slot [rows]. */
void hzp_attn_append(struct hzp_plan *plan, const struct hzp_layer *layer,
                     const struct hzp_layer_space *s, const int32_t *pos, const int32_t *slot,
                     const struct hzp_kv *kv);

/* qkv -> attn.  Decode rows and pieces of prompts become two items, which need not wait for each
 * other: the plan's next item needs both. */
void hzp_attn_paged(struct hzp_plan *plan, const struct hzp_layer *layer,
                    const struct hzp_layer_space *s, struct hzp_paged *paged);
/* qkv_bare -> attn. */
void hzp_attn_packed(struct hzp_plan *plan, const struct hzp_layer *layer,
                     const struct hzp_layer_space *s, const struct hzp_packed *packed);

/* attn, x_in -> x_mid. */
void hzp_attn_output(struct hzp_plan *plan, const struct hzp_layer *layer,
                     const struct hzp_layer_space *s);

/* dx, the gradient with respect to x_mid, becomes the one with respect to x_in, in two pieces: dx
 * -> dattn, and dattn -> dx; the gradients of the weights are added to.  kept: all rows of the
 * micro-batch as the forward pass left them; packed: the whole micro-batch (before = 0). */
void hzp_attn_output_backward(struct hzp_plan *plan, const struct hzp_layer *layer,
                              const struct hzp_layer_space *kept, const struct hzp_layer_grads *g);
void hzp_attn_backward(struct hzp_plan *plan, const struct hzp_layer *layer,
                       const struct hzp_layer_space *kept, const struct hzp_layer_grads *g,
                       const struct hzp_packed *packed);
