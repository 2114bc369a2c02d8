/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/replay.h"

#include "dev/bench/load.h"
#include "dev/bench/probe.h"
#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB_UNKNOWN = 1000 }; /* assumed vocabulary: real models have more tokens */

static int make_work(const struct hzp_load_settings *o, const struct hzp_http_host *server,
                     struct hzp_workload *ret, struct hzp_err_text *reterr)
{
    if (o->trace) {
        struct hzp_trace_file trace;
        if (HZP_TRACE_BLOCK % o->shrink)
            return hzp_fail_param(reterr, HZP_EINVAL, "--shrink",
                                  "--shrink must be 1, 2, 4 or another divisor of %d",
                                  HZP_TRACE_BLOCK);
        HZP_TRY(hzp_trace_file_read(o->trace, o->limit, &trace, reterr));
        hzp_workload_of_trace(ret, &trace);
        hzp_workload_shrink(ret, (int32_t)o->shrink);
    } else {
        HZP_TRY(
            hzp_workload_equal(ret, o->requests, (int32_t)o->input, (int32_t)o->output, reterr));
    }
    ret->seed = (uint64_t)o->seed;
    ret->prefix = o->trace ? 0 : (int32_t)o->prefix;
    ret->vocab = server->vocab ? server->vocab : VOCAB_UNKNOWN;
    int32_t context = o->context ? (int32_t)o->context : server->context;
    if (context > 1)
        hzp_workload_clip(ret, context);
    hzp_workload_arrivals(ret, o->scale, o->rate);
    int64_t made = 0;
    for (int64_t i = 0; i < ret->trace.requests; i++)
        made += ret->trace.request[i].output;
    if (made > HZP_LOAD_ITLS_MAX) {
        hzp_workload_free(ret);
        return hzp_fail_param(reterr, HZP_EINVAL, "--limit",
                              "%lld answer tokens in one load, more than %d: take a part of it "
                              "with --limit",
                              (long long)made, HZP_LOAD_ITLS_MAX);
    }
    return HZP_OK;
}

/* ---- the report ---- */

static void print_count(const char *name, int64_t value)
{
    printf("%-40s %lld\n", name, (long long)value);
}

static void print_number(const char *name, double value)
{
    printf("%-40s %.2f\n", name, value);
}

static void print_spread(const char *name, const struct hzp_load_spread *s)
{
    if (s->n == 0)
        return;
    printf("%-16s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, s->mean * 1e3, s->median * 1e3,
           s->p90 * 1e3, s->p99 * 1e3, s->max * 1e3);
}

static bool goals_set(const struct hzp_load_goals *g)
{
    return g->ttft > 0 || g->tpot > 0 || g->itl > 0 || g->e2el > 0;
}

static void print_report(const struct hzp_workload *work, const struct hzp_load_record *record,
                         const struct hzp_load_summary *s, const struct hzp_load_failures *failures)
{
    print_count("Successful requests:", s->completed);
    print_count("Failed requests:", s->failed);
    for (int i = 0; i < HZP_LOAD_REASONS; i++)
        if (failures->reason[i].count)
            printf("  %lld x %s\n", (long long)failures->reason[i].count, failures->reason[i].text);
    if (record->sent < work->trace.requests || s->completed + s->failed < record->sent)
        printf("  interrupted: %lld of %lld sent\n", (long long)record->sent,
               (long long)work->trace.requests);
    print_number("Benchmark duration (s):", s->duration_s);
    print_count("Total input tokens:", s->input_tokens);
    print_count("Total generated tokens:", s->output_tokens);
    print_number("Request throughput (req/s):", s->request_rate);
    if (goals_set(&record->goals))
        print_number("Request goodput (req/s):", s->good_rate);
    print_number("Output token throughput (tok/s):", s->output_rate);
    print_number("Total token throughput (tok/s):", s->total_rate);
    print_count("Peak concurrent requests:", record->peak);
    if (hzp_workload_timed(work) && record->sent)
        printf("%-40s %.1f mean, %.1f max\n",
               "Sent behind time (ms):", record->late_sum_s / (double)record->sent * 1e3,
               record->late_max_s * 1e3);
    if (work->clipped)
        printf("%-40s %lld requests, by %lld input and %lld output tokens\n",
               "Shortened to fit the context:", (long long)work->clipped,
               (long long)work->clipped_in, (long long)work->clipped_out);
    if (record->other_length)
        print_count("Answers of another length than asked:", record->other_length);
    printf("\n%-16s %10s %10s %10s %10s %10s\n", "milliseconds", "mean", "median", "p90", "p99",
           "max");
    print_spread("TTFT", &s->ttft);
    print_spread("TPOT", &s->tpot);
    print_spread("ITL", &s->itl);
    print_spread("E2EL", &s->e2el);
}

