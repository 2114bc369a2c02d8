/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/bench.h"

#include "base/thread.h"
#include "device/fallback.h"
#include "nanobatch/run/exec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void hzp_bench_figure(struct hzp_bench *b, const char *name, double value, const char *unit,
                      enum hzp_bench_base base, double share, const char *of)
{
    json_t *figure = json_pack("{s:s, s:f, s:s, s:i, s:f}", "name", name, "value", value, "unit",
                               unit, "base", (int)base, "per_base", share);
    if (base != HZP_BENCH_NONE)
        json_object_set_new(figure, "of", json_string(of));
    json_array_append_new(b->figures, figure);
    fprintf(stderr, "measured: %s\n", name);
}

void hzp_bench_plain(struct hzp_bench *b, const char *name, double value, const char *unit)
{
    hzp_bench_figure(b, name, value, unit, HZP_BENCH_NONE, 0, NULL);
}

static double base_of(const struct hzp_bench *b, enum hzp_bench_base base)
{
    switch (base) {
    case HZP_BENCH_READS:
        return b->limits.read_bytes_per_s;
    case HZP_BENCH_GEMM:
        return hzp_limits_gemm(&b->limits, b->act);
    case HZP_BENCH_OTHER:
        return 1;
    default:
        return 0;
    }
}

void hzp_bench_print(struct hzp_bench *b)
{
    size_t i;
    json_t *figure;
    json_array_foreach(b->figures, i, figure)
    {
        const char *name = json_string_value(json_object_get(figure, "name"));
        if (!name)
            continue; /* an entry of the profile */
        double value = json_number_value(json_object_get(figure, "value"));
        double limit =
            base_of(b, (enum hzp_bench_base)json_integer_value(json_object_get(figure, "base"))) *
            json_number_value(json_object_get(figure, "per_base"));
        json_object_del(figure, "base");
        json_object_del(figure, "per_base");
        if (limit > 0) {
            json_object_set_new(figure, "limit", json_real(limit));
            json_object_set_new(figure, "share", json_real(value / limit));
        }
        if (b->settings->json)
            continue;
        printf("%-46s %12.4g %-10s", name, value,
               json_string_value(json_object_get(figure, "unit")));
        if (limit > 0)
            printf(" %5.1f %% of %.4g (%s)", 100 * value / limit, limit,
                   json_string_value(json_object_get(figure, "of")));
        putchar('\n');
    }
}

static int by_time(const void *a, const void *b)
{
    const struct hzp_profile_op *x = *(const struct hzp_profile_op *const *)a;
    const struct hzp_profile_op *y = *(const struct hzp_profile_op *const *)b;
    return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : 0;
}

static void profile_tenant(struct hzp_bench *b, const char *who, const struct hzp_profile_op *ops)
{
    const struct hzp_profile_op *sorted[HZP_OP_COUNT];
    uint64_t total = 0;
    for (int i = 0; i < HZP_OP_COUNT; i++) {
        sorted[i] = &ops[i];
        total += ops[i].ns;
    }
    if (total == 0)
        return;
    qsort(sorted, HZP_OP_COUNT, sizeof(sorted[0]), by_time);
    if (!b->settings->json)
        printf("\n%-6s %-16s %10s %8s %12s %10s %10s\n", who, "op", "runs", "% time", "us each",
               "GFLOP/s", "GB/s");
    for (int i = 0; i < HZP_OP_COUNT && sorted[i]->ns; i++) {
        const struct hzp_profile_op *op = sorted[i];
        double ns = (double)op->ns;
        const char *name = hzp_op_name((enum hzp_op)(op - ops));
        json_array_append_new(
            b->figures, json_pack("{s:s, s:s, s:I, s:f, s:f, s:f}", "profile", who, "op", name,
                                  "runs", (json_int_t)op->runs, "seconds", ns * 1e-9, "gflops",
                                  (double)op->flops / ns, "gbytes", (double)op->bytes / ns));
        if (!b->settings->json)
            printf("%-6s %-16s %10llu %8.2f %12.2f %10.1f %10.1f\n", "", name,
                   (unsigned long long)op->runs, 100 * ns / (double)total,
                   ns * 1e-3 / (double)op->runs, (double)op->flops / ns, (double)op->bytes / ns);
    }
}

void hzp_bench_profile(struct hzp_bench *b, const struct hzp_profile *profile)
{
    static const char *const name[HZP_TENANT_COUNT] = {"serve", "train"};
    for (int t = 0; t < HZP_TENANT_COUNT; t++)
        profile_tenant(b, name[t], profile->of[t]);
}

