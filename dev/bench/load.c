/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/load.h"

#include "dev/bench/load_event.h"
#include "base/json.h"
#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { EVENTS = 512, SPARE_SOCKETS = 32, SOCKETS_MAX = 65536 };
static const double LOOK_S = 1; /* between two looks at silent streams */

/* A request in flight. */
struct stream {
    struct load *load;
    int64_t index;
    char *body; /* the request's */
    struct hzp_http_stream in;
    uint64_t sent_ns, first_ns, last_ns, heard_ns;
    float *itl;
    int64_t itls, itls_room;
    int32_t input, output; /* tokens, as counted by the server; 0: not reported */
    bool done;             /* the server has sent its end mark */
    char error[160];
};

struct load {
    const struct hzp_load_config *config;
    const struct hzp_workload *work;
    struct hzp_load_record *record;
    struct hzp_load_failures *failures;
    CURLM *multi;
    int epoll, timer;
    struct stream **running; /* the first `streams` of `max` */
    int32_t streams, max;
    int64_t next;
    uint64_t begin_ns, ended_ns, told_ns;
    uint64_t curl_ns;             /* when libcurl wants to be called; UINT64_MAX: never */
    uint64_t looked_ns, timer_ns; /* the last look at silent streams; what the timer is set to */
    uint64_t read_ns;             /* when what is being read was there */
    int32_t *prompt;
    char *tail; /* end of every request's body: the fields that are the same in all of them */
    struct hzp_err_text *reterr;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    interrupted = 1;
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) * 1e-9 : 0;
}

/* ---- what a stream receives ---- */

static int fail_stream(struct stream *s, const char *format, ...) HZP_PRINTF(2, 3);
static int fail_stream(struct stream *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->error, sizeof(s->error), format, args);
    va_end(args);
    return HZP_EFORMAT;
}

/* Records the arrival of a piece of the answer. */
static int piece(struct stream *s, uint64_t now)
{
    if (!s->first_ns) {
        s->first_ns = s->last_ns = now;
        return HZP_OK;
    }
    if (s->itls == s->itls_room) {
        int64_t room = HZP_MAX(s->itls_room * 2, (int64_t)64);
        float *itl =
            room <= HZP_LOAD_ITLS_MAX ? realloc(s->itl, (size_t)room * sizeof(*itl)) : NULL;
        if (!itl)
            return fail_stream(s, "no memory for the record of an answer");
        s->itl = itl;
        s->itls_room = room;
    }
    s->itl[s->itls++] = (float)seconds(s->last_ns, now);
    s->last_ns = now;
    return HZP_OK;
}

static int event(void *ctx, const char *data, size_t n)
{
    struct stream *s = ctx;
    s->heard_ns = s->load->read_ns;
    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        s->done = true;
        return HZP_OK;
    }
    struct hzp_load_event e;
    if (hzp_load_event_read(data, n, &e) < 0)
        return fail_stream(s, "an event that is not a JSON object");
    int r = HZP_OK;
    if (e.error[0]) {
        r = fail_stream(s, "%s", e.error);
    } else if (e.text) {
        r = piece(s, s->heard_ns);
    } else if (e.choice) {
        s->last_ns = s->heard_ns; /* the answer's end, which may come without text */
        if (!s->first_ns && e.finished)
            s->first_ns = s->heard_ns;
    }
    if (e.usage) {
        s->input = e.input;
        s->output = e.output;
    }
    return r;
}

static void count_failure(struct load *l, const char *why)
{
    int i = 0;
    l->record->failed++;
    while (i < HZP_LOAD_REASONS - 1 && l->failures->reason[i].count &&
           strcmp(l->failures->reason[i].text, why))
        i++;
    if (i == HZP_LOAD_REASONS - 1)
        why = "other reasons";
    snprintf(l->failures->reason[i].text, sizeof(l->failures->reason[i].text), "%s", why);
    l->failures->reason[i].count++;
}

