/* SPDX-License-Identifier: Apache-2.0 */
/* device/meter.h - how fast this process computes and sends: for each op of training, and for
 * transfers, the time taken and the work done.
 *
 * Ranks compare their rates to find one that is slower than the others (mesh/peers/stragglers.c).
 * Work is in units that are the same on all ranks: an op's operations and bytes (hzp_op_cost), a
 * transfer's bytes on the wire.
 *
 * Invariant: the sums only grow, so two readings give the rate in between.
 *
 * Thread: any.
 */
#pragma once

#include "device/ops.h"

enum { HZP_METER_LINK = HZP_OP_COUNT, HZP_METER_COUNT }; /* below: enum hzp_op */

struct hzp_meter {
    uint64_t ns, work;
};

void hzp_meter_add(int meter, uint64_t ns, uint64_t work);
void hzp_meter_read(struct hzp_meter ret[HZP_METER_COUNT]);
const char *hzp_meter_name(int meter); /* the op's, or "link" */
