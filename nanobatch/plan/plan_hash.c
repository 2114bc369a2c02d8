/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/plan/plan_hash.h"

#include "device/philox.h"

uint64_t hzp_hash_numbers(uint64_t hash, const int32_t *number, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        hash = hzp_mix64(hash + 0x9e3779b97f4a7c15u + (uint32_t)number[i]);
    return hash;
}

/* What all ranks must exchange alike. */
static uint64_t hash_collective(uint64_t hash, const struct hzp_collective_args *a)
{
    const int32_t is[] = {a->kind,      a->wide,      a->accumulate,       a->tag, a->recv.rows,
                          a->recv.cols, a->recv.type, a->send.ptr != NULL, a->part};
    return hzp_hash_numbers(hash, is, HZP_COUNT(is));
}

uint64_t hzp_plan_hash(const struct hzp_plan *plan)
{
    uint64_t hash = 0;
    for (int32_t l = 0; l < HZP_LANE_COUNT; l++)
        hash = hzp_hash_numbers(hash, &(int32_t){plan->share[l]}, 1);
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        int32_t is[] = {(int32_t)item->op, item->lane, item->tenants, item->rides, item->layer,
                        item->row0,        item->rows, item->waits,   item->cores};
        hash = hzp_hash_numbers(hash, is, HZP_COUNT(is));
        if (item->op == HZP_OP_collective)
            hash = hash_collective(hash, item->args);
        if (item->waits)
            hash = hzp_hash_numbers(hash, plan->wait + item->wait0, item->waits);
    }
    return hash;
}
