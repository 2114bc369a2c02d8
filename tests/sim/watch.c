/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/watch.c - what the test observes of a step: every op on its way to the device, and
 * the loop, through sources before and behind the engine's own. */
#include "tests/sim/world.h"

#include "device/collective.h"
#include "nanobatch/model/train_space_state.h"

#include <math.h>
#include <string.h>

static struct sim_world *here; /* ops only know their lane */

/* --- The memory of versions ------------------------------------------------------------------- */

int sim_alloc(struct hzp_device *dev, enum hzp_mem where, size_t size, void **ret)
{
    HZP_TRY(hzp_backend_sim.mem_alloc(dev, where, size, ret));
    if (here && here->noting_slots) {
        HZP_ASSERT(here->slots_seen < SIM_SLOTS_MAX);
        int32_t i = here->slots_seen++;
        here->slot[i].begin = *ret;
        here->slot[i].end = here->slot[i].begin + size;
    }
    return HZP_OK;
}

static bool is_of(const struct sim_world *w, int32_t slot, const struct hzp_version *v)
{
    const char *begin = w->slot[slot].begin;
    float *scale;
    if (begin == hzp_version_unit(w->weights, v, 0).base)
        return true;
    return hzp_weights_fp8(w->weights) &&
           begin == hzp_version_fp8(w->weights, v, HZP_QKV, 0, &scale).ptr;
}

static void note_version(struct sim_world *w, struct hzp_version *v)
{
    for (int32_t i = 0; i < w->slots_seen; i++)
        if (is_of(w, i, v))
            w->slot[i].version = v;
}

/* Serving reads the step's one version.  Training reads a version that is held, or its draft,
 * and writes a draft.  No other op touches a version. */
static void check_versions_touched(struct sim_world *w, enum hzp_op op, const void *args,
                                   bool train)
{
    struct hzp_access access[HZP_ACCESS_MAX];
    int n = hzp_op_access(op, args, access);
    for (int k = 0; k < n; k++)
        for (int32_t i = 0; i < w->slots_seen; i++) {
            if (access[k].begin >= (uintptr_t)w->slot[i].end ||
                access[k].end <= (uintptr_t)w->slot[i].begin)
                continue;
            struct hzp_version *v = w->slot[i].version;
            bool draft = !v || v->record.state == HZP_VERSION_DRAFT;
            for (int l = 0; l < 2 && access[k].writes; l++)
                SIM_CHECK(w, w->leg[l].served || !is_of(w, i, w->leg[l].version), "version written",
                          "%s writes what a step under way reads", hzp_op_name(op));
            if (access[k].writes)
                SIM_CHECK(w, train && draft, "version written", "%s writes a version that %s",
                          hzp_op_name(op), draft ? "is a draft, but serves" : "is no draft");
            else if (train)
                SIM_CHECK(w, draft || v->held > 0, "version read", "%s reads one that is not held",
                          hzp_op_name(op));
            else
                SIM_CHECK(w, v && v == w->step->version, "step reads two versions",
                          "%s reads slot %d, the step's version is %llu", hzp_op_name(op), i,
                          (unsigned long long)w->step->version->record.id);
        }
}

/* --- Faults ----------------------------------------------------------------------------------- */

/* The same offset in another slot. */
static char *other_slot(struct sim_world *w, char *at)
{
    for (int32_t i = 0; i < w->slots_seen; i++)
        for (int32_t j = 0; j < w->slots_seen; j++)
            if (at >= w->slot[i].begin && at < w->slot[i].end && i != j &&
                w->slot[j].end - w->slot[j].begin == w->slot[i].end - w->slot[i].begin)
                return w->slot[j].begin + (at - w->slot[i].begin);
    return NULL;
}

