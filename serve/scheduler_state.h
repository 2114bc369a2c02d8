/* SPDX-License-Identifier: Apache-2.0 */
/* serve/scheduler_state.h - the scheduler's structs, private to the files of this folder that
 * implement it.
 *
 * Thread: see the comments in the struct.
 */
#pragma once

#include "serve/depth.h"
#include "serve/scheduler.h"

struct hzp_ring;

/* A sequence's rows in one step. */
struct hzp_part {
    uint64_t step;
    int32_t pos0, rows;     /* first position; rows 0: none */
    int32_t logit0, logits; /* its range of the step's logits */
    int32_t hidden0;        /* its first of the step's hidden states */
};

/* A sequence that has KV pages.  `rq` is NULL once the request is final; its pages are then kept
 * until the last step that uses them has ended, and that step's results for it are discarded. */
struct hzp_seq {
    struct hzp_request *rq;
    bool used;
    int32_t *page; /* [page_stride], the first `taken` are the sequence's */
    int32_t taken;
    int32_t passed; /* the first ones are not held any more: its rows have passed them (kvpool.h) */
    int32_t kept;   /* the first ones are the prefix cache's, with a reference: never written to */
    int32_t spared; /* pages among these that another sequence used when they were found */
    int32_t fed;    /* positions whose keys and values are stored once all steps formed so far
                         * have ended */
    int32_t prompt_end;      /* end of the rows computed in chunks: the prompt, and tokens generated
                         * before a preemption */
    uint64_t prompt_version; /* computes, or has computed, the rows up to prompt_end */
    bool restarted;          /* a swap has made it compute those rows again */
    bool mixed;              /* rows behind prompt_end were computed by another version */
    bool alone;              /* the cache has another page for its next tokens */
    bool passed_over;        /* restarted, and the newest step of its version had no row for it */
    uint64_t fetch;          /* waits until hzp_prefix_fetched() has come to this */
    uint64_t sought;         /* hzp_prefix_additions() at the last search */
    struct hzp_part part[2]; /* step n is part[n % 2]; two may be in flight */
    struct hzp_lookup *lookup;              /* NULL: nothing is guessed of this sequence */
    int32_t guess[HZP_LOOKUP_MAX], guesses; /* behind the first of its rows in flight */
    int32_t guessed; /* guess[0 .. guessed) are this round's so far (depth.h) */
    int32_t left;    /* further steps in which it guesses in this round */
    bool guessing;   /* its row in flight guesses one more */
    bool keen;       /* its next rows wait for its newest token, to guess in a round */
    uint64_t step;   /* the last step that accesses its pages */
};

/* The beginnings of prompts that are computed again after a swap, the most used one first, and the
 * sequence that computes the next one: not one of the running sequences, and only while there are
 * none. */
enum { HZP_REWARM_MAX = 16 };
struct hzp_rewarm {
    struct hzp_prefix_hot hot[HZP_REWARM_MAX];
    int32_t count, next;
    struct hzp_request *rq; /* holds the tokens; NULL: none is being computed */
    struct hzp_seq seq;
    bool leaving; /* its pages are released when the last step that uses them has ended */
};

struct hzp_scheduler {
    struct hzp_source source;

    /* fixed after create */
    struct hzp_scheduler_config config;
    const struct hzp_model *model;
    struct hzp_kvpool *pool;
    int32_t page_rows, page_stride;
    int32_t
        wait_room; /* room of `wait`: preempted requests, and those whose weights have come, have
                        * places in addition to waiting_max */
    struct hzp_ring *submitted;
    struct hzp_admission *admission;
    struct hzp_admission *windows; /* the same for backing pages; NULL: there are none */
    struct hzp_prefix *prefix;

