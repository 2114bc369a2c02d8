/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/operations.h - the floating-point operations of a micro-batch's chain, for the
 * utilisation of the device (MFU; Chowdhery et al. 2022, PaLM, appendix B).
 *
 * Counted are products and attention, a multiplication and an addition as two; attention over the
 * positions that a row sees, not over the square.
 *
 *   model     what the arithmetic needs: nothing that recompute repeats, and in attention's
 *             backward pass four products, not the fifth, of the scores
 *   hardware  all that the device computes
 *
 * Of a dense model without windows, whose products have N weights, a token of a document of T
 * tokens costs 6 N + 6 layers heads dim (T + 1) model operations; the head has learned rows alone.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/plan/plan.h"

struct hzp_operations {
    uint64_t model, hardware;
};

/* Adds the chain's items; the documents' lengths are still those it was built with. */
void hzp_operations_add(struct hzp_operations *sum, const struct hzp_plan *chain);
