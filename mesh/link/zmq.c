/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/zmq.c - links between processes by ZeroMQ, for jobs without MPI.
 *
 * Two ranks are connected by a pair of DEALER sockets; the lower one listens.  A message is two
 * frames: a letter, and what belongs to it.
 *
 *     T header   this rank has posted a transfer
 *     D bytes    data, at most `chunk` bytes of one stream
 *     B header   goodbye, or the failure of the link
 *
 * A transfer: every member sends each other member a header, and waits for theirs; so at most one
 * header of a rank is ahead of what this rank does.  Then data move by streams, one to and one from
 * each member, in chunks.  What is added up is added in the group's order as soon as a chunk of
 * every member is there.  ZeroMQ's limits on queued messages bound what a fast member may send
 * ahead.  Sent chunks are copied into messages, so no buffer of the caller is in use once the link
 * has failed.
 *
 * Waiting is one zmq_poll over all sockets and an event descriptor, by which other threads wake
 * this one: nothing spins.  A monitor of each socket tells of a broken connection, which fails the
 * link unless a goodbye came first.
 *
 * On TCP both ends use the ranks' CURVE key pair.  A client has to know a server's public key; that
 * one is derived from the secret and never sent, so only these ranks can connect.
 *
 * Thread: all socket calls are made by the caller of open and connect, and from then on by the
 * link's thread.
 */
#include "mesh/link/zmq_link.h"

#include <sys/eventfd.h>
#include <sys/random.h>

enum { ENDPOINT = 200, SENT_AHEAD = 2, RECONNECT_MS = 1000000000 };
enum { BYE_MS = 2000 }; /* how long a closed link goes on sending what was queued */
static const size_t queued_bytes = 16u << 20, chunk_max = 1u << 20;

static const struct hzp_link_backend backend_zmq;

static struct hzp_zmq_link *of(struct hzp_link_worker *worker)
{
    return (struct hzp_zmq_link *)worker;
}

static void poke(struct hzp_zmq_link *link)
{
    uint64_t one = 1;
    ssize_t n = write(link->event, &one, sizeof(one)); /* fails only where it is poked anyway */
    (void)n;
}

/* ---- messages ---- */

void hzp_zmq_drop(struct hzp_zmq_peer *p)
{
    zmq_msg_close(&p->held[p->first]);
    p->first = (p->first + 1) % HZP_ZMQ_HELD;
    p->count--;
}

static void take_bye(struct hzp_zmq_link *link, int rank, zmq_msg_t *message)
{
    struct hzp_link_header bye;
    if (zmq_msg_size(message) != sizeof(bye))
        return;
    memcpy(&bye, zmq_msg_data(message), sizeof(bye));
    bye.why[sizeof(bye.why) - 1] = 0;
    link->peer[rank].left = true;
    if (bye.failed)
        hzp_link_fail_as(&link->worker.base, bye.failed_rank, bye.left, bye.why);
}

bool hzp_zmq_receive(struct hzp_zmq_link *link, int rank)
{
    struct hzp_zmq_peer *p = &link->peer[rank];
    int at = (p->first + p->count) % HZP_ZMQ_HELD;
    char letter = 0;
    if (p->count == HZP_ZMQ_HELD || zmq_recv(p->socket, &letter, 1, ZMQ_DONTWAIT) < 0)
        return false;
    zmq_msg_init(&p->held[at]);
    /* All frames of a message arrive together. */
    int more = 0, n = 0;
    size_t size = sizeof(more);
    while (zmq_getsockopt(p->socket, ZMQ_RCVMORE, &more, &size) == 0 && more) {
        if (zmq_msg_recv(&p->held[at], p->socket, ZMQ_DONTWAIT) < 0)
            break;
        n++;
    }
    if (n == 1 && (letter == 'T' || letter == 'D')) {
        p->letter[at] = letter;
        p->count++;
        return true;
    }
    if (n == 1 && letter == 'B')
        take_bye(link, rank, &p->held[at]);
    else
        hzp_link_fail(&link->worker.base, rank, "sent what no rank sends: another build?");
    zmq_msg_close(&p->held[at]);
    return true;
}

