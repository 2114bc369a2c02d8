/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/pipe.c - by ZeroMQ: a ROUTER socket on rank 0, a DEALER with a random name on others.
 * With a key rank 0 accepts no other (ZAP). */
#include "mesh/peers/pipe.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <zmq.h>

enum { QUEUE = 1024 /* messages that a peer may be behind */ };

struct hzp_pipe {
    void *context, *socket, *zap; /* zap: it listens, with a key */
    uint8_t public_key[32];       /* with a key */
    bool listens;
    int event; /* eventfd: poked */
    zmq_msg_t message;
    bool holds; /* a message */
};

static void set_number(void *socket, int option, int value)
{
    int r = zmq_setsockopt(socket, option, &value, sizeof(value));
    HZP_ASSERT(r == 0);
}

void hzp_pipe_close(struct hzp_pipe *w)
{
    if (!w)
        return;
    if (w->holds)
        zmq_msg_close(&w->message);
    if (w->socket)
        zmq_close(w->socket);
    if (w->zap)
        zmq_close(w->zap);
    if (w->context)
        zmq_ctx_term(w->context);
    if (w->event >= 0)
        close(w->event);
    free(w);
}

int hzp_pipe_make_key(char ret[HZP_PIPE_KEY], struct hzp_err_text *reterr)
{
    char public_key[HZP_PIPE_KEY];
    if (zmq_curve_keypair(public_key, ret) != 0)
        return hzp_fail(reterr, HZP_EUNSUP, "messages between ranks: no key: %s",
                        zmq_strerror(zmq_errno()));
    return HZP_OK;
}

int hzp_pipe_read_key(const char *name, const char *text, char ret[HZP_PIPE_KEY],
                      struct hzp_err_text *reterr)
{
    static const char z85[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                              ".-:+=^!/*?&<>()[]{}@%$#";
    size_t n = strlen(text), hex = strspn(text, "0123456789abcdefABCDEF");
    if (n != 64 || hex != n)
        return hzp_fail_param(reterr, HZP_EINVAL, name,
                              "%s is not 64 hexadecimal digits; `openssl rand -hex 32` makes some",
                              name);
    for (int i = 0; i < 8; i++) { /* four bytes are five digits of Z85 */
        char word[9];
        snprintf(word, sizeof(word), "%.8s", text + (size_t)8 * (size_t)i);
        unsigned long value = strtoul(word, NULL, 16);
        for (int k = 4; k >= 0; k--, value /= 85)
            ret[5 * i + k] = z85[value % 85];
    }
    ret[HZP_PIPE_KEY - 1] = 0;
    return HZP_OK;
}

static int failed(const char *what, const char *where, struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EIO, "messages between ranks: %s %s: %s", what, where,
                    zmq_strerror(zmq_errno()));
}

static int set_key(struct hzp_pipe *w, const char *key, struct hzp_err_text *reterr)
{
    char public_key[HZP_PIPE_KEY];
    if (!key[0])
        return HZP_OK;
    if (strlen(key) != HZP_PIPE_KEY - 1 || zmq_curve_public(public_key, key) != 0 ||
        !zmq_z85_decode(w->public_key, public_key))
        return hzp_fail(reterr, HZP_EINVAL,
                        "messages between ranks: the key is not one that hzpserve made, or this "
                        "ZeroMQ has no CURVE");
    int r = zmq_setsockopt(w->socket, ZMQ_CURVE_SECRETKEY, key, HZP_PIPE_KEY);
    if (w->listens) {
        set_number(w->socket, ZMQ_CURVE_SERVER, 1);
        r |= zmq_setsockopt(w->socket, ZMQ_ZAP_DOMAIN, "hzp", 3);
        w->zap = zmq_socket(w->context, ZMQ_REP);
        if (!w->zap || zmq_bind(w->zap, "inproc://zeromq.zap.01") != 0)
            return failed("cannot", "authenticate", reterr);
        set_number(w->zap, ZMQ_LINGER, 0);
    } else {
        r |= zmq_setsockopt(w->socket, ZMQ_CURVE_PUBLICKEY, public_key, HZP_PIPE_KEY);
        r |= zmq_setsockopt(w->socket, ZMQ_CURVE_SERVERKEY, public_key, HZP_PIPE_KEY);
    }
    return r ? failed("key", "refused", reterr) : HZP_OK;
}

static bool is_tcp(const char *endpoint)
{
    return strncmp(endpoint, "tcp://", 6) == 0;
}

