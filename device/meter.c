/* SPDX-License-Identifier: Apache-2.0 */
#include "device/meter.h"

/* Relaxed: a reading that is a moment old is as good. */
static struct {
    _Atomic uint64_t ns, work;
} sum[HZP_METER_COUNT];

void hzp_meter_add(int meter, uint64_t ns, uint64_t work)
{
    atomic_fetch_add_explicit(&sum[meter].ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&sum[meter].work, work, memory_order_relaxed);
}

void hzp_meter_read(struct hzp_meter ret[HZP_METER_COUNT])
{
    for (int i = 0; i < HZP_METER_COUNT; i++)
        ret[i] = (struct hzp_meter){atomic_load_explicit(&sum[i].ns, memory_order_relaxed),
                                    atomic_load_explicit(&sum[i].work, memory_order_relaxed)};
}

const char *hzp_meter_name(int meter)
{
    return meter == HZP_METER_LINK ? "link" : hzp_op_name((enum hzp_op)meter);
}
