/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/split.h"

#include "base/thread.h"
#include "nanobatch/split/waits.h"

#include <math.h>
#include <string.h>

enum {
    LOOK_EVERY = 64,      /* steps: in one of them serving is alone */
    OVERRUN_EVERY = 256,  /* steps: in one of them an item may be too long, */
    FOLLOWS_EVERY = 128,  /* the same where nobody has set a goal; */
    DESPITE_EVERY = 1024, /* then also if gaps miss the one that follows */
    PART_SECONDS = 30,
};

/* The part of late gaps, and of late first tokens, that may miss their goals before training ends;
 * it begins to give way at half of it. Below the hundredth that the goals allow, since it takes a
 * while to see. */
static const double may_miss = 0.007;
/* With so many of all places taken training's part is whole, and nothing: between the two it finds
 * the length of step at which what comes and what is served are the same. */
static const double places_free = 0.5, places_taken = 0.95;
/* What is left of it with each step in which somebody waits (beside: a quarter of his goal and
 * more, or so long where there is none), and what comes back of it with each in which nobody has.
 * Below the last, serving has the whole device. */
static const double impatience = 0.75, patience_back = 0.05, patience_beside = 0.05;
static const uint64_t waits_long_ns = 250000000;

const char *hzp_split_limit_name(enum hzp_split_limit limit)
{
    static const char *const name[] = {
        [HZP_LIMIT_IDLE] = "idle",    [HZP_LIMIT_SHARE] = "share",   [HZP_LIMIT_GAPS] = "itl",
        [HZP_LIMIT_FIRSTS] = "ttft",  [HZP_LIMIT_MISSED] = "missed", [HZP_LIMIT_TURN] = "turn",
        [HZP_LIMIT_PLACES] = "places"};
    return name[limit];
}

/* ---- policy: any thread ---- */

void hzp_split_init(struct hzp_split *split, const struct hzp_split_config *config)
{
    memset(split, 0, sizeof(*split));
    split->config = *config;
    split->policy = split->wanted = config->policy;
    split->patience = 1;
    hzp_lock_init(&split->lock, HZP_LOCK_SPLIT);
    hzp_seen_init(&split->seen);
}

void hzp_split_fini(struct hzp_split *split)
{
    hzp_lock_fini(&split->lock);
}

void hzp_split_set_policy(struct hzp_split *split, const struct hzp_policy *policy)
{
    hzp_lock_take(&split->lock);
    split->wanted = *policy;
    atomic_store(&split->changed, true);
    hzp_lock_release(&split->lock);
}

void hzp_split_policy(struct hzp_split *split, struct hzp_policy *ret)
{
    hzp_lock_take(&split->lock);
    *ret = split->wanted;
    hzp_lock_release(&split->lock);
}

void hzp_split_read(struct hzp_split *split, uint64_t now_ns, struct hzp_split_report *ret)
{
    struct hzp_seen seen = {.steps = 0};
    hzp_lock_take(&split->lock);
    *ret = split->report;
    ret->policy = split->wanted;
    if (ret->policy.itl_ns || ret->policy.itl_stretch <= 0)
        ret->follows_ns = 0;
    hzp_lock_release(&split->lock);
    memcpy(seen.second, ret->second, sizeof(seen.second));
    hzp_seen_shares(&seen, now_ns, PART_SECONDS, &ret->serve_part, &ret->train_part);
}

static void take_policy(struct hzp_split *split)
{
    if (!atomic_load_explicit(&split->changed, memory_order_relaxed))
        return;
    hzp_lock_take(&split->lock);
    uint64_t itl_ns = split->follows ? 0 : split->policy.itl_ns;
    hzp_seen_forget(&split->seen, itl_ns != split->wanted.itl_ns,
                    split->policy.ttft_ns != split->wanted.ttft_ns);
    split->policy = split->wanted;
    split->follows = false;
    atomic_store(&split->changed, false);
    hzp_lock_release(&split->lock);
}

/* Where none is set, the goal for gaps that follows from what they would be without training. */
static void follow(struct hzp_split *split)
{
    double alone = (double)hzp_seen_alone_p99(&split->seen);
    if (split->policy.itl_ns && !split->follows)
        return;
    split->policy.itl_ns = (uint64_t)(split->policy.itl_stretch * alone);
    split->follows = split->policy.itl_ns > 0;
}

