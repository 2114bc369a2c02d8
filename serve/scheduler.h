/* SPDX-License-Identifier: Apache-2.0 */
/* serve/scheduler.h - which requests run in the next step: the loop's first source.
 *
 * Never sleeps, takes no memory after create but what a request brings, reads no clock but the
 * step's.  So a test can replay a day in a second.
 *
 *     submit -> waiting -> prefill -> decode -> done
 *                  |          |          |
 *                  +----------+----------+----> canceled, failed
 *
 * A step takes every decoding sequence's row first, then pieces of prompts, oldest first, until
 * the dense batch is full.  Admission is first come, first served, when the worst case (prompt +
 * max_tokens) fits the unreserved KV pages; so nothing admitted ever fails for want of memory, and
 * nobody starves.  A request's tokens do not depend on who shares its steps.
 *
 * Bounds: at most running_max sequences run, waiting_max wait.
 *
 * Thread: engine, except submit and read_stats: any.
 */
#ifndef HZP_SERVE_SCHEDULER_H
#define HZP_SERVE_SCHEDULER_H

#include "nanobatch/source.h"
#include "serve/kvpool.h"
#include "serve/request.h"

struct hzp_scheduler;

struct hzp_scheduler_config {
    int32_t running_max;      /* sequences with KV pages */
    int32_t waiting_max;      /* beyond it submit answers HZP_EBUSY */
    int64_t waiting_tokens_max; /* the same, counted in prompt tokens */
    int32_t prefill_rows_max; /* prompt rows of one step while others decode */
    int32_t edits_max;        /* of the batch: submit refuses who could need more than all of them */
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

/* No step will run any more: stops, and fails what is left.  Those who wait for answers wake up,
 * so their threads can be joined before destroy. */
void hzp_scheduler_abort(struct hzp_scheduler *s);

/* Classes of a step's rows: up to 1, 8, 16, 32, ... 16384, and more. */
enum { HZP_STEP_ROWS_CLASSES = 14 };

/* Thread: any. */
struct hzp_scheduler_stats {
    int32_t waiting, running;
    int64_t waiting_tokens;
    uint64_t admitted, finished[HZP_REQUEST_FAILED + 1], refused;
    uint64_t prompt_tokens, generated_tokens, steps;
    uint64_t step_rows[HZP_STEP_ROWS_CLASSES]; /* steps by rows: 1, 2..8, 9..16, 17..32, and so on */
    int32_t kv_pages, kv_reserved, kv_taken;
};
void hzp_scheduler_read_stats(struct hzp_scheduler *s, struct hzp_scheduler_stats *ret);

#endif
