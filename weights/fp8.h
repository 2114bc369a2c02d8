/* SPDX-License-Identifier: Apache-2.0 */
/* weights/fp8.h - makes a version's e4m3 projections, which serving multiplies by under
 * --quantization fp8.
 *
 * The codes follow from the version's bits alone, so they are neither audited nor saved nor
 * journalled.  weights/fp8_layout.h defines their places; the store owns their memory.
 *
 * Invariant: a published version has all of them (hzp_weights_publish asserts it): they are made
 * when a version is loaded, and by the last items of an update's chain.
 *
 * Thread: engine.
 */
#ifndef HZP_WEIGHTS_FP8_H
#define HZP_WEIGHTS_FP8_H

#include "weights/versions.h"

/* Makes a draft's from its weights, on a lane of its own, and waits: for a draft that was loaded.
 * No effect if the store keeps none.  HZP_EDEVICE, HZP_ENOMEM. */
int hzp_version_quantize(struct hzp_weights *w, struct hzp_version *draft);

#endif