bool hzp_zmq_put(struct hzp_zmq_link *link, struct hzp_zmq_peer *p, char letter, zmq_msg_t *message)
{
    p->blocked = zmq_send(p->socket, &letter, 1, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0;
    if (!p->blocked && zmq_msg_send(message, p->socket, ZMQ_DONTWAIT) >= 0)
        return true;
    if (!p->blocked) /* half a message: there is no other way than a new connection */
        hzp_link_fail(&link->worker.base, (int)(p - link->peer), "takes no more messages");
    zmq_msg_close(message);
    return false;
}

bool hzp_zmq_put_header(struct hzp_zmq_link *link, struct hzp_zmq_peer *p, char letter,
                        const struct hzp_link_header *header)
{
    zmq_msg_t message;
    if (p->blocked || zmq_msg_init_size(&message, sizeof(*header)) != 0)
        return false;
    memcpy(zmq_msg_data(&message), header, sizeof(*header));
    return hzp_zmq_put(link, p, letter, &message);
}

/* ---- waiting ---- */

/* Reads what the monitor of a socket has seen.  It does not say which connection has ended: a
 * stranger's, perhaps, so the rank is gone when none is left. */
static void watch(struct hzp_zmq_link *link, int rank)
{
    struct hzp_zmq_peer *p = &link->peer[rank];
    char frame[ENDPOINT];
    int n;
    while ((n = zmq_recv(p->monitor, frame, sizeof(frame), ZMQ_DONTWAIT)) >= 0) {
        uint16_t event = 0;
        if (n == 6)
            memcpy(&event, frame, sizeof(event));
        zmq_recv(p->monitor, frame, sizeof(frame), ZMQ_DONTWAIT); /* the address */
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
            p->connected = true;
        else if (event == ZMQ_EVENT_ACCEPTED || event == ZMQ_EVENT_CONNECTED)
            p->open++;
        else if (event == ZMQ_EVENT_DISCONNECTED && --p->open == 0 && p->connected)
            p->gone = true;
    }
}

static void look(struct hzp_link_worker *worker)
{
    struct hzp_zmq_link *link = of(worker);
    for (int r = 0; r < worker->base.ranks; r++) {
        struct hzp_zmq_peer *p = &link->peer[r];
        if (!p->socket)
            continue;
        watch(link, r);
        while (hzp_zmq_receive(link, r))
            ;
        if (p->gone && !p->left &&
            p->count < HZP_ZMQ_HELD) /* no goodbye is among what has arrived */
            hzp_link_fail(&worker->base, r, "its connection has ended: it has died");
    }
}

/* Waits at most this long, until something has arrived, there is room for another message where
 * there was none, or another thread has poked. */
static void wait_ms(struct hzp_zmq_link *link, long ms)
{
    int n = 0, ranks = link->worker.base.ranks;
    link->item[n++] = (zmq_pollitem_t){.fd = link->event, .events = ZMQ_POLLIN};
    for (int r = 0; r < ranks; r++) {
        const struct hzp_zmq_peer *p = &link->peer[r];
        short events = (short)((p->count < HZP_ZMQ_HELD ? ZMQ_POLLIN : 0) |
                               (p->blocked && !p->gone ? ZMQ_POLLOUT : 0));
        if (p->socket && events)
            link->item[n++] = (zmq_pollitem_t){.socket = p->socket, .events = events};
        if (p->monitor)
            link->item[n++] = (zmq_pollitem_t){.socket = p->monitor, .events = ZMQ_POLLIN};
    }
    zmq_poll(link->item, n, ms);
    uint64_t pokes;
    if (link->item[0].revents && read(link->event, &pokes, sizeof(pokes)) < 0)
        return;
    for (int i = 1; i < n; i++)
        if (link->item[i].revents & ZMQ_POLLOUT)
            for (int r = 0; r < ranks; r++)
                link->peer[r].blocked &= link->peer[r].socket != link->item[i].socket;
}

int hzp_zmq_wait(struct hzp_zmq_link *link)
{
    wait_ms(link, 1000);
    return hzp_link_worker_goes_on(&link->worker) ? HZP_OK : HZP_EIO;
}

static void rest(struct hzp_link_worker *worker, uint64_t ns)
{
    struct timespec time = {.tv_nsec = (long)ns};
    if (ns < 2000000) /* zmq_poll counts milliseconds */
        nanosleep(&time, NULL);
    else
        wait_ms(of(worker), (long)(ns / 1000000));
}

static const struct hzp_link_moves moves_zmq = {
    look, rest, hzp_zmq_meet, hzp_zmq_gather, hzp_zmq_scatter, hzp_zmq_broadcast};

/* ---- the thread ---- */

/* Tells all others that this end is closed, or why it has failed. */
static void say_bye(struct hzp_zmq_link *link)
{
    struct hzp_link_header bye = hzp_link_header_bye(&link->worker);
    for (int r = 0; r < link->worker.base.ranks; r++)
        if (link->peer[r].socket && !link->peer[r].gone && !link->peer[r].left)
            hzp_zmq_put_header(link, &link->peer[r], 'B', &bye);
    link->said = true;
}

static void *thread_main(void *arg)
{
    hzp_thread_prompt();
    struct hzp_zmq_link *link = arg;
    hzp_link_worker_run(&link->worker);
    if (atomic_load(&link->worker.base.failed))
        say_bye(link);
    while (!atomic_load(&link->worker.closing)) { /* ZeroMQ may still read buffers */
        zmq_pollitem_t item = {.fd = link->event, .events = ZMQ_POLLIN};
        uint64_t pokes;
        if (zmq_poll(&item, 1, -1) > 0 && read(link->event, &pokes, sizeof(pokes)) < 0)
            break;
    }
    if (!link->said)
        say_bye(link);
    return NULL;
}

/* ---- opening ---- */

static int failed_call(const char *what, const char *where, struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EIO, "link zmq: %s%s%s: %s", what, where[0] ? " " : "", where,
                    zmq_strerror(zmq_errno()));
}

