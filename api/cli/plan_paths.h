/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/plan_paths.h - `hzpserve plan FILE.json`: paths of micro-batches over slow links, from a
 * file of nodes and links (docs/OPERATIONS.md).
 *
 * Thread: the command's. */
#pragma once

#include "base/err.h"

/* Whether the word names such a file: NULL does not. */
bool hzp_is_paths_file(const char *word);

/* Prints paths, the order of each node, and the seconds beside those of the full pipeline.
 * HZP_EINVAL, HZP_EFORMAT, HZP_ENOENT, HZP_EIO, HZP_ENOMEM: the text names the file's member. */
int hzp_plan_paths(const char *file, struct hzp_err_text *reterr);
