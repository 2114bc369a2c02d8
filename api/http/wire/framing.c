/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/framing.h"

#include "base/chars.h"

#include <sys/socket.h>

enum part {
    BETWEEN, /* before a request's first byte */
    BLANK_LF,
    REQUEST_LINE,
    REQUEST_LF,
    NAME, /* a header's or trailer's name */
    VALUE,
    VALUE_LF,
    HEAD_LF, /* ends the empty line */
    BODY,
    SIZE, /* a chunk's size */
    EXTENSION,
    QUOTED,
    ESCAPED,
    SIZE_LF,
    CHUNK,
    CHUNK_CR,
    CHUNK_LF,
    BROKEN,
};

enum field { OTHER, HOST, LENGTH, CODING };

enum { FDS = 1 << 20 }; /* descriptors that Linux lets a process have, unless told otherwise */

static void fail(struct hzp_framing *f, const char *fault)
{
    f->part = BROKEN;
    f->fault = fault;
}

static bool is_control(char c)
{
    return (unsigned char)c < ' ' || c == 127;
}

/* Whether a byte may be in a header's name: RFC 9110's tchar. */
static bool is_name_byte(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static void begin_line(struct hzp_framing *f, enum part part)
{
    f->part = part;
    f->n = 0;
}

static void add(struct hzp_framing *f, char c)
{
    if (f->n < sizeof(f->text) - 1)
        f->text[f->n] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    f->n++;
}

/* The name's or value's text; "": it is too long to be one that counts. */
static const char *text_of(struct hzp_framing *f)
{
    f->text[f->n < sizeof(f->text) ? f->n : 0] = 0;
    return f->text;
}

/* ---- headers ---- */

static void take_request_line(struct hzp_framing *f, char c)
{
    bool after_space = f->last == ' ';
    f->last = c;
    if (c == ' ' && (after_space || ++f->words > 2))
        fail(f, "the request line has a space too many");
    else if (c == '\r' && (f->words != 2 || after_space))
        fail(f, "the request line is not METHOD TARGET VERSION");
    else if (c == '\r')
        f->part = REQUEST_LF;
    else if (is_control(c))
        fail(f, "the request line has a control character, or does not end in CRLF");
    else
        f->http11 = c == '1';
}

static void begin_request(struct hzp_framing *f, char c)
{
    if (c == '\r') {
        f->part = BLANK_LF;
        return;
    }
    *f = (struct hzp_framing){.part = REQUEST_LINE, .requests = f->requests + 1, .last = ' '};
    take_request_line(f, c);
}

static void take_name(struct hzp_framing *f, char c)
{
    if (!f->n && c == '\r') {
        f->part = HEAD_LF;
    } else if (!f->n && (c == ' ' || c == '\t')) {
        fail(f, "a header goes on in the next line");
    } else if (f->n && c == ':') {
        const char *name = f->trailer ? "" : text_of(f);
        f->field = !strcmp(name, "host")                ? HOST
                   : !strcmp(name, "content-length")    ? LENGTH
                   : !strcmp(name, "transfer-encoding") ? CODING
                                                        : OTHER;
        begin_line(f, VALUE);
    } else if (is_name_byte(c)) {
        add(f, c);
    } else {
        fail(f, "a header's name has a byte that names must not have");
    }
}

static void end_value(struct hzp_framing *f)
{
    const char *text = text_of(f);
    char *end;
    if (f->field == HOST && f->hosts++) {
        fail(f, "more than one Host header");
    } else if (f->field == LENGTH) {
        uint64_t length = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || *end || f->n > 18)
            fail(f, "a Content-Length that is no number");
        else if (f->sized && length != f->left)
            fail(f, "Content-Length headers that differ");
        f->left = length;
        f->sized = true;
    } else if (f->field == CODING) {
        if (f->coded || !f->http11 || strcmp(text, "chunked") != 0)
            fail(f, "a Transfer-Encoding other than chunked");
        f->coded = true;
    }
}

static void take_value(struct hzp_framing *f, char c)
{
    if (c == '\r')
        f->part = VALUE_LF;
    else if (!c || c == '\n')
        fail(f, "a header has a NUL, or a line that does not end in CRLF");
    else if (f->n || (c != ' ' && c != '\t'))
        add(f, c);
}

static void end_head(struct hzp_framing *f)
{
    if (f->trailer)
        begin_line(f, BETWEEN);
    else if (f->http11 && !f->hosts)
        fail(f, "HTTP/1.1 without a Host header");
    else if (f->coded && f->sized)
        fail(f, "Content-Length together with Transfer-Encoding");
    else
        begin_line(f, f->coded ? SIZE : f->left ? BODY : BETWEEN);
    if (f->part == SIZE)
        f->left = 0;
}

/* ---- chunks ---- */