static void set_number(void *socket, int option, int value)
{
    int r = zmq_setsockopt(socket, option, &value, sizeof(value));
    HZP_ASSERT(r == 0);
}

static int set_options(struct hzp_zmq_link *link, void *socket, bool server,
                       struct hzp_err_text *reterr)
{
    int64_t largest = (int64_t)link->chunk + 256; /* CURVE adds some bytes */
    set_number(socket, ZMQ_SNDHWM, SENT_AHEAD);
    set_number(socket, ZMQ_RCVHWM, SENT_AHEAD);
    set_number(socket, ZMQ_LINGER, BYE_MS);
    set_number(socket, ZMQ_IPV6, 1);
    set_number(socket, ZMQ_RECONNECT_IVL, RECONNECT_MS); /* never: a broken connection is a loss */
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof(largest));
    if (!link->secret_key[0])
        return HZP_OK;
    int r = zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, link->secret_key, HZP_LINK_ZMQ_KEY);
    if (server) {
        set_number(socket, ZMQ_CURVE_SERVER, 1);
    } else {
        r |= zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, link->public_key, HZP_LINK_ZMQ_KEY);
        r |= zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, link->public_key, HZP_LINK_ZMQ_KEY);
    }
    return r ? failed_call("key", "refused", reterr) : HZP_OK;
}

/* A socket for one other rank, watched. */
static int open_socket(struct hzp_zmq_link *link, int rank, struct hzp_err_text *reterr)
{
    enum {
        EVENTS = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                 ZMQ_EVENT_DISCONNECTED
    };
    struct hzp_zmq_peer *p = &link->peer[rank];
    char name[40];
    snprintf(name, sizeof(name), "inproc://rank-%d", rank);
    p->socket = zmq_socket(link->context, ZMQ_DEALER);
    if (!p->socket)
        return failed_call("no socket", "", reterr);
    HZP_TRY(set_options(link, p->socket, rank > link->worker.base.rank, reterr));
    if (zmq_socket_monitor(p->socket, name, EVENTS) != 0)
        return failed_call("no monitor", "", reterr);
    p->monitor = zmq_socket(link->context, ZMQ_PAIR);
    if (!p->monitor || zmq_connect(p->monitor, name) != 0)
        return failed_call("no monitor", "", reterr);
    return HZP_OK;
}

