/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/time.c - when single ops ran, by events.
 *
 * An event's time is told as milliseconds since another one, in a float: short distances only are
 * exact.  So times are a chain: each is the distance from the newest known event, added up.  The
 * chain is tied to the host's clock whenever the host has waited for a fence: the newest event
 * before it ended no later than now.  That distance is right where the host slept until the fence
 * came and too long where it came late, so the smallest counts, allowed to grow slowly because the
 * two clocks are not equally fast.
 */
#include "device/cuda/cuda.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/thread.h"

static const double DRIFT = 1e-4; /* of one clock against the other, at most */
static const uint64_t TIE_NS =
    10000000000; /* so long a tie may stay where some lane always waits */

static int event_take(struct hzp_cuda_device *dev, cudaEvent_t *ret)
{
    if (dev->clock.spares > 0) {
        *ret = dev->clock.spare[--dev->clock.spares];
        return HZP_OK;
    }
    return hzp_cuda_check(dev, cudaEventCreate(ret), "opening an event");
}

static void event_give(struct hzp_cuda_device *dev, cudaEvent_t event)
{
    if (dev->clock.spares == dev->clock.room) {
        dev->clock.room = HZP_MAX(256, 2 * dev->clock.room);
        dev->clock.spare =
            hzp_xrealloc(dev->clock.spare, (size_t)dev->clock.room * sizeof(*dev->clock.spare));
    }
    dev->clock.spare[dev->clock.spares++] = event;
}

int hzp_cuda_times_prepare(struct hzp_device *base, int timings)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    while (dev->clock.spares < 2 * (int64_t)timings + 1) { /* one is the newest known */
        cudaEvent_t event;
        HZP_TRY(hzp_cuda_check(dev, cudaEventCreate(&event), "opening an event"));
        event_give(dev, event);
    }
    return HZP_OK;
}

int hzp_cuda_lane_time(struct hzp_lane *lane, struct hzp_span *span)
{
    hzp_cuda_lane(lane)->span = span;
    return HZP_OK;
}

int hzp_cuda_time_begin(struct hzp_cuda_lane *lane)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)lane->base.dev;
    if (lane->timings == lane->timings_room) {
        lane->timings_room = HZP_MAX(256, 2 * lane->timings_room);
        lane->timing =
            hzp_xrealloc(lane->timing, (size_t)lane->timings_room * sizeof(*lane->timing));
    }
    struct hzp_cuda_timing *t = &lane->timing[lane->timings];
    HZP_TRY(event_take(dev, &t->begin));
    int r = event_take(dev, &t->end);
    if (r == HZP_OK)
        r = hzp_cuda_check(dev, cudaEventRecord(t->begin, lane->stream), "timing an op");
    if (r < 0)
        event_give(dev, t->begin);
    return r;
}

int hzp_cuda_time_end(struct hzp_cuda_lane *lane)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)lane->base.dev;
    struct hzp_cuda_timing *t = &lane->timing[lane->timings++];
    t->span = lane->span;
    lane->span = NULL;
    lane->timed++;
    return hzp_cuda_check(dev, cudaEventRecord(t->end, lane->stream), "timing an op");
}

/* Nanoseconds of the chain. */
static int time_of(struct hzp_cuda_device *dev, cudaEvent_t event, double *ret)
{
    float ms = 0;
    if (dev->clock.last)
        HZP_TRY(hzp_cuda_check(dev, cudaEventElapsedTime(&ms, dev->clock.last, event),
                               "reading an event"));
    *ret = dev->clock.last_ns + 1e6 * (double)ms;
    return HZP_OK;
}

static void last_set(struct hzp_cuda_device *dev, cudaEvent_t event, double ns)
{
    if (dev->clock.last)
        event_give(dev, dev->clock.last);
    dev->clock.last = event;
    dev->clock.last_ns = ns;
}

/* The host has just seen the newest event's end, or something behind it.  While lanes have timings
 * to read the tie stays as it is, so that what ran side by side is told by one clock; but not for
 * long, where there are always some. */
static void tie(struct hzp_cuda_device *dev, bool first)
{
    uint64_t now = hzp_now_ns();
    if (!first && now - dev->clock.offset_at < TIE_NS)
        for (const struct hzp_cuda_lane *lane = dev->lane_list; lane; lane = lane->next)
            if (lane->timings > 0)
                return;
    double seen = (double)now - dev->clock.last_ns;
    double grown = dev->clock.offset_ns + DRIFT * (double)(now - dev->clock.offset_at);
    dev->clock.offset_ns = first || seen < grown ? seen : grown;
    dev->clock.offset_at = now;
}

int hzp_cuda_time_read(struct hzp_cuda_lane *lane, uint64_t upto)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)lane->base.dev;
    uint64_t done = lane->timed - (uint64_t)lane->timings;
    int count = upto > done ? (int)(upto - done) : 0;
    bool first = !dev->clock.last;
    if (count == 0)
        return HZP_OK;
    for (int i = 0; i < count; i++) {
        struct hzp_cuda_timing *t = &lane->timing[i];
        double begin, end;
        HZP_TRY(time_of(dev, t->begin, &begin));
        if (first && i == 0)
            last_set(dev, t->begin, begin);
        else
            event_give(dev, t->begin);
        HZP_TRY(time_of(dev, t->end, &end));
        last_set(dev, t->end, end);
        t->span->begin_ns = (uint64_t)(int64_t)begin; /* of the chain, until it is tied */
        t->span->end_ns = (uint64_t)(int64_t)end;
    }
    if (first)
        tie(dev, true);
    for (int i = 0; i < count; i++) {
        lane->timing[i].span->begin_ns += (uint64_t)(int64_t)dev->clock.offset_ns;
        lane->timing[i].span->end_ns += (uint64_t)(int64_t)dev->clock.offset_ns;
    }
    lane->timings -= count;
    for (int i = 0; i < lane->timings; i++)
        lane->timing[i] = lane->timing[i + count];
    if (!first) /* for what is read later */
        tie(dev, false);
    return HZP_OK;
}

void hzp_cuda_time_close(struct hzp_cuda_device *dev)
{
    if (dev->clock.last)
        event_give(dev, dev->clock.last);
    dev->clock.last = NULL;
    for (int i = 0; i < dev->clock.spares; i++)
        cudaEventDestroy(dev->clock.spare[i]);
    free(dev->clock.spare);
    dev->clock.spare = NULL;
    dev->clock.spares = dev->clock.room = 0;
}
