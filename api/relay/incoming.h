/* SPDX-License-Identifier: Apache-2.0 */
/* api/relay/incoming.h - reads rank 0's answer to a request that was forwarded to it.
 *
 *     status line, header -> body, whose length is given, in chunks, or up to the end
 *
 * A stream of server-sent events comes in groups (api/http/routes/answer.h): events, then control
 * lines that say which tokens they are made of.  Only whole groups become the client's: what is
 * known of a stream is then always the tokens of the events that its client gets, so another rank 0
 * can go on behind them.  Its status and header are told once, so they stay those of the first
 * answer.
 *
 * Bounds: HZP_INCOMING_HEAD_MAX bytes of header; the caller takes from `body` and does not feed
 * more while there is much in it; the journal grows by about 50 bytes a token.
 *
 * Thread: the owner's.
 */
#pragma once

#include "text/chars/textbuf.h"

enum { HZP_INCOMING_HEAD_MAX = 64 << 10 };

enum hzp_incoming_part {
    HZP_INCOMING_HEAD,
    HZP_INCOMING_SIZE,  /* the line with a chunk's size */
    HZP_INCOMING_BODY,  /* a chunk's bytes, or the whole body */
    HZP_INCOMING_AFTER, /* the end of line behind a chunk */
    HZP_INCOMING_LAST,  /* behind the last chunk */
    HZP_INCOMING_WHOLE,
};

/* Zeroed: nothing was read. */
struct hzp_incoming {
    enum hzp_incoming_part part;
    int status;
    bool stream, chunks, sized; /* server-sent events; how its end is found: neither: by the end
                                 * of the connection */
    uint64_t left;              /* bytes of the chunk, or of all */
    struct hzp_textbuf head;    /* status line and header, up to the empty line */
    struct hzp_textbuf line;    /* being read: of a chunk's size */
    struct hzp_textbuf body;    /* for the client */
    /* a stream's: */
    struct hzp_textbuf group;   /* events that have no end of their group yet */
    struct hzp_textbuf lines;   /* their control lines */
    size_t line0;               /* where the last line of `group` begins */
    struct hzp_textbuf journal; /* control lines of all groups that have ended */
    int64_t groups;             /* that have ended */
    bool continued;             /* a stream whose connection was lost: what is no stream, an error,
                                 * is kept in `group`; of its first answer: */
    int told_status;
    struct hzp_textbuf told; /* its `head` */
};

/* Reads further bytes.  HZP_EFORMAT: this is no answer of rank 0; HZP_ENOMEM. */
int hzp_incoming_feed(struct hzp_incoming *reply, const char *data, size_t bytes);

/* The connection has ended.  Whether the answer is whole. */
bool hzp_incoming_end(struct hzp_incoming *reply);

/* What was read of another connection is forgotten, but for the journal and `body`, which go on. */
void hzp_incoming_restart(struct hzp_incoming *reply);

/* What the client is told: the status, and the next header line from *at (0 at first): name and
 * value, not terminated.  False: no more. */
int hzp_incoming_status(const struct hzp_incoming *reply);
bool hzp_incoming_header(const struct hzp_incoming *reply, size_t *at, const char **name,
                         size_t *names, const char **value, size_t *values);

void hzp_incoming_fini(struct hzp_incoming *reply);
