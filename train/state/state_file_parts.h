/* SPDX-License-Identifier: Apache-2.0 */
/* train/state/state_file_parts.h - what the files that implement state_file.h share.
 *
 * Thread: as state_file.h.
 */
#pragma once

#include "train/state/state_file.h"
#include "weights/safetensors.h"

#define HZP_STATE_FORMAT "hzpserve-trainer-1"

/* The data type of a state's units on disk. */
enum hzp_disk_type hzp_state_disk_type(const struct hzp_units *units);
/* HZP_EINVAL, naming the field: the file was written with another recipe; all false: only the
 * moments' type counts. */
int hzp_state_compare_recipe(const struct hzp_recipe *recipe, const struct hzp_safetensors *st,
                             const char *path, bool all, struct hzp_err_text *reterr);
