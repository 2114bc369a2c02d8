/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/conductor.c - what the trainer does in each of its states: the table of states
 * and events, and the loop's source, which raises the events.
 *
 *     turn     a step has time for training: what begins, or which chain goes on
 *     look     every step that is formed, also one without time for training
 *     ended    the chain of the state has ended, and its results are known
 *
 * A tail (trainer_update.c) runs beside these states; its end is an event of its own. */
#include "base/log.h"
#include "train/conductor/trainer_state.h"

/* --- The table -------------------------------------------------------------------------------- */

/* What a turn has come to. */
enum turned {
    OFFER_CHAIN, /* items of the learner's chain may be offered */
    OFFER_NONE,  /* nothing may begin in this step */
    FLUSH,       /* the step has no slice, and deliver() publishes what is finished */
    AGAIN        /* something was done without a chain: the next step asks again */
};

/* What a pause does to a state. */
enum when_paused { STOPS, GOES_ON_IF_AWAITED, GOES_ON };

/* Whether a graceful stop waits for a state. */
enum busy { RESTS, BUSY_UNLESS_PAUSED, BUSY };

struct state {
    const char *name;
    enum when_paused paused;
    enum busy busy;
    bool listens; /* the other ranks wait for work, or soon will */
    bool writes;  /* moments, residuals and weights are not those of one version */
    enum turned (*turn)(struct hzp_trainer *t); /* NULL: there is only the chain */
    /* True: the step has no slice; t->promotes says whether it publishes. */
    bool (*look)(struct hzp_trainer *t, const struct hzp_step *step, struct hzp_offer *offer);
    /* NULL: who built the chain looks for its end at a border. */
    void (*ended)(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns);
};

static enum turned turn_idle(struct hzp_trainer *t);
static enum turned turn_prepare(struct hzp_trainer *t);
static enum turned turn_wait(struct hzp_trainer *t);
static enum turned turn_update(struct hzp_trainer *t);
static enum turned turn_merge(struct hzp_trainer *t);
static void ended_micro(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns);
static void ended_update(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns);

static const struct state states[HZP_TRAINER_STAGES] = {
    [HZP_TRAINER_IDLE] = {.name = "idle", .listens = true, .turn = turn_idle},
    [HZP_TRAINER_PREPARE] = {.name = "prepare",
                             .paused = GOES_ON_IF_AWAITED,
                             .writes = true,
                             .turn = turn_prepare},
    [HZP_TRAINER_GATHER] = {.name = "gather", .paused = GOES_ON, .busy = BUSY_UNLESS_PAUSED},
    [HZP_TRAINER_ACCUMULATE] = {.name = "accumulate",
                                .busy = BUSY_UNLESS_PAUSED,
                                .ended = ended_micro},
    [HZP_TRAINER_WAIT] = {.name = "wait",
                          .busy = BUSY_UNLESS_PAUSED,
                          .listens = true,
                          .turn = turn_wait},
    [HZP_TRAINER_UPDATE] = {.name = "update",
                            .busy = BUSY_UNLESS_PAUSED,
                            .writes = true,
                            .turn = turn_update,
                            .ended = ended_update},
    [HZP_TRAINER_MERGE] = {.name = "merge",
                           .paused = GOES_ON,
                           .busy = BUSY,
                           .writes = true,
                           .turn = turn_merge,
                           .ended = hzp_trainer_end_merge},
    [HZP_TRAINER_GATE] = {.name = "gate",
                          .busy = BUSY_UNLESS_PAUSED,
                          .writes = true,
                          .ended = hzp_trainer_end_gate},
    [HZP_TRAINER_COMPARE] = {.name = "compare",
                             .paused = GOES_ON,
                             .writes = true, /* its memory is not another's */
                             .ended = hzp_trainer_end_compare},
    [HZP_TRAINER_TRIAL] = {.name = "trial",
                           .busy = BUSY,
                           .writes = true,
                           .look = hzp_trainer_trial_turn},
    [HZP_TRAINER_UNDO] = {.name = "undo",
                          .paused = GOES_ON,
                          .busy = BUSY,
                          .writes = true,
                          .ended = hzp_trainer_end_undo},
    [HZP_TRAINER_RESTORE] = {.name = "restore",
                             .paused = GOES_ON,
                             .busy = BUSY_UNLESS_PAUSED,
                             .writes = true},
    [HZP_TRAINER_BROKEN] = {.name = "broken"},
};

bool hzp_trainer_idle(const struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    return !states[t->stage].writes && !t->learner->tail && !t->learner->unpublished;
}

bool hzp_trainer_listens(const struct hzp_trainer *t)
{
    return !t->learner->tail && states[t->stage].listens;
}

