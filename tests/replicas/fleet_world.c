/* SPDX-License-Identifier: Apache-2.0 */
/* tests/replicas/fleet_world.c - what stands for clock, sockets and engines, and the sabotage. */
#include "device/philox.h"
#include "tests/replicas/fleet.h"

#include <stdlib.h>
#include <string.h>

/* --- The clock and the sockets ---------------------------------------------------------------- */

uint64_t __wrap_hzp_now_ns(void);
uint64_t __wrap_hzp_now_ns(void)
{
    return d.now_ns;
}

int __wrap_hzp_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *ctx);
int __wrap_hzp_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *ctx)
{
    return HZP_OK; /* it is turned by this program */
}

static int put(struct way *way, const void *data, size_t bytes)
{
    if (way->count == QUEUE)
        return HZP_EBUSY;
    struct frame *f = &way->frame[(way->first + way->count) % QUEUE];
    uint64_t at = d.now_ns + seeded(&d.random, 3) * ms;
    if (way->count)
        at = HZP_MAX(at, way->frame[(way->first + way->count - 1) % QUEUE].at_ns);
    *f = (struct frame){.data = hzp_xcalloc(1, bytes + 1), .bytes = bytes, .at_ns = at};
    memcpy(f->data, data, bytes);
    way->count++;
    return HZP_OK;
}

static bool get(struct way *way, const char **ret, size_t *ret_bytes)
{
    struct frame *f = &way->frame[way->first];
    if (!way->count || f->at_ns > d.now_ns)
        return false;
    free(way->read);
    *ret = way->read = f->data;
    *ret_bytes = f->bytes;
    way->first = (way->first + 1) % QUEUE;
    way->count--;
    return true;
}

void cut(struct way *way, int32_t kept)
{
    for (; way->count > kept; way->count--)
        free(way->frame[(way->first + way->count - 1) % QUEUE].data);
}

static struct fleet_pipe *pipe_of(struct hzp_pipe *w)
{
    return (struct fleet_pipe *)(void *)w;
}

int __wrap_hzp_pipe_listen(const struct hzp_pipe_place *at, size_t most, struct hzp_pipe **ret,
                           struct hzp_err_text *reterr);
int __wrap_hzp_pipe_listen(const struct hzp_pipe_place *at, size_t most, struct hzp_pipe **ret,
                           struct hzp_err_text *reterr)
{
    d.pipe.listens = true;
    *ret = (struct hzp_pipe *)(void *)&d.pipe;
    return HZP_OK;
}

int __wrap_hzp_pipe_connect(const struct hzp_pipe_place *at, size_t most, struct hzp_pipe **ret,
                            struct hzp_err_text *reterr);
int __wrap_hzp_pipe_connect(const struct hzp_pipe_place *at, size_t most, struct hzp_pipe **ret,
                            struct hzp_err_text *reterr)
{
    HZP_ASSERT(d.connections < CONNECTIONS);
    struct fleet_pipe *pipe = hzp_xcalloc(1, sizeof(*pipe));
    pipe->number = d.connections++;
    d.connection[pipe->number].up = true;
    *ret = (struct hzp_pipe *)(void *)pipe;
    return HZP_OK;
}

void __wrap_hzp_pipe_close(struct hzp_pipe *w);
void __wrap_hzp_pipe_close(struct hzp_pipe *w)
{
    struct fleet_pipe *pipe = pipe_of(w);
    if (!pipe || pipe->listens)
        return;
    d.connection[pipe->number].up = false;
    free(pipe);
}

int __wrap_hzp_pipe_send(struct hzp_pipe *w, const struct hzp_pipe_peer *peer, const void *data,
                         size_t bytes);
int __wrap_hzp_pipe_send(struct hzp_pipe *w, const struct hzp_pipe_peer *peer, const void *data,
                         size_t bytes)
{
    int32_t number = pipe_of(w)->number;
    if (peer)
        memcpy(&number, peer->name, sizeof(number));
    struct connection *c = &d.connection[number];
    if (peer && !c->up)
        return HZP_EIO;
    return put(peer ? &c->to_replica : &c->to_front, data, bytes);
}

