/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/control.c - the control messages, by ZeroMQ: sockets and the meeting.
 *
 * Rank 0 has a ROUTER socket, each other rank a DEALER with a random name, by which rank 0 answers.
 * A message is one frame (control_state.h).
 *
 * With a key all ranks use one CURVE key pair; rank 0 accepts no other (ZAP).
 */
#include "mesh/peers/control_state.h"

#include "base/arena.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

static const char magic[7] = "hzpctl3";
static const uint64_t hello_ns = 250000000; /* from one hello to the next */

/* ---- sockets ---- */

static int socket_failed(const char *what, const char *name, struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EIO, "control messages: %s %s: %s", what, name,
                    zmq_strerror(zmq_errno()));
}

static void set_number(void *socket, int option, int value)
{
    int r = zmq_setsockopt(socket, option, &value, sizeof(value));
    HZP_ASSERT(r == 0);
}

/* Gives the socket this run's key; server: rank 0's. */
static int set_key(struct hzp_control *c, bool server, struct hzp_err_text *reterr)
{
    if (!c->config.key)
        return HZP_OK;
    if (strlen(c->config.key) != HZP_CONTROL_KEY - 1 ||
        zmq_curve_public(c->public_key, c->config.key) != 0 ||
        !zmq_z85_decode(c->public_bytes, c->public_key))
        return hzp_fail(reterr, HZP_EINVAL,
                        "control messages: the key is not one that hzpserve made, or this ZeroMQ "
                        "has no CURVE");
    int r = zmq_setsockopt(c->socket, ZMQ_CURVE_SECRETKEY, c->config.key, HZP_CONTROL_KEY);
    if (server) {
        set_number(c->socket, ZMQ_CURVE_SERVER, 1);
        r |= zmq_setsockopt(c->socket, ZMQ_ZAP_DOMAIN, "hzp", 3);
    } else {
        r |= zmq_setsockopt(c->socket, ZMQ_CURVE_PUBLICKEY, c->public_key, HZP_CONTROL_KEY);
        r |= zmq_setsockopt(c->socket, ZMQ_CURVE_SERVERKEY, c->public_key, HZP_CONTROL_KEY);
    }
    return r ? socket_failed("key", "refused", reterr) : HZP_OK;
}

static struct hzp_control *create(const struct hzp_control_config *config, int type)
{
    struct hzp_control *c = hzp_xcalloc(1, sizeof(*c));
    c->config = *config;
    c->lost_rank = -1;
    c->peer = hzp_xcalloc((size_t)config->ranks, sizeof(*c->peer));
    for (int r = 0; r < config->ranks; r++)
        c->peer[r].beat.missing = -1;
    c->address = hzp_xcalloc((size_t)HZP_MAX(config->rank, 1), sizeof(*c->address));
    hzp_lock_init(&c->lock, HZP_LOCK_CONTROL);
    hzp_wake_init(&c->told_spans);
    hzp_stragglers_init(&c->stragglers, config->ranks);
    c->context = zmq_ctx_new();
    c->socket = c->context ? zmq_socket(c->context, type) : NULL;
    if (c->socket) {
        set_number(c->socket, ZMQ_LINGER, 1000); /* goodbyes and refusals still leave */
        set_number(c->socket, ZMQ_IPV6, 1);
        int64_t largest = HZP_CONTROL_MESSAGE;
        zmq_setsockopt(c->socket, ZMQ_MAXMSGSIZE, &largest, sizeof(largest));
    }
    return c;
}

static void destroy(struct hzp_control *c)
{
    if (c->socket)
        zmq_close(c->socket);
    if (c->zap)
        zmq_close(c->zap);
    if (c->context)
        zmq_ctx_term(c->context);
    hzp_lock_fini(&c->lock);
    for (int r = 0; r < c->config.ranks; r++) {
        free(c->peer[r].text);
        free(c->peer[r].port);
    }
    free(c->address);
    hzp_wake_fini(&c->told_spans);
    hzp_stragglers_fini(&c->stragglers);
    free(c->out);
    free(c->peer);
    free(c);
}