/* The op's arguments, changed if this op is the one to sabotage. */
static const void *sabotaged(struct sim_world *w, enum hzp_op op, const void *args, bool train)
{
    static struct hzp_matmul_args matmul;
    static struct hzp_adamw_args adamw;
    static struct hzp_gather_args gather;
    static int32_t index[64];
    if (w->sabotage == SIM_TWO_VERSIONS && op == HZP_OP_matmul && !train && w->turn > 300) {
        matmul = *(const struct hzp_matmul_args *)args;
        matmul.b.ptr = other_slot(w, matmul.b.ptr);
        return &matmul;
    }
    if (w->sabotage == SIM_WRONG_ID && op == HZP_OP_gather) {
        gather = *(const struct hzp_gather_args *)args;
        for (int32_t i = 0; i < gather.y.rows && gather.x.type == HZP_I32; i++)
            index[i] = gather.index[(i + 1) % gather.y.rows];
        gather.index = gather.x.type == HZP_I32 ? index : gather.index;
        return &gather;
    }
    if (w->sabotage == SIM_WRITE_CURRENT && op == HZP_OP_adamw && w->good_updates > 5) {
        adamw = *(const struct hzp_adamw_args *)args;
        adamw.to.ptr = hzp_version_unit(w->weights, w->step->version, 0).base;
        return &adamw;
    }
    if (w->sabotage == SIM_PUBLISH_INSIDE && !train && w->step_ops == 5 && w->turn > 200 &&
        hzp_weights_begin(w->weights, &w->stray) == HZP_OK) {
        w->stray->record.optimizer_step = w->step->version->record.optimizer_step;
        w->stray->fp8_made = true;
        hzp_weights_publish(w->weights, w->stray, w->step->number);
    }
    return args;
}

/* Makes updates non-finite: the norm of some, the weights of a few. */
static void poison(struct sim_world *w, enum hzp_op op, const void *args)
{
    if (op == HZP_OP_sumsq && !w->poisoned && sim_chance(w, w->nan_per_mille / 4)) {
        w->poisoned = true;
        if (w->sabotage != SIM_NAN_PUBLISHED)
            *((const struct hzp_sumsq_args *)args)->sum = NAN;
    }
    if (op == HZP_OP_audit && !w->poisoned && sim_chance(w, w->audit_per_mille)) {
        w->poisoned = w->broken = true;
        *((const struct hzp_audit_args *)args)->nonfinite += 1;
    }
}

/* --- Ops -------------------------------------------------------------------------------------- */

const struct hzp_slice *sim_slice(const struct sim_world *w)
{
    SIM_CHECK((struct sim_world *)w, w->offer->slices <= 1, "training's slice", "%d are offered",
              w->offer->slices);
    return w->offer->slices ? &w->offer->slice[0] : NULL;
}

/* Items up to `to` of the slice were not seen on their own: they rode in serving's products. */
static void rode(struct sim_world *w, int32_t to)
{
    const struct hzp_slice *slice = sim_slice(w);
    if (!slice || to == w->train_at)
        return;
    SIM_CHECK(w, w->room->ride_rows > 0 && slice->rider, "training's slice",
              "%d of %d items were seen", w->train_at - slice->from, slice->to - slice->from);
    SIM_CHECK(w, w->chain_version == w->step->version, "ride",
              "training reads another version than the step, and rides in it");
    for (int32_t i = w->train_at; i < to; i++)
        SIM_CHECK(w, slice->chain->item[i].layer >= 0 && i < slice->rider->space->forward_end,
                  "ride", "%s is no item of a layer's forward pass",
                  hzp_op_name(slice->chain->item[i].op));
    w->rode++;
    w->train_at = to;
}

/* Training's items are those of the slice, in order; all other ops are serving's, including
 * those that training rides in. */
static bool is_training(struct sim_world *w, const void *args)
{
    const struct hzp_slice *slice = sim_slice(w);
    if (!slice)
        return false;
    int32_t at = w->train_at, last = w->room->ride_rows > 0 && slice->rider ? slice->to : at + 1;
    while (at < HZP_MIN(last, slice->to) && slice->chain->item[at].args != args)
        at++;
    if (at >= HZP_MIN(last, slice->to))
        return false;
    rode(w, at);
    w->train_at++;
    return true;
}

