/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/samples.h - synthetic samples for the trainer of a running engine, and its reports.
 *
 * Thread: the command's own.
 */
#ifndef HZP_API_BENCH_SAMPLES_H
#define HZP_API_BENCH_SAMPLES_H

#include "api/bench/bench.h"

struct hzp_bench_samples {
    struct hzp_bench *bench;
    uint32_t seed;
    uint64_t seen; /* reports already taken */
};

void hzp_bench_samples_open(struct hzp_bench *b, struct hzp_bench_samples *ret);
void hzp_bench_samples_close(struct hzp_bench_samples *feed);

/* Queues `count` documents of `rows` rows each, every token learned.  What does not fit the queue
 * is not queued. */
void hzp_bench_samples_push(struct hzp_bench_samples *feed, int32_t count, int32_t rows);

/* Waits for the next update's report.  HZP_EDEVICE: the engine ended. */
int hzp_bench_samples_next(struct hzp_bench_samples *feed, struct hzp_update_report *ret,
                           struct hzp_err_text *reterr);

/* Where reports are kept from the engine's thread to the command's. */
struct hzp_bench_reports *hzp_bench_reports_create(void);
void hzp_bench_reports_destroy(struct hzp_bench_reports *reports); /* NULL: no effect */

/* What the engine of a bench calls after each update (hzp_engine_config.on_update);
 * ctx: the reports. */
void hzp_bench_on_update(void *ctx, const struct hzp_update_report *report);

#endif
