/* SPDX-License-Identifier: Apache-2.0 */
#include "api/relay/incoming.h"

#include "base/err.h"

#include <strings.h>

static const char control[] = ": hzp "; /* how control lines begin */
enum { SIZE_LINE_MAX = 64 };

/* ---- header ---- */

static bool next_header(const struct hzp_textbuf *head, size_t *at, const char **name,
                        size_t *names, const char **value, size_t *values)
{
    const char *data = head->data, *end = data + head->bytes;
    if (!*at) { /* the status line */
        const char *first = memchr(data, '\n', head->bytes);
        *at = first ? (size_t)(first + 1 - data) : head->bytes;
    }
    const char *line = data + *at;
    const char *next = memchr(line, '\n', (size_t)(end - line));
    const char *colon = next ? memchr(line, ':', (size_t)(next - line)) : NULL;
    if (!colon)
        return false;
    *at = (size_t)(next + 1 - data);
    *name = line;
    *names = (size_t)(colon - line);
    for (colon++; colon < next && (*colon == ' ' || *colon == '\t'); colon++)
        ;
    while (next > colon && (next[-1] == '\r' || next[-1] == ' '))
        next--;
    *value = colon;
    *values = (size_t)(next - colon);
    return true;
}

int hzp_incoming_status(const struct hzp_incoming *r)
{
    return r->continued ? r->told_status : r->status;
}

bool hzp_incoming_header(const struct hzp_incoming *r, size_t *at, const char **name, size_t *names,
                         const char **value, size_t *values)
{
    return next_header(r->continued ? &r->told : &r->head, at, name, names, value, values);
}

static bool is(const char *name, size_t names, const char *what)
{
    return names == strlen(what) && !strncasecmp(name, what, names);
}

/* The header is whole. */
static int read_head(struct hzp_incoming *r)
{
    const char *name, *value;
    size_t names, values, at = 0;
    char text[32];
    if (hzp_textbuf_append(&r->head, "", 1) < 0) /* for the number */
        return HZP_ENOMEM;
    r->head.bytes--;
    if (strncmp(r->head.data, "HTTP/1.", 7) || r->head.bytes < 12)
        return HZP_EFORMAT;
    r->status = (int)strtol(r->head.data + 9, NULL, 10);
    if (r->status < 200 || r->status > 599)
        return HZP_EFORMAT;
    r->stream = r->chunks = r->sized = false;
    while (next_header(&r->head, &at, &name, &names, &value, &values)) {
        if (is(name, names, "transfer-encoding")) {
            r->chunks = values == 7 && !strncasecmp(value, "chunked", 7);
        } else if (is(name, names, "content-type")) {
            r->stream = values >= 17 && !strncasecmp(value, "text/event-stream", 17);
        } else if (is(name, names, "content-length")) {
            char *end;
            snprintf(text, sizeof(text), "%.*s", (int)HZP_MIN(values, sizeof(text) - 1), value);
            errno = 0;
            r->left = strtoull(text, &end, 10);
            r->sized = true;
            if (end == text || *end || errno)
                return HZP_EFORMAT;
        }
    }
    bool empty = r->status == 204 || r->status == 304 || (r->sized && !r->left);
    r->part = empty && !r->chunks ? HZP_INCOMING_WHOLE
              : r->chunks         ? HZP_INCOMING_SIZE
                                  : HZP_INCOMING_BODY;
    return HZP_OK;
}

/* Takes from the header, up to the empty line.  Returns the bytes that it took; < 0: an error. */
static ssize_t take_head(struct hzp_incoming *r, const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (r->head.bytes >= HZP_INCOMING_HEAD_MAX)
            return HZP_EFORMAT;
        if (hzp_textbuf_append(&r->head, data + i, 1) < 0)
            return HZP_ENOMEM;
        size_t n = r->head.bytes;
        if (n >= 4 && !memcmp(r->head.data + n - 4, "\r\n\r\n", 4)) {
            int code = read_head(r);
            return code < 0 ? code : (ssize_t)i + 1;
        }
    }
    return (ssize_t)bytes;
}

/* ---- groups ---- */

/* A group has ended: its events are the client's, its lines are known. */
static int end_group(struct hzp_incoming *r)
{
    HZP_TRY(hzp_textbuf_append(&r->body, r->group.data, r->group.bytes));
    HZP_TRY(hzp_textbuf_append(&r->journal, r->lines.data, r->lines.bytes));
    r->group.bytes = r->lines.bytes = r->line0 = 0;
    r->groups++;
    return HZP_OK;
}

