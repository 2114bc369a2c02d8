/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/split.h"

#include "nanobatch/split/deadline.h"
#include "nanobatch/split/throttle.h"

enum { PART_SECONDS = 30, RECENT_STEPS = 64 };
/* Throttled below this, training does not run beside serving. */
static const double beside_missed_min = 0.1, beside_overdue_min = 0.05;

/* ---- policy: any thread ---- */

void hzp_split_init(struct hzp_split *split, const struct hzp_split_config *config)
{
    memset(split, 0, sizeof(*split));
    split->config = *config;
    split->policy = split->wanted = config->policy;
    split->overdue_factor = 1;
    hzp_lock_init(&split->lock, HZP_LOCK_SPLIT);
    hzp_seen_init(&split->seen);
}

void hzp_split_fini(struct hzp_split *split)
{
    hzp_lock_fini(&split->lock);
}

void hzp_split_set_policy(struct hzp_split *split, const struct hzp_policy *policy)
{
    HZP_LOCKED(&split->lock);
    split->wanted = *policy;
    atomic_store(&split->changed, true);
}

void hzp_split_policy(struct hzp_split *split, struct hzp_policy *ret)
{
    HZP_LOCKED(&split->lock);
    *ret = split->wanted;
}

void hzp_split_read(struct hzp_split *split, uint64_t now_ns, struct hzp_split_report *ret)
{
    struct hzp_seen seen = {.steps = 0};
    hzp_lock_take(&split->lock);
    *ret = split->report;
    ret->policy = split->wanted;
    if (ret->policy.itl_ns || ret->policy.itl_stretch <= 0)
        ret->derived_itl_ns = 0;
    if (ret->policy.ttft_ns || ret->policy.itl_stretch <= 0)
        ret->derived_ttft_ns = 0;
    hzp_lock_release(&split->lock);
    memcpy(seen.second, ret->second, sizeof(seen.second));
    hzp_seen_shares(&seen, now_ns, PART_SECONDS, &ret->serve_part, &ret->train_part);
}

static void take_policy(struct hzp_split *split)
{
    if (!atomic_load_explicit(&split->changed, memory_order_relaxed))
        return;
    HZP_LOCKED(&split->lock);
    uint64_t itl_ns = split->derived.itl ? 0 : split->policy.itl_ns;
    uint64_t ttft_ns = split->derived.ttft ? 0 : split->policy.ttft_ns;
    hzp_seen_forget(&split->seen, itl_ns != split->wanted.itl_ns, ttft_ns != split->wanted.ttft_ns);
    split->policy = split->wanted;
    split->derived.itl = split->derived.ttft = false;
    atomic_store(&split->changed, false);
}

/* A goal that the operator has not set is derived from what it would be without training. */
static void follow(struct hzp_split *split)
{
    double stretch = split->policy.itl_stretch;
    if (!split->policy.itl_ns || split->derived.itl) {
        split->policy.itl_ns = (uint64_t)(stretch * (double)hzp_seen_alone_p99(&split->seen));
        split->derived.itl = split->policy.itl_ns > 0;
    }
    if (!split->policy.ttft_ns || split->derived.ttft) {
        double alone = (double)hzp_seen_ttft_alone_p99(&split->seen);
        /* An operator's ITL goal may be spent before a request's first token, too. */
        double goal = stretch * alone;
        if (goal > 0 && !split->derived.itl)
            goal = HZP_MAX(goal, alone + (double)split->policy.itl_ns);
        split->policy.ttft_ns = (uint64_t)goal;
        split->derived.ttft = split->policy.ttft_ns > 0;
    }
}

static uint64_t operators_ttft(const struct hzp_split *split)
{
    return split->derived.ttft ? 0 : split->policy.ttft_ns;
}

/* ---- predictions ---- */

/* How long serving's part of the step will take with as much training; 0: in turns, 1: beside. */
static double serving_takes(const struct hzp_split *split, const struct hzp_split_step *step,
                            bool beside)
{
    return step->alone_ns *
           hzp_step_slowdown(&split->config.time->step, beside, step->alone_ns, step->alone_ns);
}

