/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/pipe.c - by ZeroMQ: a ROUTER socket on rank 0, a DEALER with a random name on others
 * */
#include "mesh/peers/pipe.h"

#include "base/arena.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

enum { QUEUE = 1024 /* messages that a peer may be behind */ };

struct hzp_pipe {
    void *context, *socket;
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
    if (w->context)
        zmq_ctx_term(w->context);
    if (w->event >= 0)
        close(w->event);
    free(w);
}

/* False: the key is none, or this ZeroMQ has no CURVE. */
static bool set_key(struct hzp_pipe *w, const char *key)
{
    char public_key[HZP_CONTROL_KEY];
    if (!key[0])
        return true;
    if (strlen(key) != HZP_CONTROL_KEY - 1 || zmq_curve_public(public_key, key) != 0)
        return false;
    int r = zmq_setsockopt(w->socket, ZMQ_CURVE_SECRETKEY, key, HZP_CONTROL_KEY);
    if (w->listens) {
        set_number(w->socket, ZMQ_CURVE_SERVER, 1);
    } else {
        r |= zmq_setsockopt(w->socket, ZMQ_CURVE_PUBLICKEY, public_key, HZP_CONTROL_KEY);
        r |= zmq_setsockopt(w->socket, ZMQ_CURVE_SERVERKEY, public_key, HZP_CONTROL_KEY);
    }
    return r == 0;
}

static bool is_tcp(const char *endpoint)
{
    return strncmp(endpoint, "tcp://", 6) == 0;
}

/* Over TCP on every address: the name under which others reach this machine need not be one that it
 * can listen on. */
static int listen_at(struct hzp_pipe *w, const char *endpoint)
{
    char every[HZP_CONTROL_ENDPOINT];
    const char *port = strrchr(endpoint, ':');
    if (!is_tcp(endpoint))
        return zmq_bind(w->socket, endpoint);
    snprintf(every, sizeof(every), "tcp://*%s", port);
    return zmq_bind(w->socket, every);
}

static int open_pipe(const struct hzp_pipe_place *at, size_t message_max, bool listens,
                     struct hzp_pipe **ret, struct hzp_err_text *reterr)
{
    struct hzp_pipe *w = hzp_xcalloc(1, sizeof(*w));
    w->listens = listens;
    w->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    w->context = zmq_ctx_new();
    w->socket = w->context ? zmq_socket(w->context, listens ? ZMQ_ROUTER : ZMQ_DEALER) : NULL;
    bool keyed = w->socket && (at->key[0] || !is_tcp(at->endpoint)) && set_key(w, at->key);
    int r = -1;
    if (keyed && w->event >= 0) {
        int64_t most = (int64_t)message_max;
        zmq_setsockopt(w->socket, ZMQ_MAXMSGSIZE, &most, sizeof(most));
        set_number(w->socket, ZMQ_LINGER, 1000);
        set_number(w->socket, ZMQ_IPV6, 1);
        set_number(w->socket, ZMQ_SNDHWM, QUEUE);
        set_number(w->socket, ZMQ_RCVHWM, QUEUE);
        if (listens)
            set_number(w->socket, ZMQ_ROUTER_MANDATORY, 1);
        r = listens ? listen_at(w, at->endpoint) : zmq_connect(w->socket, at->endpoint);
    }
    if (r == 0) {
        *ret = w;
        return HZP_OK;
    }
    const char *why = !w->socket || keyed ? zmq_strerror(zmq_errno())
                                          : "the key is none, or this ZeroMQ has no CURVE";
    hzp_pipe_close(w);
    return hzp_fail(reterr, HZP_EIO, "messages of replicas: cannot use %s: %s", at->endpoint, why);
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

void hzp_pipe_wait(struct hzp_pipe *w, long milliseconds)
{
    uint64_t count;
    zmq_pollitem_t item[2] = {{.socket = w->socket, .events = ZMQ_POLLIN},
                              {.fd = w->event, .events = ZMQ_POLLIN}};
    if (zmq_poll(item, 2, milliseconds) <= 0 || !item[1].revents)
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
