/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/pool.h - a team of threads that runs the tasks of one op.
 *
 * A team is its caller plus threads-1 workers.  hzp_team_run hands out task numbers one by one to
 * the threads, the caller included, as they become free, and returns when the last task has ended;
 * a worker that wakes late finds no task and delays nothing.  Between runs workers poll for work
 * for some microseconds, fewer where other threads need the cores (struct hzp_polls), then sleep:
 * an idle team uses no CPU.  The caller sleeps, too, while a worker is kept from its last task.
 * Nothing is global, so each lane may have its own team.
 *
 * Invariant: what a task computes depends on its number, never on the thread that runs it or on how
 * many there are; so results are repeatable.
 *
 * Thread: one caller at a time; tasks run on any thread of the team.
 */
#pragma once

#include "base/base.h"

#include <pthread.h>

struct hzp_team;

/* One iteration of a polling loop. */
static inline void hzp_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* How often a thread polls before it sleeps.  Polls that were in vain, as where other threads need
 * the core, make it poll less from then on; what came in time makes it poll more again.  Where
 * two of three waits are long it still polls long.  One thread uses it. */
struct hzp_polls {
    int most, now;
};

/* Notes how a wait ended that could not end at once: whether the polls sufficed. */
static inline void hzp_polls_note(struct hzp_polls *p, bool sufficed)
{
    p->now = sufficed ? HZP_MIN(2 * p->now, p->most) : HZP_MAX(p->now - p->now / 4, p->most / 64);
}

/* Lets a thread run on these CPUs only, if that is allowed. */
void hzp_cpu_pin(pthread_t thread, const int *cpus, int count);

/* Runs one task.  thread is 0 (the caller) .. threads-1. */
typedef void hzp_task_fn(void *ctx, int task, int thread);

/* Runs items begin .. end-1 of hzp_team_range. */
typedef void hzp_range_fn(void *ctx, int begin, int end, int thread);

/* 1 <= threads <= room, the most threads it can be resized to.  HZP_ENOMEM. */
int hzp_team_open(int threads, int room, struct hzp_team **ret);

/* Changes the number of threads; no run may be in progress.  cpus: [threads] the CPU that each is
 * pinned to (entry 0, the caller, is not pinned), NULL: pinning is unchanged.  Threads beyond the
 * number sleep.  HZP_ENOMEM: nothing has changed. */
int hzp_team_resize(struct hzp_team *team, int threads, const int *cpus);

/* From the next run on only the first `threads` threads take part; 0, or more than the team has:
 * all.  A resize ends it. */
void hzp_team_limit(struct hzp_team *team, int threads);
void hzp_team_close(struct hzp_team *team); /* NULL: no effect; no run may be in progress */

int hzp_team_threads(const struct hzp_team *team);

/* Runs fn(ctx, 0 .. tasks-1), returns when all have ended. */
void hzp_team_run(struct hzp_team *team, int tasks, hzp_task_fn *fn, void *ctx);

/* Divides 0 .. items-1 into ranges of worthwhile size, with item_bytes of memory traffic per item.
 * The ranges depend on the arguments and the team's size: only for items that do not affect each
 * other. */
void hzp_team_range(struct hzp_team *team, int items, size_t item_bytes, hzp_range_fn *fn,
                    void *ctx);

/* Memory that stays from one op to the next of this team: `shared` bytes for all, `each` bytes per
 * thread, 64-byte aligned, contents undefined.  Grows at first use, bounded by the largest shape an
 * op is given; call it before hzp_team_run, not inside.  HZP_ENOMEM. */
int hzp_team_reserve(struct hzp_team *team, size_t shared, size_t each);
void *hzp_team_shared(struct hzp_team *team);
void *hzp_team_own(struct hzp_team *team, int thread);
