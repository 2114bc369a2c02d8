/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/control.h - small messages between ranks: which have connected, whether they
 * agree, which are alive.
 *
 * Rank 0 listens, the others connect (pipe.h).  All ranks then meet: each says what it is in
 * lines of "name value", and rank 0 compares them with its own.  From then on a thread on every
 * rank sends a heartbeat twice a second.  Rank 0 watches all others, they watch rank 0; a rank that
 * is silent for longer than the limit is *lost*: rank 0 tells all, each fails its link and calls
 * `lost`, once, with the first lost rank.  A link that failed by itself is reported the same way.
 *
 * Heartbeats also tell what a rank's threads are doing, how fast it computes and how its clock
 * stands; rank 0 logs, in one line each, a rank that has been silent or busy with one thing for
 * half the limit (`silent`), ranks that wait for another (`waiting`), and a rank that has become
 * slower than the others (`straggler`, stragglers.c).
 *
 * Thread: the one that opens it, except the functions marked any; `lost` is called by the control
 * thread, which must not be blocked.
 */
#pragma once

#include "base/chrome.h"
#include "mesh/link.h"
#include "mesh/peers/pipe.h"

struct hzp_control;

enum {
    HZP_CONTROL_RECORD = 16384, /* bytes of what a rank says of itself, with the 0 */
    HZP_CONTROL_SHARE = 512,    /* bytes that rank 0 gives all others when they meet */
};

struct hzp_control_config {
    int rank, ranks;
    const char *key; /* a secret key (hzp_pipe_make_key); NULL: loopback only */
    double silent_s; /* how long a rank may be silent; > 0 */
    double meet_s;   /* how long ranks wait for each other when they meet */
    void (*lost)(void *ctx, int rank, const char *why); /* NULL: not wanted */
    /* Asked again and again while ranks meet; true: this rank ends.  NULL: not asked. */
    bool (*stop)(void *ctx);
    void *ctx;
    /* They have met before: a process that comes as a rank replaces the one before, and one that
     * cannot be accepted is refused, but the others are still waited for. */
    bool again;
};

/* Rank 0: listens at the endpoint (hzp_pipe_place), whose port 0 becomes the one that it has got.
 * Errors of hzp_pipe_listen. */
int hzp_control_listen(const struct hzp_control_config *config, char endpoint[HZP_PIPE_ENDPOINT],
                       struct hzp_control **ret, struct hzp_err_text *reterr);

/* Other ranks. */
int hzp_control_connect(const struct hzp_control_config *config, const char *endpoint,
                        struct hzp_control **ret, struct hzp_err_text *reterr);

/* Before they meet: the ports on which this rank listens for the data of each rank after it
 * (hzp_link_open_zmq), copied; [ranks].  Only with at most HZP_LINK_ZMQ_RANKS_MAX ranks. */
void hzp_control_offer_ports(struct hzp_control *control, const uint16_t *port);

/* When they have met: where the ranks before this one listen for it, with the addresses from which
 * their messages came; [this rank], until the control is closed. */
const struct hzp_link_zmq_address *hzp_control_addresses(const struct hzp_control *control);

/* Waits until all ranks are there and agree, and starts the thread.  record: lines "name value\n"
 * that must be equal on all ranks, by name in the same order.  share: size bytes, from rank 0 to
 * all others.  link: failed when a rank is lost, and watched; NULL: none.  HZP_EINVAL names the
 * ranks and the line in which they differ, or who came twice; HZP_EIO: who did not come;
 * HZP_ECANCELED: config.stop, or rank 0 has ended. */
int hzp_control_meet(struct hzp_control *control, const char *record, void *share, size_t size,
                     struct hzp_link *link, struct hzp_err_text *reterr);

/* What this rank knows of a rank: rank 0 of all, others of themselves and rank 0.  Any thread. */
struct hzp_control_state {
    bool known, lost, left; /* left: it said goodbye */
    double silent_s;        /* since its last message; 0 for this rank itself */
    uint64_t posted, done;  /* its link's tickets */
    int missing;            /* which rank its link waits for; -1: none */
    double waits_s;         /* for how long it has waited for that rank */
    double ahead_s;         /* rank 0's clock minus its own */
    double doing_s;         /* for how long one of its threads has been doing the same */
    double slow;            /* how much slower than the others it is; 0: not known */
    int slow_at;            /* in what: a meter (device/meter.h); -1: not known */
};
void hzp_control_state(struct hzp_control *control, int rank, struct hzp_control_state *ret);

/* Rank 0: appends what all ranks have done since from_ns to a trace, a process for each rank, all
 * by rank 0's clock.  Ranks that do not answer within some seconds are named as such.  It waits.
 * HZP_EBUSY: another caller waits for its answer.  Any thread. */
int hzp_control_timeline(struct hzp_control *control, uint64_t from_ns, struct hzp_chrome *chrome);

/* The first lost rank and why; -1: none.  Any thread. */
int hzp_control_lost(struct hzp_control *control, char *why, size_t size);

/* Says goodbye and closes; before the link is closed.  NULL: no effect. */
void hzp_control_close(struct hzp_control *control);
