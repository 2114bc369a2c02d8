/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/backward.h - a micro-batch to ops: forward with what must be kept, loss,
 * backward.
 *
 * Kept for each layer: its input, the rotated q|k|v (and, with q/k norms, the bare one),
 * attention's output and log-sum-exp, the residual stream after attention, gate|up.  Norms and
 * SwiGLU are computed again in the backward pass: they cost a pass over memory, keeping them would
 * cost the memory.  Where the space's `recompute` says so, gate|up, or all but the
 * input, is not kept either, and the backward pass of a layer begins with the layer's forward pass.
 * Only rows with a target reach the head, at most head_rows at a time, with the
 * whole vocabulary of each: the logits take head_rows x vocab x 4 bytes, however many rows a
 * micro-batch has, and their gradient is written over them.  The logits are F32 in a BF16 model,
 * too, so that the loss is exact: rounded to BF16 they would change by up to one part in 512.  The
 * trainer's head_rows is half the model's width, so that they take half of what the head's own
 * gradient does (128k words, 8B shape, 4 x 4096 tokens: 1.05 GB of 8.4); in small models, where
 * that saves little, one chunk may be the whole micro-batch.
 *
 * Gradients are weighted sums over learned tokens, not means (loss.h): the division by the sum of
 * the weights of the whole update happens in AdamW, so accumulating 1 x 16 equals 16 x 1.
 *
 * The forward pass goes chunk by chunk: one chunk's rows through all layers, then the next one's,
 * whose attention finds the keys and values of a document's earlier chunks in their rows.  So while
 * a chunk is computed, the rows behind it in the buffers are free, and ride.h uses them.  In a
 * tensor-parallel group chunks take turns at each layer instead, two pieces of a layer that each
 * end with a product whose parts the ranks add up (tensor.h): one chunk's sum runs beside the
 * other's products.  They are at most HZP_LINK_BEGUN_MAX there.
 *
 * Big matrix products are cut by output rows so that no item costs much more than `quantum_flops`:
 * the trainer can give way to serving between two items.
 *
 * Products add to the sums of the gradients at once.  In the ordered mode, and where gradients are
 * sharded, a micro-batch's gradients go to a ring of fresh buffers first; unit by unit they are
 * then added to the sums, on one rank by the chain itself, on several by a transfer.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/layer.h"
#include "nanobatch/model/micro.h"
#include "nanobatch/model/stage_order.h"
#include "nanobatch/model/train_space.h"

/* Forward, loss and backward of a micro-batch, reading version v, adding to the gradients (the
 * first micro-batch of an update zeroes them, also those of layers that are not on its path: first
 * = true).  One without rows is that of a tensor-parallel group that has none in a round, beside
 * others that have one (model->data): it takes part in what the groups exchange. */
void hzp_micro_build(struct hzp_plan *chain, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_micro *micro,
                     struct hzp_train_space *space, bool first);

/* The backward pass in pieces, for ranks that exchange each unit's gradients as soon as they are
 * complete, and for the ordered mode: of the micro-batch's path unit i (hzp_micro_unit), from the
 * last (with the head, the loss) down to 0.  If the space's gradients are fresh (hzp_shards_fresh),
 * the unit's is zeroed before the first op adds to it.  Without rows it computes nothing else, for
 * a rank that has no micro-batch in a round. */
void hzp_micro_backward_unit(struct hzp_plan *chain, const struct hzp_model *model,
                             const struct hzp_version *v, const struct hzp_micro *micro,
                             struct hzp_train_space *space, int32_t i);

/* A stage's task (stage_order.h), for the slot of the space that was chosen.  FORWARD reads the
 * stream of the stage before in kept[f].x_in, where f is this rank's first layer, and leaves it in
 * kept[l].x_in, where l is the layer behind its last; HEAD reads that of the last stage in
 * kept[layers].x_in and leaves the gradient in dx; BACKWARD reads that of the next stage there, and
 * leaves its own.  first: of the update, the sums of the gradients are zeroed. */
void hzp_micro_stage(struct hzp_plan *chain, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_micro *micro,
                     struct hzp_train_space *space, enum hzp_stage_work work, bool first);

/* Zeroes unit u's fresh gradients; hzp_micro_backward_unit does so itself, but for the embedding's
 * behind a tied head. */
void hzp_micro_zero_fresh(struct hzp_plan *chain, struct hzp_train_space *space, int32_t u);

/* Zeroes this rank's sums of the gradients of all units. */
void hzp_micro_zero_sums(struct hzp_plan *chain, struct hzp_train_space *space);

/* The matrix products of the above, one of each shape, as a chain that times them: each sets what
 * it would add to.  Overwrites the activations of a micro-batch, and gradients. */
void hzp_micro_products(struct hzp_plan *chain, const struct hzp_model *model,
                        const struct hzp_version *v, const struct hzp_micro *micro,
                        struct hzp_train_space *space);

/* Forward and loss only: fills micro->loss.value.  A space that is not forward_only must have no
 * micro-batch in progress. */
void hzp_eval_build(struct hzp_plan *chain, const struct hzp_model *model,
                    const struct hzp_version *v, const struct hzp_micro *micro,
                    struct hzp_train_space *space);

/* All places of the micro-batch's path, with both ends. */
struct hzp_layer_range hzp_micro_range(const struct hzp_micro *micro,
                                       const struct hzp_model_config *config);

/* What hzp_micro_build is made of behind the zeroing, for a range of places and its ends.  Built in
 * this order, ranges that follow each other do what the full range does: forward of each, first to
 * last; then backward of each, last to first.  A range that begins at place f of the path reads the
 * residual stream in the space's kept[f].x_in and its gradient leaves in dx; one that ends at place
 * l leaves the stream in kept[l].x_in.  backward: with `head` also the head's forward pass, the
 * loss, and the head's backward pass. */
void hzp_micro_forward(struct hzp_plan *chain, const struct hzp_model *model,
                       const struct hzp_version *v, const struct hzp_micro *micro,
                       struct hzp_train_space *space, const struct hzp_layer_range *range);
void hzp_micro_backward(struct hzp_plan *chain, const struct hzp_model *model,
                        const struct hzp_version *v, const struct hzp_micro *micro,
                        struct hzp_train_space *space, const struct hzp_layer_range *range);
