/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/door.h - accepts connections, bounds their number, ends those that take too
 * long, and notices clients that disconnect while their request waits.
 *
 * The HTTP library reads requests and sends answers; this module owns the listening socket and
 * decides which connections the library gets, and for how long:
 *
 *     HEADER   a request's header has to arrive whole within header_ns of the connection's begin
 *     BODY     its body: every piece within idle_ns, all of it within receive_ns
 *     ANSWER   no deadline; while an answer is ready that the client does not read: idle_ns, but
 *              none for the relay on a Unix socket, which reads as slowly as its client does
 *     IDLE     between two requests: the next header has to be there within idle_ns
 *
 * A connection past its deadline is shut down; the library then closes it.
 *
 * Places: `places` connections for any request, and RESERVE more for requests for /health and
 * /metrics, so that those still find one.  When all are taken, the connection that has been in
 * HEADER or IDLE for longest is closed; if there is none, a BODY that has lasted for some seconds;
 * if there is none either, the new one is answered 503.  A client's address may hold at most
 * `per_address` places (429), unless it is a loopback address, where a proxy's clients come from,
 * or the relay's.
 *
 * When the process has no descriptor left, accepting pauses for a moment instead of being tried
 * again at once.
 *
 * Invariant: a socket is shut down only under the lock and while the library has it open, so never
 * after its number was given to another.
 *
 * Thread: any; `admit` and `left` run on the door's thread ("hzp-door").
 */
#pragma once

#include "api/http/wire/settings.h"
#include "base/err.h"

#include <sys/socket.h>

/* ---- port.c: the server's port, taken before anything that needs time.
 *
 * A start may load weights for minutes; it must not find out afterwards that its port is taken. The
 * port is bound alone, so a second server that starts meanwhile is refused it too.  Clients are
 * refused until the socket listens, which the server's start does when it can answer.  Where the
 * launcher of several ranks keeps the socket (mesh/launch/launch.h), the next rank 0 goes on with
 * it: clients that connect meanwhile wait.
 *
 * Thread: main. */

struct hzp_port {
    int fd; /* -1: none, or the HTTP server owns it */
    int port;
    char url[160]; /* under which a client on this machine reaches the server */
    bool relayed;  /* a Unix socket: all clients come through the launcher's relay (journal.c) */
};

/* Binds the settings' address and port.  HZP_EINVAL: the address cannot be understood; HZP_EIO: it
 * is not this machine's, or the port is taken or not permitted. */
int hzp_port_open(const struct hzp_http_settings *settings, struct hzp_port *ret,
                  struct hzp_err_text *reterr);

/* The same with a socket that was bound by such a call in another process, with the same settings;
 * or with a Unix socket behind a relay: url: where that one is reached; NULL: not known. */
void hzp_port_take(const struct hzp_http_settings *settings, int fd, const char *url,
                   struct hzp_port *ret);

/* Lets clients connect; at most `backlog` of them wait to be accepted.  HZP_EIO. */
int hzp_port_listen(struct hzp_port *port, int backlog, struct hzp_err_text *reterr);

void hzp_port_close(struct hzp_port *port); /* if it still owns the socket */

/* ---- the door ---- */

enum { HZP_DOOR_RESERVE = 16 }; /* places beyond the limit */

enum hzp_door_phase {
    HZP_DOOR_HEADER,
    HZP_DOOR_BODY,
    HZP_DOOR_ANSWER,
    HZP_DOOR_IDLE,
    HZP_DOOR_CLOSING, /* shut down; the library has not closed it yet */
};

struct hzp_door_config {
    struct hzp_port *port; /* bound; the door takes over its socket */
    int64_t places;
    int64_t per_address; /* 0: places */
    uint64_t header_ns, receive_ns, idle_ns;
    /* Takes over the socket.  False: it could not, and has closed it. */
    bool (*admit)(void *ctx, int fd, const struct sockaddr *address, socklen_t bytes);
    void *ctx;
};

struct hzp_door;

/* Listens; nothing is accepted before hzp_door_start().  HZP_EIO: the port cannot be listened
 * on. */
int hzp_door_open(const struct hzp_door_config *config, struct hzp_door **ret,
                  struct hzp_err_text *reterr);
int hzp_door_start(struct hzp_door *door, struct hzp_err_text *reterr);
/* Accepts no further connections, ends the thread. */
void hzp_door_shut(struct hzp_door *door);
void hzp_door_destroy(struct hzp_door *door); /* NULL: no effect */

/* The library has begun with, or is about to close, this socket. */
void hzp_door_begun(struct hzp_door *door, int fd);
void hzp_door_ended(struct hzp_door *door, int fd);

/* The connection's phase from now on; in BODY and IDLE every call extends the silence that is
 * allowed. */
void hzp_door_phase(struct hzp_door *door, int fd, enum hzp_door_phase phase);
/* In ANSWER: the answer has something to send, or (false) waits for the engine. */
void hzp_door_sending(struct hzp_door *door, int fd, bool sending);

/* An answer was sent before the request was read whole.  Closing a socket that has unread bytes
 * resets the connection, and a client that still sends would lose the answer.  So what it sends is
 * read and thrown away for a moment, on a copy of the descriptor, after the library's close. */
void hzp_door_linger(struct hzp_door *door, int fd);

/* Calls `left` once when the client closes its side, unless the socket cannot be watched.  `left`
 * may only raise flags, poke and post tasks.  After hzp_door_forget() has returned, it neither runs
 * nor will run. */
void hzp_door_watch(struct hzp_door *door, int fd, void (*left)(void *ctx), void *ctx);
void hzp_door_forget(struct hzp_door *door, int fd);

struct hzp_door_stats {
    int64_t open;                          /* connections now */
    uint64_t accepted, refused, timed_out; /* refused: answered 503 or 429 here */
    uint64_t made_way, descriptors_exhausted;
};
void hzp_door_read_stats(struct hzp_door *door, struct hzp_door_stats *ret);
