/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/loop_form.c - forms a step: its room, the offers of the sources, and the plan for
 * them. */
#include "nanobatch/loop_state.h"

static struct hzp_active_step *begin_step(struct hzp_loop *loop)
{
    struct hzp_active_step *active = hzp_loop_step(loop, loop->number + 1),
                           *before = hzp_loop_newest(loop);
    bool in_flight = before && before->stage == HZP_STEP_ISSUED;
    /* Reclaim here too: a version released while nothing ran must not wait for the next step to
     * land. */
    hzp_weights_reclaim(loop->config.model->weights, loop->landed);
    active->step = (struct hzp_step){.number = loop->number + 1,
                                     .begin_ns = hzp_device_now_ns(loop->config.model->dev),
                                     .version = hzp_weights_current(loop->config.model->weights),
                                     .in_flight = in_flight ? before->offer.batch : NULL};
    active->current = active->step.version ? active->step.version->record.id : 0;
    hzp_split_begin(&loop->split, &active->split, active->step.begin_ns);
    /* Two such steps may be in flight when a request arrives, so each gets half the time. */
    bool halves = loop->ahead && hzp_exec_alone(loop->exec) && !active->split.hold;
    bool serves = active->batch && !active->split.hold;
    active->room = (struct hzp_room){.rows = serves ? active->batch->max.rows_max : 0,
                                     .train_ns = active->split.train_ns / (halves ? 2 : 1),
                                     .item_ns = active->split.item_ns,
                                     .serve_max_ns = active->split.serve_max_ns,
                                     .time = &loop->time,
                                     .op_times = &loop->time.whole};
    memset(&active->offer, 0, sizeof(active->offer));
    memset(&active->outcome, 0, sizeof(active->outcome));
    active->offer.batch = active->batch;
    if (active->batch)
        hzp_batch_clear(active->batch);
    hzp_plan_clear(&active->plan);
    return active;
}

const struct hzp_plan_shape *hzp_loop_shape(const struct hzp_loop *loop,
                                            const struct hzp_batch *batch, enum hzp_tenant with)
{
    bool trains = with == HZP_TENANT_TRAIN;
    const struct hzp_loop_config *c = &loop->config;
    const struct hzp_plan_entry *entry = NULL;
    if (trains && c->group)
        return NULL;
    if (trains && c->beside)
        return c->beside;
    if (c->plans)
        entry = hzp_plan_table_find(c->plans, batch->decode_segs, batch->rows - batch->decode_segs,
                                    trains);
    return entry ? &entry->shape : c->shape;
}

/* Builds the plan of serving's rows, and asks the split how long training may run with them.
 * offered_ns: predicted time of training's slices that earlier sources have offered. */
static void plan_serving(struct hzp_loop *loop, struct hzp_active_step *active, double offered_ns)
{
    struct hzp_batch *batch = active->batch;
    const struct hzp_plan_shape *both = hzp_loop_shape(loop, batch, HZP_TENANT_TRAIN);
    active->shape = hzp_loop_shape(loop, batch, HZP_TENANT_SERVE);
    struct hzp_step_plan what = hzp_step_serving(loop, active);
    hzp_step_build(&active->plan, &what);
    hzp_split_serve(&loop->split, &active->split, batch, &active->offer.waits,
                    both && hzp_plan_shape_beside(both));
    bool rides = both && both->ride && !batch->shallow && !hzp_model_serves_fp8(loop->config.model);
    active->room.train_ns =
        active->split.train_ns - HZP_MIN(active->split.train_ns, (uint64_t)offered_ns);
    active->room.item_ns = active->split.item_ns;
    active->room.ride_rows = rides ? batch->rows + batch->pads : 0;
    if (active->split.beside)
        active->room.op_times = &loop->time.beside;
}

/* The shape for serving and training together; serving's part was planned before it was known
 * whether training has work.  NULL: training's slices follow serving on the compute lane. */
static const struct hzp_plan_shape *shape_of_both(const struct hzp_loop *loop,
                                                  const struct hzp_active_step *active)
{
    const struct hzp_plan_shape *both =
        hzp_step_serves(active) ? hzp_loop_shape(loop, active->batch, HZP_TENANT_TRAIN) : NULL;
    bool beside = active->split.beside;
    if (!both || (hzp_plan_shape_beside(both) && !beside)) /* one after the other */
        return NULL;
    return beside || both->ride || loop->config.plans ? both : NULL;
}

static const struct hzp_slice *first_training(const struct hzp_offer *offer)
{
    for (int32_t i = 0; i < offer->slices; i++)
        if (offer->slice[i].to > offer->slice[i].from)
            return &offer->slice[i];
    return NULL;
}

/* Appends the slice.  If there is a shape for both tenants, the first slice of training rebuilds
 * the whole plan with that shape, and may ride. */
