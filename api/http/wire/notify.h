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
 * api/http/wire/join.h says, and once for all of them.  The number of steps follows from the
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

#include "api/http/wire/join.h"
#include "base/err.h"

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
