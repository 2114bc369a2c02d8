/* SPDX-License-Identifier: Apache-2.0 */
/* api/ranks/pipe.h - messages of any size between rank 0 and each other rank of one machine.
 *
 * Rank 0 listens on a file in a folder that only this user may enter; the others connect.  A
 * message is one frame.  Nothing here waits but hzp_pipe_wait: a peer that does not read gets no
 * more than a bounded number of messages, and send then says HZP_EBUSY.
 *
 * Thread: one, except poke: any.
 */
#ifndef HZP_API_RANKS_PIPE_H
#define HZP_API_RANKS_PIPE_H

#include "base/err.h"

struct hzp_pipe;

/* Who sent a message, as the listening side knows it. */
enum { HZP_PIPE_NAME = 16 };
struct hzp_pipe_peer {
    char name[HZP_PIPE_NAME];
    size_t size; /* 0: none */
};

/* file: the path of the socket, replaced if it is there.  message_max: longer ones end the
 * connection.  HZP_EIO; HZP_EUNSUP: built without ZeroMQ. */
int hzp_pipe_listen(const char *file, size_t message_max, struct hzp_pipe **ret,
                    struct hzp_err_text *reterr);
int hzp_pipe_connect(const char *file, size_t message_max, struct hzp_pipe **ret,
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

#endif
