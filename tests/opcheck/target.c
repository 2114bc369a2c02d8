/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/target.c - running and timing a case on a device. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "tests/opcheck/opcheck.h"

void (*oc_watch)(const struct oc_target *target, const struct oc_io *io, bool begins);

int oc_target_open(struct oc_target *target, const struct hzp_device_config *config,
                   const char *name, struct hzp_err_text *reterr)
{
    memset(target, 0, sizeof(*target));
    snprintf(target->name, sizeof(target->name), "%s", name);
    HZP_TRY(hzp_device_open(config, &target->dev, reterr));
    for (int i = 0; i < 2; i++) {
        int r =
            hzp_lane_open(target->dev, i ? HZP_BOUND_MEMORY : HZP_BOUND_COMPUTE, &target->lane[i]);
        if (r < 0)
            return hzp_fail(reterr, r, "%s: no lane", name);
    }
    HZP_TRY(hzp_fence_open(target->dev, &target->fence));
    return HZP_OK;
}

void oc_target_close(struct oc_target *target)
{
    if (!target->dev)
        return;
    hzp_device_free(target->dev, HZP_MEM_DEVICE, target->block);
    hzp_device_free(target->dev, HZP_MEM_HOST, target->staging);
    hzp_fence_close(target->fence);
    hzp_lane_close(target->lane[0]);
    hzp_lane_close(target->lane[1]);
    hzp_device_close(target->dev);
    target->dev = NULL;
}

static int room_make(struct oc_target *target, size_t size)
{
    if (size <= target->block_size)
        return HZP_OK;
    hzp_device_free(target->dev, HZP_MEM_DEVICE, target->block);
    hzp_device_free(target->dev, HZP_MEM_HOST, target->staging);
    target->block = target->staging = NULL;
    target->block_size = 0;
    size = HZP_MAX(size, (size_t)16 << 20);
    HZP_TRY(hzp_device_alloc(target->dev, HZP_MEM_DEVICE, size, &target->block));
    HZP_TRY(hzp_device_alloc(target->dev, HZP_MEM_HOST, size, &target->staging));
    target->block_size = size;
    return HZP_OK;
}

static struct hzp_lane *lane_for(struct oc_target *target, enum hzp_op op)
{
    return target->lane[hzp_class_bound(hzp_op_class(op, NULL)) == HZP_BOUND_MEMORY];
}

static int finish(struct oc_target *target, struct hzp_lane *lane)
{
    HZP_TRY(hzp_fence_record(target->fence, lane));
    return hzp_fence_wait(target->fence);
}

/* Whether the offset is that of a list which the host reads, too (struct hzp_segs). */
static bool for_host(const struct oc_io *io, uint64_t offset)
{
    static const char *const lists[] = {"row0", "pos0", "page", "line"};
    for (int i = 0; i < io->bufs; i++)
        for (int k = 0; k < HZP_COUNT(lists) && io->buf[i].offset == offset; k++)
            if (strcmp(io->buf[i].name, lists[k]) == 0)
                return true;
    return false;
}

/* Copies the arguments, with pointers into the image changed to point into the target's block; to
 * lists that the host reads, into the host's copy of it. */
static void args_moved(const struct oc_target *target, const struct oc_io *io, uint64_t *ret)
{
    uint64_t from = (uint64_t)(uintptr_t)io->image;
    memcpy(ret, io->args, sizeof(io->args));
    for (size_t i = 0; i < io->args_size / 8; i++)
        if (ret[i] >= from && ret[i] < from + io->used) {
            uint64_t offset = ret[i] - from;
            ret[i] = offset +
                     (uint64_t)(uintptr_t)(for_host(io, offset) ? target->staging : target->block);
        }
}

static int upload(struct oc_target *target, struct hzp_lane *lane, const struct oc_io *io)
{
    HZP_TRY(room_make(target, io->used));
    memcpy(target->staging, io->image, io->used);
    HZP_TRY(hzp_lane_copy(lane, target->block, target->staging, io->used));
    return finish(target, lane);
}

/* Issues the op alone as a graph.  HZP_EUNSUP: issued as usual instead. */
static int issue_graph(struct oc_target *target, struct hzp_lane *lane, enum hzp_op op,
                       const void *args)
{
    struct hzp_graph *graph = NULL;
    if (!target->by_graph || !hzp_device_has_graphs(target->dev))
        return HZP_EUNSUP;
    HZP_TRY(hzp_graph_begin(&lane, 1));
    int r = hzp_lane_issue(lane, op, args), ended = hzp_graph_end(lane, &graph);
    if (r >= 0 && ended >= 0)
        r = hzp_graph_launch(graph, lane);
    if (r >= 0 && ended >= 0)
        r = finish(target, lane);
    hzp_graph_close(target->dev, graph);
    return r < 0 ? r : ended;
}

