/* SPDX-License-Identifier: Apache-2.0 */
/* api/front/front.h - rank 0's side of replicas: hands each request to a rank, and its tokens to
 * the thread that submitted it.
 *
 *     submit -> computed by this process's scheduler, or
 *            -> sent to a replica -> tokens -> end
 *                     ^                |
 *                     +-- another rank +-- the replica is lost, or does not take it
 *
 * Who submits a request sees the same in both cases: outputs appear in it, `wake` is called, its
 * state becomes final, `let_go` is set.  The front writes what the engine would have written.
 *
 * A replica is *up* from its hello until it says goodbye, is silent for too long, its connection
 * ends, or it sends what cannot be read.  Its requests that have not ended then begin again on
 * another rank, from the prompt and the tokens so far: random draws depend on seed and position
 * only, so those tokens are the ones that would have come.  They are never refused: they wait until
 * a rank has room.
 *
 * Bounds: a replica has at most running_max + waiting_max requests of ours, as it said in its
 * hello; rank 0 as many as its scheduler takes.  A message to a rank that does not read waits in
 * the request itself.
 *
 * What a request asks of the weights: a replica is told the oldest version that meets it.  When
 * weights of an earlier state serve again, which newer versions have not learned as much as the
 * request asks for, no token by them is shown; the request is taken back and rank 0 decides.
 *
 * Versions: a replica names those it serves by id and optimizer step; if they are not those of this
 * store, it is refused.  Update n + 1 cannot end before every rank has published update n
 * (train/learner/by_link.h), so a replica that takes part in training serves at least the newest
 * finished step less one.  By how much it trails is taken from what it said last, which may be old,
 * and is therefore at most one; but a replica also says which update it knew to be finished when it
 * looked at its version: where that proves that it trails by more, the front says so.
 *
 * Thread: any, except create, start and destroy: the engine's.  The thread "hzp-replicas" owns the
 * socket.  Nothing here waits for a replica.
 */
#pragma once

#include "api/front/message.h"
#include "mesh/peers/pipe.h"
#include "nanobatch/loop.h"
#include "serve/scheduler.h"

struct hzp_front;

struct hzp_front_config {
    const struct hzp_pipe_place *at; /* where it listens; borrowed for create */
    const char *record;              /* what all ranks agree on, lines of "name value"; copied */
    int ranks;                       /* with rank 0, 2 .. HZP_DISPATCH_RANKS_MAX */
    double silent_s;                 /* after which a replica is lost */
};

/* Listens.  HZP_EINVAL: too many ranks; errors of hzp_pipe_listen. */
int hzp_front_create(const struct hzp_front_config *config, struct hzp_front **ret,
                     struct hzp_err_text *reterr);

/* A source of the loop that offers nothing: it is busy while requests are computed elsewhere. */
struct hzp_source *hzp_front_source(struct hzp_front *f);

/* What this process computes requests with; all borrowed. */
struct hzp_front_parts {
    struct hzp_scheduler *scheduler;
    struct hzp_loop *loop;
    struct hzp_weights *weights;
    const struct hzp_model *model;
    struct hzp_hello own; /* rank 0's: replicas are compared with it */
};
/* Takes replicas in from now on.  HZP_ENOMEM: no thread. */
int hzp_front_start(struct hzp_front *f, const struct hzp_front_parts *parts);

/* As hzp_scheduler_submit_all; the caller pokes the loop. */
int hzp_front_submit(struct hzp_front *f, struct hzp_request *const *rq, int32_t count,
                     struct hzp_err_text *reterr);

/* A request's `cancel` was raised. */
void hzp_front_poke(struct hzp_front *f);

/* Replicas train by it beside their requests, also those that come later. */
void hzp_front_set_policy(struct hzp_front *f, const struct hzp_policy *policy);

/* No request is taken any more; hurry: those that replicas compute fail at once. */
void hzp_front_stop(struct hzp_front *f, bool hurry);

/* Stops in a hurry, says goodbye to the replicas and ends the thread.  NULL: no effect. */
void hzp_front_finish(struct hzp_front *f);
void hzp_front_destroy(struct hzp_front *f); /* finishes first; NULL: no effect */

/* What is known of a rank. */
struct hzp_front_rank {
    bool up, draining;
    uint64_t not_finite; /* requests, as in struct hzp_scheduler_stats */
    double silent_s;
    int32_t requests;    /* not ended */
    int64_t sent, moved; /* requests so far; those that began again elsewhere */
    int64_t staleness;   /* updates that its version trails the newest finished one by */
    int64_t stale;       /* versions of it that were seen to trail by more than one */
    struct hzp_hello hello;
    struct hzp_replica_load load;
    char why[160]; /* why it is not up */
};
/* HZP_ENOENT: no such rank. */
int hzp_front_rank(struct hzp_front *f, int rank, struct hzp_front_rank *ret);
int hzp_front_ranks(const struct hzp_front *f); /* how many, with rank 0 */

/* The rank gets no more requests, or does again; those it has are finished.  HZP_ENOENT: no such
 * rank. */
int hzp_front_drain(struct hzp_front *f, int rank, bool drain);
