/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/offline.c - how many tokens a second when nothing but throughput counts: --requests of
 * --input-len random tokens, --output-len answered, as many at once as run.
 *
 * Prompts count as tokens of their own in the total, as is usual.  What the machine would allow is
 * its product's peak over twice the weights, as if nothing but weights' products were computed.
 */
#include "api/bench/bench.h"

#include "base/arena.h"
#include "base/thread.h"

#include <stdlib.h>

enum { GAPS_MAX = 1 << 20 };

struct offline {
    struct hzp_bench_client client;
    struct hzp_request **live;
    int32_t lives;
    int64_t left; /* to be submitted */
    double *gap;
    int64_t gaps;
};

static int fill(struct hzp_bench *b, struct offline *o, struct hzp_err_text *reterr)
{
    const struct hzp_options *options = b->options;
    int64_t most = options->running_max + HZP_MIN(options->waiting_max, options->running_max / 4);
    while (o->lives < most && o->left > 0) {
        HZP_TRY(hzp_bench_submit(&o->client, (int32_t)options->load_input,
                                 (int32_t)options->load_output, &o->live[o->lives], reterr));
        o->lives++;
        o->left--;
    }
    return HZP_OK;
}

static void harvest(struct offline *o)
{
    for (int32_t i = 0; i < o->lives;) {
        if (!hzp_request_final(o->live[i])) {
            i++;
            continue;
        }
        o->gaps = hzp_bench_gaps(o->live[i], o->gap, o->gaps, GAPS_MAX);
        hzp_request_destroy(o->live[i]);
        o->live[i] = o->live[--o->lives];
    }
}

int hzp_bench_offline(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    const struct hzp_options *options = b->options;
    struct offline o = {.left = options->load_requests};
    int64_t positions = b->engine->plan.positions;
    if (options->load_input < 1 || options->load_input + options->load_output > positions)
        return hzp_fail_param(reterr, HZP_EINVAL, "--input-len",
                              "bench offline: --input-len %lld and --output-len %lld, a sequence "
                              "has %lld tokens at most",
                              (long long)options->load_input, (long long)options->load_output,
                              (long long)positions);
    o.live = hzp_xcalloc((size_t)(2 * options->running_max), sizeof(struct hzp_request *));
    o.gap = hzp_xmalloc(GAPS_MAX * sizeof(*o.gap));
    hzp_bench_client_open(b, &o.client);
    uint64_t begin = hzp_now_ns();
    int r = fill(b, &o, reterr);
    while (o.lives > 0) {
        hzp_wake_wait(o.client.wake, 1000000000);
        harvest(&o);
        if (r == HZP_OK)
            r = fill(b, &o, reterr);
    }
    double seconds = (double)(hzp_now_ns() - begin) * 1e-9;
    hzp_bench_client_close(&o.client);
    if (r == HZP_OK) {
        double requests = (double)options->load_requests;
        double flops = 2 * hzp_bench_row_macs(&b->engine->model_config, true);
        hzp_bench_figure(b, "offline, prompts and answers",
                         requests * (double)(options->load_input + options->load_output) / seconds,
                         "tokens/s", HZP_BENCH_GEMM, 1 / flops, "GEMM peak / 2 N");
        hzp_bench_plain(b, "offline, answers", requests * (double)options->load_output / seconds,
                        "tokens/s");
        hzp_bench_plain(b, "offline, all of it", seconds, "s");
        hzp_bench_plain(b, "between tokens, median",
                        1e3 * hzp_bench_quantile(o.gap, o.gaps, 0.5), "ms");
        hzp_bench_plain(b, "between tokens, p99", 1e3 * hzp_bench_quantile(o.gap, o.gaps, 0.99),
                        "ms");
    }
    free(o.gap);
    free(o.live);
    return r;
}
