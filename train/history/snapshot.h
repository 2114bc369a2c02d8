/* SPDX-License-Identifier: Apache-2.0 */
/* train/history/snapshot.h - a copy of one version with its moments and residuals, in host memory.
 *
 * A checkpoint is written in two stages: while the trainer is frozen the state is copied, and from
 * the copy it is written when training has gone on.  So an update waits for memory, not for a disk.
 * All parts are copied, also the weights: holding the version would keep its slot from the next
 * draft.  All memory is allocated when the snapshot is created, and there is one, so what waits to
 * be written is bounded: the next checkpoint is taken when this one is on disk.
 *
 * Every update changes every unit (weights or residuals by the update or its decay, the moments
 * always), so a checkpoint shares no weights or state with the one before it.
 *
 * Thread: one at a time; take: the one that froze the trainer.
 */
#pragma once

#include "train/conductor/trainer.h"

struct hzp_snapshot {
    struct hzp_units part[HZP_STATE_PARTS]; /* whole, in host memory; layout NULL: not there */
    void *memory[HZP_STATE_PARTS];
    struct hzp_train_state state; /* of the copy: its source is these units */
};

/* What hzp_snapshot_create() allocates. */
size_t hzp_snapshot_bytes(const struct hzp_layout *layout, enum hzp_dtype type,
                          enum hzp_dtype moment_type);

/* HZP_ENOMEM.  layout: borrowed. */
int hzp_snapshot_create(const struct hzp_layout *layout, enum hzp_dtype type,
                        enum hzp_dtype moment_type, struct hzp_snapshot **ret);
void hzp_snapshot_destroy(struct hzp_snapshot *s); /* NULL: no effect */

/* Copies version v and the trainer's state, which belongs to it (hzp_trainer_save); with ranks each
 * unit is gathered.  HZP_EIO, HZP_ENOMEM, HZP_EDEVICE. */
int hzp_snapshot_take(struct hzp_snapshot *s, struct hzp_trainer *t, const struct hzp_version *v,
                      struct hzp_err_text *reterr);
