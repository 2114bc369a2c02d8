/* SPDX-License-Identifier: Apache-2.0 */
/* api/client/http_client.h - HTTP requests by libcurl, for commands that are clients of a server.
 *
 * The data of an answer with type text/event-stream and status 200 is passed to event() line by
 * line (the text after each `data:`; these servers send one line per event); the body of any other
 * answer is kept.
 *
 * Invariant: memory is bounded by body_max and libcurl's bounds, whatever the server sends.
 *
 * Thread: any; hzp_http_call and hzp_http_ask block.
 */
#pragma once

#include "base/err.h"

#include <curl/curl.h>
#include "base/json.h"
#include <signal.h>

enum { HZP_HTTP_BODY_MAX = 4 << 20 }; /* a kept body's bytes, or one event's, by default */

/* A server. */
struct hzp_http_host {
    char url[600]; /* without /v1 and a slash at its end */
    char key[256]; /* bearer token; "": none */
    /* as reported by the server; 0: not reported */
    char model[256];
    int32_t context, vocab;
};

/* Whether it begins as an address of http or https does. */
bool hzp_http_is_url(const char *text);
/* Reads http[s]://HOST[:PORT][/PATH] into ret, which is zeroed; key NULL: none.  HZP_EINVAL. */
int hzp_http_server(const char *url, const char *key, struct hzp_http_host *ret,
                    struct hzp_err_text *reterr);

/* Reads http[s]://HOST[:PORT][/PATH] and asks the server for its model, context and vocabulary.
 * model: the name wanted, NULL: the first one listed.  HZP_EINVAL: the URL; HZP_EIO: no server
 * there. */
int hzp_http_connect(const char *url, const char *key, const char *model, struct hzp_http_host *ret,
                     struct hzp_err_text *reterr);

struct hzp_http_call {
    const char *method, *route;  /* route: "/v1/models" */
    const char *body;            /* JSON; NULL: none */
    const void *data;            /* instead of body: bytes of no declared type */
    size_t bytes;                /* length of data */
    int patience_s;              /* the server may be silent for so long; 0: for ever */
    volatile sig_atomic_t *stop; /* becomes 1: the call ends with HZP_ECANCELED; NULL: never */
};

struct hzp_http_stream {
    /* data: n bytes followed by a NUL, valid during the call.  A negative result ends the
     * transfer. */
    int (*event)(void *ctx, const char *data, size_t n);
    void *ctx;
    size_t body_max; /* HZP_HTTP_BODY_MAX, unless the caller sets it after init */

    int status;  /* 0 until known */
    bool events; /* the body is a stream of events */
    char *body;  /* the kept body, or the current event line; NUL-terminated, NULL: empty */
    size_t bytes;
    int failed; /* what event() returned if that was negative, or HZP_EFORMAT: a bound is exceeded,
                 * HZP_ENOMEM; 0: nothing failed here */

    /* private */
    CURL *easy;
    struct curl_slist *headers;
    size_t room;
    char why[CURL_ERROR_SIZE]; /* libcurl's text */
};

/* event is called with ctx and the data of each event, n bytes, borrowed.  NULL: the body is kept,
 * whatever its type. */
void hzp_http_stream_init(struct hzp_http_stream *s, int (*event)(void *, const char *, size_t),
                          void *ctx);
void hzp_http_stream_fini(struct hzp_http_stream *s);

/* Makes s->easy, which performs the request and feeds the answer to s; server, call and its body
 * must outlive the transfer.  For callers with many transfers; HZP_ENOMEM. */
int hzp_http_prepare(const struct hzp_http_host *server, const struct hzp_http_call *call,
                     struct hzp_http_stream *s);

/* Why the transfer ended with this code: the same text for the same reason. */
const char *hzp_http_reason(const struct hzp_http_stream *s, CURLcode code);

/* Sends the request on a connection of its own and feeds the answer to in, which the caller has
 * initialised and ends.  HZP_EIO: no server, or it went; HZP_EINVAL: it requires a key. */
int hzp_http_call(const struct hzp_http_host *server, const struct hzp_http_call *call,
                  struct hzp_http_stream *in, struct hzp_err_text *reterr);

/* Sends one request, takes over body, NULL: without one, and returns the answer, the caller's to
 * decref.  NULL: the text of reterr is the message of the error that the server answered with, or
 * says why there is no answer. */
json_t *hzp_http_ask(const struct hzp_http_host *server, const char *method, const char *route,
                     json_t *body, int patience_s, struct hzp_err_text *reterr);

/* The message of an error's answer; NULL: it has none. */
const char *hzp_http_error(const json_t *answer);

/* The sum of a metric's lines in a page of Prometheus text that have this label, "": any.  NAN:
 * there is none. */
double hzp_http_metric(const char *page, const char *name, const char *label);
