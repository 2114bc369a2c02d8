/* SPDX-License-Identifier: Apache-2.0 */
/* tests/links/links.h - links without other processes: between threads of one process, and to ranks
 * that do what this one does, on a virtual clock.
 *
 * Thread: as mesh/link.h.
 */
#pragma once

#include "mesh/link/backend.h"

/* ---- backend local ---- */

/* `ranks` links of one process, into link[0 .. ranks).  Each may be used by a thread of its own, or
 * all by one thread; the data move in the call (post, poll or wait, of any rank) that finds that
 * all members have posted.  With lag > 0, for tests: a transfer is done only after a number of
 * further polls that is drawn between 0 and lag from the seed, and what will be received is filled
 * with NaN at first, so that a reader who does not wait is seen.  HZP_EINVAL: ranks out of 1 ..
 * HZP_LINK_RANKS_MAX. */
int hzp_link_open_local(int ranks, int lag, uint64_t seed, struct hzp_link **link,
                        struct hzp_err_text *reterr);

/* ---- backend sim ---- */

/* Nodes hold node_ranks ranks with consecutive numbers.  A group within a node moves its bytes at
 * rate_node, any other at rate_net; both are bytes a second that one rank sends. */
struct hzp_link_sim {
    int rank, ranks, node_ranks;
    double rate_node, rate_net;
    uint64_t latency_ns; /* added to each transfer */
    uint64_t late_ns;    /* the slowest other rank posts this much later than this one */
};

/* A link whose other ranks do exactly what this one does: a transfer takes latency + bytes / rate
 * on the device's virtual clock, one after another.  Transfers of at most HZP_LINK_SIM_BYTES bytes
 * have results, as if all ranks held what this one holds; larger ones move nothing.  `device` is
 * simulated and outlives the link.  HZP_EUNSUP: another device; HZP_EINVAL: rates or numbers of
 * ranks that make no sense. */
enum { HZP_LINK_SIM_BYTES = 65536 };
struct hzp_device;
int hzp_link_open_sim(const struct hzp_link_sim *config, struct hzp_device *device,
                      struct hzp_link **ret, struct hzp_err_text *reterr);

static inline int hzp_link_group_size(const struct hzp_link *link, int group)
{
    return link->group[group ? group : link->narrow].count;
}
