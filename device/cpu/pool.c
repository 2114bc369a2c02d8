/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/pool.h"

#include "base/err.h"
#include "base/thread.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum {
    POLLS = 3000, /* most before a worker sleeps: about 30 microseconds */
    /* What the caller does while it waits for the last tasks: it polls, then yields the CPU, then
     * sleeps: a thread that has taken a worker's core can then run on the caller's. */
    TAIL_SPINS = 512,
    TAIL_YIELDS = 64,
    TASK_BYTES = 64 << 10,
};

struct worker {
    struct hzp_team *team;
    pthread_t thread;
    int index;
};

struct memory {
    void *ptr;
    size_t size;
};

struct hzp_team {
    /* fixed after open */
    int room;
    struct worker *worker; /* [room]; 0 is the caller */

    /* changes only while no run is in progress */
    _Atomic int threads; /* threads that take part */
    int size;            /* what hzp_team_resize has set; `threads` may be fewer */
    int started;         /* threads that were started */

    /* caller only */
    struct memory shared, *own;

    /* The job.  ticket = epoch << 32 | next task: one word, so that a worker that read the job of
     * an older epoch cannot take a task of a newer one.  The other fields are atomics only because
     * such a worker may read them while they change; it then discards them. */
    _Alignas(128) _Atomic uint64_t ticket;
    _Atomic(hzp_task_fn *) fn;
    _Atomic(void *) ctx;
    _Atomic int tasks;
    _Alignas(128) _Atomic uint32_t done;
    _Atomic bool caller_sleeps;           /* the thread that ends the last task wakes it */
    _Alignas(128) _Atomic uint32_t epoch; /* workers sleep until it changes */
    _Atomic int sleepers;
    _Atomic bool leave;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Takes and runs tasks until none is left. */
static void work(struct hzp_team *team, int thread)
{
    uint64_t ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);