/* A group of lessons has begun in the draft that is not to be ended. */
static bool withdraws(const struct hzp_trainer *t)
{
    return hzp_trainer_by_lesson(t) && t->learner->unpublished &&
           (t->suspend || atomic_load(&t->finishing));
}

/* Training is paused, and the state does not go on.  What other ranks take part in goes on to its
 * end if learning is to be suspended. */
static bool stands_still(const struct hzp_trainer *t)
{
    enum when_paused paused = states[t->stage].paused;
    bool awaited = t->suspend || t->freeze || hzp_trainer_parting(t);
    bool goes_on = paused == GOES_ON || (paused == GOES_ON_IF_AWAITED && awaited) ||
                   (t->learner->collectives && t->suspend) || withdraws(t);
    return atomic_load(&t->paused) && !goes_on;
}

/* --- Turns ------------------------------------------------------------------------------------ */

/* Whether the next update may begin. */
static bool may_begin(struct hzp_trainer *t)
{
    return !atomic_load(&t->finishing) && !t->suspend && hzp_trainer_may_tell(t) &&
           !hzp_trainer_parting(t) && hzp_sample_queue_ready(t->config.queue);
}

static enum turned turn_idle(struct hzp_trainer *t)
{
    bool begin = may_begin(t), by_lesson = hzp_trainer_by_lesson(t);
    if (by_lesson && hzp_sample_queue_group(t->config.queue).ended)
        return FLUSH;
    if (withdraws(t)) {
        hzp_trainer_withdraw(t);
        return OFFER_CHAIN;
    }
    if (t->learner->unpublished && !by_lesson && (!begin || t->freeze))
        return FLUSH;
    if (hzp_trainer_compare_begin(t))
        return OFFER_CHAIN;
    if (!begin)
        return hzp_trainer_merge_alone(t) ? OFFER_CHAIN : OFFER_NONE;
    return hzp_trainer_begin_draw(t) ? OFFER_CHAIN : AGAIN;
}

static enum turned turn_prepare(struct hzp_trainer *t)
{
    const struct hzp_learner *l = t->learner;
    if (l->at == l->chain.items && !hzp_trainer_prepare_next(t))
        return OFFER_NONE;
    return t->stage == HZP_TRAINER_IDLE ? turn_idle(t) : OFFER_CHAIN;
}

static enum turned turn_wait(struct hzp_trainer *t)
{
    bool flush = false;
    if (hzp_trainer_begin_update(t, &flush))
        return OFFER_CHAIN;
    return flush ? FLUSH : OFFER_NONE;
}

static enum turned turn_update(struct hzp_trainer *t)
{
    return t->learner->tail ? OFFER_NONE : OFFER_CHAIN;
}

static enum turned turn_merge(struct hzp_trainer *t)
{
    return hzp_trainer_merge_turn(t) ? OFFER_CHAIN : OFFER_NONE;
}

/* --- Ends ------------------------------------------------------------------------------------- */

static void ended_micro(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns)
{
    struct hzp_learner *l = t->learner;
    int32_t each = l->collectives ? hzp_collectives_ranks(l->collectives) : 1;
    uint64_t rows = 0;
    int32_t end = hzp_learner_ends_micro(l) ? HZP_MIN(l->bin + each, t->draw->bins) : 0;
    for (int32_t bin = l->bin; bin < end; bin++)
        rows += (uint64_t)t->draw->bin_rows[bin];
    hzp_pace_done(&t->pace, now_ns, (int32_t)HZP_MIN(rows, INT32_MAX));
    hzp_lock_take(&t->lock);
    t->stats.rows += rows;
    hzp_lock_release(&t->lock);
    if (!hzp_learner_next(l, step->number))
        t->stage = HZP_TRAINER_WAIT;
}

static void ended_update(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns)
{
    if (hzp_learner_next(t->learner, step->number))
        hzp_trainer_begin_tail(t);
    else
        hzp_trainer_end_update(t, step);
}

/* --- The source: offering --------------------------------------------------------------------- */

int hzp_trainer_turn_ranks(struct hzp_trainer *t)
{
    if (hzp_learner_turn(t->learner) >= 0)
        return HZP_OK;
    const char *why = hzp_collectives_error(t->learner->collectives);
    if (t->stage != HZP_TRAINER_BROKEN) /* once */
        hzp_log(HZP_LOG_ERROR, "train", "the exchange with other ranks failed: %s", why);
    hzp_lock_take(&t->lock);
    snprintf(t->stats.failure, sizeof(t->stats.failure), "%s", why);
    t->stats.broken = !t->rejoins;
    hzp_lock_release(&t->lock);
    if (t->stage == HZP_TRAINER_TRIAL)
        hzp_trainer_trial_break_off(t);
    t->stage = HZP_TRAINER_BROKEN;
    return HZP_EIO;
}

