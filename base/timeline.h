/* SPDX-License-Identifier: Apache-2.0 */
/* base/timeline.h - what the threads of this process did in the last seconds: a ring of spans for
 * each lane, thread or kind of event, always on.
 *
 * A track is one ring with one writer.  Adding a span overwrites the oldest one and costs some
 * nanoseconds; nothing is allocated after a track was opened, and a ring's memory is used only as
 * far as it was filled.  A thread also says what it is doing now, so that one that hangs is seen.
 *
 * Times are those of hzp_now_ns.  A number tells spans of one name apart: a step, a ticket, a
 * version, how many ops a span stands for.
 *
 * Invariant: a reader gets only spans that were complete when it copied them.
 *
 * Thread: open, close, read: any.  What has a track as its argument otherwise: the track's writer,
 * one thread at a time.
 */
#pragma once

#include "base/chrome.h"
#include "base/err.h"

struct hzp_track;

enum {
    HZP_TRACKS_MAX = 64, /* in one process; further tracks are not recorded */
    HZP_TRACK_OPS = 1 << 16,
    HZP_TRACK_FEW = 1 << 12, /* spans, for everything that is rarer than ops */
    HZP_TRACK_NAME = 24,     /* bytes of a track's name, with the 0 */
};

/* A track with room for `spans` (a power of two).  overlaps: its spans may, so a viewer draws each
 * on a line of its own.  NULL: there are too many tracks, or no memory; every function below takes
 * it and does nothing. */
struct hzp_track *hzp_track_open(const char *name, uint32_t spans, bool overlaps);
void hzp_track_close(struct hzp_track *track);

/* name: text that is never freed. */
void hzp_track_add(struct hzp_track *track, const char *name, uint64_t begin_ns, uint64_t end_ns,
                   uint64_t number);

/* From now on the thread does this; leave: not any more, and adds it as a span.  Not nested. */
void hzp_track_enter(struct hzp_track *track, const char *name, uint64_t number);
void hzp_track_leave(struct hzp_track *track);

/* The thread that has been doing one thing for longest. */
struct hzp_doing {
    char track[HZP_TRACK_NAME]; /* "": none does anything */
    char name[HZP_TRACK_NAME];
    uint64_t number, since_ns;
};
void hzp_timeline_doing(struct hzp_doing *ret);

/* Appends the spans that ended at from_ns or later to a trace, as process `pid`; ahead_ns is added
 * to their times.  At most about `bytes` bytes, the newest ones of each track. */
void hzp_timeline_write(struct hzp_chrome *chrome, int pid, uint64_t from_ns, int64_t ahead_ns,
                        size_t bytes);
