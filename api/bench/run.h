/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/run.h - runs one benchmark by name: the machine's limits, an engine as the benchmark
 * needs it, its figures, the limits again.
 *
 * Thread: the command's own.
 */
#ifndef HZP_API_BENCH_RUN_H
#define HZP_API_BENCH_RUN_H

#include "api/bench/settings.h"
#include "api/engine/settings.h"

/* Prints the figures, as text or JSON, on standard output.  HZP_EINVAL: no such benchmark, or its
 * settings do not fit; else what the benchmark says. */
int hzp_bench_run(const struct hzp_bench_settings *settings,
                  const struct hzp_engine_settings *engine, struct hzp_err_text *reterr);

#endif
