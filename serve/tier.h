/* SPDX-License-Identifier: Apache-2.0 */
/* serve/tier.h - where pages of the prefix cache go that fall out of it: host memory (where that
 * is not the device's own), then a file, each of a fixed size; the page used longest ago goes on to
 * the next, or is forgotten.
 *
 * A page is found by the page before it and its tokens, which are compared.  `id` names a page's
 * contents for ever: rows of the same tokens behind the same rows, all computed by known versions.
 *
 * All copying is done by a thread of its own, one job after the other in the order in which they
 * were posted.  So an entry can be looked for as soon as its job is posted: a read of it comes
 * later.  The engine thread never waits: a full list of jobs refuses.  Contents have a checksum; a
 * page that does not have it when it is read is forgotten, and its rows are computed.
 *
 * The file has no name: it is gone with the process, as the versions' numbers may be others then.
 *
 * Invariants:
 * - A page of the pool is neither written to nor given out from the post of a job until it is taken
 *   over (hzp_tier_done); the caller sees to that.
 * - Bytes used are at most those configured; jobs posted at most HZP_TIER_JOBS.
 *
 * Thread: engine; the wake is called by the tier's thread.
 */
#pragma once

#include "serve/kvpool.h"

struct hzp_tier;

enum { HZP_TIER_JOBS = 32 };

struct hzp_tier_config {
    struct hzp_kvpool *pool;
    size_t host_bytes, file_bytes; /* 0: no such tier */
    const char *dir;               /* where the file is made; with file_bytes */
    bool threadless;               /* no thread: hzp_tier_work() does the work (tests) */
    void (*wake)(void *ctx);       /* a job has been done; NULL: none */
    void *wake_ctx;
};

/* HZP_ENOMEM; HZP_EIO, HZP_EINVAL: the file cannot be made, or a size does not hold one page. */
int hzp_tier_create(const struct hzp_tier_config *config, struct hzp_tier **ret,
                    struct hzp_err_text *reterr);
/* Ends the thread, before what wakes up, or the pool, is closed.  Jobs that are not done never will
 * be: their pages are the caller's.  NULL: no effect. */
void hzp_tier_stop(struct hzp_tier *tier);
void hzp_tier_destroy(struct hzp_tier *tier); /* NULL: no effect */
void hzp_tier_set_wake(struct hzp_tier *tier, void (*wake)(void *ctx), void *ctx);

struct hzp_tier_page {
    uint64_t id, before;  /* the page's, and the one's before it (0: it is the first) */
    uint64_t hash;        /* over all tokens up to its end */
    uint64_t oldest;      /* version that computed any of its rows, or of those before */
    const int32_t *token; /* [page_rows] */
};

/* Posts that `page` is copied here.  False: not now.  If it is here already, or a page with the
 * same key whose rows are of newer versions: true, *ret_posted false. */
bool hzp_tier_put(struct hzp_tier *tier, const struct hzp_tier_page *what, int32_t page,
                  bool *ret_posted);

/* The entry with this key (its id is not compared) of no version older than what->oldest; -1: there
 * is none.  *ret_id, *ret_oldest: its own. */
int32_t hzp_tier_find(const struct hzp_tier *tier, const struct hzp_tier_page *what,
                      uint64_t *ret_id, uint64_t *ret_oldest);
/* Posts that the entry is copied to `page`.  False: not now. */
bool hzp_tier_get(struct hzp_tier *tier, int32_t entry, int32_t page);
/* How many more jobs can be posted. */
int32_t hzp_tier_room(const struct hzp_tier *tier);
/* How long reading this entry takes once its turn has come, in nanoseconds; 0: not measured yet. */
double hzp_tier_read_ns(const struct hzp_tier *tier, int32_t entry);

/* Takes over a job that is done.  False: there is none. */
struct hzp_tier_done {
    int32_t page;
    bool read, ok; /* read: by hzp_tier_get; not ok: the page was not copied */
};
bool hzp_tier_done(struct hzp_tier *tier, struct hzp_tier_done *ret);

/* Forgets all entries of versions older than this one. */
void hzp_tier_forget(struct hzp_tier *tier, uint64_t oldest);

/* threadless: does one job.  False: there is none. */
bool hzp_tier_work(struct hzp_tier *tier);

struct hzp_tier_stats {
    int32_t pages; /* here now */
    uint64_t written, read, failed;
};
void hzp_tier_read_stats(const struct hzp_tier *tier, struct hzp_tier_stats *ret);
