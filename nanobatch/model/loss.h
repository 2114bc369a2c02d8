/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/loss.h - what training minimises, as a descriptor on the micro-batch.
 *
 * Each learned row r has a target and a weight w[r], 1 unless given.  The builder appends ops that
 * turn logits into value[r] = w[r] loss[r] and into their gradient w[r] dloss[r]/dlogits.  Nothing
 * is divided here: gradients of micro-batches add up, and the update divides by the sum of all
 * weights, which is the number of learned tokens when every weight is 1.  So an update minimises
 * the weighted mean  sum(w[r] loss[r]) / sum(w[r])  over its rows.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_MODEL_LOSS_H
#define HZP_NANOBATCH_MODEL_LOSS_H

#include "nanobatch/plan/plan.h"

enum hzp_loss_kind {
    HZP_LOSS_XENT, /* cross-entropy: -log softmax(logits)[target] */
};

struct hzp_loss {
    enum hzp_loss_kind kind;
    const int32_t *target; /* [rows] the token that each row should predict */
    const float *weight;   /* [rows]; NULL: all 1 */
    float *value;          /* [rows] out: weighted losses, once the plan has run */
};

/* Rows [row0, row0 + logits.rows) of the loss, whose logits are given.  dlogits, absent: no
 * gradient; it may be logits in F32 models.  Rows are independent, so they are cut into items of
 * about quantum_flops, 0: into one. */
void hzp_loss_build(struct hzp_plan *plan, const struct hzp_loss *loss, int32_t row0,
                    struct hzp_mat logits, struct hzp_mat dlogits, uint64_t quantum_flops);

#endif
