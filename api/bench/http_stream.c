/* SPDX-License-Identifier: Apache-2.0 */
#include "api/bench/http_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void hzp_http_stream_init(struct hzp_http_stream *s, int (*event)(void *, const char *, size_t),
                          void *ctx)
{
    memset(s, 0, sizeof(*s));
    s->event = event;
    s->ctx = ctx;
    s->left = -1;
    s->body_max = HZP_HTTP_BODY_MAX;
}

void hzp_http_stream_fini(struct hzp_http_stream *s)
{
    free(s->body);
    memset(s, 0, sizeof(*s));
}

bool hzp_http_stream_done(const struct hzp_http_stream *s)
{
    return s->state == HZP_HTTP_DONE;
}

/* ---- the body ---- */

static int keep(struct hzp_http_stream *s, const char *bytes, size_t n, struct hzp_err_text *reterr)
{
    if (n > s->body_max - s->bytes)
        return hzp_fail(reterr, HZP_EFORMAT, "the server sent %s of more than %zu bytes",
                        s->events ? "an event" : "an answer", s->body_max);
    if (s->bytes + n + 1 > s->room) {
        size_t room = HZP_MAX(s->bytes + n + 1, HZP_MAX(s->room * 2, (size_t)1024));
        char *body = realloc(s->body, room);
        if (!body)
            return hzp_fail(reterr, HZP_ENOMEM, "no memory for an answer");
        s->body = body;
        s->room = room;
    }
    memcpy(s->body + s->bytes, bytes, n);
    s->bytes += n;
    s->body[s->bytes] = 0;
    return HZP_OK;
}

/* Handles a complete line of an event stream in s->body; only data lines matter. */
static int event_line(struct hzp_http_stream *s)
{
    char *text = s->body;
    size_t n = s->bytes;
    s->bytes = 0;
    if (n && text[n - 1] == '\r')
        text[--n] = 0;
    if (n < 5 || memcmp(text, "data:", 5))
        return HZP_OK;
    size_t skip = n > 5 && text[5] == ' ' ? 6 : 5;
    return s->event(s->ctx, text + skip, n - skip);
}

static int body(struct hzp_http_stream *s, const char *bytes, size_t n, struct hzp_err_text *reterr)
{
    if (!s->events)
        return keep(s, bytes, n, reterr);
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        size_t part = end ? (size_t)(end - bytes) : n;
        HZP_TRY(keep(s, bytes, part, reterr));
        if (!end)
            break;
        HZP_TRY(event_line(s));
        bytes += part + 1;
        n -= part + 1;
    }
    return HZP_OK;
}

/* ---- the head ---- */

/* The number at the start of the text, in this base; -1: none, or out of range. */
static int64_t number(const char *text, int base, const char **end)
{
    int64_t value = 0;
    const char *begin = text;
    for (;; text++) {
        int c = *text, digit = c >= '0' && c <= '9'   ? c - '0'
                               : c >= 'a' && c <= 'f' ? c - 'a' + 10
                               : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                      : 99;
        if (digit >= base)
            break;
        if (value > (INT64_MAX - digit) / base)
            return -1;
        value = value * base + digit;
    }
    *end = text;
    return text == begin ? -1 : value;
}

static int status_line(struct hzp_http_stream *s, struct hzp_err_text *reterr)
{
    const char *end;
    bool http = !strncmp(s->line, "HTTP/1.", 7) && s->line[7] && s->line[8] == ' ';
    int64_t status = http ? number(s->line + 9, 10, &end) : -1;
    if (status < 100 || status > 999)
        return hzp_fail(reterr, HZP_EFORMAT, "not an HTTP answer: \"%.60s\"", s->line);
    s->status = (int)status;
    s->closes = s->line[7] == '0'; /* HTTP/1.0 */
    s->state = HZP_HTTP_HEADERS;
    return HZP_OK;
}

static int header_line(struct hzp_http_stream *s, struct hzp_err_text *reterr)
{
    char *colon = strchr(s->line, ':');
    const char *end;
    if (!colon)
        return hzp_fail(reterr, HZP_EFORMAT, "a header without a colon: \"%.60s\"", s->line);
    *colon = 0;
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    if (!strcasecmp(s->line, "transfer-encoding")) {
        if (strcasecmp(value, "chunked"))
            return hzp_fail(reterr, HZP_EFORMAT, "transfer-encoding: %.60s is not supported",
                            value);
        s->chunked = true;
    } else if (!strcasecmp(s->line, "content-length")) {
        s->left = number(value, 10, &end);
        if (s->left < 0 || *end)
            return hzp_fail(reterr, HZP_EFORMAT, "content-length: %.60s is not a length", value);
    } else if (!strcasecmp(s->line, "connection")) {
        s->closes |= !strcasecmp(value, "close");
    } else if (!strcasecmp(s->line, "content-type")) {
        s->event_type = !strncasecmp(value, "text/event-stream", 17);
    }
    return HZP_OK;
}

