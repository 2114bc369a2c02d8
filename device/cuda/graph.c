/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/graph.c - what a lane was given, kept as one CUDA graph.
 *
 * Everything an op launches is fixed by its arguments' bytes (cuda.h), so a graph is right for as
 * long as those are the same: what its pointers point to may change before each launch.  Copies that
 * stage host arrays are part of the graph: begin and launch therefore forget what was staged.
 *
 * Capture is of this thread's calls alone; another thread copying for a checkpoint meanwhile neither
 * enters the graph nor breaks it.
 */
#include "device/cuda/cuda.h"

#include <stdlib.h>

#include "base/log.h"

struct hzp_graph {
    struct hzp_cuda_device *dev;
    cudaGraphExec_t exec;
};

static void forget_staged(struct hzp_cuda_lane *lane)
{
    lane->stage_epoch = 0; /* epochs begin at 1 */
}

/* Not the device's failure: if it has failed, it will again. */
static int none(const char *what, cudaError_t error)
{
    hzp_log(HZP_LOG_WARN, "cuda", "no graph: %s: %s", what, cudaGetErrorString(error));
    cudaGetLastError();
    return HZP_EUNSUP;
}

int hzp_cuda_graph_begin(struct hzp_lane *base)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    struct hzp_cuda_device *dev = hzp_cuda_device(base);
    HZP_TRY(hzp_cuda_lane_ready_for_ops(lane)); /* nothing is allocated while capturing */
    cudaError_t error = cudaStreamBeginCapture(lane->stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess)
        return none("beginning", error);
    forget_staged(lane);
    dev->capturing = true;
    return HZP_OK;
}

int hzp_cuda_graph_end(struct hzp_lane *base, struct hzp_graph **ret)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    struct hzp_cuda_device *dev = hzp_cuda_device(base);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const char *what = "capturing";
    cudaError_t error = cudaStreamEndCapture(lane->stream, &graph);
    if (error == cudaSuccess) {
        what = "instantiating";
        error = cudaGraphInstantiate(&exec, graph, 0);
    }
    if (error == cudaSuccess) {
        what = "uploading";
        error = cudaGraphUpload(exec, lane->stream);
    }
    if (graph)
        cudaGraphDestroy(graph);
    forget_staged(lane);
    dev->capturing = false;
    struct hzp_graph *made = error == cudaSuccess ? calloc(1, sizeof(*made)) : NULL;
    if (!made) {
        if (exec)
            cudaGraphExecDestroy(exec);
        return none(what, error);
    }
    made->dev = dev;
    made->exec = exec;
    *ret = made;
    return HZP_OK;
}

int hzp_cuda_graph_launch(struct hzp_graph *graph, struct hzp_lane *base)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    HZP_TRY(hzp_cuda_lane_ready(lane));
    bool timed = lane->span;
    if (timed)
        HZP_TRY(hzp_cuda_time_begin(lane));
    HZP_TRY(hzp_cuda_check(graph->dev, cudaGraphLaunch(graph->exec, lane->stream),
                           "launching a graph"));
    forget_staged(lane);
    return timed ? hzp_cuda_time_end(lane) : HZP_OK;
}

void hzp_cuda_graph_close(struct hzp_graph *graph)
{
    if (!graph)
        return;
    cudaGraphExecDestroy(graph->exec);
    free(graph);
}
