/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/zmq_link.h - the private struct of links by ZeroMQ, shared by zmq.c (opening,
 * messages, waiting, the interface) and zmq_move.c (transfers).
 *
 * Thread: the link's, except poke: any.
 */
#pragma once

#include "mesh/link/worker.h"

#include <zmq.h>

enum { HZP_ZMQ_HELD = 3, HZP_ZMQ_FOLDER = 100 };

struct hzp_zmq_peer {
    void *socket, *monitor; /* NULL: this rank */
    /* Messages that have arrived and were not used: `count` from `first` on, as a ring. */
    zmq_msg_t held[HZP_ZMQ_HELD];
    char letter[HZP_ZMQ_HELD];
    int first, count;
    bool connected, left, gone; /* left: it said goodbye; gone: the connection is broken */
    int open;                   /* connections; those of strangers, which lack the key, end soon */
    bool blocked;               /* no room for another message; until ZeroMQ says there is */
    /* the transfer in progress: */
    bool told, heard; /* headers */
    const char *out;
    size_t out_bytes; /* left to send, and to receive */
    char *in;
    size_t in_bytes;
};

struct hzp_zmq_link {
    struct hzp_link_worker worker;
    struct hzp_link_zmq config;           /* folder and key: only until connected */
    struct hzp_link_zmq_address *address; /* [ranks], and */
    double wait_s;                        /* for connecting, of links that are split off */
    char folder[HZP_ZMQ_FOLDER];
    char secret_key[HZP_LINK_ZMQ_KEY], public_key[HZP_LINK_ZMQ_KEY];
    void *context;
    int event;                 /* wakes the thread */
    bool runs, said;           /* the thread; goodbye */
    struct hzp_zmq_peer *peer; /* [ranks] */
    const void **piece;        /* [ranks] */
    zmq_pollitem_t *item;      /* [1 + 2 * ranks] */
    size_t chunk;              /* bytes */
    bool sparse;               /* the transfer in progress leaves out blocks of zeros */
};

/* Takes one message of a rank, if there is one and room for it.  False: there is none. */
bool hzp_zmq_receive(struct hzp_zmq_link *link, int rank);
/* Forgets the oldest message. */
void hzp_zmq_drop(struct hzp_zmq_peer *p);
/* Sends a message, if there is room; closes it if not, and returns false. */
bool hzp_zmq_put(struct hzp_zmq_link *link, struct hzp_zmq_peer *p, char letter,
                 zmq_msg_t *message);
bool hzp_zmq_put_header(struct hzp_zmq_link *link, struct hzp_zmq_peer *p, char letter,
                        const struct hzp_link_header *header);
/* Waits for news and takes notice of them.  HZP_EIO: the link has failed or is closed. */
int hzp_zmq_wait(struct hzp_zmq_link *link);

/* zmq_move.c: see struct hzp_link_moves. */
int hzp_zmq_meet(struct hzp_link_worker *worker, const struct hzp_link_group *group,
                 const struct hzp_transfer *t);
int hzp_zmq_gather(struct hzp_link_worker *worker, const struct hzp_link_group *group, char *recv,
                   size_t piece, size_t total);
int hzp_zmq_scatter(struct hzp_link_worker *worker, const struct hzp_link_group *group,
                    const struct hzp_transfer *t, char *dst, size_t piece, size_t total);
int hzp_zmq_broadcast(struct hzp_link_worker *worker, const struct hzp_link_group *group, int root,
                      char *recv, size_t total);
