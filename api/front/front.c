/* SPDX-License-Identifier: Apache-2.0 */
/* api/front/front.c - requests: where each is computed, and how it ends. */
#include "api/front/front_state.h"

#include "base/log.h"

/* An id is a serial number and the index of the request. */
enum { INDEX_BITS = 24 };
static const uint64_t index_mask = ((uint64_t)1 << INDEX_BITS) - 1;

/* ---- the table of requests ---- */

static void grow(struct hzp_front *f)
{
    int32_t room = HZP_MAX(64, 2 * f->room);
    f->remote = hzp_xrealloc(f->remote, (size_t)room * sizeof(*f->remote));
    f->free = hzp_xrealloc(f->free, (size_t)room * sizeof(*f->free));
    for (int32_t i = f->room; i < room; i++) {
        f->remote[i] = (struct hzp_remote){.rq = NULL};
        f->free[i - f->room] = i; /* all others are taken */
    }
    f->room = room;
}

static struct hzp_remote *take(struct hzp_front *f, struct hzp_request *rq)
{
    if (f->count == f->room)
        grow(f);
    struct hzp_remote *m = &f->remote[f->free[f->room - f->count - 1]];
    f->count++;
    atomic_store(&f->unended, f->count);
    *m = (struct hzp_remote){.rq = rq};
    return m;
}

static void give_back(struct hzp_front *f, struct hzp_remote *m)
{
    m->rq = NULL;
    m->id = 0;
    f->count--;
    f->free[f->room - f->count - 1] = (int32_t)(m - f->remote);
    atomic_store(&f->unended, f->count);
    if (!f->count && f->stopping)
        hzp_loop_poke(f->parts.loop);
}

struct hzp_remote *hzp_front_find(struct hzp_front *f, uint64_t id)
{
    uint64_t index = id & index_mask;
    return index < (uint64_t)f->room && f->remote[index].rq && f->remote[index].id == id
               ? &f->remote[index]
               : NULL;
}

/* ---- placing ---- */

/* Replicas do not know what versions have learned: where a request may go to one, *ret_least is the
 * oldest version that meets what it asks for.  False: the one that serves does not. */
static bool served(const struct hzp_demands *d, const struct hzp_weights_stats *w,
                   uint64_t *ret_least)
{
    int64_t learned = HZP_MAX(d->min_sequence, d->through);
    *ret_least = learned ? HZP_MAX(d->min_version, w->serving_id) : d->min_version;
    return !learned || learned <= w->learned_through;
}

static struct hzp_dispatch_ask ask_of(const struct hzp_front *f, const struct hzp_request *rq)
{
    int32_t drawn = atomic_load(&rq->out_count);
    return (struct hzp_dispatch_ask){.prompt = rq->prompt_count + drawn,
                                     .expected =
                                         hzp_dispatch_expected(f->dispatch, rq->max_tokens - drawn),
                                     .session = hzp_dispatch_session(f->dispatch, rq->affinity)};
}

/* What is known of this process. */
static void look_at_own(struct hzp_front *f)
{
    struct hzp_scheduler_stats s;
    struct hzp_weights_stats w;
    struct hzp_front_rank *own = &f->place[0].is;
    hzp_scheduler_read_stats(f->parts.scheduler, &s);
    hzp_weights_read_stats(f->parts.weights, &w);
    if (w.serving_id != f->local_version)
        hzp_dispatch_forget(f->dispatch, 0);
    f->local_version = w.serving_id;
    own->requests = s.running + s.waiting;
    own->load = (struct hzp_replica_load){.version = w.serving_id,
                                          .optimizer_step = w.serving_optimizer_step,
                                          .running = s.running,
                                          .waiting = s.waiting,
                                          .kv_taken = s.kv_taken,
                                          .kv_needed = s.kv_peak,
                                          .prompt_tokens = s.prompt_tokens,
                                          .generated_tokens = s.generated_tokens,
                                          .found_tokens = s.found_tokens,
                                          .preempted = s.preempted};
}

/* Whether the rank has room for so many more. */
static bool takes(const struct hzp_place *at, int32_t count)
{
    const struct hzp_hello *h = &at->is.hello;
    return at->is.up && !at->is.draining &&
           (int64_t)at->is.requests + count <= (int64_t)h->running_max + h->waiting_max;
}

