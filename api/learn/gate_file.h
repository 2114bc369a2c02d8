/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/gate_file.h - the held-out examples of --gate, and the bounds of --gate-max-rise.
 *
 * The file has one example a line, in the forms that bodies have (examples.h), with one more field:
 * "tag", a string, groups examples that have a bound of their own.
 *
 * The bounds are in nats per token: "0.02", or "0.02,safety=0,code=0.1": of all examples together,
 * and of those with these tags.
 *
 * Thread: any; constant once made.
 */
#pragma once

#include "api/learn/examples.h"
#include "train/conductor/trainer.h"

enum { HZP_GATE_TAGS_MAX = 64, HZP_GATE_TAG_BYTES = 64 };

struct hzp_gate_file;

/* HZP_EINVAL names the line, or what is wrong with the bounds; HZP_EIO, HZP_ENOENT the file. */
int hzp_gate_file_open(const struct hzp_examples *ex, const char *path, const char *rises,
                       struct hzp_gate_file **ret, struct hzp_err_text *reterr);
void hzp_gate_file_close(struct hzp_gate_file *file);                        /* NULL: no effect */
const struct hzp_gate *hzp_gate_file_gate(const struct hzp_gate_file *file); /* NULL: NULL */