/* Where the lower of two ranks listens for the higher one, in the folder.  Each link has a number
 * of its own, so that none of before a loss connects to one of after it. */
static void file_name(const struct hzp_zmq_link *link, int low, int high, uint16_t number,
                      char ret[ENDPOINT])
{
    snprintf(ret, ENDPOINT, "ipc://%s/%d-%d-%u", link->folder, low, high, number);
}

/* A number for which there is no file of this rank yet, also of one that was killed. */
static uint16_t free_number(const struct hzp_zmq_link *link)
{
    enum { SCHEME = 6 /* ipc:// */ };
    int me = link->worker.base.rank, ranks = link->worker.base.ranks;
    char endpoint[ENDPOINT];
    uint16_t number;
    do {
        if (getrandom(&number, sizeof(number), 0) != sizeof(number))
            number = (uint16_t)(hzp_now_ns() / 1000);
        file_name(link, me, HZP_MIN(me + 1, ranks - 1), number, endpoint);
    } while (access(endpoint + SCHEME, F_OK) == 0);
    return number;
}

/* The port that a socket was bound to. */
static uint16_t port_of(void *socket)
{
    char bound[ENDPOINT];
    size_t size = sizeof(bound);
    const char *colon = NULL;
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) == 0)
        colon = strrchr(bound, ':');
    return colon ? (uint16_t)atoi(colon + 1) : 0;
}

static int listen_all(struct hzp_zmq_link *link, uint16_t *port, struct hzp_err_text *reterr)
{
    int me = link->worker.base.rank;
    uint16_t number = link->folder[0] ? free_number(link) : 0;
    for (int r = 0; r < link->worker.base.ranks; r++) {
        char endpoint[ENDPOINT] = "tcp://*:*";
        port[r] = number;
        if (r == me)
            continue;
        HZP_TRY(open_socket(link, r, reterr));
        if (r < me)
            continue;
        if (link->folder[0])
            file_name(link, me, r, number, endpoint);
        if (zmq_bind(link->peer[r].socket, endpoint) != 0)
            return failed_call("cannot listen on", endpoint, reterr);
        if (!link->folder[0])
            port[r] = port_of(link->peer[r].socket);
    }
    return HZP_OK;
}

static int start(struct hzp_zmq_link *link, uint16_t *port, struct hzp_err_text *reterr)
{
    const struct hzp_link_zmq *config = &link->config;
    if (config->key) {
        snprintf(link->secret_key, sizeof(link->secret_key), "%s", config->key);
        if (strlen(config->key) != HZP_LINK_ZMQ_KEY - 1 ||
            zmq_curve_public(link->public_key, link->secret_key) != 0)
            return hzp_fail(reterr, HZP_EINVAL,
                            "link zmq: the key is none, or this ZeroMQ has no CURVE");
    }
    if (!config->key && !config->folder)
        return hzp_fail(reterr, HZP_EINVAL, "link zmq: TCP without a key");
    link->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    link->context = zmq_ctx_new();
    if (link->event < 0 || !link->context)
        return hzp_fail(reterr, HZP_ENOMEM, "link zmq: no event descriptor or no context");
    return listen_all(link, port, reterr);
}

/* ---- the interface ---- */

static int zmq_post(struct hzp_link *base, hzp_ticket ticket, const struct hzp_transfer *t,
                    struct hzp_err_text *reterr)
{
    atomic_store(&base->posted, ticket);
    poke((struct hzp_zmq_link *)base);
    return HZP_OK;
}

static void zmq_abort(struct hzp_link *base, int rank, const char *why)
{
    poke((struct hzp_zmq_link *)base); /* the thread tells the others */
}

