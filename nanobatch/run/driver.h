/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/driver.h - the device memory that the driver takes for its own objects: partitions
 * of the SMs and executable graphs.
 *
 * The driver says nothing about their sizes, so they are measured at the start, as differences of
 * the free memory, and the memory plan has a line for them.  It takes memory in blocks of some MiB,
 * so graphs are measured several at a time.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/plan/plan_table.h"
#include "nanobatch/run/graphs.h"

struct hzp_driver_memory {
    /* bytes of this process's context, which is never planned: taken before the device's memory was
     * counted; 0: not known */
    size_t context;
    size_t splits; /* bytes of the partitions that were prepared */
    int64_t cuts;  /* the graph of one step is this + 1 graphs of the driver at most */
    size_t graph,
        node; /* bytes of a graph without nodes, and of each node; 0: none, or no graphs.  Where
               * graphs cannot be made, what small ones take, or an assumption: the log says so */
};

/* Prepares the partitions of the SMs for these shapes (plans, shape NULL: none), and measures them
 * and graphs.  layers: of the model whose steps they are.  Call it once, before the device's memory
 * is given out: it opens a lane for a moment.  On devices whose driver takes nothing: all 0.
 * HZP_ENOMEM, HZP_EDEVICE. */
int hzp_driver_measure(struct hzp_device *dev, const struct hzp_plan_table *plans,
                       const struct hzp_plan_shape *shape, int32_t layers,
                       struct hzp_driver_memory *ret);

/* Logs, at the end of the start, what was measured and what is kept and free now, and what was
 * loaded since the device was opened (kernels, the libraries' code), which no plan counts: a
 * warning if that is more than what was left for it.  planned: bytes for graphs; 0: any.
 * allocated: all that was given out and that lanes hold. */
void hzp_driver_log(struct hzp_device *dev, const struct hzp_driver_memory *driver,
                    const struct hzp_graphs_stats *kept, size_t planned, size_t allocated);

/* Bytes of the graphs of `count` steps of so many nodes. */
size_t hzp_driver_graphs(const struct hzp_driver_memory *driver, int64_t count, int64_t nodes);