bool hzp_pipe_loopback(const char *endpoint)
{
    return !strncmp(endpoint, "tcp://127.0.0.1:", 16) || !strncmp(endpoint, "tcp://[::1]:", 12);
}

/* Over TCP on every address: the name under which others reach this machine need not be one that it
 * can listen on. */
static int listen_at(struct hzp_pipe *w, const char *endpoint)
{
    char address[HZP_PIPE_ENDPOINT];
    const char *port = strrchr(endpoint, ':');
    if (!is_tcp(endpoint))
        return zmq_bind(w->socket, endpoint);
    int host = hzp_pipe_loopback(endpoint) ? (int)(port - endpoint) : 0;
    snprintf(address, sizeof(address), "%.*s%s", host, endpoint, host ? "" : "tcp://*");
    size_t at = strlen(address);
    snprintf(address + at, sizeof(address) - at, "%s", strcmp(port, ":0") ? port : ":*");
    return zmq_bind(w->socket, address);
}

static int start(struct hzp_pipe *w, const struct hzp_pipe_place *at, size_t message_max,
                 struct hzp_err_text *reterr)
{
    int64_t most = (int64_t)message_max;
    if (!at->key[0] && is_tcp(at->endpoint) && !(at->open && hzp_pipe_loopback(at->endpoint)))
        return hzp_fail(reterr, HZP_EINVAL, "messages between ranks: %s%s there is no key",
                        at->endpoint, at->open ? " is not loopback, and" : ":");
    w->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    w->context = zmq_ctx_new();
    w->socket = w->context ? zmq_socket(w->context, w->listens ? ZMQ_ROUTER : ZMQ_DEALER) : NULL;
    if (!w->socket || w->event < 0)
        return failed("no", "socket", reterr);
    HZP_TRY(set_key(w, at->key, reterr));
    zmq_setsockopt(w->socket, ZMQ_MAXMSGSIZE, &most, sizeof(most));
    set_number(w->socket, ZMQ_LINGER, 1000); /* goodbyes and refusals still leave */
    set_number(w->socket, ZMQ_IPV6, 1);
    set_number(w->socket, ZMQ_SNDHWM, at->queue ? at->queue : QUEUE);
    set_number(w->socket, ZMQ_RCVHWM, at->queue ? at->queue : QUEUE);
    if (at->queue) {
        set_number(w->socket, ZMQ_IMMEDIATE, 1);
        set_number(w->socket, ZMQ_HEARTBEAT_IVL, 3000);
        set_number(w->socket, ZMQ_HEARTBEAT_TIMEOUT, 30000);
        set_number(w->socket, ZMQ_RECONNECT_IVL_MAX, 2000);
    }
    if (w->listens)
        set_number(w->socket, ZMQ_ROUTER_MANDATORY, 1);
    int r = w->listens ? listen_at(w, at->endpoint) : zmq_connect(w->socket, at->endpoint);
    return r ? failed("cannot use", at->endpoint, reterr) : HZP_OK;
}

static int open_pipe(const struct hzp_pipe_place *at, size_t message_max, bool listens,
                     struct hzp_pipe **ret, struct hzp_err_text *reterr)
{
    struct hzp_pipe *w = hzp_xcalloc(1, sizeof(*w));
    w->listens = listens;
    w->event = -1;
    int r = start(w, at, message_max, reterr);
    if (r < 0)
        hzp_pipe_close(w);
    else
        *ret = w;
    return r;
}

void hzp_pipe_set_port(const struct hzp_pipe *w, char endpoint[HZP_PIPE_ENDPOINT])
{
    char bound[HZP_PIPE_ENDPOINT];
    size_t size = sizeof(bound), at = (size_t)(strrchr(endpoint, ':') - endpoint);
    if (is_tcp(endpoint) && zmq_getsockopt(w->socket, ZMQ_LAST_ENDPOINT, bound, &size) == 0)
        snprintf(endpoint + at, HZP_PIPE_ENDPOINT - at, "%s", strrchr(bound, ':'));
}

int hzp_pipe_listen(const struct hzp_pipe_place *at, size_t message_max, struct hzp_pipe **ret,
                    struct hzp_err_text *reterr)
{
    return open_pipe(at, message_max, true, ret, reterr);
}

int hzp_pipe_connect(const struct hzp_pipe_place *at, size_t message_max, struct hzp_pipe **ret,
                     struct hzp_err_text *reterr)
{
    return open_pipe(at, message_max, false, ret, reterr);
}

