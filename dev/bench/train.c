/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/train.c - measures full AdamW updates of 4 x 512 tokens, all of them learned.
 *
 * With --kv-memory the engine takes a server's memory: the KV cache and --slots versions of the
 * weights, which shows that both fit together.
 */
#include "dev/bench/bench.h"
#include "dev/bench/samples.h"

#include <stdio.h>
#include <string.h>

static void tell_memory(struct hzp_bench *b)
{
    const struct hzp_memory_plan *plan = &b->engine->parts.plan;
    for (int i = 0; i < plan->lines; i++)
        if (!strcmp(plan->line[i].what, "KV cache"))
            hzp_bench_plain(b, "memory: KV cache", (double)plan->line[i].bytes * 1e-9, "GB");
    hzp_bench_plain(b, "memory: versions", plan->slots, "");
    hzp_bench_plain(b, "memory: planned", (double)plan->total * 1e-9, "GB");
    hzp_bench_plain(b, "memory: available", (double)plan->limit * 1e-9, "GB");
}

int hzp_bench_train(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    enum { UPDATES_MAX = 16 };
    double seconds[UPDATES_MAX];
    int updates = b->quick ? 2 : 6;
    if (!b->engine->parts.trainer)
        return hzp_fail(reterr, HZP_EINVAL, "bench train: the engine has no trainer (--no-train)");
    if (b->started->model.context && b->started->model.context < 513)
        return hzp_fail_param(reterr, HZP_EINVAL, "--context",
                              "bench train: documents have 513 tokens, --context is %lld",
                              (long long)b->started->model.context);
    struct hzp_bench_samples feed;
    hzp_bench_samples_open(b, &feed);
    int32_t rows = 0;
    /* The first update is not counted: it includes page faults and the creation of primitives. */
    for (int i = -1; i < updates; i++) {
        struct hzp_update_report report;
        hzp_bench_samples_push(&feed, 4, HZP_MIN(512, b->engine->parts.plan.recipe.micro_rows));
        int r = hzp_bench_samples_next(&feed, &report, reterr);
        if (r < 0) {
            hzp_bench_samples_close(&feed);
            return r;
        }
        rows = report.rows;
        if (i >= 0)
            seconds[i] = (double)report.wall_ns * 1e-9;
    }
    hzp_bench_samples_close(&feed);
    double median = hzp_bench_quantile(seconds, updates, 0.5);
    const struct hzp_engine *e = b->engine;
    double flops = 6 * hzp_bench_row_macs(&e->parts.config, true);
    char name[64];
    snprintf(name, sizeof(name), "training, updates of %d tokens", rows);
    hzp_bench_figure(b, name, rows / median, "tokens/s", HZP_BENCH_GEMM, 1 / flops,
                     "GEMM peak / 6 N");
    hzp_bench_plain(b, "seconds an update", median, "s");
    tell_memory(b);
    return HZP_OK;
}
