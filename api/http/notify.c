/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/notify.h"

#include "base/arena.h"
#include "base/thread.h"

#include <stdlib.h>

static const uint64_t POLL_NS = 5000000;
enum { BATCH = 512 }; /* notes called before those who wait for it go on: some hundred us */

struct hzp_notify {
    pthread_t thread;
    struct hzp_wake wake;
    _Atomic(struct hzp_note *) posted; /* newest first */
    _Atomic bool asleep, stop;
    struct hzp_lock batch; /* held while notes are called */
    struct hzp_lock lock;
    /* under lock */
    struct hzp_note **polled; /* [polls] of [room] */
    int polls, room;
};

/* Puts the newest-first list in the order of posting, so that no stream waits for a younger one. */
static struct hzp_note *reversed(struct hzp_note *list)
{
    struct hzp_note *first = NULL;
    while (list) {
        struct hzp_note *next = list->next;
        list->next = first;
        first = list;
        list = next;
    }
    return first;
}

static bool call_posted(struct hzp_notify *n)
{
    struct hzp_note *note = reversed(atomic_exchange(&n->posted, NULL)), *next;
    bool any = note != NULL;
    while (note) {
        hzp_lock_take(&n->batch);
        for (int i = 0; i < BATCH && note; i++, note = next) {
            next = note->next;
            /* Before the call: what is posted from now on is called again. */
            atomic_store(&note->posted, false);
            note->call(note->ctx);
        }
        hzp_lock_release(&n->batch);
    }
    return any;
}

static struct hzp_note *polled_at(struct hzp_notify *n, int i)
{
    hzp_lock_take(&n->lock);
    struct hzp_note *note = i < n->polls ? n->polled[i] : NULL;
    hzp_lock_release(&n->lock);
    return note;
}

/* From the last to the first, because a call may remove its own note. */
static bool call_polled(struct hzp_notify *n)
{
    hzp_lock_take(&n->lock);
    int polls = n->polls;
    hzp_lock_release(&n->lock);
    for (int i = polls - 1; i >= 0; i--) {
        struct hzp_note *note = polled_at(n, i);
        if (note)
            note->call(note->ctx);
    }
    return polls > 0;
}

static void *notify_main(void *arg)
{
    struct hzp_notify *n = arg;
    uint64_t next_poll = 0;
    for (;;) {
        bool polls = false;
        if (hzp_now_ns() >= next_poll) {
            polls = call_polled(n);
            next_poll = polls ? hzp_now_ns() + POLL_NS : 0;
        } else {
            polls = true;
        }
        if (call_posted(n))
            continue;
        if (atomic_load(&n->stop))
            return NULL;
        /* The flag is raised before the list is looked at again, and a post looks at the flag
         * after it has changed the list: one of the two sees the other. */
        atomic_store(&n->asleep, true);
        if (!atomic_load(&n->posted) && !atomic_load(&n->stop))
            hzp_wake_wait(&n->wake, polls ? POLL_NS : UINT64_MAX);
        atomic_store(&n->asleep, false);
    }
}

int hzp_notify_create(struct hzp_notify **ret)
{
    struct hzp_notify *n = hzp_xcalloc(1, sizeof(*n));
    hzp_wake_init(&n->wake);
    hzp_lock_init(&n->batch, HZP_LOCK_NOTES);
    hzp_lock_init(&n->lock, HZP_LOCK_NOTIFY);
    if (hzp_thread_start(&n->thread, "hzp-notify", notify_main, n) < 0) {
        hzp_lock_fini(&n->batch);
        hzp_lock_fini(&n->lock);
        hzp_wake_fini(&n->wake);
        free(n);
        return HZP_ENOMEM;
    }
    *ret = n;
    return HZP_OK;
}

void hzp_notify_destroy(struct hzp_notify *n)
{
    if (!n)
        return;
    atomic_store(&n->stop, true);
    hzp_wake_poke(&n->wake);
    pthread_join(n->thread, NULL);
    hzp_lock_fini(&n->batch);
    hzp_lock_fini(&n->lock);
    hzp_wake_fini(&n->wake);
    free(n->polled);
    free(n);
}

void hzp_notify_add(struct hzp_notify *n, struct hzp_note *note)
{
    if (atomic_exchange(&note->posted, true))
        return;
    struct hzp_note *first = atomic_load(&n->posted);
    do
        note->next = first;
    while (!atomic_compare_exchange_weak(&n->posted, &first, note));
}

void hzp_notify_wake(struct hzp_notify *n)
{
    if (atomic_load(&n->asleep) && atomic_exchange(&n->asleep, false))
        hzp_wake_poke(&n->wake);
}

void hzp_notify_post(struct hzp_notify *n, struct hzp_note *note)
{
    hzp_notify_add(n, note);
    hzp_notify_wake(n);
}

void hzp_notify_settle(struct hzp_notify *n)
{
    hzp_lock_take(&n->batch);
    hzp_lock_release(&n->batch);
}

void hzp_notify_poll(struct hzp_notify *n, struct hzp_note *note)
{
    hzp_lock_take(&n->lock);
    if (n->polls == n->room) {
        n->room = HZP_MAX(16, 2 * n->room);
        n->polled = hzp_xrealloc(n->polled, (size_t)n->room * sizeof(struct hzp_note *));
    }
    n->polled[n->polls++] = note;
    hzp_lock_release(&n->lock);
    hzp_wake_poke(&n->wake);
}

void hzp_notify_unpoll(struct hzp_notify *n, struct hzp_note *note)
{
    hzp_lock_take(&n->lock);
    for (int i = 0; i < n->polls; i++)
        if (n->polled[i] == note) {
            n->polled[i] = n->polled[--n->polls];
            break;
        }
    hzp_lock_release(&n->lock);
}
