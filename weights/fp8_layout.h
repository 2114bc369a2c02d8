/* SPDX-License-Identifier: Apache-2.0 */
/* weights/fp8_layout.h - the memory layout of a layer's e4m3 projections.
 *
 * For each layer: the codes of HZP_QKV, HZP_O, HZP_GATE_UP, HZP_DOWN, each [rows][cols] as in the
 * version and aligned to 64 bytes, then their scales, one F32 per row, in the same order.
 * Embedding and head have none: they are read in the version's own type.
 *
 * Thread: any.
 */
#pragma once

#include "weights/layout.h"

/* The roles that have e4m3 codes, in the layout's order. */
enum { HZP_FP8_ROLES = 4 };
extern const enum hzp_role hzp_fp8_role[HZP_FP8_ROLES];

/* Bytes of a layer's codes and scales: a multiple of 256. */
size_t hzp_fp8_layer_bytes(const struct hzp_layout *layout, int32_t layer);

/* Bytes of all layers: for the memory plan. */
size_t hzp_fp8_bytes(const struct hzp_layout *layout);

/* The codes of a role of a layer, [rows][cols] E4M3. base: where the codes and scales of this layer
 * begin; *ret_scale [rows]. */
struct hzp_mat hzp_fp8_mat(const struct hzp_layout *layout, void *base, enum hzp_role role,
                           int32_t layer, float **ret_scale);
