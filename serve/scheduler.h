/* SPDX-License-Identifier: Apache-2.0 */
/* serve/scheduler.h - decides which requests run in the next step: the loop's first source.
 *
 * Never sleeps, allocates nothing after create except per request at submit, and reads no clock
 * other than the step's, so a test can simulate a day in a second.
 *
 *     submit -> waiting -> prefill -> decode -> done
 *                  ^ |         | |       | |
 *                  | +---------|-+-------|-+----> canceled, failed
 *                  +-----------+---------+        preempted
 *
 * A step takes one row of every decoding sequence first, then chunks of prompts, oldest first and
 * of any number of rows, up to its row budget (budget.h).  In F32 on the CPU a request's tokens do
 * not depend on the other requests in its steps.  On a GPU, and in BF16 or fp8 on the CPU, the
 * kernel of a matrix product is chosen by its number of rows, so low bits may differ
 * (docs/ARCHITECTURE.md, device/cpu/matmul.c).
 *
 * A step may be formed while the one before it is in flight.  A sequence whose next draw depends on
 * its last token (penalties, a grammar) then has no row in it: it decodes in every second step.  If
 * all running ones are of that kind, the loop waits for the results instead (hzp_offer.settle).
 *
 * Admission is in the order of the queue, when the KV pages are predicted to suffice (admission.h).
 * The queue is first come, first served among requests of one priority; each unit of priority, of
 * at most HZP_PRIORITY_UNITS, counts as a second: a request is overtaken by those of lower
 * priority that came at most so many seconds later as their priorities differ.  So at most two
 * minutes later than any request, no other can overtake it.
 * A prediction may fail: a sequence needs a page for its next row and none is free.  Then the
 * youngest running request is preempted: it releases its pages and moves to the front of the queue;
 * admitted again, it recomputes the rows of its prompt and generated tokens and continues.  The
 * client only sees a longer gap between two tokens: a token's random number depends on (seed,
 * position) only, penalties count all generated tokens, and outputs already written never change.
 *
 * Background requests have what others leave.  They stand behind all others in the queue and among
 * the running ones, so they are admitted last and preempted first; also where an ordinary request
 * lacks a running slot, or predicted pages.  While an ordinary one waits, or computes its prompt,
 * they get no rows.  While ordinary ones decode, they get the rows with which the device would pad
 * the step, and those that an ITL goal leaves.  Alone they get all rows for tokens, and few for
 * prompts, because a request that arrives waits for the end of their step.  Those that a version of
 * their own computes (struct hzp_request.reference) need a step for themselves: while ordinary ones
 * decode, and leave rows, it is one in 128 at most.  Nothing bounds how long they wait.
 *
 * One version computes a prompt.  If a swap finds a prompt begun and not finished, its rows are
 * computed again from the first one by the new version; prompts are filled oldest first, so that is
 * one prompt a swap, seldom more.  Until a prompt that was restarted is finished, its steps ask
 * that no further version be published (hzp_offer.keep_version), as long as it gets a row in every
 * step that serves: so a prompt is restarted once, and publication waits for at most as many steps
 * as such prompts have rows.  (One that lacks a page may be restarted again.)  After a preemption
 * the same holds of all rows that are recomputed.
 *
 * What a request may ask of the weights, and how steps alternate between versions where requests
 * pin them: consistency.h.  A step serves one version; the others' sequences have no rows in it.
 *
 * Prompts that begin alike.  Before its first row is computed, and again while all its rows were
 * found, a sequence takes the pages that the prefix cache has for its tokens.  While an older
 * prompt computes rows that it could use, it waits: pages formed in a step are found from the next
 * step on.  A swap leaves the cache empty, but for stale pages where they are allowed; then the
 * most used beginnings may be computed again while no request is there (rewarm.c).
 *
 * No deadlock and no starvation.  Requests have one order, that of the queue.  Running requests
 * come before waiting ones in it, and neither admission (from the front of the queue) nor
 * preemption (of the last running request, to the front of the queue) changes it.  Before a step is
 * filled every running sequence gets the page of its next row, oldest first, and may preempt only
 * younger ones.  So the oldest always gets its page: a free one, one released when the in-flight
 * step ends, or one of the youngest, until it runs alone; and alone its worst case fits the pool,
 * because submit refuses a request otherwise.  It also gets rows: decoding sequences take turns,
 * and the oldest prompt comes first.  So it ends after finitely many steps, and the next one
 * becomes the oldest.  No request is preempted for a younger one, so two requests cannot take pages
 * from each other forever.  (If the youngest sequence lacks a page, it keeps the pages it has and
 * gets no row until a page is released or an older sequence needs its pages.)
 *
 * Bounds: at most running_max sequences run; submit refuses when waiting_max requests that have
 * never run are queued, or running_max background ones, which are not among these.  Nor are
 * requests that wait for weights which do not serve: so many more of them wait, and what is beyond
 * that ends as HZP_UNMET_FULL.
 *
 * Thread: engine, except check, submit and read_stats: any.
 */
#pragma once

#include "nanobatch/source.h"
#include "serve/admission.h"
#include "serve/budget.h"
#include "serve/lookup.h"
#include "serve/request.h"
#include "weights/trials.h"

struct hzp_scheduler;

