/* SPDX-License-Identifier: Apache-2.0 */
/* api/front/front_state.h - the front's structs, private to front.c (requests), front_ranks.c
 * (what replicas say) and front_thread.c.
 *
 * Thread: see struct hzp_front.
 */
#pragma once

#include "api/front/dispatch.h"
#include "api/front/front.h"

/* A request that is not this process's scheduler's. */
struct hzp_remote {
    struct hzp_request *rq;
    uint64_t id;    /* new for each rank that it is sent to */
    int rank;       /* that computes it; 0: none yet */
    int32_t pages;  /* that it is expected to need */
    uint64_t least; /* the rank computes it by this version, or newer ones; 0: any */
    uint64_t met;   /* a version that meets what it asks for, as its newest token's did */
    bool sent, cancel_sent;
    bool recalled; /* its rank serves weights of an earlier state: it is cancelled there */
};

/* One rank; [0] is this process. */
struct hzp_place {
    struct hzp_front_rank is; /* silent_s and staleness are set when it is asked for */
    struct hzp_pipe_peer peer;
    struct hzp_pipe_peer former; /* the one before, which was lost or displaced */
    uint64_t heard_ns, since_ns;
    int32_t pages;    /* pages of its requests, as expected when they were sent */
    uint64_t told;    /* the number of the front's policy that it was told */
    uint64_t checked; /* the version whose optimizer step was compared, and that step */
    int64_t checked_step;
    uint64_t stale_version; /* the newest that was seen to trail by more than one update */
};

struct hzp_front {
    struct hzp_source source;
    char *record;
    int ranks;
    double silent_s;
    struct hzp_pipe *pipe;
    struct hzp_front_parts parts;
    pthread_t thread;
    bool started;

    /* the thread's */
    struct hzp_message out;
    uint64_t beat_ns;
    struct hzp_front_beat said; /* with the last beat */
    struct hzp_request **news;  /* [news_room] whose wake is due */
    bool *news_final;           /* [news_room] */
    int32_t news_count, news_room;

    struct hzp_lock lock; /* guards what follows */
    bool stopping, hurry, closing;
    uint64_t line; /* since this version each has learned one update more than the one before */
    struct hzp_place place[HZP_DISPATCH_RANKS_MAX];
    struct hzp_dispatch *dispatch;
    struct hzp_remote *remote; /* [room]; rq NULL: free */
    int32_t *free;             /* [room] indices of free ones, the first room - count */
    int32_t room, count;
    uint64_t serial;
    struct hzp_policy policy;
    uint64_t policies;      /* how often it was set */
    uint64_t local_version; /* for which the dispatcher remembers rank 0's prompts */
    atomic_int unended;     /* = count; for the loop */
};

/* ---- front.c; the caller holds the lock ---- */

/* The request with this id; NULL: none. */
struct hzp_remote *hzp_front_find(struct hzp_front *f, uint64_t id);

/* The request ends, or has news: its creator is told by hzp_front_tell. */
void hzp_front_end(struct hzp_front *f, struct hzp_remote *m, enum hzp_request_state state);
void hzp_front_note(struct hzp_front *f, struct hzp_request *rq, bool final);
void hzp_front_tell(struct hzp_front *f);

/* The request leaves its rank; it is placed by the thread's next turn. */
void hzp_front_unplace(struct hzp_front *f, struct hzp_remote *m);

/* Gives requests without a rank to one; those for which none has room wait. */
void hzp_front_place(struct hzp_front *f);

/* ---- front_ranks.c; the caller holds the lock ---- */

/* By how many updates the rank's version trails `finished`, as far as its news tell. */
int64_t hzp_front_trails(const struct hzp_front *f, const struct hzp_place *at, int64_t finished);
/* Another version serves here: whether it is one update further than the one before. */
void hzp_front_note_line(struct hzp_front *f);

/* The rank is gone: its requests leave it. */
void hzp_front_lose(struct hzp_front *f, int rank, const char *why);

/* Handles a message. */
void hzp_front_handle(struct hzp_front *f, const struct hzp_pipe_peer *peer, const char *data,
                      size_t bytes);

/* ---- front_thread.c ---- */

void *hzp_front_main(void *front);

/* Does all that is due and waits for nothing.  False: the front ends. */
bool hzp_front_turn(struct hzp_front *f);