/* ---- how long a step may last ---- */

/* Between training's slice and nothing, by how often goals were missed lately. */
static double trust(const struct hzp_split *split)
{
    double missed = hzp_seen_strain(&split->seen, &split->policy);
    /* What follows from gaps without training is missed without, too; nobody asked for a margin. */
    double most = split->follows ? 0.01 : may_miss;
    return HZP_MAX(0.0, HZP_MIN(1.0, 2 - 2 * missed / most));
}

/* What serving's part of the step will take, training in it; 0: in turns, 1: beside. */
static double serving_takes(const struct hzp_split *split, const struct hzp_split_step *step,
                            bool beside)
{
    return step->alone_ns *
           hzp_step_slowdown(&split->config.time->step, beside, step->alone_ns, step->alone_ns);
}

/* Whether longer steps may let requests pile up: not where gaps stay about as they were. */
static bool piles_up(const struct hzp_split *split)
{
    return !split->follows || split->policy.ttft_ns;
}

/* What is training's alone of a step that may last limit_ns from the last one's end. */
static double part_of(const struct hzp_split *split, const struct hzp_split_step *step,
                      double limit_ns)
{
    double left = limit_ns - split->host_ns, serve = serving_takes(split, step, step->beside);
    /* Longer steps mean that more requests run at a time, and those longer steps: where serving
     * needs most of a step by itself, training gives way before nothing is left. */
    double ease = HZP_MAX(0.0, HZP_MIN(1.0, 3 - 4 * serve / HZP_MAX(left, 1.0)));
    return (piles_up(split) ? ease : 1) * (left - serve);
}

/* Steps that are too long for what is asked for let requests pile up, and then wait. */
static void look_at_places(struct hzp_split *split, const struct hzp_split_step *step,
                           const struct hzp_waits *waits)
{
    /* In turns whatever training takes is lost to who waits; beside, little. */
    uint64_t patient_ns = split->policy.ttft_ns ? split->policy.ttft_ns / 4 : waits_long_ns;
    patient_ns = split->may_beside ? patient_ns : 0;
    bool waiting = false;
    for (int32_t i = 0; waits && i < waits->count; i++)
        waiting |=
            waits->of[i].rows_now == 0 && step->begin_ns > waits->of[i].since_ns + patient_ns;
    split->patience =
        waiting ? split->patience * impatience : HZP_MIN(split->patience + patience_back, 1.0);
    split->room = 1;
    if (waits && waits->places > 0) {
        double taken = (double)waits->running / waits->places;
        split->room =
            HZP_MAX(HZP_MIN((places_taken - taken) / (places_taken - places_free), 1.0), 0.0);
    }
}

/* What first tokens took lately without training, nine of ten; those who come when many do are told
 * of.  Where that is most of the goal, how many miss it says how much training there may be. */
static double usual_first(const struct hzp_split *split)
{
    double goal = (double)split->policy.ttft_ns;
    double alone = hzp_spread_quantile(&split->seen.first_alone, 0.9);
    return alone > 0 ? HZP_MIN(alone, 0.6 * goal) : goal / 4;
}

/* Prompts that wait, oldest first: each will need so many more steps of as many rows as this one
 * has, and all of them may be as long as this one. */
static double first_limit(const struct hzp_split *split, const struct hzp_split_step *step,
                          const struct hzp_waits *waits)
{
    double goal = (double)split->policy.ttft_ns, limit = INFINITY, rows = 0;
    double pace = HZP_MAX(split->prompt_rows, 1);
    for (int32_t i = 0; waits && i < waits->count; i++) {
        const struct hzp_wait *wait = &waits->of[i];
        rows += wait->rows_left;
        double steps = HZP_MAX(ceil(rows / pace), 1.0);
        double age =
            step->begin_ns > wait->since_ns ? (double)(step->begin_ns - wait->since_ns) : 0;
        double left = goal - age - split->under_way_ns;
        limit = HZP_MIN(limit, hzp_seen_within(&split->seen, true, left) / steps);
    }
    if (!waits || !waits->count) {
        /* The next one comes just now, and takes what they take without training. */
        double alone = usual_first(split);
        limit = hzp_seen_within(&split->seen, true, goal - alone) + step->alone_ns + split->host_ns;
    }
    return limit;
}