/* Called after the empty line that ends the headers. */
static void begin_body(struct hzp_http_stream *s)
{
    if (s->status < 200) { /* such as 100 Continue: the final answer follows */
        s->state = HZP_HTTP_STATUS;
        s->status = 0;
        return;
    }
    s->events = s->event_type && s->status == 200 && s->event;
    if (s->status == 204 || s->status == 304)
        s->left = 0;
    s->state = s->chunked     ? HZP_HTTP_CHUNK_SIZE
               : s->left == 0 ? HZP_HTTP_DONE
               : s->left > 0  ? HZP_HTTP_LENGTH
                              : HZP_HTTP_TO_CLOSE;
}

/* Handles a complete line outside the body, in s->line. */
static int head_line(struct hzp_http_stream *s, struct hzp_err_text *reterr)
{
    const char *end;
    switch (s->state) {
    case HZP_HTTP_STATUS:
        return status_line(s, reterr);
    case HZP_HTTP_HEADERS:
        if (s->line_bytes)
            return header_line(s, reterr);
        begin_body(s);
        return HZP_OK;
    case HZP_HTTP_CHUNK_SIZE:
        s->left = number(s->line, 16, &end);
        if (s->left < 0 || (*end && *end != ';' && *end != ' '))
            return hzp_fail(reterr, HZP_EFORMAT, "not a chunk size: \"%.60s\"", s->line);
        s->state = s->left ? HZP_HTTP_CHUNK : HZP_HTTP_TRAILERS;
        s->head_bytes = 0;
        return HZP_OK;
    case HZP_HTTP_CHUNK_END:
        if (s->line_bytes)
            return hzp_fail(reterr, HZP_EFORMAT, "a chunk is longer than its size");
        s->state = HZP_HTTP_CHUNK_SIZE;
        return HZP_OK;
    default: /* trailers */
        if (!s->line_bytes)
            s->state = HZP_HTTP_DONE;
        return HZP_OK;
    }
}

/* Handles one byte of a line outside the body. */
static int head_byte(struct hzp_http_stream *s, char c, struct hzp_err_text *reterr)
{
    if (++s->head_bytes > HZP_HTTP_HEAD_MAX)
        return hzp_fail(reterr, HZP_EFORMAT, "the server's headers exceed %d bytes",
                        HZP_HTTP_HEAD_MAX);
    if (c != '\n') {
        if (c == 0 || s->line_bytes + 1 == sizeof(s->line))
            return hzp_fail(reterr, HZP_EFORMAT, "the server sent an invalid header line");
        s->line[s->line_bytes++] = c;
        return HZP_OK;
    }
    while (s->line_bytes && strchr(" \t\r", s->line[s->line_bytes - 1]))
        s->line_bytes--;
    s->line[s->line_bytes] = 0;
    int r = head_line(s, reterr);
    s->line_bytes = 0;
    return r;
}

int hzp_http_stream_feed(struct hzp_http_stream *s, const char *bytes, size_t n,
                         struct hzp_err_text *reterr)
{
    while (n) {
        size_t part = 1;
        switch (s->state) {
        case HZP_HTTP_DONE:
            return hzp_fail(reterr, HZP_EFORMAT,
                            "the server sent data after the end of its answer");
        case HZP_HTTP_TO_CLOSE:
            part = n;
            HZP_TRY(body(s, bytes, part, reterr));
            break;
        case HZP_HTTP_LENGTH:
        case HZP_HTTP_CHUNK:
            part = (uint64_t)s->left < n ? (size_t)s->left : n;
            HZP_TRY(body(s, bytes, part, reterr));
            s->left -= (int64_t)part;
            if (s->left == 0)
                s->state = s->state == HZP_HTTP_CHUNK ? HZP_HTTP_CHUNK_END : HZP_HTTP_DONE;
            break;
        default:
            HZP_TRY(head_byte(s, *bytes, reterr));
        }
        bytes += part;
        n -= part;
    }
    return HZP_OK;
}

int hzp_http_stream_close(struct hzp_http_stream *s, struct hzp_err_text *reterr)
{
    s->closes = true;
    if (s->state == HZP_HTTP_TO_CLOSE)
        s->state = HZP_HTTP_DONE;
    if (s->state == HZP_HTTP_DONE)
        return HZP_OK;
    return hzp_fail(reterr, HZP_EIO,
                    s->status ? "the server closed the connection before the end of its answer"
                              : "the server closed the connection without an answer");
}