static void take_training(struct hzp_loop *loop, struct hzp_active_step *active,
                          const struct hzp_slice *slice, const struct hzp_plan_shape *both,
                          bool first)
{
    if (both && first) {
        hzp_plan_clear(&active->plan);
        active->shape = both;
    } else if (first && loop->config.group && active->shape &&
               !hzp_plan_shape_plain(active->shape)) { /* training would not be in turn */
        hzp_plan_clear(&active->plan);
        active->shape = NULL;
    }
    struct hzp_step_plan what = hzp_step_serving(loop, active);
    what.chain = slice->chain;
    what.from = slice->from;
    what.to = slice->to;
    what.rider = first ? slice->rider : NULL;
    what.in_turn = !both;
    if (hzp_step_build(&active->plan, &what))
        hzp_count(&loop->counters.ride_steps, 1);
}

/* Adds the slices to the plan, in the order of the offer and on the lanes of the step's shape. */
static void take_slices(struct hzp_loop *loop, struct hzp_active_step *active)
{
    const struct hzp_slice *first = first_training(&active->offer);
    const struct hzp_plan_shape *both = first ? shape_of_both(loop, active) : NULL;
    for (int32_t i = 0; i < active->offer.slices; i++)
        if (active->offer.slice[i].to > active->offer.slice[i].from)
            take_training(loop, active, &active->offer.slice[i], both,
                          &active->offer.slice[i] == first);
}

/* How long a slice is predicted to take; adds to split.ride_ns how much of that is in serving's
 * items. */
static double slice_ns(struct hzp_active_step *active, const struct hzp_slice *slice)
{
    const struct hzp_room *room = &active->room;
    double ride_ns = 0;
    bool may = slice == first_training(&active->offer);
    double ns = hzp_ride_slice_ns(may ? slice->rider : NULL, active->step.version, room->op_times,
                                  slice->chain, slice->from, slice->to, room->ride_rows, &ride_ns);
    active->split.ride_ns += ride_ns;
    return ns;
}

/* Subtracts the time of slices `from` and up, which a source has just offered, from the room of the
 * following sources.  Returns that time. */
static double count_slices(struct hzp_active_step *active, int32_t from)
{
    double train = 0;
    HZP_ASSERT(active->offer.slices <= HZP_SLICES_MAX); /* hzp_offer_add sees to it */
    for (int32_t i = from; i < active->offer.slices; i++) {
        const struct hzp_slice *slice = &active->offer.slice[i];
        HZP_ASSERT(slice->from <= slice->to);
        double ns = slice_ns(active, slice);
        train += ns;
        active->room.train_ns -= HZP_MIN(active->room.train_ns, (uint64_t)ns);
    }
    return train;
}

/* Asks the sources for work. True: there is something to run. */
static bool offer(struct hzp_loop *loop, struct hzp_active_step *active)
{
    bool any = false, planned = false;
    double train_ns = 0;
    for (int32_t i = 0; i < loop->config.sources; i++) {
        struct hzp_source *source = loop->config.source[i];
        int32_t slices = active->offer.slices;
        any |= source->offer(source, &active->step, &active->room, &active->offer);
        if (active->offer.version)
            active->step.version = active->offer.version;
        if (!planned && hzp_step_serves(active)) {
            plan_serving(loop, active, train_ns);
            planned = true;
        }
        train_ns += count_slices(active, slices);
    }
    bool trains = hzp_offer_trains(&active->offer);
    hzp_split_age(&loop->split, active->offer.learn_age_ns);
    hzp_split_taken(&loop->split, &active->split, trains ? HZP_TENANT_TRAIN : HZP_TENANT_SERVE,
                    trains && (active->split.rows || active->split.hold) ? train_ns : 0);
    take_slices(loop, active);
    return any;
}

struct hzp_active_step *hzp_loop_form(struct hzp_loop *loop)
{
    uint64_t begin = hzp_host_ns();
    bool hidden = hzp_loop_newest(loop) && hzp_loop_newest(loop)->stage == HZP_STEP_ISSUED;
    struct hzp_active_step *active = begin_step(loop);
    bool any = offer(loop, active);
    /* the step was kept for training, which has no work: form it again for all sources */
    if (!any && active->split.hold) {
        active = begin_step(loop);
        any = offer(loop, active);
    }
    loop->keep_version = any && active->offer.keep_version;
    if (!any)
        return NULL;
    loop->number++;
    active->stage = HZP_STEP_FORMED;
    /* A version published from here on does not replace this step's: its memory stays until the
     * step has landed. */
    if (active->step.version)
        active->step.version->last_step = HZP_MAX(active->step.version->last_step, loop->number);
    hzp_count(&loop->counters.ahead_steps, hidden);
    hzp_loop_count_host(loop, &loop->counters.form_ns, begin, hidden);
    return active;
}
