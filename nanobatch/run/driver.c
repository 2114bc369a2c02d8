/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/run/driver.h"

#include "base/log.h"
#include "nanobatch/run/exec.h"

/* Two sizes of graphs, and how many of each: together some tens of MiB. */
enum { GRAPHS = 6, FEW = 32, MANY = 1024 };

/* What a node is taken to need where no graph can be measured, and what a graph needs beside its
 * nodes: graphs of 500 to 2000 empty kernels took 63 to 66 KB a node with driver 470 and CUDA 11.2
 * (forums.developer.nvidia.com/t/244901); newer drivers take less. */
enum { NODE_MOST = 64 << 10 };

/* What was free before and is not now. */
static size_t taken(struct hzp_device *dev, size_t before)
{
    size_t now = hzp_device_bytes_free(dev);
    return before > now ? before - now : 0;
}

/* Captures a graph that sets x so often. */
static int capture(struct hzp_lane *lane, float *x, int nodes, struct hzp_graph **ret)
{
    struct hzp_fill_args args = {.y = {x, 1, 1, 1, HZP_F32}};
    HZP_TRY(hzp_graph_begin(&lane, 1));
    int r = HZP_OK;
    for (int i = 0; i < nodes && r >= 0; i++)
        r = hzp_op_fill(lane, &args);
    int ended = hzp_graph_end(lane, ret);
    return r < 0 ? r : ended;
}

/* Bytes that GRAPHS graphs of so many nodes take; they stay in `graph`. */
static int measure(struct hzp_device *dev, struct hzp_lane *lane, float *x, int nodes,
                   struct hzp_graph *graph[GRAPHS], size_t *ret)
{
    size_t before = hzp_device_bytes_free(dev);
    for (int i = 0; i < GRAPHS; i++)
        HZP_TRY(capture(lane, x, nodes, &graph[i]));
    *ret = taken(dev, before);
    return HZP_OK;
}

/* Where graphs could not be measured there must be a budget all the same.  few: bytes of GRAPHS
 * graphs of FEW nodes; 0: these could not be made, or nothing was seen to be taken. */
static void assume_graphs(size_t few, struct hzp_driver_memory *ret)
{
    ret->node = few ? HZP_DIV_UP(few, (size_t)GRAPHS * FEW) : NODE_MOST;
    ret->graph = few ? 0 : NODE_MOST;
    hzp_log(HZP_LOG_WARN, "engine",
            "memory driver: graphs cannot be measured, for lack of memory or because the driver "
            "refuses; %zu bytes a node are planned, which is %s",
            ret->node, few ? "what small graphs take" : "assumed");
}

static int measure_graphs(struct hzp_device *dev, struct hzp_driver_memory *ret)
{
    struct hzp_graph *graph[3 * GRAPHS] = {NULL};
    struct hzp_lane *lane = NULL;
    size_t first, few = 0, many = 0;
    void *x = NULL;
    int r = hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane);
    if (r >= 0)
        r = hzp_device_alloc(dev, HZP_MEM_DEVICE, 256, &x);
    bool begun = r >= 0;
    if (r >= 0) /* the first graphs also pay for what the driver makes once */
        r = measure(dev, lane, x, FEW, graph, &first);
    if (r >= 0)
        r = measure(dev, lane, x, FEW, graph + GRAPHS, &few);
    if (r >= 0)
        r = measure(dev, lane, x, MANY, graph + 2 * GRAPHS, &many);
    for (int i = 0; i < HZP_COUNT(graph); i++)
        hzp_graph_close(dev, graph[i]);
    hzp_device_free(dev, HZP_MEM_DEVICE, x);
    hzp_lane_close(lane);
    if (begun && (r == HZP_EUNSUP || r == HZP_ENOMEM)) {
        assume_graphs(few, ret);
        return HZP_OK;
    }
    ret->node = many > few ? HZP_DIV_UP(many - few, (size_t)GRAPHS * (MANY - FEW)) : 0;
    size_t bare = (size_t)GRAPHS * FEW * ret->node;
    ret->graph = few > bare ? HZP_DIV_UP(few - bare, (size_t)GRAPHS) : 0;
    return r;
}

int hzp_driver_measure(struct hzp_device *dev, const struct hzp_plan_table *plans,
                       const struct hzp_plan_shape *shape, int32_t layers,
                       struct hzp_driver_memory *ret)
{
    size_t before = hzp_device_bytes_free(dev);
    struct hzp_overhead overhead;
    hzp_device_overhead(dev, &overhead);
    *ret = (struct hzp_driver_memory){.context = overhead.context};
    if (!before)
        return HZP_OK;
    int64_t runs = 1;
    for (int32_t i = shape ? -1 : 0; i < (plans ? plans->entries : 0); i++) {
        const struct hzp_plan_shape *of = i < 0 ? shape : &plans->entry[i].shape;
        hzp_exec_prepare(dev, of);
        int64_t more = hzp_plan_shape_runs(of, layers);
        runs = HZP_MAX(runs, more);
    }
    ret->splits = taken(dev, before);
    ret->cuts = hzp_device_cuts_graphs(dev) ? runs - 1 : 0;
    return hzp_device_has_graphs(dev) ? measure_graphs(dev, ret) : HZP_OK;
}

void hzp_driver_log(struct hzp_device *dev, const struct hzp_driver_memory *driver,
                    const struct hzp_graphs_stats *kept, size_t planned, size_t allocated)
{
    size_t left = hzp_device_bytes_free(dev);
    struct hzp_overhead overhead;
    if (!left)
        return;
    hzp_device_overhead(dev, &overhead);
    size_t begun = dev->mem_total + overhead.loading;
    size_t there = allocated + driver->splits + (size_t)kept->bytes + left;
    size_t loaded = begun > there ? begun - there : 0;
    hzp_log(HZP_LOG_INFO, "engine",
            "memory driver context_bytes=%zu loaded_bytes=%zu splits_bytes=%zu graph_bytes=%zu "
            "node_bytes=%zu graphs=%llu nodes=%llu graphs_bytes=%llu graphs_planned_bytes=%zu "
            "evictions=%llu free_bytes=%zu",
            driver->context, loaded, driver->splits, driver->graph, driver->node,
            (unsigned long long)kept->graphs, (unsigned long long)kept->nodes,
            (unsigned long long)kept->bytes, planned, (unsigned long long)kept->evictions, left);
    if (loaded > overhead.loading)
        hzp_log(
            HZP_LOG_WARN, "engine",
            "memory driver: the start has loaded %zu bytes, %zu were left for that: allocations "
            "may fail",
            loaded, overhead.loading);
}

size_t hzp_driver_graphs(const struct hzp_driver_memory *driver, int64_t count, int64_t nodes)
{
    return (size_t)count *
           ((size_t)(driver->cuts + 1) * driver->graph + (size_t)nodes * driver->node);
}