/* Microseconds a generated token; the client's own time is not in it. */
static double cost_us(double seconds, const struct hzp_load_summary *s)
{
    return s->output_tokens ? seconds * 1e6 / (double)s->output_tokens : 0;
}

/* What the load has cost the server, and how it answered others meanwhile. */
struct toll {
    struct hzp_load_cost before, after;
    struct hzp_probe_report probe;
};

/* By how much the server's memory was larger than before the load, for each request in flight when
 * most were; 0: unknown. */
static double stream_bytes(const struct toll *toll, const struct hzp_load_record *record)
{
    double grown = toll->probe.resident - toll->before.resident;
    return toll->before.resident > 0 && grown > 0 && record->peak > 0 ? grown / record->peak : 0;
}

static void print_toll(const struct toll *toll, const struct hzp_load_record *record,
                       const struct hzp_load_summary *s)
{
    double http_s = toll->after.http_s - toll->before.http_s;
    double deliver_s = toll->after.deliver_s - toll->before.deliver_s;
    print_spread("GET /health", &toll->probe.health);
    if (toll->probe.failed)
        print_count("GET /health without a 200:", toll->probe.failed);
    if (!(http_s > 0))
        return;
    printf("\n");
    print_number("Server, HTTP (us of processor/token):", cost_us(http_s, s));
    print_number("Server, deliver (us of engine/token):", cost_us(deliver_s, s));
    print_number("Server, memory (KB a stream):", stream_bytes(toll, record) / 1000);
}

static void add_spread(json_t *json, const char *name, const struct hzp_load_spread *s)
{
    const struct {
        const char *what;
        double value;
    } field[] = {{"mean", s->mean}, {"median", s->median}, {"std", s->std},
                 {"p90", s->p90},   {"p99", s->p99},       {"max", s->max}};
    char key[48];
    for (int i = 0; i < HZP_COUNT(field); i++) {
        snprintf(key, sizeof(key), "%s_%s_ms", field[i].what, name);
        json_object_set_new(json, key, json_real(field[i].value * 1e3));
    }
}

static void print_json(const struct hzp_load_settings *o, const struct hzp_http_host *server,
                       const struct hzp_workload *work, const struct hzp_load_record *record,
                       const struct hzp_load_summary *s, const struct hzp_load_failures *failures,
                       const struct toll *toll)
{
    double http_s = toll->after.http_s - toll->before.http_s;
    double deliver_s = toll->after.deliver_s - toll->before.deliver_s;
    json_t *reasons = json_object();
    for (int i = 0; i < HZP_LOAD_REASONS; i++)
        if (failures->reason[i].count)
            json_object_set_new(reasons, failures->reason[i].text,
                                json_integer(failures->reason[i].count));
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:o, s:f, s:I, s:I, s:f, s:f, s:f, s:i, s:f, s:f, s:I, s:I,"
        " s:I, s:I}",
        "bench", "replay", "model", server->model, "load",
        o->trace ? hzp_trace_form_name(work->trace.form) : "equal", "num_prompts",
        (json_int_t)work->trace.requests, "completed", (json_int_t)s->completed, "failed",
        (json_int_t)s->failed, "failures", reasons, "duration", s->duration_s, "total_input_tokens",
        (json_int_t)s->input_tokens, "total_output_tokens", (json_int_t)s->output_tokens,
        "request_throughput", s->request_rate, "output_throughput", s->output_rate,
        "total_token_throughput", s->total_rate, "max_concurrent_requests", record->peak,
        "mean_late_ms", record->sent ? record->late_sum_s / (double)record->sent * 1e3 : 0.0,
        "max_late_ms", record->late_max_s * 1e3, "shortened_requests", (json_int_t)work->clipped,
        "shortened_input_tokens", (json_int_t)work->clipped_in, "shortened_output_tokens",
        (json_int_t)work->clipped_out, "other_length", (json_int_t)record->other_length);
    if (goals_set(&record->goals))
        json_object_set_new(json, "request_goodput", json_real(s->good_rate));
    add_spread(json, "ttft", &s->ttft);
    add_spread(json, "tpot", &s->tpot);
    add_spread(json, "itl", &s->itl);
    add_spread(json, "e2el", &s->e2el);
    if (toll->probe.health.n || toll->probe.failed) {
        add_spread(json, "health", &toll->probe.health);
        json_object_set_new(json, "health_failed", json_integer(toll->probe.failed));
    }
    if (http_s > 0) {
        json_object_set_new(json, "server_stream_bytes", json_real(stream_bytes(toll, record)));
        json_object_set_new(json, "server_http_us", json_real(cost_us(http_s, s)));
        json_object_set_new(json, "server_deliver_us", json_real(cost_us(deliver_s, s)));
    }
    json_dumpf(json, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(json);
}