    /* engine thread only */
    struct hzp_seq *seq;       /* [running_max] */
    int32_t *page_memory;      /* [running_max][page_stride] */
    int32_t *order;            /* indices of running sequences, oldest first: `ordinary` ones, then
                                * those of background requests */
    struct hzp_lookup *lookup; /* [running_max]; NULL: nothing is guessed */
    struct hzp_history *history; /* NULL: nothing is guessed from earlier answers */
    int32_t *chosen;             /* [running_max] sequences that decode in the step being formed */
    struct hzp_request **news;   /* [running_max] whose wake is due */
    int32_t news_count;
    int32_t running, ordinary;
    int32_t turn; /* index in `order` of the sequence that decodes first; moves on if a step has no
                   * room for all */
    int32_t turn_behind; /* the same of background requests, counted from the first of them */
    /* Steps apart, for references (swap.c): the prompt rows that the newest ordinary step left to
     * them, the newest step that was theirs, and the earliest number of the next one. */
    int32_t spare;
    uint64_t apart_step, apart_next;
    struct hzp_request **wait; /* a ring [wait_room] */
    int32_t wait_head, wait_count;
    struct hzp_request *
        *later; /* [2 * waiting_max] waiting for weights, in the order of submission */
    int32_t later_count;
    int32_t awaiting; /* those whose weights do not serve: not part of `waiting`, and as many */
    int64_t awaiting_tokens;   /* prompt tokens of those */
    int32_t bounded;           /* requests with max_staleness, from submission to end */
    bool asks;                 /* their bound applies */
    bool drains;               /* no further request is accepted */
    struct hzp_growth *growth; /* [running_max] scratch */
    uint64_t look_next; /* the step at which the admission prediction is recomputed at the latest */
    const struct hzp_request *looked_for; /* head of the queue at that time; only compared */
    bool left;                            /* a sequence has left since then */
    struct hzp_budget budget;
    struct hzp_rounds rounds; /* with guess_by_depth */
    double row_ns;            /* how long computing a prompt's row takes; 0: not known */
    struct hzp_rewarm warm;
    uint64_t ended;    /* newest step that has ended */
    uint64_t version;  /* the current one when the step is formed; 0: none yet */
    uint64_t serves;   /* that computes the rows of the step being formed */
    uint64_t trial;    /* the version on trial; 0: none */
    uint64_t served;   /* that computed those of the newest step that had rows */
    uint64_t clock_ns; /* the newest step's */
    struct hzp_scheduler_stats now;

    /* under lock; nothing blocks while it is held */
    struct hzp_lock lock;
    bool stopping, hurry;
    int32_t waiting;        /* submitted or in `wait`, and never ran; not those that await */
    int64_t waiting_tokens; /* prompt tokens of those */
    int32_t preempted;      /* requests in `wait` that ran before */
    int32_t background;     /* submitted or in `wait`: not part of these three */
    uint64_t refused;
    struct hzp_scheduler_stats shown;
};

/* The tokens of its sequence that are known. */
static inline struct hzp_prefix_tokens hzp_request_tokens(const struct hzp_request *rq)
{
    /* relaxed: only the engine thread writes it */
    int32_t drawn = atomic_load_explicit(&rq->out_count, memory_order_relaxed);
    return (struct hzp_prefix_tokens){.prompt = rq->prompt,
                                      .prompt_count = rq->prompt_count,
                                      .out = rq->out,
                                      .depth = rq->demands.depth,
                                      .count = rq->prompt_count + drawn};
}

/* True: all tokens it may generate are drawn once the steps formed so far have ended. */
static inline bool hzp_seq_complete(const struct hzp_seq *seq)
{
    return seq->fed - seq->guesses >= seq->rq->prompt_count + HZP_MAX(seq->rq->max_tokens, 1) - 1;
}

static inline bool hzp_seq_has_page(const struct hzp_scheduler *s, const struct hzp_seq *seq)
{
    return seq->taken * s->page_rows > seq->fed;
}

static inline bool hzp_seq_decodes(const struct hzp_seq *seq)
{
    return seq->fed >= seq->prompt_end;
}

