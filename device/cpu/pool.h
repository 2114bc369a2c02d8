/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/pool.h - a team of threads that does the tasks of one op.
 *
 * A team is its caller plus threads-1 workers.  hzp_team_run hands out task numbers one by one to
 * whoever asks first, the caller included, and returns when the last task has ended; a worker that
 * wakes late takes nothing and delays nobody.  Between runs workers look for work for a few
 * microseconds, then sleep: an idle team uses no CPU.  Nothing is global, so each lane may own a
 * team of its own.
 *
 * Invariant: what a task computes depends on its number, never on the thread that runs it or on
 * how many there are; that is what makes results repeatable.
 *
 * Thread: one caller at a time; tasks run on any thread of the team.
 */
#ifndef HZP_DEVICE_CPU_POOL_H
#define HZP_DEVICE_CPU_POOL_H

#include "base/base.h"

#include <pthread.h>

struct hzp_team;

/* One turn of a polling loop. */
static inline void hzp_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Keeps a thread on one CPU, where that is allowed. */
void hzp_cpu_pin(pthread_t thread, int cpu);

/* One task.  thread is 0 (the caller) .. threads-1. */
typedef void hzp_task_fn(void *ctx, int task, int thread);

/* Items begin .. end-1 of hzp_team_range. */
typedef void hzp_range_fn(void *ctx, int begin, int end, int thread);

/* 1 <= threads <= room: the most it may ever have.  HZP_ENOMEM. */
int hzp_team_open(int threads, int room, struct hzp_team **ret);

/* While no run is under way: from now on it is so many threads.  cpus: [threads] the CPU each is
 * pinned to (entry 0, the caller, is not touched), NULL: where they are.  Threads beyond the number
 * sleep.  HZP_ENOMEM: as it was. */
int hzp_team_resize(struct hzp_team *team, int threads, const int *cpus);
void hzp_team_close(struct hzp_team *team); /* NULL: no effect; no run may be under way */

int hzp_team_threads(const struct hzp_team *team);

/* Runs fn(ctx, 0 .. tasks-1), returns when all have ended. */
void hzp_team_run(struct hzp_team *team, int tasks, hzp_task_fn *fn, void *ctx);

/* Cuts 0 .. items-1 into ranges worth handing out, items costing item_bytes of traffic each.  The
 * cuts depend on the arguments and the team's size: only for items that do not affect each
 * other. */
void hzp_team_range(struct hzp_team *team, int items, size_t item_bytes, hzp_range_fn *fn,
                    void *ctx);

/* Memory that lives from one op to the next of this team: `shared` bytes for all, `each` bytes per
 * thread, 64-byte aligned, contents undefined.  Grows at first use, bounded by the largest shape an
 * op is given; call it before hzp_team_run, not inside.  HZP_ENOMEM. */
int hzp_team_reserve(struct hzp_team *team, size_t shared, size_t each);
void *hzp_team_shared(struct hzp_team *team);
void *hzp_team_own(struct hzp_team *team, int thread);

#endif