/* Now and then, where hardly anything misses: or it would never show that beside is in time by
 * now. */
static bool may_try_beside(const struct hzp_split *split, double takes, double limit)
{
    return split->since_beside >= OVERRUN_EVERY && takes < 2 * limit && split->patience == 1 &&
           hzp_seen_strain(&split->seen, &split->policy) <= may_miss / 3;
}

/* What the goals leave for training alone in this step; INFINITY: there are none. */
static double within_goals(struct hzp_split *split, struct hzp_split_step *step,
                           const struct hzp_waits *waits)
{
    double gaps = INFINITY, firsts = INFINITY, gap = INFINITY, first = INFINITY;
    if (split->policy.itl_ns && step->decode_rows > 0)
        gap = hzp_seen_within(&split->seen, true, (double)split->policy.itl_ns);
    if (split->policy.ttft_ns)
        first = first_limit(split, step, waits);
    double trusted = trust(split), limit = HZP_MIN(gap, first);
    double room = piles_up(split) ? split->room * split->patience : 1;
    /* Beside training serving takes longer: not where that is too long. */
    double takes = split->carry_ns + split->host_ns + serving_takes(split, step, true);
    if (!isinf(limit) && (takes > limit || trusted < 0.1 || split->patience < patience_beside))
        step->beside = step->beside && may_try_beside(split, takes, limit);
    /* What a slice does to the gap that this step ends, or the next one. */
    if (!step->beside && !split->config.early)
        gap -= split->carry_ns;
    if (!isinf(gap))
        gaps = part_of(split, step, gap);
    if (!isinf(first))
        firsts = part_of(split, step, first);
    double train_ns = HZP_MAX(HZP_MIN(gaps, firsts), 0.0);
    if (isinf(train_ns))
        return train_ns;
    step->limit = gaps < firsts ? HZP_LIMIT_GAPS : HZP_LIMIT_FIRSTS;
    if (HZP_MIN(trusted, room) < 0.5)
        step->limit = trusted < room ? HZP_LIMIT_MISSED : HZP_LIMIT_PLACES;
    return train_ns * trusted * room;
}

/* ---- how long training may run ---- */

/* A part of all time as a multiple of serving's. */
static double beside_serving(double part)
{
    return part < 1 ? part / (1 - part) : INFINITY;
}

static double share_of(const struct hzp_split *split)
{
    const struct hzp_policy *policy = &split->policy;
    double share = policy->itl_ns && !split->follows ? INFINITY : policy->train_share;
    return HZP_MIN(share, beside_serving(policy->train_max));
}

static double within_share(const struct hzp_split *split, const struct hzp_split_step *step)
{
    double share = share_of(split);
    if (isinf(share))
        return share;
    double most = beside_serving(split->policy.train_max);
    /* Where no step has only decoded so far, there is none that is usual. */
    double usual = split->usual_ns > 0 ? split->usual_ns : step->alone_ns;
    if (!step->beside || !isinf(most))
        return split->credit_ns - split->owes_ns + (step->beside ? most : share) * usual;
    usual = split->usual_beside_ns > 0 ? split->usual_beside_ns : usual;
    return share > 0 ? usual : 0;
}

/* Turns that are not training's, whatever else it may. */
static bool passed_over(struct hzp_split *split, const struct hzp_split_step *step)
{
    /* A step with prompts in it is long already and takes no training, unless prompts never
     * cease. With a goal for first tokens they have what they need without that. */
    bool prompts = step->rows > step->decode_rows && !split->policy.ttft_ns;
    if (prompts && split->passed_over < HZP_SPLIT_PASSED_OVER_MAX) {
        split->passed_over++;
        return true;
    }
    split->passed_over = 0;
    if (!split->policy.itl_ns && !split->policy.ttft_ns)
        return false;
    if (split->config.time->step.seen < HZP_STEP_TIMES_FEW)
        return true;
    split->since_look = (split->since_look + 1) % LOOK_EVERY;
    return split->since_look == 0;
}

/* How long serving's part of a step may take for the gap before its tokens to keep the ITL goal; 0:
 * the operator has set none. */