int hzp_pipe_send(struct hzp_pipe *w, const struct hzp_pipe_peer *peer, const void *data,
                  size_t bytes)
{
    int r = 0;
    if (w->listens)
        r = zmq_send(w->socket, peer->name, peer->size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    if (r >= 0)
        r = zmq_send(w->socket, data, bytes, ZMQ_DONTWAIT);
    if (r >= 0)
        return HZP_OK;
    return zmq_errno() == EAGAIN ? HZP_EBUSY : HZP_EIO;
}

/* Reads a frame into w->message.  False: there is none. */
static bool read_frame(struct hzp_pipe *w)
{
    if (w->holds)
        zmq_msg_close(&w->message);
    zmq_msg_init(&w->message);
    w->holds = zmq_msg_recv(&w->message, w->socket, ZMQ_DONTWAIT) >= 0;
    if (!w->holds)
        zmq_msg_close(&w->message);
    return w->holds;
}

bool hzp_pipe_receive(struct hzp_pipe *w, struct hzp_pipe_peer *peer, const char **ret,
                      size_t *ret_bytes)
{
    struct hzp_pipe_peer from = {.size = 0};
    for (;;) {
        if (!read_frame(w))
            return false;
        if (w->listens) {
            size_t size = zmq_msg_size(&w->message);
            from.size = size <= sizeof(from.name) ? size : 0;
            memcpy(from.name, zmq_msg_data(&w->message), from.size);
            if (!zmq_msg_more(&w->message) || !read_frame(w))
                continue;
        }
        size_t bytes = zmq_msg_size(&w->message);
        bool whole = !zmq_msg_more(&w->message) && bytes > 0;
        if (whole) {
            *ret = zmq_msg_data(&w->message);
            *ret_bytes = bytes;
            if (peer)
                *peer = from;
            return true;
        }
        while (w->holds &&
               zmq_msg_more(&w->message)) /* the message is useless: drops the rest of it, too */
            read_frame(w);
    }
}

void hzp_pipe_host(struct hzp_pipe *w, char ret[HZP_PIPE_HOST])
{
    const char *from = w->holds ? zmq_msg_gets(&w->message, "Peer-Address") : NULL;
    snprintf(ret, HZP_PIPE_HOST, "%s", from ? from : "");
}

/* Answers one question whether a client's key is right (RFC 27). */
static void authenticate(struct hzp_pipe *w)
{
    char frame[7][256];
    int size[7], frames = 0, more = 1;
    size_t more_size = sizeof(more);
    while (more) {
        char spare[256];
        int n = zmq_recv(w->zap, frames < 7 ? frame[frames] : spare, 256, ZMQ_DONTWAIT);
        if (n < 0)
            return;
        if (frames < 7)
            size[frames++] = n;
        zmq_getsockopt(w->zap, ZMQ_RCVMORE, &more, &more_size);
    }
    /* version, request, domain, address, identity, mechanism, key */
    bool right = frames == 7 && size[5] == 5 && !memcmp(frame[5], "CURVE", 5) && size[6] == 32 &&
                 !memcmp(frame[6], w->public_key, 32);
    if (frames < 2)
        size[1] = 0;
    zmq_send(w->zap, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(w->zap, frame[1], (size_t)HZP_MIN(size[1], 255), ZMQ_SNDMORE);
    zmq_send(w->zap, right ? "200" : "400", 3, ZMQ_SNDMORE);
    zmq_send(w->zap, "", 0, ZMQ_SNDMORE);
    zmq_send(w->zap, "", 0, ZMQ_SNDMORE);
    zmq_send(w->zap, "", 0, 0);
}

void hzp_pipe_wait(struct hzp_pipe *w, long milliseconds)
{
    uint64_t count;
    zmq_pollitem_t item[3] = {{.socket = w->socket, .events = ZMQ_POLLIN},
                              {.fd = w->event, .events = ZMQ_POLLIN},
                              {.socket = w->zap, .events = ZMQ_POLLIN}};
    if (zmq_poll(item, w->zap ? 3 : 2, milliseconds) <= 0)
        return;
    if (w->zap && item[2].revents)
        authenticate(w);
    if (!item[1].revents)
        return;
    if (read(w->event, &count, sizeof(count)) < 0)
        return; /* another poke is not there: nothing to take back */
}

void hzp_pipe_poke(struct hzp_pipe *w)
{
    uint64_t one = 1;
    if (write(w->event, &one, sizeof(one)) < 0)
        return; /* it is poked already */
}
