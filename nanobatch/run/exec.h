/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/exec.h - runs plans: issues the items in order, each on its lane, with the waits
 * the plan names, and waits for their end.
 *
 * A plan whose compute is on one lane has the whole device.  If several lanes compute, each gets
 * its share of the cores (SMs) and they run at the same time: an item begins when the items it
 * waits for have ended.  Lanes with nothing but collectives take one core.
 *
 * Two plans may be in flight at a time, each with its own hzp_flight.  A tenant's items of the
 * newer one begin when that tenant's items of the older one have ended (hzp_plan_join); the device
 * orders them without the host.
 *
 * If the device has graphs, a decode step that repeats is issued as one graph (graphs.h). A graph
 * is timed as a whole, and the items of each of its lanes get parts of that time in proportion to
 * their known times.
 *
 * The executor also times each op; op times (nanobatch/time) learn from that.  Some devices do not
 * time single ops: then the whole run is timed and divided in the same proportion.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/plan/plan_table.h"
#include "nanobatch/run/graphs.h"
#include "nanobatch/time/op_times.h"

struct hzp_exec;
struct hzp_flight; /* the state of one plan in flight: its fences, and when its items ran */

/* For the memory plan: bytes of device memory that an executor holds if its plans use these lanes
 * (bit l for enum hzp_lane_name l). The compute lane is always included. */
size_t hzp_exec_bytes(struct hzp_device *dev, uint32_t lanes);

/* Opens the compute lane; dev is borrowed.  HZP_ENOMEM, HZP_EDEVICE. */
int hzp_exec_create(struct hzp_device *dev, struct hzp_exec **ret);
void hzp_exec_destroy(struct hzp_exec *exec); /* NULL: no effect; close its flights first */

/* Opens these lanes and allocates their memory.  Other lanes are opened when the first plan that
 * uses them is issued.  HZP_ENOMEM. */
int hzp_exec_open_lanes(struct hzp_exec *exec, uint32_t lanes);

/* Prepares the device for the lanes' shares in steps of this shape, which takes time: call it
 * before the loop runs. */
void hzp_exec_prepare(struct hzp_device *dev, const struct hzp_plan_shape *shape);

/* Opens the lanes of all shapes that steps may have, and prepares the device for them, so that no
 * step has to wait for that. */
int hzp_exec_open_shapes(struct hzp_exec *exec, const struct hzp_plan_shapes *shapes);

/* Sets how decode steps are captured with all their variants, and the room for them (graphs.h:
 * hzp_graphs_prepare). */
void hzp_exec_prepare_graphs(struct hzp_exec *exec, hzp_graph_variant *variant, void *ctx,
                             const struct hzp_graphs_room *room);

/* Captures the plan as a graph, with its variants, if it is a decode step; runs nothing.  No plan
 * may be in flight. */
int hzp_exec_capture(struct hzp_exec *exec, const struct hzp_plan *plan);

/* Ends the start (graphs.h: hzp_graphs_steady). */
void hzp_exec_steady(struct hzp_exec *exec);

/* Captures and launches so far (graphs.h). */
struct hzp_graphs_stats hzp_exec_graphs(const struct hzp_exec *exec);

struct hzp_exec_times {
    uint64_t ns[HZP_TENANT_COUNT]; /* the sum is about the run's duration */
    /* the part of training's time that is in items which also have serving's rows */
    uint64_t ride_ns;
    /* From when the run could begin (its issue, or the end of the tenant's items of the run before)
     * to the end of the tenant's last item; 0: none, or the device does not time single ops. */
    uint64_t end_ns[HZP_TENANT_COUNT];
    uint64_t late_ns; /* how much later training's last item ended than serving's; 0: as end_ns */
};

/* The device time of each op since create; only for devices whose ops end at issue. */
struct hzp_profile {
    struct hzp_profile_op {
        uint64_t runs, ns, flops, bytes;
    } of[HZP_TENANT_COUNT][HZP_OP_COUNT];
};
const struct hzp_profile *hzp_exec_profile(const struct hzp_exec *exec);

/* HZP_ENOMEM, HZP_EDEVICE. */
int hzp_flight_open(struct hzp_exec *exec, struct hzp_flight **ret);
void hzp_flight_close(
    struct hzp_flight *flight); /* NULL: no effect; not while its plan is in flight */

/* Opens the fences that a flight of this plan needs, and, if its lanes wait for each other, so many
 * more for plans of the same shape. */
int hzp_flight_reserve(struct hzp_flight *flight, const struct hzp_plan *plan, int32_t more);

/* True: the device runs plans while the host does something else.  False: the issuing thread itself
 * runs the ops, at least of plans that use one lane. */
bool hzp_exec_alone(const struct hzp_exec *exec);

/* False: issuing this plan runs it to its end, after all plans in flight. */
bool hzp_exec_queues(const struct hzp_exec *exec, const struct hzp_plan *plan);

/* Issues the plan, which must stay unchanged until the flight has landed. older: the flight issued
 * before this one; NULL: it has landed.  At most two are in flight. */
int hzp_exec_issue(struct hzp_exec *exec, const struct hzp_plan *plan, struct hzp_flight *flight,
                   const struct hzp_flight *older);

/* Waits for the end of serving's items only. *ret_ns: how long they took, from when they could
 * begin; earlier work on their lanes is not counted. */
int hzp_exec_wait_serving(struct hzp_flight *flight, uint64_t *ret_ns);

/* 1: all items have ended, so landing does not wait; 0: not yet; < 0: the device failed.  Never
 * waits; only where hzp_exec_alone is true does it become 1 without a wait. */
int hzp_exec_poll(struct hzp_flight *flight);

/* Waits for the end of all items.  times learns from the run; NULL: nothing is learned. HZP_EDEVICE
 * is final.  Flights land in the order in which they were issued. */
int hzp_exec_land(struct hzp_flight *flight, struct hzp_op_times *times,
                  struct hzp_exec_times *ret);

/* Issues and lands, with nothing else in flight. */
int hzp_exec_run(struct hzp_exec *exec, const struct hzp_plan *plan, struct hzp_op_times *times,
                 struct hzp_exec_times *ret);

/* When the items of the last hzp_exec_run ran, in the plan's order; NULL: the device does not time
 * them. Valid until the next run. */
const struct hzp_span *hzp_exec_spans(const struct hzp_exec *exec);

/* Writes the last run, which must have been of this plan, as a Chrome trace, one track per lane.
 * HZP_EUNSUP: the device does not time single ops. */
int hzp_exec_write_trace(const struct hzp_exec *exec, const struct hzp_plan *plan, FILE *out);
