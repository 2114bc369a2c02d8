/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/step.h"

#include "base/thread.h"
#include "nanobatch/model/ride.h"

static const struct hzp_plan_shape *shape_of(const struct hzp_step_plan *s)
{
    return s->shape ? s->shape : &hzp_plan_sequential;
}

static bool find_ride(const struct hzp_step_plan *s, struct hzp_ride *ret)
{
    bool may = s->chain && !s->in_turn && shape_of(s)->ride && s->batch && s->batch->rows > 0 &&
               !s->batch->shallow && /* training goes through all layers */
               !s->model->tensor && !hzp_model_serves_fp8(s->model);
    return may && hzp_ride_find(s->rider, s->version, s->chain, s->from, s->to,
                                s->batch->rows + s->batch->pads, ret);
}

/* Items [from, to) of the chain, needing item `need`; -1: none. */
static void add_slice(struct hzp_plan *plan, const struct hzp_step_plan *s, int32_t from,
                      int32_t to, int32_t need)
{
    if (!s->in_turn)
        hzp_plan_for_training(plan, shape_of(s));
    hzp_plan_after(plan, need);
    hzp_plan_take(plan, s->chain, from, to);
    hzp_plan_after(plan, -1);
}

/* The slice before the ride, the ride in serving's items, the slice behind it. */
static void build_riding(struct hzp_plan *plan, const struct hzp_step_plan *s,
                         const struct hzp_ride *ride)
{
    struct hzp_forward f = {.plan = plan,
                            .model = s->model,
                            .version = s->version,
                            .batch = s->batch,
                            .kv = s->kv,
                            .space = s->space,
                            .shape = shape_of(s)};
    int32_t need = -1;
    HZP_ASSERT(plan->items == 0);
    if (ride->from > s->from) {
        add_slice(plan, s, s->from, ride->from, -1);
        need = plan->items - 1;
    }
    plan->reads_train = hzp_ride_build(&f, ride, need);
    add_slice(plan, s, ride->to, s->to, plan->reads_train);
}

bool hzp_step_build(struct hzp_plan *plan, const struct hzp_step_plan *s)
{
    hzp_assert_engine_thread();
    struct hzp_ride ride;
    if (find_ride(s, &ride)) {
        build_riding(plan, s, &ride);
        return true;
    }
    if (s->batch && plan->items == 0)
        hzp_forward_build(plan, s->model, s->version, s->batch, s->kv, s->space, shape_of(s));
    if (s->chain)
        add_slice(plan, s, s->from, s->to, -1);
    return false;
}