static void take_size(struct hzp_framing *f, char c)
{
    int digit = hzp_hex_digit(c);
    if (digit >= 0) {
        if (f->left >> 56 == 0) /* else it is endless, or the library refuses it */
            f->left = f->left << 4 | (uint64_t)digit;
        f->n++;
    } else if (f->n && (c == ';' || c == '\r')) {
        f->part = c == ';' ? EXTENSION : SIZE_LF;
    } else {
        fail(f, "a chunk's size is not hexadecimal digits before ; or CRLF");
    }
}

static void take_extension(struct hzp_framing *f, char c)
{
    bool quoted = f->part != EXTENSION;
    if (is_control(c) && c != '\t' && (quoted || c != '\r'))
        fail(f, "a chunk's extension has a control character, an open quote, or no CRLF");
    else if (f->part == ESCAPED)
        f->part = QUOTED;
    else if (quoted)
        f->part = c == '"' ? EXTENSION : c == '\\' ? ESCAPED : QUOTED;
    else
        f->part = c == '"' ? QUOTED : c == '\r' ? SIZE_LF : EXTENSION;
}

static void take_chunk_cr(struct hzp_framing *f, char c)
{
    f->part = CHUNK_LF;
    if (c != '\r')
        fail(f, "a chunk does not end in CRLF");
}

static void end_size(struct hzp_framing *f)
{
    f->trailer = !f->left;
    begin_line(f, f->left ? CHUNK : NAME);
}

/* ---- the bytes in turn ---- */

/* The end of a line: what follows it, if it is LF. */
static void take_lf(struct hzp_framing *f, char c)
{
    int part = f->part;
    if (c != '\n')
        fail(f, "a line has a CR that LF does not follow");
    else if (part == SIZE_LF)
        end_size(f);
    else if (part == HEAD_LF)
        end_head(f);
    else
        begin_line(f, part == BLANK_LF ? BETWEEN : part == CHUNK_LF ? SIZE : NAME);
}

static void take(struct hzp_framing *f, char c)
{
    static void (*const takes[])(struct hzp_framing * f, char c) = {
        [BETWEEN] = begin_request,  [REQUEST_LINE] = take_request_line,
        [NAME] = take_name,         [VALUE] = take_value,
        [SIZE] = take_size,         [EXTENSION] = take_extension,
        [QUOTED] = take_extension,  [ESCAPED] = take_extension,
        [CHUNK_CR] = take_chunk_cr, [BROKEN] = NULL};
    if (takes[f->part]) {
        takes[f->part](f, c);
        return;
    }
    if (f->part == VALUE_LF && c == '\n')
        end_value(f);
    if (f->part != BROKEN)
        take_lf(f, c);
}

void hzp_framing_read(struct hzp_framing *f, const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes && f->part != BROKEN;) {
        if (f->part != BODY && f->part != CHUNK) {
            take(f, data[i++]);
            continue;
        }
        uint64_t n = HZP_MIN(f->left, (uint64_t)(bytes - i));
        i += (size_t)n;
        f->left -= n;
        if (!f->left)
            f->part = f->part == BODY ? BETWEEN : CHUNK_CR;
    }
}

/* ---- of sockets ---- */

struct watched {
    struct hzp_framing framing;
    uint64_t handed; /* requests that the library has handed over */
};

static struct watched *_Atomic sockets[FDS]; /* pages without a socket take no memory */

static struct watched *find(int fd)
{
    return fd >= 0 && fd < FDS ? atomic_load_explicit(&sockets[fd], memory_order_relaxed) : NULL;
}

void hzp_framing_watch(int fd)
{
    if (fd >= 0 && fd < FDS)
        atomic_store(&sockets[fd], hzp_xcalloc(1, sizeof(struct watched)));
}

void hzp_framing_unwatch(int fd)
{
    HZP_FREED struct watched *w = find(fd);
    if (w)
        atomic_store(&sockets[fd], NULL);
}

void hzp_framing_next(int fd)
{
    struct watched *w = find(fd);
    if (w)
        w->handed++;
}

const char *hzp_framing_fault(int fd)
{
    const struct watched *w = find(fd);
    if (!w)
        return "this server cannot look at the request's bytes";
    /* Requests without a fault are counted alike here and by the library. */
    if (w->handed > w->framing.requests)
        return "the request's lines do not end in CRLF";
    return w->framing.fault && w->framing.requests <= w->handed ? w->framing.fault : NULL;
}

ssize_t hzp_framing_recv(int fd, void *data, size_t bytes, int flags) __asm__("recv");

__attribute__((visibility("default"))) ssize_t hzp_framing_recv(int fd, void *data, size_t bytes,
                                                                int flags)
{
    ssize_t n = recvfrom(fd, data, bytes, flags, NULL, NULL);
    struct watched *w = find(fd);
    if (w && n > 0 && !(flags & MSG_PEEK))
        hzp_framing_read(&w->framing, data, (size_t)n);
    return n;
}