bool __wrap_hzp_pipe_receive(struct hzp_pipe *w, struct hzp_pipe_peer *peer, const char **ret,
                             size_t *ret_bytes);
bool __wrap_hzp_pipe_receive(struct hzp_pipe *w, struct hzp_pipe_peer *peer, const char **ret,
                             size_t *ret_bytes)
{
    if (!pipe_of(w)->listens)
        return get(&d.connection[pipe_of(w)->number].to_replica, ret, ret_bytes);
    for (int32_t i = 0; i < d.connections; i++)
        if (get(&d.connection[i].to_front, ret, ret_bytes)) {
            *peer = (struct hzp_pipe_peer){.size = sizeof(i)};
            memcpy(peer->name, &i, sizeof(i));
            return true;
        }
    return false;
}

void __wrap_hzp_pipe_poke(struct hzp_pipe *w);
void __wrap_hzp_pipe_poke(struct hzp_pipe *w)
{
}

/* --- What the front and the replicas know of engines ------------------------------------------ */

void __wrap_hzp_loop_poke(struct hzp_loop *loop);
void __wrap_hzp_loop_poke(struct hzp_loop *loop)
{
}

void __wrap_hzp_loop_stop(struct hzp_loop *loop, bool hurry);
void __wrap_hzp_loop_stop(struct hzp_loop *loop, bool hurry)
{
    broken("a replica leaves", hurry, 0);
}

void __wrap_hzp_weights_read_stats(struct hzp_weights *w, struct hzp_weights_stats *ret);
void __wrap_hzp_weights_read_stats(struct hzp_weights *w, struct hzp_weights_stats *ret)
{
    const struct rank *r = (const struct rank *)(const void *)w;
    const struct version *v = &d.version[r->version];
    *ret = (struct hzp_weights_stats){.serving_id = r->version,
                                      .serving_optimizer_step = v->step,
                                      .learned_through = v->learned,
                                      .finished_optimizer_step = d.finished};
}

int32_t __wrap_hzp_weights_list(struct hzp_weights *w, struct hzp_version_record *ret, int32_t max);
int32_t __wrap_hzp_weights_list(struct hzp_weights *w, struct hzp_version_record *ret, int32_t max)
{
    const struct rank *r = (const struct rank *)(const void *)w;
    int32_t n = 0;
    for (uint64_t id = r->version; id > 0 && n < max; id--)
        ret[n++] = (struct hzp_version_record){
            .id = id,
            .optimizer_step = d.version[id].step,
            .learned_through = d.sabotage == ALL_LEARNED ? INT64_MAX : d.version[id].learned};
    return n;
}

static int32_t waiting(const struct rank *r)
{
    int32_t n = 0;
    for (const struct job *job = r->jobs; job; job = job->next)
        n += !job->runs;
    return n;
}

void __wrap_hzp_scheduler_read_stats(struct hzp_scheduler *s, struct hzp_scheduler_stats *ret);
void __wrap_hzp_scheduler_read_stats(struct hzp_scheduler *s, struct hzp_scheduler_stats *ret)
{
    const struct rank *r = (const struct rank *)(const void *)s;
    *ret = (struct hzp_scheduler_stats){.waiting = waiting(r), .kv_peak = 2 * r->count};
    ret->running = r->count - ret->waiting;
}

int __wrap_hzp_scheduler_check(const struct hzp_scheduler *s, const struct hzp_request *rq,
                               struct hzp_err_text *reterr);
int __wrap_hzp_scheduler_check(const struct hzp_scheduler *s, const struct hzp_request *rq,
                               struct hzp_err_text *reterr)
{
    return HZP_OK;
}

int __wrap_hzp_scheduler_submit_all(struct hzp_scheduler *s, struct hzp_request *const *rq,
                                    int32_t count, struct hzp_err_text *reterr);
