/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve status [URL], hzpserve top [URL]: what a running server serves and learns, what waits
 * and why, and its rates, on one screen.
 *
 * Everything is of GET /metrics and /health, which need no key.  Rates are of the time between two
 * looks. */
#include "api/cli/commands.h"
#include "api/cli/transfer.h"

#include <signal.h>

enum { PAGE_BYTES_MAX = 4 << 20 };

/* What is shown: sums over all samples of a metric that have the label.  rate: per second. */
#define FIGURE_ROWS(X)                                                                             \
    X(VERSION, "weights_version", "hzpserve_weights_version", "", false)                           \
    X(UPDATE, "optimizer_step", "hzpserve_weights_optimizer_step", "", false)                      \
    X(STALENESS, "staleness", "hzpserve_weights_staleness", "", false)                             \
    X(RUNNING, "requests_running", "vllm:num_requests_running", "", false)                         \
    X(WAITING, "requests_waiting", "vllm:num_requests_waiting", "", false)                         \
    X(WAITING_WEIGHTS, "requests_waiting_for_weights", "hzpserve_requests_waiting_for_weights",    \
      "", false)                                                                                   \
    X(KV_USED, "kv_cache_used", "vllm:kv_cache_usage_perc", "", false)                             \
    X(CONNECTIONS, "connections", "hzpserve_connections", "", false)                               \
    X(TOKENS, "tokens_per_second", "vllm:generation_tokens_total", "", true)                       \
    X(PROMPT_TOKENS, "prompt_tokens_per_second", "vllm:prompt_tokens_total", "", true)             \
    X(REQUESTS, "requests_per_second", "vllm:request_success_total", "", true)                     \
    X(TTFT, "ttft_p99_seconds", "hzpserve_split_ttft_p99_seconds", "", false)                      \
    X(ITL, "itl_p99_seconds", "hzpserve_split_itl_p99_seconds", "", false)                         \
    X(SERVING, "serving_share", "hzpserve_device_seconds_total", "tenant=\"serve\"", true)         \
    X(TRAINING, "training_share", "hzpserve_device_seconds_total", "tenant=\"train\"", true)       \
    X(UPDATES, "updates_per_second", "hzpserve_train_updates_total", "", true)                     \
    X(TRAINED, "trained_tokens_per_second", "hzpserve_train_rows_total", "", true)                 \
    X(LOSS, "loss", "hzpserve_train_loss", "", false)                                              \
    X(MISMATCH, "mismatch_k3", "hzpserve_mismatch_k3", "", false)                                  \
    X(EXAMPLES, "examples_waiting", "hzpserve_examples_waiting", "", false)                        \
    X(LEFT, "estimated_seconds", "hzpserve_learn_estimated_seconds", "", false)                    \
    X(OLDEST, "oldest_example_seconds", "hzpserve_learn_oldest_seconds", "", false)                \
    X(SITES, "sites", "hzpserve_mesh_sites", "", false)                                            \
    X(ALIVE, "sites_alive", "hzpserve_mesh_sites_alive", "", false)                                \
    X(ROUNDS, "rounds", "hzpserve_mesh_rounds_total", "", false)                                   \
    X(DRIFT, "drift", "hzpserve_mesh_drift", "", false)
#define FIGURE(figure, name, metric, label, rate) figure,
#define ROW(figure, ...)                          {__VA_ARGS__},
enum figure { FIGURE_ROWS(FIGURE) FIGURES };
static const struct {
    const char *name, *metric, *label;
    bool rate;
} figures[FIGURES] = {FIGURE_ROWS(ROW)};

