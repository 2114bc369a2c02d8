/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/axes.h - the links of ranks that compute steps together: of a group's steps, and with
 * several groups (--ranks above --tensor) between the ranks that have the same slice.
 *
 *     tensor axis    ranks T g .. T g + T - 1 of group g: records of steps, collectives of serving,
 *                    and of training
 *     data axis      the ranks T g + t of all groups, with slice t: what training's chains
 *                    exchange; and works, losses and results, which only the first rank of each
 *                    group exchanges
 *
 * Each is a link of its own, split off that of all ranks and narrowed (hzp_link_narrow), so that
 * none waits for another and all fail together.
 *
 * Thread: the engine's.
 */
#pragma once

#include "api/engine/rank_link.h"
#include "weights/tensor_slice.h"

struct hzp_axes {
    struct hzp_link *all;          /* borrowed */
    struct hzp_link *group;        /* just this group's ranks; `all`, if there is one group */
    struct hzp_link *steps;        /* carries the records of steps; and */
    struct hzp_link *tensor;       /* what serving's items exchange; a rig's: all */
    struct hzp_link *tensor_train; /* what training's items exchange */
    /* Between groups; NULL: there is one.  work moves host memory. */
    struct hzp_link *work, *data;
};

struct hzp_axes_config {
    struct hzp_link *all; /* borrowed */
    struct hzp_tensor_slice slice;
    struct hzp_device *dev;
    const struct hzp_ranks_settings *ranks;
    bool learns;
    bool own_lane; /* serving's collectives have a lane of their own */
};

/* On every rank of `all`, at the same point.  Errors as of hzp_link_split and hzp_rank_link_open;
 * *ret, which was zeroed, is then to be closed. */
int hzp_axes_open(const struct hzp_axes_config *config, struct hzp_axes *ret,
                  struct hzp_err_text *reterr);

/* How many of them move the device's memory. */
int32_t hzp_axes_count(const struct hzp_axes *axes);

/* Steps and collectives look whether they have failed, so that lanes do not wait for ever. */
void hzp_axes_check(struct hzp_axes *axes);

/* close_steps: the links of steps and collectives, which nothing uses any more; close: the others.
 * No effect on what is closed already. */
void hzp_axes_close_steps(struct hzp_axes *axes);
void hzp_axes_close(struct hzp_axes *axes);