/* Sets the stream's error from the server's answer. */
static void refusal(struct stream *s)
{
    json_t *json = s->in.bytes ? hzp_json_load(s->in.body, s->in.bytes, 0, NULL, NULL) : NULL;
    const char *message = hzp_http_error(json);
    fail_stream(s, "HTTP %d%s%.120s", s->in.status, message ? ": " : "", message ? message : "");
    json_decref(json);
}

static int add_answer(struct load *l, struct stream *s)
{
    const struct hzp_trace_request *asked = &l->work->trace.request[s->index];
    struct hzp_load_answer answer = {
        .sent_s = seconds(l->begin_ns, s->sent_ns),
        .ttft_s = seconds(s->sent_ns, s->first_ns),
        .e2el_s = seconds(s->sent_ns, s->last_ns),
        .input = s->input > 0 ? s->input : asked->input,
        .output = s->output > 0 ? s->output : (int32_t)HZP_MIN(s->itls + 1, (int64_t)INT32_MAX),
    };
    l->record->other_length += answer.output != asked->output;
    return hzp_load_record_answer(l->record, &answer, s->itl, s->itls, l->reterr);
}

/* Writes the request's line: before its ITLs are sorted. */
static void write_line(const struct load *l, const struct stream *s)
{
    FILE *out = l->config->record;
    const struct hzp_trace_request *asked = &l->work->trace.request[s->index];
    double at = seconds(s->sent_ns, s->first_ns);
    fprintf(out, "{\"request\":%lld,\"sent\":%.6f,\"status\":%d,\"input\":%d,\"output\":%d",
            (long long)s->index, seconds(l->begin_ns, s->sent_ns), s->in.status,
            s->input > 0 ? s->input : asked->input, s->output);
    if (s->error[0]) {
        json_t *why = json_stringn_nocheck(s->error, strlen(s->error));
        char *text = json_dumps(why, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        fprintf(out, ",\"error\":%s", text ? text : "\"\"");
        free(text);
        json_decref(why);
    }
    fprintf(out, ",\"times\":[");
    if (s->first_ns)
        fprintf(out, "%.6f", at);
    for (int64_t i = 0; i < s->itls; i++)
        fprintf(out, ",%.6f", at += (double)s->itl[i]);
    fprintf(out, "]}\n");
}

static void free_stream(struct load *l, struct stream *s)
{
    if (s->in.easy)
        curl_multi_remove_handle(l->multi, s->in.easy);
    hzp_http_stream_fini(&s->in);
    free(s->body);
    free(s->itl);
    free(s);
}

/* Ends a stream, successful or not; the last stream takes its place in the list. */
static int end_stream(struct load *l, struct stream *s)
{
    int r = HZP_OK;
    if (!s->error[0] && s->in.status != 200)
        refusal(s);
    if (!s->error[0] && !s->first_ns)
        fail_stream(s, "an empty answer");
    if (l->config->record)
        write_line(l, s);
    if (s->error[0])
        count_failure(l, s->error);
    else
        r = add_answer(l, s);
    for (int32_t i = 0; i < l->streams; i++)
        if (l->running[i] == s) {
            l->running[i] = l->running[--l->streams];
            break;
        }
    l->ended_ns = hzp_now_ns();
    free_stream(l, s);
    return r;
}

/* ---- sending ---- */

/* The request's body; NULL: no memory. */
static char *make_body(struct load *l, int64_t index)
{
    const struct hzp_trace_request *r = &l->work->trace.request[index];
    enum { DIGITS = 11 };
    char *body = malloc(64 + (size_t)r->input * DIGITS + strlen(l->tail)), *at = body;
    if (!body)
        return NULL;
    hzp_workload_prompt(l->work, index, l->prompt);
    at += sprintf(at, "{\"max_tokens\":%d,\"prompt\":[", r->output);
    for (int32_t i = 0; i < r->input; i++)
        at += sprintf(at, i ? ",%d" : "%d", l->prompt[i]);
    strcpy(at, l->tail);
    return body;
}

static int start_next(struct load *l)
{
    struct stream *s = calloc(1, sizeof(*s));
    if (!s)
        return hzp_fail(l->reterr, HZP_ENOMEM, "no memory for a request");
    s->load = l;
    s->index = l->next++;
    hzp_http_stream_init(&s->in, event, s);
    l->running[l->streams++] = s;
    l->record->sent++;
    l->record->peak = HZP_MAX(l->record->peak, l->streams);
    s->body = make_body(l, s->index);
    const struct hzp_http_call call = {
        .method = "POST", .route = "/v1/completions", .body = s->body};
    if (!s->body || hzp_http_prepare(l->config->server, &call, &s->in) < 0)
        return hzp_fail(l->reterr, HZP_ENOMEM, "no memory for a request");
    curl_easy_setopt(s->in.easy, CURLOPT_PRIVATE, s);
    curl_easy_setopt(s->in.easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(s->in.easy, CURLOPT_DNS_CACHE_TIMEOUT, -1L);
    s->sent_ns = s->heard_ns = hzp_now_ns();
    if (hzp_workload_timed(l->work)) {
        double late = seconds(l->begin_ns, s->sent_ns) - l->work->trace.request[s->index].at_s;
        l->record->late_max_s = HZP_MAX(l->record->late_max_s, late);
        l->record->late_sum_s += HZP_MAX(late, 0);
    }
    return curl_multi_add_handle(l->multi, s->in.easy)
               ? hzp_fail(l->reterr, HZP_ENOMEM, "no memory for a request")
               : HZP_OK;
}

/* ---- libcurl ---- */

/* The sockets that libcurl waits for, and what for. */
static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *known)
{
    struct load *l = ctx;
    struct epoll_event want = {.data.fd = fd};
    if (what & CURL_POLL_IN && what != CURL_POLL_REMOVE)
        want.events |= EPOLLIN;
    if (what & CURL_POLL_OUT && what != CURL_POLL_REMOVE)
        want.events |= EPOLLOUT;
    if (what == CURL_POLL_REMOVE)
        epoll_ctl(l->epoll, EPOLL_CTL_DEL, fd, &want);
    else if (epoll_ctl(l->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &want) < 0)
        return -1;
    curl_multi_assign(l->multi, fd, l); /* known from now on */
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *ctx)
{
    struct load *l = ctx;
    l->curl_ns = ms < 0 ? UINT64_MAX : hzp_now_ns() + (uint64_t)ms * 1000000u;
    return 0;
}

static void act(struct load *l, curl_socket_t fd, uint32_t events)
{
    int running, what = (events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                        (events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                        (events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
    l->read_ns = hzp_now_ns();
    if (fd == CURL_SOCKET_TIMEOUT)
        l->curl_ns = UINT64_MAX; /* unless it sets another time now */
    curl_multi_socket_action(l->multi, fd, what, &running);
}

/* Ends the streams whose transfers have ended.  An end that the server has marked is one, however
 * its connection ends. */
static int end_ended(struct load *l)
{
    const CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(l->multi, &left))) {
        struct stream *s;
        long status = 0;
        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &s);
        curl_easy_getinfo(m->easy_handle, CURLINFO_RESPONSE_CODE, &status);
        s->in.status = (int)status;
        if (m->data.result != CURLE_OK && !s->error[0] && !s->done)
            fail_stream(s, "%s", hzp_http_reason(&s->in, m->data.result));
        HZP_TRY(end_stream(l, s));
    }
    return HZP_OK;
}

/* Fails the streams that have been silent for too long. */
static int end_silent(struct load *l, uint64_t now)
{
    for (int32_t i = l->streams - 1; i >= 0; i--) {
        struct stream *s = l->running[i];
        if (seconds(s->heard_ns, now) <= l->config->silence_s)
            continue;
        if (!s->done)
            fail_stream(s, "silent for %g s", l->config->silence_s);
        HZP_TRY(end_stream(l, s));
    }
    return HZP_OK;
}

/* ---- the loop ---- */

static bool due(const struct load *l, uint64_t now)
{
    return !hzp_workload_timed(l->work) ||
           l->work->trace.request[l->next].at_s <= seconds(l->begin_ns, now);
}

/* Sets the timer to the next thing to do without a socket event: the next arrival, what libcurl
 * waits for, or a look at silent streams.  A timer that is set to an earlier time stays. */
static int set_clock(struct load *l, uint64_t now)
{
    double wait = LOOK_S;
    if (l->next < l->work->trace.requests && l->streams < l->max) {
        double to_next = l->work->trace.request[l->next].at_s - seconds(l->begin_ns, now);
        wait = HZP_MIN(wait, to_next);
    }
    double to_curl = seconds(now, l->curl_ns);
    wait = HZP_MIN(wait, to_curl);
    int64_t ns = HZP_MAX((int64_t)(wait * 1e9), (int64_t)1);
    if (l->timer_ns > now && l->timer_ns <= now + (uint64_t)ns)
        return HZP_OK;
    struct itimerspec when = {.it_value = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}};
    l->timer_ns = now + (uint64_t)ns;
    return timerfd_settime(l->timer, 0, &when, NULL) < 0
               ? hzp_fail(l->reterr, HZP_EIO, "timer: %s", strerror(errno))
               : HZP_OK;
}

