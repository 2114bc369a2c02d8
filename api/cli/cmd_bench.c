/* SPDX-License-Identifier: Apache-2.0 */
#include "api/bench/bench.h"
#include "api/bench/replay.h"
#include "api/bench/samples.h"
#include "api/bench/turns.h"
#include "api/cli/commands.h"

#include "nanobatch/run/exec.h"

#include <stdlib.h>
#include <string.h>

struct what {
    const char *name;
    int (*run)(struct hzp_bench *b, struct hzp_err_text *reterr);
    bool engine, trains;
    int slots; /* 1: updates are written in place, as offline training does */
};

static const struct what all[] = {
    {"serve", hzp_bench_serve, true, false, 1},     {"train", hzp_bench_train, true, true, 1},
    {"coserve", hzp_bench_coserve, true, true, 2},  {"swap", hzp_bench_swap, true, false, 2},
    {"offline", hzp_bench_offline, true, false, 1}, {"ops", hzp_bench_ops, false, false, 0},
    {"loop", hzp_bench_loop, true, false, 1},
};

static const struct what *find(const char *name, struct hzp_err_text *reterr)
{
    for (int i = 0; name && i < HZP_COUNT(all); i++)
        if (!strcmp(all[i].name, name))
            return &all[i];
    hzp_fail(reterr, HZP_EINVAL,
             "bench: '%s' is none of serve, train, coserve, swap, offline, ops, loop, replay",
             name ? name : "");
    return NULL;
}

/* Keeps the better of what is known and what is measured now. */
static int measure_limits(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    const struct hzp_options *o = b->options;
    struct hzp_device_config config = {
        .name = o->device, .threads = (int)o->threads, .level = o->cpu_level};
    struct hzp_device *dev;
    struct hzp_limits now = {0};
    HZP_TRY(hzp_device_open(&config, &dev, reterr));
    int r = hzp_device_limits(dev, &now);
    if (!b->options->json && b->limits.read_bytes_per_s == 0)
        printf("%s\n", dev->label);
    hzp_device_close(dev);
    if (r < 0 && r != HZP_EUNSUP)
        return hzp_fail(reterr, r, "bench: the machine's limits cannot be measured");
    b->limits.read_bytes_per_s = HZP_MAX(b->limits.read_bytes_per_s, now.read_bytes_per_s);
    b->limits.gemm_f32 = HZP_MAX(b->limits.gemm_f32, now.gemm_f32);
    b->limits.gemm_bf16 = HZP_MAX(b->limits.gemm_bf16, now.gemm_bf16);
    return HZP_OK;
}

static void show_limits(struct hzp_bench *b)
{
    hzp_bench_plain(b, "limit: read bandwidth", b->limits.read_bytes_per_s * 1e-9, "GB/s");
    hzp_bench_plain(b, "limit: library GEMM, f32", b->limits.gemm_f32 * 1e-9, "GFLOP/s");
    if (b->limits.gemm_bf16 > b->limits.gemm_f32)
        hzp_bench_plain(b, "limit: library GEMM, bf16", b->limits.gemm_bf16 * 1e-9, "GFLOP/s");
    else /* the library has none of bf16, or widens */
        hzp_bench_plain(b, "limit: bf16 products, which run in f32 here", b->limits.gemm_f32 * 1e-9,
                        "GFLOP/s");
}

static int run_with_engine(struct hzp_bench *b, const struct what *what,
                           struct hzp_options *options, struct hzp_err_text *reterr)
{
    options->no_train = !what->trains;
    if (what->run != hzp_bench_train || !options->kv_memory)
        options->slots = what->slots;
    if (what->run == hzp_bench_train) {
        /* Four documents of 512 tokens, each with the one that is only a target; nobody serves. */
        options->update_tokens = 4 * 513;
        if (!options->kv_memory) {
            options->kv_tokens = 1024;
            options->context = 0;
        }
    } else if (what->run == hzp_bench_loop) {
        options->running_max = 512;
        options->step_rows = HZP_MAX(options->step_rows, 640);
        options->waiting_max = HZP_MAX(options->waiting_max, 512);
        options->context = options->context ? options->context : 256;
    } else if (what->run == hzp_bench_coserve) {
        options->running_max = options->load_concurrency ? options->load_concurrency : 8;
    }
    options->state_dir = "none";
    b->reports = hzp_bench_reports_create();
    b->swapper = hzp_bench_swapper_create();
    b->turns = hzp_bench_turns_create();
    struct hzp_engine_config config = {
        .options = options,
        .quiet = options->json != 0,
        .on_update = hzp_bench_on_update,
        .ctx = b->reports,
        .source = hzp_bench_swapper_source(b->swapper),
        .first = hzp_bench_turns_source(b->turns),
    };
    int r = hzp_engine_start(&config, &b->engine, reterr);
    if (r == HZP_OK) {
        b->act = b->engine->plan.dtype;
        r = what->run(b, reterr);
        hzp_engine_stop(b->engine, true);
        while (!hzp_engine_wait(b->engine, 1000000000)) {
        }
        if (r == HZP_OK)
            hzp_bench_profile(b, hzp_loop_profile(b->engine->loop));
        hzp_engine_finish(b->engine);
    }
    hzp_bench_swapper_destroy(b->swapper);
    hzp_bench_turns_destroy(b->turns);
    hzp_bench_reports_destroy(b->reports);
    return r;
}

static int bench(const struct hzp_options *given, struct hzp_err_text *reterr)
{
    struct hzp_options options = *given;
    bool coserve = options.what && !strcmp(options.what, "coserve");
    options.load_input = options.load_input ? options.load_input : coserve ? 32 : 512;
    options.load_output = options.load_output ? options.load_output : 128;
    if (options.what && !strcmp(options.what, "replay"))
        return hzp_bench_replay(&options, reterr);
    const struct what *what = find(options.what, reterr);
    if (!what)
        return HZP_EINVAL;
    if (!options.model)
        return hzp_fail(reterr, HZP_EINVAL, "bench %s: which model?", what->name);
    struct hzp_bench b = {
        .options = &options, .figures = json_array(), .quick = options.quick != 0};
    int r = measure_limits(&b, reterr);
    if (r == HZP_OK)
        r = what->engine ? run_with_engine(&b, what, &options, reterr) : what->run(&b, reterr);
    if (r == HZP_OK)
        r = measure_limits(&b, reterr);
    if (r == HZP_OK) {
        show_limits(&b);
        hzp_bench_print(&b);
    }
    if (r == HZP_OK && options.json) {
        json_t *all_of_it = json_pack("{s:s, s:s, s:O}", "bench", what->name, "model",
                                      options.model, "figures", b.figures);
        json_dumpf(all_of_it, stdout, JSON_INDENT(1));
        putchar('\n');
        json_decref(all_of_it);
    }
    json_decref(b.figures);
    return r;
}

int hzp_cmd_bench(const struct hzp_options *options)
{
    struct hzp_err_text err = {0};
    int r = bench(options, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text[0] ? err.text : hzp_err_name(r));
    return r == HZP_EINVAL ? 2 : r < 0 ? 1 : 0;
}
