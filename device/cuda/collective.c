/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/collective.c - the collective op: a transfer on the lane's stream.
 *
 * Its kernel waits on the device until all ranks have come so far.  So a host that waits for work
 * behind it looks at the link meanwhile: if a rank is lost, the link gives the transfer up, and the
 * stream goes on.
 *
 * Collectives are not captured in graphs: NCCL wants all ranks to capture the same ones, and when a
 * rank captures is its own decision (nanobatch/run/graphs.h). */
#include "device/collective.h"

#include "base/log.h"
#include "device/cuda/cuda.h"

#include <sched.h>

/* Queries between two looks at the link. */
enum { QUERIES = 64 };

static int failed(const char *what, const struct hzp_err_text *why)
{
    hzp_log(HZP_LOG_ERROR, "device", "%s between ranks failed: %s", what, why->text);
    return HZP_EDEVICE;
}

static void note_link(struct hzp_cuda_device *dev, struct hzp_link *link)
{
    enum { LAST = HZP_COUNT(dev->link) - 1 };
    for (int i = 0; i <= LAST; i++)
        if (dev->link[i] == link)
            return;
    memmove(&dev->link[1], &dev->link[0], LAST * sizeof(dev->link[0]));
    dev->link[0] = link;
}

bool hzp_cuda_links_work(const struct hzp_cuda_device *dev, struct hzp_err_text *reterr)
{
    for (int i = 0; i < HZP_COUNT(dev->link); i++)
        if (dev->link[i] && hzp_link_check(dev->link[i], reterr) < 0)
            return false;
    return true;
}

int hzp_cuda_collective(struct hzp_lane *lane, const void *args)
{
    const struct hzp_collective_args *a = args;
    struct hzp_cuda_device *dev = hzp_cuda_device(lane);
    struct hzp_err_text why = {0};
    struct hzp_transfer t;
    if (dev->capturing)
        return HZP_EUNSUP;
    hzp_collective_transfer(a, &t);
    if (t.count == 0 || a->part == HZP_COLLECTIVE_END ||
        (hzp_link_ranks(a->link) == 1 && !a->send.ptr))
        return HZP_OK;
    note_link(dev, a->link);
    int r = hzp_link_enqueue(a->link, &t, hzp_cuda_lane(lane)->stream, &why);
    return r < 0 ? failed(hzp_transfer_name(t.op), &why) : hzp_cuda_launched(lane, "collective");
}

int hzp_cuda_await(struct hzp_cuda_device *dev, cudaEvent_t event)
{
    struct hzp_err_text why = {0};
    if (!dev->link[0])
        return hzp_cuda_check(dev, cudaEventSynchronize(event), "the device");
    /* a closed link has left nothing on any stream: then the first query ends this */
    for (unsigned query = 1;; query++) {
        cudaError_t error = cudaEventQuery(event);
        if (error != cudaErrorNotReady)
            return hzp_cuda_check(dev, error, "the device");
        cudaGetLastError(); /* it is no error: the launch after it must not find it */
        if (query % QUERIES == 0 && !hzp_cuda_links_work(dev, &why))
            return failed("work", &why);
        sched_yield();
    }
}
