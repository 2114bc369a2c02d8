/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/ends.h - the two ends of the model, forward and backward: the embedding, and the
 * head (final norm and product with the vocabulary).
 *
 *     x      = table[id]
 *     picked = x[row]      normed = rmsnorm(picked)      logits = normed Whead^T
 *
 * Only rows whose logits are wanted reach the head: those that sample a token, or have a target.
 * What follows the logits is the caller's: sampling (forward.h) or a loss (loss.h).
 *
 * Where the embeddings are tied the head's matrix, and its gradient, are the embedding's.
 *
 * `layer` of all functions has index -1.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/product.h"

struct hzp_head_space {
    struct hzp_mat picked;   /* [n][width] F32 */
    struct hzp_mat normed;   /* [n][width] act */
    struct hzp_mat logits;   /* [n][vocab] F32 */
    struct hzp_mat gathered; /* [ranks n][vocab / ranks] F32; absent: one rank (model/tensor.h) */
    float *rstd;             /* [n], or NULL: not kept */
    bool normed_kept;        /* normed is read behind the head, too */
    /* for the backward pass */
    struct hzp_mat dlogits;          /* [n][vocab] act; may lie on logits, row by row */
    struct hzp_mat dpicked, dnormed; /* [n][width] F32 */
    uint64_t quantum_flops;          /* products are cut to about this; 0: whole */
};

/* id [y.rows] -> y. */
void hzp_embed_forward(struct hzp_plan *plan, const struct hzp_layer *layer, const int32_t *id,
                       struct hzp_mat y);

/* Adds dy to the gradient of the embedding's rows. */
void hzp_embed_backward(struct hzp_plan *plan, const struct hzp_layer *layer, const int32_t *id,
                        struct hzp_mat dy);

/* x[row] -> picked.  Returns the item: the only one of the head that reads x. */
int32_t hzp_head_pick(struct hzp_plan *plan, struct hzp_mat x, const int32_t *row,
                      const struct hzp_head_space *s);

/* picked -> logits. */
void hzp_head_forward(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_head_space *s);

/* The rows of normed that index names, as they are before logits_scale -> hidden. */
void hzp_head_hidden(struct hzp_plan *plan, const struct hzp_model *model, struct hzp_mat normed,
                     const int32_t *index, struct hzp_mat hidden);

/* dlogits -> added to dx[row], the gradient of the residual stream; the gradients of the weights
 * are added to. */
void hzp_head_backward(struct hzp_plan *plan, const struct hzp_layer *layer, const int32_t *row,
                       const struct hzp_head_space *s, struct hzp_mat dx);
