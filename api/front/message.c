/* SPDX-License-Identifier: Apache-2.0 */
#include "api/front/message.h"

#include "nanobatch/model/path.h"

static const char magic[8] = "hzprep2";

/* ---- bytes ---- */

void hzp_message_fini(struct hzp_message *m)
{
    free(m->data);
    *m = (struct hzp_message){0};
}

static void put(struct hzp_message *m, const void *data, size_t bytes)
{
    if (!bytes)
        return;
    if (m->bytes + bytes > m->room) {
        m->room = HZP_MAX(2 * m->room, m->bytes + bytes);
        m->data = hzp_xrealloc(m->data, m->room);
    }
    memcpy(m->data + m->bytes, data, bytes);
    m->bytes += bytes;
}

static void put32(struct hzp_message *m, int32_t value)
{
    put(m, &value, sizeof(value));
}

static void put64(struct hzp_message *m, uint64_t value)
{
    put(m, &value, sizeof(value));
}

void hzp_message_begin(struct hzp_message *m, char letter)
{
    m->bytes = 0;
    put(m, &letter, 1);
}

/* Where reading begins: behind the letter. */
static struct hzp_message_reader reader_of(const char *data, size_t bytes)
{
    return (struct hzp_message_reader){.at = data + (bytes > 0), .end = data + bytes};
}

static void get(struct hzp_message_reader *r, void *ret, size_t bytes)
{
    if (!bytes)
        return;
    if (r->bad || (size_t)(r->end - r->at) < bytes) {
        r->bad = true;
        memset(ret, 0, bytes);
        return;
    }
    memcpy(ret, r->at, bytes);
    r->at += bytes;
}

/* A number in a range; outside it the message is bad, and the number is `low`. */
static int32_t get32(struct hzp_message_reader *r, int32_t low, int32_t high)
{
    int32_t value;
    get(r, &value, sizeof(value));
    if (value < low || value > high) {
        r->bad = true;
        return low;
    }
    return value;
}

static uint64_t get64(struct hzp_message_reader *r)
{
    uint64_t value;
    get(r, &value, sizeof(value));
    return value;
}

static float get_float(struct hzp_message_reader *r)
{
    float value;
    get(r, &value, sizeof(value));
    r->bad |= isnan(value) != 0;
    return value;
}

static bool get_bool(struct hzp_message_reader *r)
{
    return get32(r, 0, 1) != 0;
}

/* Whether `count` elements of a size can still follow: so no count makes us allocate more than was
 * sent. */
static bool holds(struct hzp_message_reader *r, int64_t count, size_t size)
{
    if ((int64_t)((size_t)(r->end - r->at) / size) < count)
        r->bad = true;
    return !r->bad;
}

/* ---- hello ---- */

void hzp_hello_write(struct hzp_message *m, const struct hzp_hello *hello, const char *record)
{
    hzp_message_begin(m, 'H');
    put(m, magic, sizeof(magic));
    put(m, hello, sizeof(*hello));
    put(m, record, strlen(record) + 1);
}

int hzp_hello_read(const char *data, size_t bytes, struct hzp_hello *ret, const char **ret_record,
                   struct hzp_err_text *reterr)
{
    struct hzp_message_reader r = reader_of(data, bytes);
    char name[sizeof(magic)];
    get(&r, name, sizeof(name));
    if (r.bad || memcmp(name, magic, sizeof(magic)))
        return hzp_fail(reterr, HZP_EFORMAT, "a hello that is not of this program");
    get(&r, ret, sizeof(*ret));
    if (r.bad || r.at == r.end || r.end[-1])
        return hzp_fail(reterr, HZP_EFORMAT, "a hello that is cut");
    if (ret->vocab < 1 || ret->positions < 1 || ret->running_max < 1 || ret->waiting_max < 1 ||
        ret->page_rows < 1 || ret->kv_pages < 1)
        return hzp_fail(reterr, HZP_EFORMAT, "a hello with impossible sizes");
    *ret_record = r.at;
    return HZP_OK;
}

/* ---- requests ---- */

