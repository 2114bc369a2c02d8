/* SPDX-License-Identifier: Apache-2.0 */
/* base/timeline.c - rings of spans.
 *
 * The writer announces that a place will be overwritten (`taken`), writes it, and then counts it
 * (`count`).  A reader copies places below `count`, and drops what was taken again meanwhile. */
#include "base/timeline.h"

#include "base/thread.h"

struct span {
    _Atomic uint64_t begin_ns, end_ns, number;
    _Atomic(const char *) name;
};

struct hzp_track {
    char name[HZP_TRACK_NAME];
    bool overlaps;
    uint32_t room;
    _Atomic uint64_t taken, count;
    _Atomic(const char *) doing; /* NULL: nothing */
    _Atomic uint64_t doing_number, since_ns;
    struct span *span; /* [room] */
};

struct copy {
    uint64_t begin_ns, end_ns, number;
    const char *name;
};

enum { EVENT_BYTES = 160 }; /* an event as text, about */

static struct hzp_track *track_of[HZP_TRACKS_MAX];
static struct hzp_lock lock = {.mutex = PTHREAD_MUTEX_INITIALIZER, .rank = HZP_LOCK_TIMELINE};

struct hzp_track *hzp_track_open(const char *name, uint32_t spans, bool overlaps)
{
    struct hzp_track *track = calloc(1, sizeof(*track));
    HZP_ASSERT(spans && !(spans & (spans - 1)));
    if (!track)
        return NULL;
    snprintf(track->name, sizeof(track->name), "%s", name);
    track->overlaps = overlaps;
    track->room = spans;
    track->span = calloc(spans, sizeof(*track->span));
    bool placed = false;
    hzp_lock_take(&lock);
    for (int i = 0; i < HZP_TRACKS_MAX && !placed && track->span; i++)
        if (!track_of[i]) {
            track_of[i] = track;
            placed = true;
        }
    hzp_lock_release(&lock);
    if (placed)
        return track;
    free(track->span);
    free(track);
    return NULL;
}

void hzp_track_close(struct hzp_track *track)
{
    if (!track)
        return;
    HZP_LOCKED(&lock);
    for (int i = 0; i < HZP_TRACKS_MAX; i++)
        if (track_of[i] == track)
            track_of[i] = NULL;
    free(track->span);
    free(track);
}

