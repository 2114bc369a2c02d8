/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/record.h - what the ranks of a run must agree on: build, model, options.
 *
 * Thread: main.
 */
#pragma once

#include "api/cli/options.h"

/* Writes lines "name value\n" (see hzp_control_meet): the build; the command; the model as the
 * contents of config.json and the sizes, beginnings and ends of its weight files; and every option
 * of the command about model, training, learning and ranks, as its value is now.  Options about the
 * device, about serving and about where files lie may differ.  HZP_EIO: a file of the model cannot
 * be read; HZP_EINVAL: the record is longer than size. */
int hzp_options_record(const struct hzp_options *options, char *ret, size_t size,
                       struct hzp_err_text *reterr);
