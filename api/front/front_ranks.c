/* SPDX-License-Identifier: Apache-2.0 */
/* api/front/front_ranks.c - what replicas say: hello, news, goodbye; and that one is lost. */
#include "api/front/front_state.h"

#include "base/log.h"

enum { RECORDS = 64 /* newest versions that are compared */ };

void hzp_front_lose(struct hzp_front *f, int rank, const char *why)
{
    struct hzp_place *at = &f->place[rank];
    int32_t requests = at->is.requests;
    if (!at->is.up)
        return;
    at->is.up = false;
    at->former = at->peer;
    at->peer.size = 0;
    snprintf(at->is.why, sizeof(at->is.why), "%s", why);
    hzp_dispatch_forget(f->dispatch, rank);
    for (int32_t i = 0; i < f->room; i++)
        if (f->remote[i].rq && f->remote[i].rank == rank)
            hzp_front_unplace(f, &f->remote[i]);
    hzp_log(HZP_LOG_WARN, "ranks", "replica down rank=%d requests=%d: %s", rank, requests, why);
}

static void refuse(struct hzp_front *f, const struct hzp_pipe_peer *peer, const char *why)
{
    char text[512];
    int n = snprintf(text, sizeof(text), "X%s", why);
    hzp_pipe_send(f->pipe, peer, text, (size_t)HZP_MIN(n, (int)sizeof(text) - 1));
}

/* ---- hello ---- */

/* Whether this store has, or may yet get, the version as the replica has it. */
static bool same_version(struct hzp_front *f, uint64_t id, int64_t optimizer_step,
                         uint64_t checksum)
{
    struct hzp_version_record record[RECORDS];
    int32_t n = hzp_weights_list(f->parts.weights, record, RECORDS);
    for (int32_t i = 0; i < n; i++) {
        uint64_t sum = id == f->parts.own.version ? f->parts.own.checksum : record[i].checksum;
        if (record[i].id == id)
            return record[i].optimizer_step == optimizer_step &&
                   (!sum || !checksum || sum == checksum);
    }
    return n == 0 || id > record[0].id;
}

/* The first line in which the records differ. */
static void difference(const char *first, const char *other, char *ret, size_t size)
{
    while (*first && *first == *other) {
        size_t n = strcspn(first, "\n");
        if (strncmp(first, other, n + 1))
            break;
        first += n + (first[n] != 0);
        other += n + (other[n] != 0);
    }
    size_t others = strcspn(other, "\n"), firsts = strcspn(first, "\n");
    snprintf(ret, size, "it has \"%.*s\", rank 0 has \"%.*s\"", (int)HZP_MIN(others, 80u), other,
             (int)HZP_MIN(firsts, 80u), first);
}

/* Why the replica is not taken in; "": it is. */
static void judge(struct hzp_front *f, const struct hzp_hello *h, const char *record, char *why,
                  size_t size)
{
    const struct hzp_hello *own = &f->parts.own;
    why[0] = 0;
    if (h->rank < 1 || h->rank >= f->ranks || h->ranks != f->ranks)
        snprintf(why, size, "rank %d of %d came to a run of %d ranks", h->rank, h->ranks, f->ranks);
    else if (strcmp(record, f->record) != 0)
        difference(f->record, record, why, size);
    else if (h->vocab != own->vocab || h->positions != own->positions || h->width != own->width ||
             h->layers != own->layers)
        snprintf(why, size, "its model or its context is another one than rank 0's");
    else if (!same_version(f, h->version, h->optimizer_step, h->checksum))
        snprintf(why, size,
                 "it serves version %" PRIu64 " of optimizer step %" PRId64
                 ", which rank 0 has with other weights",
                 h->version, h->optimizer_step);
}

