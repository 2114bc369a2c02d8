/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/load.h - a client that keeps hundreds of streaming requests in flight from one thread.
 *
 * The transfers are libcurl's, driven by one epoll set without a thread per stream, because a
 * client on the same machine takes CPU time from the server.  The connection of a request that has
 * ended carries a later one, if the server keeps it.  Any server with the OpenAI completions route
 * works.
 *
 * Open loop: each request is sent at its arrival time unless max_running are in flight; the delay
 * of requests sent later is reported.  Closed loop: an untimed workload with max_running.
 *
 * Thread: the caller's; hzp_load_run() blocks until the load has ended.
 */
#pragma once

#include "api/client/http_client.h"
#include "dev/bench/load_stats.h"
#include "dev/bench/workload.h"

#include <stdio.h>

struct hzp_load_config {
    const struct hzp_http_host *server;
    const struct hzp_workload *work;
    int32_t max_running; /* 0: limited by the sockets the process may open */
    int32_t warmup;      /* requests sent first, one after another, that do not count */
    double temperature, top_p;
    double silence_s;    /* a request fails if the server sends nothing for this long */
    const json_t *extra; /* fields added to each request's body; NULL: none */
    bool progress;       /* print progress to standard error every few seconds */
    FILE *record;        /* gets a line for each request that has ended; NULL: none */
};

enum { HZP_LOAD_REASONS = 6 };

/* Why requests failed, each reason once. */
struct hzp_load_failures {
    struct {
        char text[160];
        int64_t count;
    } reason[HZP_LOAD_REASONS]; /* the last entry counts all other reasons */
};

/* What answering has cost the server so far, as its /metrics says; 0: it does not say. */
struct hzp_load_cost {
    double http_s;    /* processor time of the threads that speak HTTP */
    double deliver_s; /* time of the engine thread for handing out results */
    double resident;  /* memory of the process, bytes */
};
void hzp_load_read_cost(const struct hzp_http_host *server, struct hzp_load_cost *ret);

/* Sends all requests and records the answers; failed requests are counted and do not end the load.
 * A line of config->record is a JSON object of one request: its index in the load, when it was sent
 * (seconds since the load began), its HTTP status (0: none came), `error` if it failed, its tokens
 * as the server counted them, and when each piece of its answer came (seconds since it was sent).
 * An interrupt (SIGINT) ends it early with the answers so far.  HZP_ENOMEM, HZP_EIO: the client
 * itself failed. */
int hzp_load_run(const struct hzp_load_config *config, struct hzp_load_record *record,
                 struct hzp_load_failures *failures, struct hzp_err_text *reterr);
