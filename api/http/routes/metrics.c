/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/metrics.h"

#include "api/http/routes/feedback.h"
#include "api/http/routes/routes.h"
#include "api/learn/outlook.h"
#include "base/file.h"
#include "base/words.h"
#include "device/fallback.h"
#include "device/meter.h"
#include "nanobatch/split/split.h"

#include <dirent.h>
#include <sys/resource.h>

const double hzp_ttft_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                  1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const double hzp_itl_bounds[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                 .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const double hzp_e2e_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const double hzp_token_bounds[] = {1,   2,    5,    10,   20,    50,    100,   200,
                                   500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
const double hzp_n_bounds[] = {1, 2, 5, 10, 20};
const double hzp_http_bounds[] = {.1, .5, 1};

struct hzp_metrics *hzp_metrics_create(void)
{
    struct hzp_metrics *m = hzp_xcalloc(1, sizeof(*m));
    hzp_lock_init(&m->lock, HZP_LOCK_METRICS);
#define BOUNDS(table) .bound = (table), .bounds = HZP_COUNT(table)
    m->ttft = (struct hzp_histogram){BOUNDS(hzp_ttft_bounds)};
    m->itl = (struct hzp_histogram){BOUNDS(hzp_itl_bounds)};
    m->e2e = (struct hzp_histogram){BOUNDS(hzp_e2e_bounds)};
    m->queue = m->inference = m->prefill = m->decode = m->e2e;
    m->prompt_tokens = (struct hzp_histogram){BOUNDS(hzp_token_bounds)};
    m->generated = m->longest = m->max_tokens = m->prompt_tokens;
    m->per_token = m->itl;
    for (int i = 0; i < HZP_COUNT(m->time); i++)
        m->time[i].seconds = (struct hzp_histogram){BOUNDS(hzp_http_bounds)};
    m->n = (struct hzp_histogram){BOUNDS(hzp_n_bounds)};
#undef BOUNDS
    static const char *const reasons[] = {
        "stop", "length", "abort", "error", "weights_changed", "pin_expired", "unmet"};
    for (int i = 0; i < HZP_COUNT(m->reason); i++)
        m->reason[i].name = reasons[i];
    return m;
}

void hzp_metrics_destroy(struct hzp_metrics *m)
{
    if (!m)
        return;
    hzp_lock_fini(&m->lock);
    free(m);
}

static void observe(struct hzp_histogram *h, double value)
{
    int i = 0;
    while (i < h->bounds && value > h->bound[i])
        i++;
    h->seen[i]++;
    h->count++;
    h->sum += value;
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) * 1e-9 : 0;
}

/* The times of a choice's tokens; of those that another process computed they are not known. */
static void count_tokens(struct hzp_metrics *m, const struct hzp_request *rq, int32_t generated,
                         bool aborted)
{
    uint64_t first = rq->out[0].at_ns, last = rq->out[generated - 1].at_ns;
    for (int32_t i = 1; i < generated; i++)
        if (rq->out[i - 1].at_ns)
            observe(&m->itl, seconds(rq->out[i - 1].at_ns, rq->out[i].at_ns));
    if (!first)
        return;
    observe(&m->ttft, seconds(rq->submitted_ns, first));
    if (aborted)
        return;
    observe(&m->e2e, seconds(rq->submitted_ns, last));
    observe(&m->inference, seconds(rq->admitted_ns, last));
    observe(&m->prefill, seconds(rq->admitted_ns, first));
    observe(&m->decode, seconds(first, last));
    if (generated > 1)
        observe(&m->per_token, seconds(first, last) / (generated - 1));
}

/* A choice has ended; under the lock. */
static void count_choice(struct hzp_metrics *m, const struct hzp_request *rq, int32_t generated,
                         const char *reason)
{
    bool aborted = hzp_among("abort error unmet", reason);
    for (int i = 0; i < HZP_COUNT(m->reason); i++)
        if (!strcmp(m->reason[i].name, reason))
            m->reason[i].count++;
    observe(&m->prompt_tokens, rq->prompt_count);
    observe(&m->generated, generated);
    if (!aborted && rq->admitted_ns)
        observe(&m->queue, seconds(rq->submitted_ns, rq->admitted_ns));
    if (generated)
        count_tokens(m, rq, generated, aborted);
}

void hzp_metrics_params(struct hzp_metrics *m, int32_t n, int32_t max_tokens)
{
    HZP_LOCKED(&m->lock);
    observe(&m->n, n);
    observe(&m->max_tokens, max_tokens);
}

void hzp_metrics_completed(struct hzp_metrics *m, const struct hzp_completion *c)
{
    int32_t longest = 0;
    HZP_LOCKED(&m->lock);
    for (int32_t i = 0; i < c->choices; i++) {
        const struct hzp_choice *choice = &c->choice[i];
        count_choice(m, choice->rq, choice->seen, hzp_choice_end(c, choice));
        longest = HZP_MAX(longest, choice->seen);
    }
    observe(&m->longest, longest);
}

static void count_time(struct hzp_metrics *m, const struct hzp_request_info *info)
{
    int i = 0;
    while (i < m->times &&
           (strcmp(m->time[i].handler, info->route) || strcmp(m->time[i].method, info->method)))
        i++;
    if (i == HZP_COUNT(m->time))
        return; /* more routes than there are: cannot be */
    m->times = HZP_MAX(m->times, i + 1);
    m->time[i].handler = info->route;
    m->time[i].method = info->method;
    observe(&m->time[i].seconds, seconds(info->begin_ns, hzp_now_ns()));
}

void hzp_metrics_http(struct hzp_metrics *m, const struct hzp_request_info *info, int status)
{
    HZP_LOCKED(&m->lock);
    int i = 0;
    while (i < m->https &&
           (m->http[i].status != status || strcmp(m->http[i].handler, info->route) ||
            strcmp(m->http[i].method, info->method)))
        i++;
    if (i == m->https && i < HZP_COUNT(m->http))
        m->http[m->https++] = (struct hzp_http_count){
            .handler = info->route, .method = info->method, .status = status};
    if (i < m->https)
        m->http[i].count++;
    /* vLLM leaves routes that monitors poll out of the http_* metrics. */
    if (status && !hzp_among("/health /metrics /version", info->route))
        count_time(m, info);
}

/* Requests of the i-th route of `time` that were answered with a status of this class (2: 2xx). */
static uint64_t count_class(const struct hzp_metrics *m, int i, int class)
{
    uint64_t count = 0;
    for (int k = 0; k < m->https; k++)
        if (m->http[k].status / 100 == class && !strcmp(m->http[k].handler, m->time[i].handler) &&
            !strcmp(m->http[k].method, m->time[i].method))
            count += m->http[k].count;
    return count;
}

void hzp_metrics_update(struct hzp_metrics *m, const struct hzp_update_report *report)
{
    HZP_LOCKED(&m->lock);
    m->update = *report;
    m->update_seconds += (double)report->wall_ns * 1e-9;
}

/* GET /metrics: Prometheus' text format, version 0.0.4.  Metrics that vLLM has too use its names,
 * labels and buckets, so that its dashboards work. */

/* A histogram of what was counted in classes; the last one has no upper bound. */
static void classes(struct hzp_page *p, const char *name, const uint64_t *seen, const double *bound,
                    int count, double sum)
{
    struct hzp_histogram h = {.bound = bound, .bounds = count - 1, .sum = sum};
    HZP_ASSERT(count <= HZP_BOUNDS_MAX);
    for (int i = 0; i < count; i++)
        h.count += h.seen[i] = seen[i];
    hzp_page_histogram(p, name, &h);
}

static void serving(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_scheduler_stats s;
    hzp_scheduler_read_stats(server->engine->parts.scheduler, &s);
    hzp_page_sources(p, &(struct hzp_metric_sources){.scheduler = &s});
    hzp_page_head(p, "vllm:engine_sleep_state");
    hzp_page_labelled(p, "sleep_state", "awake", 1);
    hzp_page_labelled(p, "sleep_state", "weights_offloaded", 0);
    hzp_page_labelled(p, "sleep_state", "discard_all", 0);
    hzp_page_put(p, "vllm:kv_cache_usage_perc", s.kv_pages ? (double)s.kv_taken / s.kv_pages : 0);
    double bound[HZP_STEP_ROWS_CLASSES];
    for (int i = 0; i < HZP_STEP_ROWS_CLASSES; i++)
        bound[i] = i ? 8 << (i - 1) : 1;
    classes(p, "vllm:iteration_tokens_total", s.step_rows, bound, HZP_STEP_ROWS_CLASSES,
            (double)(s.prompt_tokens - s.found_tokens + s.generated_tokens + s.recomputed_tokens +
                     s.rewarmed_tokens));
    hzp_page_head(p, "vllm:cache_config_info");
    const struct hzp_engine_settings *settings = server->engine->config.settings;
    fprintf(p->out,
            "vllm:cache_config_info{%s,block_size=\"%lld\",cache_dtype=\"%s\","
            "num_gpu_blocks=\"%d\"} 1\n",
            p->labels, (long long)settings->serving.page_rows,
            settings->model.kv_fp8 ? "fp8" : "auto", s.kv_pages);
}

static void loop(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_loop_stats l;
    hzp_loop_read_stats(server->engine->parts.loop, &l);
    hzp_page_sources(p, &(struct hzp_metric_sources){.loop = &l});
    hzp_page_head(p, "hzpserve_device_fallbacks_total");
    for (int i = 0; i < HZP_FALLBACK_COUNT; i++)
        hzp_page_labelled(
            p, "kind", hzp_fallback_name((enum hzp_fallback)i),
            (double)hzp_device_fallbacks(server->engine->parts.dev, (enum hzp_fallback)i));
    hzp_page_put(p, "hzpserve_engine_up", !l.failed && hzp_engine_running(server->engine));
}

static void split(struct hzp_page *p, struct hzp_server *server)
{
    HZP_FREED struct hzp_split_report *r = malloc(sizeof(*r));
    if (!r)
        return; /* the page is served without them */
    hzp_split_read(hzp_loop_split(server->engine->parts.loop), hzp_now_ns(), r);
    hzp_page_sources(p, &(struct hzp_metric_sources){.split = r});
    hzp_page_put(p, "hzpserve_split_ttft_p99_seconds",
                 (double)hzp_window_quantile(&r->ttft, 0.99) * 1e-9);
    hzp_page_put(p, "hzpserve_split_itl_p99_seconds",
                 (double)hzp_window_quantile(&r->itl, 0.99) * 1e-9);
}

static void versions(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_weights_stats w;
    struct hzp_feedback_stats f;
    hzp_weights_read_stats(server->engine->parts.weights, &w);
    hzp_feedback_read(server->feedback, &f);
    hzp_page_sources(p, &(struct hzp_metric_sources){.weights = &w, .feedback = &f});
    struct hzp_state *state = server->engine->state;
    int64_t learned =
        state ? hzp_state_learned_through(state, w.learned_through) : w.learned_through;
    hzp_page_put(p, "hzpserve_learned_through", (double)learned);
    int64_t finished =
        state ? hzp_state_finished_through(state, w.learned_through) : w.learned_through;
    hzp_page_put(p, "hzpserve_finished_through", (double)finished);
    double bound[HZP_COUNT(w.staleness_seen)], sum = 0;
    for (int i = 0; i < HZP_COUNT(bound); i++) {
        bound[i] = i;
        sum += i * (double)w.staleness_seen[i];
    }
    classes(p, "hzpserve_publication_staleness", w.staleness_seen, bound, HZP_COUNT(bound), sum);
}

/* What the comparison of versions on trial with the current one has come to. */
static void put_trials(struct hzp_page *p, struct hzp_trials *trials)
{
    struct hzp_trials_stats s;
    hzp_trials_read(trials, &s);
    hzp_page_sources(p, &(struct hzp_metric_sources){.trials = &s});
    hzp_page_put(p, "hzpserve_trial_version", (double)hzp_trials_running(trials));
}

/* How well training uses the device. */
static void use(struct hzp_page *p, const struct hzp_trainer_stats *t)
{
    if (t->device_ns)
        hzp_page_put(p, "hzpserve_train_goodput", 1 - (double)t->lost_ns / (double)t->device_ns);
    if (!isfinite(t->mfu))
        return;
    hzp_page_put(p, "hzpserve_train_peak_flops", t->peak * 1e9);
    hzp_page_head(p, "hzpserve_train_mfu");
    hzp_page_labelled(p, "of", "model", t->mfu);
    hzp_page_labelled(p, "of", "hardware", t->hfu);
}

/* When the examples that wait will have been learned. */
static void when_learned(struct hzp_page *p, const struct hzp_engine *e)
{
    struct hzp_outlook outlook;
    hzp_outlook_read(e->parts.trainer, hzp_state_queue(e->state), e->parts.loop, &outlook);
    hzp_page_sources(p, &(struct hzp_metric_sources){.outlook = &outlook});
    hzp_page_head(p, "hzpserve_learn_held_back");
    const char *reason;
    for (int i = 0; (reason = hzp_outlook_reason(i)); i++)
        hzp_page_labelled(p, "by", reason, outlook.held_by && !strcmp(outlook.held_by, reason));
}

static void training(struct hzp_page *p, struct hzp_server *server)
{
    const struct hzp_engine *e = server->engine;
    if (!e->parts.trainer)
        return;
    struct hzp_trainer_stats t;
    hzp_trainer_read_stats(e->parts.trainer, &t);
    struct hzp_sample_queue_stats q;
    hzp_sample_queue_read_stats(hzp_state_queue(e->state), &q);
    struct hzp_state_stats kept;
    hzp_state_read_stats(e->state, &kept);
    hzp_page_sources(p, &(struct hzp_metric_sources){.trainer = &t,
                                                     .queue = &q,
                                                     .state = &kept,
                                                     .gate = hzp_state_gate(e->state) ? &t : NULL});
    use(p, &t);
    if (t.ratios.rows)
        hzp_page_put(p, "hzpserve_train_ratio_max", t.ratios.max);
    if (t.path_layers)
        hzp_page_put(p, "hzpserve_train_path_layers", t.path_layers);
    when_learned(p, e);
    if (e->trials)
        put_trials(p, e->trials);
    hzp_page_put(p, "hzpserve_state_read_only", hzp_state_read_only(server->engine->state));
}

/* A figure of a rank, of those in the table below. */
static double rank_figure(const struct hzp_control_state *s, int which)
{
    const double figure[] = {!s->lost && !s->left, s->silent_s, s->waits_s,
                             (double)s->done,      s->doing_s,  s->ahead_s};
    return figure[which];
}

static const char *const rank_figures[] = {
    "hzpserve_rank_up",        "hzpserve_rank_silent_seconds", "hzpserve_rank_waits_seconds",
    "hzpserve_rank_transfers", "hzpserve_rank_busy_seconds",   "hzpserve_rank_clock_ahead_seconds"};

/* How much slower than the others each rank is, and in what. */
static void slowness(struct hzp_page *p, const struct hzp_control_state *of, int ranks)
{
    const char *name = "hzpserve_rank_slowness";
    hzp_page_head(p, name);
    for (int r = 0; r < ranks; r++)
        if (of[r].slow > 0)
            fprintf(p->out, "%s{%s,rank=\"%d\",in=\"%s\"} %.4g\n", name, p->labels, r,
                    hzp_meter_name(of[r].slow_at), of[r].slow);
}

static void ranks_of_job(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_ranks *ranks = server->engine->config.ranks;
    if (!ranks || ranks->ranks == 1)
        return;
    HZP_FREED struct hzp_control_state *of = hzp_xcalloc((size_t)ranks->ranks, sizeof(*of));
    struct hzp_ranks_standing now;
    hzp_ranks_standing(ranks, &now);
    for (int r = 0; r < ranks->ranks; r++)
        if (!hzp_ranks_rank(ranks, r, &of[r])) /* they meet */
            of[r] = (struct hzp_control_state){.known = true, .lost = r == now.lost_rank};
    hzp_page_put(p, "hzpserve_ranks", ranks->ranks);
    for (int i = 0; i < HZP_COUNT(rank_figures); i++) {
        hzp_page_head(p, rank_figures[i]);
        for (int r = 0; r < ranks->ranks; r++)
            if (of[r].known)
                fprintf(p->out, "%s{%s,rank=\"%d\"} %.10g\n", p->name, p->labels, r,
                        rank_figure(&of[r], i));
    }
    slowness(p, of, ranks->ranks);
    const struct hzp_engine *engine = server->engine;
    if (engine->parts.link &&
        engine->parts.link != engine->config.link) { /* over the ranks' link: NCCL's */
        struct hzp_link_state link;
        hzp_link_state(engine->parts.link, &link);
        now.wire_bytes = link.wire_bytes;
    }
    hzp_page_sources(p, &(struct hzp_metric_sources){.ranks = &now});
}

static void counted(struct hzp_page *p, const struct hzp_metrics *m)
{
    hzp_page_sources(p, &(struct hzp_metric_sources){.requests = m});
    hzp_page_head(p, "vllm:request_success_total");
    for (int i = 0; i < HZP_COUNT(m->reason); i++)
        hzp_page_labelled(p, "finished_reason", m->reason[i].name, (double)m->reason[i].count);
}

static void http(struct hzp_page *p, const struct hzp_metrics *m)
{
    char labels[128];
    hzp_page_head(p, "http_requests_total");
    for (int i = 0; i < m->times; i++)
        for (int class = 1; class <= 5; class ++) {
            uint64_t count = count_class(m, i, class);
            if (count)
                fprintf(p->out,
                        "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} %llu\n",
                        m->time[i].handler, m->time[i].method, class, (unsigned long long)count);
        }
    hzp_page_head(p, "http_request_duration_seconds");
    for (int i = 0; i < m->times; i++) {
        snprintf(labels, sizeof(labels), "handler=\"%s\",method=\"%s\"", m->time[i].handler,
                 m->time[i].method);
        hzp_page_buckets(p, "http_request_duration_seconds", labels, &m->time[i].seconds);
    }
    hzp_page_head(p, "hzpserve_http_responses_total");
    for (int i = 0; i < m->https; i++)
        fprintf(p->out,
                "hzpserve_http_responses_total{handler=\"%s\",method=\"%s\",status=\"%d\"} %llu\n",
                m->http[i].handler, m->http[i].method, m->http[i].status,
                (unsigned long long)m->http[i].count);
}

/* What Prometheus' own clients say of their process. */
static void process(struct hzp_page *p)
{
    long long pages = 0, ticks = sysconf(_SC_CLK_TCK), user = 0, system = 0, start = 0;
    char text[1024] = "", *at = NULL;
    HZP_ENDED(hzp_file_end) FILE *file = fopen("/proc/self/stat", "re");
    if (file && fgets(text, sizeof(text), file))
        at = strrchr(text, ')'); /* a name may contain anything */
    if (!at || sscanf(at + 2,
                      "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld %lld %*s %*s %*s %*s "
                      "%*s %*s %lld %*s %lld",
                      &user, &system, &start, &pages) != 4)
        return;
    struct timespec real, boot;
    clock_gettime(CLOCK_REALTIME, &real);
    clock_gettime(CLOCK_BOOTTIME, &boot);
    double began = (double)(real.tv_sec - boot.tv_sec) + (double)start / (double)ticks;
    hzp_page_plain(p, "process_cpu_seconds_total", (double)(user + system) / (double)ticks);
    hzp_page_plain(p, "process_resident_memory_bytes",
                   (double)pages * (double)sysconf(_SC_PAGESIZE));
    hzp_page_plain(p, "process_start_time_seconds", began);
    int files = 0;
    HZP_ENDED(hzp_dir_end) DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        files++;
    hzp_page_plain(p, "process_open_fds", HZP_MAX(files - 3, 0));
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        hzp_page_plain(p, "process_max_fds", (double)limit.rlim_cur);
}

/* Processor time of the threads that speak HTTP, by their names, in seconds. */
static double http_seconds(void)
{
    static const char *const names[] = {"MHD-", "hzp-http", "hzp-notify", "hzp-door"};
    char path[64], name[32] = "";
    double sum = 0;
    HZP_ENDED(hzp_dir_end) DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        unsigned long long ran = 0;
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        snprintf(path, sizeof(path), "/proc/self/task/%.16s/comm", entry->d_name);
        HZP_ENDED(hzp_file_end) FILE *of_name = fopen(path, "re");
        bool ours = false;
        if (of_name && fgets(name, sizeof(name), of_name))
            for (int i = 0; i < HZP_COUNT(names); i++)
                ours |= !strncmp(name, names[i], strlen(names[i]));
        snprintf(path, sizeof(path), "/proc/self/task/%.16s/schedstat", entry->d_name);
        HZP_ENDED(hzp_file_end) FILE *file = ours ? fopen(path, "re") : NULL;
        if (file && fscanf(file, "%llu", &ran) == 1)
            sum += (double)ran * 1e-9;
    }
    return sum;
}