/* The rank for `count` requests like this one; -1: none has room. */
static int choose(struct hzp_front *f, const struct hzp_request *rq, int32_t count)
{
    struct hzp_dispatch_rank rank[HZP_DISPATCH_RANKS_MAX];
    struct hzp_dispatch_ask ask = ask_of(f, rq);
    int32_t found[HZP_DISPATCH_RANKS_MAX];
    look_at_own(f);
    hzp_dispatch_find(f->dispatch, rq->prompt, rq->prompt_count, f->ranks, found);
    for (int r = 0; r < f->ranks; r++) {
        const struct hzp_place *at = &f->place[r];
        rank[r] = (struct hzp_dispatch_rank){.takes = takes(at, count),
                                             .requests = at->is.requests,
                                             .running_max = at->is.hello.running_max,
                                             .kv_pages = at->is.hello.kv_pages,
                                             .kv_needed = HZP_MAX(at->is.load.kv_needed, at->pages),
                                             .page_rows = at->is.hello.page_rows,
                                             .found = found[r]};
    }
    int r = hzp_dispatch_choose(&ask, rank, f->ranks);
    if (r >= 0) {
        hzp_dispatch_note(f->dispatch, rq->prompt, rq->prompt_count, r);
        hzp_dispatch_note_session(f->dispatch, rq->affinity, r);
    }
    return r;
}

static void give(struct hzp_front *f, struct hzp_remote *m, int rank, uint64_t least)
{
    struct hzp_place *at = &f->place[rank];
    struct hzp_dispatch_ask ask = ask_of(f, m->rq);
    struct hzp_dispatch_rank where = {.page_rows = at->is.hello.page_rows};
    m->id = ++f->serial << INDEX_BITS | (uint64_t)(m - f->remote);
    m->rank = rank;
    m->pages = hzp_dispatch_pages(&ask, &where);
    m->least = least;
    m->met = 0;
    m->sent = m->cancel_sent = m->recalled = false;
    at->is.requests++;
    at->pages += m->pages;
}

void hzp_front_unplace(struct hzp_front *f, struct hzp_remote *m)
{
    struct hzp_place *at = &f->place[m->rank];
    if (m->rank) {
        at->is.requests--;
        at->pages -= m->pages;
        at->is.moved += m->sent;
    }
    m->rank = 0;
    m->id = 0;
}

/* This process computes it from now on, if it has room. */
static void keep(struct hzp_front *f, struct hzp_remote *m)
{
    struct hzp_err_text err = {0};
    struct hzp_request *rq = m->rq;
    bool only_here = rq->again; /* a replica could not compute it */
    rq->again = true;
    int r = hzp_scheduler_submit(f->parts.scheduler, rq, &err);
    if (r == HZP_EBUSY)
        rq->again = only_here;
    if (r == HZP_OK) {
        f->place[0].is.sent++;
        give_back(f, m);
        hzp_loop_poke(f->parts.loop);
    } else if (r != HZP_EBUSY) {
        hzp_log(HZP_LOG_ERROR, "ranks", "a request cannot go on here: %s", err.text);
        hzp_front_end(f, m, HZP_REQUEST_FAILED);
    }
}

void hzp_front_place(struct hzp_front *f)
{
    for (int32_t i = 0; i < f->room; i++) {
        struct hzp_remote *m = &f->remote[i];
        if (!m->rq || m->rank)
            continue;
        if (atomic_load(&m->rq->cancel)) {
            hzp_front_end(f, m, HZP_REQUEST_CANCELED);
            continue;
        }
        const struct hzp_demands *d = &m->rq->demands;
        bool only_here = m->rq->again || d->min_sequence || d->through; /* may be given up by now */
        int rank = only_here ? 0 : choose(f, m->rq, 1);
        if (rank <= 0) {
            keep(f, m);
            continue;
        }
        f->place[rank].is.sent++;
        give(f, m, rank, d->min_version);
    }
}

/* ---- submitting ---- */

/* Whether replicas can compute all of the requests. */
static bool fit(struct hzp_request *const *rq, int32_t count, const struct hzp_weights_stats *w)
{
    bool fits = true;
    uint64_t least;
    for (int32_t i = 0; i < count && fits; i++)
        fits = hzp_message_fits(rq[i]) && served(&rq[i]->demands, w, &least);
    return fits;
}

/* All of one call go to one rank: mostly they are choices of one prompt.  True: to a replica;
 * false: this process computes them. */
