/* SPDX-License-Identifier: Apache-2.0 */
/* api/front/front_state.h - the front's structs, private to front.c (requests), front_ranks.c
 * (what replicas say) and front_thread.c.
 *
 * Thread: see struct hzp_front.
 */
#pragma once

#include "api/front/front.h"

/* ---- dispatch.c: which rank computes a request: a pure function of what is known of the ranks,
 * and a small memory of the prompts and sessions that ranks have had.
 *
 * Of a request with p prompt tokens and e expected tokens, and a rank with n unfinished requests:
 *
 *     load = max((needed pages + ceil((p + e - found) / page rows)) / pages, (n + 1) / running max)
 *
 * so a load above 1 means that it would wait there; `found` are tokens of the prompt that the rank
 * has probably cached.  A rank is *even* if its load is at most 1 and it has at most 1.5 least + 4
 * requests, `least` being the smallest number of any rank.  The request goes to
 *
 *     1. the rank of its session, if that is even;
 *     2. of the even ranks the one that has had the longest beginning of its prompt, if that is at
 *        least half of the prompt;
 *     3. the rank with the smallest load; of equal ones that with the fewest requests, then the
 *        last, because rank 0 has other work.
 *
 * Expected tokens: the mean of the requests that have ended lately, at most max_tokens.
 *
 * Prompts are remembered by the hashes of their beginnings, one for each CHUNK tokens, in a table
 * of fixed size whose older entries are overwritten; a wrong guess costs time, nothing else.
 *
 * Invariant: the same calls give the same ranks.
 *
 * Thread: one at a time. */

enum { HZP_DISPATCH_RANKS_MAX = 64 };

/* What is known of a rank. */
struct hzp_dispatch_rank {
    bool takes;       /* it is there, is not being drained, and has room for the request */
    int32_t requests; /* not ended */
    int32_t running_max;
    int32_t kv_pages,
        kv_needed; /* pages of its pool; pages that its requests are predicted to need */
    int32_t page_rows;
    int32_t found; /* tokens of the prompt's beginning that it has had */
};

/* What is known of a request. */
struct hzp_dispatch_ask {
    int32_t prompt, expected; /* tokens */
    int32_t session;          /* the rank of its session; -1: none */
};

/* The rank; -1: none takes it. */
int hzp_dispatch_choose(const struct hzp_dispatch_ask *ask, const struct hzp_dispatch_rank *rank,
                        int ranks);

/* Pages that the request is expected to need on the rank. */
int32_t hzp_dispatch_pages(const struct hzp_dispatch_ask *ask,
                           const struct hzp_dispatch_rank *rank);

/* ---- the memory ---- */

struct hzp_dispatch;

struct hzp_dispatch *hzp_dispatch_create(void);
void hzp_dispatch_destroy(struct hzp_dispatch *d); /* NULL: no effect */

/* For each rank, how many of the prompt's first tokens it has had: a multiple of the chunk.  ret
 * [ranks]. */
void hzp_dispatch_find(const struct hzp_dispatch *d, const int32_t *prompt, int32_t count,
                       int ranks, int32_t *ret);
/* The rank computes this prompt. */
void hzp_dispatch_note(struct hzp_dispatch *d, const int32_t *prompt, int32_t count, int rank);
/* The rank's cache is empty: it was lost, or serves other weights. */
void hzp_dispatch_forget(struct hzp_dispatch *d, int rank);

/* The rank of a session, by its number (not 0); -1: none is known. */
int hzp_dispatch_session(const struct hzp_dispatch *d, uint64_t session);
void hzp_dispatch_note_session(struct hzp_dispatch *d, uint64_t session, int rank);

/* A request has ended with so many tokens. */
void hzp_dispatch_ended(struct hzp_dispatch *d, int32_t tokens);
int32_t hzp_dispatch_expected(const struct hzp_dispatch *d, int32_t max_tokens);

/* ---- the front ---- */

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