static void connections(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_door_stats d;
    hzp_door_read_stats(server->door, &d);
    hzp_page_sources(p, &(struct hzp_metric_sources){.door = &d, .server = server});
    hzp_page_put(p, "hzpserve_http_cpu_seconds_total", http_seconds());
    hzp_page_put(p, "hzpserve_stream_join_seconds",
                 (double)hzp_notify_window(server->notify) * 1e-9);
}

static void grammars(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_structures_stats s;
    int in_work = 0;
    hzp_structures_read_stats(server->engine->parts.structures, &s);
    hzp_page_sources(p, &(struct hzp_metric_sources){.structures = &s});
    for (int i = 0; i < HZP_SERVER_LANES; i++)
        in_work += hzp_pool_load(server->lane[i]);
    hzp_page_put(p, "hzpserve_grammars_in_work", in_work);
}

static void mesh(struct hzp_page *p, struct hzp_sites *sites)
{
    struct hzp_rounds_stats s;
    if (!sites)
        return;
    hzp_sites_read_stats(sites, &s);
    hzp_page_sources(p, &(struct hzp_metric_sources){.mesh = &s});
}

/* The whole page; the caller frees it.  NULL: out of memory. */
static char *page_of(struct hzp_server *server)
{
    char *text = NULL, name[160];
    size_t bytes = 0;
    struct hzp_page page = {.out = open_memstream(&text, &bytes)};
    if (!page.out)
        return NULL;
    hzp_page_label_text(server->model, name, sizeof(name));
    snprintf(page.labels, sizeof(page.labels), "model_name=\"%s\",engine=\"0\"", name);
    serving(&page, server);
    connections(&page, server);
    grammars(&page, server);
    loop(&page, server);
    split(&page, server);
    versions(&page, server);
    training(&page, server);
    ranks_of_job(&page, server);
    hzp_replicas_metrics(&page, server->engine);
    mesh(&page, server->engine->sites);
    hzp_rollouts_metrics(&page, server->engine);
    /* Copies the counters, so that the lock is not held while the page is written. */
    HZP_FREED struct hzp_metrics *copy = hzp_xmalloc(sizeof(*copy));
    hzp_lock_take(&server->metrics->lock);
    *copy = *server->metrics;
    hzp_lock_release(&server->metrics->lock);
    counted(&page, copy);
    http(&page, copy);
    process(&page);
    if (fclose(page.out)) {
        free(text);
        return NULL;
    }
    return text;
}

int hzp_route_metrics(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    return hzp_reply_text(x, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
                          page_of(x->server));
}
