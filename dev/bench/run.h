/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/run.h - runs one benchmark by name: measures the machine's limits, starts an engine as
 * the benchmark needs it, runs the benchmark, and measures the limits again.
 *
 * Thread: the command's.
 */
#pragma once

#include "api/cli/options.h"
#include "api/engine/settings.h"

/* Prints the figures, as text or JSON, on standard output.  HZP_EINVAL: no such benchmark, or its
 * settings are invalid; or the benchmark's error. */
int hzp_bench_run(const struct hzp_bench_settings *settings,
                  const struct hzp_engine_settings *engine, struct hzp_err_text *reterr);
