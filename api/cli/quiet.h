/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/quiet.h - how much of the processors' time others took while something was measured.
 *
 * Only the CPUs that this process may use count.  What their counters in /proc/stat say beyond this
 * process's own time is others': processes, interrupts, and what a hypervisor took away.
 *
 * Thread: one.
 */
#pragma once

#include "base/base.h"

#include <sched.h>

struct hzp_quiet {
    uint64_t begin_ns;
    double busy_ns, own_ns; /* at the beginning */
    bool known;             /* the counters can be read */
};

/* Notes the counters now. */
void hzp_quiet_begin(struct hzp_quiet *q);

/* Adds, since the beginning: the time that the CPUs had, and what others took of it.  Nothing where
 * the counters cannot be read. */
void hzp_quiet_end(const struct hzp_quiet *q, double *watched_ns, double *others_ns);

/* The same number in processes of one machine that may use the same CPUs; 0: unknown. */
uint64_t hzp_quiet_processors(void);

/* The busy time of these CPUs by a text like /proc/stat's, in ticks; negative: it has none of
 * them. */
double hzp_quiet_busy(const char *text, const cpu_set_t *cpus);
