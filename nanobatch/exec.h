/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/exec.h - runs a plan: issues its items in order, each on its lane, with the waits the
 * plan names, and waits for the end.
 *
 * On devices whose ops end before issue returns it also times each op, which is what prices are
 * learned from; on others only the whole run, which it divides by prices.
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

#endif
