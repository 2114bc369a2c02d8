/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/http.h"

#include "base/arena.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum {
    STACK_BYTES = 256 << 10,
    THROW_AWAY_TIMES = 8, /* an oversized body is read up to this many times the bound, to answer */
    CORES_PER_IO_THREAD = 4,
    IO_THREADS_MAX = 8,
    POOL_THREADS_MIN = 4,
    POOL_THREADS_MAX = 16,
};

static const uint64_t HEADER_NS = 10000000000ull; /* for a request's header as a whole */

/* Of an exchange: NEWS: woken while it runs. */
enum park { RUNNING, PARKED, NEWS };

static const struct hzp_route routes[] = {
    {"POST", "/v1/completions", true, true, hzp_route_completions},
    {"GET", "/v1/models", true, false, hzp_route_models},
    {"GET", "/v1/models/", true, false, hzp_route_model},
    {"GET", "/v1/weights", true, true, hzp_route_weights},
    {"GET", "/v1/policy", true, true, hzp_route_policy},
    {"PATCH", "/v1/policy", true, true, hzp_route_policy_patch},
    {"POST", "/v1/fine_tuning/examples", true, true, hzp_route_examples},
    {"GET", "/health", false, false, hzp_route_health},
    {"GET", "/version", false, false, hzp_route_version},
    {"GET", "/metrics", false, true, hzp_route_metrics},
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

/* Gives the answer to the library, which sends it. */
static enum MHD_Result send_answer(struct hzp_exchange *x)
{
    struct MHD_Response *response = x->response;
    x->response = NULL;
    enum MHD_Result r = MHD_queue_response(x->connection, (unsigned)x->status, response);
    MHD_destroy_response(response);
    hzp_door_sending(x->server->door, x->fd, true);
    return r;
}

static enum MHD_Result open_exchange(struct hzp_server *server, struct MHD_Connection *connection,
                                     const char *method, const char *path, void **ctx)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct hzp_exchange *x = calloc(1, sizeof(*x));
    if (!x || !info) {
        free(x);
        return MHD_NO;
    }
    x->server = server;
    x->connection = connection;
    x->fd = info->connect_fd;
    x->holds = 1;
    *ctx = x;
    atomic_fetch_add(&server->held, 1);
    int active = atomic_fetch_add(&server->active, 1) + 1;
    hzp_door_phase(server->door, x->fd, HZP_DOOR_BODY);
    x->refused = refuse_early(x, method, path);
    if (!x->refused && active > server->settings->connections_max && x->route->key)
        x->refused = MHD_HTTP_TOO_MANY_REQUESTS;
    if (!x->refused || !says_too_much(x))
        return MHD_YES;
    /* Answers now: the library reads no body and closes the connection afterwards. */
    x->early = true;
    enum MHD_Result r = refuse(x, method, path);
    return x->response ? send_answer(x) : r;
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

/* ---- waiting ---- */

bool hzp_exchange_park(struct hzp_exchange *x)
{
    struct hzp_server *server = x->server;
    /* Counted before the look at `closing`, which is raised before the count is looked at. */
    atomic_fetch_add(&server->parked, 1);
    if (atomic_load(&server->closing)) {
        atomic_fetch_sub(&server->parked, 1);
        return false;
    }
    hzp_door_sending(server->door, x->fd, false);
    MHD_suspend_connection(x->connection);
    int running = RUNNING;
    if (!atomic_compare_exchange_strong(&x->park, &running, PARKED)) {
        MHD_resume_connection(x->connection);
        atomic_fetch_sub(&server->parked, 1);
    }
    return true;
}

void hzp_exchange_awake(struct hzp_exchange *x)
{
    atomic_store(&x->park, RUNNING);
}

void hzp_exchange_wake(struct hzp_exchange *x)
{
    if (atomic_exchange(&x->park, NEWS) != PARKED)
        return;
    struct hzp_server *server = x->server;
    MHD_resume_connection(x->connection);
    atomic_fetch_sub(&server->parked, 1);
}

void hzp_exchange_hold(struct hzp_exchange *x)
{
    atomic_fetch_add(&x->holds, 1);
}

void hzp_exchange_release(struct hzp_exchange *x)
{
    struct hzp_server *server = x->server;
    if (atomic_fetch_sub(&x->holds, 1) > 1)
        return;
    if (x->response)
        MHD_destroy_response(x->response);
    free(x->body);
    free(x);
    atomic_fetch_sub(&server->held, 1);
}

/* ---- the library's calls ---- */

/* Pool: the answer of a pooled route. */
static bool run_route(void *ctx)
{
    struct hzp_exchange *x = ctx;
    hzp_exchange_hold(x);
    enum MHD_Result r = x->route->answer(x);
    /* With resume, the handler answers later, or has done so: from then on its exchange is used by
     * another thread. */
    if (!x->resume || r == MHD_NO) {
        x->closing = r == MHD_NO;
        hzp_exchange_wake(x);
    }
    hzp_exchange_release(x);
    return true;
}

/* The request is complete. */
static enum MHD_Result begin(struct hzp_exchange *x, const char *method, const char *path)
{
    x->begun = true;
    hzp_door_phase(x->server->door, x->fd, HZP_DOOR_ANSWER);
    if (x->refused)
        return refuse(x, method, path);
    find_route(method, path, &x->tail); /* the path is complete only now */
    if (!x->route->pooled)
        return x->route->answer(x);
    x->job = (struct hzp_job){.run = run_route, .ctx = x};
    /* Parks first: the job may end before this thread goes on. */
    if (!hzp_exchange_park(x))
        return MHD_NO;
    hzp_pool_post(x->server->pool, &x->job);
    return MHD_YES;
}

/* The library calls this once for a request's header, then for each piece of its body, then at its
 * end, and again whenever the parked exchange was woken. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *bytes, void **ctx)
{
    struct hzp_exchange *x = *ctx;
    if (!x)
        return open_exchange(cls, connection, method, path, ctx);
    if (*bytes) {
        enum MHD_Result r = take_body(x, data, *bytes);
        *bytes = 0;
        hzp_door_phase(x->server->door, x->fd, HZP_DOOR_BODY);
        return r;
    }
    if (!x->begun) {
        enum MHD_Result r = begin(x, method, path);
        if (r == MHD_NO || (x->route && x->route->pooled && !x->refused))
            return r;
    } else {
        hzp_exchange_awake(x);
        if (!x->response && !x->closing && x->resume && !x->resume(x))
            return MHD_NO;
    }
    if (x->closing)
        return MHD_NO;
    if (x->response)
        return send_answer(x);
    return hzp_exchange_park(x) ? MHD_YES : MHD_NO;
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **ctx,
                         enum MHD_RequestTerminationCode how)
{
    struct hzp_server *server = cls;
    struct hzp_exchange *x = *ctx;
    if (!x)
        return;
    *ctx = NULL;
    hzp_door_phase(server->door, x->fd, HZP_DOOR_IDLE);
    hzp_metrics_http(server->metrics, x->route ? x->route->path : "none",
                     x->route ? x->route->method : "none", x->status);
    if (x->early)
        hzp_door_linger(server->door, x->fd);
    if (x->leave)
        x->leave(x);
    hzp_exchange_release(x);
    atomic_fetch_sub(&server->active, 1);
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **socket_ctx,
                          enum MHD_ConnectionNotificationCode what)
{
    struct hzp_server *server = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info)
        return;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        hzp_door_begun(server->door, info->connect_fd);
    else
        hzp_door_ended(server->door, info->connect_fd);
}

/* Door: a new connection. */
static bool admit(void *ctx, int fd, const struct sockaddr *address, socklen_t bytes)
{
    struct hzp_server *server = ctx;
    return MHD_add_connection(server->daemon, fd, address, bytes) == MHD_YES;
}

/* ---- start and stop ---- */

static void on_error(void *cls, const char *format, va_list args)
{
    char text[256];
    vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\n")] = 0;
    hzp_log(HZP_LOG_DEBUG, "http", "%s, ignoring", text);
}

static int listen_on(struct hzp_server *s, struct hzp_err_text *reterr)
{
    const struct hzp_http_settings *settings = s->settings;
    uint64_t idle_ns = (uint64_t)settings->idle_seconds * 1000000000u;
    uint64_t receive_ns = (uint64_t)settings->receive_seconds * 1000000000u;
    struct hzp_door_config config = {
        .host = settings->host,
        .port = (int)settings->port,
        .places = settings->connections_max,
        .per_address = settings->per_address ? settings->per_address
                                             : HZP_MAX(settings->connections_max * 3 / 4, 1),
        .header_ns = HZP_MIN(HZP_MIN(idle_ns, receive_ns), HEADER_NS),
        .receive_ns = receive_ns,
        .idle_ns = idle_ns,
        .admit = admit,
        .ctx = s};
    HZP_TRY(hzp_door_open(&config, &s->door, reterr));
    s->port = hzp_door_port(s->door);
    return HZP_OK;
}

/* Starts the library's I/O threads. */
static int start_daemon(struct hzp_server *s, struct hzp_err_text *reterr)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned threads = (unsigned)HZP_MIN(HZP_MAX(cores / CORES_PER_IO_THREAD, 1), IO_THREADS_MAX);
    /* The door bounds the connections; the library's own bound is by thread and never reached. */
    unsigned limit = (unsigned)(2 * (s->settings->connections_max + HZP_DOOR_RESERVE) + 64);
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
            MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_error, NULL,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        s, MHD_OPTION_CONNECTION_LIMIT, limit * threads, MHD_OPTION_THREAD_STACK_SIZE,
        (size_t)STACK_BYTES, threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, threads,
        MHD_OPTION_END);
    if (!s->daemon)
        return hzp_fail(reterr, HZP_EIO, "no thread or descriptor left for the HTTP server");
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
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int workers = (int)HZP_MIN(HZP_MAX(cores, POOL_THREADS_MIN), POOL_THREADS_MAX);
    int r = listen_on(s, reterr);
    if (r == HZP_OK && (hzp_hangup_create(&s->hangup) < 0 || hzp_notify_create(&s->notify) < 0 ||
                        hzp_pool_create(workers, &s->pool) < 0))
        r = hzp_fail(reterr, HZP_EIO, "no thread or descriptor left for the HTTP server");
    if (r == HZP_OK)
        r = start_daemon(s, reterr);
    if (r == HZP_OK)
        r = hzp_door_start(s->door, reterr);
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
    if (server->door)
        hzp_door_shut(server->door);
    if (server->daemon) {
        uint64_t end = hzp_now_ns() + wait_ns;
        while (atomic_load(&server->active) && hzp_now_ns() < end)
            usleep(2000);
        /* The library must not be stopped while a connection is suspended.  The engine has ended,
         * so every request is final and every parked exchange is woken. */
        atomic_store(&server->closing, true);
        while (atomic_load(&server->parked))
            usleep(1000);
        MHD_stop_daemon(server->daemon);
        while (atomic_load(&server->held))
            usleep(1000);
    }
    hzp_pool_destroy(server->pool);
    hzp_notify_destroy(server->notify);
    hzp_hangup_destroy(server->hangup);
    hzp_door_destroy(server->door);
    hzp_lock_fini(&server->policy_lock);
    free(server);
}
