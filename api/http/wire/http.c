/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/http.h"

#include "api/http/wire/framing.h"
#include "api/http/wire/gzip.h"
#include "api/http/wire/target.h"
#include "base/log.h"

#include <sched.h>
#include <strings.h>
#include <sys/socket.h>

enum {
    STACK_BYTES = 256 << 10,
    THROW_AWAY_TIMES = 8, /* an oversized body is read up to this many times the bound, to answer */
    CORES_PER_IO_THREAD = 4,
    IO_THREADS_MAX = 8,
    POOL_THREADS_MIN = 4,
    POOL_THREADS_MAX = 16,
    LONG_BYTES = 256 << 10, /* from here on a body is long */
    CODED_BYTES = 64,       /* gzip is read in pieces of so many: at most as many KiB of text */
    SLOW_THREADS = 2,
    BODY_ROOM = 1024,
    FEED_BYTES = 64 << 10,  /* piece of a long body that is given to the route at a time */
    HEADER_ROOM = 32 << 10, /* a connection's, for its request's header and its answer's */
    RELAYED_TIMES = 4, /* so much more: a relay writes a byte of a URL as three, and adds lines */
};

static const uint64_t HEADER_NS = 10000000000ull; /* for a request's header as a whole */

/* The state of an exchange.  NEWS: woken while it runs. */
enum park { RUNNING, PARKED, NEWS };

/* ---- one request ---- */

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

/* Bytes that this server takes of the body.  A journal has as many as the relay, a part of this
 * server, got in this server's answers: `memory` of --max-body bounds it, as all bodies. */
static size_t body_most(const struct hzp_exchange *x)
{
    const struct hzp_http_settings *settings = x->server->settings;
    return (size_t)settings->body_max + HZP_MIN(x->journal, (size_t)settings->body_memory);
}

