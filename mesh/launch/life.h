/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/launch/life.h - memory that a launcher shares with its ranks: their signs of life, and what
 * the next rank 0 is to know.
 *
 * A thread of each process counts in it, so a process of which no thread runs (stopped by a signal,
 * stuck in the kernel) is told from one that only computes for long.  The launcher kills what has
 * been silent for --rank-timeout: to the other ranks, and to clients, it is lost only then.
 *
 * Time in which the launcher itself did not run does not count.
 *
 * Thread: main, before other threads start, but for hzp_life_pid, _keep and _kept.
 */
#pragma once

#include "mesh/link.h"

#include <sys/types.h>

enum {
    HZP_LIFE_RELAY = HZP_LINK_RANKS_MAX, /* the place of the relay; ranks have their numbers */
    HZP_LIFE_PLACES,
    HZP_LIFE_TEXT = 16384,
};

struct hzp_life_memory;

/* The launcher's. */
struct hzp_life {
    struct hzp_life_memory *memory; /* NULL: no watch, so no rank counts as hanging */
    int fd;
    uint64_t limit_ns, turn_ns;
    struct {
        pid_t pid; /* 0: none was seen */
        int pidfd; /* -1: none */
        uint64_t count, quiet_ns;
        bool told; /* that it hangs */
    } place[HZP_LIFE_PLACES];
};

/* Makes the memory, and tells the processes started from now on where it is.  Without it (an old
 * kernel) hangs are not noticed; the log says so. */
void hzp_life_open(struct hzp_life *life, double limit_s);
void hzp_life_close(struct hzp_life *life);

/* Looks at all places; call it at least once in hzp_life_turn_ns, which is less than a second. */
void hzp_life_look(struct hzp_life *life);
uint64_t hzp_life_turn_ns(const struct hzp_life *life);
/* Whether the process in this place has been silent for too long; true once for each process, and
 * logged.  who: its name in the log.  *ret_pid: the process. */
bool hzp_life_hangs(struct hzp_life *life, int place, const char *who, pid_t *ret_pid);
/* Kills the process that hangs, which need not be a child. */
void hzp_life_kill(const struct hzp_life *life, int place);

/* The process's name, which ps shows, and its lines of the log say which it is; where such a
 * launcher has started it, it gives signs of life until it ends. */
void hzp_life_begin(int place);
/* The process in a place; 0: it is not known here.  Any thread. */
pid_t hzp_life_pid(int place);

/* Leaves a text (shorter than HZP_LIFE_TEXT) for the next rank 0.  False: there is no such
 * launcher, or it is too long.  One thread at a time. */
bool hzp_life_keep(const char *text);
/* The newest text that an earlier rank 0 of this run has left; NULL: none.  The caller frees it. */
char *hzp_life_kept(void);
