/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/page_table.h - the page numbers of all running sequences, kept on the device: a
 * line for each running slot.
 *
 * A step sends only what has changed since the step before, as a bounded list that a scatter op
 * applies before attention reads the table (batch.h, forward.c).  So what travels does not grow
 * with the longest context.  Where the device's memory is the host's there is no table: attention
 * reads the batch's own arrays.
 *
 * Invariant: `host` is what the table will hold once all steps formed so far have run; steps run in
 * the order in which they are formed, and serving's items of a step after those of the step before.
 * So a line may change while an earlier step, which reads its old contents, is in flight.
 *
 * Thread: engine.
 */
#pragma once

#include "device/device.h"

struct hzp_page_table_config {
    int32_t lines, stride; /* running slots; pages of the longest sequence */
    int32_t changes_max;   /* most changes of one step; at least one for each line, and `stride` */
};

struct hzp_page_table {
    struct hzp_page_table_config config;
    struct hzp_device *dev;
    int32_t *table; /* [lines][stride] on the device */
    int32_t *host;  /* [lines][stride]; -1: not known */
};

/* A table of unknown contents; dev is borrowed.  HZP_ENOMEM. */
int hzp_page_table_create(struct hzp_device *dev, const struct hzp_page_table_config *config,
                          struct hzp_page_table **ret);
void hzp_page_table_destroy(struct hzp_page_table *table); /* NULL: no effect */

/* Bytes of device memory. */
size_t hzp_page_table_bytes(const struct hzp_page_table_config *config);

/* Room for the changes of a step of so many segments and rows, whatever sequences they are of. */
int32_t hzp_page_table_room(int32_t segs, int32_t rows, int32_t page_rows, int32_t stride);

/* Steps were formed that will not run: every page number travels again.  NULL: no effect. */
void hzp_page_table_forget(struct hzp_page_table *table);
