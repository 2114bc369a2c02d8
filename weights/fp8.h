/* SPDX-License-Identifier: Apache-2.0 */
/* weights/fp8.h - quantizes a version's projections to e4m3; serving multiplies by those under
 * --quantization fp8.
 *
 * The codes are a function of the version's bits alone, so they are neither audited nor saved nor
 * journalled.  weights/fp8_layout.h defines their places; the store owns their memory.
 *
 * Invariant: a published version has all of them (hzp_weights_publish asserts it): they are made
 * when a version is loaded, and by the last items of an update's chain.
 *
 * Thread: engine.
 */
#pragma once

#include "weights/versions.h"

/* Quantizes a loaded draft's weights, on a lane opened for that, and waits. No effect if the store
 * keeps no fp8 weights.  HZP_EDEVICE, HZP_ENOMEM. */
int hzp_version_quantize(struct hzp_weights *w, struct hzp_version *draft);