/* Why learning does not go on faster: the label of hzpserve_learn_held_back. */
static const char *const reasons[][2] = {
    {"failed", "training has stopped, as the log says"},
    {"paused", "the disk cannot be written"},
    {"trial", "the end of a version's trial (--canary)"},
    {"version_slot", "a slot for the next version: requests hold the others (--slots)"},
    {"staleness", "the next version to serve (--max-staleness)"},
    {"share", "training's share of the device while requests run (--train-share)"},
    {"itl", "the goal for inter-token latency (--slo, --train-share stretch)"},
    {"ttft", "the goal for time to first token (--slo)"},
    {"missed", "goals that were missed lately (--slo)"},
    {"turn", "requests, which have their turn"},
    {"running_slots", "places for running requests (--max-running)"},
};

struct look {
    double value[FIGURES]; /* NAN: the server has no such metric */
    char model[128], held_back[32];
    uint64_t ns;
};

struct watch {
    const char *url;
    struct hzp_http_host server;
    char *page;
    char health[300];
};

static volatile sig_atomic_t ended;

static void on_end(int number)
{
    ended = 1;
}

static int take(struct watch *w, struct look *ret, struct hzp_err_text *reterr)
{
    size_t n = 0;
    char label[48];
    HZP_TRY(hzp_transfer_get(&w->server, "/metrics", w->page, PAGE_BYTES_MAX - 1, &n, reterr));
    w->page[n] = 0;
    *ret = (struct look){.ns = hzp_now_ns()};
    for (int i = 0; i < FIGURES; i++)
        ret->value[i] = hzp_http_metric(w->page, figures[i].metric, figures[i].label);
    const char *model = strstr(w->page, "model_name=\"");
    if (!model || isnan(ret->value[RUNNING]))
        return hzp_fail(reterr, HZP_EIO, "%s: is no server of hzpserve", w->url);
    model += strlen("model_name=\"");
    snprintf(ret->model, sizeof(ret->model), "%.*s", (int)strcspn(model, "\"\n"), model);
    for (int i = 0; i < HZP_COUNT(reasons); i++) {
        snprintf(label, sizeof(label), "by=\"%s\"", reasons[i][0]);
        if (!ret->held_back[0] && hzp_http_metric(w->page, "hzpserve_learn_held_back", label) > 0)
            snprintf(ret->held_back, sizeof(ret->held_back), "%s", reasons[i][0]);
    }
    return HZP_OK;
}

/* "ok", or what is wrong. */
static int take_health(struct watch *w, struct hzp_err_text *reterr)
{
    json_t *json;
    HZP_TRY(hzp_transfer_json(&w->server, "GET", NULL, &json, reterr, "/health"));
    const char *status = json_string_value(json_object_get(json, "status"));
    const char *reason = json_string_value(json_object_get(json, "reason"));
    snprintf(w->health, sizeof(w->health), "%s%s%.200s", status ? status : "?", reason ? ": " : "",
             reason ? reason : "");
    json_decref(json);
    return HZP_OK;
}

/* Makes rates of what counts up. */
static void make_rates(const struct look *before, struct look *now)
{
    double seconds = (double)(now->ns - before->ns) * 1e-9;
    for (int i = 0; i < FIGURES; i++)
        if (figures[i].rate)
            now->value[i] = (now->value[i] - before->value[i]) / seconds;
}

static void print_json(const struct watch *w, const struct look *now)
{
    json_t *json =
        json_pack("{s:s, s:s, s:s}", "url", w->url, "model", now->model, "health", w->health);
    for (int i = 0; i < FIGURES; i++)
        json_object_set_new(json, figures[i].name,
                            isnan(now->value[i]) ? json_null() : json_real(now->value[i]));
    json_object_set_new(json, "held_back_by",
                        now->held_back[0] ? json_string(now->held_back) : json_null());
    json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(json);
}

