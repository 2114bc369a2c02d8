/* SPDX-License-Identifier: Apache-2.0 */
/* api/relay/relay.c - the client's side: forwards a request, and answers with what comes back. */
#include "api/relay/relay_state.h"

#include "api/http/wire/target.h"
#include "base/words.h"

#include <strings.h>
#include <sys/random.h>

enum { BLOCK_BYTES = 16 << 10 };
static const uint64_t HEALTH_NS = 900000000u; /* less than a second, which probes often wait */

void hzp_call_release(struct hzp_relay_call *c)
{
    if (atomic_fetch_sub(&c->holds, 1) > 1)
        return;
    hzp_exchange_release(c->x);
    hzp_textbuf_fini(&c->head);
    hzp_textbuf_fini(&c->body);
    hzp_textbuf_fini(&c->out);
    hzp_incoming_fini(&c->reply);
    hzp_lock_fini(&c->lock);
    free(c);
}

/* ---- the request ---- */

static int add(struct hzp_textbuf *buf, const char *text)
{
    return hzp_textbuf_append(buf, text, strlen(text));
}

/* The path was decoded. */
static int add_encoded(struct hzp_textbuf *buf, const char *text, const char *plain)
{
    for (; *text; text++) {
        char code[8];
        unsigned char c = (unsigned char)*text;
        bool keep = c < 128 && (isalnum(c) || strchr(plain, c));
        snprintf(code, sizeof(code), keep ? "%c" : "%%%02X", c);
        HZP_TRY(add(buf, code));
    }
    return HZP_OK;
}

struct writer {
    struct hzp_textbuf *out;
    bool keyed; /* there is an idempotency key */
    int r;
};

/* Not forwarded: what is about this connection, what was checked here (Host, Origin), and what only
 * the relay may say. */
static bool is_own(const char *name)
{
    static const char *const own[] = {"connection",      "keep-alive",   "transfer-encoding",
                                      "content-length",  "te",           "trailer",
                                      "upgrade",         "expect",       "host",
                                      "origin",          "x-request-id", "proxy-connection",
                                      "content-encoding"};
    for (int i = 0; i < HZP_COUNT(own); i++)
        if (!strcasecmp(name, own[i]))
            return true;
    return !strncasecmp(name, "access-control-", 15) || !strcasecmp(name, "x-hzpserve-created") ||
           !strcasecmp(name, "x-hzpserve-resume");
}

static enum MHD_Result write_header(void *ctx, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    struct writer *w = ctx;
    if (is_own(name))
        return MHD_YES;
    w->keyed |= !strcasecmp(name, "idempotency-key");
    const char *part[] = {name, ": ", value ? value : "", "\r\n"};
    for (int i = 0; i < HZP_COUNT(part) && w->r == HZP_OK; i++)
        w->r = add(w->out, part[i]);
    return w->r == HZP_OK ? MHD_YES : MHD_NO;
}

static bool teaches(const struct hzp_exchange *x)
{
    return !strcmp(x->route->path, "/v1/fine_tuning/examples") && !strcmp(x->route->method, "POST");
}

/* A body of examples that comes twice is accepted once. */
static int add_key(struct hzp_textbuf *out)
{
    uint64_t number[2];
    char text[80];
    if (getrandom(number, sizeof(number), 0) != sizeof(number))
        return HZP_EIO;
    snprintf(text, sizeof(text), "idempotency-key: relay-%016llx%016llx\r\n",
             (unsigned long long)number[0], (unsigned long long)number[1]);
    return add(out, text);
}

static int write_request(struct hzp_relay_call *c, const char *method, const char *path)
{
    struct hzp_exchange *x = c->x;
    struct writer w = {.out = &c->head};
    char text[192];
    /* The library leaves out the body of an answer to HEAD. */
    HZP_TRY(add(&c->head, strcmp(method, "HEAD") ? method : "GET"));
    HZP_TRY(add(&c->head, " "));
    HZP_TRY(add_encoded(&c->head, path, "/-._~!$&'()*+,;=:@"));
    HZP_TRY(add(&c->head, *x->target->query ? "?" : ""));
    HZP_TRY(add(&c->head, x->target->query));
    snprintf(text, sizeof(text),
             " HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-request-id: %s\r\n"
             "x-hzpserve-created: %lld\r\n",
             x->info.id, (long long)time(NULL));
    HZP_TRY(add(&c->head, text));
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, write_header, &w);
    HZP_TRY(w.r);
    return teaches(x) && !w.keyed ? add_key(&c->head) : HZP_OK;
}