int __wrap_hzp_scheduler_submit_all(struct hzp_scheduler *s, struct hzp_request *const *rq,
                                    int32_t count, struct hzp_err_text *reterr)
{
    struct rank *r = (struct rank *)(void *)s;
    if (waiting(r) + count > WAITING)
        return hzp_fail(reterr, HZP_EBUSY, "full");
    for (int32_t i = 0; i < count; i++) {
        struct job *job = hzp_xcalloc(1, sizeof(*job));
        *job = (struct job){.rq = rq[i], .since_ns = d.now_ns, .next = r->jobs};
        job->bound = rq[i]->demands.mode == HZP_ABORT && atomic_load(&rq[i]->out_count) > 0;
        r->jobs = job;
        r->count++;
        if (!rq[i]->submitted_ns)
            rq[i]->submitted_ns = d.now_ns;
        atomic_store(&rq[i]->let_go, false);
        atomic_store(&rq[i]->state, HZP_REQUEST_WAITING);
    }
    return HZP_OK;
}

int __wrap_hzp_scheduler_submit(struct hzp_scheduler *s, struct hzp_request *rq,
                                struct hzp_err_text *reterr);
int __wrap_hzp_scheduler_submit(struct hzp_scheduler *s, struct hzp_request *rq,
                                struct hzp_err_text *reterr)
{
    return __wrap_hzp_scheduler_submit_all(s, &rq, 1, reterr);
}

void __wrap_hzp_scheduler_stop(struct hzp_scheduler *s, bool hurry);
void __wrap_hzp_scheduler_stop(struct hzp_scheduler *s, bool hurry)
{
}

/* --- Sabotage --------------------------------------------------------------------------------- */

void __real_hzp_front_unplace(struct hzp_front *f, struct hzp_remote *m);
void __wrap_hzp_front_unplace(struct hzp_front *f, struct hzp_remote *m);
void __wrap_hzp_front_unplace(struct hzp_front *f, struct hzp_remote *m)
{
    totals.moved += m->sent;
    totals.recalled += m->recalled;
    if (d.sabotage != KEPT)
        __real_hzp_front_unplace(f, m);
}

bool __real_hzp_news_token(struct hzp_message_reader *reader, const struct hzp_news *news,
                           int32_t vocab, struct hzp_output *ret, int32_t *top_token,
                           float *top_logprob);
bool __wrap_hzp_news_token(struct hzp_message_reader *reader, const struct hzp_news *news,
                           int32_t vocab, struct hzp_output *ret, int32_t *top_token,
                           float *top_logprob);
bool __wrap_hzp_news_token(struct hzp_message_reader *reader, const struct hzp_news *news,
                           int32_t vocab, struct hzp_output *ret, int32_t *top_token,
                           float *top_logprob)
{
    bool good = __real_hzp_news_token(reader, news, vocab, ret, top_token, top_logprob);
    ret->version += d.sabotage == OTHER_SPANS && chance(20);
    return good;
}

int __real_hzp_dispatch_choose(const struct hzp_dispatch_ask *ask,
                               const struct hzp_dispatch_rank *rank, int ranks);
int __wrap_hzp_dispatch_choose(const struct hzp_dispatch_ask *ask,
                               const struct hzp_dispatch_rank *rank, int ranks);
int __wrap_hzp_dispatch_choose(const struct hzp_dispatch_ask *ask,
                               const struct hzp_dispatch_rank *rank, int ranks)
{
    struct hzp_dispatch_rank any[RANKS];
    memcpy(any, rank, sizeof(any));
    for (int r = 0; r < ranks && d.sabotage == ANY_RANK; r++)
        any[r].takes |= d.front->place[r].is.up;
    return __real_hzp_dispatch_choose(ask, any, ranks);
}

/* --- Engines ---------------------------------------------------------------------------------- */

int64_t needs(const struct hzp_request *rq)
{
    return HZP_MAX(rq->demands.min_sequence, rq->demands.through);
}

int32_t token_of(const struct hzp_request *rq, int32_t n, uint64_t version)
{
    uint64_t hash = version;
    for (int32_t i = 0; i < rq->prompt_count; i++)
        hash = hzp_mix64(hash + (uint64_t)rq->prompt[i]);
    for (int32_t i = 0; i < n; i++)
        hash = hzp_mix64(hash + (uint64_t)rq->out[i].token);
    return (int32_t)(hash % VOCAB);
}