/* The last line of the group is whole: of an event, or a control line, which is taken out. */
static int take_line(struct hzp_incoming *r)
{
    const char *line = r->group.data + r->line0;
    size_t bytes = r->group.bytes - r->line0, before = sizeof(control) - 1;
    if (bytes <= before || memcmp(line, control, before) != 0) {
        r->line0 = r->group.bytes;
        return HZP_OK;
    }
    char kind = line[before];
    if (kind == 't' || kind == 'c')
        HZP_TRY(hzp_textbuf_append(&r->lines, line, bytes));
    r->group.bytes = r->line0;
    if (kind == 'g' || kind == 'd')
        HZP_TRY(end_group(r));
    if (kind == 'd')
        r->part = HZP_INCOMING_WHOLE;
    return HZP_OK;
}

static int take_events(struct hzp_incoming *r, const char *data, size_t bytes)
{
    while (bytes && r->part != HZP_INCOMING_WHOLE) {
        const char *end = memchr(data, '\n', bytes);
        size_t n = end ? (size_t)(end + 1 - data) : bytes;
        HZP_TRY(hzp_textbuf_append(&r->group, data, n));
        if (end)
            HZP_TRY(take_line(r));
        data += n;
        bytes -= n;
    }
    return HZP_OK;
}

/* ---- body ---- */

static ssize_t take_body(struct hzp_incoming *r, const char *data, size_t bytes)
{
    bool bounded = r->chunks || r->sized;
    size_t n = bounded ? (size_t)HZP_MIN((uint64_t)bytes, r->left) : bytes;
    int code = r->stream      ? take_events(r, data, n)
               : r->continued ? hzp_textbuf_append(&r->group, data, n)
                              : hzp_textbuf_append(&r->body, data, n);
    if (code < 0)
        return code;
    r->left -= bounded ? n : 0;
    if (r->part == HZP_INCOMING_BODY && bounded && !r->left)
        r->part = r->chunks ? HZP_INCOMING_AFTER : HZP_INCOMING_WHOLE;
    return (ssize_t)n;
}

/* Takes a line between chunks. */
static ssize_t take_between(struct hzp_incoming *r, const char *data, size_t bytes)
{
    const char *end = memchr(data, '\n', bytes);
    size_t n = end ? (size_t)(end + 1 - data) : bytes;
    if (r->line.bytes + n > SIZE_LINE_MAX)
        return HZP_EFORMAT;
    if (hzp_textbuf_append(&r->line, data, n) < 0)
        return HZP_ENOMEM;
    if (!end)
        return (ssize_t)n;
    char text[SIZE_LINE_MAX + 1], *digits_end;
    memcpy(text, r->line.data, r->line.bytes);
    text[r->line.bytes] = 0;
    r->line.bytes = 0;
    if (r->part == HZP_INCOMING_AFTER) {
        r->part = HZP_INCOMING_SIZE;
    } else if (r->part == HZP_INCOMING_LAST) {
        r->part = HZP_INCOMING_WHOLE;
    } else {
        r->left = strtoull(text, &digits_end, 16);
        if (digits_end == text)
            return HZP_EFORMAT;
        r->part = r->left ? HZP_INCOMING_BODY : HZP_INCOMING_LAST;
    }
    return (ssize_t)n;
}

int hzp_incoming_feed(struct hzp_incoming *r, const char *data, size_t bytes)
{
    while (bytes && r->part != HZP_INCOMING_WHOLE) {
        ssize_t n = r->part == HZP_INCOMING_HEAD   ? take_head(r, data, bytes)
                    : r->part == HZP_INCOMING_BODY ? take_body(r, data, bytes)
                                                   : take_between(r, data, bytes);
        if (n < 0)
            return (int)n;
        data += n;
        bytes -= (size_t)n;
    }
    return HZP_OK;
}

bool hzp_incoming_end(struct hzp_incoming *r)
{
    if (r->part == HZP_INCOMING_BODY && !r->stream && !r->chunks && !r->sized)
        r->part = HZP_INCOMING_WHOLE;
    return r->part == HZP_INCOMING_WHOLE;
}

void hzp_incoming_restart(struct hzp_incoming *r)
{
    if (r->groups && !r->continued) {
        r->continued = true;
        r->told_status = r->status;
        r->told = r->head;
        r->head = (struct hzp_textbuf){0};
    }
    r->part = HZP_INCOMING_HEAD;
    r->head.bytes = r->line.bytes = r->group.bytes = r->lines.bytes = r->line0 = 0;
    if (!r->continued) /* nothing of it was given to the client */
        r->body.bytes = 0;
}

void hzp_incoming_fini(struct hzp_incoming *r)
{
    hzp_textbuf_fini(&r->told);
    hzp_textbuf_fini(&r->head);
    hzp_textbuf_fini(&r->line);
    hzp_textbuf_fini(&r->body);
    hzp_textbuf_fini(&r->group);
    hzp_textbuf_fini(&r->lines);
    hzp_textbuf_fini(&r->journal);
}
