/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/samples.h - synthetic samples for the trainer of a running engine, and its reports.
 *
 * Thread: the command's.
 */
#pragma once

#include "dev/bench/bench.h"

struct hzp_bench_samples {
    struct hzp_bench *bench;
    uint32_t seed;
    uint64_t seen; /* number of reports already read */
};

/* Reports of updates that ended before are not told; the bench is borrowed. */
void hzp_bench_samples_open(struct hzp_bench *b, struct hzp_bench_samples *ret);
void hzp_bench_samples_close(struct hzp_bench_samples *feed);

/* Queues `count` documents of `rows` rows each, with every token learned.  Documents that do not
 * fit the queue are dropped. */
void hzp_bench_samples_push(struct hzp_bench_samples *feed, int32_t count, int32_t rows);

/* Waits for the next update's report.  HZP_EDEVICE: the engine has stopped. */
int hzp_bench_samples_next(struct hzp_bench_samples *feed, struct hzp_update_report *ret,
                           struct hzp_err_text *reterr);

/* A buffer that passes reports from the engine's thread to the command's. */
struct hzp_bench_reports *hzp_bench_reports_create(void);
void hzp_bench_reports_destroy(struct hzp_bench_reports *reports); /* NULL: no effect */

/* Called after each update of a benchmark's engine (hzp_engine_config.on_update); ctx: the
 * reports. */
void hzp_bench_on_update(void *ctx, const struct hzp_update_report *report);