static void shape_of(const struct hzp_batch *batch, struct hzp_step_shape *ret)
{
    *ret = (struct hzp_step_shape){.decode_rows = batch->decode_segs,
                                   .prompt_rows = batch->rows - batch->decode_segs,
                                   .layers = hzp_batch_share(batch)};
    for (int32_t r = 0; r < batch->rows; r++)
        *(r < batch->decode_segs ? &ret->decode_reads : &ret->prompt_reads) += batch->pos[r] + 1;
}

static double miss_rate(const struct hzp_split *split)
{
    return hzp_seen_miss_rate(&split->seen, &split->policy);
}

static struct hzp_time_share share_of(const struct hzp_split *split)
{
    return hzp_share_of(&split->policy, split->policy.itl_ns && !split->derived.itl);
}

/* By how much longer serving takes with training beside it. */
static double beside_costs(const struct hzp_split *split, const struct hzp_split_step *step)
{
    return serving_takes(split, step, true) - step->alone_ns;
}

/* Whether training beside serving is paid for by what it adds to serving's time (share.h). */
static bool pays_beside(const struct hzp_time_share *share, const struct hzp_split_step *step)
{
    return step->beside && isinf(share->beside) && !isinf(share->turn);
}

/* ---- how long training may run ---- */

static double itl_limit(const struct hzp_split *split, enum hzp_tenant with)
{
    return split->seen.itl_aim[with].part * (double)split->policy.itl_ns;
}

/* How long serving's part of a step may take for the ITL goal; 0: no bound.  A derived goal follows
 * from such steps, so it bounds only those that begin late because of training. */
static double serve_max(const struct hzp_split *split)
{
    double carry = split->pipeline.carry_ns, limit = (double)split->policy.itl_ns;
    if (split->derived.itl)
        carry += split->pipeline.late_ns;
    else if (limit > 0)
        limit = itl_limit(split, carry > 0 ? HZP_TENANT_TRAIN : HZP_TENANT_SERVE);
    if (limit <= 0 || (split->derived.itl && carry <= 0))
        return 0;
    return HZP_MAX(limit - split->host_ns - carry, 1.0);
}

void hzp_split_begin(struct hzp_split *split, struct hzp_split_step *step, uint64_t now_ns)
{
    hzp_assert_engine_thread();
    uint64_t hold = split->pipeline.hold_ns;
    take_policy(split);
    follow(split);
    split->pipeline.hold_ns = 0;
    if (hold) {
        *step = (struct hzp_split_step){
            .begin_ns = now_ns, .train_ns = hold, .item_ns = hold, .hold = true};
        return;
    }
    double idle =
        hzp_deadline_idle(&split->seen, split->policy.ttft_ns, (double)split->config.idle_ns);
    *step = (struct hzp_split_step){.begin_ns = now_ns,
                                    .train_ns = (uint64_t)idle,
                                    .item_ns = UINT64_MAX,
                                    .serve_max_ns = serve_max(split)};
}

/* How long the step may last for the goals; INFINITY where one does not apply. */
struct limits {
    double itl, ttft;
};

static struct limits limits_of(const struct hzp_split *split, const struct hzp_split_step *step,
                               const struct hzp_waits *waits)
{
    struct limits ret = {INFINITY, INFINITY};
    struct hzp_deadline_step now = {.begin_ns = step->begin_ns,
                                    .pace = HZP_MAX(split->prompt_rows, 1),
                                    .in_flight_ns = split->pipeline.in_flight_ns,
                                    .serve_ns = step->alone_ns,
                                    .host_ns = split->host_ns};
    /* A slice behind the tokens falls into the next ITL, a request's first one too. */
    bool in_itl = step->decode_rows > 0 || (split->config.early && step->firsts > 0);
    if (split->policy.itl_ns && in_itl)
        ret.itl = itl_limit(split, HZP_TENANT_TRAIN);
    if (split->policy.ttft_ns)
        ret.ttft = hzp_deadline_ttft(&split->seen, split->policy.ttft_ns, &now, waits);
    return ret;
}

