/* SPDX-License-Identifier: Apache-2.0 */
/* api/relay/relay_state.h - a forwarded request, shared by the I/O threads and "hzp-relay".
 *
 * Lifetime: the exchange and the thread hold a call each; who lets go last frees it, and with it
 * the hold on the exchange's memory.
 */
#pragma once

#include "api/relay/incoming.h"
#include "api/relay/relay.h"

enum {
    HZP_CALL_BODY_MAX =
        256 << 10, /* part of an answer that is held for a client that does not read */
    HZP_CALL_LOSSES_MAX = 6,
};

enum hzp_call_end {
    HZP_CALL_OPEN,
    HZP_CALL_WHOLE, /* all of the answer is there */
    HZP_CALL_GONE,  /* there is no rank 0, and will be none */
    HZP_CALL_LOST,  /* rank 0 was lost, and the request is not sent again */
    HZP_CALL_QUIET, /* rank 0 has not answered in time, but has answered others before */
    HZP_CALL_MUTE,  /* rank 0 has not answered in time, and never before */
};

struct hzp_relay_call {
    struct hzp_relay *relay;
    struct hzp_exchange *x; /* held */
    _Atomic int holds;
    bool repeats;                  /* may be sent again */
    uint64_t answer_by_ns;         /* when the relay answers in rank 0's place; 0: it waits */
    bool named_events;             /* its stream has event names: an error has one, too */
    struct hzp_textbuf head, body; /* the request's; constant */

    _Atomic bool left; /* the client has disconnected, or the exchange has ended */
    bool patient; /* a client that sends no more may still read the answer, which comes soon: */
    _Atomic uint64_t closed_ns; /* since when it sends no more; 0: it may */

    /* only the thread uses what follows */
    struct hzp_relay_call *next, *prev; /* in the thread's list */
    int fd;                             /* -1: not connected */
    struct hzp_textbuf out;             /* what is sent before the body */
    size_t sent;                        /* bytes of out and body */
    _Atomic bool paused;                /* the client does not read: nothing is read from rank 0 */
    int losses;                         /* in a row */
    int64_t groups;                     /* groups of the reply when it was lost last */
    uint64_t lost_ns;                   /* when it was lost last; 0: never */
    uint64_t due_ns;                    /* when it is to be connected again */

    struct hzp_lock lock;
    /* under lock */
    struct hzp_incoming reply;
    size_t given; /* bytes of reply.body that the client has */
    bool begun;   /* the client's answer has begun */
    enum hzp_call_end end;
};

/* Gives a new call to the thread, which holds it. */
void hzp_upstream_add(struct hzp_relay *relay, struct hzp_relay_call *call);
/* Any thread: a call's client has left, or has read much. */
void hzp_upstream_poke(struct hzp_relay *relay);
void hzp_call_release(struct hzp_relay_call *call);
