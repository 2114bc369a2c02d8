/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/launch/launch.h - what the launcher of several ranks says in the environment, and starting
 * one.
 *
 * Thread: main, before other threads start, but for hzp_launch_kept.
 */
#pragma once

#include "base/err.h"
#include "mesh/link.h"

#include <signal.h>
#include <sys/types.h>

struct hzp_life;

/* Opens what the launcher keeps: a socket that is bound, and does not listen yet; and under which
 * URL clients reach it. */
struct hzp_launch_keep {
    int (*open)(void *ctx, int *ret_fd, char *ret_url, size_t size, struct hzp_err_text *reterr);
    void *ctx;
};

/* A process without a launcher is rank 0 of 1. */
struct hzp_launch {
    int rank, ranks;
    int local_rank, local_ranks; /* on this machine; -1: the launcher does not say */
    bool ours;                   /* started by hzp_launch_local or hzp_launch_processes */
    const char *kind;            /* "mpirun", "torchrun", "pmi", "slurm"; "": no launcher */
    char host[256];              /* MASTER_ADDR; "": not set */
    int port;                    /* MASTER_PORT; 0: not set */
    char from[160];              /* the variables that rank and ranks were taken from */
};

/* Reads the environment through get(ctx, name), which returns NULL for what is not set.  The first
 * of these that is complete counts: OMPI_COMM_WORLD_RANK and _SIZE, RANK and WORLD_SIZE, PMI_RANK
 * and PMI_SIZE, SLURM_PROCID and SLURM_STEP_NUM_TASKS (which Slurm sets in the tasks of a step, not
 * in a batch script).  HZP_EINVAL: a value that is no number, or two of the first three that
 * contradict each other. */
int hzp_launch_read(const char *(*get)(void *ctx, const char *name), void *ctx,
                    struct hzp_launch *ret, struct hzp_err_text *reterr);

/* hzp_launch_read of the process's environment. */
int hzp_launch_environment(struct hzp_launch *ret, struct hzp_err_text *reterr);

/* Starts this program `ranks` times on this machine with the same arguments, by the installed
 * launcher, as root and on fewer cores, too, and waits for the end.  A rank that dies does not end
 * the others; one that gives no sign of life (life) is killed.  SIGTERM and SIGINT, and SIGHUP of a
 * terminal that closes, reach the ranks as SIGUSR1, because a launcher that gets them kills its
 * ranks a second later.  *status: what rank 0 reported (hzp_launch_report); HZP_LAUNCH_LOST: it
 * ended without a report, so it was killed.  *ret_asked: such a signal was passed on.  HZP_EUNSUP:
 * no launcher is installed; HZP_EIO. */
enum { HZP_LAUNCH_LOST = 3 }; /* exit status: a rank was lost */
int hzp_launch_local(int ranks, char **argv, struct hzp_life *life, int *status, bool *ret_asked,
                     struct hzp_err_text *reterr);

/* The same without a launcher and without MPI: the ranks are this process's children.  They find
 * torchrun's variables in the environment and meet in a folder that is removed at the end
 * (mesh/launch/rendezvous.h).  A rank that is killed, or ends with HZP_LAUNCH_LOST, is started
 * again, each at most `restarts` times and not after such a signal: at once, and after pauses that
 * double from a second to half a minute where it ends within a minute again and again.  One that
 * ends with another status is not, because it would end so again; the log names it.
 * together: no rank goes on without each of the others.  One that still runs half a minute after
 * another was lost hangs: it is killed, and so started again, too.
 * life: a rank, or the relay, that gives no sign of life there for too long is killed.
 * keep: each rank 0 finds the socket by hzp_launch_kept.  It is open here as long as there will be
 * a rank 0, so once one has listened, connections that come while there is none wait for the next.
 * With restarts a relay has this socket, and rank 0 finds a Unix socket to which the relay forwards
 * requests (processes.c).  SIGHUP that ends nothing reaches rank 0 and the relay; the relay
 * also reads the keys again when rank 0 is started again.
 * NULL: nothing is kept. */
int hzp_launch_processes(int ranks, char **argv, int64_t restarts, bool together,
                         struct hzp_life *life, const struct hzp_launch_keep *keep, int *status,
                         struct hzp_err_text *reterr);

/* Rank 0: the socket that its launcher keeps for it, now this process's to close; -1: none.
 * Call it once; any thread. */
int hzp_launch_kept(void);
/* With a kept Unix socket: the address under which clients reach the launcher's relay, which passes
 * on to that socket what they ask; NULL: it is not told.  Any thread. */
const char *hzp_launch_kept_url(void);

/* In the relay: rank 0's socket; NULL: this process is not a relay. */
const char *hzp_launch_relay_to(void);

/* In a child, before it becomes another program: it gets no input, ends with its parent, and has a
 * process group of its own, so that a terminal's Ctrl-C does not reach it. */
void hzp_launch_be_child(void);

/* Blocks the signals that a process waits for while its ranks run: those that end the job, and of
 * children.  *ret_terminal: SIGHUP is one of the former, because a terminal has closed. */
void hzp_launch_block_signals(sigset_t *set, sigset_t *before, bool *ret_terminal);

/* Says in the environment that the ranks started from now on replace others that were lost.
 * Torchrun says it by its own variable. */
void hzp_launch_set_again(void);
bool hzp_launch_again(void);

/* Rank 0, at its end: the exit status, for hzp_launch_local.  No effect in other processes. */
void hzp_launch_report(int status);

/* ---- life.c: memory that a launcher shares with its ranks: their signs of life, and what the
 * next rank 0 is to know.
 *
 * A thread of each process counts in it, so a process of which no thread runs (stopped by a signal,
 * stuck in the kernel) is told from one that only computes for long.  The launcher kills what has
 * been silent for --rank-timeout: to the other ranks, and to clients, it is lost only then.
 *
 * Time in which the launcher itself did not run does not count.
 *
 * Thread: main, before other threads start, but for hzp_life_pid, _keep and _kept. */

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