/* Whether the end of the chain in progress publishes a version, or may.  With several ranks it is
 * the end of the tail that does. */
static bool ends_in_a_version(const struct hzp_trainer *t)
{
    bool update = (t->stage == HZP_TRAINER_UPDATE && !t->learner->collectives) ||
                  t->stage == HZP_TRAINER_MERGE;
    return (update && !hzp_trainer_checks(t)) || hzp_trainer_decides(t);
}

/* Whether the update that is in its tail may end. */
static bool tail_ended(const struct hzp_trainer *t)
{
    return t->stage != HZP_TRAINER_BROKEN && !stands_still(t) && hzp_learner_whole(t->learner);
}

/* The next step that is delivered may end the tail.  True: it does. */
static bool offer_tail(struct hzp_trainer *t, const struct hzp_step *step, struct hzp_offer *offer)
{
    bool ends = tail_ended(t) && !offer->keep_version;
    t->tail_step = ends ? step->number : 0;
    if (ends && hzp_trainer_over_bound(t, t->learner->unpublished + 1))
        offer->settle = HZP_SETTLE_ALL; /* the next step reads the version published here */
    return ends;
}

/* Whether the tail ends with this step.  It publishes: if that exceeds the staleness bound of a
 * step that was formed since, it waits for one with which it was offered. */
static bool tail_ends(struct hzp_trainer *t, const struct hzp_step *step,
                      const struct hzp_offer *offer)
{
    if (!tail_ended(t) || offer->keep_version)
        return false;
    bool offered = t->tail_step && step->number >= t->tail_step;
    return offered || !hzp_trainer_over_bound(t, t->learner->unpublished + 1);
}

/* Returns the age of the oldest unfinished sample; 0: training could not use more time. */
static uint64_t note_pace(struct hzp_trainer *t, uint64_t now_ns)
{
    bool works = t->stage != HZP_TRAINER_IDLE || hzp_sample_queue_ready(t->config.queue);
    /* A trial waits for requests. */
    works = works && t->stage != HZP_TRAINER_TRIAL && t->stage != HZP_TRAINER_COMPARE;
    uint64_t age = hzp_sample_queue_age(t->config.queue, now_ns);
    hzp_pace_note(&t->pace, now_ns, works);
    hzp_lock_take(&t->lock);
    t->stats.rows_per_second = hzp_pace_rate(&t->pace, now_ns);
    t->stats.stalled_ns = hzp_pace_stalled(&t->pace, now_ns);
    t->stats.oldest_ns = age;
    hzp_lock_release(&t->lock);
    bool stopped = t->stage == HZP_TRAINER_BROKEN || atomic_load(&t->paused);
    return works && !stopped ? age : 0;
}

/* True: max_staleness was lowered below what the finished updates leave the server behind, and
 * they can be published now.  An update in progress writes into their draft; its end publishes. */
static bool bound_lowered(struct hzp_trainer *t)
{
    const struct hzp_learner *l = t->learner;
    bool writes = t->stage == HZP_TRAINER_UPDATE || l->tail;
    return l->unpublished && !writes && !hzp_trainer_by_lesson(t) &&
           hzp_trainer_over_bound(t, l->unpublished);
}

/* Offers a slice of the learner's chain.  True: it has items, or the chain has ended because other
 * ranks are ready, and deliver() goes on. */
static bool offer_chain(struct hzp_trainer *t, const struct hzp_step *step,
                        const struct hzp_room *room, struct hzp_offer *offer)
{
    struct hzp_learner *l = t->learner;
    bool publishes = ends_in_a_version(t), holds = publishes && offer->keep_version;
    int32_t limit = hzp_learner_limit(l), items = l->chain.items;
    if (states[t->stage].ended && hzp_learner_ended(l))
        return !holds;
    if (l->to == limit)
        return false; /* all items that may be offered have been */
    const struct hzp_slice *slice =
        hzp_learner_offer(l, step, room, offer, holds ? HZP_MIN(limit, items - 1) : limit);
    if (slice->to == slice->from)
        return false; /* the next item would take too long; the split now knows its price */
    /* This slice ends the update, which is published when the slice has ended.  A step formed
     * before that would exceed the staleness bound. */
    if (publishes && l->to == items && hzp_trainer_over_bound(t, l->unpublished + 1))
        offer->settle = HZP_SETTLE_ALL;
    return true;
}