static void zmq_link_close(struct hzp_link *base)
{
    struct hzp_zmq_link *link = (struct hzp_zmq_link *)base;
    atomic_store(&link->worker.closing, true);
    if (link->runs) {
        poke(link);
        pthread_join(link->worker.thread, NULL);
    }
    for (int r = 0; r < base->ranks; r++) {
        struct hzp_zmq_peer *p = &link->peer[r];
        while (p->count)
            hzp_zmq_drop(p);
        if (p->monitor)
            watch(link, r);
        if (p->socket && (p->gone || p->left || !p->connected)) /* it needs nothing any more */
            set_number(p->socket, ZMQ_LINGER, 0);
        if (p->socket) {
            zmq_socket_monitor(p->socket, NULL, 0);
            zmq_close(p->socket);
        }
        if (p->monitor)
            zmq_close(p->monitor);
    }
    if (link->context)
        zmq_ctx_term(link->context);
    if (link->event >= 0)
        close(link->event);
    hzp_link_worker_fini(&link->worker);
    hzp_link_fini(base);
    free(link->address);
    free(link->peer);
    free(link->piece);
    free(link->item);
    free(link);
}

static int zmq_split(struct hzp_link *base, struct hzp_link **ret, struct hzp_err_text *reterr);

static const struct hzp_link_backend backend_zmq = {
    .name = "zmq",
    .split = zmq_split,
    .post = zmq_post,
    .wait = hzp_link_worker_wait,
    .abort = zmq_abort,
    .missing = hzp_link_worker_missing,
    .close = zmq_link_close,
};

/* first: the link that this one is split off; NULL: none. */
static int open_link(const struct hzp_link_zmq *config, struct hzp_zmq_link *first, uint16_t *port,
                     struct hzp_link **ret, struct hzp_err_text *reterr)
{
    if (config->ranks > HZP_LINK_ZMQ_RANKS_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "link zmq: %d ranks, at most %d; use MPI",
                        config->ranks, HZP_LINK_ZMQ_RANKS_MAX);
    if (config->folder && strlen(config->folder) >= HZP_ZMQ_FOLDER)
        return hzp_fail(reterr, HZP_EINVAL, "link zmq: %s: too long a name", config->folder);
    struct hzp_zmq_link *link = hzp_xcalloc(1, sizeof(*link));
    size_t ranks = (size_t)config->ranks;
    link->config = *config;
    link->event = -1;
    link->chunk = HZP_MIN(HZP_MAX(queued_bytes / ranks / 64 * 64, (size_t)65536), chunk_max);
    if (config->folder)
        snprintf(link->folder, sizeof(link->folder), "%s", config->folder);
    link->address = hzp_xcalloc(ranks, sizeof(*link->address));
    link->peer = hzp_xcalloc(ranks, sizeof(*link->peer));
    link->piece = hzp_xcalloc(ranks, sizeof(*link->piece));
    link->item = hzp_xcalloc(1 + 2 * ranks, sizeof(*link->item));
    hzp_link_worker_init(&link->worker, &moves_zmq, config->rate, config->latency_ns,
                         first ? &first->worker : NULL);
    hzp_link_init(&link->worker.base, &backend_zmq, config->rank, config->ranks);
    int r = start(link, port, reterr);
    link->config.key = link->config.folder = NULL; /* the caller's */
    if (r < 0)
        zmq_link_close(&link->worker.base);
    else
        *ret = &link->worker.base;
    return r;
}

int hzp_link_open_zmq(const struct hzp_link_zmq *config, uint16_t *port, struct hzp_link **ret,
                      struct hzp_err_text *reterr)
{
    return open_link(config, NULL, port, ret, reterr);
}

