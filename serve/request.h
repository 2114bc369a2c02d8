/* SPDX-License-Identifier: Apache-2.0 */
/* serve/request.h - one choice of one completion: prompt tokens, sampling settings, and the
 * generated tokens.
 *
 * All memory is allocated at create, bounded by prompt and max_tokens.  The creator fills in the
 * settings and submits; from then on they are constant.  The engine appends outputs and increments
 * `out_count` (release); the creator reads up to it (acquire).  Once `state` is final and `let_go`
 * is set the engine never accesses the request again, and the creator destroys it.
 *
 *     NEW -submit-> WAITING <-> RUNNING -> STOPPED | LENGTH | CHANGED | UNMET | CANCELED | FAILED
 *
 * A request that is preempted for lack of KV pages goes back to WAITING (scheduler.h); its output
 * stays and continues when it runs again.  Likewise a request that another scheduler has begun: its
 * creator copies the tokens and their versions into `out` and sets `out_count` before submit.  One
 * that keeps its version (abort, pinned) goes on where that one is the current version, waits where
 * it is not yet, and else ends as CHANGED.
 *
 * Thread: the creator's, except where marked engine.
 */
#pragma once

#include "serve/consistency.h"
#include "serve/edits.h"

enum hzp_request_state {
    HZP_REQUEST_NEW,
    HZP_REQUEST_WAITING,
    HZP_REQUEST_RUNNING,
    /* final states */
    HZP_REQUEST_STOPPED,  /* end of sequence, a stop token, or the end of its grammar's text */
    HZP_REQUEST_LENGTH,   /* max_tokens, the end of the context, or no token may follow */
    HZP_REQUEST_CHANGED,  /* it may not go on with other weights: changed says why */
    HZP_REQUEST_UNMET,    /* it did not get the weights it asks for: unmet says why */
    HZP_REQUEST_CANCELED, /* cancel was raised */
    HZP_REQUEST_FAILED,   /* the device failed, or the server stopped in a hurry */
};

enum { HZP_STOP_IDS_MAX = 64, HZP_BIASES_MAX = 1024, HZP_PRIORITY_UNITS = 60 };

struct hzp_sampling {
    float temperature, top_p, min_p;
    float repetition, presence, frequency;
    int32_t top_k;
    uint64_t seed;
    uint32_t choice;
};

/* What of its prompt's hidden states a request without tokens is for. */
enum hzp_pooling { HZP_POOLING_NONE, HZP_POOLING_MEAN, HZP_POOLING_LAST };

struct hzp_output {
    int32_t token;
    float logprob;
    int32_t rank;
    uint64_t version; /* the version that computed it */
    /* the version that computed the rows it attends to up to the end of the prompt; after a
     * preemption also the rows of the tokens generated before it */
    uint64_t prompt_version;
    uint64_t at_ns; /* monotonic; 0: another process computed it, when is not known here */
};

struct hzp_request {
    /* settings: filled by the creator, constant after submit */
    uint64_t id;
    int32_t *prompt; /* [prompt_count], owned */
    int32_t prompt_count, max_tokens, min_tokens;
    bool ignore_eos, prompt_logprobs; /* the latter: logprob of every prompt token but the first */
    int32_t stop_id[HZP_STOP_IDS_MAX];
    int32_t stop_ids;
    struct hzp_sampling sampling;
    enum hzp_pooling pooling;
    int32_t priority; /* lower is admitted earlier: scheduler.h */
    int32_t tops;     /* number of likeliest tokens reported with each token, 0 .. HZP_TOPS_MAX */
    int32_t bias_token[HZP_BIASES_MAX];
    float bias[HZP_BIASES_MAX];
    int32_t biases;
    struct hzp_demands demands; /* what it asks of the weights: consistency.h */
    bool own;        /* the server's own: it counts towards no goal, and as no client's request */
    bool tries;      /* own: the version that is on trial when it begins answers it */
    bool background; /* it has only what other requests leave: scheduler.h; own is set, and it
                        * asks nothing of the weights */
    /* own, background: this version computes it, whatever serves; the creator holds it until the
     * request is final.  NULL: the version that serves. */
    struct hzp_version *reference;
    bool again;        /* another scheduler had accepted it: a graceful stop does not refuse it */
    uint64_t affinity; /* requests with the same number prefer one rank (api/front); 0: none */
    const struct hzp_token_rules *tokens; /* borrowed until destroy; NULL: any may be drawn */
    /* The engine calls it after output or a final state; it may only wake a thread.  more: another
     * call of this function follows at once, for another request, so one wakeup can serve all.
     * wake_ctx must outlive the request: the final state may be visible before wake is called. */
    void (*wake)(void *ctx, bool more);
    void *wake_ctx;

