/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ncclfake/fake.h - a stand-in for NCCL and for the streams of several devices in one
 * process: it records calls, runs streams in their order, and computes on host memory.
 *
 * An operation of a communicator ends when it is the oldest of its stream on every member; members
 * that launch in different orders therefore never end, as on GPUs.  fake_stuck says so.
 *
 * Thread: any; one lock.
 */
#pragma once

#include "mesh/link.h"

extern const struct hzp_link_streams fake_streams;

enum fake_kind {
    FAKE_GATHER,
    FAKE_SCATTER,
    FAKE_REDUCE,
    FAKE_BROADCAST,
    FAKE_PAIRS, /* one group of sends and receipts */
    FAKE_SUM,   /* of the stream alone, as the next one */
    FAKE_CALL,
};

struct fake_op {
    enum fake_kind kind;
    int rank, members; /* of the world; of the communicator */
    size_t count;
    int type, root;
    const void *send;
    void *recv;
    bool ended;
};

void fake_reset(void);         /* forgets what was recorded, errors planted; all must be closed */
int fake_launched(void);       /* operations of communicators */
struct fake_op fake_op(int i); /* in the order of launch over all ranks */
bool fake_stuck(void);         /* operations were launched that can never end */
int fake_open(void);           /* streams, events and communicators that are not closed */
int fake_aborted(void);        /* communicators that were aborted */
int fake_registered(void);     /* buffers that are registered */
int fake_max_ctas(void);       /* of the last communicator */

void fake_plant(const char *function, int code); /* what its next call returns */
void fake_plant_async(int code);                 /* what CommGetAsyncError finds from now on */
void fake_set_version(int version);
void fake_slow(int asks);  /* how often each call is still in progress when it is asked about */
void fake_hold(bool hold); /* nothing ends meanwhile */