static bool hand_over(struct hzp_front *f, struct hzp_request *const *rq, int32_t count)
{
    struct hzp_weights_stats w;
    hzp_weights_read_stats(f->parts.weights, &w);
    bool fits = fit(rq, count, &w);
    HZP_LOCKED(&f->lock);
    bool room = !f->stopping && f->count < (1 << (INDEX_BITS - 1));
    int chosen = room && fits ? choose(f, rq[0], count) : 0;
    int rank = HZP_MAX(chosen, 0);
    f->place[rank].is.sent += count;
    for (int32_t i = 0; i < count && rank > 0; i++) {
        uint64_t least;
        served(&rq[i]->demands, &w, &least);
        if (!rq[i]->submitted_ns)
            rq[i]->submitted_ns = hzp_now_ns();
        atomic_store(&rq[i]->let_go, false);
        atomic_store(&rq[i]->state, HZP_REQUEST_WAITING);
        give(f, take(f, rq[i]), rank, least);
    }
    return rank > 0;
}

/* What a scheduler would refuse at once, and a replica only when its client has been answered. */
static int check(const struct hzp_front *f, const struct hzp_request *rq,
                 struct hzp_err_text *reterr)
{
    struct hzp_edits *edits = NULL;
    HZP_TRY(hzp_scheduler_check(f->parts.scheduler, rq, reterr));
    if (!rq->tokens)
        return HZP_OK;
    struct hzp_edit_rules rules = hzp_request_edits(rq, f->parts.model->config);
    int r = hzp_edits_create(&rules, &edits);
    hzp_edits_destroy(edits);
    return r == HZP_EINVAL ? hzp_fail(reterr, r, "no token of the vocabulary may begin the answer")
                           : HZP_OK;
}

int hzp_front_submit(struct hzp_front *f, struct hzp_request *const *rq, int32_t count,
                     struct hzp_err_text *reterr)
{
    for (int32_t i = 0; i < count; i++)
        HZP_TRY(check(f, rq[i], reterr));
    if (!hand_over(f, rq, count))
        return hzp_scheduler_submit_all(f->parts.scheduler, rq, count, reterr);
    hzp_pipe_poke(f->pipe);
    return HZP_OK;
}

void hzp_front_poke(struct hzp_front *f)
{
    hzp_pipe_poke(f->pipe);
}

void hzp_front_set_policy(struct hzp_front *f, const struct hzp_policy *policy)
{
    hzp_lock_take(&f->lock);
    f->policy = *policy;
    f->policies++;
    hzp_lock_release(&f->lock);
    hzp_pipe_poke(f->pipe);
}

/* ---- news ---- */

void hzp_front_note(struct hzp_front *f, struct hzp_request *rq, bool final)
{
    if (f->news_count == f->news_room) {
        f->news_room = HZP_MAX(64, 2 * f->news_room);
        f->news = hzp_xrealloc(f->news, (size_t)f->news_room * sizeof(struct hzp_request *));
        f->news_final = hzp_xrealloc(f->news_final, (size_t)f->news_room * sizeof(bool));
    }
    f->news[f->news_count] = rq;
    f->news_final[f->news_count++] = final;
}

void hzp_front_tell(struct hzp_front *f)
{
    for (int32_t i = 0; i < f->news_count; i++) {
        struct hzp_request *rq = f->news[i];
        if (rq->wake)
            rq->wake(rq->wake_ctx, i + 1 < f->news_count);
        if (f->news_final[i])
            atomic_store(&rq->let_go, true);
    }
    f->news_count = 0;
}

void hzp_front_end(struct hzp_front *f, struct hzp_remote *m, enum hzp_request_state state)
{
    struct hzp_request *rq = m->rq;
    bool noted = false;
    for (int32_t i = f->news_count - 1; i >= 0 && !noted; i--) /* the last one lets go of it */
        if (f->news[i] == rq)
            f->news_final[i] = noted = true;
    if (m->rank) {
        f->place[m->rank].is.requests--;
        f->place[m->rank].pages -= m->pages;
    }
    if (rq->max_tokens && (state == HZP_REQUEST_STOPPED || state == HZP_REQUEST_LENGTH))
        hzp_dispatch_ended(f->dispatch, atomic_load(&rq->out_count));
    if (!noted)
        hzp_front_note(f, rq, true);
    give_back(f, m);
    atomic_store(&rq->state, state);
}

/* ---- the source ---- */

static bool offer_nothing(struct hzp_source *source, const struct hzp_step *step,
                          struct hzp_room *room, struct hzp_offer *offer)
{
    return false;
}

