/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/measure_pair.h - the part of measure.h that needs two lanes at a time: rates of
 * classes of ops that run at the same time, and the cost of a handover between lanes.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/search/rig.h"

/* Whether this rig has items of both classes that may run at the same time. */
bool hzp_pair_possible(const struct hzp_rig *rig, enum hzp_class a, enum hzp_class b);

/* Measures the rates of the pair for every division of the device that the tables' shares allow.
 * better: a stored rate is replaced only by a higher one, because disturbances of the machine only
 * ever lower rates. */
int hzp_pair_measure(struct hzp_rig *rig, struct hzp_tables *tables, enum hzp_class a,
                     enum hzp_class b, bool better);

/* The rates of a class beside exchanges between ranks: while the link makes `count` of them, the
 * items of the class run.  All ranks of the link call it at the same time with the same class,
 * exchange and count. */
int hzp_pair_exchange(struct hzp_rig *rig, struct hzp_tables *tables, enum hzp_class c,
                      const struct hzp_collective_args *exchange, int32_t count);

/* Measures issue_ns, led, handover_ns and wakeup_ns. */
int hzp_pair_handover(struct hzp_rig *rig, struct hzp_tables *tables);
