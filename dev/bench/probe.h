/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/probe.h - asks a server under load how it is: a thread that sends GET /health every 50
 * ms, each on a connection of its own as a monitor does, and reads the server's resident memory
 * from its /metrics about twice a second.
 *
 * Thread: the caller's; the probe has one of its own between start and stop.
 */
#pragma once

#include "dev/bench/load.h"

struct hzp_probe;

/* NULL: the server has no /health, or there is no thread or memory for it. */
struct hzp_probe *hzp_probe_start(const struct hzp_http_host *server);

struct hzp_probe_report {
    struct hzp_load_spread health; /* answer times of GET /health; n 0: none was answered */
    int64_t failed;                /* not answered, or not by 200 */
    double resident;               /* most bytes seen; 0: the server does not say */
};

/* Ends the thread.  probe NULL: a report of zeros. */
void hzp_probe_stop(struct hzp_probe *probe, struct hzp_probe_report *ret);
