/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/pool.h"

#include "base/err.h"
#include "base/thread.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SPINS = 3000,     /* polls before a worker sleeps: some 30 microseconds */
    TAIL_SPINS = 512, /* polls before the caller lets others run while it waits for the last task */
    TASK_BYTES = 64 << 10,
};

struct worker {
    struct hzp_team *team;
    pthread_t thread;
    int index;
    int cpu; /* -1: not pinned */
};

struct memory {
    void *ptr;
    size_t size;
};

struct hzp_team {
    /* fixed after open */
    int threads;
    struct worker *worker; /* [threads]; 0 is the caller */

    /* caller only */
    struct memory shared, *own;

    /* The job.  ticket = epoch << 32 | next task: one word, so that a worker that read the job of
     * an older epoch cannot take a task of a newer one.  The fields beside it are atomics only
     * because such a worker may read them while they change; it then throws them away. */
    _Alignas(128) _Atomic uint64_t ticket;
    _Atomic(hzp_task_fn *) fn;
    _Atomic(void *) ctx;
    _Atomic int tasks;
    _Alignas(128) _Atomic int done;
    _Alignas(128) _Atomic uint32_t epoch; /* what sleepers wait on */
    _Atomic int sleepers;
    _Atomic bool leave;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Takes and runs tasks until there are none. */
static void work(struct hzp_team *team, int thread)
{
    uint64_t ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);

