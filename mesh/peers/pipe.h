/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/pipe.h - messages between rank 0 and each other rank: what carries control messages
 * (control.h) and those of replicas (api/front/message.h), each by a pipe of its own.
 *
 * Rank 0 listens, the others connect: on one machine to a file in a folder that only this user may
 * enter, or to the loopback interface, else over TCP, encrypted, with one key pair that all ranks
 * have (CURVE).  Its public half is derived from the secret and never sent, so a client without the
 * secret cannot connect.  A message is one frame.  Nothing here waits but hzp_pipe_wait: a peer
 * that does not read gets no more than a bounded number of messages, and send then says HZP_EBUSY.
 *
 * Thread: one, except poke: any.
 */
#pragma once

#include "base/err.h"

struct hzp_pipe;

enum {
    HZP_PIPE_KEY = 41,       /* bytes of a key as text, with the 0 at the end */
    HZP_PIPE_ENDPOINT = 300, /* bytes of an address as text, with the 0 */
    HZP_PIPE_NAME = 16,
    HZP_PIPE_HOST = 46,
};

/* A new secret key.  HZP_EUNSUP: this ZeroMQ has no CURVE. */
int hzp_pipe_make_key(char ret[HZP_PIPE_KEY], struct hzp_err_text *reterr);

/* The secret key that 64 hexadecimal digits are, the value of the variable `name`.  HZP_EINVAL. */
int hzp_pipe_read_key(const char *name, const char *text, char ret[HZP_PIPE_KEY],
                      struct hzp_err_text *reterr);

/* Where rank 0 listens. */
struct hzp_pipe_place {
    char endpoint[HZP_PIPE_ENDPOINT]; /* "ipc://FILE", which is replaced if it is there, or
                                       * "tcp://HOST:PORT", where others reach it: it listens on
                                       * every address, but on 127.0.0.1 or [::1] if HOST is that;
                                       * PORT 0: any free one; "": nowhere */
    char key[HZP_PIPE_KEY];           /* the secret half, of messages over TCP; "": none */
    bool open; /* without a key on a loopback address: every user of this machine may connect */
    /* Messages that a peer may be behind; 0: many.  With a number they go only to who is connected,
     * others' sends are HZP_EBUSY; and a peer that does not answer for seconds counts as gone. */
    int queue;
};

/* Who sent a message, as the listening side knows it. */
struct hzp_pipe_peer {
    char name[HZP_PIPE_NAME];
    size_t size; /* 0: none */
};

/* message_max: longer ones end the connection.  HZP_EINVAL: TCP without a key, where that is not
 * allowed, or a key that is none; HZP_EIO: the place cannot be used. */
int hzp_pipe_listen(const struct hzp_pipe_place *at, size_t message_max, struct hzp_pipe **ret,
                    struct hzp_err_text *reterr);
int hzp_pipe_connect(const struct hzp_pipe_place *at, size_t message_max, struct hzp_pipe **ret,
                     struct hzp_err_text *reterr);
void hzp_pipe_close(struct hzp_pipe *w); /* NULL: no effect; what was sent still leaves */

/* Puts the port on which it listens in the place of that in a TCP address. */
void hzp_pipe_set_port(const struct hzp_pipe *w, char endpoint[HZP_PIPE_ENDPOINT]);

/* peer NULL: on the side that connected.  HZP_EBUSY: it has not read what was sent before; HZP_EIO:
 * it is gone. */
int hzp_pipe_send(struct hzp_pipe *w, const struct hzp_pipe_peer *peer, const void *data,
                  size_t bytes);

/* The next message, which is there until the next call: of *ret_bytes, at least 1.  peer NULL: not
 * wanted.  False: there is none. */
bool hzp_pipe_receive(struct hzp_pipe *w, struct hzp_pipe_peer *peer, const char **ret,
                      size_t *ret_bytes);
/* The IP address that the newest message came from; "": not by TCP. */
void hzp_pipe_host(struct hzp_pipe *w, char ret[HZP_PIPE_HOST]);

/* Returns when a message has come, it was poked, or after so long. */
void hzp_pipe_wait(struct hzp_pipe *w, long milliseconds);
void hzp_pipe_poke(struct hzp_pipe *w); /* any thread */
bool hzp_pipe_loopback(const char *endpoint);

static inline bool hzp_pipe_same(const struct hzp_pipe_peer *a, const struct hzp_pipe_peer *b)
{
    bool same = a->size == b->size;
    for (size_t i = 0; i < a->size && same; i++)
        same = a->name[i] == b->name[i];
    return same;
}