static void hello(struct hzp_front *f, const struct hzp_pipe_peer *peer, const char *data,
                  size_t bytes)
{
    struct hzp_hello h;
    struct hzp_err_text err;
    const char *record;
    char why[256];
    if (hzp_hello_read(data, bytes, &h, &record, &err) < 0) {
        refuse(f, peer, err.text);
        return;
    }
    judge(f, &h, record, why, sizeof(why));
    if (why[0] || f->stopping) {
        hzp_log(HZP_LOG_WARN, "ranks", "replica refused rank=%d: %s", h.rank,
                why[0] ? why : "the server is stopping");
        refuse(f, peer, why[0] ? why : "the server is stopping");
        return;
    }
    struct hzp_place *at = &f->place[h.rank];
    bool same = hzp_pipe_same(&at->peer, peer);
    if (at->is.up && same && h.round == at->is.hello.round)
        return; /* it says so until it is welcome */
    hzp_front_lose(f, h.rank,
                   same ? "it has not heard rank 0 for too long, and has come again"
                        : "another process has come in its place");
    at->peer = *peer;
    at->is.hello = h;
    at->is.load =
        (struct hzp_replica_load){.version = h.version, .optimizer_step = h.optimizer_step};
    at->is.up = true;
    at->is.why[0] = 0;
    at->pages = 0;
    at->told = 0;
    at->checked = h.version;
    at->checked_step = h.optimizer_step;
    at->heard_ns = hzp_now_ns();
    hzp_pipe_send(f->pipe, peer, "W", 1);
    hzp_log(HZP_LOG_INFO, "ranks",
            "replica up rank=%d version=%" PRIu64 " kv_pages=%d running_max=%d", h.rank, h.version,
            h.kv_pages, h.running_max);
}

/* ---- news ---- */

/* Reads the tokens of an entry into the request, or over them.  False: they are malformed. */
static bool take_tokens(struct hzp_front *f, struct hzp_message_reader *reader,
                        const struct hzp_news *news, struct hzp_request *rq)
{
    int32_t vocab = f->parts.own.vocab, token[HZP_TOPS_MAX];
    float logprob[HZP_TOPS_MAX];
    struct hzp_output out = {.token = 0};
    uint64_t now = hzp_now_ns();
    for (int32_t n = news->from; n < news->from + news->count; n++) {
        size_t top0 = (size_t)n * (size_t)news->tops;
        if (!hzp_news_token(reader, news, vocab, &out,
                            rq && news->tops ? rq->top_token + top0 : token,
                            rq && news->tops ? rq->top_logprob + top0 : logprob))
            return false;
        out.at_ns = now;
        if (rq)
            rq->out[n] = out;
    }
    if (rq && !rq->max_tokens && (news->hidden || news->prompts))
        rq->prompt_version = news->prompt_version;
    return hzp_news_hidden(reader, news, rq ? rq->hidden : NULL) &&
           hzp_news_prompt(reader, news, vocab, rq);
}

/* The request is the rank's, and the tokens are those that come next. */
static bool follows(const struct hzp_front *f, const struct hzp_request *rq,
                    const struct hzp_news *news)
{
    bool final = news->state >= HZP_REQUEST_STOPPED;
    bool told =
        rq->prompt_logprobs && !news->from && (news->count || news->state == HZP_REQUEST_LENGTH);
    return news->from == atomic_load(&rq->out_count) &&
           news->count <= rq->max_tokens - news->from && news->tops == rq->tops &&
           news->stop_token < f->parts.own.vocab &&
           news->hidden == (news->state == HZP_REQUEST_LENGTH ? rq->hidden_cols : 0) &&
           news->prompts == (told ? rq->prompt_count : 0) &&
           (final || news->from + news->count < rq->max_tokens);
}

/* The newest version of this store that is not newer than this one. */
static struct hzp_version_record record_of(struct hzp_front *f, uint64_t version)
{
    struct hzp_version_record record[RECORDS];
    int32_t n = hzp_weights_list(f->parts.weights, record, RECORDS);
    for (int32_t i = 0; i < n; i++)
        if (record[i].id <= version)
            return record[i];
    return (struct hzp_version_record){.learned_through = -1};
}

/* What the news prove: the rank knew of an update when it looked at its version.  Not where weights
 * of another state have served meanwhile, or rank 0 had not come to the version yet. */
static int64_t proven(const struct hzp_front *f, const struct hzp_replica_load *load)
{
    bool one_line = load->version >= f->line && load->told.version >= load->version;
    return one_line ? load->told.finished - load->optimizer_step : 0;
}

void hzp_front_note_line(struct hzp_front *f)
{
    struct hzp_version_record record[RECORDS];
    int32_t n = hzp_weights_list(f->parts.weights, record, RECORDS);
    for (int32_t i = 0; i + 1 < n && record[i].id > f->said.version; i++)
        if (record[i].optimizer_step != record[i + 1].optimizer_step + 1)
            f->line = HZP_MAX(f->line, record[i].id);
}

int64_t hzp_front_trails(const struct hzp_front *f, const struct hzp_place *at, int64_t finished)
{
    /* What it said last may be old: it took part in the newest finished update only after it had
     * published the one before. */
    int64_t behind = HZP_MIN(finished - at->is.load.optimizer_step, 1);
    int64_t least = proven(f, &at->is.load);
    return HZP_MAX(HZP_MAX(behind, least), 0);
}

