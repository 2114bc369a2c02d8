/* SPDX-License-Identifier: Apache-2.0 */
/* train/sites/message.h - messages between sites: a header, and behind it blocks, or what an
 * average is made of.  Whatever arrives may be damaged or of another model: hzp_site_read lets
 * nothing through that the rounds (rounds.h) cannot handle.
 *
 *     hello    once a second: what the sender has learned, and the newest round that it knows
 *     begin    the leader begins a round
 *     decline  the sender does not take part in it
 *     piece    blocks of the sender's weights; count 0: it has learned nothing new
 *     commit   what the average is made of; count 0: the round is given up
 *
 * Thread: any; pure.
 */
#pragma once

#include "base/err.h"
#include "train/sites/rule.h"

enum hzp_site_kind {
    HZP_SITE_HELLO = 1,
    HZP_SITE_BEGIN,
    HZP_SITE_DECLINE,
    HZP_SITE_PIECE,
    HZP_SITE_COMMIT,
};

enum {
    HZP_SITE_VERSION = 1,     /* the messages have */
    HZP_SITE_PIECE_MAX = 512, /* blocks of a message */
};

struct hzp_site_header {
    uint32_t magic;
    uint8_t version, kind, coding, from; /* coding: of the round's pieces; from: a site's number */
    uint64_t check;                      /* the message's, with check 0 */
    uint64_t mesh;  /* model, addresses and rule: the same on all sites (hzp_sites_open) */
    uint64_t began; /* differs from that of the site's process before */
    uint64_t id;    /* of the part's agreed average: hzp_site_id; commit: of the new one */
    int64_t round;  /* from 1; hello: the newest that the sender knows, 0: none */
    int64_t number; /* hello: updates; piece: the sender's weight */
    int64_t first;  /* piece: the first block's place in the part; hello: rounds until the sender
                     * counts in full */
    int32_t part;   /* hello: how many parts have news for others */
    int32_t count;  /* of blocks, or entries; hello: 1 while a round is in flight */
};

/* Of a commit: whose values are in the average, their weight, and the sum of the messages'
 * checks. */
struct hzp_site_entry {
    int64_t from, weight;
    uint64_t sum;
};

enum { HZP_SITE_MESSAGE_MAX = sizeof(struct hzp_site_header) + HZP_SITE_PIECE_MAX * 256 };

/* What every message of a mesh agrees with. */
struct hzp_site_limits {
    uint64_t mesh;
    int sites;
    const struct hzp_site_parts *parts;
};

/* Writes the header, with magic, version and check, before the payload, which lies behind its place
 * in `data`; returns the message's bytes, and its check in *ret_check (NULL: not wanted). */
size_t hzp_site_seal(void *data, const struct hzp_site_header *header, uint64_t *ret_check);

/* HZP_EFORMAT: reterr says why it is no message of this mesh. */
int hzp_site_read(const void *data, size_t bytes, const struct hzp_site_limits *limits,
                  struct hzp_site_header *ret, const void **ret_payload,
                  struct hzp_err_text *reterr);

/* The id of an agreed average. */
uint64_t hzp_site_id(const float *agreed, size_t count);
