/* SPDX-License-Identifier: Apache-2.0 */
/* A completion as a stream of server-sent events: `data: <json>\n\n`, at the end `data:
 * [DONE]\n\n`.
 *
 * The connection's thread calls read_events() whenever it has sent its buffer, and waits there for
 * the engine.  An error after the header becomes an event. */
#include "api/http/completion.h"
#include "api/http/http.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t WAIT_NS = 250 * 1000000ull;
enum { BLOCK_BYTES = 16 * 1024 };

struct stream {
    struct hzp_server *server;
    struct hzp_completion *c;
    int fd;
    char id[48];
    int64_t created;
    struct hzp_textbuf out; /* formatted, not sent yet */
    size_t at;
    bool done, counted;
};

/* Appends one event; takes over json. */
static void add_event(struct stream *s, json_t *json)
{
    char *text = json ? json_dumps(json, HZP_JSON_FORM) : NULL;
    json_decref(json);
    if (!text || hzp_textbuf_append(&s->out, "data: ", 6) < 0 ||
        hzp_textbuf_append(&s->out, text, strlen(text)) < 0 ||
        hzp_textbuf_append(&s->out, "\n\n", 2) < 0) {
        hzp_completion_leave(s->c); /* out of memory: the stream ends without an end mark */
    }
    free(text);
}

/* choice NULL: the list of choices is empty. */
static json_t *chunk_json(struct stream *s, json_t *choice)
{
    json_t *choices = json_array();
    if (choice)
        json_array_append_new(choices, choice);
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", s->id, "object", "text_completion",
                     "created", (json_int_t)s->created, "model", s->server->model, "choices",
                     choices);
}

static struct hzp_usage choice_usage(const struct hzp_completion *c,
                                     const struct hzp_choice *choice)
{
    return (struct hzp_usage){(int64_t)c->params.prompt[choice->prompt].n, choice->seen};
}

/* The new part of a choice, if there is enough of it for an event. */
static void add_choice(struct stream *s, struct hzp_choice *choice)
{
    const struct hzp_completion_params *p = &s->c->params;
    if (choice->closed || choice->finish == HZP_FINISH_FAILED)
        return;
    bool ends = choice->finish != HZP_FINISH_NONE;
    bool text = choice->text.bytes > choice->sent_bytes;
    bool tokens = choice->seen > choice->sent_tokens && (p->logprobs >= 0 || p->return_ids);
    if (!choice->seen && !ends)
        return;
    if (!text && !tokens && !ends)
        return;
    json_t *chunk = chunk_json(
        s, hzp_choice_json(s->c, choice, choice->sent_bytes, choice->sent_tokens, !choice->opened));
    if (ends)
        json_object_set_new(chunk, "hzpserve", hzp_choice_versions_json(s->c, choice));
    if (p->continuous_usage)
        json_object_set_new(chunk, "usage", hzp_usage_json(choice_usage(s->c, choice)));
    else if (p->include_usage)
        json_object_set_new(chunk, "usage", json_null());
    choice->sent_bytes = choice->text.bytes;
    choice->sent_tokens = choice->seen;
    choice->opened = true;
    choice->closed = ends;
    add_event(s, chunk);
}

static void add_failure(struct stream *s)
{
    int state = atomic_load(&s->server->state);
    bool stops = state == HZP_SERVER_DRAINING;
    add_event(s,
              hzp_error_json(stops ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_INTERNAL_SERVER_ERROR,
                             stops ? "the server stopped before the answer was complete"
                                   : "the engine failed while it made the answer",
                             NULL, stops ? hzp_unavailable_code(state) : NULL));
}

static void count(struct stream *s)
{
    for (int32_t i = 0; i < s->c->choices && !s->counted; i++) {
        const struct hzp_choice *choice = &s->c->choice[i];
        hzp_metrics_request(s->server->metrics, choice->rq, choice->seen,
                            choice->finish == HZP_FINISH_STOP     ? "stop"
                            : choice->finish == HZP_FINISH_LENGTH ? "length"
                                                                  : "abort");
    }
    s->counted = true;
}

/* All choices have ended: usage if requested, then the end mark. */
static void add_end(struct stream *s)
{
    bool failed = false;
    for (int32_t i = 0; i < s->c->choices; i++)
        failed |= s->c->choice[i].finish == HZP_FINISH_FAILED;
    if (failed) {
        add_failure(s);
    } else if (s->c->params.include_usage) {
        json_t *chunk = chunk_json(s, NULL);
        json_object_set_new(chunk, "usage", hzp_usage_json(hzp_completion_usage(s->c)));
        json_object_set_new(chunk, "hzpserve", hzp_choice_versions_json(s->c, &s->c->choice[0]));
        add_event(s, chunk);
    }
    hzp_textbuf_append(&s->out, "data: [DONE]\n\n", 14);
    s->done = true;
    count(s);
}

/* Waits until there is something to send. */
static void make_events(struct stream *s)
{
    s->out.bytes = s->at = 0;
    while (!s->out.bytes && !atomic_load(&s->c->left)) {
        for (int32_t i = 0; i < s->c->choices; i++)
            add_choice(s, &s->c->choice[i]);
        if (!s->c->open)
            add_end(s);
        if (s->out.bytes)
            return;
        hzp_completion_wait(s->c, WAIT_NS);
        hzp_completion_pump(s->c);
    }
}

static ssize_t read_events(void *cls, uint64_t pos, char *buf, size_t most)
{
    struct stream *s = cls;
    if (s->at == s->out.bytes) {
        if (s->done)
            return MHD_CONTENT_READER_END_OF_STREAM;
        hzp_completion_pump(s->c);
        make_events(s);
    }
    if (atomic_load(&s->c->left))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = HZP_MIN(most, s->out.bytes - s->at);
    memcpy(buf, s->out.data + s->at, n);
    s->at += n;
    return (ssize_t)n;
}

static void free_stream(void *cls)
{
    struct stream *s = cls;
    hzp_hangup_forget(s->server->hangup, s->fd);
    count(s);
    hzp_completion_end(s->c);
    hzp_textbuf_fini(&s->out);
    free(s);
}

enum MHD_Result hzp_stream_completion(struct hzp_exchange *x, struct hzp_completion *c,
                                      const char *id, int64_t created)
{
    int fd = hzp_exchange_socket(x);
    struct stream *s = calloc(1, sizeof(*s));
    struct MHD_Response *response =
        s ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_events, s,
                                              free_stream)
          : NULL;
    if (!response) {
        free(s);
        hzp_hangup_forget(x->server->hangup, fd);
        hzp_completion_end(c);
        return MHD_NO;
    }
    s->server = x->server;
    s->c = c;
    s->fd = fd;
    s->created = created;
    snprintf(s->id, sizeof(s->id), "%s", id);
    uint64_t version = 0;
    for (int32_t i = 0; i < c->choices; i++)
        version = HZP_MAX(version, hzp_choice_version(c, &c->choice[i]));
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)version);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                            "text/event-stream; charset=utf-8");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    MHD_add_response_header(response, "x-hzpserve-weights-version", text);
    return hzp_reply(x, MHD_HTTP_OK, response);
}
