/* SPDX-License-Identifier: Apache-2.0 */
/* base/json_file.h - reads a JSON file, such as one of a model directory, with bounds.
 *
 * Size and nesting are bounded; files that are not regular are rejected.  A hostile directory can
 * cause an error message and nothing else.  Files are read as Python's json reads them: NaN and
 * infinity are numbers (base/json.h).
 *
 * Thread: any.
 */
#pragma once

#include "base/err.h"
#include "base/json.h"

/* Reads the file's one JSON object; the caller calls json_decref on it.  size_max in bytes; flags:
 * HZP_JSON_UNIQUE or 0.  HZP_ENOENT, HZP_EIO, HZP_EFORMAT (with line and reason). */
int hzp_json_read(const char *path, size_t size_max, int flags, json_t **ret,
                  struct hzp_err_text *reterr);
