/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/warm.h - the last phase of the start: steps of serving and products of training
 * are run once, before a request arrives, or the first update begins.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/loop.h"
#include "serve/kvpool.h"
#include "train/learner/learner.h"

/* hzp_loop_warm_up, with the products of the learner's micro-batches where the device chooses
 * algorithms for them.  pool NULL: nothing serves; learner NULL: nothing is learned. */
int hzp_warm_up(struct hzp_loop *loop, struct hzp_kvpool *pool, struct hzp_learner *learner,
                const struct hzp_device *dev);
