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
 * Of several lanes on green contexts each has graphs of its own: its ops up to the next event that
 * it records for another lane, or waits for, are one graph, a piece.  A launch repeats pieces,
 * records and waits in the order of the capture, each on its lane's stream.  So a wait is always
 * put on its stream after the record of the same launch.  Events inside the graphs would not do: of
 * two lanes that wait for one another, one graph is launched before the other's records, and its
 * waits would be for those of the launch before.
 *
 * The capture covers only this thread's calls: another thread that copies for a checkpoint
 * meanwhile neither enters the graph nor breaks it.
 */
#include "device/cuda/cuda.h"

#include "base/log.h"

/* A part of a graph captured lane by lane: a piece to launch, or an event to record or wait for. */
struct move {
    enum { MOVE_LAUNCH, MOVE_RECORD, MOVE_WAIT } kind;
    struct hzp_cuda_lane *lane;
    cudaGraph_t graph; /* NULL once exec is made */
    cudaGraphExec_t exec;
    cudaEvent_t event; /* the fence's: borrowed */
};

struct hzp_graph {
    struct hzp_cuda_device *dev;
    cudaGraphExec_t exec; /* NULL: captured lane by lane */
    struct hzp_cuda_lane *lane[HZP_GRAPH_LANES_MAX];
    int lanes;
    struct move *move; /* [moves] in the order of the capture */
    int moves, room;
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

/* ---- a graph a lane ---- */

bool hzp_cuda_graphs_cut(const struct hzp_device *base)
{
    const struct hzp_cuda_device *dev = (const struct hzp_cuda_device *)base;
    return dev->graph_a_lane && dev->lanes == HZP_CUDA_GREEN;
}

/* Lanes whose split of the SMs was refused have streams of their own, and one graph. */
bool hzp_cuda_graph_is_cut(struct hzp_lane *const *base, int lanes)
{
    bool green = false;
    for (int i = 0; i < lanes; i++) {
        struct hzp_cuda_lane *lane = hzp_cuda_lane(base[i]);
        if (hzp_cuda_lane_ready(lane) < 0)
            return false; /* beginning the graph fails, too */
        green |= lane->stream != lane->own;
    }
    return lanes > 1 && green && hzp_cuda_graphs_cut(base[0]->dev);
}

static int pieces_begin(struct hzp_cuda_device *dev, int lanes)
{
    struct hzp_graph *graph = calloc(1, sizeof(*graph));
    if (!graph)
        return HZP_ENOMEM;
    graph->dev = dev;
    graph->lanes = lanes;
    memcpy(graph->lane, dev->capture, sizeof(graph->lane));
    forget_staged(graph->lane, lanes);
    dev->making = graph;
    dev->captures = lanes;
    dev->capturing = true;
    return HZP_OK;
}

static int move_add(struct hzp_graph *graph, const struct move *move)
{
    if (graph->moves == graph->room) {
        int room = graph->room ? 2 * graph->room : 64;
        struct move *grown = realloc(graph->move, (size_t)room * sizeof(*grown));
        if (!grown)
            return HZP_ENOMEM;
        graph->move = grown;
        graph->room = room;
    }
    graph->move[graph->moves++] = *move;
    return HZP_OK;
}

/* Ends the lane's piece, if one is begun, also if the capture has failed. */
static int piece_end(struct hzp_cuda_lane *lane)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)lane->base.dev;
    struct move move = {.kind = MOVE_LAUNCH, .lane = lane};
    if (!lane->cutting)
        return HZP_OK;
    lane->cutting = false;
    cudaError_t error = cudaStreamEndCapture(lane->stream, &move.graph);
    int r = error == cudaSuccess ? move_add(dev->making, &move) : none("capturing", error);
    if (r < 0 && move.graph)
        cudaGraphDestroy(move.graph);
    return r;
}

int hzp_cuda_graph_op(struct hzp_cuda_lane *lane)
{
    const struct hzp_cuda_device *dev = (struct hzp_cuda_device *)lane->base.dev;
    if (!dev->making || lane->cutting)
        return HZP_OK;
    cudaError_t error = cudaStreamBeginCapture(lane->stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess)
        return none("beginning", error);
    lane->cutting = true;
    return HZP_OK;
}

