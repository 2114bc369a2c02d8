/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/http.h - the HTTP server below its routes: connections, bodies, answers.
 *
 * Threads.  A few I/O threads of libmicrohttpd read requests and send answers; they never block,
 * but for the moment in which the notes of a step are called (hzp_notify_settle).
 *
 *     api/http/wire/door.h     accepts connections, bounds their number, ends slow ones
 *     I/O threads         headers, bodies, sockets; a route that takes no time is answered here
 *     api/http/wire/pool.h     routes that parse, tokenise or write to a disk;
 *                         those with long bodies in a pool of their own, so that no number of them
 *                         keeps a short one waiting, and what takes seconds in others (lanes)
 *     api/http/wire/notify.h   is told by the engine thread which requests have new tokens, and
 *                              wakes
 *                         the I/O thread of each
 *     api/http/wire/notify.h     how long further tokens of a stream wait, to be written together
 *
 * An exchange that waits is parked: its connection is suspended and costs no thread.  The thread
 * that has news for it calls hzp_exchange_wake(); its I/O thread then continues.  A wake that comes
 * while the exchange runs is not lost: the next attempt to park fails.
 *
 * Handlers never touch the engine's state: they submit requests, read requests' output and
 * counters, and call functions whose headers say "Thread: any".
 *
 * Bounds: connections, bytes of a body (413), what the scheduler queues (429).
 *
 * Thread: a handler runs on an I/O thread (hzp_route.at_once) or on one of the pool; an
 * exchange is used by one thread at a time.
 */
#pragma once

#include "api/engine/engine.h"
#include "api/http/wire/auth.h"
#include "api/http/wire/door.h"
#include "api/http/wire/notify.h"
#include "api/http/wire/pool.h"
#include "api/http/wire/request_log.h"

#include <microhttpd.h>

enum { HZP_SERVER_LANES = 3 };

enum hzp_server_state { HZP_SERVER_UP, HZP_SERVER_DRAINING, HZP_SERVER_FAILED };

struct hzp_exchange;

/* Answers every request that was not refused instead of its route (api/relay). */
struct hzp_forwarder {
    /* I/O thread: as hzp_route.answer, and sets hzp_exchange.resume.  The body is whole. */
    enum MHD_Result (*answer)(void *ctx, struct hzp_exchange *x, const char *method,
                              const char *path);
    void *ctx;
};

/* Owned by the modules above this room, which give the server their pointers. */
struct hzp_target;    /* api/http/wire/target.h */
struct hzp_field;     /* api/http/routes/field_table.h */
struct hzp_field_set; /* likewise */
struct hzp_feedback;  /* api/http/routes/feedback.h */
struct hzp_metrics;   /* api/http/routes/metrics.h */
struct hzp_taught;    /* api/http/routes/taught.h */

/* Counts a request that was answered, or whose client disconnected (status 0).  Any thread. */
typedef void hzp_count_fn(struct hzp_metrics *metrics, const struct hzp_request_info *info,
                          int status);

struct hzp_server {
    const struct hzp_http_settings *settings;
    const struct hzp_route *routes;                    /* the last row has no path */
    struct hzp_engine *engine;                         /* NULL: requests are forwarded: */
    struct hzp_forwarder forward;                      /* .answer NULL: they are not */
    enum MHD_Result (*answer)(struct hzp_exchange *x); /* checks what the route needs, calls it */
    struct hzp_metrics *metrics;
    hzp_count_fn *count;
    struct hzp_auth *auth;
    struct hzp_door *door;
    struct hzp_notify *notify;
    struct hzp_pool *pool;
    struct hzp_pool *slow;                   /* for long bodies */
    struct hzp_pool *lane[HZP_SERVER_LANES]; /* for what a route does that may take seconds */
    struct MHD_Daemon *daemon;
    struct hzp_unknown unknown;
    struct hzp_taught *taught;
    char model[128];       /* the name in requests and answers */
    bool relayed;          /* all clients come through the launcher's relay (journal.c) */
    _Atomic uint64_t shed; /* requests that got a smaller depth because many waited */
    int64_t created;       /* unix seconds */
    struct hzp_feedback *feedback;
    struct hzp_lock policy_lock; /* serialises PATCHes of the policy */
    _Atomic int state;           /* enum hzp_server_state */
    _Atomic int active;          /* requests being answered */
    _Atomic int parked;          /* those that are suspended */
    _Atomic int held;            /* exchanges whose memory is in use */
    _Atomic int64_t bodies;      /* bytes of memory of requests: bodies, what is read of them, what
                                  * waits and runs, answers */
    _Atomic int64_t joined;      /* tokens of streams written together with an earlier one */
    _Atomic bool closing;        /* nothing is parked any more */
};