/* Whether training still runs beside serving, which takes longer then: not where that is too long,
 * and not while training is throttled to next to nothing. */
static bool stays_beside(const struct hzp_split *split, const struct hzp_split_step *step,
                         double limit, double missed)
{
    double takes = split->pipeline.carry_ns + split->host_ns + serving_takes(split, step, true);
    bool in_time = isinf(limit) || !(takes > limit || missed < beside_missed_min ||
                                     split->overdue_factor < beside_overdue_min);
    return in_time || hzp_beside_allowed(&split->exceptions, takes, limit, split->overdue_factor,
                                         hzp_throttle_rarely_missed(miss_rate(split)));
}

/* What the goals leave for training alone in this step, throttled; INFINITY: there are none. */
static double within_goals(const struct hzp_split *split, struct hzp_split_step *step,
                           const struct hzp_waits *waits)
{
    struct limits limit = limits_of(split, step, waits);
    /* Derived goals alone do not reduce training as running slots become scarce; the share bounds
     * it until a request waits for a slot. */
    bool slots_matter = !split->derived.itl || operators_ttft(split);
    bool crowded = !slots_matter && hzp_crowded(waits);
    double missed = 1;
    if (slots_matter)
        missed = hzp_throttle_missed(hzp_seen_alone_miss_rate(&split->seen, &split->policy));
    double slots = crowded ? 0 : 1;
    if (slots_matter)
        slots =
            (waits ? hzp_throttle_slots(waits->running, waits->slots) : 1) * split->overdue_factor;
    step->beside = step->beside && !crowded &&
                   stays_beside(split, step, HZP_MIN(limit.itl, limit.ttft), missed);
    /* The slice before falls into this step's ITL, or this step's into the next. */
    if (!step->beside && !split->config.early)
        limit.itl -= split->pipeline.carry_ns;
    double serve = serving_takes(split, step, step->beside), itl = INFINITY, ttft = INFINITY;
    if (!isinf(limit.itl))
        itl = hzp_deadline_slice(limit.itl, split->host_ns, serve, slots_matter);
    if (!isinf(limit.ttft))
        ttft = hzp_deadline_slice(limit.ttft, split->host_ns, serve, slots_matter);
    double slice = HZP_MAX(HZP_MIN(itl, ttft), 0.0);
    if (isinf(slice))
        return slice;
    step->limit = itl < ttft ? HZP_LIMIT_ITL : HZP_LIMIT_TTFT;
    if (HZP_MIN(missed, slots) < 0.5)
        step->limit = missed < slots ? HZP_LIMIT_MISSED : HZP_LIMIT_SLOTS;
    return slice * missed * slots;
}

static bool skips(struct hzp_split *split, const struct hzp_split_step *step)
{
    return hzp_skip_step(&split->exceptions, step->rows > step->decode_rows,
                         split->policy.itl_ns > 0 || step->beside, split->policy.ttft_ns > 0,
                         split->config.time->step.seen);
}

static bool may_overrun(const struct hzp_split *split, const struct hzp_split_step *step,
                        double allowed_ns, double share_ns)
{
    struct hzp_overrun_case c = {
        .derived_goal = split->derived.itl,
        .prompts = step->rows > step->decode_rows,
        .skipped = step->limit == HZP_LIMIT_TURN,
        .rarely_missed = hzp_throttle_rarely_missed(miss_rate(split)),
        .allowed_ns = allowed_ns,
        .share_ns = share_ns,
        .next_ns = split->next_ns,
        .itl_ns = split->policy.itl_ns,
    };
    return hzp_overrun_allowed(&split->exceptions, &c);
}

/* Beside serving, training has as long as that takes; hold_ns of training alone may follow.  paid:
 * the share is what serving takes longer. */