/* Bytes of a token with its logprob and rank, and of the likeliest ones. */
static size_t told_bytes(int32_t tops)
{
    return 3 * sizeof(int32_t) + (size_t)tops * (sizeof(int32_t) + sizeof(float));
}

static size_t rules_bytes(const struct hzp_token_rules *t)
{
    size_t tokens =
        (size_t)t->alloweds + (size_t)t->bads + (t->bads ? (size_t)t->bad_at[t->bads] : 0);
    return sizeof(int32_t) * tokens + (t->source ? strlen(t->source) : 0);
}

static bool rules_fit(const struct hzp_token_rules *t)
{
    return t->bads <= HZP_SENT_BADS_MAX &&
           (!t->constraint || (t->source && strlen(t->source) <= HZP_SENT_SOURCE_MAX));
}

bool hzp_message_fits(const struct hzp_request *rq)
{
    const struct hzp_demands *d = &rq->demands;
    size_t bytes = 4096 + sizeof(int32_t) * ((size_t)rq->prompt_count + (size_t)rq->max_tokens) +
                   (sizeof(int32_t) + sizeof(float)) * (size_t)rq->biases +
                   (rq->tokens ? rules_bytes(rq->tokens) : 0);
    size_t news = 2 * HZP_NEWS_MAX +
                  (rq->prompt_logprobs ? (size_t)rq->prompt_count * told_bytes(rq->tops) : 0);
    bool wanted = rq->pooling ? !rq->max_tokens : rq->max_tokens || rq->prompt_logprobs;
    /* No rank trails by more than one update, but a version that is kept may. */
    bool met = d->max_staleness < 0 || (d->max_staleness >= 1 && d->mode != HZP_PINNED);
    return wanted && met && (!rq->tokens || rules_fit(rq->tokens)) &&
           HZP_MAX(bytes, news) <= HZP_MESSAGE_MAX;
}

static void put_rules(struct hzp_message *m, const struct hzp_token_rules *t)
{
    put32(m, t != NULL);
    if (!t)
        return;
    put32(m, t->allowed ? t->alloweds : -1);
    put(m, t->allowed, (size_t)t->alloweds * sizeof(*t->allowed));
    put32(m, t->bads);
    for (int32_t i = 0; i < t->bads; i++)
        put32(m, t->bad_at[i + 1] - t->bad_at[i]);
    put(m, t->bad, t->bads ? (size_t)t->bad_at[t->bads] * sizeof(*t->bad) : 0);
    put32(m, t->constraint ? (int32_t)strlen(t->source) : -1);
    put(m, t->source, t->constraint ? strlen(t->source) : 0);
}

static struct hzp_sampling get_sampling(struct hzp_message_reader *r)
{
    struct hzp_sampling s;
    get(r, &s, sizeof(s));
    r->bad |= isnan(s.temperature) || isnan(s.top_p) || isnan(s.min_p) || isnan(s.repetition) ||
              isnan(s.presence) || isnan(s.frequency);
    return s;
}

void hzp_request_write(struct hzp_message *m, uint64_t id, const struct hzp_request *rq,
                       uint64_t min_version)
{
    int32_t drawn = atomic_load_explicit(&rq->out_count, memory_order_acquire);
    hzp_message_begin(m, 'R');
    put64(m, id);
    put32(m, rq->prompt_count);
    put32(m, rq->max_tokens);
    put32(m, rq->tops);
    put32(m, drawn);
    put32(m, (int32_t)rq->pooling);
    put32(m, rq->prompt_logprobs && !drawn);
    put64(m, drawn ? rq->out[drawn - 1].version : 0);
    put(m, rq->prompt, (size_t)rq->prompt_count * sizeof(*rq->prompt));
    for (int32_t n = 0; n < drawn; n++)
        put32(m, rq->out[n].token);
    put32(m, rq->min_tokens);
    put32(m, rq->priority);
    put32(m, rq->ignore_eos);
    put32(m, rq->stop_ids);
    put(m, rq->stop_id, (size_t)rq->stop_ids * sizeof(*rq->stop_id));
    put32(m, rq->biases);
    put(m, rq->bias_token, (size_t)rq->biases * sizeof(*rq->bias_token));
    put(m, rq->bias, (size_t)rq->biases * sizeof(*rq->bias));
    put(m, &rq->sampling, sizeof(rq->sampling));
    put32(m, (int32_t)rq->demands.mode);
    put64(m, min_version);
    put64(m, rq->demands.wait_ns);
    put32(m, hzp_demands_fresh(&rq->demands));
    put32(m, rq->demands.depth);
    put_rules(m, rq->tokens);
}