/* A rank may not trail by more than one update (front.h). */
static void check_staleness(struct hzp_front *f, int rank)
{
    struct hzp_place *at = &f->place[rank];
    int64_t behind = proven(f, &at->is.load);
    if (behind <= 1 || at->stale_version == at->is.load.version)
        return;
    at->stale_version = at->is.load.version;
    at->is.stale++;
    hzp_log(HZP_LOG_ERROR, "ranks",
            "replica stale rank=%d version=%" PRIu64 " optimizer_step=%" PRId64
            ": it trails by %" PRId64 " updates, the bound is 1",
            rank, at->is.load.version, at->is.load.optimizer_step, behind);
}

/* How far the version of the oldest of these tokens trailed.  Rank 0 may have finished an update
 * since, but not two (front.h); a pinned version may trail by more. */
static void note_staleness(struct hzp_front *f, int rank, const struct hzp_news *news,
                           struct hzp_request *rq)
{
    struct hzp_weights_stats w;
    const struct hzp_replica_load *load = &f->place[rank].is.load;
    if (!news->count && !news->hidden && !news->prompts)
        return;
    uint64_t version = news->count ? rq->out[news->from].version : news->prompt_version;
    hzp_weights_read_stats(f->parts.weights, &w);
    int64_t behind = w.finished_optimizer_step - load->optimizer_step;
    behind += version != load->version;
    int64_t least = proven(f, load), most = HZP_MAX(least, 1), before = atomic_load(&rq->staleness);
    if (rq->demands.mode == HZP_PINNED && version != load->version)
        most = behind = w.finished_optimizer_step - record_of(f, version).optimizer_step;
    atomic_store(&rq->staleness, HZP_MAX(before, HZP_MIN(behind, most)));
}

static void take_first(struct hzp_request *rq, const struct hzp_news *news)
{
    if (news->from)
        return;
    rq->cached = HZP_MIN(news->cached, rq->prompt_count);
    atomic_store(&rq->stale_tokens, HZP_MIN(news->stale_tokens, rq->prompt_count));
    atomic_store(&rq->stale_version, news->stale_version);
    rq->admitted_ns = rq->submitted_ns + news->waited_ns;
}

/* Whether the version has learned what the request asks for, and no version since the one that the
 * rank was told of had not.  One that had not served weights of an earlier state; what those had to
 * learn again may have been given up, which rank 0's scheduler knows.  A version that this store
 * does not have yet has learned at least what the newest one here has: an older state serves on
 * rank 0 first. */
static bool meets(struct hzp_front *f, struct hzp_remote *m, uint64_t version)
{
    struct hzp_version_record record[RECORDS];
    int64_t learned = HZP_MAX(m->rq->demands.min_sequence, m->rq->demands.through);
    uint64_t known = HZP_MAX(m->least, m->met);
    if (!learned || version == m->met)
        return true;
    int32_t n = hzp_weights_list(f->parts.weights, record, RECORDS);
    for (int32_t i = 0; i < n && record[i].id > known; i++)
        if (record[i].id <= version && record[i].learned_through < learned)
            return false;
    if (version < m->least || !n || (n == RECORDS && record[n - 1].id > known))
        return false;
    m->met = version;
    return true;
}

/* What the news say goes into the request.  False: they are malformed. */
static bool apply(struct hzp_front *f, struct hzp_remote *m, struct hzp_message_reader *reader,
                  const struct hzp_news *news)
{
    struct hzp_request *rq = m->rq;
    if (!follows(f, rq, news) || !take_tokens(f, reader, news, rq))
        return false;
    struct hzp_news shown = *news;
    shown.count = 0;
    while (shown.count < news->count && meets(f, m, rq->out[news->from + shown.count].version))
        shown.count++;
    m->recalled = shown.count < news->count ||
                  (!rq->max_tokens && news->prompt_version && !meets(f, m, news->prompt_version));
    take_first(rq, &shown);
    if (m->recalled) /* what is computed again does not count */
        shown.prompts = shown.hidden = 0;
    note_staleness(f, m->rank, &shown, rq);
    bool ends = news->state == HZP_REQUEST_STOPPED || news->state == HZP_REQUEST_LENGTH;
    if (ends && !m->recalled) {
        rq->stop_token = news->stop_token;
        atomic_store(&rq->whole, true);
    }
    /* release: a thread that sees the new count also sees the output */
    atomic_store_explicit(&rq->out_count, shown.from + shown.count, memory_order_release);
    if (shown.count)
        hzp_front_note(f, rq, false);
    return true;
}