static void allow_beside(struct hzp_split *split, struct hzp_split_step *step, double hold_ns,
                         double share_ns, bool paid)
{
    double takes = serving_takes(split, step, true);
    /* Training's lane is to have work for as long as serving takes, so the last item may end later:
     * by that much the slice before has, and this one is to be shorter.  Where the share does not
     * suffice for the next step, too, what ends later would delay a step that pays for nothing. */
    bool last = paid && share_ns < 2 * beside_costs(split, step);
    double late_ns = last ? 0 : HZP_MIN(split->next_ns, takes / 2);
    double train_ns = HZP_MAX(takes - split->pipeline.late_ns + late_ns, 0.0);
    if (skips(split, step)) {
        step->limit = HZP_LIMIT_TURN;
        hold_ns = train_ns = 0;
    }
    if (paid) {
        double left_ns = share_ns - beside_costs(split, step);
        hold_ns = HZP_MIN(hold_ns, HZP_MAX(left_ns, 0.0));
        if (left_ns <= 0)
            train_ns = hold_ns = 0;
    } else if (!isinf(share_ns)) {
        train_ns = HZP_MIN(train_ns, share_ns);
        hold_ns = HZP_MIN(hold_ns, share_ns - train_ns);
    }
    step->train_ns = train_ns > 0 ? (uint64_t)train_ns : 0;
    /* An item that is longer shortens the hold. */
    step->item_ns = train_ns > 0 ? (uint64_t)(train_ns + hold_ns) : 0;
    step->overrun = may_overrun(split, step, train_ns + hold_ns, share_ns);
    if (step->overrun)
        step->item_ns = UINT64_MAX;
    /* A hold in which no item fits only delays serving. */
    bool worth = hold_ns > split->next_ns && hold_ns > takes / 8;
    step->hold_ns = worth ? (uint64_t)hold_ns : 0;
}

static void allow_in_turn(struct hzp_split *split, struct hzp_split_step *step, double goals_ns,
                          double share_ns)
{
    double train_ns = HZP_MIN(goals_ns, share_ns), due;
    if (isinf(train_ns) || (split->policy.itl_ns && !step->decode_rows))
        train_ns = HZP_MIN(train_ns, (double)split->config.idle_ns);
    if (skips(split, step)) {
        train_ns = 0;
        step->limit = HZP_LIMIT_TURN;
    }
    step->item_ns = isinf(goals_ns) ? UINT64_MAX : (uint64_t)goals_ns;
    step->overrun = may_overrun(split, step, train_ns, share_ns);
    due = hzp_floor_due(split->floor_ns, split->next_ns);
    if (step->overrun || due > 0) {
        train_ns = HZP_MAX(train_ns, HZP_MAX(split->floor_ns, 1.0));
        step->item_ns = UINT64_MAX;
    }
    step->train_ns = train_ns > 0 ? (uint64_t)train_ns : 0;
}

static void note_firsts(struct hzp_split_step *step, const struct hzp_waits *waits)
{
    for (int32_t i = 0; waits && i < waits->count; i++)
        if (waits->of[i].rows_now > 0 && waits->of[i].rows_now == waits->of[i].rows_left &&
            step->firsts < HZP_COUNT(step->first_ns))
            step->first_ns[step->firsts++] = waits->of[i].since_ns;
}

void hzp_split_serve(struct hzp_split *split, struct hzp_split_step *step,
                     const struct hzp_batch *batch, const struct hzp_waits *waits, bool beside)
{
    hzp_assert_engine_thread();
    struct hzp_time_share share = share_of(split);
    step->rows = batch->rows;
    step->decode_rows = batch->decode_segs;
    step->beside = split->may_beside = beside;
    step->limit = HZP_LIMIT_SHARE;
    shape_of(batch, &step->shape);
    step->alone_ns = hzp_step_alone_ns(&split->config.time->step, &step->shape);
    note_firsts(step, waits);
    if (step->rows > step->decode_rows)
        split->prompt_rows = step->rows - step->decode_rows;
    if (hzp_crowded(waits))
        split->seen.crowded_ns = step->begin_ns;
    bool overdue = hzp_overdue(waits, step->begin_ns, split->policy.ttft_ns, beside);
    split->overdue_factor = hzp_throttle_overdue(split->overdue_factor, overdue);

    double goals_ns = within_goals(split, step, waits);
    bool paid = pays_beside(&share, step);
    double share_ns =
        hzp_credit_allows(&split->credit, &share, step->beside && !paid, step->alone_ns);
    if (goals_ns > share_ns)
        step->limit = HZP_LIMIT_SHARE;
    if (step->beside)
        allow_beside(split, step,
                     isinf(goals_ns) ? 0 : HZP_MIN(goals_ns, (double)split->config.idle_ns),
                     share_ns, paid);
    else
        allow_in_turn(split, step, goals_ns, share_ns);
}

