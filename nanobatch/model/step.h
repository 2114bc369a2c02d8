/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/step.h - the plan of a step: serving's rows and training's slice, in the way that
 * the step's shape says.
 *
 * Training's items stand behind serving's, on lanes of the shape; or, where the shape lets training
 * ride, as far as they can in serving's own items (ride.h).
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/forward.h"

struct hzp_rider;

/* What a step's plan is made from.  All borrowed. */
struct hzp_step_plan {
    const struct hzp_model *model;
    const struct hzp_version *version;
    struct hzp_batch *batch; /* NULL, or no rows: nothing serves */
    const struct hzp_kv *kv;
    struct hzp_serve_space *space;
    const struct hzp_plan_shape *shape; /* NULL: hzp_plan_sequential */
    const struct hzp_plan *chain;       /* NULL: nothing trains; else items [from, to) */
    int32_t from, to;
    const struct hzp_rider *rider; /* NULL: it does not ride */
    bool in_turn; /* the slice follows serving on the compute lane, whatever the shape says */
};

/* Makes the whole plan.  A plan that has items already has serving's part of the same step from an
 * earlier call: the slice is appended to it; then it must not ride (in_turn, or no rider).  True:
 * part of the slice rides. */
bool hzp_step_build(struct hzp_plan *plan, const struct hzp_step_plan *step);
