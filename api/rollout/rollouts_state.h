/* SPDX-License-Identifier: Apache-2.0 */
/* api/rollout/rollouts_state.h - the structs of rollouts, private to the files that implement them:
 * rollouts.c (the handle), rollouts_run.c (the thread), rollouts_reference.c,
 * rollouts_judge.c, rollouts_samples.c.
 *
 * Thread: under the lock, which the thread holds but while it waits; what is marked is fixed.
 */
#pragma once

#include "api/rollout/judge.h"
#include "api/rollout/rollouts.h"

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
    struct hzp_request *rq;  /* NULL: not begun, or done with */
    struct hzp_request *ref; /* its tokens by the reference; NULL: not begun, or there is none */
    int64_t sample;          /* its number */
    bool awaits, judged;     /* a client's reward is wanted; there is a reward */
    bool asks;               /* the command's, or the model's, is wanted, */
    int64_t asked_in;        /* and was asked for in that round; 0: not yet */
    struct hzp_request *score[2]; /* the template with each word, by the model; NULL: not begun */
    double reward;
    double *reference;    /* [its tokens] log-probabilities, once they are there; owned */
    json_t *text;         /* for a client, the command, or the model */
    uint64_t deadline_ns; /* for its reward */
};

/* What belongs to the group of the same index. */
struct hzp_rollout_slot {
    int32_t prompt, submitted;         /* index; members that the scheduler has, or had */
    uint64_t until_ns;                 /* READY: for what clients give beside the reward */
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
    double kl;          /* mean per token of the samples, with a reference */
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
    struct hzp_version *reference; /* held while the job runs; NULL: it has none */
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
    struct hzp_judge *judge;           /* the thread's; NULL: there is no command */
    pthread_t thread;
    struct hzp_wake wake;
    _Atomic bool closing;
    struct hzp_lock lock;
    struct hzp_rollout_job *job[HZP_ROLLOUTS_OPEN + HZP_ROLLOUTS_KEPT]; /* oldest first */
    int32_t jobs, running;                                              /* running: requests */
    json_t *past; /* jobs of earlier runs, newest first */
    uint64_t last_id;
    int64_t last_sample;
    struct hzp_rows rows;                                    /* the running job's */
    struct hzp_version_record version[HZP_ROLLOUT_VERSIONS]; /* newest first */
    int32_t versions;
    struct hzp_rollouts_stats gone; /* what jobs that are not kept any more had counted */
};

/* The thread.  arg: the rollouts. */
void *hzp_rollouts_run(void *arg);

/* Asks the operator's command or the model for rewards, where the job's are theirs, and takes what
 * they say.  HZP_EIO: the command has failed. */
int hzp_rollout_ask(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                    struct hzp_err_text *reterr);

/* Appends the tokens of the template with the request's prompt, the text (NULL: none), the prompt's
 * answer (NULL: none) and the word of this number.  Errors of hzp_tokenizer_encode. */
int hzp_rollout_question(const struct hzp_rollouts *r, const struct hzp_verifier *v,
                         const struct hzp_request *rq, json_t *text, const char *answer, int word,
                         struct hzp_tokens *out, struct hzp_err_text *reterr);
/* Has the log-probabilities of the tokens computed as a prompt, by the version, NULL: by the one
 * that serves.  HZP_EBUSY: not now; errors of hzp_scheduler_submit. */
int hzp_rollout_compute(struct hzp_rollouts *r, const int32_t *token, int32_t count,
                        struct hzp_version *version, struct hzp_request **ret,
                        struct hzp_err_text *reterr);
/* Whether they are there; false also where it failed. */
bool hzp_rollout_computed(const struct hzp_request *rq);

/* Takes hold of the job's reference, if it wants one, and lets go of it.  The lock is released
 * meanwhile.  HZP_ECANCELED: the server stops. */
int hzp_rollout_take_reference(struct hzp_rollouts *r, struct hzp_rollout_job *job);
void hzp_rollout_drop_reference(struct hzp_rollouts *r, struct hzp_rollout_job *job);
/* Has the answers of ready groups computed by the reference, and notes which groups wait for that,
 * for clients' columns (an answer that lacks one after its time is lost), or to be taken. */
int hzp_rollout_refer(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                      struct hzp_err_text *reterr);
/* An estimate of the sum over its tokens of the divergence of the policy from the reference: of
 * exp(d) - d - 1, with d the reference's log-probability less that of the draw (Schulman's k3). */
double hzp_rollout_kl(const struct hzp_rollout_answer *a);

/* The answer of the row of this index. */
static inline struct hzp_rollout_answer *hzp_rollout_at(const struct hzp_rollout_job *j, int32_t i)
{
    return &j->slot[i / j->spec.n].answer[i % j->spec.n];
}

/* Brings the rows of the job that runs up to date; returns how many there are. */
int32_t hzp_rollout_rows(struct hzp_rollouts *r);
/* The row of the sample of this number; -1: there is none, or it is lost. */
int32_t hzp_rollout_find(struct hzp_rollouts *r, int64_t sample);
/* The text of its prompt, or of its answer without the token that ended it. */
json_t *hzp_rollout_text(const struct hzp_rollouts *r, const struct hzp_request *rq, bool prompt);

/* Writes what is kept of all jobs. */
void hzp_rollouts_keep(const struct hzp_rollouts *r);

static inline bool hzp_rollout_ended(const struct hzp_rollout_job *job)
{
    return job->status >= HZP_ROLLOUT_SUCCEEDED;
}