    for (;;) {
        /* of this ticket's job or a later one's; the exchange tells */
        int tasks = atomic_load_explicit(&team->tasks, memory_order_acquire);
        hzp_task_fn *fn = atomic_load_explicit(&team->fn, memory_order_acquire);
        void *ctx = atomic_load_explicit(&team->ctx, memory_order_acquire);
        uint32_t next = (uint32_t)ticket;

        if ((int)next >= tasks)
            return;
        if (!atomic_compare_exchange_weak_explicit(&team->ticket, &ticket, ticket + 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        fn(ctx, (int)next, thread);
        /* release: what the task wrote is seen by the caller that counts it */
        atomic_fetch_add_explicit(&team->done, 1, memory_order_release);
        ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
    }
}

static void *worker_run(void *arg)
{
    struct worker *worker = arg;
    struct hzp_team *team = worker->team;

    if (worker->cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(worker->cpu, &set);
        sched_setaffinity(0, sizeof(set), &set); /* not allowed: then it floats */
    }
    while (!atomic_load_explicit(&team->leave, memory_order_acquire)) {
        /* read before the ticket: the epoch is raised after the ticket is open, so who sees the
         * new epoch here sees the new job too, and who does not is woken by its raising */
        uint32_t seen = atomic_load_explicit(&team->epoch, memory_order_acquire);
        int spins = SPINS;

        work(team, worker->index);

        while (spins > 0 && atomic_load_explicit(&team->epoch, memory_order_relaxed) == seen) {
            relax();
            spins--;
        }
        if (spins > 0)
            continue;
        /* sequentially consistent: either this thread sees the new epoch, or the caller, which
         * raises the epoch first, sees the sleeper */
        atomic_fetch_add(&team->sleepers, 1);
        if (atomic_load(&team->epoch) == seen && !atomic_load(&team->leave))
            futex_wait(&team->epoch, seen);
        atomic_fetch_sub(&team->sleepers, 1);
    }
    return NULL;
}

void hzp_team_run(struct hzp_team *team, int tasks, hzp_task_fn *fn, void *ctx)
{
    uint32_t epoch;

    if (tasks <= 1 || team->threads == 1) {
        for (int i = 0; i < tasks; i++)
            fn(ctx, i, 0);
        return;
    }
    epoch = atomic_load_explicit(&team->epoch, memory_order_relaxed) + 1;
    /* Close the old job first (its ticket is at its end, so no task can be taken meanwhile), then
     * set the fields, then open the new one. */
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    atomic_store_explicit(&team->ticket, (uint64_t)epoch << 32 | INT_MAX, memory_order_release);
    /* release: who sees one of these sees the old job closed, and its exchange fails */
    atomic_store_explicit(&team->fn, fn, memory_order_release);
    atomic_store_explicit(&team->ctx, ctx, memory_order_release);
    atomic_store_explicit(&team->tasks, tasks, memory_order_release);
    atomic_store_explicit(&team->ticket, (uint64_t)epoch << 32, memory_order_release);
    atomic_store(&team->epoch, epoch);
    if (atomic_load(&team->sleepers) > 0)
        futex_wake_all(&team->epoch);

    work(team, 0);
    for (int spins = 0;
         atomic_load_explicit(&team->done, memory_order_acquire) < tasks; spins++) {
        if (spins < TAIL_SPINS)
            relax();
        else
            sched_yield();
    }
}

struct range {
    hzp_range_fn *fn;
    void *ctx;
    int items, step;
};

static void range_task(void *ctx, int task, int thread)
{
    const struct range *range = ctx;
    int64_t begin = (int64_t)task * range->step;
    int64_t end = HZP_MIN(begin + range->step, range->items);

    range->fn(range->ctx, (int)begin, (int)end, thread);
}

void hzp_team_range(struct hzp_team *team, int items, size_t item_bytes, hzp_range_fn *fn,
                    void *ctx)
{
    size_t total = (size_t)items * item_bytes;
    size_t tasks = HZP_MIN(total / TASK_BYTES + 1, (size_t)team->threads * 8);
    struct range range = {fn, ctx, items, 0};

    if (items <= 0)
        return;
    tasks = HZP_MIN(tasks, (size_t)items);
    range.step = (int)HZP_DIV_UP((size_t)items, tasks);
    hzp_team_run(team, HZP_DIV_UP(items, range.step), range_task, &range);
}

static int memory_grow(struct memory *memory, size_t size)
{
    void *ptr;

    if (size <= memory->size)
        return HZP_OK;
    size = HZP_ROUND_UP(size + size / 4, (size_t)4096); /* some room: shapes grow step by step */
    ptr = aligned_alloc(4096, size);
    if (!ptr)
        return HZP_ENOMEM;
    free(memory->ptr);
    memory->ptr = ptr;
    memory->size = size;
    return HZP_OK;
}

int hzp_team_reserve(struct hzp_team *team, size_t shared, size_t each)
{
    HZP_TRY(memory_grow(&team->shared, shared));
    for (int i = 0; i < team->threads; i++)
        HZP_TRY(memory_grow(&team->own[i], each));
    return HZP_OK;
}

void *hzp_team_shared(struct hzp_team *team)
{
    return team->shared.ptr;
}

void *hzp_team_own(struct hzp_team *team, int thread)
{
    return team->own[thread].ptr;
}

int hzp_team_threads(const struct hzp_team *team)
{
    return team->threads;
}

int hzp_team_open(int threads, const int *cpus, struct hzp_team **ret)
{
    struct hzp_team *team = aligned_alloc(128, sizeof(*team));

    if (!team)
        return HZP_ENOMEM;
    *team = (struct hzp_team){.threads = 1};
    team->worker = calloc((size_t)threads, sizeof(*team->worker));
    team->own = calloc((size_t)threads, sizeof(*team->own));
    if (!team->worker || !team->own) {
        hzp_team_close(team);
        return HZP_ENOMEM;
    }
    for (int i = 1; i < threads; i++) {
        struct worker *worker = &team->worker[i];
        char name[16];

        *worker = (struct worker){.team = team, .index = i, .cpu = cpus ? cpus[i] : -1};
        snprintf(name, sizeof(name), "cpu-%d", i % 100000);
        if (hzp_thread_start(&worker->thread, name, worker_run, worker) < 0) {
            hzp_team_close(team);
            return HZP_ENOMEM;
        }
        team->threads = i + 1; /* workers read it never, close reads it */
    }
    *ret = team;
    return HZP_OK;
}

void hzp_team_close(struct hzp_team *team)
{
    if (!team)
        return;
    atomic_store(&team->leave, true);
    atomic_fetch_add(&team->epoch, 1);
    futex_wake_all(&team->epoch);
    for (int i = 1; i < team->threads; i++)
        pthread_join(team->worker[i].thread, NULL);
    for (int i = 0; team->own && i < team->threads; i++)
        free(team->own[i].ptr);
    free(team->shared.ptr);
    free(team->worker);
    free(team->own);
    free(team);
}
