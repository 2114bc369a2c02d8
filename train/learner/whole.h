/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/whole.h - rank 0 of ranks that compute together: the whole model's weights and
 * optimizer's state, of which each rank has a slice, put together unit by unit.
 *
 * Invariant: only one unit is there at a time: all units of all parts lie in `unit`.
 *
 * Thread: the owner's.
 */
#pragma once

#include "train/state/state_file.h"

struct hzp_whole {
    struct hzp_layout layout; /* the whole model's */
    struct hzp_layout *slice; /* [ranks] */
    int32_t ranks;
    char *unit;                             /* the largest, in F32 */
    struct hzp_units part[HZP_STATE_PARTS]; /* layout NULL: there is no such part */
};

/* config: the whole model's; its parts have the types of this rank's, of version v.  HZP_ENOMEM;
 * hzp_whole_close() ends it then, too. */
int hzp_whole_open(struct hzp_whole *ret, const struct hzp_model_config *config, int32_t ranks,
                   const struct hzp_model *model, const struct hzp_version *v,
                   const struct hzp_train_space *space);
void hzp_whole_close(struct hzp_whole *w); /* zeroed: no effect */

/* Puts a rank's slice of a unit into `unit`; rank 0's, which is the first, clears it.  HZP_EINVAL:
 * what all ranks must have alike is not as rank 0 has it. */
int hzp_whole_join(struct hzp_whole *w, enum hzp_state_part part, int32_t u, int32_t rank,
                   const void *slice);
