/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/build/loss.h"

/* A logit takes about as long as so many operations of a matrix product. */
enum { XENT_FLOPS = 300, ROWS_MIN = 16 };

static void add_xent(struct hzp_plan *plan, const struct hzp_loss *loss, int32_t row0,
                     struct hzp_mat logits, struct hzp_mat dlogits)
{
    HZP_PLAN_NEXT(plan, xent, .x = logits, .dx = dlogits, .target = loss->target + row0,
                  .weight = loss->weight ? loss->weight + row0 : NULL, .loss = loss->value + row0);
}

void hzp_loss_build(struct hzp_plan *plan, const struct hzp_loss *loss, int32_t row0,
                    struct hzp_mat logits, struct hzp_mat dlogits, uint64_t quantum_flops)
{
    HZP_ASSERT(loss->kind == HZP_LOSS_XENT);
    int32_t rows = logits.rows, each = rows;
    if (quantum_flops) {
        uint64_t fit = quantum_flops / (XENT_FLOPS * (uint64_t)logits.cols);
        each = (int32_t)HZP_MIN((uint64_t)rows, HZP_MAX(fit, (uint64_t)ROWS_MIN));
    }
    for (int32_t r = 0, n; r < rows; r += n) {
        n = HZP_MIN(each, rows - r);
        add_xent(plan, loss, row0 + r, hzp_mat_rows(logits, r, n),
                 dlogits.ptr ? hzp_mat_rows(dlogits, r, n) : dlogits);
    }
}
