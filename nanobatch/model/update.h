/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/update.h - an optimizer step to ops: norm, AdamW (NAdam, Muon), audit, fp8
 * projections.
 *
 * The chain reads the summed gradients of the update's micro-batches and a version, and writes a
 * draft, the residuals and the moments.  Invariant: while the norm is not finite, the draft becomes
 * a copy of the version, and residuals and moments stay as they were (the adamw op sees to it), so
 * such an update can be discarded.
 *
 * With a momentum each matrix of a layer moves by Muon (Jordan et al. 2024): x, what the op muon
 * makes of its gradient and first moment, is divided by its Frobenius norm and made orthogonal by
 * five Newton-Schulz steps  x = a x + (b A + c A^2) x,  A = x x^T (or x^T x and from the right, if
 * that is smaller),  in the type of the weights; then  p = p (1 - lr decay) - lr 0.2 sqrt(max(rows,
 * cols)) x:  the root mean square that AdamW's steps have (Liu et al. 2025), so one rate and one
 * decay serve both.  q, k and v, gate and up are matrices of their own.  Embedding, head, norms and
 * biases move by AdamW.  Second moments of matrices stay as they are.  One rank, whole units; the
 * gradients are overwritten.
 *
 * In the ordered mode sums of squares go by blocks of HZP_BLOCK_ELEMENTS, added in order.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/train_space.h"

struct hzp_update_hyper {
    float lr, beta1, beta2, eps, decay, clip; /* decay: of matrices only */
    float grad_scale;     /* 1 / sum of the weights of the update's learned tokens */
    int32_t t;            /* optimizer step, from 1 */
    float part_m, part_g; /* NAdam's, as in struct hzp_adamw_args; 0: AdamW */
    float momentum;       /* Muon's; 0: AdamW for all */
};

/* Norm over all units, AdamW from v into draft (which may be v), audit of the draft; and, where the
 * store keeps them, the draft's fp8 projections: the caller sets its fp8_made
 * once the chain has ended.
 * Of a slice (model/tensor.h) all ranks get one norm, and one checksum: the sum of those of their
 * slices, in which what all ranks have counts on each of them.  It is not the checksum of the whole
 * model's units. */
void hzp_update_build(struct hzp_plan *chain, const struct hzp_model *model,
                      const struct hzp_version *v, struct hzp_version *draft,
                      const struct hzp_update_hyper *hyper, struct hzp_train_space *space);
const struct hzp_update_result *hzp_update_result(const struct hzp_train_space *space);

/* What hzp_update_build is made of, in this order, for ranks that exchange data in between: begin;
 * norm of every unit; adamw of every unit, then its audit; end.  Norm and adamw go over this rank's
 * shard of the unit, audit over all of the draft's.  Between the last norm and the first adamw the
 * ranks that share one copy of the optimizer state gather their sums of squares (squares in
 * train_space_state.h), and the host adds them up with hzp_update_add_squares. */
void hzp_update_begin(struct hzp_plan *chain, struct hzp_train_space *space);
/* With tensor parallelism the norms of q and k are equal on all ranks; each has the part of their
 * gradients that comes from its heads; these are added up, once an update, before its norm. */
void hzp_update_head_norms(struct hzp_plan *chain, const struct hzp_model *model,
                           struct hzp_train_space *space);
void hzp_update_norm(struct hzp_plan *chain, struct hzp_train_space *space, int32_t u);
void hzp_update_adamw(struct hzp_plan *chain, const struct hzp_model *model,
                      const struct hzp_version *v, struct hzp_version *draft,
                      const struct hzp_update_hyper *hyper, struct hzp_train_space *space,
                      int32_t u);
void hzp_update_audit(struct hzp_plan *chain, const struct hzp_model *model,
                      const struct hzp_version *draft, struct hzp_train_space *space, int32_t u);
void hzp_update_end(struct hzp_plan *chain, const struct hzp_model *model,
                    const struct hzp_version *draft, const struct hzp_train_space *space);

/* Audits a draft that the host has written to, and makes its fp8 projections.  fresh: no update
 * made it, so there is no norm.  One rank. */
void hzp_update_audit_again(struct hzp_plan *chain, const struct hzp_model *model,
                            const struct hzp_version *draft, struct hzp_train_space *space,
                            bool fresh);

/* Copies moments and residuals to their backup (config.backup), and back: bit for bit. */
void hzp_update_save(struct hzp_plan *chain, const struct hzp_train_space *space);
void hzp_update_restore(struct hzp_plan *chain, const struct hzp_train_space *space);

/* result.sumsq of all ranks: ordered, block by block in the units' order; otherwise rank by
 * rank. */
void hzp_update_add_squares(struct hzp_train_space *space);

/* Elements of one item of the op, which goes once over memory; args are those of an item of n > 0
 * elements. */
size_t hzp_update_piece(const struct hzp_train_space *space, enum hzp_op op, const void *args,
                        size_t n);