int oc_target_run(struct oc_target *target, enum hzp_op op, const struct oc_io *io, uint8_t *result)
{
    uint64_t args[OC_ARGS_MAX / 8];
    struct hzp_lane *lane = lane_for(target, op);
    HZP_TRY(upload(target, lane, io));
    args_moved(target, io, args);
    if (oc_watch)
        oc_watch(target, io, true);
    int r = issue_graph(target, lane, op, args);
    if (r == HZP_EUNSUP)
        r = hzp_lane_issue(lane, op, args);
    if (oc_watch)
        oc_watch(target, io, false);
    HZP_TRY(r);
    memset(args, 0xff, sizeof(args)); /* the device copied them at issue, or the op has ended */
    HZP_TRY(hzp_lane_copy(lane, target->staging, target->block, io->used));
    HZP_TRY(finish(target, lane));
    memcpy(result, target->staging, io->used);
    target->called[op] = true;
    return HZP_OK;
}

/* Evicts what a case left in the host's caches. */
static void evict(void)
{
    enum { SIZE = 64 << 20 };
    static volatile uint8_t *junk;
    if (!junk)
        junk = hzp_xcalloc(SIZE, 1);
    for (size_t i = 0; i < SIZE; i += 64)
        junk[i]++;
}

static bool on_host(const struct oc_target *target)
{
    return strcmp(hzp_device_backend(target->dev), "cuda") != 0;
}

int oc_target_warm(struct oc_target *target, enum hzp_op op, const struct oc_io *io)
{
    uint64_t args[OC_ARGS_MAX / 8];
    struct hzp_lane *lane = lane_for(target, op);
    HZP_TRY(upload(target, lane, io));
    args_moved(target, io, args);
    HZP_TRY(hzp_lane_issue(lane, op, args));
    return finish(target, lane);
}

double oc_target_time(struct oc_target *target, enum hzp_op op, const struct oc_io *io)
{
    uint64_t args[OC_ARGS_MAX / 8];
    struct hzp_lane *lane = lane_for(target, op);
    int batch = on_host(target) ? 1 : 20; /* on a GPU a fence costs more than a small op */
    args_moved(target, io, args);
    if (on_host(target))
        evict();
    uint64_t begin = hzp_now_ns();
    for (int i = 0; i < batch; i++)
        if (hzp_lane_issue(lane, op, args) < 0)
            return -1;
    if (finish(target, lane) < 0)
        return -1;
    return (double)(hzp_now_ns() - begin) * 1e-9 / batch;
}

struct reader {
    const uint64_t *words;
    size_t count;
    uint64_t sum;
};

static void *reader_run(void *arg)
{
    struct reader *reader = arg;
    const uint64_t *w = reader->words;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i + 4 <= reader->count; i += 4) {
        a += w[i];
        b += w[i + 1];
        c += w[i + 2];
        d += w[i + 3];
    }
    reader->sum = a + b + c + d;
    return NULL;
}

static double bandwidth_host(int threads)
{
    enum { WORDS = 16 << 20, MOST = 64 };
    struct reader reader[MOST];
    pthread_t thread[MOST];
    double best = 0;
    uint64_t *words = hzp_xmalloc(WORDS * sizeof(*words));
    threads = HZP_MAX(1, HZP_MIN(threads, MOST));
    memset(words, 1, WORDS * sizeof(*words));
    for (int turn = 0; turn < 9; turn++) {
        uint64_t t0 = hzp_now_ns();
        for (int i = 0; i < threads; i++) {
            size_t share = WORDS / (size_t)threads;
            reader[i] = (struct reader){words + (size_t)i * share, share, 0};
            HZP_ASSERT(hzp_thread_start(&thread[i], "reader", reader_run, &reader[i]) >= 0);
        }
        for (int i = 0; i < threads; i++)
            pthread_join(thread[i], NULL);
        double rate = WORDS * 8.0 / ((double)(hzp_now_ns() - t0) * 1e-9);
        best = HZP_MAX(best, rate);
    }
    free(words);
    return best;
}

double oc_target_bandwidth(struct oc_target *target)
{
    if (on_host(target))
        return bandwidth_host(target->dev->threads);
    size_t size = (size_t)1 << 30;
    double best = 0;
    if (room_make(target, 2 * size) < 0)
        return 0;
    for (int turn = 0; turn < 5; turn++) {
        uint64_t t0 = hzp_now_ns();
        if (hzp_lane_copy(target->lane[1], (char *)target->block + size, target->block, size) < 0 ||
            finish(target, target->lane[1]) < 0)
            return 0;
        double rate = 2.0 * (double)size / ((double)(hzp_now_ns() - t0) * 1e-9);
        best = HZP_MAX(best, rate);
    }
    return best;
}
