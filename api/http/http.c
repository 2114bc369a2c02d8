/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/http.h"

#include "base/arena.h"
#include "base/log.h"
#include "base/thread.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    STACK_BYTES = 1 << 20,  /* jansson recurses for each level of nesting */
    SPARE_CONNECTIONS = 16, /* beyond the limit: to answer 429, and /health, when full */
    THROW_AWAY_TIMES =
        8,            /* an oversized body is read up to this many times the bound, to answer 413 */
    LINGER_MS = 2000, /* after an answer sent before the body was read */
};

static const struct hzp_route routes[] = {
    {"POST", "/v1/completions", true, hzp_route_completions},
    {"GET", "/v1/models", true, hzp_route_models},
    {"GET", "/v1/models/", true, hzp_route_model},
    {"GET", "/v1/weights", true, hzp_route_weights},
    {"GET", "/v1/policy", true, hzp_route_policy},
    {"PATCH", "/v1/policy", true, hzp_route_policy_patch},
    {"POST", "/v1/fine_tuning/examples", true, hzp_route_examples},
    {"GET", "/health", false, hzp_route_health},
    {"GET", "/version", false, hzp_route_version},
    {"GET", "/metrics", false, hzp_route_metrics},
};

/* Whether the route has this path.  A route path that ends in "/" matches longer paths below it. */
static bool leads_to(const struct hzp_route *route, const char *path)
{
    size_t n = strlen(route->path);
    return route->path[n - 1] == '/' ? !strncmp(path, route->path, n) && path[n]
                                     : !strcmp(path, route->path);
}

/* The route of a method and path, NULL: none; *ret_tail: what follows the route's own path in it,
 * set if any route has this path, perhaps with another method. */
static const struct hzp_route *find_route(const char *method, const char *path,
                                          const char **ret_tail)
{
    for (int i = 0; i < HZP_COUNT(routes); i++) {
        if (!leads_to(&routes[i], path))
            continue;
        *ret_tail = path + strlen(routes[i].path);
        if (!strcmp(method, routes[i].method) ||
            (!strcmp(method, "HEAD") && !strcmp(routes[i].method, "GET")))
            return &routes[i];
    }
    return NULL;
}

/* The methods of a path for the header Allow; "": no such path. */
static void list_methods(const char *path, char *ret, size_t size)
{
    size_t n = 0;
    ret[0] = 0;
    for (int i = 0; i < HZP_COUNT(routes) && n < size; i++)
        if (leads_to(&routes[i], path))
            n += (size_t)snprintf(ret + n, size - n, "%s%s%s", n ? ", " : "", routes[i].method,
                                  strcmp(routes[i].method, "GET") ? "" : ", HEAD");
}

/* ---- one request ---- */

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

/* Compares in time that depends on the key's length alone. */
static bool same_key(const char *key, const char *given)
{
    size_t n = strlen(key), m = strlen(given);
    unsigned difference = n != m;
    for (size_t i = 0; i < n; i++)
        difference |= (unsigned char)key[i] ^ (unsigned char)(m ? given[i % m] : 0);
    return difference == 0;
}

static bool key_fits(const struct hzp_server *server, struct MHD_Connection *connection)
{
    const char *given = header(connection, MHD_HTTP_HEADER_AUTHORIZATION);
    return given && !strncasecmp(given, "Bearer ", 7) &&
           same_key(server->settings->api_key, given + 7);
}