static double serve_max(const struct hzp_split *split)
{
    if (!split->policy.itl_ns || split->follows)
        return 0;
    double gap = hzp_seen_within(&split->seen, split->carry_ns > 0, (double)split->policy.itl_ns);
    return HZP_MAX(gap - split->host_ns - split->carry_ns, 1.0);
}

/* The idle device is training's; where first tokens have a goal, for no longer at a stretch than
 * leaves a prompt that arrives the time it takes. */
void hzp_split_begin(struct hzp_split *split, struct hzp_split_step *step, uint64_t now_ns)
{
    hzp_assert_engine_thread();
    uint64_t hold = split->hold_ns;
    take_policy(split);
    follow(split);
    split->hold_ns = 0;
    if (hold) {
        *step = (struct hzp_split_step){
            .begin_ns = now_ns, .train_ns = hold, .item_ns = hold, .hold = true};
        return;
    }
    double idle = (double)split->config.idle_ns;
    if (split->policy.ttft_ns) {
        double goal = (double)split->policy.ttft_ns;
        double alone = usual_first(split);
        double least = HZP_MIN(idle, goal / 16);
        idle = HZP_MAX(HZP_MIN(idle, hzp_seen_within(&split->seen, true, goal - alone)), least);
    }
    *step = (struct hzp_split_step){.begin_ns = now_ns,
                                    .train_ns = (uint64_t)idle,
                                    .item_ns = UINT64_MAX,
                                    .serve_max_ns = serve_max(split)};
}

/* One item that is too long for the goals, now and then, where hardly any gap misses: else training
 * would end at an item that is longer than they ever allow. */
static bool may_overrun(struct hzp_split *split, const struct hzp_split_step *step, double train_ns)
{
    int32_t every = split->follows ? FOLLOWS_EVERY : OVERRUN_EVERY;
    /* Not in a step with prompts, which is long already; but there may be no others. */
    if (step->rows > step->decode_rows)
        every = split->follows ? 2 * FOLLOWS_EVERY : INT32_MAX;
    /* What the next item takes is not known, 0, before training has had time for one. */
    if (split->since_overrun < every || (train_ns >= 1 && split->next_ns <= train_ns))
        return false;
    bool rare = hzp_seen_strain(&split->seen, &split->policy) <= may_miss / 3;
    if (split->follows) /* no promise to anybody: training must not come to a stand */
        return (rare || split->since_overrun >= DESPITE_EVERY) && step->limit != HZP_LIMIT_TURN &&
               within_share(split, step) > 0;
    return train_ns > 0 && rare &&
           (!split->policy.itl_ns || split->next_ns < 2 * (double)split->policy.itl_ns);
}

static void note_firsts(struct hzp_split_step *step, const struct hzp_waits *waits)
{
    for (int32_t i = 0; waits && i < waits->count; i++)
        if (waits->of[i].rows_now > 0 && waits->of[i].rows_now == waits->of[i].rows_left &&
            step->firsts < HZP_COUNT(step->first_ns))
            step->first_ns[step->firsts++] = waits->of[i].since_ns;
}

/* Beside serving, training has as long as that takes; hold_ns of it alone may follow. */
static void serve_beside(struct hzp_split *split, struct hzp_split_step *step, double hold_ns)
{
    double takes = serving_takes(split, step, true), share = within_share(split, step);
    /* One that ends a little later costs less than one that ends early. */
    double train_ns = passed_over(split, step) ? 0 : takes + split->next_ns / 2;
    if (train_ns <= 0) {
        step->limit = HZP_LIMIT_TURN;
        hold_ns = 0;
    }
    if (!isinf(share)) {
        train_ns = HZP_MIN(train_ns, share);
        hold_ns = HZP_MIN(hold_ns, share - train_ns);
    }
    step->train_ns = train_ns > 0 ? (uint64_t)train_ns : 0;
    /* One that is longer shortens the wait. */
    step->item_ns = train_ns > 0 ? (uint64_t)(train_ns + hold_ns) : 0;
    step->overrun = may_overrun(split, step, train_ns + hold_ns);
    if (step->overrun)
        step->item_ns = UINT64_MAX;
    /* A wait for next to nothing only keeps serving. */
    bool worth = hold_ns > split->next_ns && hold_ns > takes / 8;
    step->hold_ns = worth ? (uint64_t)hold_ns : 0;
}

