/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/backend.h - the interface of a link's backend: functions behind mesh/link.h.
 *
 * mesh/link/link.c checks arguments, numbers the tickets and keeps the groups' lists, so a backend
 * may assume valid arguments; it knows nothing of links that are narrowed.  A backend marks
 * transfers done in order (hzp_link_done) and reports the first failure (hzp_link_fail); both may
 * be called by any thread.
 *
 * Thread: as mesh/link.h says for the function in front of it.
 */
#pragma once

#include "base/thread.h"
#include "mesh/link.h"

struct hzp_link_group {
    int *rank; /* owned */
    int count, index;
};

struct hzp_link_backend {
    const char *name;

    /* (optional) The group was appended to link->group.  NULL: nothing to do. */
    int (*group)(struct hzp_link *link, int group, struct hzp_err_text *reterr);

    /* (optional) See hzp_link_split; *ret belongs to the same backend.  NULL: not possible. */
    int (*split)(struct hzp_link *link, struct hzp_link **ret, struct hzp_err_text *reterr);

    /* (optional) See hzp_link_register.  NULL: nothing to do. */
    int (*announce)(struct hzp_link *link, void *memory, size_t size, struct hzp_err_text *reterr);

    /* Never waits; stores link->posted.  *transfer is a copy in link->queue that stays until the
     * ticket is done. */
    int (*post)(struct hzp_link *link, hzp_ticket ticket, const struct hzp_transfer *transfer,
                struct hzp_err_text *reterr);

    /* (optional) See hzp_link_enqueue.  NULL: not possible. */
    int (*enqueue)(struct hzp_link *link, const struct hzp_transfer *transfer, void *stream,
                   struct hzp_err_text *reterr);

    /* (optional) Called by poll; NULL: a thread of the backend makes progress. */
    void (*progress)(struct hzp_link *link);

    /* Waits until the ticket may be done, or something else happened; spurious returns are
     * allowed. */
    void (*wait)(struct hzp_link *link, hzp_ticket ticket);

    /* (optional) Ends what is in flight, once the link has failed; called by poll, perhaps more
     * than once, on the link's thread. */
    void (*stop)(struct hzp_link *link);

    /* (optional) The caller's wake was set, NULL too. */
    void (*set_wake)(struct hzp_link *link, void (*wake)(void *ctx), void *ctx);

    /* (optional) Tells the others that the link failed; any thread, of backends that split also
     * under HZP_LOCK_LINK_ALL.  NULL: there are none. */
    void (*abort)(struct hzp_link *link, int rank, const char *why);

    /* (optional) The first rank that has not posted the oldest transfer, or -1; any thread. */
    int (*missing)(struct hzp_link *link);

    void (*close)(struct hzp_link *link); /* frees the link's own struct too */
};

/* The first member of every backend's own struct. */
struct hzp_link {
    const struct hzp_link_backend *backend;
    int rank, ranks;
    struct hzp_link_group group[HZP_LINK_GROUPS_MAX];
    int groups;
    int narrow; /* the group that it is narrowed to; 0: it is not */
    struct hzp_transfer queue[HZP_LINK_TICKETS_MAX]; /* ticket t is at [t % HZP_LINK_TICKETS_MAX] */
    _Atomic(uint64_t) posted, done, wire_bytes;
    hzp_ticket begun[HZP_LINK_BEGUN_MAX]; /* and not ended, oldest first */
    int begun_count;
    uint64_t counted;     /* bytes that the transfer in progress has sent; 0: hzp_transfer_cost */
    struct hzp_lock lock; /* guards wake and the failure's text */
    void (*wake)(void *ctx);
    void *wake_ctx;
    atomic_bool failed;
    int failed_rank;
    bool left; /* see struct hzp_link_state */
    char why[256];
    /* Links of one family fail together. */
    struct hzp_link *root;                       /* the one it was split off; NULL: none */
    struct hzp_link *split[HZP_LINK_SPLITS_MAX]; /* NULL: none, or closed */
    struct hzp_lock all;                         /* guards split and closed */
    struct {
        uint64_t posted, done, wire_bytes;
    } closed; /* links that were split off */
};

/* Fills what all backends share, with group 0.  fini frees it (not the struct). */
void hzp_link_init(struct hzp_link *link, const struct hzp_link_backend *backend, int rank,
                   int ranks);
void hzp_link_fini(struct hzp_link *link);

/* All tickets up to this one are done. */
void hzp_link_done(struct hzp_link *link, hzp_ticket ticket);

/* Calls the caller's wake; any thread. */
void hzp_link_wake(struct hzp_link *link);

/* Records a failure of this link, and of those that fail with it; only the first one counts. */
void hzp_link_fail(struct hzp_link *link, int rank, const char *why);
/* The same; left: the rank has closed its link in good order. */
void hzp_link_fail_as(struct hzp_link *link, int rank, bool left, const char *why);

/* Whether two members posted the same; if not, what differs, in one line that names both ranks. */
bool hzp_transfer_agrees(const struct hzp_transfer *a, int rank_a, const struct hzp_transfer *b,
                         int rank_b, char *why, size_t why_size);

/* The sum of members' pieces in order.  dst = (onto ? dst : 0) + src[0] + src[1] + ...: without
 * onto it begins with src[0].  dst may be one of src. */
void hzp_wire_sum(enum hzp_wire type, void *dst, const void *const *src, int count, size_t elements,
                  bool onto);

/* The library and its version, or why there is none (false); any thread. */
bool hzp_link_mpi_about(char *text, size_t size);
bool hzp_link_zmq_about(char *text, size_t size);
bool hzp_link_nccl_about(char *text, size_t size);