/* ---- what is issued ---- */

/* The ITL that ends with this step. */
static double predicted_itl(const struct hzp_split *split, const struct hzp_split_step *step)
{
    double serve = step->alone_ns * hzp_step_slowdown(&split->config.time->step, step->beside,
                                                      step->alone_ns, step->slice_ns);
    double slice = step->beside ? 0 : split->config.early ? step->ride_ns : step->slice_ns;
    return split->host_ns + step->carry_ns + serve + slice;
}

/* What this step adds to the time until the in-flight steps have ended: at most all it takes. */
static double in_flight(const struct hzp_split_step *step)
{
    return step->rows > 0 ? step->itl_ns : step->trains ? (double)step->train_ns : 0;
}

/* The hold behind the step, less what its slice takes beyond serving. */
static void hold_behind(struct hzp_split *split, const struct hzp_split_step *step)
{
    double serve = serving_takes(split, step, true), hold = (double)step->hold_ns;
    if (step->beside)
        hold -= HZP_MAX(step->slice_ns - serve, 0.0);
    split->pipeline.hold_ns = hold > serve / 8 ? (uint64_t)hold : 0;
}

void hzp_split_age(struct hzp_split *split, uint64_t age_ns)
{
    hzp_assert_engine_thread();
    split->learn_age_ns = age_ns;
}

void hzp_split_taken(struct hzp_split *split, struct hzp_split_step *step, enum hzp_tenant with,
                     double slice_ns)
{
    bool trains = with == HZP_TENANT_TRAIN;
    hzp_assert_engine_thread();
    step->trains = trains;
    step->beside = step->beside && trains;
    step->slice_ns = trains ? slice_ns : 0;
    step->carry_ns = split->pipeline.carry_ns;
    struct hzp_time_share share = share_of(split);
    if (step->rows > 0) {
        bool paid = pays_beside(&share, step);
        step->owes_ns = hzp_credit_owes(&split->credit, &share, step->beside && !paid,
                                        paid ? beside_costs(split, step) : step->slice_ns);
        step->itl_ns = predicted_itl(split, step);
    }
    step->number = ++split->pipeline.formed;
    step->late_ns = step->beside ? step->slice_ns - serving_takes(split, step, true) : 0;
    split->pipeline.late_ns =
        step->beside ? HZP_MAX(split->pipeline.late_ns + step->late_ns, 0.0) : 0;
    split->pipeline.newest_late_ns = step->late_ns;
    split->credit.owed_ns += step->owes_ns;
    if (step->hold)
        split->pipeline.carry_ns += step->slice_ns;
    else
        split->pipeline.carry_ns =
            split->config.early && !step->beside ? step->slice_ns - step->ride_ns : 0;
    hold_behind(split, step);
    split->pipeline.in_flight_ns += in_flight(step);
}

/* ---- what a step really took ---- */

static void average(double *usual, double ns)
{
    *usual += (ns - *usual) / (*usual > 0 ? 16 : 1);
}

static void account(struct hzp_split *split, const struct hzp_split_step *step,
                    const struct hzp_exec_times *times, double next_ns)
{
    double serve_ns = (double)times->ns[HZP_TENANT_SERVE];
    double train_ns = (double)times->ns[HZP_TENANT_TRAIN];
    uint64_t serve_end_ns = times->end_ns[HZP_TENANT_SERVE];
    struct hzp_time_share share = share_of(split);
    double part = hzp_floor_part(&split->policy, split->learn_age_ns);
    split->floor_ns = hzp_floor_settle(split->floor_ns, part, serve_ns, train_ns, split->next_ns);
    bool paid = pays_beside(&share, step);
    if (paid) {
        double took_ns = serve_end_ns ? (double)serve_end_ns : serve_ns;
        serve_ns = step->alone_ns;
        train_ns = HZP_MAX(took_ns - serve_ns, 0.0);
    }
    double saved_ns = split->may_beside ? beside_costs(split, step) : 0; /* for a step beside */
    next_ns = HZP_MAX(next_ns, saved_ns);
    hzp_credit_settle(&split->credit, &share, step->beside && !paid, serve_ns, train_ns, next_ns);
    if (step->rows == step->decode_rows && (!step->beside || paid))
        hzp_credit_usual(&split->credit, serve_ns);
}

