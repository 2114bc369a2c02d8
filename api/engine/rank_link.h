/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/rank_link.h - which GPU a rank computes on, and the link that moves its memory.
 *
 * Ranks meet on a link of host memory (mesh).  On CPUs that link moves everything.  On GPUs a
 * link by NCCL is opened over it: parameters, gradients and the optimizer's state go from one
 * device's memory to another's, small messages and NCCL's unique id over the link of host memory.
 *
 * All functions are called by all ranks at the same point of their start.
 *
 * Thread: engine.
 */
#pragma once

#include "api/engine/settings.h"

/* joins: rank 0 runs already and calls none of these: nothing is exchanged. */

/* The number of the GPU, among those that this process sees (CUDA_VISIBLE_DEVICES), that this rank
 * opens if it opens one: that of the rank on its machine, as the launcher says or counted in the
 * order of ranks; where it sees one GPU only, that.  0 where the settings name another device.
 * HZP_EINVAL: there are more ranks than GPUs; HZP_EIO: the link failed. */
int hzp_rank_device(struct hzp_link *host, const struct hzp_device_settings *settings, bool joins,
                    int *ret_ordinal, struct hzp_err_text *reterr);

/* What a link moves: transfers with tickets (sharded training), or one tenant's collectives of
 * plans that all ranks run together (--tensor; hzp_link_enqueue), which take what the device has,
 * or no more than a lane of their own. */
enum hzp_rank_use { HZP_RANK_TRANSFERS, HZP_RANK_STEPS, HZP_RANK_LANE };

/* The link for dev's memory: for transfers host itself, or a new one over it; for steps always a
 * new one, split off host or over it. The caller closes a new one before dev and host. Two ranks on
 * one GPU are refused, because NCCL does; with HZP_RANKS_ONE_GPU=1 in the environment, for tests,
 * each is told that it is a machine of its own (NCCL_HOSTID). HZP_EINVAL: that, another kind of
 * device on another rank, or settings->link does not fit the device; HZP_EUNSUP: with joins on a
 * GPU, or as hzp_link_open_nccl; HZP_EIO. */
int hzp_rank_link_open(struct hzp_link *host, struct hzp_device *dev,
                       const struct hzp_ranks_settings *settings, bool joins, enum hzp_rank_use use,
                       struct hzp_link **ret, struct hzp_err_text *reterr);