/* Whether Content-Length exceeds the bound. */
static bool says_too_much(struct hzp_exchange *x)
{
    const char *length = header(x->connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return length && strtoull(length, NULL, 10) > (unsigned long long)body_most(x);
}

static void HZP_PRINTF(4, 5)
    say_no(struct hzp_exchange *x, int status, const char *code, const char *format, ...)
{
    va_list args;
    x->refusal.status = status;
    x->refusal.code = code;
    va_start(args, format);
    vsnprintf(x->refusal.text, sizeof(x->refusal.text), format, args);
    va_end(args);
}

static void say_too_long(struct hzp_exchange *x)
{
    say_no(x, MHD_HTTP_CONTENT_TOO_LARGE, NULL,
           "the body is longer than the %lld bytes this server takes",
           (long long)x->server->settings->body_max);
}

static void find_no_route(struct hzp_exchange *x, const char *method, const char *path)
{
    char allow[64];
    hzp_route_methods(x->server->routes, path, allow, sizeof(allow));
    if (*allow)
        say_no(x, MHD_HTTP_METHOD_NOT_ALLOWED, NULL,
               "%.40s is not a method of %.100s; its methods: %s", method, path, allow);
    else
        say_no(x, MHD_HTTP_NOT_FOUND, NULL, "there is no %.200s here", path);
}

static bool changes_something(const char *method)
{
    return strcmp(method, "GET") && strcmp(method, "HEAD") && strcmp(method, "OPTIONS");
}

/* Whether a stream that the relay says to go on with (journal.c) can be one. */
static bool announce_journal(struct hzp_exchange *x)
{
    const char *text = header(x->connection, "x-hzpserve-resume");
    char *end;
    if (!text || !x->server->relayed)
        return true;
    errno = 0;
    long long bytes = strtoll(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno)
        return false;
    x->journal = (size_t)bytes;
    x->resumed = true;
    return x->route->kind == HZP_ANSWER_STREAM;
}

/* Checks that need no body; active: requests being answered, with this one. */
static void check_early(struct hzp_exchange *x, const char *method, const char *path, int active)
{
    const struct hzp_http_settings *settings = x->server->settings;
    struct hzp_auth *auth = x->server->auth;
    x->route = hzp_route_find(x->server->routes, method, path, &x->tail);
    if (changes_something(method))
        hzp_auth_check_origin(auth, x->connection, x->target->host, &x->refusal);
    else if (x->route && x->route->right == HZP_RIGHT_TEACH) /* weights, the timeline */
        hzp_auth_check_host(auth, x->connection, x->target->host, &x->refusal);
    if (!x->refusal.status && x->route)
        x->info.key = hzp_auth_check_key(auth, x->connection, x->route->right, &x->refusal);
    else if (!x->refusal.status && !strncmp(path, "/v1/", 4))
        hzp_auth_check_key(auth, x->connection, HZP_RIGHT_COMPLETE, &x->refusal);
    if (!x->refusal.status && !x->route)
        find_no_route(x, method, path);
    const char *coding = header(x->connection, MHD_HTTP_HEADER_CONTENT_ENCODING);
    bool coded = coding && *coding && strcasecmp(coding, "identity") != 0;
    if (!x->refusal.status && coded && !hzp_gzip_named(coding))
        say_no(x, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, NULL,
               "Content-Encoding: this server reads bodies as they are or in gzip, not in %.40s",
               coding);
    if (!x->refusal.status && coded && hzp_gzip_create(&x->gzip) < 0)
        say_no(x, MHD_HTTP_SERVICE_UNAVAILABLE, "overloaded",
               "there is no memory for this body now");
    if (!x->refusal.status && !announce_journal(x))
        say_no(x, MHD_HTTP_BAD_REQUEST, NULL,
               "x-hzpserve-resume: a number of bytes, of a request whose answer can be a stream");
    if (!x->refusal.status && says_too_much(x))
        say_too_long(x);
    if (!x->refusal.status && active > settings->connections_max && x->route->right)
        say_no(x, MHD_HTTP_TOO_MANY_REQUESTS, "rate_limit_exceeded",
               "too many requests at a time: this server answers %lld",
               (long long)settings->connections_max);
}

static enum MHD_Result refuse(struct hzp_exchange *x, const char *path)
{
    const struct hzp_refusal *refusal = &x->refusal;
    char allow[64];
    hzp_route_methods(x->server->routes, path, allow, sizeof(allow));
    bool allows = refusal->status == MHD_HTTP_METHOD_NOT_ALLOWED;
    return hzp_reply_json_with(x, refusal->status,
                               hzp_error_json(refusal->status, refusal->text, NULL, refusal->code),
                               MHD_HTTP_HEADER_ALLOW, allows ? allow : NULL);
}

/* The answer to a page that asks whether it may send a request. */
static enum MHD_Result answer_preflight(struct hzp_exchange *x)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (response && hzp_auth_add_cors(x->server->auth, x->connection, response, true)) {
        x->preflight = true;
        return hzp_reply(x, MHD_HTTP_NO_CONTENT, response);
    }
    if (response)
        MHD_destroy_response(response);
    return hzp_reply_error(x, MHD_HTTP_FORBIDDEN, NULL, "origin_not_allowed",
                           "pages of this origin may not do this; --allow-origin names those that "
                           "may");
}

/* Gives the answer to the library, which sends it. */
static enum MHD_Result send_answer(struct hzp_exchange *x)
{
    struct MHD_Response *response = x->response;
    x->response = NULL;
    if (!x->preflight)
        hzp_auth_add_cors(x->server->auth, x->connection, response, false);
    if (x->early)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    enum MHD_Result r = MHD_queue_response(x->connection, (unsigned)x->status, response);
    MHD_destroy_response(response);
    hzp_door_sending(x->server->door, x->fd, true);
    return r;
}

/* Each I/O thread answers requests before it writes to a stream. */
static void count_writer(struct hzp_notify *notify)
{
    static _Thread_local bool counted;
    if (!counted)
        hzp_notify_writer(notify);
    counted = true;
}

/* The library has a request line, before it reads the target.  What it shall not read, the
 * arguments, ends here: the text is in its buffer, which it goes on to write to itself. */
static void *on_target(void *cls, const char *text, struct MHD_Connection *connection)
{
    struct hzp_exchange *x = calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    x->server = cls;
    x->target = hzp_target_read(text ? text : "");
    char *query = text ? strchr((char *)(uintptr_t)text, '?') : NULL;
    if (query && query[1])
        query[1] = 0;
    return x;
}

