/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/measure.h - fills tables.h on this device, part by part.
 *
 * What is timed are items of real plans, as the builders make them, in the plan's order: weights
 * come from memory, activations from where the op before left them.  A part is a step of so many
 * rows on one share of the device, or one pair of classes side by side, and takes a few seconds at
 * most; who calls may stop between two and go on another day (tables->parts_done).
 *
 * Pairs: the items of one class of one nano-batch, over and over, on one lane; on another lane
 * those of another nano-batch or of a training chain, which share no memory that either writes.
 * Each is timed alone on its share, then both together; only what ran while both did counts.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_SEARCH_MEASURE_H
#define HZP_NANOBATCH_SEARCH_MEASURE_H

#include "nanobatch/search/rig.h"
#include "nanobatch/time/tables.h"

struct hzp_measure;

/* Sets the tables' shares and parts; what they hold stays.  HZP_EUNSUP: the device does not time
 * single ops. */
int hzp_measure_create(struct hzp_rig *rig, struct hzp_tables *tables, struct hzp_measure **ret,
                       struct hzp_err_text *reterr);
void hzp_measure_destroy(struct hzp_measure *m); /* NULL: no effect */

/* Measures part tables->parts_done and counts it.  HZP_EDEVICE is final. */
int hzp_measure_next(struct hzp_measure *m);

/* What the next part is, as people read it; text [64]. */
const char *hzp_measure_what(const struct hzp_measure *m, char *text);

#endif
