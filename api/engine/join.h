/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/join.h - a rank other than 0 of a group that computes each step together (group.h),
 * from its start to its end.
 *
 * It has device, weights and KV pages, and executes what rank 0 tells it (nanobatch/member.h).
 * With several groups the first rank of each but rank 0's hears rank 0's work over a link
 * (train/learner/by_link.h) and leads its group.  None has requests, a tokenizer or files of its
 * own.
 *
 * Thread: the one that calls; it becomes the engine's.
 */
#pragma once

#include "api/engine/assembly.h"

/* HZP_OK: rank 0 has ended in good order; errors of hzp_assembly_open and hzp_member_run. */
int hzp_group_join(const struct hzp_engine_settings *settings, struct hzp_link *link,
                   struct hzp_err_text *reterr);
