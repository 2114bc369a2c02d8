/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/pipe.h - messages of any size between rank 0 and each other rank.
 *
 * Rank 0 listens, the others connect: on one machine to a file in a folder that only this user may
 * enter, else over TCP, encrypted, with one key pair that all ranks have (CURVE).  Its public half
 * is derived from the secret and never sent, so a client without the secret cannot connect.  A
 * message is one frame.  Nothing here waits but hzp_pipe_wait: a peer that does not read gets no
 * more than a bounded number of messages, and send then says HZP_EBUSY.
 *
 * Thread: one, except poke: any.
 */
#pragma once

#include "mesh/peers/control.h"

struct hzp_pipe;

/* Where rank 0 listens. */
struct hzp_pipe_place {
    char endpoint[HZP_CONTROL_ENDPOINT]; /* "ipc://FILE", which is replaced if it is there, or
                                          * "tcp://HOST:PORT", where others reach it: it
                                          * listens on every address; "": nowhere */
    char key[HZP_CONTROL_KEY];           /* the secret half, of messages over TCP; "": none */
};

/* Who sent a message, as the listening side knows it. */
enum { HZP_PIPE_NAME = 16 };
struct hzp_pipe_peer {
    char name[HZP_PIPE_NAME];
    size_t size; /* 0: none */
};

/* message_max: longer ones end the connection.  HZP_EIO: the place cannot be used. */
int hzp_pipe_listen(const struct hzp_pipe_place *at, size_t message_max, struct hzp_pipe **ret,
                    struct hzp_err_text *reterr);
int hzp_pipe_connect(const struct hzp_pipe_place *at, size_t message_max, struct hzp_pipe **ret,
                     struct hzp_err_text *reterr);
void hzp_pipe_close(struct hzp_pipe *w); /* NULL: no effect; what was sent still leaves */

/* peer NULL: on the side that connected.  HZP_EBUSY: it has not read what was sent before; HZP_EIO:
 * it is gone. */
int hzp_pipe_send(struct hzp_pipe *w, const struct hzp_pipe_peer *peer, const void *data,
                  size_t bytes);

/* The next message, which is there until the next call: of *ret_bytes, at least 1.  peer NULL: not
 * wanted.  False: there is none. */
bool hzp_pipe_receive(struct hzp_pipe *w, struct hzp_pipe_peer *peer, const char **ret,
                      size_t *ret_bytes);

/* Returns when a message has come, it was poked, or after so long. */
void hzp_pipe_wait(struct hzp_pipe *w, long milliseconds);
void hzp_pipe_poke(struct hzp_pipe *w); /* any thread */

static inline bool hzp_pipe_same(const struct hzp_pipe_peer *a, const struct hzp_pipe_peer *b)
{
    bool same = a->size == b->size;
    for (size_t i = 0; i < a->size && same; i++)
        same = a->name[i] == b->name[i];
    return same;
}
