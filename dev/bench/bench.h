/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/bench.h - `hzpserve bench`: measures figures and compares them with the machine's
 * limits, measured in the same run.
 *
 * Figures are kept until the end and then printed with their limits, as text or JSON. Limits are
 * measured before and after the benchmark and the better of the two counts, because other load on
 * the machine could otherwise make a limit too low and a figure's share of it too high.
 *
 * Thread: the command's; the engine runs on its own thread, as in a server.
 */
#pragma once

#include "api/cli/options.h"
#include "api/engine/engine.h"
#include "dev/bench/limits.h"

#include "base/json.h"

struct hzp_bench_reports;
struct hzp_bench_swapper;
struct hzp_bench_turns;

struct hzp_bench {
    const struct hzp_bench_settings *settings;
    const struct hzp_engine_settings *started; /* the settings the engine was started with */
    struct hzp_engine *engine;                 /* NULL for ops and start */
    struct hzp_limits limits;
    enum hzp_dtype act;                /* data type whose GEMM limit applies */
    struct hzp_bench_reports *reports; /* reports of the engine's updates (samples.h) */
    json_t *figures;                   /* array of objects */
    struct hzp_bench_swapper *swapper; /* bench swap: the loop's third source */
    struct hzp_bench_turns *turns;     /* bench coserve: the loop's first source */
    bool quick;
    char verdict[1024]; /* printed last, to standard error; "": none */
};

/* The limit that a figure is compared with. */
enum hzp_bench_base { HZP_BENCH_NONE, HZP_BENCH_READS, HZP_BENCH_GEMM, HZP_BENCH_OTHER };

/* Records one figure.  Its limit is `share` times the base limit (bytes or operations per second),
 * or `share` itself if the base is OTHER; `of` describes the limit. */
void hzp_bench_figure(struct hzp_bench *b, const char *name, double value, const char *unit,
                      enum hzp_bench_base base, double share, const char *of);

/* Records a figure without a limit. */
void hzp_bench_plain(struct hzp_bench *b, const char *name, double value, const char *unit);

/* Prints all figures with the limits known now. */
void hzp_bench_print(struct hzp_bench *b);

/* Prints the time per op from the engine's profile; call after the engine has stopped. */
void hzp_bench_profile(struct hzp_bench *b, const struct hzp_profile *profile);

/* Records how often the device took a slower way, a figure for each kind that happened. */
void hzp_bench_fallbacks(struct hzp_bench *b, const struct hzp_device *dev);

/* The benchmarks.  Negative: the benchmark failed and reterr says why. */
int hzp_bench_serve(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_train(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_coserve(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_swap(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_offline(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_ops(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_loop(struct hzp_bench *b, struct hzp_err_text *reterr);
int hzp_bench_start(struct hzp_bench *b, struct hzp_err_text *reterr);

/* A source that only publishes versions; created before the engine starts. */
struct hzp_bench_swapper *hzp_bench_swapper_create(void);
void hzp_bench_swapper_destroy(struct hzp_bench_swapper *swapper); /* NULL: no effect */
struct hzp_source *hzp_bench_swapper_source(struct hzp_bench_swapper *swapper);

/* ---- shared by the benchmarks ---- */

/* The p-th quantile (0 .. 1) of n values, which it sorts.  NaN if n is 0. */
double hzp_bench_quantile(double *value, int64_t n, double p);

/* Bytes of weights read per decoded token; multiply-adds of matrix products per row. */
double hzp_bench_weight_bytes(const struct hzp_engine *engine);
double hzp_bench_row_macs(const struct hzp_model_config *config, bool head);

/* A client: submits requests of random tokens and waits for them. */
struct hzp_bench_client {
    struct hzp_bench *bench;
    struct hzp_wake *wake; /* poked by every output of its requests */
    uint32_t seed;
    enum hzp_consistency mode; /* its requests' mode; `continue` when opened */
};
/* A client without requests; close it before the bench, when its requests have been waited for. */
void hzp_bench_client_open(struct hzp_bench *b, struct hzp_bench_client *ret);
void hzp_bench_client_close(struct hzp_bench_client *client);
/* A request of `prompt` random tokens for exactly `tokens` more; the caller destroys *ret when it
 * has been waited for.  Errors as hzp_scheduler_submit. */
int hzp_bench_submit(struct hzp_bench_client *client, int32_t prompt, int32_t tokens,
                     struct hzp_request **ret, struct hzp_err_text *reterr);
/* Until the request is in a final state. */
void hzp_bench_wait(struct hzp_bench_client *client, struct hzp_request *rq);
/* Submits all `count` requests into ret, or none: if one is refused, those submitted before it are
 * canceled and destroyed. */
int hzp_bench_submit_all(struct hzp_bench_client *client, int count, int32_t prompt, int32_t tokens,
                         struct hzp_request **ret, struct hzp_err_text *reterr);

/* Appends the inter-token latencies of a finished request, in seconds; returns the new count. */
int64_t hzp_bench_itls(const struct hzp_request *rq, double *itl, int64_t n, int64_t max);
