/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/bundled.h - where the bundled model is.
 *
 * Thread: main.
 */
#ifndef HZP_API_CLI_BUNDLED_H
#define HZP_API_CLI_BUNDLED_H

#include <stdbool.h>
#include <stddef.h>

/* Looks beside the program: ../share/hzpserve/models/world of an installation, or ../models/world
 * of a build folder in the source tree.  False: in neither place is a config.json. */
bool hzp_bundled_model(char *ret_dir, size_t size);

#endif