static void shape_of(const struct hzp_batch *batch, struct hzp_step_shape *ret)
{
    *ret = (struct hzp_step_shape){.decode_rows = batch->decode_segs,
                                   .prompt_rows = batch->rows - batch->decode_segs};
    for (int32_t r = 0; r < batch->rows; r++)
        *(r < batch->decode_segs ? &ret->decode_reads : &ret->prompt_reads) += batch->pos[r] + 1;
}

void hzp_split_serve(struct hzp_split *split, struct hzp_split_step *step,
                     const struct hzp_batch *batch, const struct hzp_waits *waits, bool beside)
{
    hzp_assert_engine_thread();
    step->rows = batch->rows;
    step->decode_rows = batch->decode_segs;
    step->beside = split->may_beside = beside;
    step->limit = HZP_LIMIT_SHARE;
    shape_of(batch, &step->shape);
    step->alone_ns = hzp_step_alone_ns(&split->config.time->step, &step->shape);
    note_firsts(step, waits);
    if (step->rows > step->decode_rows)
        split->prompt_rows = step->rows - step->decode_rows;

    look_at_places(split, step, waits);
    double goals = within_goals(split, step, waits), share = within_share(split, step);
    bool hard = goals <= share;
    double train_ns = HZP_MIN(goals, share);
    if (!hard)
        step->limit = HZP_LIMIT_SHARE;
    if (step->beside && !isinf(goals))
        return serve_beside(split, step, HZP_MIN(train_ns, (double)split->config.idle_ns));
    if (isinf(train_ns) || (split->policy.itl_ns && !step->decode_rows))
        train_ns = HZP_MIN(train_ns, (double)split->config.idle_ns);
    if (passed_over(split, step)) {
        train_ns = 0;
        step->limit = HZP_LIMIT_TURN;
    }
    step->item_ns = isinf(goals) ? UINT64_MAX : (uint64_t)goals;
    step->overrun = may_overrun(split, step, train_ns);
    if (step->overrun || (split->floor_ns > 0 && split->floor_ns >= split->next_ns)) {
        train_ns = HZP_MAX(train_ns, HZP_MAX(split->floor_ns, 1.0));
        step->item_ns = UINT64_MAX;
    }
    step->train_ns = train_ns > 0 ? (uint64_t)train_ns : 0;
}

/* From the last step's end to this one's. */
static double predicted_gap(const struct hzp_split *split, const struct hzp_split_step *step)
{
    double serve = step->alone_ns * hzp_step_slowdown(&split->config.time->step, step->beside,
                                                      step->alone_ns, step->slice_ns);
    double slice = step->beside ? 0 : split->config.early ? step->ride_ns : step->slice_ns;
    return split->host_ns + step->carry_ns + serve + slice;
}

/* What the steps before this one, not ended yet, will still take: at most what they take in all. */
static double under_way(const struct hzp_split_step *step)
{
    return step->rows > 0 ? step->gap_ns : step->trains ? (double)step->train_ns : 0;
}

/* The wait behind the step, less what its slice takes beyond serving. */
static void hold_behind(struct hzp_split *split, const struct hzp_split_step *step)
{
    double serve = serving_takes(split, step, true), hold = (double)step->hold_ns;
    if (step->beside)
        hold -= HZP_MAX(step->slice_ns - serve, 0.0);
    split->hold_ns = hold > serve / 8 ? (uint64_t)hold : 0;
}

void hzp_split_taken(struct hzp_split *split, struct hzp_split_step *step, bool trains,
                     double slice_ns)
{
    hzp_assert_engine_thread();
    step->trains = trains;
    step->beside = step->beside && trains;
    step->slice_ns = trains ? slice_ns : 0;
    step->carry_ns = split->carry_ns;
    double share = share_of(split);
    if (step->beside)
        share = beside_serving(split->policy.train_max);
    if (step->rows > 0 && !isinf(share))
        step->owes_ns = HZP_MAX(step->slice_ns - share * split->usual_ns, 0.0);
    split->owes_ns += step->owes_ns;
    if (step->rows > 0)
        step->gap_ns = predicted_gap(split, step);
    if (step->hold)
        split->carry_ns += step->slice_ns;
    else
        split->carry_ns = split->config.early && !step->beside ? step->slice_ns - step->ride_ns : 0;
    hold_behind(split, step);
    split->under_way_ns += under_way(step);
}