void hzp_bench_fallbacks(struct hzp_bench *b, const struct hzp_device *dev)
{
    for (int i = 0; i < HZP_FALLBACK_COUNT; i++) {
        enum hzp_fallback kind = (enum hzp_fallback)i;
        char name[64];
        snprintf(name, sizeof(name), "fallbacks, %s", hzp_fallback_name(kind));
        if (hzp_device_fallbacks(dev, kind))
            hzp_bench_plain(b, name, (double)hzp_device_fallbacks(dev, kind), "times");
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double hzp_bench_quantile(double *value, int64_t n, double p)
{
    if (n == 0)
        return NAN;
    qsort(value, (size_t)n, sizeof(*value), ascending);
    return value[(int64_t)(p * (double)(n - 1) + 0.5)];
}

double hzp_bench_row_macs(const struct hzp_model_config *c, bool head)
{
    double packed = (double)(c->heads.heads + 2 * c->heads.kv_heads) * c->heads.dim;
    double layer = packed * c->width + (double)c->heads.heads * c->heads.dim * c->width +
                   3.0 * c->inner * c->width;
    return layer * c->layers + (head ? (double)c->vocab * c->width : 0);
}

double hzp_bench_weight_bytes(const struct hzp_engine *engine)
{
    const struct hzp_model_config *c = &engine->parts.config;
    double size = (double)hzp_dtype_size(engine->parts.plan.dtype);
    double projections = hzp_bench_row_macs(c, false);
    double rest = hzp_bench_row_macs(c, true) - projections;
    return projections * (engine->parts.plan.fp8 ? 1 : size) + rest * size;
}

void hzp_bench_client_open(struct hzp_bench *b, struct hzp_bench_client *ret)
{
    ret->bench = b;
    ret->wake = hzp_xmalloc(sizeof(*ret->wake));
    hzp_wake_init(ret->wake);
    ret->seed = 12345;
    ret->mode = HZP_CONTINUE;
}

void hzp_bench_client_close(struct hzp_bench_client *client)
{
    hzp_wake_fini(client->wake);
    free(client->wake);
}

static void poke(void *ctx, bool more)
{
    hzp_wake_poke(ctx);
}

int hzp_bench_submit(struct hzp_bench_client *client, int32_t prompt, int32_t tokens,
                     struct hzp_request **ret, struct hzp_err_text *reterr)
{
    struct hzp_engine *engine = client->bench->engine;
    int32_t *id = hzp_xmalloc((size_t)prompt * sizeof(*id));
    for (int32_t i = 0; i < prompt; i++) {
        client->seed = client->seed * 1664525u + 1013904223u;
        id[i] = (int32_t)((client->seed >> 8) % (uint32_t)engine->parts.config.vocab);
    }
    struct hzp_request *rq;
    int r = hzp_request_create(id, prompt, tokens, 0, false, &rq);
    free(id);
    if (r < 0)
        return hzp_fail(reterr, r, "no memory for a request");
    rq->sampling.temperature = (float)client->bench->settings->load.temperature;
    rq->sampling.top_p = (float)client->bench->settings->load.top_p;
    rq->sampling.seed = client->seed;
    rq->ignore_eos = true;
    rq->wake = poke;
    rq->wake_ctx = client->wake;
    rq->demands.mode = client->mode;
    r = hzp_scheduler_submit(engine->parts.scheduler, rq, reterr);
    if (r < 0) {
        hzp_request_destroy(rq);
        return r;
    }
    hzp_loop_poke(engine->parts.loop);
    *ret = rq;
    return HZP_OK;
}

void hzp_bench_wait(struct hzp_bench_client *client, struct hzp_request *rq)
{
    while (!hzp_request_final(rq))
        hzp_wake_wait(client->wake, 1000000000);
}

int hzp_bench_submit_all(struct hzp_bench_client *client, int count, int32_t prompt, int32_t tokens,
                         struct hzp_request **ret, struct hzp_err_text *reterr)
{
    int sent = 0, r = HZP_OK;
    while (sent < count && r == HZP_OK) {
        r = hzp_bench_submit(client, prompt, tokens, &ret[sent], reterr);
        sent += r == HZP_OK;
    }
    if (r == HZP_OK)
        return HZP_OK;
    for (int i = 0; i < sent; i++)
        atomic_store(&ret[i]->cancel, true);
    hzp_loop_poke(client->bench->engine->parts.loop);
    for (int i = 0; i < sent; i++) { /* running requests still poke the client's wake */
        hzp_bench_wait(client, ret[i]);
        hzp_request_destroy(ret[i]);
    }
    return r;
}

int64_t hzp_bench_itls(const struct hzp_request *rq, double *itl, int64_t n, int64_t max)
{
    int32_t count = atomic_load(&((struct hzp_request *)rq)->out_count);
    for (int32_t i = 1; i < count && n < max; i++)
        itl[n++] = (double)(rq->out[i].at_ns - rq->out[i - 1].at_ns) * 1e-9;
    return n;
}
