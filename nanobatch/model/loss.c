/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/loss.h"

#include "device/objective.h"
#include "nanobatch/time/rates.h"

enum { ROWS_MIN = 16 };

void hzp_loss_ratios(const struct hzp_loss *loss, int32_t rows, struct hzp_ratio_stats *into)
{
    for (int32_t i = 0; loss->how && i < rows; i++) {
        const struct hzp_row_loss *how = &loss->how[i];
        if (how->kind == HZP_LOSS_XENT || how->kind == HZP_LOSS_SOFT || how->kind == HZP_LOSS_DPO ||
            how->kind == HZP_LOSS_IPO)
            continue;
        struct hzp_objective o = hzp_objective_of(how, (double)loss->lp[i]);
        double gap = hzp_log_ratio((double)loss->lp[i], (double)how->old);
        bool held = loss->shared && how->advantage != 0 && loss->shared[i].advantage == 0;
        into->rows++;
        into->clipped += how->kind == HZP_LOSS_GSPO ? held : o.clipped;
        into->sum += o.ratio;
        into->squares += o.ratio * o.ratio;
        into->max = fmax(into->max, o.ratio);
        into->k1 -= gap;
        into->k3 += o.ratio - 1 - gap;
        into->entropy += (double)loss->entropy[i];
    }
}

bool hzp_row_loss_valid(const struct hzp_row_loss *h)
{
    return h->kind >= 0 && h->kind < HZP_LOSS_ALL && isfinite(h->inv_temperature) &&
           h->inv_temperature > 0 && isfinite(h->old) && isfinite(h->advantage) &&
           isfinite(h->reference) && isfinite(h->kl) && h->low >= 0 && isfinite(h->low) &&
           h->high >= 0 && isfinite(h->high) && h->beta >= 0 && isfinite(h->beta) &&
           (h->kind != HZP_LOSS_IPO || h->beta >= 1e-6f);
}

bool hzp_soft_valid(const struct hzp_soft *s, int32_t vocab)
{
    bool valid = s->count >= 1 && s->count <= HZP_SOFT_MAX && s->rest >= 0 && isfinite(s->rest);
    for (int32_t k = 0; valid && k < s->count; k++) {
        valid = s->token[k] >= 0 && s->token[k] < vocab && s->p[k] >= 0 && isfinite(s->p[k]);
        for (int32_t i = 0; i < k; i++)
            valid &= s->token[i] != s->token[k];
    }
    return valid;
}

/* Rows [r, r + n) of logits and dlogits, whose first is row0 of the loss. */
static struct hzp_xent_args xent_of(const struct hzp_loss *loss, int32_t row0,
                                    struct hzp_mat logits, struct hzp_mat dlogits, int32_t r,
                                    int32_t n)
{
    row0 += r;
    return (struct hzp_xent_args){.x = hzp_mat_rows(logits, r, n),
                                  .dx = dlogits.ptr ? hzp_mat_rows(dlogits, r, n) : dlogits,
                                  .target = loss->target + row0,
                                  .weight = loss->weight ? loss->weight + row0 : NULL,
                                  .how = loss->how ? loss->how + row0 : NULL,
                                  .soft = loss->soft ? loss->soft + row0 : NULL,
                                  .lp = loss->how ? loss->lp + row0 : NULL,
                                  .entropy = loss->how ? loss->entropy + row0 : NULL,
                                  .loss = loss->value + row0,
                                  .cap = loss->cap};
}

void hzp_loss_share(struct hzp_plan *plan, struct hzp_loss *loss, int32_t rows)
{
    HZP_PLAN_NEXT(plan, seq_loss, .lp = {loss->lp, 1, rows, rows, HZP_F32}, .how = loss->how,
                  .first = loss->first, .out = loss->shared, .seqs = loss->seqs);
    loss->how = loss->shared;
}

void hzp_loss_build(struct hzp_plan *plan, const struct hzp_loss *loss, int32_t row0,
                    struct hzp_mat logits, struct hzp_mat dlogits, uint64_t quantum_flops)
{
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