static void get_tokens(struct hzp_message_reader *r, int32_t count, int32_t vocab, int32_t *ret)
{
    for (int32_t i = 0; i < count; i++)
        ret[i] = get32(r, 0, vocab - 1);
}

void hzp_sent_rules_fini(struct hzp_sent_rules *sent)
{
    hzp_constraint_unref(sent->rules.constraint);
    free((void *)sent->rules.allowed);
    free((void *)sent->rules.bad);
    free((void *)sent->rules.bad_at);
    free((void *)sent->rules.source);
    *sent = (struct hzp_sent_rules){.rules = {.bads = 0}};
}

static int32_t *get_list(struct hzp_message_reader *r, int32_t count, int32_t vocab)
{
    int32_t *ret = hzp_xcalloc((size_t)count + 1, sizeof(*ret));
    get_tokens(r, count, vocab, ret);
    return ret;
}

static void get_bads(struct hzp_message_reader *r, int32_t vocab, struct hzp_token_rules *ret)
{
    int32_t bads = get32(r, 0, HZP_SENT_BADS_MAX);
    if (!bads || !holds(r, bads, sizeof(int32_t)))
        return;
    int32_t *at = hzp_xcalloc((size_t)bads + 1, sizeof(*at));
    for (int32_t i = 0; i < bads; i++)
        at[i + 1] = at[i] + get32(r, 1, HZP_BAD_TOKENS_MAX);
    ret->bad_at = at;
    if (!holds(r, at[bads], sizeof(int32_t)))
        return;
    ret->bad = get_list(r, at[bads], vocab);
    ret->bads = bads;
}

/* False: any token may be drawn. */
static bool get_rules(struct hzp_message_reader *r, int32_t vocab, struct hzp_token_rules *ret)
{
    if (!get_bool(r))
        return false;
    int32_t alloweds = get32(r, -1, vocab);
    if (alloweds >= 0 && holds(r, alloweds, sizeof(int32_t))) {
        ret->allowed = get_list(r, alloweds, vocab);
        ret->alloweds = alloweds;
    }
    get_bads(r, vocab, ret);
    int32_t bytes = get32(r, -1, HZP_SENT_SOURCE_MAX);
    if (bytes < 0 || !holds(r, bytes, 1))
        return true;
    char *source = hzp_xcalloc((size_t)bytes + 1, 1);
    get(r, source, (size_t)bytes);
    r->bad |= strlen(source) != (size_t)bytes;
    ret->source = source;
    return true;
}

/* What stands behind the tokens. */
static void get_settings(struct hzp_message_reader *r, int32_t vocab, struct hzp_request *rq,
                         struct hzp_sent_rules *rules)
{
    rq->min_tokens = get32(r, 0, rq->max_tokens);
    rq->priority = get32(r, INT32_MIN, INT32_MAX);
    rq->ignore_eos = get_bool(r);
    rq->stop_ids = get32(r, 0, HZP_STOP_IDS_MAX);
    get_tokens(r, rq->stop_ids, vocab, rq->stop_id);
    rq->biases = get32(r, 0, HZP_BIASES_MAX);
    get_tokens(r, rq->biases, vocab, rq->bias_token);
    for (int32_t i = 0; i < rq->biases; i++)
        rq->bias[i] = get_float(r);
    rq->sampling = get_sampling(r);
    rq->demands.mode = get32(r, HZP_CONTINUE, HZP_PINNED);
    rq->demands.min_version = get64(r);
    rq->demands.wait_ns = get64(r);
    rq->demands.fresh = get_bool(r);
    rq->demands.depth = get32(r, 0, HZP_DEPTH_PARTS - 1);
    if (get_rules(r, vocab, &rules->rules))
        rq->tokens = &rules->rules;
    r->bad |= r->at != r->end;
}

