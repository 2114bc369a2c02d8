/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/http_stream.h - what an HTTP/1.1 server answers, read piece by piece as it arrives.
 *
 * A client of many streams at once cannot wait for one of them: bytes are fed as the socket has
 * them, cut anywhere.  An answer of the type text/event-stream with status 200 is handed on line
 * by line (the text behind each `data:`, as these servers send one line an event); of any other
 * the body is kept.
 *
 * Invariant: memory is bounded by HZP_HTTP_HEAD_MAX and HZP_HTTP_BODY_MAX, whatever the server
 * sends; what breaks HTTP ends in HZP_EFORMAT, never in a guess.
 *
 * Thread: any; one at a time per stream.
 */
#ifndef HZP_API_BENCH_HTTP_STREAM_H
#define HZP_API_BENCH_HTTP_STREAM_H

#include "base/err.h"

enum {
    HZP_HTTP_HEAD_MAX = 64 << 10, /* bytes of the status line and all headers */
    HZP_HTTP_LINE_MAX = 8 << 10,  /* of one of them */
    HZP_HTTP_BODY_MAX = 4 << 20,  /* of a kept body, or of one event */
};

enum hzp_http_state {
    HZP_HTTP_STATUS,
    HZP_HTTP_HEADERS,
    HZP_HTTP_LENGTH,   /* a body whose length is known */
    HZP_HTTP_TO_CLOSE, /* one that ends with the connection */
    HZP_HTTP_CHUNK_SIZE,
    HZP_HTTP_CHUNK,
    HZP_HTTP_CHUNK_END,
    HZP_HTTP_TRAILERS,
    HZP_HTTP_DONE,
};

struct hzp_http_stream {
    /* data has a NUL behind its n bytes and is good for the call; negative ends the feeding. */
    int (*event)(void *ctx, const char *data, size_t n);
    void *ctx;

    int status;  /* once known, else 0 */
    bool events; /* the body is a stream of events */
    char *body;  /* the body kept, or the line of events begun; NUL-terminated, NULL: empty */
    size_t bytes;

    /* private */
    enum hzp_http_state state;
    bool chunked, event_type;
    int64_t left; /* of the body or chunk; -1: not said */
    size_t head_bytes, line_bytes, room;
    char line[HZP_HTTP_LINE_MAX];
};

void hzp_http_stream_init(struct hzp_http_stream *s, int (*event)(void *, const char *, size_t),
                          void *ctx);
void hzp_http_stream_fini(struct hzp_http_stream *s);

/* The next n bytes.  HZP_EFORMAT: no HTTP or a bound is exceeded; what event() returned, if it was
 * negative.  Bytes after the end of the answer are an error. */
int hzp_http_stream_feed(struct hzp_http_stream *s, const char *bytes, size_t n,
                         struct hzp_err_text *reterr);

/* The connection has ended.  HZP_EIO: in the middle of the answer. */
int hzp_http_stream_close(struct hzp_http_stream *s, struct hzp_err_text *reterr);

bool hzp_http_stream_done(const struct hzp_http_stream *s);

#endif
