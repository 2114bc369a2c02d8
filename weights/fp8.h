/* SPDX-License-Identifier: Apache-2.0 */
/* weights/fp8.h - a version's projections once more, in e4m3 with a scale a row: what serving
 * multiplies by under --quantization fp8.
 *
 * Of each layer, one after another: the codes of HZP_QKV, HZP_O, HZP_GATE_UP, HZP_DOWN, each
 * [rows][cols] as in the version and beginning at a multiple of 64 bytes, then their scales in the
 * same order. Embedding and head are read as they are.  The codes follow from the version's bits
 * alone, so nothing of them is checked, saved or journalled.
 *
 * Invariant: a published version has them, whole (hzp_weights_publish asserts it): they are made
 * when a version is loaded, and by the last items of an update's chain, before either may be
 * published.
 *
 * Thread: any; hzp_version_quantize: engine.
 */
#ifndef HZP_WEIGHTS_FP8_H
#define HZP_WEIGHTS_FP8_H

#include "weights/versions.h"

/* The roles in order. */
enum { HZP_FP8_ROLES = 4 };
extern const enum hzp_role hzp_fp8_role[HZP_FP8_ROLES];

/* Bytes of one version's codes and scales: for the memory plan. */
size_t hzp_fp8_bytes(const struct hzp_layout *layout);

/* The codes of a role of a layer over base, [rows][cols] E4M3; *ret_scale [rows]. */
struct hzp_mat hzp_fp8_mat(const struct hzp_layout *layout, void *base, enum hzp_role role,
                           int32_t layer, float **ret_scale);

/* The same of a version whose store has them. */
struct hzp_mat hzp_version_fp8(const struct hzp_weights *w, const struct hzp_version *v,
                               enum hzp_role role, int32_t layer, float **ret_scale);

/* Makes a draft's from its weights, on a lane of its own, and waits: for what was loaded.  No
 * effect where the store keeps none.  HZP_EDEVICE, HZP_ENOMEM. */
int hzp_version_quantize(struct hzp_weights *w, struct hzp_version *draft);

#endif
