/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/stage_paths.h - which stages (weights/groups.h) each micro-batch of an update
 * visits, where --skip leaves some out: the planner's paths (mesh/paths/paths.h) as layers.
 *
 * Stage 0, which has the first layers and both ends of the model, is on every path, first, and at
 * last as its head.  The others are left out equally often: what one update's micro-batches cannot
 * share evenly the next ones make even, as long as updates have equally many of them.
 *
 * Paths follow from the recipe, the layout, the stages' speeds, the stated link and the number of
 * the update: an update that is repeated after a lost rank has the same, unless the speeds are
 * measured (--shard speeds=measured) and have changed.  The fastest stage is taken to compute 50
 * GFLOP/s; without --link-throttle links have 125 MB/s and 1 ms, those of a gigabit network.
 *
 * Thread: one at a time.
 */
#pragma once

#include "nanobatch/model/stage_order.h"
#include "train/state/recipe.h"

struct hzp_stage_paths;

/* Borrows the layout.  link_rate: bytes a second; 0: not stated.  HZP_EINVAL: more stages than a
 * path may have, or a skip that leaves out none of them, or all but one. */
int hzp_stage_paths_create(const struct hzp_recipe *recipe, const struct hzp_shards *shards,
                           const struct hzp_layout *layout, double link_rate, double latency_s,
                           struct hzp_stage_paths **ret, struct hzp_err_text *reterr);
void hzp_stage_paths_destroy(struct hzp_stage_paths *p); /* NULL: no effect */

/* The layers of micro-batch `micro` of `micros` of an update, from 1. */
void hzp_stage_paths_deal(struct hzp_stage_paths *p, int64_t update, int32_t micros, int32_t micro,
                          struct hzp_path *ret);
