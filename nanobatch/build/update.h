/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/build/update.h - an optimizer step to ops: norm, AdamW, audit, fp8 projections.
 *
 * The chain reads the summed gradients of the update's micro-batches and a version, and writes a
 * draft, the residuals and the moments.  Invariant: while the norm is not finite, the draft becomes
 * a copy of the version, and residuals and moments stay as they were (the adamw op sees to it), so
 * such an update can be discarded.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_BUILD_UPDATE_H
#define HZP_NANOBATCH_BUILD_UPDATE_H

#include "nanobatch/build/model.h"
#include "nanobatch/plan/plan.h"

struct hzp_train_space;

struct hzp_update_hyper {
    float lr, beta1, beta2, eps, decay, clip; /* decay: of matrices only */
    float grad_scale; /* 1 / sum of the weights of the update's learned tokens */
    int32_t t;        /* optimizer step, from 1 */
};

/* What an update's chain leaves behind, in memory the host sees. */
struct hzp_update_result {
    double sumsq;      /* of the unscaled gradients; not finite: the update changed nothing */
    uint64_t checksum; /* of the draft */
    int64_t nonfinite;
};

/* Norm over all units, AdamW from v into draft (which may be v), audit of the draft; and, where the
 * store keeps them, the draft's fp8 projections: the caller sets its fp8_made
 * once the chain has ended. */
void hzp_update_build(struct hzp_plan *chain, const struct hzp_model *model,
                      const struct hzp_version *v, struct hzp_version *draft,
                      const struct hzp_update_hyper *hyper, struct hzp_train_space *space);
const struct hzp_update_result *hzp_update_result(const struct hzp_train_space *space);

#endif
