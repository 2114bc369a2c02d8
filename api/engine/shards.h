/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/shards.h - the groups of an engine that trains on several ranks: chosen by rank 0, the
 * same on all.
 *
 * Thread: the engine's.
 */
#ifndef HZP_API_ENGINE_SHARDS_H
#define HZP_API_ENGINE_SHARDS_H

#include "api/engine/assembly.h"

/* Sets a->shards, and pads a->layout for them.  Rank 0 takes the settings' z1, z2 and z3, and
 * chooses those that are 0 by what request, made for one rank, needs (hzp_groups_choose); the
 * others are told.  Prints the choice.  HZP_EINVAL: sizes that do not divide, or z3 > 1 where rank
 * 0 serves; HZP_ENOMEM; HZP_EIO: the link failed. */
int hzp_assembly_shards(struct hzp_assembly *a, const struct hzp_memory_request *request,
                        struct hzp_err_text *reterr);

#endif
