/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/launch/relay_process.h - the launcher's relay: the process that holds clients' connections
 * (api/relay/relay.h), and the two sockets that outlive processes.
 *
 *     clients -> port, kept for the relay -> the relay -> a Unix socket, kept for rank 0 -> rank 0
 *
 * The launcher has both sockets open as long as there will be a rank 0.  A relay that ends is
 * started again.
 *
 * Thread: main, before other threads start.
 */
#pragma once

#include "mesh/launch/launch.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct hzp_relay_process {
    char path[96]; /* rank 0's socket; "": there is no relay */
    char url[160]; /* under which clients reach the relay */
    int port;      /* the socket of clients; -1: none */
    pid_t pid;     /* 0: it does not run */
    uint64_t begun_ns;
    const char *folder; /* borrowed: of the ranks */
    const char *program;
    char **argv;
    const sigset_t *mask; /* that it starts with, and with SIGHUP */
};

/* Makes rank 0's socket in the ranks' folder, and starts the relay, which takes clients from the
 * bound socket `port`.  *ret_fd: rank 0's socket, bound, the caller's.  HZP_EIO. */
int hzp_relay_process_open(struct hzp_relay_process *p, int port, int *ret_fd,
                           struct hzp_err_text *reterr);

/* A process has ended.  True: it was the relay. */
bool hzp_relay_process_ended(struct hzp_relay_process *p, pid_t pid, int status);
/* Starts it again if it has ended, at most once a second. */
void hzp_relay_process_tend(struct hzp_relay_process *p);

/* Makes it read the keys again.  Only the launcher sends it SIGHUP: it has no terminal. */
void hzp_relay_process_reload(const struct hzp_relay_process *p);

/* All ranks have ended: tells the relay to answer who still waits, and waits for its end. */
void hzp_relay_process_close(struct hzp_relay_process *p);

/* In the relay: rank 0's socket; NULL: this process is not a relay. */
const char *hzp_relay_process_path(void);
