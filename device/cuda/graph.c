/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/graph.c - the ops issued on several lanes as one CUDA graph.
 *
 * What an op launches is determined by its arguments' bytes (cuda.h), so a graph is valid as long
 * as those are the same: the memory its pointers refer to may change before each launch.  Copies
 * that stage host arrays are part of the graph, so begin and launch discard earlier staged copies.
 *
 * The capture begins on the first lane; the other lanes join it by waiting for an event of that
 * lane, and return to it in the same way before it ends: a lane that has not returned would make
 * the capture fail.  The launch is also on the first lane: it waits for earlier work of the other
 * lanes, and their later work waits for it.
 *
 * The capture covers only this thread's calls: another thread that copies for a checkpoint
 * meanwhile neither enters the graph nor breaks it.
 */
#include "device/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct hzp_graph {
    struct hzp_cuda_device *dev;
    cudaGraphExec_t exec;
    struct hzp_cuda_lane *lane[HZP_GRAPH_LANES_MAX];
    int lanes;
};

static void forget_staged(struct hzp_cuda_lane *const *lane, int lanes)
{
    for (int i = 0; i < lanes; i++)
        lane[i]->stage_epoch = 0; /* epochs start at 1: no staged copy is valid */
}

/* Logs why there is no graph. Not a device failure: if the device has failed, a later call reports
 * it. */
static int none(const char *what, cudaError_t error)
{
    hzp_log(HZP_LOG_WARN, "cuda", "no graph: %s: %s", what, cudaGetErrorString(error));
    cudaGetLastError();
    return HZP_EUNSUP;
}

/* Makes later work of lane `after` wait for all earlier work of lane `before`. */
static cudaError_t follow(struct hzp_cuda_device *dev, const struct hzp_cuda_lane *before,
                          const struct hzp_cuda_lane *after)
{
    cudaError_t error = cudaEventRecord(dev->join, before->stream);
    return error == cudaSuccess ? cudaStreamWaitEvent(after->stream, dev->join, 0) : error;
}

static cudaError_t fork_out(struct hzp_cuda_device *dev, struct hzp_cuda_lane *const *lane,
                            int lanes)
{
    cudaError_t error = cudaSuccess;
    for (int i = 1; i < lanes && error == cudaSuccess; i++)
        error = follow(dev, lane[0], lane[i]);
    return error;
}

static cudaError_t join_in(struct hzp_cuda_device *dev, struct hzp_cuda_lane *const *lane,
                           int lanes)
{
    cudaError_t error = cudaSuccess;
    for (int i = 1; i < lanes && error == cudaSuccess; i++)
        error = follow(dev, lane[i], lane[0]);
    return error;
}

int hzp_cuda_graph_begin(struct hzp_lane *const *base, int lanes)
{
    struct hzp_cuda_device *dev = hzp_cuda_device(base[0]);
    for (int i = 0; i < lanes; i++) {
        dev->capture[i] = hzp_cuda_lane(base[i]);
        HZP_TRY(hzp_cuda_lane_ready(dev->capture[i]));
    }
    cudaError_t error =
        cudaStreamBeginCapture(dev->capture[0]->stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess)
        return none("beginning", error);
    error = fork_out(dev, dev->capture, lanes);
    if (error != cudaSuccess) {
        cudaGraph_t graph = NULL;
        cudaStreamEndCapture(dev->capture[0]->stream, &graph);
        if (graph)
            cudaGraphDestroy(graph);
        return none("of several lanes", error);
    }
    forget_staged(dev->capture, lanes);
    dev->captures = lanes;
    dev->capturing = true;
    return HZP_OK;
}

int hzp_cuda_graph_end(struct hzp_lane *base, struct hzp_graph **ret)
{
    struct hzp_cuda_device *dev = hzp_cuda_device(base);
    struct hzp_cuda_lane *const *lane = dev->capture;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const char *what = "capturing";
    cudaError_t joined = join_in(dev, lane, dev->captures);
    cudaError_t error = cudaStreamEndCapture(lane[0]->stream, &graph);
    if (error == cudaSuccess)
        error = joined;
    if (error == cudaSuccess) {
        what = "instantiating";
        error = cudaGraphInstantiate(&exec, graph, 0);
    }
    if (error == cudaSuccess) {
        what = "uploading";
        error = cudaGraphUpload(exec, lane[0]->stream);
    }
    if (graph)
        cudaGraphDestroy(graph);
    forget_staged(lane, dev->captures);
    dev->capturing = false;
    struct hzp_graph *made = error == cudaSuccess ? calloc(1, sizeof(*made)) : NULL;
    if (!made) {
        if (exec)
            cudaGraphExecDestroy(exec);
        return none(what, error);
    }
    made->dev = dev;
    made->exec = exec;
    made->lanes = dev->captures;
    memcpy(made->lane, lane, sizeof(made->lane));
    *ret = made;
    return HZP_OK;
}

int hzp_cuda_graph_launch(struct hzp_graph *graph, struct hzp_lane *base)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    struct hzp_cuda_device *dev = graph->dev;
    HZP_ASSERT(lane == graph->lane[0]);
    HZP_TRY(hzp_cuda_lane_ready(lane));
    HZP_TRY(hzp_cuda_check(dev, join_in(dev, graph->lane, graph->lanes), "joining lanes"));
    bool timed = lane->span;
    if (timed)
        HZP_TRY(hzp_cuda_time_begin(lane));
    HZP_TRY(hzp_cuda_check(dev, cudaGraphLaunch(graph->exec, lane->stream), "launching a graph"));
    forget_staged(graph->lane, graph->lanes);
    if (timed)
        HZP_TRY(hzp_cuda_time_end(lane));
    return hzp_cuda_check(dev, fork_out(dev, graph->lane, graph->lanes), "joining lanes");
}

void hzp_cuda_graph_close(struct hzp_graph *graph)
{
    if (!graph)
        return;
    cudaGraphExecDestroy(graph->exec);
    free(graph);
}

int hzp_cuda_graphs_open(struct hzp_cuda_device *dev)
{
    return hzp_cuda_check(dev, cudaEventCreateWithFlags(&dev->join, cudaEventDisableTiming),
                          "opening an event");
}

void hzp_cuda_graphs_end(struct hzp_cuda_device *dev)
{
    if (dev->join)
        cudaEventDestroy(dev->join);
    dev->join = NULL;
}
