/* SPDX-License-Identifier: Apache-2.0 */
/* A completion as a stream of server-sent events: `data: <json>\n\n`, at the end `data:
 * [DONE]\n\n`.
 *
 * The I/O thread calls read_events() whenever it has sent its buffer or was woken; without
 * something to send the exchange is parked.  A token has an event of its own.  Those of several
 * steps are written in one piece when the stream was woken for all of them (wire/join.c),
 * or its client reads slowly.  An error after the header becomes an event. */
#include "api/http/routes/answer.h"
#include "base/utf8.h"

enum {
    BLOCK_BYTES = 4 * 1024,
    PIECE_BYTES = 16 * 1024, /* events are made until there is so much to send */
};

static int append_text(struct hzp_textbuf *buf, const char *text)
{
    return hzp_textbuf_append(buf, text, strlen(text));
}

/* Out of memory: the stream ends without an end mark. */
static void give_up(struct hzp_answer *a)
{
    hzp_completion_leave(a->c);
}

/* Appends one event; takes over json. */
static void add_event(struct hzp_answer *a, json_t *json)
{
    HZP_FREED char *text = json ? hzp_json_dumps(json, HZP_JSON_FORM) : NULL;
    json_decref(json);
    if (!text || append_text(&a->out, "data: ") < 0 || append_text(&a->out, text) < 0 ||
        append_text(&a->out, "\n\n") < 0)
        give_up(a);
}

void hzp_stream_event(struct hzp_answer *a, const char *name, json_t *json)
{
    if (append_text(&a->out, "event: ") < 0 || append_text(&a->out, name) < 0 ||
        append_text(&a->out, "\n") < 0)
        give_up(a);
    add_event(a, json);
}

/* version: of the newest token in it.  choice NULL: the list of choices is empty. */
static json_t *chunk_json(struct hzp_answer *a, uint64_t version, json_t *choice)
{
    json_t *choices = json_array();
    char fingerprint[HZP_FINGERPRINT_MAX];
    if (choice)
        json_array_append_new(choices, choice);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", a->id, "object",
                     a->c->params.form->chunk, "created", (json_int_t)a->created, "model",
                     a->x->server->model, "system_fingerprint",
                     hzp_fingerprint(version, fingerprint), "choices", choices);
}

static struct hzp_usage choice_usage(const struct hzp_completion *c,
                                     const struct hzp_choice *choice)
{
    return (struct hzp_usage){(int64_t)c->params.prompt[choice->prompt].n, choice->seen,
                              hzp_choice_cached(choice), hzp_choice_reasoned(choice)};
}

/* ---- the common event, without a JSON library ---- */

/* How every event with tokens of this version begins, up to the first choice's index. */
static int make_head(struct hzp_answer *a, uint64_t version)
{
    json_t *json = chunk_json(a, version, NULL);
    HZP_FREED char *text = json ? hzp_json_dumps(json, HZP_JSON_FORM) : NULL;
    json_decref(json);
    size_t bytes = text ? strlen(text) : 0; /* {...,"choices":[]} */
    int r = HZP_ENOMEM;
    a->head.bytes = 0;
    a->head_version = version;
    if (bytes > 2 && append_text(&a->head, "data: ") == HZP_OK &&
        hzp_textbuf_append(&a->head, text, bytes - 2) == HZP_OK)
        r = append_text(&a->head, "{\"index\":");
    return r;
}

/* Appends text, valid UTF-8, as a JSON string. */
static int add_string(struct hzp_textbuf *out, const char *text, size_t bytes)
{
    HZP_TRY(hzp_textbuf_append(out, "\"", 1));
    size_t from = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        static const char plain[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        char code[8];
        const char *known = memchr(plain, c, sizeof(plain) - 1);
        if (known)
            snprintf(code, sizeof(code), "\\%c", to[known - plain]);
        else
            snprintf(code, sizeof(code), "\\u%04X", c);
        HZP_TRY(hzp_textbuf_append(out, text + from, i - from));
        HZP_TRY(append_text(out, code));
        from = i + 1;
    }
    HZP_TRY(hzp_textbuf_append(out, text + from, bytes - from));
    return hzp_textbuf_append(out, "\"", 1);
}

