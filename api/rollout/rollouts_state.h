/* SPDX-License-Identifier: Apache-2.0 */
/* api/rollout/rollouts_state.h - the structs of rollouts, private to the files that implement them:
 * rollouts.c (the handle), rollouts_run.c (the thread).
 *
 * Thread: under the lock, which the thread holds but while it waits; what is marked is fixed.
 */
#pragma once

#include "api/rollout/rollouts.h"
#include "base/thread.h"

#include <stdatomic.h>

enum { HZP_ROLLOUT_VERSIONS = 64 /* older ones are staler than any bound */ };

enum hzp_rollout_status {
    HZP_ROLLOUT_QUEUED,
    HZP_ROLLOUT_RUNNING,
    HZP_ROLLOUT_SUCCEEDED,
    HZP_ROLLOUT_FAILED,
    HZP_ROLLOUT_CANCELLED
};
const char *hzp_rollout_status_name(enum hzp_rollout_status status);

void hzp_rollout_free_prompts(struct hzp_rollout_spec *spec);

/* A member's answer. */
struct hzp_rollout_answer {
    struct hzp_request *rq; /* NULL: not begun, or done with */
    int64_t sample;         /* its number */
    bool awaits, judged;    /* a client's reward is wanted; there is a reward */
    double reward;
    json_t *text;         /* for a client */
    uint64_t deadline_ns; /* for its reward */
};

/* What belongs to the group of the same index. */
struct hzp_rollout_slot {
    int32_t prompt, submitted;         /* index; members that the scheduler has, or had */
    struct hzp_rollout_answer *answer; /* [n] */
};

/* A point of the curves: an update that was learned. */
struct hzp_rollout_point {
    int64_t optimizer_step; /* the update's number */
    int64_t staleness;      /* the largest among its samples */
    uint64_t version;
    int32_t samples;
    double reward_mean; /* mean over the answers rewarded since the point before */
    double seconds;     /* since the job began */
};

struct hzp_rollout_job {
    uint64_t id;                  /* fixed */
    int64_t created_s;            /* fixed */
    struct hzp_rollout_spec spec; /* fixed, but for its prompts, which go when the job ends */
    enum hzp_rollout_status status;
    bool cancel;
    char why[256];
    struct hzp_rollout_table table;
    struct hzp_rollout_slot *slot; /* [table.room]; NULL: it does not run */
    uint64_t begin_ns;
    int64_t first, last;             /* the samples that are being learned; last 0: none */
    int32_t done, rejected;          /* updates: learned; refused by the gate, or taken back */
    struct hzp_rollout_point *point; /* [updates], `done` of them; */
    struct hzp_rollout_point next;   /* and what is being learned */
    int64_t rewarded;                /* of the table, at that point */
    double reward_sum;
    int64_t answered, truncated, stale, late, committed;
};

struct hzp_rollouts {
    struct hzp_rollouts_config config; /* fixed */
    pthread_t thread;
    struct hzp_wake wake;
    _Atomic bool closing;
    struct hzp_lock lock;
    struct hzp_rollout_job *job[HZP_ROLLOUTS_OPEN + HZP_ROLLOUTS_KEPT]; /* oldest first */
    int32_t jobs, running;                                              /* running: requests */
    json_t *past; /* jobs of earlier runs, newest first */
    uint64_t last_id;
    int64_t last_sample;
    struct hzp_version_record version[HZP_ROLLOUT_VERSIONS]; /* newest first */
    int32_t versions;
    struct hzp_rollouts_stats gone; /* what jobs that are not kept any more had counted */
};

/* The thread.  arg: the rollouts. */
void *hzp_rollouts_run(void *arg);

/* Writes what is kept of all jobs. */
void hzp_rollouts_keep(const struct hzp_rollouts *r);

static inline bool hzp_rollout_ended(const struct hzp_rollout_job *job)
{
    return job->status >= HZP_ROLLOUT_SUCCEEDED;
}
