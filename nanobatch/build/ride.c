/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/build/ride.h"

#include "nanobatch/build/train_space.h"

/* Whether two items belong to one layer of one chunk. */
static bool same_layer(const struct hzp_plan *chain, int32_t a, int32_t b)
{
    const struct hzp_item *x = &chain->item[a], *y = &chain->item[b];
    return x->layer >= 0 && x->layer == y->layer && x->row0 == y->row0;
}

static int32_t chunk_at(const struct hzp_micro *micro, int32_t row0)
{
    int32_t i = 0;
    while (i < micro->chunks && micro->chunk[i].row0 != row0)
        i++;
    return i;
}

bool hzp_ride_find(const struct hzp_rider *rider, const struct hzp_version *serving,
                   const struct hzp_plan *chain, int32_t from, int32_t to, int32_t rows,
                   struct hzp_ride *ret)
{
    if (!rider || rider->version != serving || rows <= 0)
        return false;
    int32_t forward = rider->space->forward_end, end = HZP_MIN(to, forward), next;
    struct hzp_ride run = {.layer0 = 0}, best = run;
    for (int32_t i = from; i < end; i = next) {
        const struct hzp_item *item = &chain->item[i];
        for (next = i + 1; next < forward && same_layer(chain, i, next);)
            next++;
        bool whole = item->layer >= 0 && next <= end && !(i > 0 && same_layer(chain, i - 1, i));
        if (!whole || item->row0 + item->rows + rows > rider->space->rows_room)
            continue;
        if (run.to != i || item->layer == 0)
            run = (struct hzp_ride){.chunk = item->row0, .layer0 = item->layer, .from = i};
        run.layer1 = item->layer + 1;
        run.to = next;
        if (run.layer1 - run.layer0 > best.layer1 - best.layer0)
            best = run;
    }
    if (best.layer1 == best.layer0)
        return false;
    best.rider = *rider;
    best.chunk = chunk_at(rider->micro, best.chunk);
    best.need = best.end = -1;
    *ret = best;
    return true;
}

int32_t hzp_ride_cut(const struct hzp_rider *rider, const struct hzp_op_times *times,
                     const struct hzp_plan *chain, int32_t from, uint64_t ns, uint64_t item_ns,
                     int32_t rows)
{
    struct hzp_shared shared = {rows, 0, rider->space->forward_end};
    struct hzp_ride ride;
    int32_t to = hzp_slice_end(times, chain, from, ns, item_ns, &shared);
    if (!hzp_ride_find(rider, rider->version, chain, from, to, rows, &ride))
        return hzp_slice_end(times, chain, from, ns, item_ns, NULL);
    while (to > ride.to && to < shared.to && same_layer(chain, to - 1, to))
        to--;
    return to;
}

bool hzp_step_build(struct hzp_plan *plan, const struct hzp_step_plan *s, struct hzp_ride *ret_ride)
{
    const struct hzp_plan_shape *shape = s->shape ? s->shape : &hzp_plan_sequential;
    struct hzp_ride ride;
    int32_t rows = s->batch ? s->batch->rows + s->batch->pads : 0, from = s->from;
    bool rides = shape->ride && s->chain && !hzp_weights_fp8(s->model->weights) &&
                 hzp_ride_find(s->rider, s->version, s->chain, s->from, s->to, rows, &ride);
    if (rides && ride.from > from) {
        hzp_plan_for_training(plan, shape);
        hzp_plan_take(plan, s->chain, from, ride.from);
        ride.need = plan->items - 1;
    }
    if (rows)
        hzp_forward_build_with(plan, s->model, s->version, s->batch, s->kv, s->space, shape,
                               rides ? &ride : NULL);
    if (s->chain) {
        hzp_plan_for_training(plan, shape);
        if (rides) {
            plan->tail = ride.end;
            from = ride.to;
        }
        hzp_plan_take(plan, s->chain, from, s->to);
        plan->tail = -1;
    }
    if (rides && ret_ride)
        *ret_ride = ride;
    return rides;
}