float hidden_of(const struct hzp_request *rq, uint64_t version, int32_t col)
{
    return (float)(token_of(rq, 0, version) + col);
}

/* What becomes of a job in this step, but for its token; RUNNING: it has one. */
static enum hzp_request_state look_at(const struct rank *r, struct job *job)
{
    struct hzp_request *rq = job->rq;
    const struct version *v = &d.version[r->version];
    int32_t drawn = atomic_load(&rq->out_count);
    uint64_t last = drawn ? rq->out[drawn - 1].version : 0;
    bool keeps = rq->demands.mode == HZP_ABORT && drawn;
    bool learned = r->index || v->learned >= needs(rq); /* replicas do not know */
    if (atomic_load(&rq->cancel))
        return HZP_REQUEST_CANCELED;
    if ((keeps && r->version > last) || (drawn && !learned)) {
        rq->changed = HZP_CHANGED_SWAP;
        return HZP_REQUEST_CHANGED;
    }
    if (learned && r->version >= rq->demands.min_version && (!keeps || r->version == last))
        return HZP_REQUEST_RUNNING;
    if (d.now_ns - job->since_ns < rq->demands.wait_ns)
        return HZP_REQUEST_WAITING;
    rq->unmet = HZP_UNMET_TIME;
    return HZP_REQUEST_UNMET;
}

static enum hzp_request_state draw(const struct rank *r, struct job *job)
{
    struct hzp_request *rq = job->rq;
    int32_t n = atomic_load(&rq->out_count);
    if (!n)
        rq->admitted_ns = d.now_ns;
    struct life *life = &d.life[rq->sampling.seed];
    const struct version *v = &d.version[r->version], *newest = &d.version[d.newest];
    int64_t trails = v->line == newest->line ? d.finished - v->step : 0;
    life->trails[n] = HZP_MIN(life->trails[n], trails);
    job->staleness = HZP_MAX(job->staleness, trails);
    if (!r->index)
        atomic_store(&rq->staleness, HZP_MAX(rq->staleness, job->staleness));
    for (int32_t c = 0; c < rq->hidden_cols; c++)
        rq->hidden[c] = hidden_of(rq, r->version, c);
    rq->prompt_version = rq->pooling ? r->version : 0;
    if (rq->pooling)
        return HZP_REQUEST_LENGTH;
    rq->out[n] = (struct hzp_output){
        .token = token_of(rq, n, r->version), .version = r->version, .prompt_version = r->version};
    atomic_store(&rq->out_count, n + 1);
    rq->stop_token = rq->out[n].token;
    return n + 1 == rq->max_tokens ? HZP_REQUEST_LENGTH
           : rq->out[n].token == 0 ? HZP_REQUEST_STOPPED
                                   : HZP_REQUEST_RUNNING;
}

void leave(struct rank *r, struct job **at)
{
    struct job *job = *at;
    *at = job->next;
    r->count--;
    free(job);
}

void step(struct rank *r)
{
    int32_t running = 0;
    r->step_ns = d.now_ns + (2 + seeded(&d.random, 8)) * ms;
    for (struct job *job = r->jobs; job; job = job->next)
        running += job->runs;
    for (struct job **at = &r->jobs; *at;) {
        struct job *job = *at;
        struct hzp_request *rq = job->rq;
        enum hzp_request_state state = look_at(r, job);
        if (state == HZP_REQUEST_RUNNING && !job->runs && running < RUNNING) {
            job->runs = true;
            running++;
        }
        bool draws = state == HZP_REQUEST_RUNNING && job->runs;
        if (draws)
            state = draw(r, job);
        bool final = state >= HZP_REQUEST_STOPPED;
        if (final)
            atomic_store(&rq->state, state);
        if (rq->wake && (draws || final))
            rq->wake(rq->wake_ctx, false);
        if (final) {
            leave(r, at);
            atomic_store(&rq->let_go, true);
        } else {
            at = &job->next;
        }
    }
}