static int end_of_op(struct sim_world *w, struct hzp_lane *lane)
{
    if (!w->immediate)
        return HZP_OK;
    HZP_TRY(hzp_backend_sim.fence_record(w->fence, lane));
    return hzp_backend_sim.fence_wait(w->fence);
}

/* The device has computed the tokens, but the host must not see them before it has waited. */
static void keep_tokens(struct sim_world *w, const struct hzp_sample_args *args)
{
    struct sim_leg *leg = sim_leg_of(w, w->step->number);
    leg->tokens = args->logits.rows;
    memcpy(leg->token, args->token, (size_t)leg->tokens * sizeof(*leg->token));
    memset(args->token, 0xb0, (size_t)leg->tokens * sizeof(*leg->token));
}

/* The device's copy from one step to the next finds the tokens as they were drawn. */
static int copy_tokens(struct sim_world *w, struct hzp_lane *lane,
                       const struct hzp_gather_args *args)
{
    struct hzp_gather_args of_leg = *args;
    of_leg.x.ptr = sim_leg_of(w, w->step->number - 1)->token;
    return w->op[HZP_OP_gather](lane, &of_leg);
}

void sim_show_tokens(const struct hzp_step_link *records, uint64_t step, int32_t *ret)
{
    bool own = here && here->records == records;
    const struct sim_leg *leg = own ? sim_leg_of(here, step) : NULL;
    if (leg)
        memcpy(ret, leg->token, (size_t)leg->tokens * sizeof(*ret));
}

/* The ranks' exchange takes its time on the link. */
static int exchange(struct sim_world *w, const struct hzp_collective_args *args)
{
    struct hzp_transfer transfer;
    hzp_ticket ticket;
    uint64_t before = hzp_device_now_ns(w->dev);
    hzp_collective_transfer(args, &transfer);
    HZP_TRY(hzp_link_post(args->link, &transfer, &ticket, NULL));
    HZP_TRY(hzp_link_wait(args->link, ticket, NULL));
    w->exchanges++;
    w->exchange_ns += hzp_device_now_ns(w->dev) - before;
    return HZP_OK;
}

static int run(struct sim_world *w, struct hzp_lane *lane, enum hzp_op op, const void *args,
               bool train)
{
    if (op == HZP_OP_collective)
        HZP_TRY(exchange(w, args));
    if (op == HZP_OP_gather && !train && ((const struct hzp_gather_args *)args)->x.type == HZP_I32)
        return copy_tokens(w, lane, args);
    HZP_TRY(w->op[op](lane, args));
    if (op == HZP_OP_sample)
        keep_tokens(w, args);
    return HZP_OK;
}

/* A tenant's ops of one step end before its ops of the next begin; across tenants no order is
   required. */
static void check_times(struct sim_world *w, enum hzp_op op, const struct hzp_span *span,
                        bool train)
{
    struct sim_leg *leg = sim_leg_of(w, w->step->number);
    const struct sim_leg *before = sim_leg_of(w, w->step->number - 1);
    bool first = !leg->begin_ns[train];
    if (!span)
        return;
    SIM_CHECK(
        w, span->begin_ns >= before->end_ns[train], "two steps",
        "%s of step %llu begins %llu ns before the same tenant's of the one before have ended",
        hzp_op_name(op), (unsigned long long)leg->number,
        (unsigned long long)(before->end_ns[train] - span->begin_ns));
    leg->begin_ns[train] = first ? span->begin_ns : HZP_MIN(leg->begin_ns[train], span->begin_ns);
    leg->end_ns[train] = HZP_MAX(leg->end_ns[train], span->end_ns);
    w->met += first && !train && before->end_ns[1] > span->begin_ns;
}

static int watched_time(struct hzp_lane *lane, struct hzp_span *span)
{
    here->span = span;
    return hzp_backend_sim.lane_time(lane, span);
}

static int watched_wait(struct hzp_lane *lane, struct hzp_fence *fence)
{
    return here->sabotage == SIM_NO_WAIT ? HZP_OK : hzp_backend_sim.lane_wait(lane, fence);
}