int hzp_control_make_key(char ret[HZP_CONTROL_KEY], struct hzp_err_text *reterr)
{
    char public_key[HZP_CONTROL_KEY];
    if (zmq_curve_keypair(public_key, ret) != 0)
        return hzp_fail(reterr, HZP_EUNSUP, "control messages: no key: %s",
                        zmq_strerror(zmq_errno()));
    return HZP_OK;
}

static int listen_on(struct hzp_control *c, const char *host, int port, const char *name,
                     char endpoint[HZP_CONTROL_ENDPOINT], struct hzp_err_text *reterr)
{
    char address[HZP_CONTROL_ENDPOINT], bound[HZP_CONTROL_ENDPOINT];
    size_t size = sizeof(bound);
    bool file = host[0] == '/';
    bool loopback = file || !strcmp(host, "127.0.0.1") || !strcmp(host, "[::1]");
    if (!loopback && !c->config.key)
        return hzp_fail(reterr, HZP_EINVAL,
                        "control messages: %s is not loopback, and there is no key", host);
    if (!c->socket)
        return socket_failed("no", "socket", reterr);
    HZP_TRY(set_key(c, true, reterr));
    if (c->config.key) {
        c->zap = zmq_socket(c->context, ZMQ_REP);
        if (!c->zap || zmq_bind(c->zap, "inproc://zeromq.zap.01") != 0)
            return socket_failed("cannot authenticate on", host, reterr);
        set_number(c->zap, ZMQ_LINGER, 0);
    }
    if (file)
        snprintf(address, sizeof(address), "ipc://%.250s", host);
    else
        snprintf(address, sizeof(address), port ? "tcp://%.250s:%d" : "tcp://%.250s:*", host, port);
    if (zmq_bind(c->socket, address) != 0)
        return socket_failed("cannot listen on", address, reterr);
    if (zmq_getsockopt(c->socket, ZMQ_LAST_ENDPOINT, bound, &size) != 0)
        return socket_failed("no address of", address, reterr);
    const char *colon = strrchr(bound, ':');
    if (file)
        snprintf(endpoint, HZP_CONTROL_ENDPOINT, "%s", address);
    else
        snprintf(endpoint, HZP_CONTROL_ENDPOINT, "tcp://%.250s%s", name, colon ? colon : "");
    return HZP_OK;
}

int hzp_control_listen(const struct hzp_control_config *config, const char *host, int port,
                       const char *name, char endpoint[HZP_CONTROL_ENDPOINT],
                       struct hzp_control **ret, struct hzp_err_text *reterr)
{
    struct hzp_control *c = create(config, ZMQ_ROUTER);
    int r = listen_on(c, host, port, name, endpoint, reterr);
    c->config.key = NULL; /* the caller's; not needed any more */
    if (r < 0)
        destroy(c);
    else
        *ret = c;
    return r;
}

static int connect_to(struct hzp_control *c, const char *endpoint, struct hzp_err_text *reterr)
{
    if (!c->socket)
        return socket_failed("no", "socket", reterr);
    HZP_TRY(set_key(c, false, reterr));
    if (zmq_connect(c->socket, endpoint) != 0)
        return socket_failed("cannot connect to", endpoint, reterr);
    return HZP_OK;
}

int hzp_control_connect(const struct hzp_control_config *config, const char *endpoint,
                        struct hzp_control **ret, struct hzp_err_text *reterr)
{
    struct hzp_control *c = create(config, ZMQ_DEALER);
    int r = connect_to(c, endpoint, reterr);
    c->config.key = NULL; /* the caller's; not needed any more */
    if (r < 0)
        destroy(c);
    else
        *ret = c;
    return r;
}