    for (;;) {
        /* this ticket's job's, or a later one's; in the latter case the exchange fails */
        int tasks = atomic_load_explicit(&team->tasks, memory_order_acquire);
        hzp_task_fn *fn = atomic_load_explicit(&team->fn, memory_order_acquire);
        void *ctx = atomic_load_explicit(&team->ctx, memory_order_acquire);
        uint32_t next = (uint32_t)ticket;

        if ((int)next >= tasks ||
            thread >= atomic_load_explicit(&team->threads, memory_order_relaxed))
            return;
        if (!atomic_compare_exchange_weak_explicit(&team->ticket, &ticket, ticket + 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        fn(ctx, (int)next, thread);
        /* The caller that reads `done` sees what the task wrote.  Sequentially consistent: either
         * the caller sees the last task, or its thread sees that the caller sleeps. */
        if (atomic_fetch_add(&team->done, 1) + 1 == (uint32_t)tasks &&
            atomic_load(&team->caller_sleeps))
            futex_wake_all(&team->done);
        ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
    }
}

static void *worker_run(void *arg)
{
    struct worker *worker = arg;
    struct hzp_team *team = worker->team;
    struct hzp_polls polls = {POLLS, POLLS};

    /* the caller takes the tasks of a worker that is late; an interrupted caller stops them all */
    hzp_thread_yielding(true);
    while (!atomic_load_explicit(&team->leave, memory_order_acquire)) {
        /* read before the ticket: the epoch is raised after the ticket is open, so a worker that
         * reads the new epoch here also reads the new job, and one that reads the old epoch is
         * woken when it is raised */
        uint32_t seen = atomic_load_explicit(&team->epoch, memory_order_acquire);

        work(team, worker->index);

        int left = polls.now;
        while (left > 0 && atomic_load_explicit(&team->epoch, memory_order_relaxed) == seen) {
            hzp_cpu_relax();
            left--;
        }
        if (left < polls.now)
            hzp_polls_note(&polls, left > 0);
        if (left > 0)
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

/* Waits until so many tasks are done. */
static void wait_for_tail(struct hzp_team *team, uint32_t tasks)
{
    for (int turn = 0; turn < TAIL_SPINS + TAIL_YIELDS; turn++) {
        if (atomic_load_explicit(&team->done, memory_order_acquire) == tasks)
            return;
        if (turn < TAIL_SPINS)
            hzp_cpu_relax();
        else
            sched_yield();
    }
    atomic_store(&team->caller_sleeps, true);
    for (uint32_t seen; (seen = atomic_load(&team->done)) != tasks;)
        futex_wait(&team->done, seen);
    atomic_store(&team->caller_sleeps, false);
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
    /* release: a worker that reads one of these also sees that the old job is closed, and its
     * exchange fails */
    atomic_store_explicit(&team->fn, fn, memory_order_release);
    atomic_store_explicit(&team->ctx, ctx, memory_order_release);
    atomic_store_explicit(&team->tasks, tasks, memory_order_release);
    atomic_store_explicit(&team->ticket, (uint64_t)epoch << 32, memory_order_release);
    atomic_store(&team->epoch, epoch);
    if (atomic_load(&team->sleepers) > 0)
        futex_wake_all(&team->epoch);

    work(team, 0);
    wait_for_tail(team, (uint32_t)tasks);
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

enum { HUGE_PAGE = 2 << 20, HUGE_FROM = 64 << 10 };

static int memory_grow(struct memory *memory, size_t size)
{
    size_t align;
    void *ptr;

    if (size <= memory->size)
        return HZP_OK;
    size += size / 4; /* spare memory: shapes grow step by step */
    align = size >= HUGE_FROM ? HUGE_PAGE : 4096;
    size = HZP_ROUND_UP(size, align);
    ptr = aligned_alloc(align, size);
    if (!ptr)
        return HZP_ENOMEM;
    /* Small pages are scattered over the sets of the second-level cache, differently in each
     * process. */
    if (align == HUGE_PAGE)
        madvise(ptr, size, MADV_HUGEPAGE);
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

void hzp_cpu_pin(pthread_t thread, const int *cpus, int count)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < count; i++)
        CPU_SET(cpus[i], &set);
    /* if this is not allowed, the thread runs anywhere */
    pthread_setaffinity_np(thread, sizeof(set), &set);
}

int hzp_team_resize(struct hzp_team *team, int threads, const int *cpus)
{
    HZP_ASSERT(threads >= 1 && threads <= team->room);
    while (team->started < threads) {
        struct worker *worker = &team->worker[team->started];
        char name[16];

        *worker = (struct worker){.team = team, .index = team->started};
        snprintf(name, sizeof(name), "cpu-%d", team->started % 100000);
        if (hzp_thread_start(&worker->thread, name, worker_run, worker) < 0)
            return HZP_ENOMEM;
        team->started++;
    }
    for (int i = 1; cpus && i < threads; i++)
        hzp_cpu_pin(team->worker[i].thread, &cpus[i], 1);
    /* relaxed: a worker reads it after the ticket of the first job of the new size */
    atomic_store_explicit(&team->threads, threads, memory_order_relaxed);
    team->size = threads;
    return HZP_OK;
}

void hzp_team_limit(struct hzp_team *team, int threads)
{
    int now = threads > 0 ? HZP_MIN(threads, team->size) : team->size;
    if (now != atomic_load_explicit(&team->threads, memory_order_relaxed))
        atomic_store_explicit(&team->threads, now, memory_order_relaxed);
}

int hzp_team_open(int threads, int room, struct hzp_team **ret)
{
    struct hzp_team *team = aligned_alloc(128, sizeof(*team));

    if (!team)
        return HZP_ENOMEM;
    *team = (struct hzp_team){.threads = 1, .size = 1, .started = 1, .room = room};
    team->worker = calloc((size_t)room, sizeof(*team->worker));
    team->own = calloc((size_t)room, sizeof(*team->own));
    if (!team->worker || !team->own || hzp_team_resize(team, threads, NULL) < 0) {
        hzp_team_close(team);
        return HZP_ENOMEM;
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
    for (int i = 1; i < team->started; i++)
        pthread_join(team->worker[i].thread, NULL);
    for (int i = 0; team->own && i < team->room; i++)
        free(team->own[i].ptr);
    free(team->shared.ptr);
    free(team->worker);
    free(team->own);
    free(team);
}