static enum MHD_Result open_exchange(struct hzp_exchange *x, struct MHD_Connection *connection,
                                     const char *method)
{
    struct hzp_server *server = x->server;
    const char *path = x->target ? x->target->path : "";
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!x->target || !info)
        return MHD_NO;
    x->connection = connection;
    x->fd = info->connect_fd;
    x->holds = 1;
    count_writer(server->notify);
    atomic_fetch_add(&server->held, 1);
    int active = atomic_fetch_add(&server->active, 1) + 1;
    hzp_door_phase(server->door, x->fd, HZP_DOOR_BODY);
    hzp_request_id(header(connection, "x-request-id"), x->info.id);
    x->info.begin_ns = hzp_now_ns();
    x->info.key = x->info.method = x->info.route = "none";
    hzp_framing_next(x->fd);
    const char *fault = hzp_framing_fault(x->fd);
    fault = fault ? fault : x->target->fault;
    if (fault)
        say_no(x, MHD_HTTP_BAD_REQUEST, NULL, "%s", fault);
    else if (!hzp_auth_is_preflight(connection, method))
        check_early(x, method, path, active);
    if (x->route) {
        x->info.method = x->route->method;
        x->info.route = x->route->path;
    }
    if (!fault && !(x->refusal.status && says_too_much(x)))
        return MHD_YES;
    /* Answers now: the library reads no body and closes the connection afterwards. */
    x->early = true;
    enum MHD_Result r = refuse(x, path);
    return x->response ? send_answer(x) : r;
}

/* ---- bodies ---- */

/* Makes room for more of the body.  False: there is no memory, which is the answer then. */
static bool grow_body(struct hzp_exchange *x, size_t bytes)
{
    if (x->bytes + bytes + 1 <= x->room)
        return true;
    size_t room = HZP_MAX(HZP_MAX(2 * x->room, x->bytes + bytes + 1), (size_t)BODY_ROOM);
    size_t more = room - x->room;
    int64_t beside = atomic_load(&x->charged) - (int64_t)x->room;
    bool allowed = hzp_exchange_charge(x, more + (size_t)HZP_MAX(beside, 0));
    char *grown = allowed ? realloc(x->body, room) : NULL;
    if (!grown) {
        say_no(x, MHD_HTTP_SERVICE_UNAVAILABLE, "overloaded",
               "there is no memory for this body now");
        return false;
    }
    x->body = grown;
    x->room = room;
    return true;
}

static bool wants_feed(const struct hzp_exchange *x)
{
    return x->route && x->route->feed && x->bytes >= FEED_BYTES && !x->server->forward.answer;
}

/* Pool: a piece of a long body. */
static bool run_feed(void *ctx)
{
    struct hzp_exchange *x = ctx;
    hzp_exchange_hold(x);
    x->fed = !x->route->feed(x);
    x->bytes = 0;
    hzp_exchange_wake(x);
    hzp_exchange_release(x);
    return true;
}

/* Gives a long body's piece to the route; meanwhile nothing more is read.  False: the server is
 * closing. */
static bool feed_route(struct hzp_exchange *x)
{
    if (!wants_feed(x))
        return true;
    x->task = (struct hzp_pool_task){.run = run_feed, .ctx = x};
    if (!hzp_exchange_park(x))
        return false;
    hzp_pool_post(x->server->pool, &x->task);
    return true;
}

/* The body's framing so far: a fault is the answer, after which the connection is closed. */
static void check_framing(struct hzp_exchange *x)
{
    const char *fault = hzp_framing_fault(x->fd);
    if (!fault)
        return;
    say_no(x, MHD_HTTP_BAD_REQUEST, NULL, "%s", fault);
    x->early = true;
}

/* False: the body is refused, or not wanted any more. */
static bool add_body(void *ctx, const char *data, size_t bytes)
{
    struct hzp_exchange *x = ctx;
    x->received += bytes;
    if (!x->refusal.status && x->received > body_most(x))
        say_too_long(x);
    if (x->refusal.status || x->fed || !grow_body(x, bytes))
        return false;
    memcpy(x->body + x->bytes, data, bytes);
    x->bytes += bytes;
    x->body[x->bytes] = 0;
    return true;
}

