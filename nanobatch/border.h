/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/border.h - border calls: another thread has a function run on the engine thread
 * between two steps, and is told when it is done.
 *
 *     post -> tried at each border -> ended (the function's result)
 *          -> taken back by its caller (HZP_ECANCELED)
 *          -> the loop has ended (HZP_ECANCELED, or why it failed)
 *
 * There is one kind of border: a step has been formed, the next has not, and sources are not being
 * asked.  What needs more, that an update has ended or that nothing of a chain is in flight, is a
 * condition of the function: it returns HZP_EBUSY, and is tried again at the next border.  What it
 * needs the engine's work for it may begin in a try, and look for its end in later ones.  So there
 * is no state besides the function's own, and nothing looks again after a time: the engine thread
 * tries at each turn of the loop, and whatever such a function can wait for wakes the loop.
 *
 * Calls are tried in the order in which they were posted; one that has to wait holds up no other.
 * A call is its caller's memory: nothing is allocated, and there are as many as threads have
 * posted. The loop does not wait for them when it stops.
 *
 * Thread: engine for run; the others any but the engine's, unless stated.  Functions run on the
 * engine thread, with no lock held.
 */
#pragma once

#include "base/thread.h"

struct hzp_border {
    uint64_t last_step; /* the newest step that was formed; it may be in flight */
    /* it asks that no version be published behind it (hzp_offer.keep_version) */
    bool keep_version;
};

/* HZP_EBUSY: not at this border; any other result ends the call. */
typedef int hzp_border_fn(void *ctx, const struct hzp_border *border);

struct hzp_border_call {
    hzp_border_fn *fn;
    void *ctx;
    struct hzp_wake *wake; /* poked when it has ended; NULL: none */
    /* private, under the lock of struct hzp_borders */
    struct hzp_border_call *next;
    bool waits;
    int result;
};

/* The calls of one loop. */
struct hzp_borders {
    struct hzp_lock lock;
    pthread_cond_t changed;        /* a call has ended, or a try */
    struct hzp_border_call *first; /* in the order of posting */
    struct hzp_border_call *tried; /* its function is running; NULL: none */
    int closed;                    /* < 0: no call runs any more, and this is its result */
    atomic_int count;              /* how many calls wait */
};

void hzp_borders_init(struct hzp_borders *b);
void hzp_borders_fini(struct hzp_borders *b); /* no call waits */

/* Engine: tries each call that waits once.  Returns how many have ended. */
int32_t hzp_borders_run(struct hzp_borders *b, const struct hzp_border *border);

/* Whether run has something to do.  Thread: any. */
static inline bool hzp_borders_wait(struct hzp_borders *b)
{
    return atomic_load(&b->count) > 0;
}

/* Ends all calls, also those that come later, with this result; one that is being tried ends when
 * the try does.  Thread: any. */
void hzp_borders_close(struct hzp_borders *b, int result);

/* The loop is to be woken afterwards (nanobatch/loop.h does both).  *call is the borders' until it
 * has ended; fn, ctx and wake are set. */
void hzp_borders_post(struct hzp_borders *b, struct hzp_border_call *call);
/* True: it has ended, or was never posted; *ret: its result.  Thread: any. */
bool hzp_borders_ended(struct hzp_borders *b, const struct hzp_border_call *call, int *ret);
/* Waits until it has ended; returns its result. */
int hzp_borders_await(struct hzp_borders *b, const struct hzp_border_call *call);
/* Takes it back: it is not tried any more; waits for a try in progress.  Returns its result if it
 * has ended, else HZP_ECANCELED.  What its function has begun it leaves as it is. */
int hzp_borders_cancel(struct hzp_borders *b, struct hzp_border_call *call);