/* ---- what a step really took ---- */

static void average(double *usual, double ns)
{
    *usual += (ns - *usual) / (*usual > 0 ? 16 : 1);
}

/* Training may use its share of what serving really took, but for what it was passed over.  An item
 * longer than what is left of it runs all the same, and the next steps pay for it; one that does
 * not fit behind others in a slice is saved for.  Nothing else is: a trainer that had nothing to do
 * must not hold a later step up. */
static void account(struct hzp_split *split, const struct hzp_split_step *step,
                    const struct hzp_exec_times *times, double next_ns)
{
    bool decodes = step->rows == step->decode_rows;
    double serve_ns = (double)times->ns[HZP_TENANT_SERVE],
           train_ns = (double)times->ns[HZP_TENANT_TRAIN];
    split->floor_ns += beside_serving(HZP_MIN(split->policy.train_min, 0.99)) * serve_ns - train_ns;
    split->floor_ns = HZP_MAX(HZP_MIN(split->floor_ns, HZP_MAX(split->next_ns, serve_ns)), 0.0);
    double share = step->beside ? beside_serving(split->policy.train_max) : share_of(split);
    if (isinf(share))
        split->credit_ns = 0;
    else
        split->credit_ns = HZP_MIN(split->credit_ns + share * serve_ns - train_ns, next_ns);
    if (!decodes)
        return;
    if (step->beside)
        average(&split->usual_beside_ns,
                (double)(times->end_ns[HZP_TENANT_SERVE] ? times->end_ns[HZP_TENANT_SERVE]
                                                         : times->ns[HZP_TENANT_SERVE]));
    else
        average(&split->usual_ns, serve_ns);
}

/* The gap that ended with the step's tokens had training in it. */
static bool trains_in_gap(const struct hzp_split *split, const struct hzp_split_step *step)
{
    return step->carry_ns + step->ride_ns > 0 ||
           (step->trains && (step->beside || !split->config.early));
}

/* How much longer training made the gap that ended with the step's tokens. */
static double train_in_gap(const struct hzp_split *split, const struct hzp_split_step *step,
                           const struct hzp_exec_times *times)
{
    double before = (double)split->held_ns + (double)split->last_train_ns;
    if (step->beside)
        return before;
    return before + (double)(split->config.early ? times->ride_ns : times->ns[HZP_TENANT_TRAIN]);
}

/* What the same gap would have been without training, and without what that does to caches. */
static double gap_alone(const struct hzp_split *split, const struct hzp_split_step *step,
                        const struct hzp_exec_times *times, double gap_ns)
{
    double slow =
        hzp_step_slowdown(&split->config.time->step, false, step->alone_ns, step->slice_ns);
    if (step->beside)
        return HZP_MIN(gap_ns, split->host_ns + step->alone_ns);
    if (!trains_in_gap(split, step))
        return gap_ns - HZP_MIN((double)split->held_ns, gap_ns);
    double serve = HZP_MIN((double)times->ns[HZP_TENANT_SERVE], gap_ns);
    return HZP_MAX(gap_ns - train_in_gap(split, step, times) - serve * (1 - 1 / slow), 0.0);
}

/* What the step was predicted to take, against what it took. */
static void learn(struct hzp_split *split, const struct hzp_split_step *step,
                  const struct hzp_exec_times *times, double gap_ns)
{
    double serve_ns = (double)times->ns[HZP_TENANT_SERVE],
           train_ns = (double)times->ns[HZP_TENANT_TRAIN];
    if (step->beside && times->end_ns[HZP_TENANT_SERVE]) {
        serve_ns = (double)times->end_ns[HZP_TENANT_SERVE];
        train_ns = (double)times->end_ns[HZP_TENANT_TRAIN];
    }
    double busy_ns = serve_ns + train_in_gap(split, step, times);
    hzp_step_learn(&split->config.time->step, &step->shape, step->beside,
                   step->trains ? train_ns : 0, serve_ns);
    if (gap_ns <= 0)
        return;
    average(&split->host_ns, HZP_MAX(HZP_MIN(gap_ns - busy_ns, 4 * split->host_ns + 1e6), 1.0));
    if ((!step->overrun || !step->trains) && split->config.time->step.seen > HZP_STEP_TIMES_FEW)
        hzp_seen_prediction(&split->seen, &split->policy, trains_in_gap(split, step), gap_ns,
                            step->gap_ns);
}

