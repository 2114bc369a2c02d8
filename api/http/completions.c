/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/completions. */
#include "api/http/completion.h"
#include "api/http/fields.h"
#include "api/http/http.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

static const uint64_t WAIT_NS = 250 * 1000000ull;

static void client_left(void *ctx)
{
    hzp_completion_leave(ctx);
}

static void make_id(char *id, size_t size)
{
    uint64_t word[2] = {hzp_now_ns(), 0};
    if (getrandom(word, sizeof(word), 0) < 0)
        word[1] = (uintptr_t)id;
    snprintf(id, size, "cmpl-%016llx%016llx", (unsigned long long)word[0],
             (unsigned long long)word[1]);
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

static void count_choices(struct hzp_exchange *x, const struct hzp_completion *c)
{
    for (int32_t i = 0; i < c->choices; i++) {
        const struct hzp_choice *choice = &c->choice[i];
        hzp_metrics_request(x->server->metrics, choice->rq, choice->seen,
                            choice->finish == HZP_FINISH_STOP     ? "stop"
                            : choice->finish == HZP_FINISH_LENGTH ? "length"
                                                                  : "abort");
    }
}

/* The request failed in the engine, or its client disconnected. */
static enum MHD_Result reply_failed(struct hzp_exchange *x, const struct hzp_completion *c)
{
    if (atomic_load(&c->left))
        return MHD_NO;
    int state = atomic_load(&x->server->state);
    if (state == HZP_SERVER_DRAINING)
        return hzp_reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, hzp_unavailable_code(state),
                               "the server stopped before the answer was complete");
    return hzp_reply_error(x, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL,
                           "the engine failed while it made the answer");
}

static enum MHD_Result reply_whole(struct hzp_exchange *x, const struct hzp_completion *c,
                                   const char *id, int64_t created)
{
    json_t *choices = json_array();
    uint64_t version = 0;
    for (int32_t i = 0; i < c->choices; i++) {
        const struct hzp_choice *choice = &c->choice[i];
        if (choice->finish == HZP_FINISH_FAILED) {
            json_decref(choices);
            return reply_failed(x, c);
        }
        json_t *json = hzp_choice_json(c, choice, 0, 0, true);
        if (c->choices > 1)
            json_object_set_new(json, "hzpserve", hzp_choice_versions_json(c, choice));
        json_array_append_new(choices, json);
        version = HZP_MAX(version, hzp_choice_version(c, choice));
    }
    json_t *versions = hzp_choice_versions_json(c, &c->choice[0]);
    json_object_set_new(versions, "weights_version", json_integer((json_int_t)version));
    json_t *body =
        json_pack("{s:s, s:s, s:I, s:s, s:o, s:o, s:o}", "id", id, "object", "text_completion",
                  "created", (json_int_t)created, "model", x->server->model, "choices", choices,
                  "usage", hzp_usage_json(hzp_completion_usage(c)), "hzpserve", versions);
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)version);
    return hzp_reply_json_with(x, MHD_HTTP_OK, body, "x-hzpserve-weights-version", text);
}

/* Waits until a stream has something to send, or an answer is whole. */
static void wait_for(struct hzp_completion *c, bool first_only)
{
    hzp_completion_pump(c);
    while (c->open && !atomic_load(&c->left)) {
        if (first_only)
            for (int32_t i = 0; i < c->choices; i++)
                if (c->choice[i].seen || c->choice[i].finish != HZP_FINISH_NONE)
                    return;
        hzp_completion_wait(c, WAIT_NS);
        hzp_completion_pump(c);
    }
}

static enum MHD_Result answer(struct hzp_exchange *x, struct hzp_completion *c)
{
    char id[48];
    make_id(id, sizeof(id));
    int64_t created = time(NULL);
    hzp_metrics_params(x->server->metrics, c->params.n, c->params.max_tokens);
    int fd = hzp_exchange_socket(x);
    hzp_hangup_watch(x->server->hangup, fd, client_left, c);
    bool stream = c->params.stream;
    wait_for(c, stream);
    /* A failure before the first token is answered with a status, not as an event. */
    bool failed = c->choice[0].finish == HZP_FINISH_FAILED && !c->choice[0].seen;
    if (stream && !failed)
        return hzp_stream_completion(x, c, id, created);
    hzp_hangup_forget(x->server->hangup, fd);
    count_choices(x, c);
    enum MHD_Result r = failed ? reply_failed(x, c) : reply_whole(x, c, id, created);
    hzp_completion_end(c);
    return r;
}

enum MHD_Result hzp_route_completions(struct hzp_exchange *x)
{
    if (atomic_load(&x->server->state) != HZP_SERVER_UP)
        return hzp_reply_unavailable(x);
    enum MHD_Result r;
    json_t *body = hzp_exchange_json(x, &r);
    if (!body)
        return r;
    struct hzp_err_text err = {0};
    struct hzp_completion_params params;
    struct hzp_completion *c = NULL;
    if (!wrong_model(x, body, &r)) {
        int code = hzp_completion_parse(body, x->server->engine, &params, &err);
        if (code == HZP_OK)
            code = hzp_completion_begin(x->server->engine, &params, &c, &err);
        r = code < 0 ? hzp_reply_fail(x, code, &err) : MHD_YES;
    }
    json_decref(body);
    return c ? answer(x, c) : r;
}
