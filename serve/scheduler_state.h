/* SPDX-License-Identifier: Apache-2.0 */
/* serve/scheduler_state.h - the scheduler's own structs, for the files of this folder that implement
 * it.
 *
 * Thread: as the headings of the struct say.
 */
#ifndef HZP_SERVE_SCHEDULER_STATE_H
#define HZP_SERVE_SCHEDULER_STATE_H

#include "serve/budget.h"
#include "serve/scheduler.h"

#include <pthread.h>
#include <stdatomic.h>

struct hzp_ring;

/* A sequence's rows in one step. */
struct hzp_part {
    uint64_t step;
    int32_t pos0, rows;     /* from this position on; 0: none */
    int32_t logit0, logits; /* its range of the step's logits */
};

/* A sequence that has KV pages.  `rq` is NULL once the request is final; the pages may have to
 * wait for their last step, and what that one brings is nobody's. */
struct hzp_seq {
    struct hzp_request *rq;
    bool used;
    int32_t *page; /* [page_stride], the first `taken` are ours */
    int32_t taken;
    int32_t fed;         /* positions whose keys and values are stored once the steps formed so far
                          * have ended */
    int32_t prompt_end;  /* rows that come in pieces: prompt, and what was drawn before */
    struct hzp_part part[2]; /* of step n: part[n % 2]; two may be under way */
    uint64_t step;       /* the last step that touches our pages */
};

struct hzp_scheduler {
    struct hzp_source source;

    /* fixed after create */
    struct hzp_scheduler_config config;
    const struct hzp_model *model;
    struct hzp_kvpool *pool;
    int32_t page_rows, page_stride;
    int32_t wait_room;     /* of `wait`: who was pushed back has a place beside those who may wait */
    struct hzp_ring *submitted;
    struct hzp_admission *admission;

    /* engine thread only */
    struct hzp_seq *seq;       /* [running_max] */
    int32_t *page_memory;  /* [running_max][page_stride] */
    int32_t *order;        /* indices of running sequences, oldest first */
    int32_t *chosen;       /* [running_max] who decodes in the step that is formed */
    int32_t running;
    int32_t turn;          /* who of `order` decodes first: moves on when a step has no room for all */
    struct hzp_request **wait; /* a ring [wait_room] */
    int32_t wait_head, wait_count;
    struct hzp_growth *growth; /* [running_max] scratch */
    uint64_t look_next;        /* the step in which admission looks at who runs at the latest */
    const struct hzp_request *looked_for; /* who was first in the queue then; only compared */
    bool left;                 /* somebody who ran then does not any more */
    struct hzp_budget budget;
    uint64_t ended;        /* newest step that has ended */
    uint64_t clock_ns;     /* of the newest step */
    struct hzp_scheduler_stats now;

    /* under lock; the lock is never held across anything that waits */
    pthread_mutex_t lock;
    bool stopping, hurry;
    int32_t waiting;        /* submitted or in `wait`, never ran */
    int64_t waiting_tokens; /* of theirs */
    int32_t pushed_back;    /* in `wait` for another time */
    uint64_t refused;
    struct hzp_scheduler_stats shown;

    _Atomic int32_t rows_bound;
};

/* Takes over what the step brought for the sequence's rows: outputs, counts, the wake.  RUNNING, or
 * how the request ended.  staleness: hzp_step_staleness. */
enum hzp_request_state hzp_take_results(struct hzp_scheduler *s, const struct hzp_step *step,
                                        const struct hzp_seq *seq, const struct hzp_part *part,
                                        int64_t staleness);

/* Optimizer steps by which the version of this step trails the newest finished one. */
int64_t hzp_step_staleness(const struct hzp_scheduler *s, const struct hzp_step *step);

#endif
