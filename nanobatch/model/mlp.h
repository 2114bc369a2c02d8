/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/mlp.h - the gated MLP half of a transformer layer, forward and backward.
 *
 *     normed = rmsnorm(x_mid)            gate_up = normed Wgu^T
 *     inner  = swiglu(gate_up)           x_out   = x_mid + inner Wdown^T
 *
 * The backward pass computes normed and inner again from x_mid and gate_up; keeping them would cost
 * more memory than the passes over them cost time.
 *
 * In parallel layers (Cohere) gate_up reads attention's normed, that of x_in.
 *
 * Another kind of MLP is another pair of these two functions.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/product.h"

/* x_mid -> gate_up, for a backward pass for which it was not kept. */
void hzp_mlp_again(struct hzp_plan *plan, const struct hzp_layer *layer,
                   const struct hzp_layer_space *s);

/* x_mid -> x_out. */
void hzp_mlp_forward(struct hzp_plan *plan, const struct hzp_layer *layer,
                     const struct hzp_layer_space *s);

/* dx, the gradient with respect to x_out, becomes the one with respect to x_mid; the gradients of
 * the weights are added to.  kept: all rows of the micro-batch as the forward pass left them. */
void hzp_mlp_backward(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_layer_space *kept, const struct hzp_layer_grads *g);