void hzp_track_add(struct hzp_track *track, const char *name, uint64_t begin_ns, uint64_t end_ns,
                   uint64_t number)
{
    if (!track)
        return;
    uint64_t at = atomic_load_explicit(&track->count, memory_order_relaxed);
    struct span *span = &track->span[at & (track->room - 1)];
    atomic_store_explicit(&track->taken, at + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* `taken` is seen before what is overwritten */
    atomic_store_explicit(&span->begin_ns, begin_ns, memory_order_relaxed);
    atomic_store_explicit(&span->end_ns, HZP_MAX(begin_ns, end_ns), memory_order_relaxed);
    atomic_store_explicit(&span->number, number, memory_order_relaxed);
    atomic_store_explicit(&span->name, name, memory_order_relaxed);
    atomic_store_explicit(&track->count, at + 1, memory_order_release);
}

void hzp_track_enter(struct hzp_track *track, const char *name, uint64_t number)
{
    if (!track)
        return;
    atomic_store_explicit(&track->doing_number, number, memory_order_relaxed);
    atomic_store_explicit(&track->since_ns, hzp_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&track->doing, name, memory_order_release);
}

void hzp_track_leave(struct hzp_track *track)
{
    const char *name = track ? atomic_load_explicit(&track->doing, memory_order_relaxed) : NULL;
    if (!name)
        return;
    hzp_track_add(track, name, atomic_load_explicit(&track->since_ns, memory_order_relaxed),
                  hzp_now_ns(), atomic_load_explicit(&track->doing_number, memory_order_relaxed));
    atomic_store_explicit(&track->doing, NULL, memory_order_release);
}

void hzp_timeline_doing(struct hzp_doing *ret)
{
    *ret = (struct hzp_doing){.since_ns = UINT64_MAX};
    HZP_LOCKED(&lock);
    for (int i = 0; i < HZP_TRACKS_MAX; i++) {
        struct hzp_track *track = track_of[i];
        const char *name = track ? atomic_load_explicit(&track->doing, memory_order_acquire) : NULL;
        uint64_t since = track ? atomic_load_explicit(&track->since_ns, memory_order_relaxed) : 0;
        if (!name || since >= ret->since_ns)
            continue;
        ret->since_ns = since;
        ret->number = atomic_load_explicit(&track->doing_number, memory_order_relaxed);
        snprintf(ret->track, sizeof(ret->track), "%s", track->name);
        snprintf(ret->name, sizeof(ret->name), "%s", name);
    }
}

/* ---- reading ---- */

/* Copies the newest spans, at most `most` of them, in their order; returns how many. */
static uint64_t copy_spans(struct hzp_track *track, struct copy *to, uint64_t most)
{
    uint64_t end = atomic_load_explicit(&track->count, memory_order_acquire);
    uint64_t room = track->room, n = HZP_MIN(HZP_MIN(end, room), most), first = end - n;
    for (uint64_t i = 0; i < n; i++) {
        const struct span *span = &track->span[(first + i) & (room - 1)];
        to[i] = (struct copy){atomic_load_explicit(&span->begin_ns, memory_order_relaxed),
                              atomic_load_explicit(&span->end_ns, memory_order_relaxed),
                              atomic_load_explicit(&span->number, memory_order_relaxed),
                              atomic_load_explicit(&span->name, memory_order_relaxed)};
    }
    atomic_thread_fence(memory_order_acquire);
    uint64_t taken = atomic_load_explicit(&track->taken, memory_order_relaxed);
    uint64_t lost = taken > first + room ? HZP_MIN(taken - first - room, n) : 0;
    memmove(to, to + lost, (size_t)(n - lost) * sizeof(*to));
    return n - lost;
}

static void write_spans(struct hzp_chrome *chrome, const struct hzp_chrome_span *like,
                        const struct copy *from, uint64_t count, int64_t ahead_ns)
{
    struct hzp_chrome_span span = *like;
    char args[40];
    for (uint64_t i = 0; i < count; i++) {
        snprintf(args, sizeof(args), "\"n\":%llu", (unsigned long long)from[i].number);
        span.name = from[i].name;
        span.begin_us = ((double)from[i].begin_ns + (double)ahead_ns) * 1e-3;
        span.length_us = (double)(from[i].end_ns - from[i].begin_ns) * 1e-3;
        span.args = args;
        span.id = i;
        hzp_chrome_span(chrome, &span);
    }
}

/* Tracks that have spans. */
static size_t tracks_used(void)
{
    size_t n = 0;
    HZP_LOCKED(&lock);
    for (int i = 0; i < HZP_TRACKS_MAX; i++)
        n += track_of[i] && atomic_load(&track_of[i]->count);
    return n;
}

void hzp_timeline_write(struct hzp_chrome *chrome, int pid, uint64_t from_ns, int64_t ahead_ns,
                        size_t bytes)
{
    HZP_FREED struct copy *copy = malloc(HZP_TRACK_OPS * sizeof(*copy));
    size_t spans = bytes / EVENT_BYTES, tracks = tracks_used();
    for (int i = 0; i < HZP_TRACKS_MAX && tracks && copy; i++) {
        struct hzp_chrome_span like = {.pid = pid, .tid = i};
        char name[HZP_TRACK_NAME] = "";
        uint64_t n = 0, first = 0;
        /* The lock is held for the copy only: threads that open tracks do not wait for the text. */
        hzp_lock_take(&lock);
        struct hzp_track *track = track_of[i];
        if (track && atomic_load(&track->count)) {
            n = copy_spans(track, copy, HZP_MIN(spans / tracks, (size_t)HZP_TRACK_OPS));
            like.overlaps = track->overlaps;
            memcpy(name, track->name, sizeof(name));
        }
        hzp_lock_release(&lock);
        if (!name[0])
            continue;
        while (first < n && copy[first].end_ns < from_ns)
            first++;
        hzp_chrome_thread(chrome, pid, i, name);
        write_spans(chrome, &like, copy + first, n - first, ahead_ns);
        spans -= HZP_MIN(spans, n - first); /* what a track does not need, the next ones get */
        tracks--;
    }
}