int hzp_cuda_graph_record(struct hzp_cuda_lane *lane, cudaEvent_t event)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)lane->base.dev;
    struct move move = {.kind = MOVE_RECORD, .lane = lane, .event = event};
    HZP_TRY(piece_end(lane));
    return move_add(dev->making, &move);
}

int hzp_cuda_graph_wait(struct hzp_cuda_lane *lane, cudaEvent_t event)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)lane->base.dev;
    struct move move = {.kind = MOVE_WAIT, .lane = lane, .event = event};
    HZP_TRY(piece_end(lane));
    return move_add(dev->making, &move);
}

/* Makes the pieces ready to launch, once no lane is being captured. */
static int pieces_make(struct hzp_graph *graph)
{
    for (int i = 0; i < graph->moves; i++) {
        struct move *move = &graph->move[i];
        if (move->kind != MOVE_LAUNCH)
            continue;
        cudaError_t error = cudaGraphInstantiate(&move->exec, move->graph, 0);
        if (error != cudaSuccess)
            return none("instantiating", error);
        cudaGraphDestroy(move->graph);
        move->graph = NULL;
        error = cudaGraphUpload(move->exec, move->lane->stream);
        if (error != cudaSuccess)
            return none("uploading", error);
    }
    return HZP_OK;
}

static int pieces_end(struct hzp_cuda_device *dev, struct hzp_graph **ret)
{
    struct hzp_graph *graph = dev->making;
    int r = HZP_OK;
    for (int i = 0; i < graph->lanes; i++) {
        int ended = piece_end(graph->lane[i]);
        r = r < 0 ? r : ended;
    }
    dev->making = NULL;
    if (r == HZP_OK)
        r = pieces_make(graph);
    forget_staged(graph->lane, graph->lanes);
    dev->capturing = false;
    if (r < 0)
        hzp_cuda_graph_close(graph);
    else
        *ret = graph;
    return r;
}

static cudaError_t pieces_launch(const struct hzp_graph *graph)
{
    cudaError_t error = fork_out(graph->dev, graph->lane, graph->lanes);
    for (int i = 0; i < graph->moves && error == cudaSuccess; i++) {
        const struct move *move = &graph->move[i];
        if (move->kind == MOVE_LAUNCH)
            error = cudaGraphLaunch(move->exec, move->lane->stream);
        else if (move->kind == MOVE_RECORD)
            error = cudaEventRecord(move->event, move->lane->stream);
        else
            error = cudaStreamWaitEvent(move->lane->stream, move->event, 0);
    }
    return error == cudaSuccess ? join_in(graph->dev, graph->lane, graph->lanes) : error;
}

/* ---- graphs ---- */

int hzp_cuda_graph_begin(struct hzp_lane *const *base, int lanes)
{
    struct hzp_cuda_device *dev = hzp_cuda_device(base[0]);
    for (int i = 0; i < lanes; i++) {
        dev->capture[i] = hzp_cuda_lane(base[i]);
        HZP_TRY(hzp_cuda_lane_ready(dev->capture[i]));
    }
    if (hzp_cuda_graph_is_cut(base, lanes))
        return pieces_begin(dev, lanes);
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
    if (dev->making)
        return pieces_end(dev, ret);
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
    cudaError_t error =
        graph->exec ? cudaGraphLaunch(graph->exec, lane->stream) : pieces_launch(graph);
    HZP_TRY(hzp_cuda_check(dev, error, "launching a graph"));
    forget_staged(graph->lane, graph->lanes);
    if (timed)
        HZP_TRY(hzp_cuda_time_end(lane));
    return hzp_cuda_check(dev, fork_out(dev, graph->lane, graph->lanes), "joining lanes");
}

void hzp_cuda_graph_close(struct hzp_graph *graph)
{
    if (!graph)
        return;
    for (int i = 0; i < graph->moves; i++) {
        if (graph->move[i].exec)
            cudaGraphExecDestroy(graph->move[i].exec);
        if (graph->move[i].graph)
            cudaGraphDestroy(graph->move[i].graph);
    }
    free(graph->move);
    if (graph->exec)
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
