/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/loss.h"

#include "nanobatch/time/rates.h"

enum { ROWS_MIN = 16 };

/* Rows [r, r + n) of logits and dlogits, whose first is row0 of the loss. */
static struct hzp_xent_args xent_of(const struct hzp_loss *loss, int32_t row0,
                                    struct hzp_mat logits, struct hzp_mat dlogits, int32_t r,
                                    int32_t n)
{
    return (struct hzp_xent_args){.x = hzp_mat_rows(logits, r, n),
                                  .dx = dlogits.ptr ? hzp_mat_rows(dlogits, r, n) : dlogits,
                                  .target = loss->target + row0 + r,
                                  .weight = loss->weight ? loss->weight + row0 + r : NULL,
                                  .loss = loss->value + row0 + r};
}

void hzp_loss_build(struct hzp_plan *plan, const struct hzp_loss *loss, int32_t row0,
                    struct hzp_mat logits, struct hzp_mat dlogits, uint64_t quantum_flops)
{
    HZP_ASSERT(loss->kind == HZP_LOSS_XENT);
    int32_t rows = logits.rows;
    struct hzp_xent_args all = xent_of(loss, row0, logits, dlogits, 0, rows);
    size_t fit = hzp_quantum_elements(quantum_flops, hzp_op_cost(HZP_OP_xent, &all), (size_t)rows);
    int32_t each = (int32_t)HZP_MIN(HZP_MAX(fit, (size_t)ROWS_MIN), (size_t)rows);
    for (int32_t r = 0, n; r < rows; r += n) {
        n = HZP_MIN(each, rows - r);
        struct hzp_xent_args args = xent_of(loss, row0, logits, dlogits, r, n);
        hzp_plan_next(plan, HZP_OP_xent, &args);
    }
}
