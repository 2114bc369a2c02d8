/* SPDX-License-Identifier: Apache-2.0 */
/* api/front/replica.h - a replica's side: takes requests from the front on rank 0, submits them
 * to this process's scheduler, and sends back what they come to.
 *
 * Tokens wait in the requests until the front reads them, so a front that is slow costs no memory
 * and holds up no step.  What a step has brought is sent in one message, with this rank's load; so
 * it is twice a second without any.
 *
 * The front is lost when it is silent for too long or says goodbye; the requests are then cancelled
 * and the loop is told to end.  A rank that does more than serve knocks again instead, when the
 * front is silent.
 *
 * Thread: start, end and destroy: the engine's.  The thread "hzp-replica" owns the socket; it never
 * waits for the engine, nor the engine for it.  "hzp-rules" makes grammars; requests wait for
 * theirs before they are submitted.
 */
#pragma once

#include "api/front/message.h"
#include "mesh/peers/pipe.h"
#include "nanobatch/loop.h"
#include "serve/scheduler.h"

struct hzp_replica_rank;

struct hzp_replica_config {
    const struct hzp_pipe_place *at; /* where the front listens; borrowed for start */
    const char *record;              /* as in struct hzp_front_config; copied */
    double silent_s;                 /* after which the front is lost */
    double meet_s; /* how long it may take until the front has taken this rank in */
    struct hzp_hello hello;
    /* borrowed */
    struct hzp_scheduler *scheduler;
    struct hzp_loop *loop;
    struct hzp_weights *weights;
    struct hzp_split *split; /* that a policy of rank 0 is for; NULL: none */
    bool stays;              /* when the front is silent, it is asked to take this rank in again */
    /* Asked about ten times a second, on the thread: true: this rank leaves, because what it does
     * beside serving has ended.  NULL: it does not. */
    bool (*leaves)(void *ctx);
    /* Makes the grammar of a request from its source; *ret is owned by the caller.  It may take
     * seconds, and is called on a thread of its own, "hzp-rules", for one request at a time.  Any
     * error: rank 0 computes the request.  NULL: so it does in any case. */
    int (*make_rules)(void *ctx, const char *source, struct hzp_constraint **ret,
                      struct hzp_err_text *reterr);
    void *ctx;
};

/* Connects, and starts the thread.  Errors of hzp_pipe_connect; HZP_ENOMEM: no thread. */
int hzp_replica_start(const struct hzp_replica_config *config, struct hzp_replica_rank **ret,
                      struct hzp_err_text *reterr);

/* The thread's: does all that is due and waits for nothing. */
void hzp_replica_turn(struct hzp_replica_rank *r);

/* When the loop has ended: ends the thread.  HZP_OK: the front has said goodbye, or this rank left;
 * HZP_EIO: it is lost; HZP_EINVAL: it refused this rank, or could not be understood. */
int hzp_replica_end(struct hzp_replica_rank *r, struct hzp_err_text *reterr);

/* After the scheduler has let go of all requests (hzp_scheduler_abort).  NULL: no effect. */
void hzp_replica_destroy(struct hzp_replica_rank *r);