/* ---- the answer ---- */

static bool is_ours(const char *name, size_t names)
{
    static const char *const ours[] = {"connection", "transfer-encoding", "content-length",
                                       "date",       "keep-alive",        "x-request-id"};
    for (int i = 0; i < HZP_COUNT(ours); i++)
        if (strlen(ours[i]) == names && !strncasecmp(name, ours[i], names))
            return true;
    return false;
}

static void copy_headers(const struct hzp_incoming *reply, struct MHD_Response *response)
{
    const char *name, *value;
    size_t names, values, at = 0;
    while (hzp_incoming_header(reply, &at, &name, &names, &value, &values)) {
        char key[128], text[2048];
        if (is_ours(name, names) || names >= sizeof(key) || values >= sizeof(text))
            continue;
        snprintf(key, sizeof(key), "%.*s", (int)names, name);
        snprintf(text, sizeof(text), "%.*s", (int)values, value);
        MHD_add_response_header(response, key, text);
    }
}

/* I/O thread: the client takes more of an answer. */
static ssize_t read_answer(void *cls, uint64_t pos, char *buf, size_t most)
{
    struct hzp_relay_call *c = cls;
    hzp_exchange_awake(c->x);
    hzp_lock_take(&c->lock);
    struct hzp_textbuf *body = &c->reply.body;
    size_t n = HZP_MIN(most, body->bytes - c->given);
    if (n)
        memcpy(buf, body->data + c->given, n);
    c->given += n;
    if (c->given && (c->given == body->bytes || c->given > HZP_CALL_BODY_MAX)) {
        body->bytes -= c->given;
        memmove(body->data, body->data + c->given, body->bytes);
        c->given = 0;
    }
    bool low = body->bytes - c->given < HZP_CALL_BODY_MAX / 2;
    enum hzp_call_end end = c->end;
    hzp_lock_release(&c->lock);
    if (n && low && atomic_load(&c->paused))
        hzp_upstream_poke(c->relay);
    if (n) {
        hzp_door_sending(c->x->server->door, c->x->fd, true);
        return (ssize_t)n;
    }
    if (end != HZP_CALL_OPEN)
        return end == HZP_CALL_WHOLE ? MHD_CONTENT_READER_END_OF_STREAM
                                     : MHD_CONTENT_READER_END_WITH_ERROR;
    return hzp_exchange_park(c->x) ? 0 : MHD_CONTENT_READER_END_WITH_ERROR;
}

/* Under the lock: the answer that has begun, or is whole. */
static struct MHD_Response *make_response(struct hzp_relay_call *c)
{
    struct hzp_incoming *reply = &c->reply;
    bool stream = reply->stream || reply->continued;
    uint64_t size = c->end == HZP_CALL_WHOLE && !stream ? reply->body.bytes
                    : reply->sized && !stream           ? reply->left + reply->body.bytes
                                                        : MHD_SIZE_UNKNOWN;
    struct MHD_Response *response =
        MHD_create_response_from_callback(size, BLOCK_BYTES, read_answer, c, NULL);
    if (response)
        copy_headers(reply, response);
    c->begun = true;
    return response;
}

static enum MHD_Result fail(struct hzp_exchange *x, enum hzp_call_end end)
{
    x->logged = false; /* rank 0 has not logged it */
    if (end == HZP_CALL_GONE)
        return hzp_reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "stopping",
                               "the server is stopping: rank 0 has ended");
    return hzp_reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "rank_lost",
                           "rank 0 was lost while it had this request; whether it was done is not "
                           "known");
}

/* How the server is, while rank 0 does not say it. */
static enum MHD_Result answer_itself(struct hzp_exchange *x, enum hzp_call_end end)
{
    x->logged = false; /* rank 0 has not logged it */
    if (end == HZP_CALL_MUTE)
        return hzp_reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "starting",
                               "rank 0 has not answered yet");
    return hzp_reply_pack(x, "{s:s, s:i, s:s}", "status", "degraded", "lost_rank", 0, "reason",
                          "rank 0 does not answer: it hangs, or is being replaced; "
                          "requests wait for it");
}