int hzp_control_send(struct hzp_control *c, int rank, const void *data, size_t size)
{
    const struct hzp_peer *p = &c->peer[rank];
    if (c->config.rank == 0) {
        if (!p->name_size ||
            zmq_send(c->socket, p->name, p->name_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
            return HZP_EBUSY;
    }
    return zmq_send(c->socket, data, size, ZMQ_DONTWAIT) < 0 ? HZP_EBUSY : HZP_OK;
}

void hzp_control_send_all(struct hzp_control *c, const void *data, size_t size)
{
    if (c->config.rank)
        hzp_control_send(c, 0, data, size);
    else
        for (int r = 1; r < c->config.ranks; r++)
            hzp_control_send(c, r, data, size);
}

int hzp_control_receive(struct hzp_control *c, void *data, size_t max, char name[HZP_CONTROL_NAME],
                        size_t *name_size)
{
    int n = 0, frames = 0, more = 1;
    *name_size = 0;
    while (more) {
        bool is_name = c->config.rank == 0 && frames == 0;
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, c->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&frame);
            return -1;
        }
        size_t size = zmq_msg_size(&frame);
        const char *from = zmq_msg_gets(&frame, "Peer-Address"); /* NULL: not by TCP */
        bool fits = size && size <= (is_name ? HZP_CONTROL_NAME : max);
        if (fits)
            memcpy(is_name ? name : data, zmq_msg_data(&frame), size);
        if (is_name)
            *name_size = fits ? size : 0;
        else
            n = fits ? (int)size : 0;
        snprintf(c->from, sizeof(c->from), "%s", from ? from : "");
        more = zmq_msg_more(&frame);
        frames++;
        zmq_msg_close(&frame);
    }
    return frames == (c->config.rank ? 1 : 2) ? n : 0;
}