    /* output: written by the engine */
    struct hzp_output *out; /* [max_tokens] */
    int32_t *top_token;     /* [max_tokens][tops] */
    float *top_logprob;
    struct hzp_output *prompt_out; /* [prompt_count] if prompt_logprobs; [0] unused */
    int32_t *prompt_top_token;     /* [prompt_count][tops] */
    float *prompt_top_logprob;
    /* with pooling: the mean of the prompt's hidden states, or the last; owned */
    float *hidden;               /* [hidden_cols] */
    int32_t hidden_cols, pooled; /* the model's width; prompt tokens in it so far */
    uint64_t prompt_version;  /* final, with max_tokens 0: the version that computed its prompt */
    bool not_finite;          /* if state is FAILED: the model's logits were NaN or infinite */
    int32_t stop_token;       /* if state is STOPPED: the last token if it ended the text and is no
                                * part of it; -1: the grammar was complete with its last token */
    enum hzp_unmet unmet;     /* why it is UNMET */
    enum hzp_changed changed; /* why it is CHANGED */
    int32_t recomputes;       /* swaps after which all its rows were computed again */
    int32_t cached;           /* prompt tokens whose rows the prefix cache had, at first; set
                                * before the first output */
    /* Rows that an older version than its own had computed and the prefix cache had: of how many of
     * its prompt's tokens at most, and the oldest version; 0: none.  Before the first output, and
     * after a preemption. */
    _Atomic int32_t stale_tokens;
    _Atomic uint64_t stale_version;
    _Atomic int64_t staleness; /* largest seen while it ran, in optimizer steps; a request that
                                * ended for its client at a stop string may still be running */
    /* The version that was on trial when it began, 0: none; whether the trial answers it.  Before
     * the first output. */
    uint64_t trial;
    bool on_trial;
    uint64_t submitted_ns, admitted_ns;
    /* No token follows the newest one, though the state is not final yet.  Set before the
     * `out_count` that shows that token. */
    _Atomic bool whole;
    _Atomic int32_t out_count;
    _Atomic int32_t state; /* enum hzp_request_state */

    /* any thread: asks the engine to cancel the request; takes effect within one step */
    _Atomic bool cancel;

    /* used by the scheduler */
    struct hzp_edits *edits;        /* created at submit */
    int32_t computed;               /* rows of its sequence computed, or found, at least once */
    int32_t preemptions;            /* so far */
    bool preempted;                 /* it has run before and waits again */
    enum hzp_request_state verdict; /* ends with it at the next turn; NEW: it goes on */
    bool awaits;                    /* its place is one of those that wait for weights */
    uint64_t wait_until_ns;         /* for weights; step clock */
    uint64_t seen_step;             /* the step formed when it began to wait for weights */
    struct hzp_version *pin;        /* that it holds; NULL: none */
    uint64_t pin_until_ns;          /* step clock; UINT64_MAX: the version is current */
    _Atomic bool let_go; /* false from submit until wake() has returned for the final state: the
                          * engine's last access, which destroy waits for */
};

/* Allocates all of the above; prompt is copied.  HZP_ENOMEM. */
int hzp_request_create(const int32_t *prompt, int32_t prompt_count, int32_t max_tokens,
                       int32_t tops, bool prompt_logprobs, struct hzp_request **ret);
/* Before submit: the request is for hidden states of so many columns; it has max_tokens 0 and no
 * prompt_logprobs.  HZP_ENOMEM. */
int hzp_request_pool(struct hzp_request *rq, enum hzp_pooling pooling, int32_t cols);
void hzp_request_destroy(struct hzp_request *rq); /* NULL: no effect; never while it runs */

/* Returns when the engine has made its last access to a request whose state is final: at most the
 * moment until it has delivered the step's other results and called wake(). */
void hzp_request_await_release(const struct hzp_request *rq);

/* What a server can serve at most. */
struct hzp_request_limits {
    const struct hzp_model_config *model;
    int32_t positions;           /* longest sequence */
    int32_t kv_pages, page_rows; /* the pool's: each request must fit it alone */
    int64_t prompt_max;          /* tokens */
    int32_t edits_max;
};

/* HZP_EINVAL: the request could never be served; reterr names the field and the numbers. */
int hzp_request_check(const struct hzp_request *rq, const struct hzp_request_limits *limits,
                      struct hzp_err_text *reterr);

/* What its logit edits follow from; borrows the request and the model. */
struct hzp_edit_rules hzp_request_edits(const struct hzp_request *rq,
                                        const struct hzp_model_config *model);

/* Whether the engine is done with it.  Thread: any. */
bool hzp_request_final(const struct hzp_request *rq);

/* Whether rows of its prompt computed now bring logprobs of prompt tokens: not if they are known,
 * as those of a request that another scheduler has begun are.  Thread: engine. */
static inline bool hzp_request_tells_prompt(const struct hzp_request *rq)
{
    return rq->prompt_logprobs && rq->computed < rq->prompt_count && !atomic_load(&rq->out_count);
}

/* Whether the hidden state of the prompt's row p is pooled. */
static inline bool hzp_request_pools(const struct hzp_request *rq, int32_t p)
{
    return (rq->pooling == HZP_POOLING_MEAN && p < rq->prompt_count) ||
           (rq->pooling == HZP_POOLING_LAST && p == rq->prompt_count - 1);
}
