/* SPDX-License-Identifier: Apache-2.0 */
/* weights/json_file.h - reads a JSON file of a model directory, with bounds.
 *
 * Size and nesting are bounded; duplicate keys and files that are not regular are rejected. A
 * hostile directory can cause an error message and nothing else.  Files are read as Python's json
 * reads them: NaN and infinity are numbers (base/json.h).
 *
 * Thread: any.
 */
#ifndef HZP_WEIGHTS_JSON_FILE_H
#define HZP_WEIGHTS_JSON_FILE_H

#include "base/err.h"
#include "base/json.h"

/* Opens a regular file for reading; *ret_size is its size in bytes.  Returns the descriptor, which
 * the caller closes, or HZP_ENOENT, HZP_EIO (also for a directory or a pipe). */
int hzp_open_regular(const char *path, uint64_t *ret_size, struct hzp_err_text *reterr);

/* Reads the file's one JSON object; the caller calls json_decref on it.  size_max in bytes.
 * HZP_ENOENT, HZP_EIO, HZP_EFORMAT (with line and reason). */
int hzp_json_read(const char *path, size_t size_max, json_t **ret, struct hzp_err_text *reterr);

#endif
