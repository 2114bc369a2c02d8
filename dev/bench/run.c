/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/run.h"

#include "dev/bench/bench.h"
#include "dev/bench/replay.h"
#include "dev/bench/samples.h"
#include "dev/bench/turns.h"
#include "nanobatch/run/exec.h"

#include <stdio.h>
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
    {"loop", hzp_bench_loop, true, false, 1},       {"start", hzp_bench_start, false, false, 0},
};

static const struct what *find(const char *name, struct hzp_err_text *reterr)
{
    for (int i = 0; name && i < HZP_COUNT(all); i++)
        if (!strcmp(all[i].name, name))
            return &all[i];
    hzp_fail(reterr, HZP_EINVAL,
             "bench: \"%s\" is not one of serve, train, coserve, swap, offline, ops, loop, start, "
             "link, replay",
             name ? name : "");
    return NULL;
}

/* Measures the limits and keeps the better of each with those measured before. */
static int measure_limits(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    struct hzp_device *dev;
    struct hzp_limits now = {0};
    HZP_TRY(hzp_settings_device(&b->started->device, 0, &dev, reterr));
    int r = hzp_device_limits(dev, &now);
    if (!b->settings->json && b->limits.read_bytes_per_s == 0)
        printf("%s\n", dev->label);
    hzp_device_close(dev);
    if (r < 0 && r != HZP_EUNSUP)
        return hzp_fail(reterr, r, "bench: the machine's limits cannot be measured");
    b->limits.read_bytes_per_s = HZP_MAX(b->limits.read_bytes_per_s, now.read_bytes_per_s);
    b->limits.reads_vary = now.reads_vary;
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
    else /* the library has no bf16 GEMM, or one that converts to f32 */
        hzp_bench_plain(b, "limit: bf16 products, which run in f32 here", b->limits.gemm_f32 * 1e-9,
                        "GFLOP/s");
}

/* Adapts the engine's settings to the benchmark. */
static void adapt(const struct hzp_bench *b, const struct what *what, struct hzp_engine_settings *e)
{
    struct hzp_serving_settings *s = &e->serving;
    e->no_train = !what->trains;
    e->learning.state_dir = "none";
    e->split.goals = b->settings->load.goals;
    if (what->run == hzp_bench_train) {
        /* Four documents of 512 tokens, each with one more that is only a target; no request
         * runs. */
        e->training.update_tokens = 4 * 513;
        if (!s->kv_memory) {
            s->kv_tokens = 1024;
            e->model.context = 0;
        }
    } else if (what->run == hzp_bench_loop) {
        s->running_max = 512;
        s->step_rows = HZP_MAX(s->step_rows, 640);
        s->waiting_max = HZP_MAX(s->waiting_max, 512);
        e->model.context = e->model.context ? e->model.context : 256;
    } else if (what->run == hzp_bench_swap) {
        s->consistency = HZP_MIN(b->settings->consistency, HZP_PINNED); /* what the start checks */
    } else if (what->run == hzp_bench_coserve) {
        int64_t most = b->settings->load.concurrency;
        s->running_max = most ? most : 8;
    }
}

static int run_with_engine(struct hzp_bench *b, const struct what *what,
                           struct hzp_engine_settings *settings, struct hzp_err_text *reterr)
{
    bool own_slots = (what->run == hzp_bench_train && settings->serving.kv_memory) ||
                     what->run == hzp_bench_swap;
    adapt(b, what, settings);
    b->reports = hzp_bench_reports_create();
    b->swapper = hzp_bench_swapper_create();
    b->turns = hzp_bench_turns_create();
    struct hzp_engine_config config = {
        .settings = settings,
        .slots = own_slots ? (int32_t)settings->serving.slots : what->slots,
        .quiet = b->settings->json != 0,
        .on_update = hzp_bench_on_update,
        .ctx = b->reports,
        .source = hzp_bench_swapper_source(b->swapper),
        .first = hzp_bench_turns_source(b->turns),
    };
    int r = hzp_engine_start(&config, &b->engine, reterr);
    if (r == HZP_OK) {
        b->act = b->engine->parts.plan.dtype;
        r = what->run(b, reterr);
        hzp_engine_stop(b->engine, true);
        while (!hzp_engine_wait(b->engine, 1000000000)) {
        }
        if (r == HZP_OK) {
            hzp_bench_profile(b, hzp_loop_profile(b->engine->parts.loop));
            hzp_bench_fallbacks(b, b->engine->parts.dev);
        }
        hzp_engine_finish(b->engine);
    }
    hzp_bench_swapper_destroy(b->swapper);
    hzp_bench_turns_destroy(b->turns);
    hzp_bench_reports_destroy(b->reports);
    return r;
}

static void print_json(const struct hzp_bench *b, const struct what *what)
{
    json_t *all_of_it = json_pack("{s:s, s:s, s:O}", "bench", what->name, "model",
                                  b->started->model.dir, "figures", b->figures);
    json_dumpf(all_of_it, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(all_of_it);
}

/* bench ops fills and evicts what it measures with from the host. */
static int check_device(const struct hzp_bench *b, const struct what *what,
                        struct hzp_err_text *reterr)
{
    struct hzp_device *dev;
    if (what->run != hzp_bench_ops)
        return HZP_OK;
    HZP_TRY(hzp_settings_device(&b->started->device, 0, &dev, reterr));
    bool host = hzp_device_host_memory(dev);
    hzp_device_close(dev);
    return host ? HZP_OK
                : hzp_fail(reterr, HZP_EUNSUP,
                           "bench ops runs on the host's memory: give --device cpu");
}

static int run(struct hzp_bench *b, const struct what *what, struct hzp_engine_settings *settings,
               struct hzp_err_text *reterr)
{
    HZP_TRY(check_device(b, what, reterr));
    HZP_TRY(measure_limits(b, reterr));
    if (what->engine)
        HZP_TRY(run_with_engine(b, what, settings, reterr));
    else
        HZP_TRY(what->run(b, reterr));
    HZP_TRY(measure_limits(b, reterr));
    show_limits(b);
    hzp_bench_print(b);
    if (b->settings->json)
        print_json(b, what);
    fflush(stdout);
    fputs(b->verdict, stderr);
    return HZP_OK;
}

int hzp_bench_run(const struct hzp_bench_settings *given, const struct hzp_engine_settings *engine,
                  struct hzp_err_text *reterr)
{
    struct hzp_bench_settings settings = *given;
    struct hzp_engine_settings started = *engine;
    bool coserve = settings.what && !strcmp(settings.what, "coserve");
    struct hzp_load_settings *load = &settings.load;
    if (!settings.what || strcmp(settings.what, "offline") != 0) { /* that follows the context */
        load->input = load->input ? load->input : coserve ? 32 : 512;
        load->output = load->output ? load->output : 128;
    }
    if (settings.what && !strcmp(settings.what, "replay"))
        return hzp_bench_replay(load, reterr);
    const struct what *what = find(settings.what, reterr);
    if (!what)
        return HZP_EINVAL;
    if (!started.model.dir)
        return hzp_fail(reterr, HZP_EINVAL, "bench %s: no model given; name a model directory",
                        what->name);
    struct hzp_bench b = {.settings = &settings,
                          .started = &started,
                          .figures = json_array(),
                          .quick = settings.quick != 0};
    int r = run(&b, what, &started, reterr);
    json_decref(b.figures);
    return r;
}