struct hzp_scheduler_config {
    int32_t running_max;        /* sequences with KV pages */
    int32_t waiting_max;        /* submit returns HZP_EBUSY above it */
    int64_t waiting_tokens_max; /* the same bound in prompt tokens */
    int32_t prefill_rows_max;   /* prompt rows of one step while others decode; 0: decided by
                                 * budget.h */
    enum hzp_admission_rule admission;
    bool prefix_cache;        /* rows of equal beginnings of prompts are computed once (prefix.h) */
    int32_t prefix_stale_max; /* rows of so many versions before the serving one are reused, where
                               * the request does not ask for newer ones (hzp_demands_oldest) */
    struct hzp_tier *tier;    /* where pages of the prefix cache go; borrowed; NULL: nowhere */
    int32_t rewarm_rows; /* rows of the most used beginnings, computed again after a swap while no
                               * request is there; 0: none */
    int32_t lookup_max;  /* guessed tokens of a sequence in a step (lookup.h); 0: none */
    bool guess_by_depth; /* by the model itself, cheaper (depth.h), not from the sequence's text */
    bool history;        /* from earlier answers, too (history.h) */
    int32_t guess_every; /* steps after which guessing is tried that did not pay; 0: 256 */
    int32_t edits_max;   /* edits in a batch: submit refuses a request that could need more */
    struct hzp_trials *trials; /* borrowed, needs pin_ns and 3 slots; NULL: there are none */
    uint64_t pin_ns; /* how long a version that is not current may be pinned; 0: requests may not
                        * pin versions (consistency.h) */
};

/* The configuration is copied, model and pool are borrowed.  It cannot fail. */
int hzp_scheduler_create(const struct hzp_scheduler_config *config, const struct hzp_model *model,
                         struct hzp_kvpool *pool, struct hzp_scheduler **ret);
void hzp_scheduler_destroy(struct hzp_scheduler *s); /* remaining requests fail; NULL: no effect */
struct hzp_source *hzp_scheduler_source(struct hzp_scheduler *s); /* lives as long as s */

/* Thread: any.  HZP_EINVAL: this server could never serve the request; as submit does. */
int hzp_scheduler_check(const struct hzp_scheduler *s, const struct hzp_request *rq,
                        struct hzp_err_text *reterr);

/* Thread: any.  HZP_OK: the engine owns rq until it is in a final state; poke the loop.  HZP_EBUSY:
 * the queue is full.  HZP_EINVAL: its worst case can never fit (reterr gives the numbers).
 * HZP_ECANCELED: the server is stopping.  After an error rq is still the caller's. */
int hzp_scheduler_submit(struct hzp_scheduler *s, struct hzp_request *rq,
                         struct hzp_err_text *reterr);

/* The same for several, of which all are queued or none.  Thread: any. */
int hzp_scheduler_submit_all(struct hzp_scheduler *s, struct hzp_request *const *rq, int32_t count,
                             struct hzp_err_text *reterr);

/* Thread: any.  From now on submit returns HZP_ECANCELED; hurry: running requests fail, too. */
void hzp_scheduler_stop(struct hzp_scheduler *s, bool hurry);

/* To be called when no further step will run: stops, and fails all remaining requests.  Threads
 * waiting for results wake up, so they can be joined before destroy. */
void hzp_scheduler_abort(struct hzp_scheduler *s);

/* Classes of steps by their number of rows: 1, 2 .. 8, 9 .. 16, 17 .. 32, ..., more than 16384. */
enum { HZP_STEP_ROWS_CLASSES = 14 };

/* Thread: any. */
struct hzp_scheduler_stats {
    int32_t waiting, running;   /* waiting: with preempted ones, which no bound counts */
    int32_t background;         /* background requests: those that run, part of `running`, */
    int32_t background_waiting; /* and those that wait, not part of `waiting` */
    int32_t waiting_weights;    /* those among `waiting` that wait for weights */
    int32_t awaiting;           /* and whose weights do not serve: these have places of their own */
    int64_t awaiting_tokens;    /* prompt tokens of those */
    int32_t pins;               /* requests that hold a version, */
    int32_t pinned_slots;       /* and versions held that are not current any more (64 at most) */
    int64_t waiting_tokens;     /* prompt tokens of waiting requests that never ran; not of those */
    uint64_t admitted, finished[HZP_REQUEST_FAILED + 1], refused;
    uint64_t preempted; /* preemptions */
    uint64_t prompt_tokens, generated_tokens, steps;
    uint64_t recomputed_tokens;           /* rows recomputed after preemptions and restarts */
    uint64_t prompt_restarts;             /* prompts begun again because of a swap */
    uint64_t recomputes;                  /* decoding sequences computed again after a swap */
    uint64_t aborted, pins_ended;         /* requests ended by a swap, by the bound on pins */
    uint64_t not_finite;                  /* requests in a row that ended for such logits */
    uint64_t prefix_queries, prefix_hits; /* prompt tokens looked for in the cache, found */
    uint64_t found_tokens;                /* part of prompt_tokens: found, not computed */
    uint64_t prefix_stale;                /* part of prefix_hits: computed by an older version */
    struct hzp_tier_stats tier;
    uint64_t rewarmed_tokens;                  /* rows computed again after a swap, for later */
    uint64_t step_rows[HZP_STEP_ROWS_CLASSES]; /* steps by rows */
    int32_t kv_pages, kv_taken;                /* taken: by running sequences */
    int32_t kv_backs, kv_backs_held, kv_backs_spare; /* struct hzp_kvpool_stats */
    int32_t kv_idle; /* kept by the prefix cache, in no sequence's use */
    int32_t kv_peak; /* predicted peak of the running requests' pages, at most eight steps old */
    int32_t budget_rows; /* rows of the newest step that served */
    /* steps in which a prompt could take rows, by what decided how many */
    uint64_t budget_reason[HZP_BUDGET_COUNT];
    uint64_t lookups; /* rows of a sequence in a step that had guesses (lookup.h) */
    uint64_t guessed[HZP_LOOKUP_MAX], accepted[HZP_LOOKUP_MAX]; /* tokens by their place in it */
};
void hzp_scheduler_read_stats(struct hzp_scheduler *s, struct hzp_scheduler_stats *ret);