static void tell(struct load *l, uint64_t now)
{
    if (!l->config->progress || seconds(l->told_ns, now) < 5)
        return;
    l->told_ns = now;
    fprintf(stderr, "%.0f s: %lld of %lld sent, %d in flight, %lld answered, %lld failed\n",
            seconds(l->begin_ns, now), (long long)l->record->sent,
            (long long)l->work->trace.requests, l->streams, (long long)l->record->answers,
            (long long)l->record->failed);
}

static int loop(struct load *l)
{
    struct epoll_event ready[EVENTS];
    uint64_t expirations;
    l->begin_ns = l->ended_ns = l->told_ns = l->looked_ns = hzp_now_ns();
    while (!interrupted && (l->next < l->work->trace.requests || l->streams)) {
        uint64_t now = hzp_now_ns();
        while (l->next < l->work->trace.requests && l->streams < l->max && due(l, now)) {
            HZP_TRY(start_next(l));
            now = hzp_now_ns();
        }
        if (l->curl_ns <= now)
            act(l, CURL_SOCKET_TIMEOUT, 0);
        HZP_TRY(end_ended(l));
        HZP_TRY(set_clock(l, now));
        int n = epoll_wait(l->epoll, ready, EVENTS, -1);
        if (n < 0 && errno != EINTR)
            return hzp_fail(l->reterr, HZP_EIO, "epoll: %s", strerror(errno));
        for (int i = 0; i < n; i++) {
            if (ready[i].data.fd != l->timer)
                act(l, ready[i].data.fd, ready[i].events);
            else if (read(l->timer, &expirations, sizeof(expirations)) < 0 && errno != EAGAIN)
                return hzp_fail(l->reterr, HZP_EIO, "timer: %s", strerror(errno));
        }
        HZP_TRY(end_ended(l));
        now = hzp_now_ns();
        if (seconds(l->looked_ns, now) >= LOOK_S) {
            l->looked_ns = now;
            HZP_TRY(end_silent(l, now));
        }
        tell(l, now);
    }
    l->record->duration_s = seconds(l->begin_ns, l->ended_ns);
    return HZP_OK;
}

