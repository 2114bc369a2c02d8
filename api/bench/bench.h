/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/bench.h - `hzpserve bench`: figures beside the machine's limits, measured in one run.
 *
 * A figure is printed as it is measured, with what the limit would allow, and kept for --json.
 * Limits are measured before and after, and the better of the two counts, because others may use
 * the machine: a figure near its limit then cannot be luck of the moment.
 *
 * Thread: the command's own; the engine runs on its thread as in a server.
 */
#ifndef HZP_API_BENCH_BENCH_H
#define HZP_API_BENCH_BENCH_H

#include "api/bench/settings.h"
#include "api/engine/engine.h"
#include "device/limits.h"

#include <jansson.h>

struct hzp_bench_reports;
struct hzp_bench_swapper;
struct hzp_bench_turns;

struct hzp_bench {
    const struct hzp_bench_settings *settings;
    const struct hzp_engine_settings *started; /* what the engine was started with */
    struct hzp_engine *engine;                 /* NULL for ops */
    struct hzp_limits limits;
    enum hzp_dtype act;                /* whose GEMM limit counts */
    struct hzp_bench_reports *reports; /* of the engine's updates (samples.h) */
    json_t *figures;                   /* array of objects */
    struct hzp_bench_swapper *swapper; /* of bench swap: the loop's third source */
    struct hzp_bench_turns *turns;     /* of bench coserve: its first */
    bool quick;
};

/* What a figure is held against. */
enum hzp_bench_base { HZP_BENCH_NONE, HZP_BENCH_READS, HZP_BENCH_GEMM, HZP_BENCH_OTHER };

/* One figure, kept until the end.  The machine would allow `share` of its base limit (bytes or
 * operations a second), or just `share` itself where the base is OTHER; `of` says of what. */
void hzp_bench_figure(struct hzp_bench *b, const char *name, double value, const char *unit,
                      enum hzp_bench_base base, double share, const char *of);

/* One without a limit. */
void hzp_bench_plain(struct hzp_bench *b, const char *name, double value, const char *unit);

/* Prints all figures, with the limits as known now. */
void hzp_bench_print(struct hzp_bench *b);

/* Where the time went, from the engine's profile; call after the engine has stopped. */
void hzp_bench_profile(struct hzp_bench *b, const struct hzp_profile *profile);

/* The benchmarks.  Negative: it failed and reterr says why. */
int hzp_bench_serve(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_train(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_coserve(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_swap(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_offline(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_ops(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_loop(struct hzp_bench *b, struct hzp_err_text *reterr);

/* A source that does nothing but publish versions; made before the engine starts. */
struct hzp_bench_swapper *hzp_bench_swapper_create(void);
void hzp_bench_swapper_destroy(struct hzp_bench_swapper *swapper); /* NULL: no effect */
struct hzp_source *hzp_bench_swapper_source(struct hzp_bench_swapper *swapper);

/* ---- what the benchmarks share ---- */

/* The p-th quantile (0 .. 1) of n values; sorts them.  NaN of none. */
double hzp_bench_quantile(double *value, int64_t n, double p);

/* Bytes of weights that one decoded token reads; multiply-adds of one row in matrix products. */
double hzp_bench_weight_bytes(const struct hzp_engine *engine);
double hzp_bench_row_macs(const struct hzp_model_config *config, bool head);

/* A client: submits requests of random tokens and waits for them. */
struct hzp_bench_client {
    struct hzp_bench *bench;
    struct hzp_wake *wake; /* poked by every output of its requests */
    uint32_t seed;
};
void hzp_bench_client_open(struct hzp_bench *b, struct hzp_bench_client *ret);
void hzp_bench_client_close(struct hzp_bench_client *client);
int hzp_bench_submit(struct hzp_bench_client *client, int32_t prompt, int32_t tokens,
                     struct hzp_request **ret, struct hzp_err_text *reterr);
void hzp_bench_wait(struct hzp_bench_client *client, struct hzp_request *rq);
/* All `count` into ret, or none: those before the one that was refused are called off, and
 * ended. */
int hzp_bench_submit_all(struct hzp_bench_client *client, int count, int32_t prompt, int32_t tokens,
                         struct hzp_request **ret, struct hzp_err_text *reterr);

/* Gaps between the tokens of a finished request, in seconds, appended; returns the new count. */
int64_t hzp_bench_gaps(const struct hzp_request *rq, double *gap, int64_t n, int64_t max);

#endif
