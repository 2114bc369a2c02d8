/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/measure.h - fills the tables (tables.h) with times measured on this device, part
 * by part.
 *
 * What is timed are the items of real plans, as the builders make them, in the plan's order:
 * weights come from memory, activations from wherever the op before left them.  A part is one step
 * of a given size on one share of the device, or one pair of classes running at the same time, and
 * takes a few seconds at most. The caller may stop between two parts and resume later
 * (tables->parts_done).
 *
 * Pairs: one lane repeats the items of one class from one nano-batch; another lane repeats items of
 * the other class from another nano-batch or from a training chain.  The two sets of items share no
 * memory that either writes.  Each is timed alone on its share, then both run together; only items
 * that ran while the other lane was busy count.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/search/rig.h"

struct hzp_measure;

/* Sets the tables' shares and lists their parts; times already in the tables stay.  HZP_EUNSUP: the
 * device cannot time single ops. */
int hzp_measure_create(struct hzp_rig *rig, struct hzp_tables *tables, struct hzp_measure **ret,
                       struct hzp_err_text *reterr);
void hzp_measure_destroy(struct hzp_measure *m); /* NULL: no effect */

/* Measures part number tables->parts_done and increments that count.  HZP_EDEVICE is final. */
int hzp_measure_next(struct hzp_measure *m);

/* A short description of the next part for messages; text [64]. */
const char *hzp_measure_what(const struct hzp_measure *m, char *text);

/* ---- measure_pair.c: the part of measure.h that needs two lanes at a time: rates of classes of
 * ops that run at the same time, and the cost of a handover between lanes. */

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