/* The number of sockets: as wanted, limited by what the process may open. */
static int32_t sockets(int32_t wanted)
{
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = HZP_MIN(limit.rlim_max, (rlim_t)SOCKETS_MAX);
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    int32_t most = (int32_t)HZP_MIN(limit.rlim_cur, (rlim_t)SOCKETS_MAX) - SPARE_SOCKETS;
    return HZP_MAX(1, wanted ? HZP_MIN(wanted, most) : most);
}

/* Makes the common end of all bodies. */
static char *make_tail(const struct hzp_load_config *config)
{
    json_t *same = json_pack("{s:s, s:b, s:{s:b}, s:f, s:f, s:b}", "model", config->server->model,
                             "stream", 1, "stream_options", "include_usage", 1, "temperature",
                             config->temperature, "top_p", config->top_p, "ignore_eos", 1);
    if (same && config->extra)
        json_object_update(same, (json_t *)(uintptr_t)config->extra);
    char *text = same ? hzp_json_dumps(same, JSON_COMPACT) : NULL;
    json_decref(same);
    if (!text)
        return NULL;
    size_t n = strlen(text); /* length of {"model":...}, appended without its opening brace */
    char *tail = malloc(n + 2);
    if (tail) {
        memcpy(tail, "],", 2);
        memcpy(tail + 2, text + 1, n);
    }
    free(text);
    return tail;
}

