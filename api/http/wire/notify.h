/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/notify.h - tells waiting requests that the engine has something for them.
 *
 * The engine thread adds a note for each request that has new tokens, which appends to a list
 * without a lock, and wakes the notifying thread after the last one of a step if it sleeps.  So a
 * step costs the engine thread one wakeup however many streams it serves.  The notifying thread
 * calls each note's function once, however often the note was posted since its last call.
 *
 * Notes that are posted together are called together: who is woken by one of them can wait until
 * all have been called (hzp_notify_settle), and then finds the others' wakeups instead of being
 * woken again for each.
 *
 * Notes of what can wait are joined: they are called in flushes, each after so many steps as
 * api/http/wire/notify.h says, and once for all of them.  The number of steps follows from the
 * processor time of a flush, which the notifying thread reads from the clocks of the threads that
 * write.  A joined note waits for at most the bound of the joining window, whether further steps
 * come or not.
 *
 * A note that is polled is also called every few milliseconds, for what no thread announces.
 *
 * Invariant: a note's memory lives until its function, called for the last time, gives it up: that
 * function may free it, because the note is then in no list.
 *
 * Thread: any; the functions run on the notifying thread ("hzp-notify") and never block.
 */
#pragma once

#include "base/err.h"

/* ---- join.c: in how many steps the tokens of a stream are joined, to be written at once.
 *
 * Writing to a stream costs processor time, most of it in the kernel, which serving lacks where it
 * computes on the same processors.  The tokens of all streams are written in flushes; what a flush
 * costs depends on the number of streams, and little on how many tokens each of them has.  With
 *
 *     c    processor time of a flush: of the I/O threads and of the notifying thread
 *     t    time between two steps that have tokens for streams
 *     P    processors that this process may use
 *     T    I/O threads
 *     k    a flush is of the tokens of so many steps
 *
 * writing takes c / (k t P) of all processors, and c / (k t T) of the I/O threads.  So
 *
 *     k = ceil(max(c / (0.05 t P), c / (0.5 t T)))
 *
 * keeps the former at 5 % and the latter at 50 % at most.  A token waits for up to (k - 1) t, the
 * joining window, which is at most a bound (--stream-join-ms):
 *
 *     k <= 1 + floor(bound / t)
 *
 * c and t are averages in which the newest period counts one half:
 *
 *     c = (c + spent / flushes) / 2,  t = (t + time / steps) / 2     the first: of the period alone
 *
 * Thread: any; pure functions. */

struct hzp_join {
    /* set by the owner */
    int processors, threads; /* P, T; at least 1 */
    uint64_t bound_ns;       /* 0: nothing is joined */
    /* learned */
    double flush_ns, step_ns; /* c, t; 0: nothing is known, nothing is joined */
};

/* A period. */
struct hzp_join_seen {
    uint64_t time_ns, spent_ns; /* how long it was; the processor time of its flushes */
    int64_t flushes, steps;     /* at least one */
};

void hzp_join_learn(struct hzp_join *join, const struct hzp_join_seen *seen);

/* k; at least 1. */
int32_t hzp_join_steps(const struct hzp_join *join);

/* The joining window (k - 1) t, in nanoseconds. */
uint64_t hzp_join_window(const struct hzp_join *join);

/* ---- notes ---- */

struct hzp_notify;

struct hzp_note {
    void (*call)(void *ctx);
    void *ctx;
    struct hzp_note *next;
    _Atomic bool posted;
};

/* join: copied; of its threads each calls hzp_notify_writer().  HZP_ENOMEM: no thread is left. */
int hzp_notify_create(const struct hzp_join *join, struct hzp_notify **ret);
/* Calls what is posted or joined and ends the thread; no note is posted or polled any more.  NULL:
 * no effect. */
void hzp_notify_destroy(struct hzp_notify *n);

/* The note is called soon. */
void hzp_notify_post(struct hzp_notify *n, struct hzp_note *note);
/* The two halves of it: the note is in the list; a sleeping thread looks at the list. */
void hzp_notify_add(struct hzp_notify *n, struct hzp_note *note);
void hzp_notify_wake(struct hzp_notify *n);
/* As hzp_notify_add, but the note is called in the next flush.  A note is either joined or added,
 * never both. */
void hzp_notify_join(struct hzp_notify *n, struct hzp_note *note);
/* Engine thread: all notes of a step were added or joined.  As hzp_notify_wake, but not for joined
 * notes whose flush is not due. */
void hzp_notify_step(struct hzp_notify *n);

/* The calling thread writes what notes announce: its processor time counts as a flush's.  Each
 * thread has to say so once; more than the threads at creation are not counted. */
void hzp_notify_writer(struct hzp_notify *n);
/* The joining window now, in nanoseconds. */
uint64_t hzp_notify_window(const struct hzp_notify *n);

/* Any thread, holding no lock that a note's function takes: returns when the notes that are being
 * called have been, BATCH at a time. */
void hzp_notify_settle(struct hzp_notify *n);

/* The note is called every few milliseconds until hzp_notify_unpoll(), which its own function
 * calls, and no other thread. */
void hzp_notify_poll(struct hzp_notify *n, struct hzp_note *note);
void hzp_notify_unpoll(struct hzp_notify *n, struct hzp_note *note);
