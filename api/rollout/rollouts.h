/* SPDX-License-Identifier: Apache-2.0 */
/* api/rollout/rollouts.h - jobs that learn from what is served: n answers to each prompt, a reward
 * for each answer, and updates from groups of answers that were rewarded differently.
 *
 *     prompt -> n background requests -> answers, log-probabilities, versions -> rewards
 *            -> group with advantages (group_table.h)
 *            -> `batch` groups: samples in the log, one update
 *
 * The samples of an update are committed to the log together, as one lesson of the session
 * "rollout-ID", and learned as all samples are: gate, versions, undo and forget apply.  An update
 * begins when its groups are ready, while others are still being answered.  The next ones are
 * committed when it has been learned and no other sample waits, so the staleness bound can be
 * checked exactly: a sample whose oldest token was drawn by a version more than max_staleness
 * updates before the newest one is left out and counted.  If another client's examples arrive
 * between this check and the draw of the samples, the update learns them first; the samples are
 * then learned an update later than the check assumed, and are counted as late.
 *
 * A token's behaviour log-probability is the one that was reported when it was drawn: with
 * temperature 1, top_p 1, and no penalties, biases or grammar these are those of the distribution
 * it was drawn from.  So training jobs draw in this way only.
 *
 * An answer may have several turns (rollouts_turns.c): it is one row of tokens all the same, of
 * which the model wrote some and others were given to it.  Only the former are learned.
 *
 * With kl > 0 each token's loss has kl times the divergence from a reference (device/ops.h): a
 * client's, or the version that serves when it begins, which takes a slot until it ends.
 *
 * Tables, rewards and leases are in memory.  What is committed is learned once, from the log, also
 * after kill -9, and so is each further group of a job that goes on (rollouts_kept.c); another job
 * has failed then, and says how many updates it had.  Jobs run one after the other.
 *
 * Bounds: HZP_ROLLOUTS_OPEN jobs that have not ended; HZP_ROLLOUTS_KEPT that have; per job the
 * limits below.  The answers that are held, with all that clients may write to them, take at most
 * config.bytes: each has its part before it is begun (hzp_rollout_group_bytes), so a job waits
 * there, and no column is refused.
 *
 * Thread: any; the work is a thread's of its own ("hzp-rollout").
 */
#pragma once

#include "api/learn/state.h"
#include "api/rollout/group_table.h"
#include "api/rollout/row_table.h"
#include "api/rollout/verify.h"
#include "serve/scheduler.h"

struct hzp_rollouts;

enum {
    HZP_ROLLOUTS_OPEN = 8,
    HZP_ROLLOUTS_KEPT = 16,
    HZP_ROLLOUT_PROMPTS_MAX = 16384,
    HZP_ROLLOUT_PROMPT_TOKENS_MAX = 1 << 20, /* the prompts of a job, together */
    HZP_ROLLOUT_REFERENCE_MAX = 1024,        /* bytes */
    HZP_ROLLOUT_BATCH_MAX = 256, /* also the field's in the table of fields, which bounds others */
    HZP_ROLLOUT_MEMBERS_MAX = HZP_ROWS_MAX, /* n * batch * (max_staleness + 1) */
    HZP_ROLLOUT_TAKE_MAX =
        256, /* samples of one lease, also in the table of fields; their tokens: */
    HZP_ROLLOUT_TAKE_TOKENS = 1 << 17,
    HZP_ROLLOUT_TURNS_MAX = 64
};

enum hzp_rollout_algo {
    HZP_ROLLOUT_GRPO,  /* PPO's clip 0.2; each answer counts alike, whatever its length */
    HZP_ROLLOUT_DAPO,  /* clip 0.2 and 0.28; each token counts alike */
    HZP_ROLLOUT_CISPO, /* the clipped ratio as a weight */
    HZP_ROLLOUT_REINFORCE,
    HZP_ROLLOUT_GSPO, /* the ratio of a whole answer, clipped at 3e-4 and 4e-4 */
    HZP_ROLLOUT_ALGOS
};
const char *hzp_rollout_algo_name(enum hzp_rollout_algo algo);

struct hzp_rollout_prompt {
    int32_t *token; /* [count], owned */
    int32_t count;
    char *reference;  /* owned; NULL: none */
    json_t *messages; /* owned; with turns: those that it was made of */
};

/* How an answer goes on where the model has ended its turn: rollouts_turns.c. */
struct hzp_rollout_turns {
    int32_t most;  /* turns of the model in an answer; 0: one, and nothing follows */
    bool client;   /* clients say what follows, not the operator's command, */
    float seconds; /* in so many seconds */
    json_t *tools; /* owned: as in a chat; NULL: none */
};

