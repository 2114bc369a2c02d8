/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/launch/ranks.h - the ranks of one run: started, connected, agreed, watched.
 *
 *     start   where --ranks asks for ranks and no launcher has started them: starts them, and waits
 *     open    reads the launcher's environment, opens the link, meets the other ranks.  MPI
 *             connects ranks that a launcher of MPI has started, ZeroMQ all others
 *     rejoin  after a loss: closes link and control messages, and meets all ranks again, with a new
 *             process in the place of the lost one.  That makes a new *generation* of both
 *     close   says goodbye
 *
 * One rank has no link and no control messages.
 *
 * Thread: one opens, rejoins and closes; the functions marked any may be called meanwhile.  The
 * link belongs to one thread at a time, so after open it may be handed to the engine's.
 */
#pragma once

#include "base/thread.h"
#include "mesh/launch/rendezvous.h"

/* What moves data between ranks.  nccl, and auto with GPUs: NCCL moves what is in their memory
 * (api/engine/rank_link.h), and the link opened here, chosen as by auto, everything else. */
enum hzp_ranks_link { HZP_RANKS_AUTO, HZP_RANKS_MPI, HZP_RANKS_ZMQ, HZP_RANKS_NCCL };

struct hzp_ranks_settings {
    int64_t ranks;           /* 0: as the launcher says */
    int64_t link;            /* enum hzp_ranks_link: what connects the ranks */
    int64_t port;            /* zmq: TCP port of rank 0; 0: one more than MASTER_PORT */
    int64_t replicas;        /* 1: all ranks serve requests; over ZeroMQ */
    int64_t tensor;          /* ranks that compute each step together; 0, 1: each by itself */
    int64_t on_machine;      /* ranks on this machine, which share its memory; 0: one */
    int64_t restarts;        /* how many losses there may be; see hzp_launch_processes */
    int64_t link_rate;       /* bytes a second that a rank sends at most; 0: as fast as it goes */
    double link_latency_ms;  /* with a rate */
    double silent_s, meet_s; /* see struct hzp_control_config */
};

struct hzp_ranks {
    int rank, ranks;
    /* Moves host memory; NULL: one rank, or they meet; for the thread that opens and rejoins. */
    struct hzp_link *link;
    bool runs; /* rank 0 says when they meet: it runs already */
    bool met;  /* in the newest meeting all came, but perhaps were not connected */
    struct hzp_launch launch;
    struct hzp_rendezvous rendezvous; /* zmq */

    bool made;                   /* the lock */
    struct hzp_lock lock;        /* guards what follows */
    struct hzp_control *control; /* NULL: one rank, or they meet */
    int users;                   /* threads that use control and link now */
    bool linked;                 /* they have met at least once */
    pthread_cond_t unused;
    int lost_rank; /* until all is as before the loss; -1: none */
    char why[256];
    uint64_t losses, rejoins, generation;
};

/* With settings->ranks > 1 and no launcher's environment: runs the ranks, with link mpi by MPI's
 * launcher (hzp_launch_local), else by itself (hzp_launch_processes); again after a loss
 * (settings->restarts).  keep: of hzp_launch_processes.  It returns 1 with *status, this process's
 * exit status.  HZP_OK: this process is a rank, and gives signs of life (launch.h). */
int hzp_ranks_start(const struct hzp_ranks_settings *settings, char **argv,
                    const struct hzp_launch_keep *keep, int *status, struct hzp_err_text *reterr);

/* How ranks meet. */
struct hzp_ranks_config {
    const struct hzp_ranks_settings *settings;
    const char *record; /* see hzp_control_meet */
    bool runs;          /* rank 0: see struct hzp_ranks */
    /* See struct hzp_control_config.  lost NULL: the link fails, and no callback is called. */
    void (*lost)(void *ctx, int rank, const char *why);
    bool (*stop)(void *ctx);
    void *ctx;
};

/* Waits for all ranks.  Errors name the rank, the variable or what is missing in this build; *ret
 * is then closed.  HZP_ECANCELED: config->stop. */
int hzp_ranks_open(const struct hzp_ranks_config *config, struct hzp_ranks *ret,
                   struct hzp_err_text *reterr);

/* For replicas that do not train: reads the launcher's environment and says where ranks find each
 * other, but connects nothing.  Errors as of open. */
int hzp_ranks_place(const struct hzp_ranks_settings *settings, struct hzp_ranks *ret,
                    struct hzp_err_text *reterr);

/* Where replicas and rank 0 exchange requests (api/front/): a file of the folder in which they
 * meet, or the TCP port after that of the control messages.  HZP_EUNSUP: the ranks are linked by
 * MPI. */
int hzp_ranks_replicas_place(const struct hzp_ranks *ranks, struct hzp_pipe_place *ret,
                             struct hzp_err_text *reterr);

/* Whether the ranks that are left can meet again, with one that replaces the lost one: link zmq,
 * and the lost rank did not end in good order. */
bool hzp_ranks_may_rejoin(struct hzp_ranks *ranks);

/* Closes link and control messages and waits for all ranks again, at the same place; where another
 * is lost meanwhile, again.  The link must not be in use.  Errors as of open, for all of it
 * settings->meet_s; *ranks is then without link, and may be rejoined again or closed. */
int hzp_ranks_rejoin(const struct hzp_ranks_config *config, struct hzp_ranks *ranks,
                     struct hzp_err_text *reterr);
/* What the loss has interrupted goes on. */
void hzp_ranks_rejoined(struct hzp_ranks *ranks);
/* Fails the link, if there is one: threads that wait for a transfer return
 * with an error.  Any thread. */
void hzp_ranks_abort(struct hzp_ranks *ranks, const char *why);

/* How the ranks of this run stand.  Any thread. */
struct hzp_ranks_standing {
    int lost_rank; /* the first that was lost, until hzp_ranks_rejoined; -1: none */
    char why[256];
    bool meeting;        /* they wait for each other: there is no link */
    uint64_t losses;     /* noticed by this rank */
    uint64_t rejoins;    /* losses after which all went on */
    uint64_t generation; /* each meeting of the ranks begins one, from 1 on */
    uint64_t wire_bytes; /* sent by this rank over this generation's link */
};
void hzp_ranks_standing(struct hzp_ranks *ranks, struct hzp_ranks_standing *ret);
/* What this rank knows of one (control.h); false: nothing, because there is one rank, or they meet.
 * Any thread. */
bool hzp_ranks_rank(struct hzp_ranks *ranks, int rank, struct hzp_control_state *ret);

/* Rank 0: the trace of all ranks' last seconds (base/timeline.h), as a whole file; ranks NULL: one
 * rank.  It may wait for some seconds.  *ret is the caller's to free.  HZP_EBUSY: another trace is
 * being made; HZP_ENOMEM.  Any thread. */
int hzp_ranks_timeline(struct hzp_ranks *ranks, double seconds, char **ret, size_t *ret_bytes,
                       struct hzp_err_text *reterr);

/* Whether a rank was lost, or the link has failed. */
bool hzp_ranks_lost(struct hzp_ranks *ranks); /* any thread */

/* No effect on zeroed or closed ranks.  The link must not be used any more. */
void hzp_ranks_close(struct hzp_ranks *ranks);
