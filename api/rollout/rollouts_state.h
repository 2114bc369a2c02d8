/* SPDX-License-Identifier: Apache-2.0 */
/* api/rollout/rollouts_state.h - the structs of rollouts, private to the files that implement them:
 * rollouts.c (the handle), rollouts_run.c (the thread), rollouts_reference.c,
 * rollouts_judge.c, rollouts_kept.c, rollouts_samples.c, rollouts_turns.c.
 *
 * Thread: under the lock, which the thread holds but while it waits; what is marked is fixed.
 */
#pragma once

#include "api/rollout/judge.h"
#include "api/rollout/rollouts.h"

enum {
    HZP_ROLLOUT_VERSIONS = 64, /* older ones are staler than any bound */
    HZP_ROLLOUT_BESIDE = 64    /* bytes of messages for each token, and tokens for each turn */
};

enum hzp_rollout_status {
    HZP_ROLLOUT_QUEUED,
    HZP_ROLLOUT_RUNNING,
    HZP_ROLLOUT_SUCCEEDED,
    HZP_ROLLOUT_FAILED,
    HZP_ROLLOUT_CANCELLED
};
const char *hzp_rollout_status_name(enum hzp_rollout_status status);

void hzp_rollout_free_prompts(struct hzp_rollout_spec *spec);

enum hzp_turn_stage {
    HZP_TURN_WRITING, /* the model is, or has just been */
    HZP_TURN_ASKED,   /* what follows is asked for */
    HZP_TURN_GIVEN,   /* and known: to be submitted with it */
    HZP_TURN_OVER,    /* nothing follows */
    HZP_TURN_LOST     /* what follows did not come */
};

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
    uint64_t deadline_ns; /* for its reward, or for what follows its turn */
    /* where answers have turns: */
    enum hzp_turn_stage stage;
    int32_t turns;           /* that have ended */
    json_t *said;            /* the messages behind the prompt's; owned; NULL: none yet */
    struct hzp_tokens given; /* owned: what follows, GIVEN */
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
    int64_t group_bytes;          /* fixed: of each group that is held */
    struct hzp_rollout_spec spec; /* fixed, but for its prompts, which go when the job ends */
    enum hzp_rollout_status status;
    bool cancel;
    bool outlives; /* the next server goes on with it, when this one stops */
    bool goes_on;  /* it has ended here, and the next server goes on with it */
    char why[256];
    struct hzp_rollout_table table;
    struct hzp_rollout_slot *slot; /* [table.room]; NULL: it does not run */
    struct hzp_version *reference; /* held while the job runs; NULL: it has none */
    uint64_t begin_ns;
    double before_s;        /* that it ran before a restart */
    bool catches_up;        /* after a restart: what was committed is to be learned again first */
    int64_t first, last;    /* the samples that are being learned; last 0: none */
    int32_t done, rejected; /* updates: learned; refused by the gate, or taken back */
    struct hzp_rollout_point *point; /* [updates], `done` of them; */
    struct hzp_rollout_point next;   /* and what is being learned */
    int64_t rewarded;                /* of the table, at that point */
    double reward_sum;
    int64_t answered, truncated, stale, late, committed, turns; /* turns: that did not end one */
};

