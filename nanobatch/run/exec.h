/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/exec.h - runs plans: issues their items in order, each on its lane, with the waits
 * the plan names, and waits for their end.
 *
 * A plan whose compute is on one lane has the whole device.  Where several lanes compute, each gets
 * its share of the execution units and they run side by side: an item begins when what it waits for
 * has ended.  Lanes with nothing but transfers take no share.
 *
 * Two plans may be in flight at a time, each with a hzp_flight of its own.  A tenant's items of the
 * newer one begin when that tenant's items of the older one have ended (hzp_plan_join); the device
 * orders them without the host.
 *
 * Where the device has graphs, a decode step that comes again is issued as one (graphs.h); it is
 * then timed as a whole, and the items of each of its lanes get parts of that in proportion to
 * their known times.
 *
 * It also times each op, which op times (nanobatch/time) are learned from; on devices that do not
 * time single ops only the whole run, which it divides in that proportion.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_RUN_EXEC_H
#define HZP_NANOBATCH_RUN_EXEC_H

#include "nanobatch/run/graphs.h"
#include "nanobatch/plan/plan.h"
#include "nanobatch/time/op_times.h"
#include "nanobatch/plan/shape.h"

struct hzp_exec;
struct hzp_flight; /* of one plan at a time: its fences, and when its items ran */

/* Bytes of device memory that an executor holds whose plans use these lanes (bit l for enum
 * hzp_lane_name l) beside the compute lane, which it always has: for the memory plan. */
size_t hzp_exec_bytes(struct hzp_device *dev, uint32_t lanes);

int hzp_exec_create(struct hzp_device *dev, struct hzp_exec **ret);
void hzp_exec_destroy(struct hzp_exec *exec); /* NULL: no effect; its flights were closed before */

/* Opens these lanes, with the memory that they hold.  A plan that uses others opens them when it is
 * issued.  HZP_ENOMEM. */
int hzp_exec_open_lanes(struct hzp_exec *exec, uint32_t lanes);

/* Sets up what the device needs for the lanes' shares in steps of this shape, which takes it time.
 * Before the loop runs. */
void hzp_exec_prepare(struct hzp_exec *exec, const struct hzp_plan_shape *shape);

/* Decode steps are captured with all their variants (graphs.h: hzp_graphs_prepare). */
void hzp_exec_prepare_graphs(struct hzp_exec *exec, hzp_graph_variant *variant, void *ctx,
                             int32_t count);

/* Captures the plan as a graph, with its variants, if it is a decode step; runs nothing.  No plan
 * is in flight. */
int hzp_exec_capture(struct hzp_exec *exec, const struct hzp_plan *plan);

/* Of captures and launches so far (graphs.h). */
struct hzp_graphs_stats hzp_exec_graphs(const struct hzp_exec *exec);

struct hzp_exec_times {
    uint64_t ns[HZP_TENANT_COUNT]; /* together about the run's duration */
    uint64_t ride_ns;              /* of training's: in items that are also serving's */
    /* From when the run could begin (its issue, or the end of the tenant's items of the run before)
     * to the end of the tenant's last item; 0: none, or the device does not time single ops. */
    uint64_t end_ns[HZP_TENANT_COUNT];
};

/* Where the device's time went since create, op by op; only of devices whose ops end at issue. */
struct hzp_profile {
    struct hzp_profile_op {
        uint64_t runs, ns, flops, bytes;
    } of[HZP_TENANT_COUNT][HZP_OP_COUNT];
};
const struct hzp_profile *hzp_exec_profile(const struct hzp_exec *exec);

int hzp_flight_open(struct hzp_exec *exec, struct hzp_flight **ret);
void hzp_flight_close(
    struct hzp_flight *flight); /* NULL: no effect; never while its plan is in flight */

/* Opens the fences that such a plan's flight needs. */
int hzp_flight_reserve(struct hzp_flight *flight, const struct hzp_plan *plan);

/* True: the device runs plans while the host does something else.  False: the issuing thread runs
 * the ops of at least those plans that use one lane. */
bool hzp_exec_alone(const struct hzp_exec *exec);

/* False: issuing this plan runs it, after all that is in flight. */
bool hzp_exec_queues(const struct hzp_exec *exec, const struct hzp_plan *plan);

/* The plan lives and stays as it is until the flight is landed.  older: the flight issued before
 * this one, NULL: it has landed.  At most two are in flight. */
int hzp_exec_issue(struct hzp_exec *exec, const struct hzp_plan *plan, struct hzp_flight *flight,
                   const struct hzp_flight *older);

/* Waits for the end of serving's items only, and says how long they took, from when they could
 * begin; what ran before them on their lanes is not counted. */
int hzp_exec_wait_serving(struct hzp_flight *flight, uint64_t *ret_ns);

/* Waits for the end of everything.  times: learns from the run; NULL: nothing does.  HZP_EDEVICE is
 * final.  Flights land in the order in which they were issued. */
int hzp_exec_land(struct hzp_flight *flight, struct hzp_op_times *times,
                  struct hzp_exec_times *ret);

/* Issues and lands, with nothing else in flight. */
int hzp_exec_run(struct hzp_exec *exec, const struct hzp_plan *plan, struct hzp_op_times *times,
                 struct hzp_exec_times *ret);

/* When the items of the last hzp_exec_run ran, in the plan's order; NULL: the device does not say.
 * Valid until the next one. */
const struct hzp_span *hzp_exec_spans(const struct hzp_exec *exec);

/* The last run, which was of this plan, as a Chrome trace, one track a lane.  HZP_EUNSUP: the
 * device does not time single ops. */
int hzp_exec_write_trace(const struct hzp_exec *exec, const struct hzp_plan *plan, FILE *out);

#endif