/* Whether a request that is final there has not ended for its creator: its device has failed, the
 * rank is ending, it was recalled, or the rank was too long behind this one, which serves what the
 * request asks for. */
static bool goes_on(struct hzp_front *f, const struct hzp_remote *m, const struct hzp_news *news)
{
    struct hzp_weights_stats w;
    hzp_weights_read_stats(f->parts.weights, &w);
    bool late = news->state == HZP_REQUEST_UNMET && news->unmet == HZP_UNMET_TIME;
    return m->recalled || (late && w.serving_id >= m->least) ||
           (news->state == HZP_REQUEST_FAILED && !news->not_finite) ||
           (news->state == HZP_REQUEST_CANCELED && !atomic_load(&m->rq->cancel));
}

static bool take_news(struct hzp_front *f, int rank, struct hzp_message_reader *reader,
                      const struct hzp_news *news)
{
    struct hzp_remote *m = hzp_front_find(f, news->id);
    struct hzp_request *rq = m && m->rank == rank ? m->rq : NULL;
    bool final = news->refused || news->state >= HZP_REQUEST_STOPPED;
    if (rq && !m->recalled && !news->refused) {
        if (!apply(f, m, reader, news))
            return false;
    } else if (!take_tokens(f, reader, news, NULL)) {
        return false;
    }
    if (!rq || !final)
        return true;
    if (news->refused || goes_on(f, m, news)) {
        m->rq->again = true; /* this process computes it */
        hzp_front_unplace(f, m);
    } else {
        rq->stop_token = news->stop_token;
        rq->unmet = (enum hzp_unmet)news->unmet;
        rq->changed = (enum hzp_changed)news->changed;
        rq->recomputes = news->recomputes;
        rq->not_finite = news->not_finite;
        if (news->not_finite)
            f->place[rank].is.not_finite++;
        else if (news->state == HZP_REQUEST_STOPPED || news->state == HZP_REQUEST_LENGTH)
            f->place[rank].is.not_finite = 0;
        hzp_front_end(f, m, (enum hzp_request_state)news->state);
    }
    return true;
}

static void news(struct hzp_front *f, int rank, const char *data, size_t bytes)
{
    struct hzp_place *at = &f->place[rank];
    struct hzp_message_reader reader;
    struct hzp_replica_load load;
    struct hzp_err_text err;
    struct hzp_news one;
    bool good = hzp_news_read(data, bytes, &reader, &load, &err) == HZP_OK;
    if (good && load.version != at->is.load.version)
        hzp_dispatch_forget(f->dispatch, rank);
    if (good) {
        at->is.load = load;
        check_staleness(f, rank);
    }
    while (good && hzp_news_next(&reader, &one))
        good = take_news(f, rank, &reader, &one);
    good = good && !reader.bad;
    bool known = true;
    bool same = at->checked == load.version && at->checked_step == load.optimizer_step;
    if (good && !same && load.version <= f->local_version) {
        known = same_version(f, load.version, load.optimizer_step, 0);
        at->checked = load.version;
        at->checked_step = load.optimizer_step;
    }
    if (good && known)
        return;
    const char *why = good ? "it serves a version that rank 0 has with another optimizer step"
                           : "it has sent malformed news";
    struct hzp_pipe_peer peer = at->peer;
    hzp_front_lose(f, rank, why);
    refuse(f, &peer, why);
}

/* Whether a sender that is not known may come again: some rank has no replica, and no other process
 * has come in the sender's place, which it would displace. */
static bool may_come_again(const struct hzp_front *f, const struct hzp_pipe_peer *peer)
{
    bool all = true, replaced = false;
    for (int r = 1; r < f->ranks; r++) {
        all &= f->place[r].is.up;
        replaced |= f->place[r].is.up && hzp_pipe_same(&f->place[r].former, peer);
    }
    return !all && !replaced;
}

void hzp_front_handle(struct hzp_front *f, const struct hzp_pipe_peer *peer, const char *data,
                      size_t bytes)
{
    if (data[0] == 'H') {
        hello(f, peer, data, bytes);
        return;
    }
    for (int r = 1; r < f->ranks; r++) {
        struct hzp_place *at = &f->place[r];
        if (!at->is.up || !hzp_pipe_same(&at->peer, peer))
            continue;
        at->heard_ns = hzp_now_ns();
        if (data[0] == 'N')
            news(f, r, data, bytes);
        else if (data[0] == 'G')
            hzp_front_lose(f, r, "it has said goodbye");
        return;
    }
    if (data[0] == 'N' && !f->stopping && may_come_again(f, peer))
        hzp_pipe_send(f->pipe, peer, "K", 1);
}
