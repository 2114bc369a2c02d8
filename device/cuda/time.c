/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/time.c - times single ops with events.
 *
 * CUDA reports an event's time as milliseconds since another event, in a float: only short
 * distances are exact.  So times form a chain: each is the distance from the newest known event,
 * added up.  The chain is tied to the host's clock whenever the host has waited for a fence: the
 * newest event before it ended no later than now.  The difference of the clocks is exact if the
 * host was waiting when the fence passed, and too large if the host came late. So the smallest
 * difference counts; it may grow slowly because the two clocks do not run equally fast.
 */
#include "device/cuda/cuda.h"

#include "base/thread.h"

static const double DRIFT = 1e-4; /* maximum relative drift between the clocks */
static const uint64_t TIE_NS =
    10000000000; /* longest time without a new tie, if some lane always has timings to read */

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
    dev->clock.spare = hzp_xgrow(dev->clock.spare, &dev->clock.room, dev->clock.spares + 1,
                                 sizeof(*dev->clock.spare));
    dev->clock.spare[dev->clock.spares++] = event;
}

int hzp_cuda_times_prepare(struct hzp_device *base, int timings)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    /* 1 more: the newest known event is kept */
    while (dev->clock.spares < 2 * (int64_t)timings + 1) {
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
    lane->timing =
        hzp_xgrow(lane->timing, &lane->timings_room, lane->timings + 1, sizeof(*lane->timing));
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

/* The event's time in nanoseconds on the chain. */
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

/* Called when the host has just seen the newest event's end, or something behind it.  While lanes
 * have timings to read, the tie is not changed, so that ops that ran in parallel are reported on
 * one clock; but if there are always some, it is renewed after TIE_NS. */
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
        t->span->begin_ns = (uint64_t)(int64_t)begin; /* on the chain; the offset is added below */
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
    if (!first) /* applies to later readings */
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