/* The bound holds for the coded bytes, too: empty members have no text that would count. */
static bool add_coded(struct hzp_exchange *x, const char *data, size_t bytes)
{
    x->coded += bytes;
    if (!x->refusal.status && x->coded > body_most(x))
        say_too_long(x);
    if (x->refusal.status)
        return false;
    int r = hzp_gzip_feed(x->gzip, data, bytes, add_body, x);
    if (r == HZP_EFORMAT)
        say_no(x, MHD_HTTP_BAD_REQUEST, NULL,
               "the body is not the gzip that Content-Encoding says");
    return r == HZP_OK;
}

/* Pool: a piece of a body in gzip, whose text may be a thousand times as long. */
static bool run_coded(void *ctx)
{
    struct hzp_exchange *x = ctx;
    if (!add_coded(x, x->piece, x->piece_bytes))
        x->thrown_away += x->piece_bytes;
    free(x->piece);
    x->piece = NULL;
    if (!x->refusal.status && !x->fed && wants_feed(x))
        return run_feed(x);
    hzp_exchange_wake(x); /* from here on it is another thread's */
    return true;
}

/* Takes a piece of the body.  MHD_NO: the connection is closed. */
static enum MHD_Result take_body(struct hzp_exchange *x, const char *data, size_t bytes)
{
    size_t most = body_most(x);
    check_framing(x);
    bool aside = x->gzip && bytes > CODED_BYTES && !x->refusal.status;
    if (aside && (x->piece = malloc(bytes)) != NULL) {
        memcpy(x->piece, data, x->piece_bytes = bytes);
        x->task = (struct hzp_pool_task){.run = run_coded, .ctx = x};
        if (!hzp_exchange_park(x))
            return MHD_NO;
        bool is_long = bytes >= LONG_BYTES / CODED_BYTES;
        hzp_pool_post(is_long ? x->server->slow : x->server->pool, &x->task);
        return MHD_YES;
    }
    if (x->gzip ? add_coded(x, data, bytes) : add_body(x, data, bytes))
        return feed_route(x) ? MHD_YES : MHD_NO;
    x->thrown_away += bytes;
    return x->thrown_away > THROW_AWAY_TIMES * most + (1 << 20) ? MHD_NO : MHD_YES;
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
    hzp_exchange_uncharge(x);
    atomic_fetch_sub(&server->bodies, atomic_exchange(&x->kept, 0));
    if (x->response)
        MHD_destroy_response(x->response);
    hzp_gzip_destroy(x->gzip);
    free(x->piece);
    free(x->body);
    free(x->target);
    free(x);
    atomic_fetch_sub(&server->held, 1);
}

/* ---- the library's calls ---- */