/* NULL: no memory. */
static CURLM *make_multi(struct load *l)
{
    CURLM *multi = curl_multi_init();
    if (!multi)
        return NULL;
    curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, l);
    curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(multi, CURLMOPT_TIMERDATA, l);
    curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)l->max);
    return multi;
}

static int drive(const struct hzp_load_config *config, const struct hzp_workload *work, int32_t max,
                 struct hzp_load_record *record, struct hzp_load_failures *failures,
                 struct hzp_err_text *reterr)
{
    struct load *l = hzp_xcalloc(1, sizeof(*l));
    int32_t longest = 1;
    int r = HZP_OK;
    for (int64_t i = 0; i < work->trace.requests; i++)
        longest = HZP_MAX(longest, work->trace.request[i].input);
    *l = (struct load){.config = config,
                       .work = work,
                       .record = record,
                       .failures = failures,
                       .max = max,
                       .curl_ns = UINT64_MAX,
                       .reterr = reterr};
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    l->running = malloc((size_t)max * sizeof(struct stream *));
    l->prompt = malloc((size_t)longest * sizeof(*l->prompt));
    l->tail = make_tail(config);
    l->multi = make_multi(l);
    struct epoll_event clock = {.events = EPOLLIN, .data.fd = l->timer};
    if (!l->running || !l->prompt || !l->tail || !l->multi)
        r = hzp_fail(reterr, HZP_ENOMEM, "no memory for %d requests in flight", max);
    else if (l->epoll < 0 || l->timer < 0 ||
             epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->timer, &clock) < 0)
        r = hzp_fail(reterr, HZP_EIO, "epoll: %s", strerror(errno));
    else
        r = loop(l);
    while (l->streams)
        free_stream(l, l->running[--l->streams]);
    curl_multi_cleanup(l->multi);
    if (l->epoll >= 0)
        close(l->epoll);
    if (l->timer >= 0)
        close(l->timer);
    free(l->running);
    free(l->prompt);
    free(l->tail);
    free(l);
    return r;
}

/* Sends the warm-up requests one after another: the same lengths, other tokens. */
static int warm_up(const struct hzp_load_config *config, struct hzp_err_text *reterr)
{
    struct hzp_workload work = *config->work;
    struct hzp_load_config unrecorded = *config;
    struct hzp_load_record record = {0};
    struct hzp_load_failures failures = {0};
    unrecorded.record = NULL;
    work.trace.requests = HZP_MIN(work.trace.requests, (int64_t)config->warmup);
    work.trace.timed = false;
    work.seed = ~work.seed;
    int r = drive(&unrecorded, &work, 1, &record, &failures, reterr);
    if (r == HZP_OK && record.failed)
        r = hzp_fail(reterr, HZP_EIO, "a warm-up request failed: %s", failures.reason[0].text);
    hzp_load_record_free(&record);
    return r;
}

int hzp_load_run(const struct hzp_load_config *config, struct hzp_load_record *record,
                 struct hzp_load_failures *failures, struct hzp_err_text *reterr)
{
    struct sigaction on = {.sa_handler = on_interrupt}, before;
    interrupted = 0;
    sigaction(SIGINT, &on, &before);
    int r = HZP_OK;
    if (config->warmup > 0)
        r = warm_up(config, reterr);
    if (r == HZP_OK)
        r = drive(config, config->work, sockets(config->max_running), record, failures, reterr);
    sigaction(SIGINT, &before, NULL);
    return r;
}
