/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/shards.h - the groups of an engine that trains on several ranks: chosen by rank 0, the
 * same on all.
 *
 * Thread: the engine's.
 */
#pragma once

#include "api/engine/memory_plan.h"

struct hzp_shards_request {
    struct hzp_link *link;                   /* borrowed; NULL: there is one rank */
    const struct hzp_memory_request *memory; /* one rank's, without shards */
    bool serves;                             /* rank 0 serves, so every rank has whole units */
    bool quiet;                              /* the choice is not printed */
    uint8_t speed[HZP_STAGE_SPEEDS_MAX];     /* each stage's (weights/groups.h) */
};

/* The self-test of all ranks, which call it together; where the settings want stages cut by speeds,
 * ret_speed [HZP_STAGE_SPEEDS_MAX] gets those (mesh/peers/selftest.h), else it is left as it is.
 * HZP_EINVAL: more stages than have speeds; else as of hzp_selftest_run. */
int hzp_shards_test(struct hzp_device *dev, struct hzp_link *link, enum hzp_dtype type,
                    const struct hzp_training_settings *training, uint8_t *ret_speed,
                    struct hzp_err_text *reterr);

/* Chooses the shards of this rank, and pads the layout for them.  Rank 0 takes the training
 * settings' z1, z2 and z3, and chooses those that are 0 by what the memory request needs
 * (hzp_groups_choose), or the settings' stages; the others are told.  HZP_EINVAL: sizes that do not
 * divide, z3 > 1 or stages where rank 0 serves, or stages that are not as many as ranks or more
 * than layers; HZP_ENOMEM; HZP_EIO: the link failed. */
int hzp_shards_agree(const struct hzp_shards_request *request, struct hzp_layout *layout,
                     struct hzp_shards *ret, struct hzp_err_text *reterr);

/* Rank 0, for ranks that have met again: tells them what was chosen, in place of agree.  They call
 * agree.  HZP_EIO. */
int hzp_shards_tell(struct hzp_link *link, const struct hzp_shards *shards,
                    struct hzp_err_text *reterr);