struct hzp_rollout_spec {
    struct hzp_rollout_prompt *prompt; /* [prompts], owned */
    int32_t prompts, n, max_tokens;
    float temperature;
    uint64_t seed;
    struct hzp_verifier *verifier; /* owned */
    bool train;                    /* false: each prompt is answered once, and nothing learned */
    int32_t updates, batch, staleness;
    enum hzp_rollout_algo algo;
    enum hzp_advantage advantage;
    float kl;              /* coefficient of the divergence from a reference: */
    bool client_reference; /* clients say its log-probabilities; else: see above */
    json_t *consumers;     /* owned: names of those that have to take each answer; NULL: none */
    struct hzp_rollout_turns turns;
    json_t *body; /* owned: what the spec was read from, with the seed; NULL: it is not kept */
};
void hzp_rollout_spec_fini(struct hzp_rollout_spec *spec); /* also of one that is all 0 */

struct hzp_rollouts_config { /* borrowed */
    struct hzp_state *state; /* NULL: nothing can be learned */
    struct hzp_scheduler *scheduler;
    struct hzp_loop *loop;
    struct hzp_weights *weights;
    struct hzp_tokenizer *tok;
    const struct hzp_chat *chat; /* NULL: the model has no template */
    const struct hzp_model_config *model;
    struct hzp_trainer *trainer; /* NULL: there is none */
    int32_t update_tokens;       /* the most that an update may have */
    int64_t bytes;               /* what the answers held take */
    const char *command;         /* what rewards of type command run; NULL: there is none */
    const char *tools;           /* what environments of type command run; NULL: there is none */
    const char *untrained;       /* why jobs may not train here, a whole sentence; NULL: they may */
};

/* NULL: no thread is left. */
struct hzp_rollouts *hzp_rollouts_start(const struct hzp_rollouts_config *config);
/* Jobs end, and no more are accepted.  NULL: no effect. */
void hzp_rollouts_close(struct hzp_rollouts *r);
/* Ends the thread, when the loop has ended or still runs, and the scheduler exists.  NULL: no
 * effect. */
void hzp_rollouts_stop(struct hzp_rollouts *r);

/* Accepts a job and takes over the spec (zeroed) also on failure.  HZP_EINVAL names the field;
 * HZP_EBUSY: HZP_ROLLOUTS_OPEN have not ended; HZP_ECANCELED: the server stops. */
int hzp_rollouts_add(struct hzp_rollouts *r, struct hzp_rollout_spec *spec, uint64_t *ret_id,
                     struct hzp_err_text *reterr);
/* Goes on with the jobs of an earlier server, before others are added.  read: makes a spec of its
 * body, as it was made when it was added. */
typedef int hzp_rollout_reader(const void *ctx, const json_t *body, struct hzp_rollout_spec *ret,
                               struct hzp_err_text *reterr);
void hzp_rollouts_resume(struct hzp_rollouts *r, hzp_rollout_reader *read, const void *ctx);
/* A job as GET /v1/rollouts/{id} shows it; all of them, newest first, without curves.  New
 * references; NULL: there is no such job. */
json_t *hzp_rollouts_job(struct hzp_rollouts *r, uint64_t id);
json_t *hzp_rollouts_list(struct hzp_rollouts *r);
/* HZP_ENOENT: no such job, or it has ended. */
int hzp_rollouts_cancel(struct hzp_rollouts *r, uint64_t id, struct hzp_err_text *reterr);
/* The answers of the job that runs are samples, which clients take and write to (row_table.h).
 * done: a lease that the consumer is done with; 0: none.  columns: names with commas, which are
 * written to the query.  HZP_EUNSUP: the lease has run out; HZP_EBUSY: a bound. */
int hzp_rollouts_take(struct hzp_rollouts *r, struct hzp_rows_query *query, const char *columns,
                      int64_t done, json_t **ret, struct hzp_err_text *reterr);
/* lease: that the sample has to be under; 0: any, or none.  The same value again has no effect.
 * HZP_ENOENT; HZP_EUNSUP: it has another value, another lease, or takes none. */
int hzp_rollouts_put(struct hzp_rollouts *r, int64_t sample, const char *column,
                     const json_t *value, int64_t lease, struct hzp_err_text *reterr);

/* Of two prompts that were computed with their log-probabilities and end differently: how much
 * likelier the first one's end is, p / (p + q).  NAN: they differ from the first token on, which
 * has no log-probability, or one failed. */
double hzp_rollout_preferred(struct hzp_request *const prompt[2]);

/* A number, or with a count a list of so many log-probabilities.  ret: [count, at least 1]. */
int hzp_sample_numbers(const json_t *value, int32_t count, double *ret,
                       struct hzp_err_text *reterr);

struct hzp_rollouts_stats {
    int32_t jobs, members, waiting, ready; /* not ended; running requests; that wait for a client;
                                            * groups that are ready */
    int32_t rows;                          /* samples that can be taken */
    int64_t bytes, bytes_most;             /* what the answers held take; config.bytes */
    uint64_t leases, expired, samples, dropped, lost, stale, late, updates; /* dropped: groups */
    double reward_mean; /* at the newest point of a curve */
    int64_t staleness;
};
void hzp_rollouts_read_stats(struct hzp_rollouts *r, struct hzp_rollouts_stats *ret);
