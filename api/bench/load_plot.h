/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/load_plot.h - a load as a picture: an SVG file with three panels.
 *
 * Time to first token and inter-token latency as histograms over a logarithmic axis, with median
 * and 99th percentile marked, and the goals where some are set; below, over the time of the load,
 * the tokens that came each second and the requests in flight.
 *
 * Thread: one.
 */
#ifndef HZP_API_BENCH_LOAD_PLOT_H
#define HZP_API_BENCH_LOAD_PLOT_H

#include "api/bench/load_stats.h"

/* Writes the file; `title` is put into it as text, whatever characters it has.  The record is one
 * that hzp_load_summarise() has seen (its gaps are sorted).  HZP_EIO: the text names the file. */
int hzp_load_plot(const char *path, const char *title, const struct hzp_load_record *record,
                  const struct hzp_load_summary *summary, struct hzp_err_text *reterr);

#endif
