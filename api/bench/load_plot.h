/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/load_plot.h - plots a load as an SVG file with three panels.
 *
 * Time to first token and inter-token latency as histograms over a logarithmic axis, with median
 * and 99th percentile marked, and the goals if set; below them, over time, the output tokens per
 * second and the requests in flight.
 *
 * Thread: one.
 */
#ifndef HZP_API_BENCH_LOAD_PLOT_H
#define HZP_API_BENCH_LOAD_PLOT_H

#include "api/bench/load_stats.h"

/* Writes the file; `title` is escaped, so it may contain any character.  The record must have gone
 * through hzp_load_summarise() (its ITLs are sorted).  HZP_EIO: the text names the file. */
int hzp_load_plot(const char *path, const char *title, const struct hzp_load_record *record,
                  const struct hzp_load_summary *summary, struct hzp_err_text *reterr);

#endif
