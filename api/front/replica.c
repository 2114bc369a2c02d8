/* SPDX-License-Identifier: Apache-2.0 */
#include "api/front/replica.h"

#include "base/log.h"
#include "nanobatch/split/split.h"

static const uint64_t news_ns = 500000000u; /* after which there are some in any case */
static const uint64_t hello_ns = 500000000u;

/* A request of the front. */
struct job {
    struct hzp_replica_rank *of;
    struct hzp_request *rq; /* owned; NULL: it was refused */
    uint64_t id;
    int32_t sent;
    bool dropped; /* its result is not sent to the front */
    int refused;
    char text[HZP_NEWS_TEXT]; /* why it was refused */
    struct hzp_sent_rules rules;
    bool waits; /* for its grammar: it is not submitted */
    /* Written by the thread that makes the grammar, the last after the others. */
    int made_code;
    struct hzp_err_text made_err;
    _Atomic bool made;
    /* Written by the engine's thread in the request's wake, the first before the second: the
     * request is final; how many tokens it had then.  So tokens that end a request are never sent
     * without its end. */
    _Atomic bool ended;
    _Atomic int32_t drawn;
    struct job *next;
};

enum phase { KNOCKS, SERVES, OVER };

struct hzp_replica_rank {
    struct hzp_replica_config config;
    char *record;
    struct hzp_pipe *pipe;
    pthread_t thread;
    _Atomic bool closing;

    /* the thread's */
    enum phase phase;
    struct job *jobs;
    struct hzp_message out;
    bool full; /* out could not be sent: it is, before anything else */
    struct hzp_front_beat told;
    pthread_t maker;
    bool maker_runs;
    struct hzp_wake wake; /* the maker's */
    struct job *_Atomic making;
    uint64_t heard_ns, said_ns, turned_ns, began_ns; /* began: to knock */
    int32_t round;
    int result;
    struct hzp_err_text err;
};

static void free_job(struct job *job)
{
    hzp_request_destroy(job->rq); /* waits until the engine has let go of it */
    hzp_sent_rules_fini(&job->rules);
    free(job);
}

/* ---- the end ---- */

/* The requests are computed elsewhere from now on. */
static void drop_jobs(struct hzp_replica_rank *r)
{
    for (struct job *job = r->jobs; job; job = job->next) {
        job->dropped = true;
        if (job->rq)
            atomic_store(&job->rq->cancel, true);
    }
    hzp_loop_poke(r->config.loop);
}

