/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages,
 * /v1/embeddings and /v1/score. */
#include "api/http/routes/blocks.h"
#include "api/http/routes/answer.h"
#include "api/http/routes/feedback.h"
#include "api/http/routes/field_table.h"
#include "api/http/routes/metrics.h"
#include "api/http/routes/routes.h"
#include "api/http/wire/fields.h"
#include "base/hash.h"

/* Door thread. */
static void client_left(void *ctx)
{
    hzp_completion_leave(ctx);
}

/* Checks the field `model`: absent or the served name.  True: an error was answered. */
static bool wrong_model(struct hzp_exchange *x, const json_t *body, enum MHD_Result *ret)
{
    const char *name = NULL;
    struct hzp_err_text err = {0};
    if (hzp_field_string(body, "model", &name, &err) < 0) {
        *ret = hzp_reply_fail(x, HZP_EINVAL, &err);
        return true;
    }
    if (!name || !strcmp(name, x->server->model))
        return false;
    *ret = hzp_reply_error(x, MHD_HTTP_NOT_FOUND, "model", "model_not_found",
                           "The model `%.100s` does not exist; this server serves `%s`", name,
                           x->server->model);
    return true;
}

/* ---- the end of an answer ---- */

void hzp_answer_count(struct hzp_answer *a)
{
    struct hzp_exchange *x = a->x;
    if (!a->counted) {
        hzp_metrics_completed(x->server->metrics, a->c);
        hzp_request_completed(&x->info, x->status, a->c);
        hzp_feedback_note(x->server->feedback, a->id, a->c);
    }
    a->counted = true;
}

void hzp_answer_end(struct hzp_answer *a)
{
    hzp_door_forget(a->x->server->door, a->x->fd);
    hzp_answer_count(a);
    hzp_completion_end(a->c);
}

/* Notifying thread: the completion's memory is gone. */
static void on_ended(void *ctx)
{
    struct hzp_answer *a = ctx;
    struct hzp_exchange *x = a->x;
    hzp_textbuf_fini(&a->out);
    hzp_textbuf_fini(&a->head);
    hzp_textbuf_fini(&a->block.text);
    json_decref(a->block.logprobs);
    json_decref(a->blocks);
    free(a);
    hzp_exchange_release(x);
}

json_t *hzp_answer_failure(const struct hzp_answer *a, int *ret_status)
{
    for (int32_t i = 0; i < a->c->choices; i++) {
        const struct hzp_request *rq = a->c->choice[i].rq;
        if (atomic_load(&rq->state) != HZP_REQUEST_UNMET)
            continue;
        *ret_status = rq->unmet == HZP_UNMET_FULL ? MHD_HTTP_TOO_MANY_REQUESTS
                      : rq->demands.owed          ? MHD_HTTP_SERVICE_UNAVAILABLE
                                                  : MHD_HTTP_CONFLICT;
        json_t *json = hzp_unmet_json(rq);
        json_object_set_new(json_object_get(json, "error"), "request_id",
                            json_string(a->x->info.id));
        return json;
    }
    int state = atomic_load(&a->x->server->state);
    bool stops = state == HZP_SERVER_DRAINING, damaged = false;
    for (int32_t i = 0; i < a->c->choices; i++)
        damaged |= hzp_request_final(a->c->choice[i].rq) && a->c->choice[i].rq->not_finite;
    *ret_status = stops && !damaged ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_INTERNAL_SERVER_ERROR;
    json_t *json =
        hzp_error_json(*ret_status,
                       damaged ? "the model's logits are not finite: its weights are damaged"
                       : stops ? "the server stopped before the answer was complete"
                               : "the engine failed while it made the answer",
                       NULL,
                       damaged ? "not_finite"
                       : stops ? hzp_unavailable_code(state)
                               : NULL);
    json_object_set_new(json_object_get(json, "error"), "request_id", json_string(a->x->info.id));
    return json;
}

bool hzp_answer_abandons(const struct hzp_answer *a)
{
    const struct hzp_server *server = a->x->server;
    bool failed = false, own = false; /* own: it would fail anywhere */
    for (int32_t i = 0; i < a->c->choices; i++) {
        const struct hzp_request *rq = a->c->choice[i].rq;
        int state = atomic_load(&rq->state);
        failed |= state == HZP_REQUEST_FAILED;
        own |= state == HZP_REQUEST_UNMET || (state == HZP_REQUEST_FAILED && rq->not_finite);
    }
    return server->relayed && failed && !own && atomic_load(&server->state) != HZP_SERVER_DRAINING;
}

/* The request failed in the engine, or its client disconnected. */
static enum MHD_Result reply_failed(struct hzp_answer *a)
{
    if (atomic_load(&a->c->left) || hzp_answer_abandons(a))
        return MHD_NO;
    int status;
    json_t *error = hzp_answer_failure(a, &status);
    return hzp_reply_unmet(a->x, status, error);
}

