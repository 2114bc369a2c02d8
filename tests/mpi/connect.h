/* SPDX-License-Identifier: Apache-2.0 */
/* tests/mpi/connect.h - the link of a test of several processes: by ZeroMQ under run_zmq.py, else
 * by MPI. */
#pragma once

#include "mesh/launch/ranks.h"

#include <stdlib.h>

static struct hzp_ranks ranks_of_run; /* zmq */

static inline int connect_ranks(double rate, double latency_ms, struct hzp_link **ret,
                                struct hzp_err_text *reterr)
{
    struct hzp_ranks_settings settings = {.link = HZP_RANKS_ZMQ,
                                          .link_rate = (int64_t)rate,
                                          .link_latency_ms = latency_ms,
                                          .silent_s = 600,
                                          .meet_s = 600};
    struct hzp_link_mpi mpi = {.rate = rate, .latency_ns = (uint64_t)(latency_ms * 1e6)};
    if (!getenv("HZP_LINK_ZMQ"))
        return hzp_link_open_mpi(&mpi, ret, reterr);
    struct hzp_ranks_config config = {.settings = &settings, .record = "test 1\n"};
    int r = hzp_ranks_open(&config, &ranks_of_run, reterr);
    *ret = ranks_of_run.link;
    return r;
}

static inline void disconnect_ranks(struct hzp_link *link)
{
    if (ranks_of_run.link)
        hzp_ranks_close(&ranks_of_run);
    else
        hzp_link_close(link);
}