/* True: rows that it needs are on their way from a tier. */
static inline bool hzp_seq_fetches(const struct hzp_scheduler *s, const struct hzp_seq *seq)
{
    return seq->fetch > hzp_prefix_fetched(s->prefix);
}

/* The version that computes its next row. */
static inline uint64_t hzp_seq_version(const struct hzp_scheduler *s, const struct hzp_seq *seq)
{
    return seq->rq->pin ? seq->rq->pin->record.id : s->version;
}

static inline struct hzp_part *hzp_seq_part(struct hzp_seq *seq, uint64_t step)
{
    return &seq->part[step % 2];
}

/* ---- queue.c ---- */

/* Runs before a step is filled: ends canceled requests, admits requests that fit, and gives every
 * running sequence the page of its next row, preempting the youngest if necessary. */
void hzp_queue_turn(struct hzp_scheduler *s, const struct hzp_step *step);

/* Runs before that: a sequence whose prompt another version has begun, and not finished, computes
 * it again from the first row (scheduler.h).  The results of its in-flight rows are discarded. */
void hzp_queue_restart(struct hzp_scheduler *s, uint64_t version);

/* The sequence's rows, also those of tokens it has drawn, will be computed again from the first
 * one; the results of its in-flight rows are discarded. */
void hzp_begin_again(struct hzp_scheduler *s, struct hzp_seq *seq);

/* Puts a request into the queue, by its priority; ends one that waits and was taken from it. */
void hzp_wait_add(struct hzp_scheduler *s, struct hzp_request *rq);
void hzp_end_waiting(struct hzp_scheduler *s, struct hzp_request *rq, enum hzp_request_state state);

/* Requests whose weights do not serve have places of their own, as many as the queue, so that they
 * keep none from a request that could run.  False: there is none left. */
bool hzp_take_place(struct hzp_scheduler *s, struct hzp_request *rq, bool awaits);

/* Ends the i-th oldest running request. */
void hzp_end_running(struct hzp_scheduler *s, int32_t i, enum hzp_request_state state);

/* Fails all requests, submitted ones too. */
void hzp_fail_all(struct hzp_scheduler *s);

/* The i-th waiting request. */
struct hzp_request *hzp_wait_at(const struct hzp_scheduler *s, int32_t i);
/* How many wait that are no background requests: these stand behind them. */
int32_t hzp_wait_ordinary(const struct hzp_scheduler *s);

/* Searches the prefix cache for the sequence's next pages, if all its rows so far were found there.
 * True: there are some.  take: the sequence gets them. */
bool hzp_seek_prefix(struct hzp_scheduler *s, struct hzp_seq *seq, bool take);

/* The sequence holds no pages that its rows from this position on do not read. */
void hzp_pass_pages(struct hzp_scheduler *s, struct hzp_seq *seq, int32_t position);
/* After a step has ended: as far as the steps in flight, and those to come, allow. */
void hzp_pass_ended(struct hzp_scheduler *s, struct hzp_seq *seq);

/* Releases the sequence's pages; no in-flight step may read them. */
void hzp_release_pages(struct hzp_scheduler *s, struct hzp_seq *seq);

/* The request has output or is final: its wake is called by the next hzp_tell_news(). */
void hzp_add_news(struct hzp_scheduler *s, struct hzp_request *rq);
/* Calls them, one behind the other; final requests belong to their creators from then on. */
void hzp_tell_news(struct hzp_scheduler *s);

/* Publishes the statistics to other threads. */
void hzp_show_stats(struct hzp_scheduler *s);

/* ---- swap.c ---- */

/* Whether it may have to: it asks for something, or another scheduler has begun it by one version
 * that it must keep. */
bool hzp_may_wait(const struct hzp_request *rq);
/* A request that has been submitted waits beside the queue until a version meets what it asks for,
 * unless one does so already. */
