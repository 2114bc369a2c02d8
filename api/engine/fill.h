/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/fill.h - fills the first version with a model directory's weights or with noise.
 *
 * Both functions fill a draft of the store (weights/versions.h) and the host fields of its record:
 * loss NaN, learned_through -1.  The caller quantizes and publishes the draft, or abandons it after
 * an error.
 *
 * Thread: the device's.
 */
#pragma once

#include "nanobatch/loop.h"
#include "serve/kvpool.h"
#include "train/learner/learner.h"

/* Loads dir's weights and sets the record's checksum.  With HZP_NOISE=1 in the environment: noise
 * instead.  Errors: those of hzp_model_load; HZP_ENOMEM; HZP_EDEVICE. */
int hzp_fill_load(struct hzp_weights *weights, struct hzp_version *draft, const char *dir,
                  struct hzp_err_text *reterr);

/* For measurements: normal noise with standard deviation 0.02, generated on the device, identical
 * on every device; norm weights are 1.  HZP_ENOMEM, HZP_EDEVICE. */
int hzp_fill_noise(struct hzp_weights *weights, struct hzp_version *draft);

/* The last phase of the start: steps of serving and products of training are run once, before a
 * request arrives, or the first update begins: hzp_loop_warm_up, with the products of the learner's
 * micro-batches where the device chooses algorithms for them.  pool NULL: nothing serves; learner
 * NULL: nothing is learned. */
int hzp_warm_up(struct hzp_loop *loop, struct hzp_kvpool *pool, struct hzp_learner *learner,
                const struct hzp_device *dev);
