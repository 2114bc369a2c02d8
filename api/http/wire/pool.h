/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/pool.h - threads for work that may block or take long: parsing and tokenising
 * bodies, committing examples, writing large answers.
 *
 * A task is run once for each time it was posted, except that posts made before it begins count as
 * one.  A task that is posted while it runs is run again afterwards, never by two threads at once.
 *
 * Bounds: the number of threads; a task is in the queue at most once, and every task belongs to a
 * connection, so the queue is bounded by the number of connections.
 *
 * Thread: any; tasks run on the pool's threads ("hzp-http").
 */
#pragma once

#include "base/err.h"

struct hzp_pool;

struct hzp_pool_task {
    /* True: the task is over, its memory may be gone already; it must not be posted again. */
    bool (*run)(void *ctx);
    void *ctx;
    /* used by the pool, under its lock */
    struct hzp_pool_task *next;
    bool queued, running, again;
};

/* background: its threads give way to all others (base/thread.h).  HZP_ENOMEM: no thread is left.
 */
int hzp_pool_create(int threads, bool background, struct hzp_pool **ret);
/* Runs what is queued, then ends the threads.  NULL: no effect. */
void hzp_pool_destroy(struct hzp_pool *pool);

/* The task runs soon on a thread of the pool; its memory is the caller's until it has run. */
void hzp_pool_post(struct hzp_pool *pool, struct hzp_pool_task *task);

/* Like hzp_pool_post, but does not queue a task whose client has left: it returns false if *left is
 * set. */
bool hzp_pool_post_unless(struct hzp_pool *pool, struct hzp_pool_task *task,
                          const _Atomic bool *left);
/* Takes a task out of the queue.  False: it is not there: it runs, has run, or was not posted.
 * After *left was set, of two threads that post unless and take back one has the task. */
bool hzp_pool_take_back(struct hzp_pool *pool, struct hzp_pool_task *task);

/* Tasks in the queue now, and those that run. */
int hzp_pool_load(struct hzp_pool *pool);