/* ---- whole answers ---- */

static enum MHD_Result reply_whole(struct hzp_answer *a)
{
    struct hzp_completion *c = a->c;
    struct hzp_exchange *x = a->x;
    uint64_t version = 0;
    for (int32_t i = 0; i < c->choices; i++)
        if (c->choice[i].finish == HZP_FINISH_FAILED)
            return reply_failed(a);
    if (!hzp_exchange_make(x, hzp_completion_answer_bytes(c)))
        return hzp_reply_no_memory(x);
    if (c->params.form->answer) {
        x->version = hzp_choice_version(c, &c->choice[0]);
        x->staleness = hzp_completion_staleness(c);
        x->stale_prefix = hzp_completion_stale_prefix(c);
        return hzp_reply_json(x, MHD_HTTP_OK, c->params.form->answer(a));
    }
    hzp_completion_choose(c);
    json_t *choices = json_array();
    const struct hzp_choice *choice;
    for (int32_t i = 0; (choice = hzp_completion_choice(c, i)) != NULL; i++) {
        json_t *json = c->params.form->whole(c, choice);
        if (c->choices > 1)
            json_object_set_new(json, "hzpserve", hzp_choice_versions_json(c, choice));
        json_array_append_new(choices, json);
        uint64_t its = hzp_choice_version(c, choice);
        version = HZP_MAX(version, its);
    }
    json_t *versions = hzp_choice_versions_json(c, &c->choice[0]);
    char fingerprint[HZP_FINGERPRINT_MAX];
    json_object_set_new(versions, "weights_version", json_integer((json_int_t)version));
    x->version = version;
    x->staleness = hzp_completion_staleness(c);
    x->stale_prefix = hzp_completion_stale_prefix(c);
    return hzp_reply_pack(x, "{s:s, s:s, s:I, s:s, s:s, s:o, s:o, s:o}", "id", a->id, "object",
                          c->params.form->object, "created", (json_int_t)a->created, "model",
                          x->server->model, "system_fingerprint",
                          hzp_fingerprint(version, fingerprint), "choices", choices, "usage",
                          hzp_usage_json(hzp_completion_usage(c)), "hzpserve", versions);
}

/* Pool: a choice has ended, or has tokens in which a stop string may be. */
static bool run_whole(void *ctx)
{
    struct hzp_answer *a = ctx;
    struct hzp_exchange *x = a->x;
    hzp_completion_pump(a->c, INT32_MAX);
    if (a->c->open && !atomic_load(&a->c->left))
        return false;
    if (reply_whole(a) == MHD_NO)
        x->closing = true;
    hzp_answer_count(a); /* before the client can have its answer */
    /* Before the exchange goes on: then its socket's number may soon be another's. */
    hzp_answer_end(a);
    hzp_exchange_wake(x);
    return true;
}

static void news_of_whole(void *ctx)
{
    struct hzp_answer *a = ctx;
    hzp_pool_post(a->x->server->pool, &a->task);
}

/* ---- streams, before their first event ---- */

static void news_of_stream(void *ctx)
{
    struct hzp_answer *a = ctx;
    hzp_exchange_wake(a->x);
}

static bool has_begun(const struct hzp_completion *c)
{
    for (int32_t i = 0; i < c->choices; i++)
        if (c->choice[i].seen || c->choice[i].finish != HZP_FINISH_NONE)
            return true;
    return false;
}

static void leave_stream(struct hzp_exchange *x)
{
    hzp_answer_end(x->later);
}

static bool resume_stream(struct hzp_answer *a)
{
    hzp_completion_pump(a->c, 1);
    if (atomic_load(&a->c->left))
        return false;
    if (!has_begun(a->c))
        return true;
    /* A failure before the first token is answered with a status, not as an event. */
    const struct hzp_choice *first = &a->c->choice[0];
    if (first->finish == HZP_FINISH_FAILED && !first->seen)
        return reply_failed(a) == MHD_YES;
    return hzp_stream_begin(a) == MHD_YES;
}

/* Whole answers are woken by their end only; what still waits for its grammar, by nothing. */
static bool resume(struct hzp_exchange *x)
{
    struct hzp_answer *a = x->later;
    return !a || !a->c->params.stream || resume_stream(a);
}

/* ---- the route ---- */