/* Whether Content-Length exceeds the bound. */
static bool says_too_much(struct hzp_exchange *x)
{
    const char *length = header(x->connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return length && strtoull(length, NULL, 10) > (unsigned long long)x->server->settings->body_max;
}

/* Checks that need no body. */
static int refuse_early(struct hzp_exchange *x, const char *method, const char *path)
{
    char allow[64];
    x->route = find_route(method, path, &x->tail);
    const char *key = x->server->settings->api_key;
    bool guarded = x->route ? x->route->key : !strncmp(path, "/v1/", 4);
    if (key && *key && guarded && !key_fits(x->server, x->connection))
        return MHD_HTTP_UNAUTHORIZED;
    if (!x->route) {
        list_methods(path, allow, sizeof(allow));
        return *allow ? MHD_HTTP_METHOD_NOT_ALLOWED : MHD_HTTP_NOT_FOUND;
    }
    return says_too_much(x) ? MHD_HTTP_CONTENT_TOO_LARGE : 0;
}

static enum MHD_Result refuse(struct hzp_exchange *x, const char *method, const char *path)
{
    char allow[64], text[384];
    switch (x->refused) {
    case MHD_HTTP_UNAUTHORIZED:
        return hzp_reply_error(x, x->refused, NULL, "invalid_api_key",
                               "Incorrect API key provided: send it as a bearer token");
    case MHD_HTTP_METHOD_NOT_ALLOWED:
        list_methods(path, allow, sizeof(allow));
        snprintf(text, sizeof(text), "%.40s is not a method of %.200s; its methods: %s", method,
                 path, allow);
        return hzp_reply_json_with(x, x->refused, hzp_error_json(x->refused, text, NULL, NULL),
                                   MHD_HTTP_HEADER_ALLOW, allow);
    case MHD_HTTP_CONTENT_TOO_LARGE:
        return hzp_reply_error(x, x->refused, NULL, NULL,
                               "the body is longer than the %lld bytes this server takes",
                               (long long)x->server->settings->body_max);
    case MHD_HTTP_TOO_MANY_REQUESTS:
        return hzp_reply_error(x, x->refused, NULL, "rate_limit_exceeded",
                               "too many requests at a time: this server answers %lld",
                               (long long)x->server->settings->connections_max);
    default:
        return hzp_reply_error(x, x->refused, NULL, NULL, "there is no %.200s here", path);
    }
}

static enum MHD_Result open_exchange(struct hzp_server *server, struct MHD_Connection *connection,
                                     const char *method, const char *path, void **ctx)
{
    struct hzp_exchange *x = calloc(1, sizeof(*x));
    if (!x)
        return MHD_NO;
    x->server = server;
    x->connection = connection;
    *ctx = x;
    int active = atomic_fetch_add(&server->active, 1) + 1;
    x->counted = true;
    x->refused = refuse_early(x, method, path);
    if (!x->refused && active > server->settings->connections_max && x->route->key)
        x->refused = MHD_HTTP_TOO_MANY_REQUESTS;
    if (!x->refused || !says_too_much(x))
        return MHD_YES;
    /* Answers now: the library reads no body and closes the connection afterwards. */
    x->early = true;
    return refuse(x, method, path);
}

/* Closing a socket that has unread bytes resets the connection, and a client that is still sending
 * would lose its answer.  So its bytes are discarded until it has read the answer and closes,
 * within bounds of bytes and time. */
static void linger(struct hzp_exchange *x)
{
    char piece[16384];
    struct pollfd fd = {.fd = hzp_exchange_socket(x), .events = POLLIN};
    uint64_t end = hzp_now_ns() + LINGER_MS * 1000000ull;
    size_t most = THROW_AWAY_TIMES * (size_t)x->server->settings->body_max + (1 << 20);
    if (fd.fd < 0 || shutdown(fd.fd, SHUT_WR) < 0)
        return;
    while (x->thrown_away < most && hzp_now_ns() < end &&
           atomic_load(&x->server->state) == HZP_SERVER_UP) {
        if (poll(&fd, 1, 50) <= 0)
            continue;
        ssize_t n = recv(fd.fd, piece, sizeof(piece), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return;
        x->thrown_away += n > 0 ? (size_t)n : 0;
    }
}

/* Takes a piece of the body.  MHD_NO: the connection is closed. */
static enum MHD_Result take_body(struct hzp_exchange *x, const char *data, size_t bytes)
{
    size_t most = (size_t)x->server->settings->body_max;
    if (!x->refused && x->bytes + bytes > most)
        x->refused = MHD_HTTP_CONTENT_TOO_LARGE;
    if (x->refused) {
        x->thrown_away += bytes;
        return x->thrown_away > THROW_AWAY_TIMES * most + (1 << 20) ? MHD_NO : MHD_YES;
    }
    if (x->bytes + bytes + 1 > x->room) {
        size_t room = HZP_MAX(2 * x->room, x->bytes + bytes + 1);
        char *grown = realloc(x->body, room);
        if (!grown)
            return MHD_NO;
        x->body = grown;
        x->room = room;
    }
    memcpy(x->body + x->bytes, data, bytes);
    x->bytes += bytes;
    x->body[x->bytes] = 0;
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *bytes, void **ctx)
{
    struct hzp_server *server = cls;
    if (!*ctx)
        return open_exchange(server, connection, method, path, ctx);
    struct hzp_exchange *x = *ctx;
    if (*bytes) {
        enum MHD_Result r = take_body(x, data, *bytes);
        *bytes = 0;
        return r;
    }
    if (x->status)
        return MHD_YES; /* answered already */
    /* The path is complete only now. */
    if (x->route)
        find_route(method, path, &x->tail);
    /* The request is complete: the client may now be silent for as long as the answer takes. */
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    return x->refused ? refuse(x, method, path) : x->route->answer(x);
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **ctx,
                         enum MHD_RequestTerminationCode how)
{
    struct hzp_server *server = cls;
    struct hzp_exchange *x = *ctx;
    if (!x)
        return;
    *ctx = NULL;
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              (unsigned)server->settings->idle_seconds);
    hzp_metrics_http(server->metrics, x->route ? x->route->path : "none",
                     x->route ? x->route->method : "none", x->status);
    if (x->early)
        linger(x);
    free(x->body);
    free(x);
    atomic_fetch_sub(&server->active, 1);
}

/* ---- start and stop ---- */

static void on_error(void *cls, const char *format, va_list args)
{
    char text[256];
    vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\n")] = 0;
    hzp_log(HZP_LOG_DEBUG, "http", "%s, ignoring", text);
}

static int listen_on(struct hzp_server *s, const char *host, int port, struct hzp_err_text *reterr)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    char service[16];
    snprintf(service, sizeof(service), "%d", port);
    int r = getaddrinfo(host, service, &hints, &list);
    if (r)
        return hzp_fail_param(reterr, HZP_EINVAL, "--host", "--host %s: %s", host, gai_strerror(r));
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                     MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    if (list->ai_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, s, MHD_OPTION_SOCK_ADDR, list->ai_addr,
        MHD_OPTION_EXTERNAL_LOGGER, on_error, NULL, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(s->settings->connections_max + SPARE_CONNECTIONS),
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->settings->idle_seconds,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES, MHD_OPTION_END);
    freeaddrinfo(list);
    if (!s->daemon)
        return hzp_fail_param(reterr, HZP_EIO, "--port",
                              "cannot listen on %s port %d: is the port "
                              "in use?",
                              host, port);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info ? info->port : port;
    return HZP_OK;
}

