/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/replay.h - `hzpserve bench replay`: sends a recorded or synthetic load to a running
 * server.
 *
 * Thread: the command's.
 */
#pragma once

#include "api/cli/options.h"
#include "base/err.h"

/* Prints the report, or JSON, and writes the plot.  HZP_EINVAL: an option; HZP_EIO: no server, or
 * no request was answered; errors of the trace: see dev/bench/trace_file.h. */
int hzp_bench_replay(const struct hzp_load_settings *settings, struct hzp_err_text *reterr);
