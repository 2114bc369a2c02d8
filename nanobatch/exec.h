/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/exec.h - runs a plan: issues its items in order, each on its lane, with the waits the
 * plan names, and waits for the end.
 *
 * A plan of one lane has the whole device.  Where a plan uses several, each gets its share of the
 * execution units and they run side by side: an item begins when what it waits for has ended.
 *
 * It also times each op, which is what prices are learned from; on devices that do not time single
 * ops only the whole run, which it divides by prices.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_EXEC_H
#define HZP_NANOBATCH_EXEC_H

#include "nanobatch/plan.h"
#include "nanobatch/price.h"

struct hzp_exec;

int hzp_exec_create(struct hzp_device *dev, struct hzp_exec **ret);
void hzp_exec_destroy(struct hzp_exec *exec); /* NULL: no effect */

struct hzp_exec_times {
    uint64_t serve_ns, train_ns; /* by items' `train`; together about the run's duration */
    uint64_t serve_end_ns, train_end_ns; /* from the run's begin to the end of the last item of each;
                                            0: none, or the device does not time single ops */
};

/* Where the device's time went since create, op by op; only of devices whose ops end at issue. */
struct hzp_profile {
    struct hzp_profile_op {
        uint64_t runs, ns, flops, bytes;
    } serve[HZP_OP_COUNT], train[HZP_OP_COUNT];
};
const struct hzp_profile *hzp_exec_profile(const struct hzp_exec *exec);

/* price: learns from the run; NULL: nobody does.  HZP_EDEVICE is final. */
int hzp_exec_run(struct hzp_exec *exec, const struct hzp_plan *plan, struct hzp_price *price,
                 struct hzp_exec_times *ret);

/* When the items of the last run ran, in the plan's order; NULL: the device does not say.  Valid
 * until the next run. */
const struct hzp_span *hzp_exec_spans(const struct hzp_exec *exec);

/* The last run, which was of this plan, as a Chrome trace, one track a lane.  HZP_EUNSUP: the device
 * does not time single ops. */
int hzp_exec_write_trace(const struct hzp_exec *exec, const struct hzp_plan *plan, FILE *out);

#endif