/* Waits until all ranks are connected. */
static int wait_for_connections(struct hzp_zmq_link *link, double wait_s, bool (*stop)(void *ctx),
                                void *ctx, struct hzp_err_text *reterr)
{
    uint64_t began = hzp_now_ns();
    for (;;) {
        int missing = -1, ranks = link->worker.base.ranks;
        bool goes_on = hzp_link_worker_goes_on(&link->worker);
        for (int r = 0; r < ranks && missing < 0; r++)
            if (link->peer[r].socket && !link->peer[r].connected)
                missing = r;
        if (missing < 0 && goes_on)
            return HZP_OK;
        if (!goes_on) {
            struct hzp_link_state state;
            hzp_link_state(&link->worker.base, &state);
            return hzp_fail(reterr, HZP_EIO, "link zmq: rank %d: %s", state.failed_rank, state.why);
        }
        if ((double)(hzp_now_ns() - began) * 1e-9 > wait_s)
            return hzp_fail(
                reterr, HZP_EIO,
                "link zmq: no connection between ranks %d and %d within %.0f s: can each "
                "reach the other on any TCP port?",
                link->worker.base.rank, missing, wait_s);
        if (stop && stop(ctx))
            return hzp_fail(reterr, HZP_ECANCELED, "link zmq: stopped while connecting");
        wait_ms(link, 100);
    }
}

int hzp_link_connect_zmq(struct hzp_link *base, const struct hzp_link_zmq_address *address,
                         double wait_s, bool (*stop)(void *ctx), void *ctx,
                         struct hzp_err_text *reterr)
{
    struct hzp_zmq_link *link = (struct hzp_zmq_link *)base;
    HZP_ASSERT(!link->runs && address);
    memcpy(link->address, address, sizeof(*address) * (size_t)base->ranks);
    link->wait_s = wait_s;
    for (int r = 0; r < base->rank; r++) {
        char endpoint[ENDPOINT];
        bool v6 = strchr(address[r].host, ':') != NULL;
        if (link->folder[0])
            file_name(link, r, base->rank, address[r].port, endpoint);
        else
            snprintf(endpoint, sizeof(endpoint), v6 ? "tcp://[%s]:%u" : "tcp://%s:%u",
                     address[r].host, address[r].port);
        if (zmq_connect(link->peer[r].socket, endpoint) != 0)
            return failed_call("cannot connect to", endpoint, reterr);
    }
    HZP_TRY(wait_for_connections(link, wait_s, stop, ctx, reterr));
    if (hzp_thread_start(&link->worker.thread, "hzp-link", thread_main, link) < 0)
        return hzp_fail(reterr, HZP_ENOMEM, "cannot start the link's thread");
    link->runs = true;
    return HZP_OK;
}

/* ---- links split off ---- */

static bool has_failed(void *ctx)
{
    return atomic_load(&((struct hzp_link *)ctx)->failed);
}

static int split(struct hzp_zmq_link *link, uint16_t *own, uint16_t *all, struct hzp_link **ret,
                 struct hzp_err_text *reterr)
{
    struct hzp_link *base = &link->worker.base, *second = NULL;
    struct hzp_link_zmq config = link->config;
    config.folder = link->folder[0] ? link->folder : NULL;
    config.key = link->secret_key[0] ? link->secret_key : NULL;
    HZP_TRY(open_link(&config, link, own, &second, reterr));
    HZP_FREED struct hzp_link_zmq_address *address =
        hzp_xcalloc((size_t)base->ranks, sizeof(*address));
    /* The ports at which all ranks listen for all others: at all[r * ranks + s], r for s. */
    int r =
        hzp_link_gather(base, own, sizeof(*own) * (size_t)base->ranks, all, sizeof(*own), reterr);
    for (int rank = 0; rank < base->ranks; rank++) {
        address[rank] = link->address[rank];
        address[rank].port = all[rank * base->ranks + base->rank];
    }
    if (r == HZP_OK)
        r = hzp_link_connect_zmq(second, address, link->wait_s, has_failed, base, reterr);
    if (r == HZP_OK)
        *ret = second;
    else
        hzp_link_close(second);
    return r == HZP_ECANCELED ? HZP_EIO : r;
}

static int zmq_split(struct hzp_link *base, struct hzp_link **ret, struct hzp_err_text *reterr)
{
    size_t ranks = (size_t)base->ranks;
    HZP_FREED uint16_t *ports = hzp_xcalloc(ranks * (ranks + 1), sizeof(*ports));
    return split((struct hzp_zmq_link *)base, ports, ports + ranks, ret, reterr);
}

bool hzp_link_zmq_about(char *text, size_t size)
{
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    snprintf(text, size, "ZeroMQ %d.%d.%d", major, minor, patch);
    return true;
}
