/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja/limits.h - the bounds of one rendering of a chat template.
 *
 * Thread: any.
 */
#pragma once

#include "base/base.h"

struct hzp_jinja_limits {
    int64_t steps;       /* evaluated nodes; a string operation counts one for each 32 bytes */
    size_t memory_bytes; /* for values made on the way */
    size_t output_bytes;
};

/* The bounds that serving uses. */
extern const struct hzp_jinja_limits hzp_jinja_limits;
