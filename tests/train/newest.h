/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/newest.h - the newest version that was published.
 *
 * Thread: any.
 */
#pragma once

#include "weights/versions.h"

#include <math.h>

/* *ret: its record; id 0: there is none. */
static inline void hzp_weights_newest(struct hzp_weights *w, struct hzp_version_record *ret)
{
    struct hzp_version_record list[16];
    int32_t n = hzp_weights_list(w, list, HZP_COUNT(list));
    *ret = (struct hzp_version_record){
        .loss = NAN, .gate_before = NAN, .gate_after = NAN, .learned_through = -1};
    for (int32_t i = 0; i < n && !ret->id; i++)
        if (list[i].state != HZP_VERSION_TRIAL && list[i].state != HZP_VERSION_DROPPED)
            *ret = list[i];
}