static int watched(struct hzp_lane *lane, enum hzp_op op, const void *args)
{
    struct sim_world *w = here;
    if (!w->step || !w->in_plan) {
        HZP_TRY(w->op[op](lane, args));
        return end_of_op(w, lane);
    }
    w->ops++;
    w->step_ops++;
    if (w->fail_at && --w->fail_at == 0) {
        w->failed = true;
        return HZP_EDEVICE;
    }
    bool train = is_training(w, args);
    const char *invalid = hzp_op_validate(op, args);
    SIM_CHECK(w, !invalid, "op", "%s", invalid);
    args = sabotaged(w, op, args, train);
    check_versions_touched(w, op, args, train);
    SIM_CHECK(w, op != HZP_OP_adamw || !w->frozen, "frozen", "an update began");
    uint64_t before = hzp_device_now_ns(w->dev);
    const struct hzp_span *span = w->span;
    w->span = NULL;
    HZP_TRY(run(w, lane, op, args, train));
    check_times(w, op, span, train);
    poison(w, op, args);
    HZP_TRY(end_of_op(w, lane));
    uint64_t took = hzp_device_now_ns(w->dev) - before;
    *(train ? &w->seen_train_ns : &w->seen_serve_ns) += took;
    if (train)
        w->longest_item_ns = HZP_MAX(w->longest_item_ns, took);
    return HZP_OK;
}