struct hzp_rollouts {
    struct hzp_rollouts_config config; /* fixed */
    struct hzp_judge *judge, *tools;   /* the thread's; NULL: there is no command */
    json_t *ends;                      /* fixed: the spellings of the tokens that end answers */
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

/* The most that a group's answers take, with what clients and the template add to them. */
int64_t hzp_rollout_group_bytes(const struct hzp_rollout_spec *spec);

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

/* Submits the member's answer, or its next turn.  HZP_EBUSY: not now; errors of
 * hzp_scheduler_submit. */
int hzp_rollout_submit(struct hzp_rollouts *r, const struct hzp_rollout_job *job, int32_t at,
                       int32_t member, struct hzp_err_text *reterr);
/* Whether the request has ended as an answer does. */
static inline bool hzp_rollout_is_answer(const struct hzp_request *rq)
{
    int32_t state = atomic_load(&rq->state);
    return (state == HZP_REQUEST_STOPPED || state == HZP_REQUEST_LENGTH) &&
           atomic_load(&rq->out_count) > 0;
}

/* ---- turns ---- */

/* Reads what the model has written in turns that have ended, asks for what follows, and submits it
 * where it is known.  HZP_EIO: the command has failed; errors of hzp_scheduler_submit. */
int hzp_rollout_converse(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                         struct hzp_err_text *reterr);
/* These messages follow the turn of the answer of this sample, which is ASKED; an empty list:
 * nothing does.  The lock is released meanwhile.  HZP_EINVAL: they are none, and it stays;
 * HZP_ENOENT: there is no such sample, or it has a turn by now. */
int hzp_rollout_give(struct hzp_rollouts *r, int64_t sample, const json_t *messages,
                     struct hzp_err_text *reterr);
/* The messages of the row's answer, from the prompt's on; the number and the calls of its newest
 * turn.  New references. */
json_t *hzp_rollout_messages(struct hzp_rollout_job *job, int32_t row);
json_t *hzp_rollout_turn(const struct hzp_rollout_answer *a);

/* Whether the model wrote the token; else it was given to it, and is not learned. */
static inline bool hzp_rollout_wrote(const struct hzp_request *rq, int32_t i)
{
    return rq->out[i].version != 0;
}
/* How many the model wrote; the first one of its newest turn. */
int32_t hzp_rollout_written(const struct hzp_request *rq);
int32_t hzp_rollout_turn_first(const struct hzp_request *rq);
/* Its prompt's tokens and those behind, owned by the caller. */
int32_t *hzp_rollout_tokens(const struct hzp_request *rq, int32_t *ret_count);

/* ---- rows ---- */

/* Brings the rows of the job that runs up to date; returns how many there are. */
int32_t hzp_rollout_rows(struct hzp_rollouts *r);
/* The job whose rows they are; NULL: none runs. */
struct hzp_rollout_job *hzp_rollout_running(const struct hzp_rollouts *r);
/* The row of the sample of this number; -1: there is none, or it is lost. */
int32_t hzp_rollout_find(struct hzp_rollouts *r, int64_t sample);
/* The text of its prompt, or of its newest turn without the token that ended it. */
json_t *hzp_rollout_text(const struct hzp_rollouts *r, const struct hzp_request *rq, bool prompt);

/* Ends the operator's commands; each is started again when it is asked. */
void hzp_rollouts_renew(struct hzp_rollouts *r);

/* ---- what is kept ---- */

enum { HZP_ROLLOUT_NOTE = 64 };
/* The note that says where it is: its text, owned by the caller, and its name. */
char *hzp_rollout_kept(struct hzp_rollout_job *job);
const char *hzp_rollout_note(const struct hzp_rollout_job *job, char ret[HZP_ROLLOUT_NOTE]);
/* Writes it, with the body of a new job; no effect on one that ends with this server. */
int hzp_rollout_keep(struct hzp_rollouts *r, struct hzp_rollout_job *job, bool body,
                     struct hzp_err_text *reterr);
void hzp_rollout_forget(struct hzp_rollouts *r, uint64_t id);
/* The body of a job that has not ended, a new reference; NULL: none is kept.  Where the job is,
 * which is new otherwise: HZP_EFORMAT. */
json_t *hzp_rollout_body(const struct hzp_rollouts *r, uint64_t id);
int hzp_rollout_restore(const struct hzp_rollouts *r, struct hzp_rollout_job *job,
                        struct hzp_err_text *reterr);
/* Whether it has a version held for as long as it runs. */
bool hzp_rollout_holds(const struct hzp_rollout_spec *spec);

/* Writes what is shown of all jobs. */
void hzp_rollouts_keep(const struct hzp_rollouts *r);
/* The curve of a job that has ended, which is kept as long as the job is shown: writes it, NULL:
 * forgets it; makes it; reads it, a new reference, empty
 * if there is none. */
void hzp_rollout_keep_curve(const struct hzp_rollouts *r, uint64_t id, const json_t *curve);
json_t *hzp_rollout_points(const struct hzp_rollout_job *job);
json_t *hzp_rollout_curve(const struct hzp_rollouts *r, uint64_t id);

static inline bool hzp_rollout_ended(const struct hzp_rollout_job *job)
{
    return job->status >= HZP_ROLLOUT_SUCCEEDED;
}