int hzp_request_read(const char *data, size_t bytes, const struct hzp_message_limits *limits,
                     uint64_t *ret_id, struct hzp_request **ret, struct hzp_sent_rules *ret_rules,
                     struct hzp_err_text *reterr)
{
    struct hzp_message_reader r = reader_of(data, bytes);
    struct hzp_request *rq = NULL;
    *ret_id = get64(&r);
    int32_t prompt_count = get32(&r, 1, limits->positions);
    int32_t max_tokens = get32(&r, 0, HZP_MAX(limits->positions - prompt_count, 1));
    int32_t tops = get32(&r, 0, HZP_TOPS_MAX), drawn = get32(&r, 0, HZP_MAX(max_tokens - 1, 0));
    int32_t pooling = get32(&r, HZP_POOLING_NONE, HZP_POOLING_LAST);
    bool told = get_bool(&r);
    uint64_t version = get64(&r);
    r.bad |= pooling ? max_tokens || told || limits->width < 1 : !max_tokens && !told;
    r.bad |= told && drawn;
    if (r.bad || !holds(&r, (int64_t)prompt_count + drawn, sizeof(int32_t)))
        return hzp_fail(reterr, HZP_EFORMAT, "a request with impossible sizes");
    HZP_FREED int32_t *prompt = hzp_xmalloc((size_t)prompt_count * sizeof(*prompt));
    get_tokens(&r, prompt_count, limits->vocab, prompt);
    int result = hzp_request_create(prompt, prompt_count, max_tokens, tops, told, &rq);
    if (result == HZP_OK && pooling)
        result = hzp_request_pool(rq, (enum hzp_pooling)pooling, limits->width);
    if (result < 0) {
        hzp_request_destroy(rq);
        return hzp_fail(reterr, result, "no memory for this request now");
    }
    for (int32_t n = 0; n < drawn; n++)
        rq->out[n] =
            (struct hzp_output){.token = get32(&r, 0, limits->vocab - 1), .version = version};
    atomic_store(&rq->out_count, drawn);
    get_settings(&r, limits->vocab, rq, ret_rules);
    if (r.bad) {
        hzp_request_destroy(rq);
        hzp_sent_rules_fini(ret_rules);
        return hzp_fail(reterr, HZP_EFORMAT, "a request with fields out of their ranges");
    }
    *ret = rq;
    return HZP_OK;
}

void hzp_plain_write(struct hzp_message *m, char letter, const void *data, size_t size)
{
    hzp_message_begin(m, letter);
    put(m, data, size);
}

int hzp_plain_read(const char *data, size_t bytes, void *ret, size_t size)
{
    struct hzp_message_reader r = reader_of(data, bytes);
    get(&r, ret, size);
    return r.bad || r.at != r.end ? HZP_EFORMAT : HZP_OK;
}

int hzp_policy_read(const char *data, size_t bytes, struct hzp_policy *ret)
{
    HZP_TRY(hzp_plain_read(data, bytes, ret, sizeof(*ret)));
    return hzp_policy_check(ret, NULL) < 0 ? HZP_EFORMAT : HZP_OK;
}

/* ---- news ---- */

/* Bits of an entry: some fields may be absent, because most entries are one more token. */
enum {
    NEWS_FIRST = 1, /* with the first token: what was known when it began */
    NEWS_END = 2,   /* it is final */
    NEWS_REFUSED = 4,
    NEWS_HIDDEN = 8,
    NEWS_PROMPT = 16,
    NEWS_ALL = NEWS_FIRST | NEWS_END | NEWS_REFUSED | NEWS_HIDDEN | NEWS_PROMPT,
};

/* A token is written with its versions only where they differ from those before. */
enum { SAME_VERSIONS = 1 };

void hzp_news_begin(struct hzp_message *m, const struct hzp_replica_load *load)
{
    hzp_message_begin(m, 'N');
    put(m, load, sizeof(*load));
}

