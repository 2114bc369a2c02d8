/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/bundled.h - where the bundled model is, and what a model cannot be.
 *
 * Thread: main.
 */
#pragma once

#include "base/err.h"

/* Looks beside the program: ../share/hzpserve/models/world of an installation, or ../models/world
 * of a build folder in the source tree.  False: in neither place is a config.json. */
bool hzp_bundled_model(char *ret_dir, size_t size);

/* Whether the name may be that of a model directory.  HZP_EINVAL: it is a file of weights, or looks
 * like a name of a model elsewhere, and the text says what to do. */
int hzp_model_check(const char *name, struct hzp_err_text *reterr);
