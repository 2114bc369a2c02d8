/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/forward.h - serving's rows to ops: the model's forward pass and sampling.
 *
 * A shape (plan/shape.h) cuts the rows into nano-batches.  Each nano-batch is a strand: its rows
 * pass the stages of each layer (stages.h), alone or with neighbouring strands.  The strands are
 * issued in the shape's order (one after another by default), and before others what these need of
 * them; the head (final norm, logits, sampling) is one for all.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/stages.h"

/* Appends the whole forward pass and sampling of the batch, reading version v, cut and spread as
 * the shape says (NULL: hzp_plan_sequential); kv [layers].  The shape must outlive the plan's
 * building.  Where the device captures graphs the batch is padded first (hzp_batch_pad).  A batch
 * without rows: no effect. */
void hzp_forward_build(struct hzp_plan *plan, const struct hzp_model *model,
                       const struct hzp_version *v, struct hzp_batch *batch,
                       const struct hzp_kv *kv, struct hzp_serve_space *space,
                       const struct hzp_plan_shape *shape);

/* --- The same by ranges of layers ------------------------------------------------------------- */

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