static void put_token(struct hzp_message *m, const struct hzp_output *out,
                      const struct hzp_output *before)
{
    bool same =
        before && before->version == out->version && before->prompt_version == out->prompt_version;
    put32(m, out->token);
    put(m, &out->logprob, sizeof(out->logprob));
    put32(m, out->rank);
    put32(m, same ? SAME_VERSIONS : 0);
    if (!same) {
        put64(m, out->version);
        put64(m, out->prompt_version);
    }
}

/* The likeliest tokens with the n-th one. */
static void put_tops(struct hzp_message *m, int32_t tops, int32_t n, const int32_t *token,
                     const float *logprob)
{
    if (!tops)
        return;
    put(m, token + (size_t)n * (size_t)tops, (size_t)tops * sizeof(*token));
    put(m, logprob + (size_t)n * (size_t)tops, (size_t)tops * sizeof(*logprob));
}

void hzp_news_add(struct hzp_message *m, const struct hzp_news *news, const struct hzp_request *rq)
{
    int32_t kinds = (news->from == 0 ? NEWS_FIRST : 0) |
                    (news->state >= HZP_REQUEST_STOPPED ? NEWS_END : 0) |
                    (news->refused ? NEWS_REFUSED : 0) | (news->hidden ? NEWS_HIDDEN : 0) |
                    (news->prompts ? NEWS_PROMPT : 0);
    put64(m, news->id);
    put32(m, kinds);
    put32(m, news->from);
    put32(m, news->count);
    put32(m, news->tops);
    if (kinds & NEWS_FIRST) {
        put32(m, news->cached);
        put32(m, news->stale_tokens);
        put64(m, news->stale_version);
        put64(m, news->waited_ns);
    }
    if (kinds & NEWS_END) {
        const int32_t value[] = {news->state,   news->stop_token, news->unmet,
                                 news->changed, news->recomputes, news->not_finite};
        put(m, value, sizeof(value));
    }
    if (kinds & NEWS_REFUSED) {
        put32(m, news->refused);
        put(m, news->text, sizeof(news->text));
    }
    if (kinds & NEWS_HIDDEN)
        put32(m, news->hidden);
    if (kinds & NEWS_PROMPT)
        put32(m, news->prompts);
    if (kinds & (NEWS_HIDDEN | NEWS_PROMPT))
        put64(m, news->prompt_version);
    for (int32_t n = news->from; n < news->from + news->count; n++) {
        put_token(m, &rq->out[n], n > news->from ? &rq->out[n - 1] : NULL);
        put_tops(m, news->tops, n, rq->top_token, rq->top_logprob);
    }
    if (news->hidden)
        put(m, rq->hidden, (size_t)news->hidden * sizeof(*rq->hidden));
    for (int32_t p = 1; p < news->prompts; p++) {
        put32(m, rq->prompt_out[p].token);
        put(m, &rq->prompt_out[p].logprob, sizeof(rq->prompt_out[p].logprob));
        put32(m, rq->prompt_out[p].rank);
        put_tops(m, news->tops, p, rq->prompt_top_token, rq->prompt_top_logprob);
    }
}

int hzp_news_read(const char *data, size_t bytes, struct hzp_message_reader *reader,
                  struct hzp_replica_load *ret, struct hzp_err_text *reterr)
{
    *reader = reader_of(data, bytes);
    get(reader, ret, sizeof(*ret));
    if (reader->bad || ret->running < 0 || ret->waiting < 0 || ret->kv_taken < 0 ||
        ret->kv_needed < 0)
        return hzp_fail(reterr, HZP_EFORMAT, "news without a load");
    return HZP_OK;
}