static void name_model(struct hzp_server *s)
{
    const char *name = s->settings->served_name;
    char *path = name ? NULL : realpath(s->engine->config.settings->model.dir, NULL);
    if (!name)
        name = path && strrchr(path, '/') ? strrchr(path, '/') + 1
                                          : s->engine->config.settings->model.dir;
    snprintf(s->model, sizeof(s->model), "%s", name);
    free(path);
}

int hzp_server_start(const struct hzp_http_settings *settings, struct hzp_engine *engine,
                     struct hzp_metrics *metrics, struct hzp_server **ret,
                     struct hzp_err_text *reterr)
{
    struct hzp_server *s = hzp_xcalloc(1, sizeof(*s));
    s->settings = settings;
    s->engine = engine;
    s->metrics = metrics;
    s->created = time(NULL);
    hzp_lock_init(&s->policy_lock, HZP_LOCK_POLICY);
    name_model(s);
    int r = hzp_hangup_create(&s->hangup);
    if (r == HZP_OK)
        r = listen_on(s, settings->host, (int)settings->port, reterr);
    else
        hzp_fail(reterr, r, "no thread or descriptor left for the HTTP server");
    if (r < 0) {
        hzp_server_stop(s, 0);
        return r;
    }
    *ret = s;
    return HZP_OK;
}

void hzp_server_set_state(struct hzp_server *server, enum hzp_server_state state)
{
    atomic_store(&server->state, state);
}

void hzp_server_stop(struct hzp_server *server, uint64_t wait_ns)
{
    if (!server)
        return;
    if (server->daemon) {
        MHD_socket listening = MHD_quiesce_daemon(server->daemon);
        uint64_t end = hzp_now_ns() + wait_ns;
        while (atomic_load(&server->active) && hzp_now_ns() < end)
            usleep(2000);
        MHD_stop_daemon(server->daemon);
        if (listening != MHD_INVALID_SOCKET)
            close(listening);
    }
    hzp_hangup_destroy(server->hangup);
    hzp_lock_fini(&server->policy_lock);
    free(server);
}