#define X(name, class_)                                                                            \
    static int watched_##name(struct hzp_lane *lane, const void *args)                             \
    {                                                                                              \
        return watched(lane, HZP_OP_##name, args);                                                 \
    }
HZP_OPS(X)
#undef X

static int watched_copy(struct hzp_lane *lane, void *dst, const void *src, size_t size)
{
    HZP_TRY(hzp_backend_sim.copy(lane, dst, src, size));
    return end_of_op(here, lane);
}

/* Immediate: ops end before issue returns, as on the CPU; otherwise they queue up, as on a GPU. */
void sim_watch_device(struct sim_world *w)
{
    here = w;
    if (!w)
        return;
    w->backend = hzp_backend_sim;
    w->backend.mem_alloc = sim_alloc;
    w->backend.copy = watched_copy;
    w->backend.lane_time = watched_time;
    w->backend.lane_wait = watched_wait;
    hzp_backend_sim.fence_open(w->dev, &w->fence);
    if (w->immediate) {
        w->backend.lane_wait = NULL;
        w->backend.fence_open = NULL;
        w->backend.fence_close = NULL;
        w->backend.fence_record = NULL;
        w->backend.fence_wait = NULL;
    }
    w->dev->backend = &w->backend;
    memcpy(w->op, w->dev->op, sizeof(w->op));
#define X(name, class_) w->dev->op[HZP_OP_##name] = watched_##name;
    HZP_OPS(X)
#undef X
}

/* --- Training --------------------------------------------------------------------------------- */

void sim_on_update(void *ctx, const struct hzp_update_report *report)
{
    struct sim_world *w = ctx;
    SIM_CHECK(w, report->skipped == w->poisoned, "not finite", "an update that was %s was %s",
              w->poisoned ? "not finite" : "sound", report->skipped ? "undone" : "kept");
    SIM_CHECK(w, report->broken == w->broken, "not finite", "weights that are %s were called %s",
              w->broken ? "not finite" : "sound", report->broken ? "not finite" : "sound");
    SIM_CHECK(w, !report->skipped || !report->version, "not finite", "version %llu came of it",
              (unsigned long long)report->version);
    w->good_updates += !report->skipped;
    w->bad_updates += report->skipped;
    SIM_CHECK(w, report->skipped || report->optimizer_step == w->good_updates, "update",
              "number %lld is %lld", (long long)w->good_updates, (long long)report->optimizer_step);
    w->poisoned = false;
}

static void check_staleness(struct sim_world *w)
{
    const struct hzp_version *v = hzp_weights_current(w->weights);
    int64_t behind = w->good_updates - v->record.optimizer_step;
    SIM_CHECK(w, behind >= 0 && behind <= w->max_staleness, "staleness",
              "%lld updates are finished, version %llu has %lld of them, the bound is %d",
              (long long)w->good_updates, (unsigned long long)v->record.id,
              (long long)v->record.optimizer_step, w->max_staleness);
    SIM_CHECK(w, hzp_weights_staleness(w->weights) == behind, "staleness",
              "the store says %lld, it is %lld", (long long)hzp_weights_staleness(w->weights),
              (long long)behind);
}

/* Compares training's device time beside serving with its share.  Allowed beyond it: one item
 * that was saved up for, one item begun with the last of the share, and the share of the longest
 * step, because a slice is cut for a usual step and may run in a much shorter one.  Where training
 * rides, one more: what an item adds to serving's op is an estimate also in exact worlds. */
static void check_share(struct sim_world *w)
{
    bool learning = !w->exact_prices && (w->train_steps < 50 || w->serve_steps < 50);
    if (w->offer->batch->rows == 0 || learning || w->goal_ns) {
        w->excess_ns = w->least_excess_ns = 0;
        return;
    }
    w->longest_step_ns = HZP_MAX(w->longest_step_ns, w->seen_serve_ns);
    w->excess_ns += (double)w->seen_train_ns - w->train_share * (double)w->seen_serve_ns;
    w->least_excess_ns = HZP_MIN(w->least_excess_ns, w->excess_ns);
    double allowed = (w->rides ? 3 : 2) * (double)w->longest_item_ns + 1000 +
                     w->train_share * (double)w->longest_step_ns;
    if (!w->exact_prices) /* slices are cut by estimates: allow some steps */
        allowed += 4 * w->train_share * (double)w->longest_step_ns;
    SIM_CHECK(w, !w->immediate || w->excess_ns - w->least_excess_ns <= allowed, "share of training",
              "%.0f ns beyond %g of serving's time, allowed are %.0f",
              w->excess_ns - w->least_excess_ns, w->train_share, allowed);
}

/* When nothing is served and there is something to learn, training uses the device in this turn,
 * or in one of the next if this turn only publishes or goes over samples with nothing to learn
 * in them. */
static void check_idle(struct sim_world *w)
{
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(w->trainer, &stats);
    bool could = !w->paused && !w->broken && !w->frozen && !stats.waiting_for_slot &&
                 !w->offer->keep_version && hzp_sample_queue_ready(w->queue);
    const struct hzp_slice *slice = sim_slice(w);
    bool used = w->offer->batch->rows > 0 || slice || w->landed + 1 < w->step->number;
    w->idle_turns = used || !could ? 0 : w->idle_turns + 1;
    /* In the middle of a chain there is nothing to publish or to go over: the very next step
     * must continue it. */
    SIM_CHECK(w, used || !could || !w->chain_open, "idle device",
              "requests pause, and step %llu does not go on with training's chain",
              (unsigned long long)w->step->number);
    if (slice)
        w->chain_open = slice->to < slice->chain->items;
    SIM_CHECK(w, w->idle_turns <= 12, "idle device", "training does not use it for %d turns",
              w->idle_turns);
}

/* --- The test's own sources of the loop ------------------------------------------------------- */

/* Only training's deliver() publishes. */
static void check_current(struct sim_world *w)
{
    const struct hzp_version *now = hzp_weights_current(w->weights);
    SIM_CHECK(w, now->record.id == w->serving_id, "version", "%llu became %llu inside a step",
              (unsigned long long)w->serving_id, (unsigned long long)now->record.id);
}

/* An in-flight step can read its version to the end. */
static void check_kept(struct sim_world *w, const struct sim_leg *leg)
{
    const struct hzp_version_record *record = &leg->version->record;
    bool kept = record->state == HZP_VERSION_CURRENT || record->state == HZP_VERSION_RETIRED;
    SIM_CHECK(w, kept && record->id == leg->version_id, "version",
              "%llu is gone while step %llu reads it", (unsigned long long)leg->version_id,
              (unsigned long long)leg->number);
}

static void begin_leg(struct sim_world *w, const struct hzp_step *step)
{
    struct sim_leg *leg = sim_leg_of(w, step->number), *before = sim_leg_of(w, step->number - 1);
    SIM_CHECK(w, w->landed + 2 >= step->number, "outstanding",
              "step %llu is formed, of those before it %llu have landed",
              (unsigned long long)step->number, (unsigned long long)w->landed);
    SIM_CHECK(w,
              step->in_flight ? w->ahead && w->served + 2 == step->number
                              : w->served + 1 == step->number,
              "ahead", "step %llu is formed, %llu are served", (unsigned long long)step->number,
              (unsigned long long)w->served);
    w->ahead_steps += step->in_flight != NULL;
    w->outlived +=
        step->number > 1 && before->served && !before->landed && hzp_offer_trains(before->offer);
    leg->number = step->number;
    leg->step = step;
    leg->offer = w->offer;
    leg->version = step->version;
    leg->version_id = step->version->record.id;
    sim_group_note(w, step->number, leg->version_id);
    leg->tokens = 0;
    leg->served = leg->landed = false;
    memset(leg->begin_ns, 0, sizeof(leg->begin_ns));
    memset(leg->end_ns, 0, sizeof(leg->end_ns));
}

static bool first_offer(struct hzp_source *source, const struct hzp_step *step,
                        struct hzp_room *room, struct hzp_offer *offer)
{
    struct sim_world *w = HZP_CONTAINER_OF(source, struct sim_world, first);
    if (w->in_plan)
        rode(w, sim_slice(w) ? sim_slice(w)->to : 0);
    w->step = step;
    w->room = room;
    w->has_room = room->rows > 0;
    w->offer = offer;
    w->in_plan = false;
    w->step_ops = 0;
    w->seen_serve_ns = w->seen_train_ns = 0;
    begin_leg(w, step);
    SIM_CHECK(w, step->version == hzp_weights_current(w->weights), "version",
              "not the current one");
    check_current(w);
    note_version(w, step->version);
    check_staleness(w);
    if (w->sabotage == SIM_TOKEN_EARLY)
        ((struct hzp_step *)step)->in_flight = NULL;
    if (w->sabotage == SIM_VERSION_EARLY)
        hzp_weights_reclaim(w->weights, UINT64_MAX);
    for (int32_t i = 0; i < w->lives && w->sabotage == SIM_STARVED && w->turn > 100; i++)
        if (i == 0 || w->life[i]->fed >= w->life[i]->rq->prompt_count)
            room->rows = i ? room->rows + 1 : 0;
    return false;
}

static bool mid_offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                      struct hzp_offer *offer)
{
    struct sim_world *w = HZP_CONTAINER_OF(source, struct sim_world, mid);
    if (w->sabotage == SIM_SWAP_STORM)
        offer->keep_version = false;
    return false;
}

