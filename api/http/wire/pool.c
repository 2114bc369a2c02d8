/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/pool.h"

#include "base/thread.h"

struct hzp_pool {
    struct hzp_lock lock;
    pthread_cond_t cond;
    /* under lock */
    struct hzp_pool_task *first, *last;
    bool stop;
    int load; /* tasks that are queued or run */

    bool background;
    int threads;
    pthread_t thread[];
};

/* Under the lock. */
static void append(struct hzp_pool *pool, struct hzp_pool_task *task)
{
    task->queued = true;
    task->next = NULL;
    pool->load++;
    if (pool->last)
        pool->last->next = task;
    else
        pool->first = task;
    pool->last = task;
    pthread_cond_signal(&pool->cond);
}

/* Under the lock, which it releases while the task runs. */
static void run_first(struct hzp_pool *pool)
{
    struct hzp_pool_task *task = pool->first;
    pool->first = task->next;
    if (!pool->first)
        pool->last = NULL;
    task->queued = false;
    task->running = true;
    hzp_lock_release(&pool->lock);
    bool over = task->run(task->ctx);
    hzp_lock_take(&pool->lock);
    pool->load--;
    if (over)
        return;
    task->running = false;
    if (task->again) {
        task->again = false;
        append(pool, task);
    }
}

static void *pool_main(void *arg)
{
    struct hzp_pool *pool = arg;
    hzp_thread_yielding(true);
    if (pool->background)
        hzp_thread_background();
    HZP_LOCKED(&pool->lock);
    for (;;) {
        while (!pool->first && !pool->stop)
            pthread_cond_wait(&pool->cond, &pool->lock.mutex);
        if (!pool->first)
            break;
        run_first(pool);
    }
    return NULL;
}

int hzp_pool_create(int threads, bool background, struct hzp_pool **ret)
{
    struct hzp_pool *pool =
        hzp_xcalloc(1, sizeof(*pool) + (size_t)threads * sizeof(pool->thread[0]));
    pool->background = background;
    hzp_lock_init(&pool->lock, HZP_LOCK_POOL);
    pthread_cond_init(&pool->cond, NULL);
    for (int i = 0; i < threads; i++) {
        if (hzp_thread_start(&pool->thread[i], "hzp-http", pool_main, pool) < 0) {
            hzp_pool_destroy(pool);
            return HZP_ENOMEM;
        }
        pool->threads++;
    }
    *ret = pool;
    return HZP_OK;
}

void hzp_pool_destroy(struct hzp_pool *pool)
{
    if (!pool)
        return;
    hzp_lock_take(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->cond);
    hzp_lock_release(&pool->lock);
    for (int i = 0; i < pool->threads; i++)
        pthread_join(pool->thread[i], NULL);
    pthread_cond_destroy(&pool->cond);
    hzp_lock_fini(&pool->lock);
    free(pool);
}

bool hzp_pool_post_unless(struct hzp_pool *pool, struct hzp_pool_task *task,
                          const _Atomic bool *left)
{
    HZP_LOCKED(&pool->lock);
    bool post = !left || !atomic_load(left);
    if (post && task->running)
        task->again = true;
    else if (post && !task->queued)
        append(pool, task);
    return post;
}

void hzp_pool_post(struct hzp_pool *pool, struct hzp_pool_task *task)
{
    hzp_pool_post_unless(pool, task, NULL);
}

bool hzp_pool_take_back(struct hzp_pool *pool, struct hzp_pool_task *task)
{
    HZP_LOCKED(&pool->lock);
    struct hzp_pool_task *before = NULL, *at = pool->first;
    for (; at && at != task; at = at->next)
        before = at;
    if (at) {
        *(before ? &before->next : &pool->first) = task->next;
        if (pool->last == task)
            pool->last = before;
        task->queued = false;
        pool->load--;
    }
    return at != NULL;
}

int hzp_pool_load(struct hzp_pool *pool)
{
    HZP_LOCKED(&pool->lock);
    return pool->load;
}