/* By how much training's newest slice ends later than serving, now that this step has ended. */
static void note_late(struct hzp_split *split, const struct hzp_split_step *step,
                      const struct hzp_exec_times *times)
{
    bool newest = split->pipeline.formed == step->number;
    if (step->beside)
        split->pipeline.late_ns =
            HZP_MAX((double)times->late_ns + (newest ? 0 : split->pipeline.newest_late_ns), 0.0);
}

/* HZP_TENANT_TRAIN: the ITL that ended with the step had training in it. */
static enum hzp_tenant with_in_itl(const struct hzp_split *split, const struct hzp_split_step *step)
{
    bool trains = step->carry_ns + step->ride_ns > 0 ||
                  (step->trains && (step->beside || !split->config.early));
    return trains ? HZP_TENANT_TRAIN : HZP_TENANT_SERVE;
}

/* How much longer training made the ITL that ended with the step. */
static double train_in_itl(const struct hzp_split *split, const struct hzp_split_step *step,
                           const struct hzp_exec_times *times)
{
    double before = (double)split->pipeline.held_ns + (double)split->pipeline.last_train_ns;
    if (step->beside)
        return before;
    return before + (double)(split->config.early ? times->ride_ns : times->ns[HZP_TENANT_TRAIN]);
}

/* What that ITL would have been without training, and without what training does to caches. */
static double itl_alone(const struct hzp_split *split, const struct hzp_split_step *step,
                        const struct hzp_exec_times *times, double itl_ns)
{
    double slow =
        hzp_step_slowdown(&split->config.time->step, false, step->alone_ns, step->slice_ns);
    if (step->beside)
        return HZP_MIN(itl_ns, split->host_ns + step->alone_ns);
    if (with_in_itl(split, step) == HZP_TENANT_SERVE)
        return itl_ns - HZP_MIN((double)split->pipeline.held_ns, itl_ns);
    double serve = HZP_MIN((double)times->ns[HZP_TENANT_SERVE], itl_ns);
    double left = itl_ns - train_in_itl(split, step, times) - serve * (1 - 1 / slow);
    return HZP_MAX(left, 0.0);
}

/* Predictions against measurements. */
static void learn(struct hzp_split *split, const struct hzp_split_step *step,
                  const struct hzp_exec_times *times, double itl_ns)
{
    double serve_ns = (double)times->ns[HZP_TENANT_SERVE],
           train_ns = (double)times->ns[HZP_TENANT_TRAIN];
    if (step->beside && times->end_ns[HZP_TENANT_SERVE]) {
        serve_ns = (double)times->end_ns[HZP_TENANT_SERVE];
        train_ns = (double)times->end_ns[HZP_TENANT_TRAIN];
    }
    double busy_ns = serve_ns + train_in_itl(split, step, times);
    hzp_step_learn(&split->config.time->step, &step->shape, step->beside,
                   step->trains ? train_ns : 0, serve_ns);
    if (itl_ns <= 0)
        return;
    average(&split->host_ns, HZP_MAX(HZP_MIN(itl_ns - busy_ns, 4 * split->host_ns + 1e6), 1.0));
    if ((!step->overrun || !step->trains) && split->config.time->step.seen > HZP_STEP_TIMES_FEW)
        hzp_seen_prediction(&split->seen, itl_ns, step->itl_ns);
}

