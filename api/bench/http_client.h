/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/http_client.h - one HTTP request at a time, for commands that are clients of a server.
 *
 * Thread: any; a call blocks.
 */
#ifndef HZP_API_BENCH_HTTP_CLIENT_H
#define HZP_API_BENCH_HTTP_CLIENT_H

#include "api/bench/http_stream.h"
#include "api/bench/load.h"

#include <jansson.h>
#include <signal.h>

/* Reads http://HOST[:PORT][/PATH] into host, port and path of ret, which is zeroed; key NULL: none.
 * HZP_EINVAL. */
int hzp_http_server(const char *url, const char *key, struct hzp_load_server *ret,
                    struct hzp_err_text *reterr);

struct hzp_http_call {
    const char *method, *route;  /* route: "/v1/models" */
    const char *body;            /* JSON; NULL: none */
    const void *data;            /* instead of body: bytes of no declared type */
    size_t bytes;                /* length of data */
    int patience_s;              /* the server may be silent for so long */
    volatile sig_atomic_t *stop; /* becomes 1: the call ends with HZP_ECANCELED; NULL: never */
};

/* Sends the request on a connection of its own and feeds the answer to in, which the caller has
 * initialised and ends.  HZP_EIO: no server, or it went; HZP_EINVAL: it requires a key. */
int hzp_http_call(struct hzp_load_server *server, const struct hzp_http_call *call,
                  struct hzp_http_stream *in, struct hzp_err_text *reterr);

/* Sends one request, body NULL: without one, and returns the answer, the caller's to decref.  NULL:
 * the text of reterr is the message of the error that the server answered with, or says why there
 * is no answer. */
json_t *hzp_http_ask(struct hzp_load_server *server, const char *method, const char *route,
                     const json_t *body, int patience_s, struct hzp_err_text *reterr);

/* The message of an error's answer; NULL: it has none. */
const char *hzp_http_error(const json_t *answer);

#endif
