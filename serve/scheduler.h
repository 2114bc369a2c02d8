/* SPDX-License-Identifier: Apache-2.0 */
/* serve/scheduler.h - which requests run in the next step: the loop's first source.
 *
 * Never sleeps, takes no memory after create but what a request brings, and reads no clock but the
 * step's, so a test can replay a day in a second.
 *
 *     submit -> waiting -> prefill -> decode -> done
 *                  ^ |         | |       | |
 *                  | +---------|-+-------|-+----> canceled, failed
 *                  +-----------+---------+        preempted
 *
 * A step takes the row of every decoding sequence first, then pieces of prompts, oldest first and
 * cut at the row, until it has as many rows as its budget says (budget.h).  A request's tokens do
 * not depend on the other requests in its steps.
 *
 * A step may be formed while the one before it is in flight.  A sequence whose next draw must know
 * its last token (penalties) then has no row in it: it decodes in every second step.  Where most of
 * the sequences need that, the loop waits for the results instead (hzp_offer.settle).
 *
 * Admission is first come, first served, when the KV pages are predicted to suffice (admission.h).
 * A prediction may fail: a sequence needs a page for its next row and none is free.  Then the
 * youngest running request is preempted: it gives its pages up and goes to the front of the queue;
 * admitted again, it recomputes the rows of prompt and generated tokens and continues.  The client
 * sees a longer gap between two tokens, nothing else: a token is drawn from (seed, position),
 * penalties count what was generated, and outputs never change.
 *
 * No deadlock and no starvation.  Requests have one order, that of submission: running requests are
 * in it, waiting ones come after them, and neither admission (from the queue's front) nor
 * preemption (from the last running one to the queue's front) changes it.  Before a step is filled
 * every running sequence gets the page of its next row, oldest first, and may preempt only younger
 * ones.  So the oldest always gets its page: a free one, one that comes back when the in-flight
 * step ends, or one from the youngest, until it runs alone, and alone its worst case fits the pool
 * or submit would have refused it.  It gets rows, too: decoding sequences come to a row in turn,
 * and of the prompts the oldest is first.  So it ends after finitely many steps; then the next one
 * is the oldest.  No request is preempted for a younger one, so no two can take pages from each
 * other for ever.  (A youngest sequence that lacks a page keeps those it has and gets no row until
 * a page comes back or an older sequence needs the ones it holds.)
 *
 * Bounds: at most running_max sequences run; beyond waiting_max that never ran submit refuses.
 *
 * Thread: engine, except submit and read_stats: any.
 */
#ifndef HZP_SERVE_SCHEDULER_H
#define HZP_SERVE_SCHEDULER_H

#include "nanobatch/source.h"
#include "serve/admission.h"
#include "serve/budget.h"
#include "serve/kvpool.h"
#include "serve/request.h"

struct hzp_scheduler;

struct hzp_scheduler_config {
    int32_t running_max;        /* sequences with KV pages */
    int32_t waiting_max;        /* beyond it submit answers HZP_EBUSY */
    int64_t waiting_tokens_max; /* the same, counted in prompt tokens */
    int32_t prefill_rows_max;   /* prompt rows of one step while others decode; 0: budget.h says */
    enum hzp_admission_rule admission;
    int32_t edits_max; /* of the batch: submit refuses a request that could need more */
};

int hzp_scheduler_create(const struct hzp_scheduler_config *config, const struct hzp_model *model,
                         struct hzp_kvpool *pool, struct hzp_scheduler **ret);
void hzp_scheduler_destroy(struct hzp_scheduler *s); /* requests left fail; NULL: no effect */
struct hzp_source *hzp_scheduler_source(struct hzp_scheduler *s); /* lives as long as s */

/* Thread: any.  HZP_OK: rq is the engine's until it is in a final state; poke the loop.
 * HZP_EBUSY: the queue is full.  HZP_EINVAL: its worst case can never fit (reterr says the
 * numbers).  HZP_ECANCELED: the server is stopping.  In all failures rq is still the caller's. */
int hzp_scheduler_submit(struct hzp_scheduler *s, struct hzp_request *rq,
                         struct hzp_err_text *reterr);

/* Thread: any.  From now on submit answers HZP_ECANCELED; hurry: running requests fail too. */
void hzp_scheduler_stop(struct hzp_scheduler *s, bool hurry);

/* No step will run any more: stops, and fails all requests left.  Threads that wait for answers
 * wake up, so they can be joined before destroy. */
void hzp_scheduler_abort(struct hzp_scheduler *s);

/* Classes of a step's rows: up to 1, 8, 16, 32, ... 16384, and more. */
enum { HZP_STEP_ROWS_CLASSES = 14 };

/* Thread: any. */
struct hzp_scheduler_stats {
    int32_t waiting, running; /* waiting: with preempted ones, which the bounds do not count */
    int64_t waiting_tokens;   /* prompt tokens of those that never ran */
    uint64_t admitted, finished[HZP_REQUEST_FAILED + 1], refused;
    uint64_t preempted; /* preemptions */
    uint64_t prompt_tokens, generated_tokens, steps;
    uint64_t recomputed_tokens; /* rows computed again after a preemption */
    uint64_t
        step_rows[HZP_STEP_ROWS_CLASSES]; /* steps by rows: 1, 2..8, 9..16, 17..32, and so on */
    int32_t kv_pages, kv_taken;
    int32_t kv_peak; /* that the running ones are predicted to need: at admission's last look, at
                      * most eight steps ago */
    int32_t budget_rows;                      /* of the newest step that served */
    uint64_t budget_reason[HZP_BUDGET_COUNT]; /* steps by what decided their prompt rows */
};
void hzp_scheduler_read_stats(struct hzp_scheduler *s, struct hzp_scheduler_stats *ret);

#endif