/* The step has time for training. */
static bool offer_work(struct hzp_trainer *t, const struct hzp_step *step,
                       const struct hzp_room *room, struct hzp_offer *offer)
{
    struct hzp_learner *l = t->learner;
    const struct hzp_slice *audit =
        l->tail ? hzp_collectives_offer_audit(l->collectives, step, room, offer) : NULL;
    if (audit)
        return audit->to > audit->from;
    switch (states[t->stage].turn ? states[t->stage].turn(t) : OFFER_CHAIN) {
    case OFFER_CHAIN: /* first posts what a chain that has just been built begins with */
        return hzp_trainer_turn_ranks(t) >= 0 && offer_chain(t, step, room, offer);
    case OFFER_NONE:
        return false;
    case FLUSH:
        t->flush = !offer->keep_version;
        return t->flush;
    case AGAIN:
        return true;
    }
    return false;
}

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    struct hzp_trainer *t = HZP_CONTAINER_OF(source, struct hzp_trainer, source);
    offer->learn_age_ns = note_pace(t, step->begin_ns);
    t->flush = false;
    t->tail_step = 0;
    hzp_learner_note_room(t->learner, room);
    if (t->stage == HZP_TRAINER_BROKEN || hzp_trainer_turn_ranks(t) < 0)
        return false;
    if (states[t->stage].look && states[t->stage].look(t, step, offer))
        return t->promotes;
    if (bound_lowered(t)) {
        offer->settle = HZP_SETTLE_ALL; /* the next step reads the version published here */
        t->flush = true;
        return true;
    }
    bool turn = offer_tail(t, step, offer); /* deliver() ends it, also without a slice */
    /* While a unit is gathered the other ranks take part in nothing else. */
    bool time = !t->gathering && !stands_still(t) && !offer->slices && room->train_ns;
    return (time && offer_work(t, step, room, offer)) || turn;
}

/* --- The source: delivering ------------------------------------------------------------------- */

static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    hzp_assert_engine_thread();
    struct hzp_trainer *t = HZP_CONTAINER_OF(source, struct hzp_trainer, source);
    if (outcome->status < 0) {
        t->stage = HZP_TRAINER_BROKEN;
        return;
    }
    if (t->flush && hzp_trainer_by_lesson(t)) {
        hzp_trainer_judge(t, step);
    } else if (t->flush) {
        hzp_trainer_publish(t, step);
        if (t->stage != HZP_TRAINER_IDLE) /* micro-batches go on with the same weights */
            hzp_learner_hold(t->learner);
    }
    bool promotes = t->promotes && step->number >= t->promotes && !offer->keep_version;
    if (promotes && t->stage == HZP_TRAINER_TRIAL)
        hzp_trainer_trial_promote(t, step);
    if (hzp_learner_deliver(t->learner, offer))
        t->now.device_ns += outcome->ns[HZP_TENANT_TRAIN];
    if (hzp_trainer_turn_ranks(t) >= 0 && states[t->stage].ended && hzp_learner_ended(t->learner))
        states[t->stage].ended(t, step, outcome->end_ns);
    if (tail_ends(t, step, offer))
        hzp_trainer_end_tail(t, step);
    t->flush = false;
}

/* Also in a hurry the other ranks have parts of the last checkpoint, which come in steps. */
static bool owes(struct hzp_source *source)
{
    struct hzp_trainer *t = HZP_CONTAINER_OF(source, struct hzp_trainer, source);
    return t->stage != HZP_TRAINER_BROKEN && t->holds_end;
}

static bool busy(struct hzp_source *source)
{
    struct hzp_trainer *t = HZP_CONTAINER_OF(source, struct hzp_trainer, source);
    enum busy is = states[t->stage].busy;
    if (t->stage == HZP_TRAINER_BROKEN)
        return false;
    if (is == BUSY || t->holds_end)
        return true;
    if (withdraws(t))
        return true;
    return !atomic_load(&t->paused) && (is == BUSY_UNLESS_PAUSED || t->learner->unpublished);
}

static uint64_t due_ns(struct hzp_source *source)
{
    struct hzp_trainer *t = HZP_CONTAINER_OF(source, struct hzp_trainer, source);
    bool waits = t->stage == HZP_TRAINER_TRIAL && !atomic_load(&t->paused);
    return waits ? hzp_trials_due_ns(t->config.trials) : UINT64_MAX;
}

void hzp_conductor_init(struct hzp_trainer *t)
{
    t->source = (struct hzp_source){.name = "train",
                                    .slices = true,
                                    .offer = offer,
                                    .deliver = deliver,
                                    .busy = busy,
                                    .owes = owes,
                                    .due_ns = due_ns};
    t->stage = t->config.prepare_behind ? HZP_TRAINER_PREPARE : HZP_TRAINER_IDLE;
}
