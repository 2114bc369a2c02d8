/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/worker.h - what the links between processes (mpi, zmq) share: a thread that runs the
 * transfers one after another, the headers by which members compare what they posted, and the
 * throttle.
 *
 * Throttled: a transfer is done no earlier than a wire of the given rate and latency would be, one
 * transfer after another.  The bytes are those of hzp_transfer_bytes, or, where zeros are left out,
 * those that were sent.  A link that was split off another shares its wire.
 *
 * Thread: the link's own, except where a function says otherwise.
 */
#pragma once

#include "base/timeline.h"
#include "mesh/link.h"
#include "mesh/link/backend.h"

/* ---- sparse.c: F32 data that are mostly zeros, as links between processes send them: a bitmap
 * with a bit for each block of HZP_LINK_BLOCK bytes (the last may be shorter), then
 * the blocks that hold something else than zeros.
 *
 * Invariant: adding what was packed to a sum gives what adding the data themselves does, but that a
 * sum of -0 may stay -0.
 *
 * Thread: any. */

/* Bytes of so many bytes of data, packed, at most; a multiple of 4. */
size_t hzp_sparse_room(size_t bytes);

/* How many of them can be packed into `room` bytes whatever they hold: whole blocks. */
size_t hzp_sparse_fits(size_t room);

/* What hzp_sparse_pack returns of the same data. */
size_t hzp_sparse_size(const void *from, size_t bytes);

/* Packs `bytes` (a multiple of 4) of data; to: 4-byte aligned, hzp_sparse_room(bytes).  Returns how
 * many bytes it has written. */
size_t hzp_sparse_pack(const void *from, size_t bytes, void *to);

/* sum[0 .. bytes / 4) += what was packed of as many bytes; packed: 4-byte aligned.  False: `size`
 * bytes are not that, and sum may have changed. */
bool hzp_sparse_add(float *sum, size_t bytes, const void *packed, size_t size);

/* ---- the worker ---- */

struct hzp_link_worker;

struct hzp_link_moves {
    /* Takes notice of what other ranks say (a failure, a goodbye); never waits. */
    void (*look)(struct hzp_link_worker *w);
    /* Waits at most this long; returns early when something was posted or the link is closed. */
    void (*rest)(struct hzp_link_worker *w, uint64_t ns);
    /* Waits until all members have posted the transfer, and compares; < 0: the link has failed. */
    int (*meet)(struct hzp_link_worker *w, const struct hzp_link_group *group,
                const struct hzp_transfer *t);
    /* The three ways in which data move; < 0: the link has failed.  `total` bytes stand at the same
     * place of each member's memory, in one piece for each member, in the group's order. */
    /* Every member has filled its own piece of recv, and gets the others'. */
    int (*gather)(struct hzp_link_worker *w, const struct hzp_link_group *group, char *recv,
                  size_t piece, size_t total);
    /* Every member gets the sum of its own piece of all members' t->send, at dst.  With t->nonzero
     * without blocks of zeros: it adds to base.counted what it sends. */
    int (*scatter)(struct hzp_link_worker *w, const struct hzp_link_group *group,
                   const struct hzp_transfer *t, char *dst, size_t piece, size_t total);
    /* Every member gets what stands at the root's recv. */
    int (*broadcast)(struct hzp_link_worker *w, const struct hzp_link_group *group, int root,
                     char *recv, size_t total);
};

/* Where member m's piece begins (m == members: where the last one ends). */
size_t hzp_link_border(size_t piece, size_t total, int m);

/* Where it begins in what is scattered. */
size_t hzp_link_begin(const struct hzp_transfer *t, size_t piece, size_t total, int m);

/* The first member of a backend's own struct. */
struct hzp_link_worker {
    struct hzp_link base;
    const struct hzp_link_moves *moves;
    double rate; /* bytes a second; 0: not throttled */
    uint64_t latency_ns;
    pthread_t thread;
    struct hzp_wake arrived; /* for hzp_link_wait */
    atomic_bool closing;
    atomic_int missing;
    /* the thread's */
    bool told; /* the other ranks know of the failure */
    struct hzp_track *track;
    /* When the throttled wire is free, as far as is known; that of the link it was split off. */
    _Atomic uint64_t *wire_free_ns, own_wire_free_ns;
};

/* fini: when the thread has ended.  first: the link that this one is split off; NULL: none. */
void hzp_link_worker_init(struct hzp_link_worker *w, const struct hzp_link_moves *moves,
                          double rate, uint64_t latency_ns, struct hzp_link_worker *first);
void hzp_link_worker_fini(struct hzp_link_worker *w);

/* Runs what is posted until the link is closed or fails; transfers that are not done then have
 * failed. */
void hzp_link_worker_run(struct hzp_link_worker *w);

/* Looks; false: the link was closed or has failed. */
bool hzp_link_worker_goes_on(struct hzp_link_worker *w);

/* Functions of a backend; the caller of the link. */
void hzp_link_worker_wait(struct hzp_link *link, hzp_ticket ticket);
int hzp_link_worker_missing(struct hzp_link *link); /* any thread */

/* ---- headers ---- */

enum hzp_link_header_kind { HZP_LINK_HEADER_TRANSFER = 0x687a7031, HZP_LINK_HEADER_BYE };

/* What a member posted, or its goodbye. */
struct hzp_link_header {
    uint32_t kind, op, type, root, onto;
    uint32_t left; /* of a failure: the rank at fault has closed its link in good order */
    uint64_t count, nonzero, pitch, tag, group; /* group: a hash of its list */
    /* For a goodbye after a failure: the rank at fault and why.  It travels with the goodbye,
     * because the message that told of the failure may come from another rank, and later. */
    int32_t failed, failed_rank;
    char why[208];
};

struct hzp_link_header hzp_link_header_of(const struct hzp_link_group *group,
                                          const struct hzp_transfer *t);
struct hzp_link_header hzp_link_header_bye(struct hzp_link_worker *w);

/* Compares the header of another rank with mine, of transfer t.  HZP_EIO: they differ, or it is a
 * goodbye; the link has failed. */
int hzp_link_header_check(struct hzp_link_worker *w, int rank, const struct hzp_link_header *theirs,
                          const struct hzp_link_header *mine, const struct hzp_transfer *t);