static void print_learning(const struct look *now)
{
    const double *v = now->value;
    if (isnan(v[EXAMPLES])) {
        printf("learns    nothing (--no-train)\n");
        return;
    }
    printf("learns    %.0f tokens/s, %.2g updates/s", v[TRAINED], v[UPDATES]);
    if (v[LOSS] > 0)
        printf("; loss of the last one %.4f", v[LOSS]);
    printf("\n");
    if (!isnan(v[MISMATCH]))
        printf("differs   answers from what training computes of them: k3 %.1e\n", v[MISMATCH]);
    if (v[EXAMPLES] < 1) {
        printf("waits     no example\n");
        return;
    }
    printf("waits     %.0f examples, the oldest for %.0f s", v[EXAMPLES], v[OLDEST]);
    if (v[LEFT] > 0)
        printf("; about %.0f s until all are learned", v[LEFT]);
    printf("\n");
    for (int i = 0; i < HZP_COUNT(reasons); i++)
        if (!strcmp(now->held_back, reasons[i][0]))
            printf("          for %s\n", reasons[i][1]);
}

static void print_look(const struct watch *w, const struct look *now)
{
    const double *v = now->value;
    printf("%s at %s: %s\n", now->model, w->url, w->health);
    printf("serves    version %.0f (update %.0f), %.0f updates behind\n", v[VERSION], v[UPDATE],
           v[STALENESS]);
    printf("requests  %.0f running, %.0f waiting, %.0f waiting for weights; %.0f connections\n",
           v[RUNNING], v[WAITING], v[WAITING_WEIGHTS], v[CONNECTIONS]);
    printf("rates     %.0f tokens/s, %.0f prompt tokens/s, %.1f requests/s\n", v[TOKENS],
           v[PROMPT_TOKENS], v[REQUESTS]);
    if (v[TTFT] > 0 || v[ITL] > 0)
        printf("latency   p99 of late: first token %.1f ms, between tokens %.1f ms\n",
               v[TTFT] * 1e3, v[ITL] * 1e3);
    print_learning(now);
    if (v[SITES] > 0)
        printf("mesh      %.0f of %.0f sites; %.0f averages applied, drift %.3g\n", v[ALIVE],
               v[SITES], v[ROUNDS], v[DRIFT]);
    printf("device    serving %.0f %%, training %.0f %%; KV cache %.0f %% used\n", v[SERVING] * 100,
           (isnan(v[TRAINING]) ? 0 : v[TRAINING]) * 100, v[KV_USED] * 100);
    fflush(stdout);
}

static void wait_for(double seconds)
{
    const struct timespec time = {.tv_sec = (time_t)seconds,
                                  .tv_nsec = (long)(fmod(seconds, 1) * 1e9)};
    if (!ended)
        nanosleep(&time, NULL); /* a signal ends it */
}

/* Shows the server until it is told to end; once: a single time. */
static int watch(struct watch *w, const struct hzp_options *options, bool once,
                 struct hzp_err_text *reterr)
{
    struct look before, now, next;
    HZP_TRY(take(w, &before, reterr));
    for (int shown = 0; !ended && !(once && shown); shown++) {
        wait_for(options->timeline.seconds);
        if (ended)
            break;
        HZP_TRY(take_health(w, reterr));
        HZP_TRY(take(w, &now, reterr));
        next = now;
        make_rates(&before, &now);
        before = next;
        if (!once && isatty(STDOUT_FILENO))
            printf("\033[H\033[J"); /* from the top of an empty screen */
        else if (shown)
            printf("\n");
        if (options->json)
            print_json(w, &now);
        else
            print_look(w, &now);
    }
    return HZP_OK;
}

int hzp_cmd_status(const struct hzp_options *options)
{
    struct hzp_err_text err = {.text = ""};
    const struct sigaction action = {.sa_handler = on_end}; /* without SA_RESTART */
    bool once = options->command == HZP_COMMAND_STATUS;
    struct watch w = {.url = options->words ? options->word[0] : options->client.url,
                      .page = hzp_xmalloc(PAGE_BYTES_MAX)};
    if (!once) {
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
    }
    int r = hzp_http_server(w.url, NULL, &w.server, &err);
    if (r >= 0)
        r = watch(&w, options, once, &err);
    free(w.page);
    return r < 0 && !ended ? hzp_command_failed(r, &err) : 0;
}