/* Makes and submits the completion; from then on the exchange is answered elsewhere. */
static int start(struct hzp_exchange *x, struct hzp_completion_params *params,
                 struct hzp_err_text *reterr)
{
    struct hzp_server *server = x->server;
    struct hzp_answer *a = hzp_xcalloc(1, sizeof(*a));
    bool stream = params->stream;
    int32_t n = params->n, max_tokens = params->max_tokens;
    a->x = x;
    a->created = time(NULL);
    a->task = (struct hzp_pool_task){.run = run_whole, .ctx = a};
    snprintf(a->id, sizeof(a->id), "%s%s", params->form->id, x->info.id);
    struct hzp_listener listener = {.notify = server->notify,
                                    .news = stream ? news_of_stream : news_of_whole,
                                    .ended = on_ended,
                                    .ctx = a};
    hzp_exchange_hold(x);
    HZP_TRY(hzp_completion_make(server->engine, params, &listener, &a->c, reterr));
    hzp_metrics_params(server->metrics, n, max_tokens);
    x->later = a;
    x->leave = stream ? leave_stream : NULL;
    bool waited = x->resume != NULL;
    if (!waited)
        x->resume = resume;
    x->logged = true;
    int r = hzp_journal_begin(a, reterr);
    if (r == HZP_OK) {
        hzp_door_watch(server->door, x->fd, client_left, a->c);
        r = hzp_completion_submit(a->c, reterr);
    }
    if (r < 0) {
        if (!waited)
            x->resume = NULL;
        x->later = NULL;
        x->leave = NULL;
        x->logged = false;
        a->counted = true;
        hzp_answer_end(a);
    }
    return r;
}

/* A lane: the grammar has been made. */
static void go_on(struct hzp_exchange *x, struct hzp_completion_params *params)
{
    struct hzp_err_text err = {0};
    int r = start(x, params, &err);
    if (r == HZP_OK)
        return;
    x->closing = hzp_reply_fail(x, r, &err) == MHD_NO;
    hzp_exchange_wake(x);
}

typedef int (*parse_fn)(const json_t *body, const struct hzp_engine *engine,
                        struct hzp_completion_params *ret, struct hzp_err_text *reterr);

/* A number for the session that the client names; 0: none. */
static uint64_t session_of(const struct hzp_exchange *x)
{
    const char *name = hzp_exchange_header(x, "x-hzpserve-session");
    return name ? hzp_fnv(HZP_FNV, name, strlen(name)) : 0;
}

/* The body, and what it and the headers ask of the weights. */
static int parse_whole(struct hzp_exchange *x, parse_fn parse, const json_t *body,
                       struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    HZP_TRY(parse(body, x->server->engine, ret, reterr));
    /* a stream that the next rank 0 goes on with must have the layers that it began with */
    bool may_shed = ret->max_tokens > 0 && !(x->server->relayed && ret->stream);
    int r = hzp_demands_read(x, body, may_shed, &ret->demands, reterr);
    ret->affinity = session_of(x);
    if (r < 0)
        hzp_completion_params_fini(ret);
    return r;
}

/* Counts the fields that no route of this kind has. */
static void count_unknown(struct hzp_unknown *u, const struct hzp_field_set *fields,
                          const json_t *body)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)body, name, value) if (!hzp_field_find(fields, name))
        hzp_unknown_count(u, name);
}

/* By the fields of the route's body. */
static parse_fn parse_of(const struct hzp_field_set *fields)
{
    static const struct {
        const struct hzp_field_set *fields;
        parse_fn parse;
    } parses[] = {
        {&hzp_fields_completions, hzp_completion_parse}, {&hzp_fields_chat, hzp_chat_parse},
        {&hzp_fields_responses, hzp_responses_parse},    {&hzp_fields_messages, hzp_messages_parse},
        {&hzp_fields_embeddings, hzp_embeddings_parse},  {&hzp_fields_score, hzp_score_parse}};
    int i = 0;
    while (parses[i].fields != fields)
        i++;
    return parses[i].parse;
}

int hzp_route_completion(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    const struct hzp_field_set *fields = x->route->body;
    if (atomic_load(&x->server->state) != HZP_SERVER_UP)
        return hzp_reply_unavailable(x);
    enum MHD_Result r;
    json_auto_t *body = hzp_exchange_json(x, &r);
    if (!body || wrong_model(x, body, &r))
        return r;
    HZP_ENDED(hzp_completion_params_fini) struct hzp_completion_params params = {0};
    HZP_TRY(parse_whole(x, parse_of(fields), body, &params, reterr));
    count_unknown(&x->server->unknown, fields, body);
    json_decref(body);
    body = NULL; /* its memory goes to the completion */
    if (hzp_demands_refused(x, &params.demands, &r))
        return r;
    if (!hzp_exchange_keep(x, hzp_completion_bytes(&params)))
        return hzp_reply_no_memory(x);
    if (!hzp_structure_find(&params, x->server->engine)) {
        x->resume = resume;
        hzp_structure_wait(x, &params, go_on);
        return MHD_YES;
    }
    HZP_TRY(start(x, &params, reterr));
    return MHD_YES;
}