/* Frees those of them that the engine is done with. */
static void free_dropped(struct hzp_replica_rank *r)
{
    for (struct job **at = &r->jobs; *at;) {
        struct job *job = *at;
        bool runs = job->rq && !job->waits && !atomic_load(&job->ended);
        if (!job->dropped || runs || job == atomic_load(&r->making)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        free_job(job);
    }
}

/* This rank takes no more part: the front moves its requests to other ranks. */
static void leave(struct hzp_replica_rank *r, int result, const char *why)
{
    if (r->phase == OVER)
        return;
    r->phase = OVER;
    r->result = result;
    hzp_fail(&r->err, result, "%s", why);
    hzp_pipe_send(r->pipe, NULL, "G", 1);
    hzp_log(result < 0 ? HZP_LOG_ERROR : HZP_LOG_INFO, "ranks", "replica leaves rank=%d: %s",
            r->config.hello.rank, why);
    drop_jobs(r);
    hzp_scheduler_stop(r->config.scheduler, true);
    hzp_loop_stop(r->config.loop, false);
}

/* ---- requests ---- */

/* Engine thread: the request has new tokens or has ended. */
static void wake(void *ctx, bool more)
{
    struct job *job = ctx;
    bool final = hzp_request_final(job->rq);
    if (final)
        atomic_store(&job->ended, true);
    atomic_store_explicit(&job->drawn, atomic_load(&job->rq->out_count), memory_order_release);
    if (!more)
        hzp_pipe_poke(job->of->pipe);
}

static void refuse(struct job *job, int code, const char *why)
{
    hzp_request_destroy(job->rq);
    job->rq = NULL;
    job->refused = code;
    snprintf(job->text, sizeof(job->text), "%.250s", why);
}

static void submit(struct hzp_replica_rank *r, struct job *job)
{
    struct hzp_err_text err = {0};
    int code = hzp_scheduler_submit(r->config.scheduler, job->rq, &err);
    if (code < 0)
        refuse(job, code, err.text);
    else
        hzp_loop_poke(r->config.loop);
}

static void take_request(struct hzp_replica_rank *r, const char *data, size_t bytes)
{
    struct hzp_err_text err = {0};
    const struct hzp_hello *own = &r->config.hello;
    struct hzp_message_limits limits = {own->vocab, own->positions, own->width};
    struct job *job = hzp_xcalloc(1, sizeof(*job));
    int code = hzp_request_read(data, bytes, &limits, &job->id, &job->rq, &job->rules, &err);
    if (code == HZP_EFORMAT) {
        free(job);
        leave(r, HZP_EINVAL, "rank 0 has sent a malformed request");
        return;
    }
    job->of = r;
    job->next = r->jobs;
    r->jobs = job;
    if (code < 0) {
        refuse(job, code, err.text);
        return;
    }
    job->sent = atomic_load(&job->rq->out_count);
    atomic_store(&job->drawn, job->sent);
    job->rq->wake = wake;
    job->rq->wake_ctx = job;
    job->waits = job->rules.rules.source != NULL;
    if (!job->waits)
        submit(r, job);
}

/* ---- grammars ---- */

static void *maker_main(void *arg)
{
    struct hzp_replica_rank *r = arg;
    while (hzp_wake_wait(&r->wake, UINT64_MAX) && !atomic_load(&r->closing)) {
        struct job *job = atomic_load(&r->making);
        if (!job)
            continue;
        job->made_code = r->config.make_rules(r->config.ctx, job->rules.rules.source,
                                              &job->rules.rules.constraint, &job->made_err);
        atomic_store(&job->made, true);
        hzp_pipe_poke(r->pipe);
    }
    return NULL;
}

static bool start_maker(struct hzp_replica_rank *r)
{
    if (!r->maker_runs && r->config.make_rules)
        r->maker_runs = hzp_thread_start(&r->maker, "hzp-rules", maker_main, r) == HZP_OK;
    return r->maker_runs;
}

/* Submits the request whose grammar is made, refuses those that were cancelled while they waited,
 * and has the oldest one that waits made. */
static void make_rules(struct hzp_replica_rank *r)
{
    struct job *made = atomic_load(&r->making), *making = NULL, *oldest = NULL;
    if (made && !atomic_load(&made->made)) {
        making = made;
        made = NULL;
    }
    if (made) {
        atomic_store(&r->making, NULL);
        made->waits = false;
        if (made->dropped || made->made_code < 0)
            refuse(made, made->made_code < 0 ? made->made_code : HZP_EBUSY, made->made_err.text);
        else
            submit(r, made);
    }
    for (struct job *job = r->jobs; job; job = job->next) {
        if (!job->waits || job->dropped || job == making)
            continue;
        bool canceled = atomic_load(&job->rq->cancel);
        if (!canceled && start_maker(r)) {
            oldest = job;
            continue;
        }
        job->waits = false;
        refuse(job, HZP_EBUSY, canceled ? "it was canceled" : "this rank makes no grammars");
    }
    if (making || !oldest)
        return;
    atomic_store(&r->making, oldest);
    hzp_wake_poke(&r->wake);
}

static void cancel(struct hzp_replica_rank *r, const char *data, size_t bytes)
{
    uint64_t id;
    if (hzp_plain_read(data, bytes, &id, sizeof(id)) < 0) {
        leave(r, HZP_EINVAL, "rank 0 has sent a malformed cancellation");
        return;
    }
    for (struct job *job = r->jobs; job; job = job->next)
        if (job->id == id && job->rq) {
            atomic_store(&job->rq->cancel, true);
            hzp_loop_poke(r->config.loop);
        }
}

static void take_policy(struct hzp_replica_rank *r, const char *data, size_t bytes)
{
    struct hzp_policy policy;
    if (hzp_policy_read(data, bytes, &policy) < 0) {
        leave(r, HZP_EINVAL, "rank 0 has sent a malformed policy");
        return;
    }
    if (r->config.split)
        hzp_split_set_policy(r->config.split, &policy);
    hzp_loop_poke(r->config.loop);
}

/* ---- news ---- */

static struct hzp_replica_load load_of(const struct hzp_replica_rank *r)
{
    struct hzp_scheduler_stats s;
    struct hzp_weights_stats w;
    hzp_scheduler_read_stats(r->config.scheduler, &s);
    hzp_weights_read_stats(r->config.weights, &w);
    return (struct hzp_replica_load){.version = w.serving_id,
                                     .optimizer_step = w.serving_optimizer_step,
                                     .running = s.running,
                                     .waiting = s.waiting,
                                     .kv_taken = s.kv_taken,
                                     .kv_needed = HZP_MAX(s.kv_peak, 0),
                                     .prompt_tokens = s.prompt_tokens,
                                     .generated_tokens = s.generated_tokens,
                                     .found_tokens = s.found_tokens,
                                     .preempted = s.preempted,
                                     .told = r->told};
}

/* Adds what is new of the job, as much as one message holds.  *ret_over: there is no more to come.
 * False: nothing is new. */
static bool add_news(struct hzp_replica_rank *r, struct job *job, bool *ret_over)
{
    struct hzp_news news = {.id = job->id, .from = job->sent, .state = HZP_REQUEST_RUNNING};
    const struct hzp_request *rq = job->rq;
    *ret_over = false;
    if (!rq) {
        news.refused = job->refused;
        memcpy(news.text, job->text, sizeof(news.text));
        hzp_news_add(&r->out, &news, NULL);
        return *ret_over = true;
    }
    int32_t drawn = atomic_load_explicit(&job->drawn, memory_order_acquire);
    bool ended = atomic_load(&job->ended);
    if (ended)
        drawn = atomic_load(&rq->out_count);
    size_t left = HZP_NEWS_MAX - HZP_MIN(r->out.bytes, (size_t)HZP_NEWS_MAX);
    size_t one = 64 + (sizeof(int32_t) + sizeof(float)) * (size_t)rq->tops;
    news.count = (int32_t)HZP_MIN((size_t)(drawn - job->sent), 1 + left / one);
    news.tops = rq->tops;
    ended = ended && job->sent + news.count == drawn;
    if (!news.count && !ended)
        return false;
    news.cached = rq->cached;
    news.stale_tokens = atomic_load(&rq->stale_tokens);
    news.stale_version = atomic_load(&rq->stale_version);
    if (rq->prompt_logprobs && !news.from &&
        (news.count || (ended && atomic_load(&rq->state) == HZP_REQUEST_LENGTH))) {
        news.prompts = rq->prompt_count;
        news.prompt_version = news.count ? rq->out[0].prompt_version : rq->prompt_version;
    }
    if (ended) {
        news.state = atomic_load(&rq->state);
        news.stop_token = rq->stop_token;
        news.unmet = (int32_t)rq->unmet;
        news.changed = (int32_t)rq->changed;
        news.recomputes = rq->recomputes;
        news.not_finite = rq->not_finite;
        news.hidden = news.state == HZP_REQUEST_LENGTH ? rq->hidden_cols : 0;
        if (news.hidden)
            news.prompt_version = rq->prompt_version;
    }
    if (rq->admitted_ns > rq->submitted_ns)
        news.waited_ns = rq->admitted_ns - rq->submitted_ns;
    hzp_news_add(&r->out, &news, rq);
    job->sent += news.count;
    return *ret_over = ended, true;
}

static bool flush(struct hzp_replica_rank *r)
{
    int code = hzp_pipe_send(r->pipe, NULL, r->out.data, r->out.bytes);
    r->full = code == HZP_EBUSY;
    return !r->full;
}

/* Sends what is new, in as many messages as it takes; stops where the front does not read. */
static void send_news(struct hzp_replica_rank *r)
{
    struct hzp_replica_load load = load_of(r);
    uint64_t now = hzp_now_ns();
    if (r->full && !flush(r))
        return;
    hzp_news_begin(&r->out, &load);
    size_t empty = r->out.bytes;
    for (struct job **at = &r->jobs; *at;) {
        struct job *job = *at;
        bool over;
        if (job->dropped) {
            at = &job->next;
            continue;
        }
        if (r->out.bytes >= HZP_NEWS_MAX) {
            if (!flush(r))
                return;
            hzp_news_begin(&r->out, &load);
        }
        add_news(r, job, &over);
        if (over) {
            *at = job->next;
            free_job(job);
        } else if (!job->rq || job->sent >= atomic_load(&job->drawn)) {
            at = &job->next;
        } /* else it has more, which the message had no room for */
    }
    if (r->out.bytes == empty && now - r->said_ns < news_ns)
        return;
    flush(r);
    r->said_ns = now;
}

/* ---- the thread ---- */

static void knock(struct hzp_replica_rank *r, uint64_t now)
{
    if ((double)(now - r->began_ns) * 1e-9 > r->config.meet_s) {
        char why[96];
        snprintf(why, sizeof(why), "rank 0 did not take this replica in within %.0f s",
                 r->config.meet_s);
        leave(r, HZP_EIO, why);
        return;
    }
    if (now - r->said_ns < hello_ns)
        return;
    struct hzp_weights_stats w;
    struct hzp_hello hello = r->config.hello;
    hzp_weights_read_stats(r->config.weights, &w);
    if (w.serving_id != hello.version)
        hello.checksum = 0; /* it was of another one */
    hello.version = w.serving_id;
    hello.optimizer_step = w.serving_optimizer_step;
    hello.round = r->round;
    hzp_hello_write(&r->out, &hello, r->record);
    hzp_pipe_send(r->pipe, NULL, r->out.data, r->out.bytes);
    r->said_ns = now;
}

/* Rank 0 is silent, or does not listen to this rank: it asks to be taken in again. */
static void come_again(struct hzp_replica_rank *r, uint64_t now, const char *why)
{
    r->phase = KNOCKS;
    r->round++;
    r->began_ns = now;
    r->said_ns = 0;
    r->full = false;
    hzp_log(HZP_LOG_WARN, "ranks", "replica knocks again rank=%d: %s", r->config.hello.rank, why);
    drop_jobs(r);
}

static void handle(struct hzp_replica_rank *r, const char *data, size_t bytes)
{
    r->heard_ns = hzp_now_ns();
    if (r->phase == OVER)
        return;
    if (data[0] == 'W' && r->phase == KNOCKS) {
        r->phase = SERVES;
        r->said_ns = 0;
        hzp_log(HZP_LOG_INFO, "ranks", "replica serves rank=%d", r->config.hello.rank);
    } else if (data[0] == 'K' && r->phase == SERVES) {
        come_again(r, r->heard_ns, "rank 0 does not know it");
    } else if (data[0] == 'X') {
        char why[HZP_NEWS_TEXT];
        snprintf(why, sizeof(why), "rank 0 refuses this replica: %.*s",
                 (int)HZP_MIN(bytes - 1, sizeof(why) / 2), data + 1);
        leave(r, HZP_EINVAL, why);
    } else if (data[0] == 'G') {
        leave(r, HZP_OK, "rank 0 has ended");
    } else if (data[0] == 'R' && r->phase == SERVES) {
        take_request(r, data, bytes);
    } else if (data[0] == 'C' && r->phase == SERVES) {
        cancel(r, data, bytes);
    } else if (data[0] == 'P' && r->phase == SERVES) {
        take_policy(r, data, bytes);
    } else if (data[0] == 'B' && hzp_plain_read(data, bytes, &r->told, sizeof(r->told)) < 0) {
        leave(r, HZP_EINVAL, "rank 0 has sent a malformed beat");
    }
}

/* If this thread itself was held up, the time in which it could not hear does not count. */
static void watch(struct hzp_replica_rank *r, uint64_t now, uint64_t before)
{
    uint64_t late = now - before > 1000000000u ? now - before : 0;
    r->heard_ns = HZP_MIN(r->heard_ns + late, now);
    bool silent = r->phase == SERVES && (double)(now - r->heard_ns) * 1e-9 > r->config.silent_s;
    if (silent && r->config.stays)
        come_again(r, now, "rank 0 is silent");
    else if (silent)
        leave(r, HZP_EIO, "rank 0 is silent: it has died, or hangs");
    if (r->phase != OVER && r->config.leaves && r->config.leaves(r->config.ctx))
        leave(r, HZP_OK, "its part in training has ended");
}

void hzp_replica_turn(struct hzp_replica_rank *r)
{
    const char *data;
    size_t bytes;
    while (hzp_pipe_receive(r->pipe, NULL, &data, &bytes))
        handle(r, data, bytes);
    make_rules(r);
    uint64_t now = hzp_now_ns();
    watch(r, now, r->turned_ns);
    if (r->phase == KNOCKS)
        knock(r, now);
    free_dropped(r);
    if (r->phase == SERVES)
        send_news(r);
    r->turned_ns = now;
}

static void *replica_main(void *arg)
{
    struct hzp_replica_rank *r = arg;
    while (!atomic_load(&r->closing)) {
        hzp_pipe_wait(r->pipe, 100);
        hzp_replica_turn(r);
    }
    return NULL;
}

/* ---- the interface ---- */

int hzp_replica_start(const struct hzp_replica_config *config, struct hzp_replica_rank **ret,
                      struct hzp_err_text *reterr)
{
    struct hzp_pipe *pipe;
    HZP_TRY(hzp_pipe_connect(config->at, HZP_MESSAGE_MAX, &pipe, reterr));
    struct hzp_replica_rank *r = hzp_xcalloc(1, sizeof(*r));
    r->config = *config;
    r->record = hzp_xmalloc(strlen(config->record) + 1);
    memcpy(r->record, config->record, strlen(config->record) + 1);
    r->pipe = pipe;
    hzp_wake_init(&r->wake);
    r->began_ns = r->heard_ns = r->turned_ns = hzp_now_ns();
    if (hzp_thread_start(&r->thread, "hzp-replica", replica_main, r) < 0) {
        hzp_pipe_close(pipe);
        hzp_wake_fini(&r->wake);
        free(r->record);
        free(r);
        return hzp_fail(reterr, HZP_ENOMEM, "cannot start the thread of a replica");
    }
    *ret = r;
    return HZP_OK;
}

int hzp_replica_end(struct hzp_replica_rank *r, struct hzp_err_text *reterr)
{
    atomic_store(&r->closing, true);
    hzp_pipe_poke(r->pipe);
    pthread_join(r->thread, NULL);
    if (r->phase != OVER) /* before the wait for a grammar, which can be long */
        leave(r, HZP_OK, "its loop has ended");
    hzp_wake_poke(&r->wake);
    if (r->maker_runs)
        pthread_join(r->maker, NULL);
    return r->result < 0 ? hzp_fail(reterr, r->result, "%s", r->err.text) : HZP_OK;
}

void hzp_replica_destroy(struct hzp_replica_rank *r)
{
    if (!r)
        return;
    while (r->jobs) {
        struct job *job = r->jobs;
        r->jobs = job->next;
        free_job(job);
    }
    hzp_wake_fini(&r->wake);
    hzp_pipe_close(r->pipe);
    hzp_message_fini(&r->out);
    free(r->record);
    free(r);
}