/* One request and its answer. */
struct hzp_exchange {
    struct hzp_server *server;
    struct MHD_Connection *connection; /* NULL: its header is not whole yet */
    int fd;                            /* the connection's socket */
    const struct hzp_route *route;     /* NULL: none */
    struct hzp_target *target;         /* the target in its request line */
    const char *tail;                  /* the path behind the route's prefix */
    json_t *asked;         /* the body, while the handler of a route that needs it runs */
    struct hzp_gzip *gzip; /* owned: reads the body; NULL: it comes as it is */
    char *piece;           /* [piece_bytes] owned: of gzip, while a thread of the pool reads it */
    size_t piece_bytes;
    char *body;
    size_t bytes, room;
    size_t received;            /* bytes of the body, decoded, also those that were fed already */
    size_t coded;               /* with gzip: bytes of the body as they came */
    _Atomic int64_t charged;    /* part of hzp_server.bodies: the body, and what is read of it */
    _Atomic int64_t kept;       /* another part: until the exchange ends */
    int64_t making;             /* the part of `kept` for an answer in progress */
    size_t tree;                /* the part of `charged` for the body's JSON values */
    size_t thrown_away;         /* bytes read of an oversized body */
    size_t journal;             /* bytes of the body in front of its JSON (journal.c) */
    bool resumed;               /* a stream that another rank 0 has begun; journal may be 0 */
    struct hzp_refusal refusal; /* decided before the body was read */
    int status;                 /* the answer's, once there is one */
    bool early;                 /* answered before the body was read */
    bool preflight;             /* the answer has its headers of CORS */
    bool begun;                 /* the route was asked for its answer */
    bool fed;                   /* hzp_route.feed has replied */
    bool closing;               /* the connection is closed without an answer */
    bool logged;                /* or will be, with its completion */
    struct hzp_request_info info;
    uint64_t version;              /* sent as x-hzpserve-weights-version; 0: not sent */
    int64_t staleness;             /* with version: sent as x-hzpserve-staleness */
    uint64_t stale_prefix;         /* sent as x-hzpserve-stale-prefix; 0: it is not sent */
    struct MHD_Response *response; /* to be sent by the I/O thread */
    struct hzp_pool_task task;     /* for a route of the pool */

    /* Set by a pooled handler that answers later; called on the I/O thread.  resume: the exchange
     * was woken and has no answer yet; false: the connection is closed.  leave: the exchange ends,
     * answered or not. */
    bool (*resume)(struct hzp_exchange *x);
    void (*leave)(struct hzp_exchange *x);
    void *later; /* the handler's */

    _Atomic int park; /* enum in http.c */
    _Atomic int holds;
};

/* How long an answer may take. */
enum hzp_answer_kind {
    HZP_ANSWER_SOON,
    HZP_ANSWER_LATE,   /* tokens are computed for it */
    HZP_ANSWER_STREAM, /* the same; it can be a stream, which a relay resumes (journal.c) */
};

/* What must be so before a handler is called; else the answer is an error. */
enum hzp_route_needs {
    HZP_NEEDS_UP = 1,       /* the server does not stop, and its device works */
    HZP_NEEDS_STATE = 2,    /* it learns */
    HZP_NEEDS_ROLLOUTS = 4, /* it makes rollouts */
    HZP_NEEDS_RANKS = 8,    /* it has replicas */
    HZP_NEEDS_BODY = 16,    /* x->asked: the body, which has what the route's fields say */
    HZP_TAKES_BODY = 32,    /* the same; without a body an empty object */
    HZP_NEEDS_MESH = 64,    /* it is a site */
};

/* How a request on a path is answered. */
struct hzp_route {
    const char *method, *path; /* a path that ends in '/' takes what follows as its tail */
    /* Calls a hzp_reply function and returns its result, or arranges for an answer later and
     * returns MHD_YES.  MHD_NO: the connection is closed.  Negative: an error code, of which the
     * caller makes the answer (hzp_reply_fail). */
    int (*answer)(struct hzp_exchange *x, struct hzp_err_text *reterr);
    enum hzp_right right; /* which key it wants */
    unsigned needs;       /* enum hzp_route_needs */
    enum hzp_answer_kind kind;
    bool at_once;                     /* takes no time: answered on the I/O thread, not by a pool */
    const struct hzp_field_set *body; /* the fields of its body; NULL: it has none */
    const struct hzp_field *query;    /* arguments, up to one without a name; NULL: none */
    /* Pool: takes x->body, a piece of a long body, while the rest arrives; NULL: the answer reads
     * the body as a whole.  False: it has replied, and the rest of the body is thrown away. */
    bool (*feed)(struct hzp_exchange *x);
};

struct hzp_server_config {
    const struct hzp_http_settings *settings;
    struct hzp_port *port;          /* bound; the server takes over its socket */
    const struct hzp_route *routes; /* the last row has no path */
    struct hzp_engine *engine;      /* NULL: requests are checked and forwarded: */
    struct hzp_forwarder forward;
    enum MHD_Result (*answer)(struct hzp_exchange *x); /* NULL: likewise */
    struct hzp_metrics *metrics;
    hzp_count_fn *count;
    struct hzp_taught *taught;     /* NULL: only with an engine */
    struct hzp_feedback *feedback; /* likewise */
};

/* Starts to listen on the bound port; the config's pointers must outlive the server.  HZP_EIO: no
 * thread or descriptor is left. */
