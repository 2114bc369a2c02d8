/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/layer.h - a transformer layer: its attention half (attn.h), then its MLP half
 * (mlp.h), in both directions; and ranges of layers.
 *
 * No op adds a residual or copies the stream: the two products that end in it add to it, where it
 * is or from its place before (GEMM with beta = 1), so the norm behind them reads the sum.
 *
 * The builders of forward and backward passes take a range of layers with or without the ends of
 * the model.  The full range is the whole model; training on several ranks goes layer by layer,
 * because parameters are gathered in between (train/learner/collectives.h).
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/attn.h"
#include "nanobatch/model/mlp.h"

/* Layers [first, last), with the embedding before them and the head behind them or not.  With
 * `embed` first is 0; with `head` last is the number of layers.  In training layers are counted by
 * their places on the micro-batch's path (path.h). */
struct hzp_layer_range {
    int32_t first, last;
    bool embed, head;
};

/* Training's forward pass of a layer in two pieces: from x_in to attn, and from there to x_out.
 * Serving's is in stages (stages.h). */
void hzp_layer_attend(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_layer_space *s, const struct hzp_packed *packed);
void hzp_layer_finish(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_layer_space *s);

/* The backward pass of both halves: hzp_mlp_backward, hzp_attn_backward. */
void hzp_layer_backward(struct hzp_plan *plan, const struct hzp_layer *layer,
                        const struct hzp_layer_space *kept, const struct hzp_layer_grads *g,
                        const struct hzp_packed *packed);
