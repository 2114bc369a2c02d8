/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/load.h - a client that keeps hundreds of streaming requests in flight from one thread.
 *
 * It speaks plain HTTP/1.1 over sockets, one connection a request, because a client on the
 * server's own machine takes its time from the server: no library, no thread per stream.
 * The server is any with the OpenAI completions route.
 *
 * Open loop: a request is sent at its time, however many are in flight, up to max_running; what
 * has to wait for that is counted as late.  Closed loop: an untimed workload and max_running.
 *
 * Thread: the caller's, which hzp_load_run() keeps until the end.
 */
#ifndef HZP_API_BENCH_LOAD_H
#define HZP_API_BENCH_LOAD_H

#include "api/bench/load_stats.h"
#include "api/bench/workload.h"

#include <jansson.h>
#include <sys/socket.h>

/* Where the server is. */
struct hzp_load_server {
    char host[256], port[8], path[256]; /* path: before /v1, "" or "/x" */
    char key[256];                      /* bearer token, "" none */
    struct sockaddr_storage address;
    socklen_t address_bytes;
    /* what it says of itself; 0: nothing */
    char model[256];
    int32_t context, vocab;
};

struct hzp_load_config {
    const struct hzp_load_server *server;
    const struct hzp_workload *work;
    int32_t max_running; /* 0: as many as the process may have sockets */
    int32_t warmup;      /* requests first, one after another, that do not count */
    double silence_s;    /* a request whose server is silent for so long has failed */
    const json_t *extra; /* fields added to each request's body; NULL: none */
    bool progress;       /* a line on standard error every few seconds */
};

enum { HZP_LOAD_REASONS = 6 };

/* Why requests failed, each reason once. */
struct hzp_load_failures {
    struct {
        char text[160];
        int64_t count;
    } reason[HZP_LOAD_REASONS]; /* the last one: all others */
};

/* Reads http://HOST[:PORT][/PATH], finds the address, and asks the server for its model, context
 * and vocabulary.  model: the name wanted, NULL: the first one it lists.  HZP_EINVAL: the URL;
 * HZP_EIO: no server there. */
int hzp_load_connect(const char *url, const char *key, const char *model,
                     struct hzp_load_server *ret, struct hzp_err_text *reterr);

/* Sends all requests and records what came back; requests that fail are counted, and the load goes
 * on.  An interrupt (SIGINT) ends it early with what there is. HZP_ENOMEM, HZP_EIO: the client
 * itself failed. */
int hzp_load_run(const struct hzp_load_config *config, struct hzp_load_record *record,
                 struct hzp_load_failures *failures, struct hzp_err_text *reterr);

#endif