int hzp_server_start(const struct hzp_server_config *config, struct hzp_server **ret,
                     struct hzp_err_text *reterr);

/* From now on /health answers 503 and no new work begins. */
void hzp_server_set_state(struct hzp_server *server, enum hzp_server_state state);

/* Refuses new connections, waits (at most so long) until answers in progress are sent, closes. */
void hzp_server_stop(struct hzp_server *server, uint64_t wait_ns); /* NULL: no effect */

/* ---- waiting ---- */

/* I/O thread: suspends the connection until hzp_exchange_wake().  False: the server is closing. */
bool hzp_exchange_park(struct hzp_exchange *x);
/* I/O thread, before it looks for news: wakes up to now are done with. */
void hzp_exchange_awake(struct hzp_exchange *x);
/* Any thread that holds the exchange: there is an answer, or more of it. */
void hzp_exchange_wake(struct hzp_exchange *x);
/* The exchange's memory outlives its connection until it is released as often as held. */
void hzp_exchange_hold(struct hzp_exchange *x);
void hzp_exchange_release(struct hzp_exchange *x);

/* ---- memory ----
 *
 * All exchanges together account for `memory` of --max-body at most.  Where a function returns
 * false there is not so much, and hzp_reply_no_memory() is the answer. */

/* From now on the exchange accounts for so many bytes beside x->body, until its handler returns. */
bool hzp_exchange_charge(struct hzp_exchange *x, size_t bytes);
/* The same beside the tree that hzp_exchange_json() has made. */
bool hzp_exchange_charge_beside(struct hzp_exchange *x, size_t bytes);
/* The handler has returned: its body, and what it read of it, are gone. */
void hzp_exchange_uncharge(struct hzp_exchange *x);
/* So many more bytes are kept until the exchange ends, answered or not.  One thread at a time. */
bool hzp_exchange_keep(struct hzp_exchange *x, size_t bytes);
/* An answer is being made that takes so many bytes at most; from when it is replied on its text
 * counts.  Answers of some 64 KiB need no such call. */
bool hzp_exchange_make(struct hzp_exchange *x, size_t bytes);
/* The answer's text is made, and takes so many bytes.  False: it has to be thrown away. */
bool hzp_exchange_made(struct hzp_exchange *x, size_t bytes);
/* 503, code "overloaded". */
enum MHD_Result hzp_reply_no_memory(struct hzp_exchange *x);

/* ---- answers ---- */

/* JSON format: compact; nine digits represent every float exactly. */
#define HZP_JSON_FORM (JSON_COMPACT | JSON_REAL_PRECISION(9))

/* Takes over json. */
enum MHD_Result hzp_reply_json(struct hzp_exchange *x, int status, json_t *json);
/* 200 with what json_pack makes of the rest. */
enum MHD_Result hzp_reply_pack(struct hzp_exchange *x, const char *format, ...);
/* The same with one more header; value NULL: without it. */
enum MHD_Result hzp_reply_json_with(struct hzp_exchange *x, int status, json_t *json,
                                    const char *header, const char *value);
enum MHD_Result hzp_reply_text(struct hzp_exchange *x, int status, const char *type, char *text);
/* Sends a response made elsewhere (a stream); takes it over. */
enum MHD_Result hzp_reply(struct hzp_exchange *x, int status, struct MHD_Response *response);

/* {"type": "error", "error": {"message", "type", "param", "code"}}: a new object; param and code
 * may be NULL. */
json_t *hzp_error_json(int status, const char *message, const char *param, const char *code);
enum MHD_Result hzp_reply_error(struct hzp_exchange *x, int status, const char *param,
                                const char *code, const char *message, ...) HZP_PRINTF(5, 6);
/* 503, the same for every route: the server is stopping (code "stopping") or its device has failed
 * ("failed"); Retry-After. */
enum MHD_Result hzp_reply_unavailable(struct hzp_exchange *x);
/* The code of a 503 in this state. */
const char *hzp_unavailable_code(int state);
/* The answer to a failed call: status from the one table of error codes. */
enum MHD_Result hzp_reply_fail(struct hzp_exchange *x, int code, const struct hzp_err_text *err);
int hzp_http_status(int code);

/* The value of ?name=, or NULL. */
const char *hzp_exchange_query(const struct hzp_exchange *x, const char *name);
/* The value of a request header, or NULL. */
const char *hzp_exchange_header(const struct hzp_exchange *x, const char *name);

/* The body, behind its journal, as a JSON object; NULL: an error was answered, *ret_answered is its
 * result. */
json_t *hzp_exchange_json(struct hzp_exchange *x, enum MHD_Result *ret_answered);

/* The route of a method and path, NULL: none; *ret_tail: what follows the route's own path in it,
 * set if any route has this path, perhaps with another method. */
const struct hzp_route *hzp_route_find(const struct hzp_route *routes, const char *method,
                                       const char *path, const char **ret_tail);
/* The methods of a path for the header Allow; "": no such path. */
void hzp_route_methods(const struct hzp_route *routes, const char *path, char *ret, size_t size);