/* Whether the client has closed its connection, of a request whose work is for it alone. */
static bool is_for_nobody(const struct hzp_exchange *x)
{
    char byte;
    bool only = x->route->kind != HZP_ANSWER_SOON ||
                (x->received >= LONG_BYTES && x->route->right == HZP_RIGHT_COMPLETE);
    return only && recv(x->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Pool: the answer of a pooled route. */
static bool run_route(void *ctx)
{
    struct hzp_exchange *x = ctx;
    hzp_exchange_hold(x);
    enum MHD_Result r = is_for_nobody(x) ? MHD_NO : x->server->answer(x);
    /* An answer that comes later does not use it, but for the journal of a stream that goes on. */
    if (!x->resume || !x->journal) {
        free(x->body);
        x->body = NULL;
        x->room = 0;
        hzp_exchange_uncharge(x);
    }
    /* With resume, the handler answers later, or has done so: from then on its exchange is used by
     * another thread. */
    if (!x->resume || r == MHD_NO) {
        x->closing = r == MHD_NO;
        hzp_exchange_wake(x);
    }
    hzp_exchange_release(x);
    return true;
}

/* Whether a thread of the pool answers it. */
static bool is_pooled(const struct hzp_exchange *x)
{
    return x->route && !x->route->at_once && !x->refusal.status && !x->fed &&
           !x->server->forward.answer;
}

/* The request is complete. */
static enum MHD_Result begin(struct hzp_exchange *x, const char *method, const char *path)
{
    x->begun = true;
    hzp_exchange_awake(x);
    hzp_door_phase(x->server->door, x->fd, HZP_DOOR_ANSWER);
    check_framing(x);
    if (!x->refusal.status && x->gzip && !x->fed && !hzp_gzip_whole(x->gzip))
        say_no(x, MHD_HTTP_BAD_REQUEST, NULL, "the body's gzip has no end");
    if (!x->refusal.status && hzp_auth_is_preflight(x->connection, method))
        return answer_preflight(x);
    if (!x->refusal.status && x->journal > x->bytes)
        say_no(x, MHD_HTTP_BAD_REQUEST, NULL,
               "x-hzpserve-resume: the body has %zu bytes, fewer than %zu", x->bytes, x->journal);
    if (x->refusal.status) {
        if (x->response)
            MHD_destroy_response(x->response);
        x->response = NULL;
        return refuse(x, path);
    }
    if (x->fed)
        return MHD_YES;
    if (x->server->forward.answer)
        return x->server->forward.answer(x->server->forward.ctx, x, method, path);
    if (x->route->at_once)
        return x->server->answer(x);
    x->task = (struct hzp_pool_task){.run = run_route, .ctx = x};
    bool is_long = x->received >= LONG_BYTES;
    /* Parks first: the task may end before this thread goes on. */
    if (!hzp_exchange_park(x))
        return MHD_NO;
    hzp_pool_post(is_long ? x->server->slow : x->server->pool, &x->task);
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
        return MHD_NO;
    if (!x->connection)
        return open_exchange(x, connection, method);
    if (*bytes) {
        /* The next chunk, though the route still reads the last piece: it will be offered again. */
        if (atomic_load(&x->park) == PARKED)
            return MHD_YES;
        hzp_exchange_awake(x);
        hzp_door_phase(x->server->door, x->fd, HZP_DOOR_BODY);
        enum MHD_Result r = take_body(x, data, *bytes);
        *bytes = 0;
        return r;
    }
    if (!x->begun) {
        enum MHD_Result r = begin(x, method, x->target->path);
        if (r == MHD_NO || is_pooled(x))
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
    *ctx = NULL;
    if (!x || !x->connection) { /* refused by the library, or without memory */
        if (x)
            free(x->target);
        free(x);
        return;
    }
    hzp_door_phase(server->door, x->fd, HZP_DOOR_IDLE);
    server->count(server->metrics, &x->info, x->status);
    if (!x->logged)
        hzp_request_log(&x->info, x->status);
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
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        hzp_framing_watch(info->connect_fd);
        hzp_door_begun(server->door, info->connect_fd);
    } else {
        hzp_framing_unwatch(info->connect_fd);
        hzp_door_ended(server->door, info->connect_fd);
    }
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

static int listen_on(struct hzp_server *s, struct hzp_port *port, struct hzp_err_text *reterr)
{
    const struct hzp_http_settings *settings = s->settings;
    uint64_t idle_ns = (uint64_t)settings->idle_seconds * 1000000000u;
    uint64_t receive_ns = (uint64_t)settings->receive_seconds * 1000000000u;
    struct hzp_door_config config = {
        .port = port,
        .places = settings->connections_max,
        .per_address = settings->per_address ? settings->per_address
                                             : HZP_MAX(settings->connections_max * 3 / 4, 1),
        .header_ns = HZP_MIN(HZP_MIN(idle_ns, receive_ns), HEADER_NS),
        .receive_ns = receive_ns,
        .idle_ns = idle_ns,
        .admit = admit,
        .ctx = s};
    return hzp_door_open(&config, &s->door, reterr);
}

/* That this process may use. */
static int processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return (int)HZP_MAX(online, 1);
}

static int io_threads(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return (int)HZP_MIN(HZP_MAX(cores / CORES_PER_IO_THREAD, 1), IO_THREADS_MAX);
}

/* Starts the library's I/O threads. */
static int start_daemon(struct hzp_server *s, struct hzp_err_text *reterr)
{
    unsigned threads = (unsigned)io_threads();
    /* The door bounds the connections; the library's own bound is by thread and never reached. */
    unsigned limit = (unsigned)(2 * (s->settings->connections_max + HZP_DOOR_RESERVE) + 64);
    size_t room = (size_t)HEADER_ROOM * (s->relayed ? RELAYED_TIMES : 1);
    hzp_thread_yielding(true); /* inherited by the library's threads */
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
            MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_error, NULL,
        MHD_OPTION_URI_LOG_CALLBACK, on_target, s, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_CONNECTION_LIMIT,
        limit * threads, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, room,
        threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, threads, MHD_OPTION_END);
    hzp_thread_yielding(false);
    if (!s->daemon)
        return hzp_fail(reterr, HZP_EIO, "no thread or descriptor left for the HTTP server");
    return HZP_OK;
}

static void name_model(struct hzp_server *s)
{
    const char *name = s->settings->served_name;
    HZP_FREED char *path = name ? NULL : realpath(s->engine->config.settings->model.dir, NULL);
    if (!name)
        name = path && strrchr(path, '/') ? strrchr(path, '/') + 1
                                          : s->engine->config.settings->model.dir;
    snprintf(s->model, sizeof(s->model), "%s", name);
}

/* A lane is given to what the one before it did not finish: the later ones have the longer work. */
static int start_pools(struct hzp_server *s)
{
    static const int threads[HZP_SERVER_LANES] = {2, 2, 1};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int workers = (int)HZP_MIN(HZP_MAX(cores, POOL_THREADS_MIN), POOL_THREADS_MAX);
    HZP_TRY(hzp_pool_create(workers, false, &s->pool));
    HZP_TRY(hzp_pool_create(SLOW_THREADS, true, &s->slow));
    for (int i = 0; i < HZP_SERVER_LANES; i++)
        HZP_TRY(hzp_pool_create(threads[i], i > 0, &s->lane[i]));
    return HZP_OK;
}

/* Starts all but what needs the engine.  After an error the server is freed. */
static int start(struct hzp_server *s, struct hzp_port *port, struct hzp_err_text *reterr)
{
    const struct hzp_http_settings *settings = s->settings;
    s->created = time(NULL);
    s->relayed = port->relayed;
    hzp_lock_init(&s->policy_lock, HZP_LOCK_POLICY);
    hzp_unknown_init(&s->unknown);
    int r = hzp_auth_create(settings, &s->auth, reterr);
    if (r == HZP_OK)
        r = listen_on(s, port, reterr);
    struct hzp_join join = {.processors = processors(),
                            .threads = io_threads(),
                            .bound_ns = (uint64_t)settings->join_ms * 1000000u};
    if (r == HZP_OK && (hzp_notify_create(&join, &s->notify) < 0 || start_pools(s) < 0))
        r = hzp_fail(reterr, HZP_EIO, "no thread or descriptor left for the HTTP server");
    if (r == HZP_OK)
        r = start_daemon(s, reterr);
    if (r == HZP_OK)
        r = hzp_door_start(s->door, reterr);
    if (r < 0)
        hzp_server_stop(s, 0);
    return r;
}

int hzp_server_start(const struct hzp_server_config *config, struct hzp_server **ret,
                     struct hzp_err_text *reterr)
{
    struct hzp_server *s = hzp_xcalloc(1, sizeof(*s));
    s->settings = config->settings;
    s->routes = config->routes;
    s->engine = config->engine;
    s->forward = config->forward;
    s->answer = config->answer;
    s->metrics = config->metrics;
    s->count = config->count;
    s->taught = config->taught;
    s->feedback = config->feedback;
    if (s->engine)
        name_model(s);
    HZP_TRY(start(s, config->port, reterr));
    if (s->engine && !hzp_auth_has_key(s->auth) && s->settings->no_auth)
        hzp_log(HZP_LOG_WARN, "http",
                "--no-auth: every client that reaches %s may complete, teach and set the policy",
                s->settings->host);
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
    hzp_pool_destroy(server->slow);
    for (int i = 0; i < HZP_SERVER_LANES; i++)
        hzp_pool_destroy(server->lane[i]);
    hzp_notify_destroy(server->notify);
    hzp_door_destroy(server->door);
    hzp_auth_destroy(server->auth);
    hzp_lock_fini(&server->policy_lock);
    hzp_unknown_fini(&server->unknown);
    free(server);
}