/* I/O thread: there is news. */
static bool resume(struct hzp_exchange *x)
{
    struct hzp_relay_call *c = x->later;
    struct MHD_Response *response = NULL;
    if (atomic_load(&c->left))
        return false;
    hzp_lock_take(&c->lock);
    enum hzp_call_end end = c->end;
    bool news = end == HZP_CALL_WHOLE || c->reply.body.bytes > 0;
    if (news && (end == HZP_CALL_OPEN || end == HZP_CALL_WHOLE))
        response = make_response(c);
    int status = hzp_incoming_status(&c->reply);
    hzp_lock_release(&c->lock);
    if (response)
        return hzp_reply(x, status, response) == MHD_YES;
    if (end == HZP_CALL_QUIET || end == HZP_CALL_MUTE)
        return answer_itself(x, end) == MHD_YES;
    if (end == HZP_CALL_GONE || end == HZP_CALL_LOST)
        return fail(x, end) == MHD_YES;
    return !news; /* without memory for the answer the connection is closed */
}

/* Door thread: the client has closed its connection, or its side of it. */
static void client_closed(void *ctx)
{
    struct hzp_relay_call *c = ctx;
    if (c->patient)
        atomic_store(&c->closed_ns, hzp_now_ns());
    else
        atomic_store(&c->left, true);
    hzp_upstream_poke(c->relay);
}

/* I/O thread: the exchange ends. */
static void leave(struct hzp_exchange *x)
{
    struct hzp_relay_call *c = x->later;
    hzp_door_forget(x->server->door, x->fd);
    x->later = NULL;
    hzp_lock_take(&c->lock);
    bool open = c->end == HZP_CALL_OPEN;
    hzp_lock_release(&c->lock);
    if (open) {
        atomic_store(&c->left, true);
        hzp_upstream_poke(c->relay);
    }
    hzp_call_release(c);
}

static bool repeats(const struct hzp_exchange *x)
{
    const struct hzp_route *route = x->route;
    return !strcmp(route->method, "GET") || !strcmp(route->method, "PATCH") ||
           (!strcmp(route->method, "POST") && route->right != HZP_RIGHT_TEACH) || teaches(x);
}

/* Whether rank 0, too, ends it as soon as the client sends no more: an answer that takes long. */
static bool takes_long(const struct hzp_exchange *x)
{
    return x->route->kind != HZP_ANSWER_SOON || (teaches(x) && hzp_exchange_query(x, "wait"));
}

/* The body is held until the answer ends: without the room that it did not need. */
static void trim_body(struct hzp_exchange *x)
{
    char *fit = x->bytes && x->bytes < x->room ? realloc(x->body, x->bytes) : NULL;
    if (!fit)
        return;
    x->body = fit;
    x->room = x->bytes;
    hzp_exchange_charge(x, 0);
}

static enum MHD_Result answer(void *ctx, struct hzp_exchange *x, const char *method,
                              const char *path)
{
    struct hzp_relay_call *c = hzp_xcalloc(1, sizeof(*c));
    c->relay = ctx;
    c->x = x;
    c->fd = -1;
    c->holds = 1;
    c->repeats = repeats(x);
    c->patient = !takes_long(x);
    /* Health checks have a deadline: a silent rank 0 must not hold up their answer. */
    c->answer_by_ns = hzp_among("/health /ping", x->route->path) ? hzp_now_ns() + HEALTH_NS : 0;
    c->named_events = hzp_among("/v1/responses /v1/messages", x->route->path);
    trim_body(x);
    c->body = (struct hzp_textbuf){x->body, x->bytes, x->room};
    x->body = NULL; /* its memory stays accounted for until the exchange is released */
    hzp_lock_init(&c->lock, HZP_LOCK_RELAY);
    hzp_exchange_hold(x);
    if (write_request(c, method, path) < 0) {
        hzp_call_release(c);
        return hzp_reply_no_memory(x);
    }
    x->later = c;
    x->resume = resume;
    x->leave = leave;
    x->logged = true;
    hzp_door_watch(x->server->door, x->fd, client_closed, c);
    hzp_upstream_add(ctx, c);
    return MHD_YES;
}

struct hzp_forwarder hzp_relay_forward(struct hzp_relay *relay)
{
    return (struct hzp_forwarder){.answer = answer, .ctx = relay};
}