static void report(struct hzp_split *split, const struct hzp_split_step *step, double gap_ns)
{
    const struct hzp_seen *seen = &split->seen;
    struct hzp_split_report *r = &split->report;
    hzp_lock_take(&split->lock);
    r->limited[step->rows ? step->limit : HZP_LIMIT_IDLE]++;
    memcpy(r->second, seen->second, sizeof(r->second));
    if (step->rows > 0) {
        r->steps++;
        r->trained += step->trains;
        r->beside += step->beside;
        r->shape = step->shape;
        r->alone_ns = step->alone_ns;
        r->slowdown = hzp_step_slowdown(&split->config.time->step, split->may_beside,
                                        step->alone_ns, step->alone_ns);
        r->gap_ns = step->gap_ns;
        r->slice_ns = (double)step->train_ns;
        r->gap_was_ns = gap_ns;
        r->gap_p99_ns = hzp_seen_p99(seen, trains_in_gap(split, step), step->gap_ns);
        r->error = seen->error;
        r->missed_gaps = seen->missed_gaps;
        r->missed_gaps_alone = seen->missed_gaps_alone;
        r->missed_firsts = seen->missed_firsts;
        r->follows_ns = split->follows ? split->policy.itl_ns : 0;
        if (gap_ns > 0)
            hzp_window_add(&r->gap, (uint64_t)gap_ns, step->decode_rows);
        for (int32_t i = 0; i < step->firsts; i++)
            hzp_window_add(&r->first,
                           seen->first.ns[(seen->first.at - step->firsts + i + HZP_WINDOW_VALUES) %
                                          HZP_WINDOW_VALUES],
                           1);
    }
    hzp_lock_release(&split->lock);
}

void hzp_split_ended(struct hzp_split *split, const struct hzp_split_step *step,
                     const struct hzp_exec_times *times, uint64_t tokens_ns, double next_ns)
{
    hzp_assert_engine_thread();
    double gap_ns = 0;
    split->under_way_ns = HZP_MAX(split->under_way_ns - under_way(step), 0.0);
    if (next_ns > 0)
        split->next_ns = next_ns;
    split->owes_ns -= step->owes_ns;
    hzp_seen_step(&split->seen, step->begin_ns, tokens_ns, times->ns[HZP_TENANT_SERVE],
                  times->ns[HZP_TENANT_TRAIN]);
    if (step->hold) {
        split->held_ns += times->ns[HZP_TENANT_TRAIN];
        hzp_lock_take(&split->lock);
        split->report.held++;
        hzp_lock_release(&split->lock);
        return;
    }
    if (step->rows == 0) {
        split->credit_ns = split->floor_ns = 0;
    } else {
        if (split->last_served && step->decode_rows > 0)
            gap_ns = (double)(tokens_ns - split->last_tokens_ns);
        split->since_overrun = step->overrun && step->trains ? 0 : split->since_overrun + 1;
        split->since_beside = step->beside ? 0 : split->since_beside + 1;
        if (!step->trains && step->limit != HZP_LIMIT_TURN && step->limit != HZP_LIMIT_SHARE &&
            split->next_ns > (double)step->train_ns)
            hzp_seen_no_prediction(&split->seen, !split->follows);
        account(split, step, times, next_ns);
        learn(split, step, times, gap_ns);
        if (gap_ns > 0) {
            hzp_seen_gap(&split->seen, &split->policy, (uint64_t)gap_ns,
                         (uint64_t)train_in_gap(split, step, times), step->decode_rows);
            hzp_seen_alone(&split->seen, (uint64_t)gap_ns,
                           (uint64_t)gap_alone(split, step, times, gap_ns), step->decode_rows);
        }
        for (int32_t i = 0; i < step->firsts; i++)
            hzp_seen_first(&split->seen, &split->policy, step->first_ns[i], tokens_ns);
    }
    report(split, step, gap_ns);
    split->last_served = step->rows > 0;
    split->last_tokens_ns = tokens_ns;
    split->last_train_ns =
        split->config.early && !step->beside ? times->ns[HZP_TENANT_TRAIN] - times->ride_ns : 0;
    split->held_ns = 0;
}
