/* SPDX-License-Identifier: Apache-2.0 */
#include "api/bench/http_client.h"

#include "base/json.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static int read_url(const char *url, struct hzp_load_server *s, struct hzp_err_text *reterr)
{
    const char *at = url;
    if (!strncmp(at, "https://", 8))
        return hzp_fail_param(reterr, HZP_EINVAL, "--url", "%s: only http:// URLs are supported",
                              url);
    if (!strncmp(at, "http://", 7))
        at += 7;
    bool bracket = *at == '[';
    at += bracket;
    size_t n = strcspn(at, bracket ? "]" : ":/");
    const char *rest = at + n + (bracket && at[n] == ']');
    size_t port = *rest == ':' ? strcspn(rest + 1, "/") : 0;
    const char *path = *rest == ':' ? rest + 1 + port : rest;
    size_t path_bytes = strlen(path);
    while (path_bytes && path[path_bytes - 1] == '/')
        path_bytes--;
    if (path_bytes >= 3 && !strncmp(path + path_bytes - 3, "/v1", 3))
        path_bytes -= 3; /* clients call the URL with /v1 the base URL, so it is accepted */
    if (n == 0 || n >= sizeof(s->host) || port >= sizeof(s->port) || (*rest == ':' && !port) ||
        strspn(rest + (*rest == ':'), "0123456789") < port || path_bytes >= sizeof(s->path) ||
        strpbrk(url, " \t\r\n"))
        return hzp_fail_param(reterr, HZP_EINVAL, "--url",
                              "--url takes http://HOST[:PORT], not \"%.200s\"", url);
    snprintf(s->host, sizeof(s->host), "%.*s", (int)n, at);
    snprintf(s->port, sizeof(s->port), "%.*s", port ? (int)port : 2, port ? rest + 1 : "80");
    snprintf(s->path, sizeof(s->path), "%.*s", (int)path_bytes, path);
    return HZP_OK;
}

int hzp_http_server(const char *url, const char *key, struct hzp_load_server *ret,
                    struct hzp_err_text *reterr)
{
    memset(ret, 0, sizeof(*ret));
    HZP_TRY(read_url(url, ret, reterr));
    if (key && (strlen(key) >= sizeof(ret->key) || strpbrk(key, "\r\n")))
        return hzp_fail_param(reterr, HZP_EINVAL, "--api-key", "--api-key: the key is not valid");
    snprintf(ret->key, sizeof(ret->key), "%s", key ? key : "");
    return HZP_OK;
}

/* Connects to the first of the server's addresses that accepts; returns the socket. */
static int open_socket(struct hzp_load_server *s, int patience_s, struct hzp_err_text *reterr)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *a;
    int e = getaddrinfo(s->host, s->port, &hints, &list), fd = -1;
    if (e)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", s->host, gai_strerror(e));
    struct timeval patience = {.tv_sec = patience_s};
    for (a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
        if (connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
            e = errno;
            close(fd);
            fd = -1;
            continue;
        }
        memcpy(&s->address, a->ai_addr, a->ai_addrlen);
        s->address_bytes = a->ai_addrlen;
    }
    freeaddrinfo(list);
    return fd >= 0 ? fd
                   : hzp_fail(reterr, HZP_EIO, "no server at %s, port %s: %s", s->host, s->port,
                              strerror(e));
}

static int send_all(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return HZP_EIO;
        text += k;
        n -= (size_t)k;
    }
    return HZP_OK;
}

static bool stopped(const struct hzp_http_call *call)
{
    return call->stop && *call->stop;
}

static int send_request(int fd, const struct hzp_load_server *s, const struct hzp_http_call *call)
{
    char text[2048], length[96] = "";
    const char *body = call->data ? call->data : call->body;
    size_t bytes = call->data ? call->bytes : call->body ? strlen(call->body) : 0;
    if (body)
        snprintf(length, sizeof(length), "%sContent-Length: %zu\r\n",
                 call->data ? "" : "Content-Type: application/json\r\n", bytes);
    int used = snprintf(text, sizeof(text),
                        "%s %s%s HTTP/1.1\r\nHost: %s:%s\r\n%s%s%s%s"
                        "Connection: close\r\n\r\n",
                        call->method, s->path, call->route, s->host, s->port,
                        s->key[0] ? "Authorization: Bearer " : "", s->key, s->key[0] ? "\r\n" : "",
                        length);
    if (used < 0 || (size_t)used >= sizeof(text) || send_all(fd, text, (size_t)used) < 0)
        return HZP_EIO;
    return bytes ? send_all(fd, body, bytes) : HZP_OK;
}

static int read_answer(int fd, const struct hzp_load_server *s, const struct hzp_http_call *call,
                       struct hzp_http_stream *in, struct hzp_err_text *reterr)
{
    char text[4096];
    int r = HZP_OK;
    for (ssize_t n = 1; r == HZP_OK && !hzp_http_stream_done(in) && n > 0;) {
        n = stopped(call) ? -1 : recv(fd, text, sizeof(text), 0);
        if (stopped(call))
            r = HZP_ECANCELED;
        else if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            r = hzp_http_stream_feed(in, text, (size_t)n, reterr);
        else if (n == 0)
            r = hzp_http_stream_close(in, reterr);
        else
            r = hzp_fail(reterr, HZP_EIO, "%s:%s%s%s: %s", s->host, s->port, s->path, call->route,
                         strerror(errno));
    }
    return r;
}

int hzp_http_call(struct hzp_load_server *server, const struct hzp_http_call *call,
                  struct hzp_http_stream *in, struct hzp_err_text *reterr)
{
    int fd = open_socket(server, call->patience_s, reterr);
    if (fd < 0)
        return fd;
    int r = send_request(fd, server, call);
    if (r < 0)
        hzp_fail(reterr, r, "%s:%s%s%s: the server did not accept the request", server->host,
                 server->port, server->path, call->route);
    else
        r = read_answer(fd, server, call, in, reterr);
    close(fd);
    if (r == HZP_OK && in->status == 401)
        r = hzp_fail(reterr, HZP_EINVAL, "%s:%s requires a key: --api-key", server->host,
                     server->port);
    return r;
}

const char *hzp_http_error(const json_t *answer)
{
    return json_string_value(json_object_get(json_object_get(answer, "error"), "message"));
}

json_t *hzp_http_ask(struct hzp_load_server *server, const char *method, const char *route,
                     const json_t *body, int patience_s, struct hzp_err_text *reterr)
{
    struct hzp_http_stream in;
    char *text = body ? hzp_json_dumps(body, JSON_COMPACT) : NULL;
    const struct hzp_http_call call = {
        .method = method, .route = route, .body = text, .patience_s = patience_s};
    hzp_http_stream_init(&in, NULL, NULL);
    int r = hzp_http_call(server, &call, &in, reterr);
    json_t *json = r == HZP_OK && in.bytes ? hzp_json_load(in.body, in.bytes, 0, NULL, NULL) : NULL;
    if (r == HZP_OK && (in.status >= 300 || !json)) {
        const char *why = hzp_http_error(json);
        hzp_fail(reterr, HZP_EIO, "%s", why ? why : "the server gave no answer");
        json_decref(json);
        json = NULL;
    }
    hzp_http_stream_fini(&in);
    free(text);
    return json;
}