bool hzp_news_next(struct hzp_message_reader *r, struct hzp_news *ret)
{
    *ret = (struct hzp_news){.state = HZP_REQUEST_RUNNING, .stop_token = -1};
    if (r->bad || r->at == r->end)
        return false;
    ret->id = get64(r);
    int32_t kinds = get32(r, 0, NEWS_ALL);
    ret->from = get32(r, 0, INT32_MAX / 2);
    ret->count = get32(r, 0, INT32_MAX / 2);
    ret->tops = get32(r, 0, HZP_TOPS_MAX);
    if (kinds & NEWS_FIRST) {
        ret->cached = get32(r, 0, INT32_MAX);
        ret->stale_tokens = get32(r, 0, INT32_MAX);
        ret->stale_version = get64(r);
        ret->waited_ns = get64(r);
    }
    if (kinds & NEWS_END) {
        ret->state = get32(r, HZP_REQUEST_STOPPED, HZP_REQUEST_FAILED);
        ret->stop_token = get32(r, -1, INT32_MAX);
        ret->unmet = get32(r, HZP_UNMET_NOT, HZP_UNMET_UNLEARNED);
        ret->changed = get32(r, HZP_CHANGED_NOT, HZP_CHANGED_PIN);
        ret->recomputes = get32(r, 0, INT32_MAX);
        ret->not_finite = get_bool(r);
    }
    if (kinds & NEWS_REFUSED) {
        ret->refused = get32(r, HZP_EDEVICE, -1);
        get(r, ret->text, sizeof(ret->text));
        ret->text[sizeof(ret->text) - 1] = 0;
    }
    if (kinds & NEWS_HIDDEN)
        ret->hidden = get32(r, 1, INT32_MAX / 2);
    if (kinds & NEWS_PROMPT)
        ret->prompts = get32(r, 1, INT32_MAX / 2);
    if (kinds & (NEWS_HIDDEN | NEWS_PROMPT))
        ret->prompt_version = get64(r);
    holds(r, ret->count, 4 * sizeof(int32_t));
    holds(r, ret->hidden, sizeof(float));
    holds(r, ret->prompts - 1, told_bytes(ret->tops));
    return !r->bad;
}

bool hzp_news_hidden(struct hzp_message_reader *r, const struct hzp_news *news, float *ret)
{
    if (!holds(r, news->hidden, sizeof(float)))
        return false;
    if (ret && news->hidden)
        memcpy(ret, r->at, (size_t)news->hidden * sizeof(float));
    r->at += (size_t)news->hidden * sizeof(float);
    return true;
}

bool hzp_news_prompt(struct hzp_message_reader *r, const struct hzp_news *news, int32_t vocab,
                     struct hzp_request *rq)
{
    int32_t token[HZP_TOPS_MAX];
    float logprob[HZP_TOPS_MAX];
    for (int32_t p = 1; p < news->prompts && !r->bad; p++) {
        struct hzp_output out = {.token = get32(r, 0, vocab - 1),
                                 .version = news->prompt_version,
                                 .prompt_version = news->prompt_version};
        get(r, &out.logprob, sizeof(out.logprob));
        out.rank = get32(r, INT32_MIN, INT32_MAX);
        size_t top0 = (size_t)p * (size_t)news->tops;
        if (rq)
            rq->prompt_out[p] = out;
        if (!news->tops)
            continue;
        get_tokens(r, news->tops, vocab, rq ? rq->prompt_top_token + top0 : token);
        get(r, rq ? rq->prompt_top_logprob + top0 : logprob, (size_t)news->tops * sizeof(*logprob));
    }
    return !r->bad;
}

bool hzp_news_token(struct hzp_message_reader *r, const struct hzp_news *news, int32_t vocab,
                    struct hzp_output *ret, int32_t *top_token, float *top_logprob)
{
    uint64_t version = ret->version, prompt_version = ret->prompt_version;
    *ret = (struct hzp_output){.token = get32(r, 0, vocab - 1)};
    get(r, &ret->logprob, sizeof(ret->logprob));
    ret->rank = get32(r, INT32_MIN, INT32_MAX);
    bool same = get32(r, 0, SAME_VERSIONS) != 0;
    ret->version = same ? version : get64(r);
    ret->prompt_version = same ? prompt_version : get64(r);
    if (news->tops) {
        get_tokens(r, news->tops, vocab, top_token);
        get(r, top_logprob, (size_t)news->tops * sizeof(*top_logprob));
    }
    return !r->bad;
}
