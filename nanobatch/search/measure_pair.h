/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/measure_pair.h - the part of measure.h that needs two lanes at a time: classes
 * of ops side by side, and what handing over costs.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_SEARCH_MEASURE_PAIR_H
#define HZP_NANOBATCH_SEARCH_MEASURE_PAIR_H

#include "nanobatch/search/rig.h"
#include "nanobatch/time/tables.h"

/* Whether this rig has items of both that may run side by side. */
bool hzp_pair_possible(const struct hzp_rig *rig, enum hzp_class a, enum hzp_class b);

/* Fills the rates of the pair, for every division of the device that the tables' shares give.
 * better: only where they are higher than those there: what disturbs a machine only ever lowers
 * them. */
int hzp_pair_measure(struct hzp_rig *rig, struct hzp_tables *tables, enum hzp_class a,
                     enum hzp_class b, bool better);

/* Fills issue_ns, led, handover_ns and wakeup_ns. */
int hzp_pair_handover(struct hzp_rig *rig, struct hzp_tables *tables);

#endif
