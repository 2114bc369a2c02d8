/* SPDX-License-Identifier: Apache-2.0 */
/* api/rollout/rollouts_state.h - the structs of rollouts, private to the files that implement them:
 * rollouts.c (the handle), rollouts_run.c (the thread), rollouts_json.c (what is shown and kept).
 *
 * Thread: the thread's, except what is marked; the lock is held for moments only, and no other is
 * taken under it.
 */
#ifndef HZP_API_ROLLOUT_ROLLOUTS_STATE_H
#define HZP_API_ROLLOUT_ROLLOUTS_STATE_H

#include "api/rollout/rollouts.h"
#include "base/thread.h"

#include <stdatomic.h>

enum { HZP_ROLLOUT_VERSIONS = 512 /* that are known by number */ };

enum hzp_rollout_status {
    HZP_ROLLOUT_QUEUED,
    HZP_ROLLOUT_RUNNING,
    HZP_ROLLOUT_SUCCEEDED,
    HZP_ROLLOUT_FAILED,
    HZP_ROLLOUT_CANCELLED
};

/* A member's answer. */
struct hzp_rollout_answer {
    struct hzp_request *rq; /* NULL: not begun, or done with */
    /* under lock */
    int64_t sample;       /* its number */
    bool awaits, judged;  /* a client's reward: it is wanted, it has come */
    double reward;        /* what has come */
    json_t *text;         /* while it is wanted */
    uint64_t deadline_ns; /* for it */
};

/* What belongs to the group of the same index. */
struct hzp_rollout_slot {
    int32_t prompt, submitted;         /* index; members that the scheduler has, or had */
    struct hzp_rollout_answer *answer; /* [n] */
};

/* A point of the curves: an update that was learned. */
struct hzp_rollout_point {
    int64_t optimizer_step, staleness; /* of the update; the largest of its samples' */
    uint64_t version;
    int32_t samples;
    double reward_mean, seconds; /* of all answers since the point before; since the job began */
};

struct hzp_rollout_job {
    uint64_t id;
    struct hzp_rollout_spec spec;  /* its prompts are gone once the job has ended */
    struct hzp_rollout_slot *slot; /* [groups.room] */
    uint64_t begin_ns;
    int64_t first, last;           /* the samples that are being learned; last 0: none */
    struct hzp_rollout_point next; /* the point that they will be */
    double rewarded, reward_sum;   /* of groups, at the newest point */

    /* under lock */
    enum hzp_rollout_status status;
    bool cancel;
    char why[256];
    int64_t created_s;
    struct hzp_rollout_table groups; /* changed by the thread */
    int32_t done, rejected;          /* updates: learned; refused by the gate or given up */
    int64_t answered, truncated, stale, late, committed;
    struct hzp_rollout_point *point; /* [updates] */
};

struct hzp_rollouts {
    struct hzp_rollouts_config config;
    pthread_t thread;
    struct hzp_wake wake;
    _Atomic bool closing;

    /* the thread's */
    struct hzp_rollout_version {
        uint64_t id;
        int64_t step, learned_through;
    } version[HZP_ROLLOUT_VERSIONS]; /* id n: at n % the size */
    uint64_t newest;

    struct hzp_lock lock;
    /* under lock */
    struct hzp_rollout_job *job[HZP_ROLLOUTS_OPEN + HZP_ROLLOUTS_KEPT]; /* oldest first */
    int32_t jobs;
    json_t *past; /* jobs of earlier runs, newest first */
    uint64_t last_id;
    int64_t last_sample;
    int32_t running;                 /* requests */
    struct hzp_rollouts_stats ended; /* what jobs that are gone had counted */
};

/* The thread.  arg: the rollouts. */
void *hzp_rollouts_run(void *arg);

/* Under lock: a job as it is shown. */
json_t *hzp_rollout_json(const struct hzp_rollout_job *job, bool whole);
/* Writes what is kept of all jobs; not under lock. */
void hzp_rollouts_keep(struct hzp_rollouts *r);
/* Reads it: what had not ended has failed. */
void hzp_rollouts_restore(struct hzp_rollouts *r);

static inline bool hzp_rollout_ended(const struct hzp_rollout_job *job)
{
    return job->status >= HZP_ROLLOUT_SUCCEEDED;
}

#endif