static int add_plain(struct hzp_answer *a, const struct hzp_choice *choice, const char *text,
                     size_t bytes)
{
    const struct hzp_answer_form *form = a->c->params.form;
    char index[16];
    uint64_t version = hzp_choice_version(a->c, choice);
    snprintf(index, sizeof(index), "%d", choice->index);
    if (version != a->head_version)
        HZP_TRY(make_head(a, version));
    HZP_TRY(hzp_textbuf_append(&a->out, a->head.data, a->head.bytes));
    HZP_TRY(append_text(&a->out, index));
    HZP_TRY(append_text(&a->out, form->before_text));
    HZP_TRY(add_string(&a->out, text, bytes));
    HZP_TRY(append_text(&a->out, form->behind_text));
    if (a->c->params.include_usage)
        HZP_TRY(append_text(&a->out, ",\"usage\":null"));
    return append_text(&a->out, "}\n\n");
}

/* Whether the new text of a choice is all that its event says. */
static bool is_plain(const struct hzp_answer *a, const struct hzp_choice *choice)
{
    const struct hzp_completion_params *p = &a->c->params;
    return !choice->reply && p->logprobs < 0 && !p->return_ids && !p->continuous_usage &&
           choice->finish == HZP_FINISH_NONE &&
           (choice->opened || (p->form->first_is_plain && !p->echo));
}

/* ---- events ---- */

/* The new part of a choice, if there is enough of it for an event. */
static void add_choice(struct hzp_answer *a, struct hzp_choice *choice)
{
    const struct hzp_completion_params *p = &a->c->params;
    if (choice->closed || choice->finish == HZP_FINISH_FAILED)
        return;
    bool ends = choice->finish != HZP_FINISH_NONE;
    bool text = choice->text.bytes > choice->sent_bytes;
    bool tokens = choice->seen > choice->sent_tokens && (p->logprobs >= 0 || p->return_ids);
    if (!choice->seen && !ends)
        return;
    if (!text && !tokens && !ends)
        return;
    const char *new_text = choice->text.data + choice->sent_bytes;
    size_t bytes = choice->text.bytes - choice->sent_bytes;
    if (is_plain(a, choice) && hzp_utf8_valid(new_text, bytes) == bytes) {
        if (add_plain(a, choice, new_text, bytes) < 0)
            give_up(a);
    } else {
        json_t *part =
            p->form->part(a->c, choice, choice->sent_bytes, choice->sent_tokens, !choice->opened);
        if (!part) {
            choice->sent_bytes = choice->text.bytes;
            return;
        }
        json_t *chunk = chunk_json(a, hzp_choice_version(a->c, choice), part);
        if (ends)
            json_object_set_new(chunk, "hzpserve", hzp_choice_versions_json(a->c, choice));
        if (p->continuous_usage)
            json_object_set_new(chunk, "usage", hzp_usage_json(choice_usage(a->c, choice)));
        else if (p->include_usage)
            json_object_set_new(chunk, "usage", json_null());
        add_event(a, chunk);
    }
    choice->sent_bytes = choice->text.bytes;
    choice->sent_tokens = choice->seen;
    choice->opened = true;
    choice->closed = ends;
}

/* All choices have ended: usage if requested, then the end mark. */
static void add_end(struct hzp_answer *a)
{
    bool failed = false;
    int status;
    for (int32_t i = 0; i < a->c->choices; i++)
        failed |= a->c->choice[i].finish == HZP_FINISH_FAILED;
    if (failed && hzp_answer_abandons(a)) {
        give_up(a);
        return;
    }
    if (failed) {
        add_event(a, hzp_answer_failure(a, &status));
    } else if (a->c->params.include_usage) {
        json_t *chunk = chunk_json(a, hzp_choice_version(a->c, &a->c->choice[0]), NULL);
        json_object_set_new(chunk, "usage", hzp_usage_json(hzp_completion_usage(a->c)));
        json_object_set_new(chunk, "hzpserve", hzp_choice_versions_json(a->c, &a->c->choice[0]));
        add_event(a, chunk);
    }
    append_text(&a->out, "data: [DONE]\n\n");
    a->done = true;
    hzp_answer_count(a);
}

