/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/collectives_restore.c - an older version, and the optimizer's state that belongs to
 * it, on all ranks: rank 0 sends whole units, each rank keeps its part of them. */
#include "base/thread.h"
#include "train/learner/collectives_state.h"

size_t hzp_collectives_fill_elements(const struct hzp_collectives *x)
{
    return hzp_layout_largest(x->config.model->layout);
}

void hzp_collectives_fill(struct hzp_collectives *x, const struct hzp_work *work, const void *whole)
{
    hzp_assert_engine_thread();
    const struct hzp_model *model = x->config.model;
    const struct hzp_units *units =
        hzp_collectives_part(x, work->gather.part, hzp_weights_current(model->weights));
    size_t elements = 0;
    for (int32_t u = work->gather.unit; u < work->gather.unit + work->units; u++)
        elements += units->layout->unit[u].elements;
    HZP_ASSERT(elements <= hzp_collectives_fill_elements(x));
    hzp_collectives_append(x);
    struct hzp_transfer what = {.op = HZP_BROADCAST,
                                .type = HZP_WIRE_BYTE,
                                .count = elements * hzp_dtype_size(units->type),
                                .recv =
                                    whole ? (void *)(uintptr_t)whole : hzp_collectives_received(x),
                                .host = true,
                                .tag = hzp_collectives_tag(HZP_TAG_FILL, work->gather.unit)};
    hzp_transfers_add(&x->list, &what, 0);
}

void hzp_collectives_keep(struct hzp_collectives *x, const struct hzp_work *work,
                          const struct hzp_version *draft, struct hzp_rank_filled *filled)
{
    hzp_assert_engine_thread();
    enum hzp_state_part part = work->gather.part;
    char *at = hzp_collectives_received(x);
    for (int32_t u = work->gather.unit; u < work->gather.unit + work->units; u++) {
        struct hzp_unit_view mine = hzp_unit_view(hzp_collectives_part(x, part, draft), u);
        struct hzp_unit_view whole = mine;
        size_t size = hzp_dtype_size(mine.type);
        whole.base = at;
        whole.part = (struct hzp_extent){.first = 0, .count = whole.elements};
        filled->received += hzp_unit_checksum(&whole);
        char *kept = at + mine.part.first * size;
        if (hzp_device_copy(x->config.model->dev, mine.base, kept, hzp_unit_bytes(&mine)) < 0)
            hzp_collectives_fail(x, "the device failed");
        mine.base = kept;
        if (part == HZP_STATE_WEIGHTS)
            filled->weights += hzp_unit_checksum(&mine);
        at += whole.elements * size;
    }
}

/* Copies of the parameters are numbered as in collectives_update.c. */
static uint64_t weights_of_copy(const struct hzp_collectives *x, int32_t copy)
{
    const struct hzp_groups *g = &x->config.shards.groups;
    uint64_t sum = 0;
    for (int32_t d3 = 0; d3 < g->z3; d3++)
        sum += x->all_filled[d3 * (g->ranks / g->z3) + copy].weights;
    return sum;
}

/* All ranks are ready, and all come to the same result. */
static int compare(void *ctx, struct hzp_err_text *reterr)
{
    struct hzp_collectives *x = ctx;
    const struct hzp_groups *g = &x->config.shards.groups;
    for (int32_t i = 1; i < g->ranks; i++)
        if (x->all_filled[i].received != x->all_filled[0].received)
            return hzp_fail(reterr, HZP_EIO,
                            "ranks have received different versions (checksum %016" PRIx64
                            " on rank %" PRId64 ", %016" PRIx64 " on rank %" PRId64 ")",
                            x->all_filled[i].received, x->all_filled[i].rank,
                            x->all_filled[0].received, x->all_filled[0].rank);
    for (int32_t i = 0; i < g->ranks / g->z3; i++)
        if (weights_of_copy(x, i) != x->work.checksum)
            return hzp_fail(reterr, HZP_EIO,
                            "ranks hold different weights (checksum %016" PRIx64
                            " in copy %d, rank %" PRId64 " among its ranks; %016" PRIx64
                            " were sent)",
                            weights_of_copy(x, i), i, x->all_filled[i].rank, x->work.checksum);
    return HZP_OK;
}

void hzp_collectives_compare(struct hzp_collectives *x, const struct hzp_rank_filled *mine)
{
    hzp_assert_engine_thread();
    hzp_collectives_append(x);
    hzp_collectives_empty_ring(x);
    x->filled = *mine;
    x->filled.rank = x->config.shards.rank;
    hzp_transfers_gather(&x->list, x->group[HZP_GROUP_RANKS], &x->filled, sizeof(x->filled),
                         x->all_filled, hzp_collectives_tag(HZP_TAG_COMPARE, 0), 0);
    struct hzp_transfers_entry *entry = hzp_transfers_newest(&x->list);
    entry->then = compare;
    entry->ctx = x;
}