static void deliver_nothing(struct hzp_source *source, const struct hzp_step *step,
                            const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
}

static bool busy(struct hzp_source *source)
{
    return atomic_load(&HZP_CONTAINER_OF(source, struct hzp_front, source)->unended) > 0;
}

/* ---- creation and end ---- */

int hzp_front_create(const struct hzp_front_config *config, struct hzp_front **ret,
                     struct hzp_err_text *reterr)
{
    struct hzp_pipe *pipe;
    if (config->ranks > HZP_DISPATCH_RANKS_MAX)
        return hzp_wrong(reterr, "--replicas", ": %d ranks, at most %d can serve", config->ranks,
                         HZP_DISPATCH_RANKS_MAX);
    HZP_TRY(hzp_pipe_listen(config->at, HZP_MESSAGE_MAX, &pipe, reterr));
    struct hzp_front *f = hzp_xcalloc(1, sizeof(*f));
    f->source = (struct hzp_source){
        .name = "replicas", .offer = offer_nothing, .deliver = deliver_nothing, .busy = busy};
    f->record = hzp_xmalloc(strlen(config->record) + 1);
    memcpy(f->record, config->record, strlen(config->record) + 1);
    f->ranks = config->ranks;
    f->silent_s = config->silent_s;
    f->pipe = pipe;
    f->dispatch = hzp_dispatch_create();
    for (int r = 1; r < f->ranks; r++)
        snprintf(f->place[r].is.why, sizeof(f->place[r].is.why), "it has not come yet");
    hzp_lock_init(&f->lock, HZP_LOCK_REPLICAS);
    *ret = f;
    return HZP_OK;
}

struct hzp_source *hzp_front_source(struct hzp_front *f)
{
    return &f->source;
}

int hzp_front_start(struct hzp_front *f, const struct hzp_front_parts *parts)
{
    f->parts = *parts;
    f->place[0].is.up = true;
    f->place[0].is.hello = parts->own;
    HZP_TRY(hzp_thread_start(&f->thread, "hzp-replicas", hzp_front_main, f));
    f->started = true;
    return HZP_OK;
}

void hzp_front_stop(struct hzp_front *f, bool hurry)
{
    hzp_lock_take(&f->lock);
    f->stopping = true;
    f->hurry |= hurry;
    hzp_lock_release(&f->lock);
    hzp_pipe_poke(f->pipe);
}

void hzp_front_finish(struct hzp_front *f)
{
    if (!f || !f->started)
        return;
    hzp_lock_take(&f->lock);
    f->stopping = f->hurry = f->closing = true;
    hzp_lock_release(&f->lock);
    hzp_pipe_poke(f->pipe);
    pthread_join(f->thread, NULL);
    f->started = false;
}

void hzp_front_destroy(struct hzp_front *f)
{
    if (!f)
        return;
    hzp_front_finish(f);
    hzp_pipe_close(f->pipe);
    hzp_message_fini(&f->out);
    hzp_dispatch_destroy(f->dispatch);
    hzp_lock_fini(&f->lock);
    free(f->remote);
    free(f->free);
    free(f->news);
    free(f->news_final);
    free(f->record);
    free(f);
}

/* ---- what others may know ---- */

int hzp_front_ranks(const struct hzp_front *f)
{
    return f->ranks;
}

int hzp_front_rank(struct hzp_front *f, int rank, struct hzp_front_rank *ret)
{
    struct hzp_weights_stats w;
    if (rank < 0 || rank >= f->ranks)
        return HZP_ENOENT;
    hzp_weights_read_stats(f->parts.weights, &w);
    HZP_LOCKED(&f->lock);
    look_at_own(f);
    const struct hzp_place *at = &f->place[rank];
    uint64_t now = hzp_now_ns();
    *ret = at->is;
    ret->silent_s = rank && now > at->heard_ns ? (double)(now - at->heard_ns) * 1e-9 : 0;
    ret->staleness = ret->up ? hzp_front_trails(f, at, w.finished_optimizer_step) : 0;
    return HZP_OK;
}

int hzp_front_drain(struct hzp_front *f, int rank, bool drain)
{
    if (rank < 0 || rank >= f->ranks)
        return HZP_ENOENT;
    hzp_lock_take(&f->lock);
    f->place[rank].is.draining = drain;
    hzp_lock_release(&f->lock);
    hzp_log(HZP_LOG_INFO, "ranks", "replica %s rank=%d", drain ? "draining" : "resumed", rank);
    return HZP_OK;
}
