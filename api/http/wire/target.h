/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/target.h - reads the target of a request line: /PATH?QUERY or
 * http://HOST/PATH?QUERY.
 *
 * The HTTP library makes a record of each argument in the connection's memory, of which it runs
 * out after a few hundred, and takes the absolute form for a path.  So targets are read here, and
 * the library sees none of the arguments.
 *
 * Thread: any.
 */
#pragma once

#include "base/base.h"

struct hzp_target {
    const char *fault; /* what is wrong with it, for the answer; NULL: nothing */
    const char *host;  /* the absolute form's, which counts in place of Host; NULL: none */
    const char *path;  /* decoded */
    const char *query; /* as sent, behind the ?; "": none */
    const char
        *arguments; /* name and value in turn, decoded, each ended by a NUL; "" for the end */
};

/* Takes copies of what it needs; free() frees it.  NULL: no memory. */
struct hzp_target *hzp_target_read(const char *text);

/* The value of the first argument of this name; NULL: none has it, or it has no value. */
const char *hzp_target_argument(const struct hzp_target *target, const char *name);
