/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/update_log.h - a line of the log for each update and each version.
 *
 * The engine thread must not wait where standard error is a full pipe, so it only leaves reports
 * here, and the file thread writes them.  If that falls behind by more than there is room for, the
 * oldest reports are dropped, and counted in a line.
 *
 *     info  train: update optimizer_step=12 loss=1.8321 grad_norm=0.912 lr=0.0001 samples=8
 *           tokens=512 sequence=41-48 device_ms=31.0 ms=84.2
 *
 * and with --skip what its micro-batches left out: `layers=23 left_out=3,7,12/2,9,10`.
 *
 *     info  train: version id=13 optimizer_step=12 loss=1.8321 learned_through=40
 *
 * Thread: push the engine's; write the file thread's, or any while neither runs.
 */
#pragma once

#include "train/conductor/trainer.h"

struct hzp_update_log;

/* known: versions up to this id are not logged. */
struct hzp_update_log *hzp_update_log_create(uint64_t known);
void hzp_update_log_destroy(struct hzp_update_log *log); /* NULL: no effect */

/* An update has ended, well or not. */
void hzp_update_log_push(struct hzp_update_log *log, const struct hzp_update_report *report);

/* Writes the reports since the last call, and the versions that have appeared.  learned_most: no
 * version has learned every example beyond this number (hzp_state_learned_through). */
void hzp_update_log_write(struct hzp_update_log *log, struct hzp_weights *weights,
                          int64_t learned_most);