void hzp_later_add(struct hzp_scheduler *s, struct hzp_request *rq, const struct hzp_step *step);
/* Those whose version serves go to the end of the queue; those whose time is over end. */
void hzp_later_turn(struct hzp_scheduler *s, const struct hzp_step *step);
/* When the time of the first of them is over; UINT64_MAX: none waits. */
uint64_t hzp_later_due(const struct hzp_scheduler *s);

/* Tells the store the smallest bound of all requests. */
void hzp_ask_staleness(struct hzp_scheduler *s);

/* An admitted request acquires the current version, if it is to be pinned, or the one on trial, if
 * it is drawn; a final one releases it. */
void hzp_pin(struct hzp_scheduler *s, struct hzp_request *rq);
void hzp_unpin(struct hzp_scheduler *s, struct hzp_request *rq);
/* A dropped trial answers the request, and is not kept for it any longer: what a swap from that
 * version to the current one would do.  seq NULL: it waits. */
void hzp_leave_trial(struct hzp_scheduler *s, struct hzp_request *rq, struct hzp_seq *seq);
/* Gives requests whose pin has lasted too long their verdict, or, where a dropped trial answers
 * them, does with them what a swap would. */
void hzp_look_at_pins(struct hzp_scheduler *s);
void hzp_count_pins(struct hzp_scheduler *s);

/* Whether the version on trial is to answer the request, which has not begun. */
bool hzp_drawn(const struct hzp_scheduler *s, const struct hzp_request *rq);
/* Takes notice of trials that have begun or ended, after hzp_swap. */
void hzp_trial_turn(struct hzp_scheduler *s, const struct hzp_step *step);

/* v has become current: what happens to each request that has begun.  s->version is v. */
void hzp_swap(struct hzp_scheduler *s, const struct hzp_version *v);

/* Sets s->serves: versions with sequences take turns.  next: when the step of that version had no
 * row; `first` is where the turn began.  NULL: all were tried. */
struct hzp_version *hzp_first_version(struct hzp_scheduler *s, const struct hzp_step *step);
struct hzp_version *hzp_next_version(struct hzp_scheduler *s, const struct hzp_step *step,
                                     const struct hzp_version *first);

/* ---- fill.c: decode rows, prompt rows, and a report of the waiting prompts ---- */

/* The step's rows are those of one version, offer->version. */
void hzp_fill_step(struct hzp_scheduler *s, const struct hzp_step *step, struct hzp_room *room,
                   struct hzp_offer *offer);

/* A step for the prefix that is computed again; no request runs. */
void hzp_fill_warm(struct hzp_scheduler *s, const struct hzp_step *step, struct hzp_room *room,
                   struct hzp_offer *offer);

/* ---- rewarm.c ---- */

/* Before the cache hears of a swap: chooses what will be computed again. */
void hzp_rewarm_plan(struct hzp_scheduler *s);
/* Adds rows to the step, if no request is there and something is left to compute. */
void hzp_rewarm_step(struct hzp_scheduler *s, const struct hzp_step *step, struct hzp_room *room,
                     struct hzp_offer *offer);
/* Gives way to requests: what is computed stays in the cache, the rest is computed later. */
void hzp_rewarm_stop(struct hzp_scheduler *s);
/* After a step has ended. */
void hzp_rewarm_ended(struct hzp_scheduler *s);
void hzp_rewarm_free(struct hzp_scheduler *s);

/* ---- results.c ---- */

/* The results of a step. */
struct hzp_results {
    const struct hzp_batch *batch;
    uint64_t version, at_ns; /* version the step served from; time at which it ended */
    int64_t staleness;       /* hzp_step_staleness */
};

/* Takes over the results for the sequence's rows: writes outputs and counts; its wake becomes due.
 * Returns RUNNING, or how the request ended. */
enum hzp_request_state hzp_take_results(struct hzp_scheduler *s, const struct hzp_results *results,
                                        struct hzp_seq *seq, const struct hzp_part *part);

/* Optimizer steps by which the version of this step is behind the newest finished one. */
int64_t hzp_step_staleness(const struct hzp_scheduler *s, const struct hzp_step *step);
