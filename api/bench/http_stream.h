/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/http_stream.h - an incremental parser of HTTP/1.1 answers.
 *
 * A client of many streams must not block on one of them, so bytes are fed as the socket delivers
 * them, cut anywhere.  The data of an answer with type text/event-stream and status 200 is passed
 * to event() line by line (the text after each `data:`; these servers send one line per event); the
 * body of any other answer is kept.
 *
 * Invariant: memory is bounded by HZP_HTTP_HEAD_MAX and body_max, whatever the server
 * sends; an answer that violates HTTP fails with HZP_EFORMAT.
 *
 * Thread: any; one at a time per stream.
 */
#ifndef HZP_API_BENCH_HTTP_STREAM_H
#define HZP_API_BENCH_HTTP_STREAM_H

#include "base/err.h"

enum {
    HZP_HTTP_HEAD_MAX = 64 << 10, /* bytes of the status line and all headers */
    HZP_HTTP_LINE_MAX = 8 << 10,  /* one line's */
    HZP_HTTP_BODY_MAX = 4 << 20,  /* a kept body's, or one event's, by default */
};

enum hzp_http_state {
    HZP_HTTP_STATUS,
    HZP_HTTP_HEADERS,
    HZP_HTTP_LENGTH,   /* body of known length */
    HZP_HTTP_TO_CLOSE, /* body that ends with the connection */
    HZP_HTTP_CHUNK_SIZE,
    HZP_HTTP_CHUNK,
    HZP_HTTP_CHUNK_END,
    HZP_HTTP_TRAILERS,
    HZP_HTTP_DONE,
};

struct hzp_http_stream {
    /* data: n bytes followed by a NUL, valid during the call.  A negative result ends the
     * feeding. */
    int (*event)(void *ctx, const char *data, size_t n);
    void *ctx;
    size_t body_max; /* HZP_HTTP_BODY_MAX, unless the caller sets it after init */

    int status;  /* 0 until known */
    bool events; /* the body is a stream of events */
    bool closes; /* the server closes the connection after this answer */
    char *body;  /* the kept body, or the current event line; NUL-terminated, NULL: empty */
    size_t bytes;

    /* private */
    enum hzp_http_state state;
    bool chunked, event_type;
    int64_t left; /* left of the body or chunk; -1: unknown */
    size_t head_bytes, line_bytes, room;
    char line[HZP_HTTP_LINE_MAX];
};

/* event is called with ctx and the data of each event, n bytes, borrowed; what it returns below 0
 * ends the reading.  NULL: the body is kept, whatever its type. */
void hzp_http_stream_init(struct hzp_http_stream *s, int (*event)(void *, const char *, size_t),
                          void *ctx);
void hzp_http_stream_fini(struct hzp_http_stream *s);

/* Feeds the next n bytes.  HZP_EFORMAT: not HTTP, or a bound is exceeded; or what event() returned,
 * if negative.  Bytes after the end of the answer are an error. */
int hzp_http_stream_feed(struct hzp_http_stream *s, const char *bytes, size_t n,
                         struct hzp_err_text *reterr);

/* The connection has ended.  HZP_EIO: in the middle of the answer. */
int hzp_http_stream_close(struct hzp_http_stream *s, struct hzp_err_text *reterr);

/* The whole answer has arrived; unless it says `closes`, the connection can carry another one. */
bool hzp_http_stream_done(const struct hzp_http_stream *s);

#endif
