/* SPDX-License-Identifier: Apache-2.0 */
/* Connects to a server and asks which model it serves. */
#include "api/bench/http_stream.h"
#include "api/bench/load.h"

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

/* Connects to the first of the server's addresses that accepts; returns the socket. */
static int open_socket(struct hzp_load_server *s, struct hzp_err_text *reterr)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *a;
    int e = getaddrinfo(s->host, s->port, &hints, &list), fd = -1;
    if (e)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", s->host, gai_strerror(e));
    struct timeval patience = {.tv_sec = 30};
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

/* Sends GET for a route and parses the body as JSON; NULL if it is not JSON or the status is not
 * 200. */
static int ask(struct hzp_load_server *s, const char *route, json_t **ret,
               struct hzp_err_text *reterr)
{
    char text[2048];
    struct hzp_http_stream in;
    int fd = open_socket(s, reterr), r;
    ssize_t n = 1;
    if (fd < 0)
        return fd;
    *ret = NULL;
    hzp_http_stream_init(&in, NULL, NULL);
    int used = snprintf(text, sizeof(text),
                        "GET %s%s HTTP/1.1\r\nHost: %s:%s\r\n%s%s%s"
                        "Connection: close\r\n\r\n",
                        s->path, route, s->host, s->port, s->key[0] ? "Authorization: Bearer " : "",
                        s->key, s->key[0] ? "\r\n" : "");
    r = send_all(fd, text, (size_t)used);
    while (r == HZP_OK && !hzp_http_stream_done(&in) && n > 0) {
        n = recv(fd, text, sizeof(text), 0);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            r = hzp_http_stream_feed(&in, text, (size_t)n, reterr);
        else if (n == 0)
            r = hzp_http_stream_close(&in, reterr);
        else
            r = hzp_fail(reterr, HZP_EIO, "%s:%s%s%s: %s", s->host, s->port, s->path, route,
                         strerror(errno));
    }
    close(fd);
    if (r == HZP_OK && in.status == 401)
        r = hzp_fail(reterr, HZP_EINVAL, "%s:%s requires a key: --api-key", s->host, s->port);
    if (r == HZP_OK && in.status == 200 && in.bytes)
        *ret = json_loadb(in.body, in.bytes, 0, NULL);
    hzp_http_stream_fini(&in);
    return r;
}

static int32_t whole(const json_t *value)
{
    json_int_t n = json_integer_value(value);
    return n > 0 && n <= INT32_MAX ? (int32_t)n : 0;
}

int hzp_load_connect(const char *url, const char *key, const char *model,
                     struct hzp_load_server *ret, struct hzp_err_text *reterr)
{
    json_t *models, *item;
    size_t i;
    memset(ret, 0, sizeof(*ret));
    HZP_TRY(read_url(url, ret, reterr));
    if (key && (strlen(key) >= sizeof(ret->key) || strpbrk(key, "\r\n")))
        return hzp_fail_param(reterr, HZP_EINVAL, "--api-key", "--api-key: the key is not valid");
    snprintf(ret->key, sizeof(ret->key), "%s", key ? key : "");
    HZP_TRY(ask(ret, "/v1/models", &models, reterr));
    json_array_foreach(json_object_get(models, "data"), i, item)
    {
        const char *id = json_string_value(json_object_get(item, "id"));
        const json_t *meta = json_object_get(item, "meta"); /* of llama.cpp's server */
        if (!id || strlen(id) >= sizeof(ret->model) || (model && strcmp(model, id)))
            continue;
        snprintf(ret->model, sizeof(ret->model), "%s", id);
        ret->context = whole(json_object_get(item, "max_model_len"));
        ret->vocab = whole(json_object_get(item, "vocab_size"));
        if (!ret->vocab)
            ret->vocab = whole(json_object_get(meta, "n_vocab"));
        break;
    }
    json_decref(models);
    if (!ret->model[0])
        return hzp_fail(reterr, HZP_EIO, "%s:%s%s/v1/models lists no model%s%s", ret->host,
                        ret->port, ret->path, model ? " named " : "", model ? model : "");
    return HZP_OK;
}