static bool last_offer(struct hzp_source *source, const struct hzp_step *step,
                       struct hzp_room *room, struct hzp_offer *offer)
{
    struct sim_world *w = HZP_CONTAINER_OF(source, struct sim_world, last);
    SIM_CHECK(w, step == w->step, "loop", "another step");
    sim_check_batch(w);
    struct hzp_slice *slice = (struct hzp_slice *)sim_slice(w);
    const struct hzp_rider *rider = slice ? slice->rider : NULL;
    w->train_at = slice ? slice->from : 0;
    w->chain_version = rider ? rider->version : NULL;
    w->rode_not += room->ride_rows > 0 && rider && w->chain_version != step->version;
    if (w->sabotage == SIM_RIDE_STALE && rider) {
        w->lie = *rider;
        w->lie.version = step->version;
        slice->rider = &w->lie;
    }
    w->in_plan = true;
    SIM_CHECK(w, !slice || !w->paused, "paused", "training runs");
    check_idle(w);
    if (w->sabotage == SIM_STALE_AHEAD && offer->settle == HZP_SETTLE_ALL)
        offer->settle = HZP_SETTLE_NOTHING;
    return false;
}

static void first_deliver(struct hzp_source *source, const struct hzp_step *step,
                          const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    int status = outcome->status;
    struct sim_world *w = HZP_CONTAINER_OF(source, struct sim_world, first);
    struct sim_leg *leg = sim_leg_of(w, step->number);
    SIM_CHECK(w, leg->number == step->number && (status < 0 || w->served + 1 == step->number),
              "loop", "step %llu is served after %llu", (unsigned long long)step->number,
              (unsigned long long)w->served);
    check_current(w);
    check_kept(w, leg);
    SIM_CHECK(w, (status < 0) == w->failed, "failure", "the loop says %s", hzp_err_name(status));
    w->swaps_in_flight += leg->version_id != w->serving_id;
    memcpy(offer->batch->token, leg->token, (size_t)leg->tokens * sizeof(*leg->token));
    leg->served = true;
    w->served = HZP_MAX(w->served, step->number);
}

