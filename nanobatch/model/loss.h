/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/loss.h - what training minimises, as a descriptor on the micro-batch.
 *
 * Each learned row r has a target and a weight w[r], 1 unless given, and may have a loss of another
 * kind than cross-entropy.  The builder appends ops that turn logits into value[r] = w[r] loss[r]
 * and into their gradient w[r] dloss[r]/dlogits.  Nothing is divided here: gradients of
 * micro-batches add up, and the update divides once (enum hzp_divide, train/state/recipe.h); by
 * default by the sum of |w|, which is the number of learned tokens when every weight is 1.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/plan/plan.h"

struct hzp_loss {
    const int32_t *target;          /* [rows] the token that each row should predict */
    const float *weight;            /* [rows] of either sign; NULL: all 1 */
    const struct hzp_row_loss *how; /* [rows]; NULL: cross-entropy (device/ops.h) */
    /* [rows] out, once the plan has run; lp and entropy only where there is `how` */
    float *value; /* weighted losses */
    float *lp, *entropy;
    /* Where a row's loss is of a whole sequence: [rows] its share, which is what is minimised once
     * all lp are known (op seq_loss); NULL: there is none. */
    struct hzp_row_loss *shared;
    const int32_t *first; /* [seqs + 1] rows of the sequences */
    int32_t seqs;
    float cap; /* of the logits; 0: none */
};

/* How far the model has moved from the one that drew the targets, over rows of kinds other than
 * XENT; all 0: there are none. */
struct hzp_ratio_stats {
    int64_t rows, clipped;    /* clipped: beyond the bound that counts for their kind */
    double sum, squares, max; /* r = exp(lp - old): its sum, sum of squares, maximum */
    double k1, k3;            /* sums of old - lp and of r - 1 - log r: estimates of KL(old, now) */
    double entropy;           /* sum */
};
/* Adds the first `rows` rows of a loss whose plan has run. */
void hzp_loss_ratios(const struct hzp_loss *loss, int32_t rows, struct hzp_ratio_stats *into);

/* Between the two sequences of a pair, among a sample's tokens; those in front of it, or all. */
enum { HZP_PAIR_CUT = -1 };
static inline int32_t hzp_before_cut(const int32_t *token, int32_t count)
{
    int32_t n = 0;
    while (n < count && token[n] != HZP_PAIR_CUT)
        n++;
    return n;
}

/* Its kind is known, its numbers are finite and in range. */
bool hzp_row_loss_valid(const struct hzp_row_loss *how);

/* The losses of sequences, when all lp are there: from `how` to `shared`, which then stands in its
 * place. */
void hzp_loss_share(struct hzp_plan *plan, struct hzp_loss *loss, int32_t rows);

/* Rows [row0, row0 + logits.rows) of the loss, whose logits are given.  dlogits, absent: no
 * gradient; it may be logits in F32 models.  Rows are independent, so they are cut into items of
 * about quantum_flops, 0: into one. */
void hzp_loss_build(struct hzp_plan *plan, const struct hzp_loss *loss, int32_t row0,
                    struct hzp_mat logits, struct hzp_mat dlogits, uint64_t quantum_flops);