static void report(struct hzp_split *split, const struct hzp_split_step *step, double itl_ns)
{
    const struct hzp_seen *seen = &split->seen;
    struct hzp_split_report *r = &split->report;
    HZP_LOCKED(&split->lock);
    enum hzp_split_limit limit = step->rows ? step->limit : HZP_LIMIT_IDLE;
    r->limited[limit]++;
    for (int i = 0; i < HZP_LIMIT_COUNT; i++)
        r->recent[i] += ((i == (int)limit) - r->recent[i]) / RECENT_STEPS;
    r->floor_part = hzp_floor_part(&split->policy, split->learn_age_ns);
    memcpy(r->second, seen->second, sizeof(r->second));
    if (step->rows > 0) {
        r->steps++;
        r->trained += step->trains;
        r->beside += step->beside;
        r->shape = step->shape;
        r->alone_ns = step->alone_ns;
        r->slowdown = hzp_step_slowdown(&split->config.time->step, split->may_beside,
                                        step->alone_ns, step->alone_ns);
        r->itl_ns = step->itl_ns;
        r->slice_ns = (double)step->train_ns;
        r->measured_itl_ns = itl_ns;
        r->aim = seen->itl_aim[HZP_TENANT_TRAIN].part;
        r->error = seen->error;
        r->missed_itl = seen->missed_itl;
        r->missed_itl_alone = seen->missed_itl_alone;
        r->missed_ttft = seen->missed_ttft;
        r->derived_itl_ns = split->derived.itl ? split->policy.itl_ns : 0;
        r->derived_ttft_ns = split->derived.ttft ? split->policy.ttft_ns : 0;
        if (itl_ns > 0)
            hzp_window_add(&r->itl, (uint64_t)itl_ns, step->decode_rows);
        for (int32_t i = 0; i < step->firsts; i++)
            hzp_window_add(&r->ttft,
                           seen->ttft.ns[(seen->ttft.at - step->firsts + i + HZP_WINDOW_VALUES) %
                                         HZP_WINDOW_VALUES],
                           1);
    }
}

void hzp_split_ended(struct hzp_split *split, const struct hzp_split_step *step,
                     const struct hzp_exec_times *times, uint64_t tokens_ns, double next_ns)
{
    hzp_assert_engine_thread();
    double itl_ns = 0;
    double in_flight_ns = split->pipeline.in_flight_ns - in_flight(step);
    split->pipeline.in_flight_ns = HZP_MAX(in_flight_ns, 0.0);
    if (next_ns > 0)
        split->next_ns = next_ns;
    split->credit.owed_ns -= step->owes_ns;
    hzp_seen_step(&split->seen, step->begin_ns, tokens_ns, times->ns[HZP_TENANT_SERVE],
                  times->ns[HZP_TENANT_TRAIN]);
    if (step->hold) {
        split->pipeline.held_ns += times->ns[HZP_TENANT_TRAIN];
        hzp_lock_take(&split->lock);
        split->report.held++;
        hzp_lock_release(&split->lock);
        return;
    }
    if (step->rows == 0) {
        split->credit.credit_ns = split->floor_ns = 0;
    } else {
        if (split->pipeline.last_served && step->decode_rows > 0)
            itl_ns = (double)(tokens_ns - split->pipeline.last_tokens_ns);
        hzp_exceptions_count(&split->exceptions, step->overrun && step->trains, step->beside);
        account(split, step, times, next_ns);
        note_late(split, step, times);
        learn(split, step, times, itl_ns);
        if (itl_ns > 0)
            hzp_seen_itl(&split->seen, &split->policy, with_in_itl(split, step), (uint64_t)itl_ns,
                         (uint64_t)itl_alone(split, step, times, itl_ns), step->decode_rows);
        for (int32_t i = 0; i < step->firsts; i++)
            hzp_seen_ttft(&split->seen, &split->policy, step->first_ns[i], tokens_ns);
    }
    report(split, step, itl_ns);
    split->pipeline.last_served = step->rows > 0;
    split->pipeline.last_tokens_ns = tokens_ns;
    split->pipeline.last_train_ns =
        split->config.early && !step->beside ? times->ns[HZP_TENANT_TRAIN] - times->ride_ns : 0;
    split->pipeline.held_ns = 0;
}
