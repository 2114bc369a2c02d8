/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/signals.h - what signals mean to a server.
 *
 *     SIGTERM, SIGINT   it stops in order: HZP_SIGNAL_STOP
 *     SIGUSR1           the same, passed on by the launcher of ranks: HZP_SIGNAL_PASSED_STOP
 *     SIGHUP            its terminal has closed: HZP_SIGNAL_STOP; without a terminal it reads again
 *                       what can be read again: HZP_SIGNAL_RELOAD
 *     SIGUSR2           it logs its state: HZP_SIGNAL_STATUS
 *     SIGQUIT           it ends at once, with exit status 131 and without a checkpoint
 *
 * Whether there is a terminal is decided at start: standard input or output is one.  A signal that
 * the parent process has set to be ignored stays ignored, as nohup wants it.
 *
 * Thread: the main thread.
 */
#pragma once

#include "base/base.h"

#include <signal.h>

enum hzp_signal {
    HZP_SIGNAL_NONE,
    HZP_SIGNAL_STOP,
    HZP_SIGNAL_PASSED_STOP,
    HZP_SIGNAL_RELOAD,
    HZP_SIGNAL_STATUS
};

struct hzp_signals {
    sigset_t set; /* blocked in all threads, taken by hzp_signals_next */
    bool terminal;
};

/* Blocks the signals of the set; before any thread is started, so that all inherit the mask. */
void hzp_signals_take(struct hzp_signals *ret);

/* Waits for the next one, at most wait_ns.  NONE: there was none. */
enum hzp_signal hzp_signals_next(const struct hzp_signals *signals, uint64_t wait_ns);

/* Whether it says to stop. */
bool hzp_signal_stops(enum hzp_signal signal);

/* Whether this signal is ignored, because the parent process wanted it so. */
bool hzp_signal_is_ignored(int number);