static void mid_deliver(struct hzp_source *source, const struct hzp_step *step,
                        const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    struct sim_world *w = HZP_CONTAINER_OF(source, struct sim_world, mid);
    sim_check_results(w, step, outcome->status);
    sim_check_pool(w);
}

static void last_deliver(struct hzp_source *source, const struct hzp_step *step,
                         const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    int status = outcome->status;
    struct sim_world *w = HZP_CONTAINER_OF(source, struct sim_world, last);
    SIM_CHECK(w, status < 0 || (w->landed + 1 == step->number && w->served >= step->number), "loop",
              "step %llu lands after %llu", (unsigned long long)step->number,
              (unsigned long long)w->landed);
    w->landed = HZP_MAX(w->landed, step->number);
    sim_leg_of(w, step->number)->landed = true;
    if (status < 0)
        return;
    check_staleness(w);
    check_share(w);
    sim_check_goals(w, outcome);
    w->serve_steps += offer->batch->rows > 0;
    w->train_steps += hzp_offer_trains(offer);
    struct hzp_version *now = hzp_weights_current(w->weights);
    uint64_t id = now->record.id;
    SIM_CHECK(w, id == w->serving_id || id == w->serving_id + 1, "version", "%llu follows %llu",
              (unsigned long long)id, (unsigned long long)w->serving_id);
    if (id != w->serving_id) {
        w->publications++;
        SIM_CHECK(w, now->record.optimizer_step == w->good_updates, "version",
                  "%llu has %lld updates of %lld sound ones", (unsigned long long)id,
                  (long long)now->record.optimizer_step, (long long)w->good_updates);
    }
    w->serving_id = id;
    note_version(w, now);
}

/* Whether a request's row must wait for the token before it. */
bool __real_hzp_edits_grow(const struct hzp_edits *edits);
bool __wrap_hzp_edits_grow(const struct hzp_edits *edits);

bool __wrap_hzp_edits_grow(const struct hzp_edits *edits)
{
    return __real_hzp_edits_grow(edits) && !(here && here->sabotage == SIM_UNSETTLED);
}

void __real_hzp_queue_restart(struct hzp_scheduler *s, uint64_t version);
void __wrap_hzp_queue_restart(struct hzp_scheduler *s, uint64_t version);

void __wrap_hzp_queue_restart(struct hzp_scheduler *s, uint64_t version)
{
    if (!here || here->sabotage != SIM_MIXED_PROMPT)
        __real_hzp_queue_restart(s, version);
}

void sim_watch_loop(struct sim_world *w)
{
    w->first = (struct hzp_source){.name = "first", .offer = first_offer, .deliver = first_deliver};
    w->mid = (struct hzp_source){.name = "mid", .offer = mid_offer, .deliver = mid_deliver};
    w->last = (struct hzp_source){
        .name = "last", .slices = true, .offer = last_offer, .deliver = last_deliver};
    w->leg[0].served = w->leg[1].served = true;
    w->serving_id = hzp_weights_current(w->weights)->record.id;
}
