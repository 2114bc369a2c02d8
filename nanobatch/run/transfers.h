/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/transfers.h - the transfers that belong to a chain, in one fixed order.
 *
 * A chain of training outlives steps, and so do the transfers between ranks that its items need or
 * cause.  They are therefore no items of the plan: the list says for each transfer after which
 * items of the chain it is posted, and for items which transfer must be done before they may be
 * offered. So a step never waits for another rank.
 *
 *     after        the transfer is posted when items [0, after) have ended
 *     dependency   items from `item` on may be offered when the transfer is done
 *
 * Invariants: transfers are posted in the order of the list, which is the same on all ranks, and
 * are done in that order.  A transfer that writes what items read, or reads what items write again
 * (a place in a ring), is a dependency of those items; tests/train/test_collectives.c proves it for
 * the lists of the trainer with the plan checker.
 *
 * Thread: engine.
 */
#pragma once

#include "base/timeline.h"
#include "mesh/link.h"

struct hzp_transfers_entry {
    struct hzp_transfer what; /* buffers are borrowed until it is done */
    int32_t after;
    bool behind; /* posted only when all transfers before it in the list are done */
    /* posted only when it says so; asked by every turn.  NULL: it is not asked */
    bool (*ready)(void *ctx);
    /* called on the engine thread just before it is posted; < 0: the trainer fails.  NULL: not
     * called */
    int (*before)(void *ctx, struct hzp_err_text *reterr);
    /* called on the engine thread when it is done, before items behind it are offered; < 0: the
     * trainer fails.  NULL: not called. */
    int (*then)(void *ctx, struct hzp_err_text *reterr);
    void *ctx;
    hzp_ticket ticket;
    uint64_t posted_ns;
};

struct hzp_dependency {
    int32_t item, transfer;
};

struct hzp_transfers {
    struct hzp_transfers_entry *entry;
    struct hzp_dependency *dependency; /* ascending by item */
    int32_t entries, entries_room, dependencies, dependencies_room;
    struct hzp_track *track; /* from post to done, as spans; NULL: not recorded */
    int32_t posted, done;    /* the first transfers are posted, done */
    int32_t passed;          /* the first dependencies whose transfers are done */
};

/* An empty list; fini: all of it must be done. */
void hzp_transfers_init(struct hzp_transfers *t);
void hzp_transfers_fini(struct hzp_transfers *t);
void hzp_transfers_clear(struct hzp_transfers *t); /* all must be done; keeps the memory */

/* A new chain begins, and the items of the one before have all ended: its transfers that are not
 * posted yet no longer wait for items, and its dependencies are gone. */
void hzp_transfers_begin(struct hzp_transfers *t);

/* Appends a transfer; *what is copied.  Returns its index. */
int32_t hzp_transfers_add(struct hzp_transfers *t, const struct hzp_transfer *what, int32_t after);

/* Appends a gather of `bytes` of each member's host memory into all, of the link's group. */
int32_t hzp_transfers_gather(struct hzp_transfers *t, int group, const void *mine, size_t bytes,
                             void *all, uint64_t tag, int32_t after);

/* The newest entry, for setting what is not in the arguments above. */
struct hzp_transfers_entry *hzp_transfers_newest(struct hzp_transfers *t);

/* Items from `item` on depend on the transfer (-1: no effect).  Called in ascending order of
 * items. */
void hzp_transfers_depend(struct hzp_transfers *t, int32_t item, int32_t transfer);

/* Takes notice of transfers that are done and posts what is due, when items [0, ended) have ended.
 * Never waits.  < 0: the link failed, or a `then`. */
int hzp_transfers_turn(struct hzp_transfers *t, struct hzp_link *link, int32_t ended,
                       struct hzp_err_text *reterr);

/* Items [0, limit) may be offered; items: how many the chain has. */
int32_t hzp_transfers_limit(struct hzp_transfers *t, int32_t items);

/* Where a slice that begins at `from` ends at the latest, at most at `to`: where a transfer becomes
 * due, so that it is posted as early as it can be. */
int32_t hzp_transfers_cut(const struct hzp_transfers *t, int32_t from, int32_t to);

static inline bool hzp_transfers_done(const struct hzp_transfers *t)
{
    return t->done == t->entries;
}