/* The events of a form that has its own. */
static void make_own_events(struct hzp_answer *a)
{
    int status;
    struct hzp_choice *choice = &a->c->choice[0];
    if (choice->finish == HZP_FINISH_FAILED && hzp_answer_abandons(a)) {
        give_up(a);
        return;
    }
    if (choice->finish == HZP_FINISH_FAILED) {
        hzp_stream_event(a, "error", hzp_answer_failure(a, &status));
    } else if (!choice->closed) {
        a->c->params.form->events(a);
        choice->closed = choice->finish != HZP_FINISH_NONE;
    }
    if (a->c->open)
        return;
    a->done = true;
    hzp_answer_count(a);
}

/* Formats what was turned into text. */
static void make_events(struct hzp_answer *a)
{
    if (a->c->params.form->events) {
        make_own_events(a);
        return;
    }
    for (int32_t i = 0; i < a->c->choices; i++)
        add_choice(a, &a->c->choice[i]);
    if (!a->c->open)
        add_end(a);
}

void hzp_stream_replay(struct hzp_answer *a)
{
    while (hzp_completion_pump(a->c, 1) && a->c->open) {
        make_events(a);
        a->out.bytes = 0;
    }
}

/* Formats what is new, token by token, until there is enough to send. */
static void make_piece(struct hzp_answer *a)
{
    int64_t tokens = 0;
    a->out.bytes = a->at = 0;
    a->more = true;
    for (;;) {
        size_t before = a->out.bytes;
        make_events(a);
        bool any = a->out.bytes > before;
        tokens += any;
        if (a->x->server->relayed && hzp_journal_write(a, any) < 0)
            give_up(a);
        if (a->done || a->out.bytes >= PIECE_BYTES || atomic_load(&a->c->left))
            break;
        if (!hzp_completion_pump(a->c, 1)) {
            a->more = false;
            break;
        }
    }
    if (tokens > 1)
        atomic_fetch_add(&a->x->server->joined, tokens - 1);
}

static ssize_t read_events(void *cls, uint64_t pos, char *buf, size_t most)
{
    struct hzp_answer *a = cls;
    if (a->at == a->out.bytes) {
        if (a->done)
            return MHD_CONTENT_READER_END_OF_STREAM;
        /* Then this thread finds all that has news for this step, instead of a wakeup for each. */
        hzp_notify_settle(a->x->server->notify);
        hzp_exchange_awake(a->x);
        /* What has come since it was woken waits for its flush, which is sure to come. */
        if (a->sent && !a->more && hzp_completion_joins(a->c))
            a->out.bytes = a->at = 0;
        else
            make_piece(a);
    }
    if (atomic_load(&a->c->left))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    a->sent = a->out.bytes > 0;
    if (!a->sent)
        return hzp_exchange_park(a->x) ? 0 : MHD_CONTENT_READER_END_WITH_ERROR;
    if (!a->at)
        hzp_door_sending(a->x->server->door, a->x->fd, true);
    size_t n = HZP_MIN(most, a->out.bytes - a->at);
    memcpy(buf, a->out.data + a->at, n);
    a->at += n;
    return (ssize_t)n;
}

static void free_stream(void *cls)
{
    hzp_answer_end(cls);
}

enum MHD_Result hzp_stream_begin(struct hzp_answer *a)
{
    struct hzp_exchange *x = a->x;
    uint64_t version = 0;
    for (int32_t i = 0; i < a->c->choices; i++) {
        uint64_t its = hzp_choice_version(a->c, &a->c->choice[i]);
        version = HZP_MAX(version, its);
    }
    if (!a->c->params.form->events && make_head(a, version) < 0)
        return MHD_NO;
    struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES,
                                                                      read_events, a, free_stream);
    if (!response)
        return MHD_NO;
    x->leave = NULL; /* from now on the end of the response ends the answer */
    x->version = version;
    x->staleness = hzp_completion_staleness(a->c);
    x->stale_prefix = hzp_completion_stale_prefix(a->c);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                            "text/event-stream; charset=utf-8");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    return hzp_reply(x, MHD_HTTP_OK, response);
}