/* Answers one question whether a client's key is right (RFC 27). */
static void authenticate(struct hzp_control *c)
{
    char frame[7][256];
    int size[7], frames = 0, more = 1;
    size_t more_size = sizeof(more);
    while (more) {
        char spare[256];
        int n = zmq_recv(c->zap, frames < 7 ? frame[frames] : spare, 256, ZMQ_DONTWAIT);
        if (n < 0)
            return;
        if (frames < 7)
            size[frames++] = n;
        zmq_getsockopt(c->zap, ZMQ_RCVMORE, &more, &more_size);
    }
    /* version, request, domain, address, identity, mechanism, key */
    bool right = frames == 7 && size[5] == 5 && !memcmp(frame[5], "CURVE", 5) && size[6] == 32 &&
                 !memcmp(frame[6], c->public_bytes, 32);
    if (frames < 2)
        size[1] = 0;
    zmq_send(c->zap, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(c->zap, frame[1], (size_t)HZP_MIN(size[1], 255), ZMQ_SNDMORE);
    zmq_send(c->zap, right ? "200" : "400", 3, ZMQ_SNDMORE);
    zmq_send(c->zap, "", 0, ZMQ_SNDMORE);
    zmq_send(c->zap, "", 0, ZMQ_SNDMORE);
    zmq_send(c->zap, "", 0, 0);
}

void hzp_control_poll(struct hzp_control *c, long milliseconds)
{
    zmq_pollitem_t item[2] = {{.socket = c->socket, .events = ZMQ_POLLIN},
                              {.socket = c->zap, .events = ZMQ_POLLIN}};
    if (zmq_poll(item, c->zap ? 2 : 1, milliseconds) > 0 && c->zap && item[1].revents)
        authenticate(c);
}

/* ---- the meeting ---- */

/* Compares two records, and writes the first line in which they differ.  True: none. */
static bool same_record(const char *first, const char *other, int rank, char *why, size_t size)
{
    while (*first || *other) {
        size_t a = strcspn(first, "\n"), b = strcspn(other, "\n");
        if (a != b || memcmp(first, other, a)) {
            const char *none = "nothing more";
            snprintf(why, size, "the ranks do not agree: rank %d has %.*s, rank 0 has %.*s", rank,
                     b ? (int)HZP_MIN(b, (size_t)90) : 12, b ? other : none,
                     a ? (int)HZP_MIN(a, (size_t)90) : 12, a ? first : none);
            return false;
        }
        first += a + (first[a] != 0);
        other += b + (other[b] != 0);
    }
    return true;
}

/* Rank 0: judges one hello; why is set if it cannot be accepted.  Returns the rank, -1 if it is
 * none that this run has. */
static int judge(struct hzp_control *c, const struct hzp_control_hello *h, const char *record,
                 char *why, size_t size)
{
    if (h->ranks != c->config.ranks)
        snprintf(why, size, "rank %d was started as one of %d ranks, rank 0 as one of %d", h->rank,
                 h->ranks, c->config.ranks);
    else if (h->rank <= 0 || h->rank >= c->config.ranks)
        snprintf(why, size, "a second rank %d came to a run of %d ranks", h->rank, c->config.ranks);
    else if (c->peer[h->rank].name_size && !c->config.again && !h->again)
        snprintf(why, size, "rank %d came twice", h->rank);
    else {
        same_record(record, h->record, h->rank, why, size);
        return h->rank;
    }
    return -1;
}

void hzp_control_refuse(struct hzp_control *c, const char *name, size_t name_size, const char *why)
{
    char message[HZP_CONTROL_TEXT + 1];
    int n = snprintf(message, sizeof(message), "X%s", why);
    if (zmq_send(c->socket, name, name_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0)
        zmq_send(c->socket, message, (size_t)HZP_MIN(n, HZP_CONTROL_TEXT), ZMQ_DONTWAIT);
}

/* "ranks 1 and 3 of 4" */
static void absent(struct hzp_control *c, char *text, size_t size)
{
    size_t n = 0;
    *text = 0;
    for (int r = 1; r < c->config.ranks && n + 32 < size; r++)
        if (!c->peer[r].name_size)
            n += (size_t)snprintf(text + n, size - n, "%s%d", n ? "," : "", r);
}

/* Whether this socket is known: a rank says hello again and again until it is welcome. */
static bool said_hello(const struct hzp_control *c, const char *name, size_t name_size)
{
    for (int r = 1; r < c->config.ranks; r++)
        if (c->peer[r].name_size == name_size && !memcmp(c->peer[r].name, name, name_size))
            return true;
    return false;
}

static void note_hello(struct hzp_peer *p, const struct hzp_control *c, const char *name,
                       size_t name_size)
{
    memcpy(p->name, name, name_size);
    p->name_size = name_size;
    memcpy(p->host, c->from, sizeof(p->host));
    free(p->port);
    p->port = hzp_xmalloc(sizeof(c->hello.port));
    memcpy(p->port, c->hello.port, sizeof(c->hello.port));
}

/* Takes in a process that says hello.  Returns 1 if its rank was missing.  why: set where the
 * meeting fails, because a rank cannot be accepted. */
static int take_hello(struct hzp_control *c, const char *name, size_t name_size, const char *record,
                      char why[HZP_CONTROL_TEXT])
{
    static const char replaced[] = "another process has come as this rank";
    int rank = judge(c, &c->hello, record, why, HZP_CONTROL_TEXT);
    if (rank < 0 || (c->config.again && why[0])) {
        hzp_control_refuse(c, name, name_size, why);
        if (c->config.again) /* the others have done nothing wrong */
            hzp_log(HZP_LOG_ERROR, "ranks", "refused rank=%d: %s", c->hello.rank, why);
        if (c->config.again)
            why[0] = 0;
        return 0;
    }
    struct hzp_peer *p = &c->peer[rank];
    bool missing = !p->name_size;
    if (!missing)
        hzp_control_refuse(c, p->name, p->name_size, replaced);
    note_hello(p, c, name, name_size);
    return missing;
}

/* Says why to all that are here. */
static void refuse_all(struct hzp_control *c, const char *why)
{
    for (int r = 1; r < c->config.ranks; r++)
        if (c->peer[r].name_size)
            hzp_control_refuse(c, c->peer[r].name, c->peer[r].name_size, why);
}

static bool stopped(const struct hzp_control *c)
{
    return c->config.stop && c->config.stop(c->config.ctx);
}

/* Waits for all hellos.  A rank that cannot be accepted ends the wait at once, unless the ranks
 * meet again. */
static int gather_hellos(struct hzp_control *c, const char *record, struct hzp_err_text *reterr)
{
    uint64_t began = hzp_now_ns(), said = began;
    char name[HZP_CONTROL_NAME], why[HZP_CONTROL_TEXT] = "", text[HZP_CONTROL_TEXT];
    size_t name_size;
    for (int here = 1; here < c->config.ranks && !why[0];) {
        hzp_control_poll(c, 100);
        int n = hzp_control_receive(c, &c->hello, sizeof(c->hello), name, &name_size);
        uint64_t now = hzp_now_ns();
        if (n < 0 && (double)(now - began) * 1e-9 > c->config.meet_s) {
            absent(c, text, sizeof(text));
            return hzp_fail(reterr, HZP_EIO, "of %d ranks these did not connect within %.0f s: %s",
                            c->config.ranks, c->config.meet_s, text);
        }
        if (stopped(c)) {
            hzp_control_send_all(c, "G", 1);
            return hzp_fail(reterr, HZP_ECANCELED, "stopped while waiting for other ranks");
        }
        if (n < 0 && now - said > 10000000000u) {
            said = now;
            absent(c, text, sizeof(text));
            hzp_log(HZP_LOG_INFO, "ranks", "waiting ranks=%s", text);
        }
        if (n <= (int)offsetof(struct hzp_control_hello, record) || c->hello.letter != 'H' ||
            !name_size || memcmp(c->hello.magic, magic, sizeof(magic)))
            continue; /* not of this program */
        ((char *)&c->hello)[n - 1] = 0;
        if (said_hello(c, name, name_size))
            continue;
        here += take_hello(c, name, name_size, record, why);
    }
    if (!why[0])
        return HZP_OK;
    refuse_all(c, why);
    return hzp_fail(reterr, HZP_EINVAL, "%s", why);
}

/* Rank 0: tells a rank that all agree, and where the ranks before it listen.  It knows the address
 * of rank 0 itself. */
static void welcome(struct hzp_control *c, int rank, const void *share, size_t size)
{
    char *message = c->message;
    size_t n = 1 + size, one = sizeof(struct hzp_link_zmq_address);
    bool ports = c->config.ranks <= HZP_LINK_ZMQ_RANKS_MAX;
    message[0] = 'W';
    if (size)
        memcpy(message + 1, share, size);
    for (int r = 0; ports && r < rank; r++, n += one) {
        struct hzp_link_zmq_address address = {.port = r ? c->peer[r].port[rank] : c->port[rank]};
        memcpy(address.host, c->peer[r].host, sizeof(address.host));
        memcpy(message + n, &address, one);
    }
    hzp_control_send(c, rank, message, n);
}

static int meet_first(struct hzp_control *c, const char *record, const void *share, size_t size,
                      struct hzp_err_text *reterr)
{
    HZP_TRY(gather_hellos(c, record, reterr));
    for (int r = 1; r < c->config.ranks; r++)
        welcome(c, r, share, size);
    return HZP_OK;
}

static void say_hello(struct hzp_control *c, const char *record)
{
    size_t length = strlen(record);
    c->hello = (struct hzp_control_hello){
        .letter = 'H', .rank = c->config.rank, .ranks = c->config.ranks, .again = c->config.again};
    memcpy(c->hello.magic, magic, sizeof(magic));
    memcpy(c->hello.port, c->port, sizeof(c->port));
    memcpy(c->hello.record, record, length + 1);
    zmq_send(c->socket, &c->hello, offsetof(struct hzp_control_hello, record) + length + 1,
             ZMQ_DONTWAIT);
}

/* Takes the welcome's contents.  False: it is none. */
static bool take_welcome(struct hzp_control *c, size_t bytes, void *share, size_t size)
{
    const char *message = c->message;
    bool ports = c->config.ranks <= HZP_LINK_ZMQ_RANKS_MAX;
    size_t addresses = ports ? (size_t)c->config.rank * sizeof(*c->address) : 0;
    if (message[0] != 'W' || bytes != 1 + size + addresses)
        return false;
    if (size)
        memcpy(share, message + 1, size);
    if (addresses)
        memcpy(c->address, message + 1 + size, addresses);
    for (int r = 0; r < c->config.rank; r++)
        c->address[r].host[HZP_LINK_ZMQ_HOST - 1] = 0;
    memcpy(c->address[0].host, c->from, sizeof(c->from));
    return true;
}

static int meet_other(struct hzp_control *c, const char *record, void *share, size_t size,
                      struct hzp_err_text *reterr)
{
    char none[HZP_CONTROL_NAME];
    size_t none_size;
    uint64_t began = hzp_now_ns(), said = 0;
    for (;;) {
        if (hzp_now_ns() - said > hello_ns) { /* rank 0 may be another one by now */
            say_hello(c, record);
            said = hzp_now_ns();
        }
        hzp_control_poll(c, 100);
        int n = hzp_control_receive(c, c->message, sizeof(c->message) - 1, none, &none_size);
        if (n < 0 && (double)(hzp_now_ns() - began) * 1e-9 > c->config.meet_s)
            return hzp_fail(reterr, HZP_EIO, "rank 0 did not answer within %.0f s",
                            c->config.meet_s);
        if (stopped(c))
            return hzp_fail(reterr, HZP_ECANCELED, "stopped while waiting for rank 0");
        if (n <= 0)
            continue;
        c->message[n] = 0;
        if (c->message[0] == 'X')
            return hzp_fail(reterr, HZP_EINVAL, "%s", c->message + 1);
        if (c->message[0] == 'G' && n == 1)
            return hzp_fail(reterr, HZP_ECANCELED, "rank 0 has ended");
        if (take_welcome(c, (size_t)n, share, size))
            return HZP_OK;
    }
}

/* ---- the interface ---- */

void hzp_control_offer_ports(struct hzp_control *c, const uint16_t *port)
{
    HZP_ASSERT(!c->runs && c->config.ranks <= HZP_LINK_ZMQ_RANKS_MAX);
    memcpy(c->port, port, sizeof(*port) * (size_t)c->config.ranks);
}

const struct hzp_link_zmq_address *hzp_control_addresses(const struct hzp_control *c)
{
    return c->address;
}

int hzp_control_meet(struct hzp_control *c, const char *record, void *share, size_t size,
                     struct hzp_link *link, struct hzp_err_text *reterr)
{
    HZP_ASSERT(strlen(record) < HZP_CONTROL_RECORD && size <= HZP_CONTROL_SHARE && !c->runs);
    HZP_TRY(c->config.rank ? meet_other(c, record, share, size, reterr)
                           : meet_first(c, record, share, size, reterr));
    uint64_t now = hzp_now_ns();
    for (int r = 0; r < c->config.ranks; r++)
        c->peer[r].heard_ns = c->peer[r].waits_ns = now;
    c->turn_ns = now;
    c->link = link;
    if (hzp_thread_start(&c->thread, "hzp-control", hzp_control_thread, c) < 0)
        return hzp_fail(reterr, HZP_ENOMEM, "cannot start the thread for control messages");
    c->runs = true;
    return HZP_OK;
}

void hzp_control_state(struct hzp_control *c, int rank, struct hzp_control_state *ret)
{
    HZP_ASSERT(rank >= 0 && rank < c->config.ranks);
    uint64_t now = hzp_now_ns();
    bool self = rank == c->config.rank;
    char why[HZP_CONTROL_TEXT];
    bool lost = hzp_control_lost(c, why, sizeof(why)) == rank;
    hzp_lock_take(&c->lock);
    const struct hzp_peer *p = &c->peer[rank];
    *ret = (struct hzp_control_state){
        .known = self || rank == 0 || c->config.rank == 0,
        .lost = p->lost || lost,
        .left = p->left,
        .silent_s = self || now < p->heard_ns ? 0 : (double)(now - p->heard_ns) * 1e-9,
        .posted = p->beat.posted,
        .done = p->beat.done,
        .ahead_s = (double)p->beat.ahead_ns * 1e-9,
        .doing_s = p->beat.doing_s,
        .slow = c->stragglers.slow[rank].times,
        .slow_at = c->stragglers.slow[rank].meter,
        .missing = p->beat.missing,
        .waits_s =
            p->beat.missing < 0 || now < p->waits_ns ? 0 : (double)(now - p->waits_ns) * 1e-9,
    };
    hzp_lock_release(&c->lock);
}

int hzp_control_lost(struct hzp_control *c, char *why, size_t size)
{
    hzp_lock_take(&c->lock);
    int rank = c->lost_rank;
    snprintf(why, size, "%s", c->why);
    hzp_lock_release(&c->lock);
    if (rank >= 0 || !c->link)
        return rank;
    struct hzp_link_state state; /* the thread takes notice of it a moment later */
    hzp_link_state(c->link, &state);
    snprintf(why, size, "%s", state.failed ? state.why : "");
    return state.failed ? state.failed_rank : -1;
}

void hzp_control_close(struct hzp_control *c)
{
    if (!c)
        return;
    atomic_store(&c->closing, true);
    if (c->runs)
        pthread_join(c->thread, NULL);
    destroy(c);
}