static int report(const struct hzp_load_settings *o, const struct hzp_http_host *server,
                  const struct hzp_workload *work, struct hzp_load_record *record,
                  const struct hzp_load_failures *failures, const struct toll *toll,
                  struct hzp_err_text *reterr)
{
    struct hzp_load_summary summary;
    HZP_TRY(hzp_load_summarise(record, &summary, reterr));
    if (o->json)
        print_json(o, server, work, record, &summary, failures, toll);
    else
        print_report(work, record, &summary, failures);
    if (!o->json)
        print_toll(toll, record, &summary);
    return HZP_OK;
}

static int read_extra(const char *text, json_t **ret, struct hzp_err_text *reterr)
{
    struct hzp_json_error error = {0};
    *ret = text ? hzp_json_load(text, strlen(text), HZP_JSON_UNIQUE, NULL, &error) : NULL;
    const char *taken = json_object_get(*ret, "prompt")       ? "prompt"
                        : json_object_get(*ret, "max_tokens") ? "max_tokens"
                                                              : NULL;
    if (!text || (json_is_object(*ret) && !taken))
        return HZP_OK;
    int r = taken ? hzp_fail_param(reterr, HZP_EINVAL, "--extra-body",
                                   "--extra-body: \"%s\" is set by the load itself", taken)
                  : hzp_fail_param(reterr, HZP_EINVAL, "--extra-body",
                                   "--extra-body takes a JSON object: %.200s",
                                   *ret ? "the value is not an object" : error.text);
    json_decref(*ret);
    return r;
}

/* Runs the load, and sees meanwhile what it costs the server. */
static int run(struct hzp_http_host *server, const struct hzp_load_config *config,
               struct hzp_load_record *record, struct hzp_load_failures *failures,
               struct toll *toll, struct hzp_err_text *reterr)
{
    hzp_load_read_cost(server, &toll->before);
    struct hzp_probe *probe = hzp_probe_start(server);
    int r = hzp_load_run(config, record, failures, reterr);
    hzp_probe_stop(probe, &toll->probe);
    hzp_load_read_cost(server, &toll->after);
    return r;
}

static int open_record(const char *path, FILE **ret, struct hzp_err_text *reterr)
{
    *ret = path ? fopen(path, "we") : NULL;
    return path && !*ret ? hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(errno)) : HZP_OK;
}

/* Closes the file; r: the result so far. */
static int close_record(const char *path, FILE *file, int r, struct hzp_err_text *reterr)
{
    if (!file)
        return r;
    bool failed = ferror(file) != 0;
    failed |= fclose(file) != 0;
    return failed && r == HZP_OK ? hzp_fail(reterr, HZP_EIO, "%s: cannot be written", path) : r;
}

int hzp_bench_replay(const struct hzp_load_settings *o, struct hzp_err_text *reterr)
{
    struct hzp_http_host server;
    struct hzp_load_record record = {0};
    struct hzp_load_failures failures = {0};
    struct hzp_workload work;
    json_t *extra;
    if (o->goals)
        HZP_TRY(hzp_load_goals_parse(o->goals, &record.goals, reterr));
    HZP_TRY(read_extra(o->extra, &extra, reterr));
    int r = hzp_http_connect(o->url, o->api_key, o->model_name, &server, reterr);
    if (r == HZP_OK)
        r = make_work(o, &server, &work, reterr);
    if (r < 0) {
        json_decref(extra);
        return r;
    }
    FILE *file;
    struct toll toll;
    r = open_record(o->record, &file, reterr);
    struct hzp_load_config config = {
        .server = &server,
        .work = &work,
        .max_running = (int32_t)o->concurrency,
        .warmup = (int32_t)o->warmup,
        .temperature = o->temperature,
        .top_p = o->top_p,
        .silence_s = o->silence,
        .extra = extra,
        .progress = !o->json,
        .record = file,
    };
    if (r == HZP_OK)
        r = run(&server, &config, &record, &failures, &toll, reterr);
    r = close_record(o->record, file, r, reterr);
    if (r == HZP_OK)
        r = report(o, &server, &work, &record, &failures, &toll, reterr);
    if (r == HZP_OK && record.answers == 0)
        r = hzp_fail(reterr, HZP_EIO, "no request was answered: %s",
                     failures.reason[0].count ? failures.reason[0].text : "interrupted");
    hzp_load_record_free(&record);
    hzp_workload_free(&work);
    json_decref(extra);
    return r;
}
