/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/operations.h"

/* (row, position it sees) pairs of all documents. */
static uint64_t pairs_of(const struct hzp_segs *segs, int32_t window)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < segs->count; i++) {
        uint64_t first = (uint64_t)segs->pos0[i] + 1;
        uint64_t last = first + (uint64_t)(segs->row0[i + 1] - segs->row0[i]) - 1;
        uint64_t most = window > 0 ? (uint64_t)window : UINT64_MAX;
        uint64_t cut = HZP_MAX(HZP_MIN(last, most) + 1, first); /* from here on rows see `most` */
        sum += (first + cut - 1) * (cut - first) / 2 + (last + 1 - cut) * (cut <= last ? most : 0);
    }
    return sum;
}

/* Of one product of attention. */
static uint64_t attention(const struct hzp_segs *segs, const struct hzp_heads *heads,
                          int32_t window)
{
    return 2 * pairs_of(segs, window) * (uint64_t)heads->heads * (uint64_t)heads->dim;
}

static uint64_t product(const struct hzp_matmul_args *a)
{
    uint64_t depth = (uint64_t)(a->trans_a ? a->a.rows : a->a.cols);
    uint64_t cols = (uint64_t)(a->trans_b ? a->b.rows : a->b.cols);
    return 2 * (uint64_t)a->c.rows * cols * depth;
}

void hzp_operations_add(struct hzp_operations *sum, const struct hzp_plan *chain)
{
    for (int32_t i = 0; i < chain->items; i++) {
        const struct hzp_item *item = &chain->item[i];
        const struct hzp_attn_packed_args *forward = item->args;
        const struct hzp_attn_packed_bwd_args *backward = item->args;
        uint64_t model = 0, more = 0;
        switch (item->op) {
        case HZP_OP_matmul:
            model = product(item->args);
            break;
        case HZP_OP_project:
            model = product(&((const struct hzp_project_args *)item->args)->product);
            break;
        case HZP_OP_attn_packed:
            model = 2 * attention(&forward->segs, &forward->heads, forward->window);
            break;
        case HZP_OP_attn_packed_bwd:
            more = attention(&backward->segs, &backward->heads, backward->window);
            model = 4 * more;
            break;
        default:
            break;
        }
        sum->hardware += model + more;
        sum->model += item->again ? 0 : model;
    }
}
