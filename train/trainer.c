/* SPDX-License-Identifier: Apache-2.0 */
#include "train/trainer_state.h"

#include "base/log.h"
#include "base/thread.h"
#include "nanobatch/model/update.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DRAWS_MAX = 65536,     /* most samples in one update */
    LOGITS_MIN = 32 << 20, /* elements of the logits chunk: 128 MB */
};

/* --- Creation and destruction
 * ----------------------------------------------------------------- */

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer);
static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome);
static bool busy(struct hzp_source *source);
static bool owes(struct hzp_source *source);
static uint64_t due_ns(struct hzp_source *source);

struct hzp_train_space_config hzp_trainer_space_config(const struct hzp_recipe *recipe,
                                                       const struct hzp_model_config *model,
                                                       uint64_t quantum_flops)
{
    /* Each chunk reads the head twice and its gradients once, and writes them; with few rows per
     * chunk that takes longer than the products.  A chunk of half as many rows as the head is wide
     * needs less memory than the head's gradients. */
    int32_t head_rows = HZP_MAX(LOGITS_MIN / HZP_MAX(model->vocab, 1), model->width / 2);
    return (struct hzp_train_space_config){
        .rows_max = recipe->micro_rows,
        .head_rows = HZP_MIN(HZP_MAX(head_rows, 16), recipe->micro_rows),
        .moment_type = recipe->moment_type,
        .quantum_flops = quantum_flops,
    };
}

static int open_collectives(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    struct hzp_collectives_config config = {.link = t->config.link,
                                            .shards = t->config.shards,
                                            .model = t->config.model,
                                            .space = t->space,
                                            .micro_rows = t->config.recipe.micro_rows};
    return t->config.link ? hzp_collectives_create(&config, &t->collectives, reterr) : HZP_OK;
}

static void init_draw(struct hzp_draw *d)
{
    d->room = DRAWS_MAX;
    d->sample = hzp_xcalloc(DRAWS_MAX, sizeof(*d->sample));
    d->bin = hzp_xcalloc(DRAWS_MAX, sizeof(*d->bin));
    d->bin_rows = hzp_xcalloc(DRAWS_MAX, sizeof(*d->bin_rows));
}

static void fini_draw(struct hzp_draw *d)
{
    free(d->sample);
    free(d->bin);
    free(d->bin_rows);
}

int hzp_trainer_create(const struct hzp_trainer_config *config, struct hzp_trainer **ret,
                       struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_recipe_check(&config->recipe, reterr));
    if (config->gate && config->shards.groups.z3 > 1)
        return hzp_fail(reterr, HZP_EUNSUP,
                        "a gate evaluates whole weights on rank 0: use --shard z3=1");
    HZP_ASSERT(!config->trials || (!config->link && config->recipe.publish_every == 1));
    struct hzp_trainer *t = hzp_xcalloc(1, sizeof(*t));
    t->config = *config;
    t->source = (struct hzp_source){.name = "train",
                                    .slices = true,
                                    .offer = offer,
                                    .deliver = deliver,
                                    .busy = busy,
                                    .owes = owes,
                                    .due_ns = due_ns};
    t->learned_through = -1;
    hzp_plan_init(&t->chain);
    t->track = hzp_track_open("training", HZP_TRACK_FEW, false);
    hzp_lock_init(&t->lock, HZP_LOCK_TRAINER);
    init_draw(&t->draws_of[0]);
    if (config->link)
        init_draw(&t->draws_of[1]);
    t->draw = &t->draws_of[0];
    t->other = &t->draws_of[1];
    struct hzp_train_space_config space =
        hzp_trainer_space_config(&config->recipe, config->model->config, config->quantum_flops);
    space.ride_rows = config->ride_rows;
    space.unprepared = config->prepare_behind;
    t->stage = config->prepare_behind ? HZP_TRAINER_PREPARE : HZP_TRAINER_IDLE;
    t->stats.preparing = config->prepare_behind;
    space.shards = config->shards;
    space.backup = config->gate || config->trials;
    t->stats.gate_before = t->stats.gate_after = NAN;
    int r;
    HZP_TRY_GOTO(hzp_train_space_create(config->model, &space, &t->space));
    HZP_TRY_GOTO(hzp_micro_create(config->model->dev, config->recipe.micro_rows, &t->micro));
    HZP_TRY_GOTO(open_collectives(t, reterr));
    HZP_TRY_GOTO(hzp_trainer_open_group(t, reterr));
    if (config->gate) {
        HZP_ASSERT(config->recipe.publish_every == 1);
        HZP_TRY_GOTO(hzp_trainer_gate_create(config->gate, &t->gate));
    }
    *ret = t;
    return HZP_OK;
out:
    hzp_trainer_destroy(t);
    return r;
}

void hzp_trainer_destroy(struct hzp_trainer *t)
{
    if (!t)
        return;
    hzp_collectives_destroy(t->collectives);
    free(t->batch.data);
    hzp_trainer_close_group(t);
    hzp_trainer_gate_destroy(t->gate);
    hzp_micro_destroy(t->micro);
    hzp_trainer_drop_rest(t);
    hzp_train_space_destroy(t->space);
    hzp_plan_fini(&t->chain);
    hzp_track_close(t->track);
    hzp_lock_fini(&t->lock);
    for (int i = 0; i < HZP_COUNT(t->draws_of); i++)
        fini_draw(&t->draws_of[i]);
    free(t->loaded_dir);
    free(t->gathered_unit);
    free(t);
}

struct hzp_source *hzp_trainer_source(struct hzp_trainer *t)
{
    return &t->source;
}

struct hzp_train_space *hzp_trainer_space(struct hzp_trainer *t)
{
    return t->space;
}

/* --- Calls from other threads
 * ----------------------------------------------------------------- */

bool hzp_trainer_idle(const struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    bool writes = t->stage >= HZP_TRAINER_UPDATE && t->stage != HZP_TRAINER_BROKEN;
    return !writes && !t->tail && t->stage != HZP_TRAINER_PREPARE && t->unpublished == 0;
}

void hzp_trainer_read_stats(struct hzp_trainer *t, struct hzp_trainer_stats *ret)
{
    hzp_lock_take(&t->lock);
    *ret = t->stats;
    hzp_lock_release(&t->lock);
    ret->paused = atomic_load(&t->paused);
}

bool hzp_trainer_awaits_ranks(const struct hzp_trainer *t)
{
    return t->collectives && t->stage != HZP_TRAINER_BROKEN &&
           !hzp_collectives_done(t->collectives);
}

/* --- Beginning an update
 * ---------------------------------------------------------------------- */

static bool worth_learning(const struct hzp_sample *sample, int32_t rows_max)
{
    if (sample->count < 2 || sample->count - 1 > rows_max)
        return false;
    for (int32_t i = 1; i < sample->count; i++)
        if (sample->learn[i])
            return true;
    return false;
}

/* Counts a sample that goes into a micro-batch, of whichever rank. */
static void count_sample(struct hzp_draw *d, const struct hzp_sample *sample)
{
    int32_t learned = 0;
    for (int32_t i = 1; i < sample->count; i++)
        if (sample->learn[i]) {
            learned++;
            d->weight_sum += sample->weight ? (double)sample->weight[i] : 1;
        }
    d->samples++;
    d->rows += sample->count - 1;
    d->learned_tokens += learned;
}

static void note_sequences(struct hzp_draw *d)
{
    for (int32_t i = 0; i < d->count; i++) {
        int64_t n = d->sample[i]->sequence_number;
        if (n <= 0)
            continue;
        if (!d->first_sequence || n < d->first_sequence)
            d->first_sequence = n;
        d->last_sequence = HZP_MAX(d->last_sequence, n);
    }
}

/* First fit in draw order: documents stay whole, and the packing depends on the draw only. */
static void pack(struct hzp_trainer *t, struct hzp_draw *d)
{
    int32_t rows_max = t->config.recipe.micro_rows, open = 0;
    int32_t doc_rows_max = HZP_MIN(rows_max, t->config.model->positions);
    d->bins = d->samples = 0;
    d->rows = d->learned_tokens = d->first_sequence = d->last_sequence = 0;
    d->weight_sum = 0;
    for (int32_t i = 0; i < d->count; i++) {
        int32_t rows = d->sample[i]->count - 1;
        d->bin[i] = -1;
        if (!worth_learning(d->sample[i], doc_rows_max)) {
            if (d->sample[i]->sequence_number > 0)
                hzp_sample_queue_fail(t->config.queue, d->sample[i]->sequence_number);
            continue;
        }
        int32_t b = open;
        while (b < d->bins && d->bin_rows[b] + rows > rows_max)
            b++;
        if (b == d->bins)
            d->bin_rows[d->bins++] = 0;
        d->bin_rows[b] += rows;
        d->bin[i] = b;
        count_sample(d, d->sample[i]);
        while (open < d->bins && d->bin_rows[open] == rows_max)
            open++; /* skip full micro-batches from now on */
    }
    note_sequences(d);
}

/* Fills the micro-batch with the samples of a bin.  Returns NULL if there is no such bin: this
 * rank has none in the last round. */
static struct hzp_micro *fill_micro(struct hzp_trainer *t, int32_t bin)
{
    struct hzp_draw *d = t->draw;
    hzp_micro_clear(t->micro);
    for (int32_t i = 0; i < d->count; i++) {
        const struct hzp_sample *s = d->sample[i];
        if (d->bin[i] != bin)
            continue;
        int r = hzp_micro_add_weighted(t->micro, s->token, s->learn, s->weight, s->count);
        HZP_ASSERT(r >= 0);
    }
    return bin < d->bins ? t->micro : NULL;
}

void hzp_trainer_build_micro(struct hzp_trainer *t)
{
    struct hzp_micro *micro = fill_micro(t, t->bin);
    HZP_ASSERT(micro); /* rank 0 has the first position in a round */
    /* Cutting into chunks costs time and only pays off when training rides in serving's products,
     * so the forward pass is not cut while no request runs. */
    hzp_micro_cut(micro, t->carried ? t->config.chunk_rows : 0);
    bool halved = hzp_trainer_halves(t, micro);
    if (halved)
        hzp_micro_halve(micro);
    t->rider = (struct hzp_rider){hzp_trainer_version(t), micro, t->space};
    hzp_plan_clear(&t->chain);
    t->chain_ns = hzp_now_ns();
    if (t->collectives)
        hzp_collectives_micro(t->collectives, &t->chain, hzp_trainer_version(t), micro, t->bin == 0,
                              t->bin + hzp_collectives_ranks(t->collectives) >= t->draw->bins);
    else
        hzp_micro_build(&t->chain, t->config.model, hzp_trainer_version(t), micro, t->space,
                        t->bin == 0);
    hzp_trainer_note_work(t, &(struct hzp_chain_work){
                                 .kind = HZP_CHAIN_MICRO, .first = t->bin == 0, .halved = halved});
    t->at = t->to = 0;
}

void hzp_trainer_begin_report(struct hzp_trainer *t)
{
    const struct hzp_draw *d = t->draw;
    t->now = (struct hzp_update_report){.samples = d->samples,
                                        .rows = d->rows,
                                        .learned_tokens = d->learned_tokens,
                                        .first_sequence = d->first_sequence,
                                        .last_sequence = d->last_sequence,
                                        .gate_before = NAN,
                                        .gate_after = NAN};
    t->loss_sum = 0;
    t->weight_sum = d->weight_sum;
    t->begin_ns = hzp_now_ns();
}

static void begin_accumulation(struct hzp_trainer *t)
{
    struct hzp_draw *d = t->draw;
    d->count =
        hzp_sample_queue_draw(t->config.queue, t->config.recipe.update_tokens, d->sample, d->room);
    pack(t, d);
    hzp_trainer_begin_report(t);
    if (!d->bins) {
        /* No sample of the draw has a learnable token (the log was written under other limits):
         * the draw counts as done. */
        t->learned_through = hzp_sample_queue_done(t->config.queue);
        hzp_trainer_note_unlearned(t); /* nothing may be published for long */
        t->draws++;
        return;
    }
    if (!t->draft)
        t->held = hzp_weights_acquire(t->config.model->weights);
    t->bin = 0;
    t->stage = HZP_TRAINER_ACCUMULATE;
    if (t->collectives)
        hzp_trainer_deal(t);
    hzp_trainer_build_micro(t);
}

bool hzp_trainer_draw_ahead(struct hzp_trainer *t)
{
    struct hzp_draw *d = t->other;
    bool ends = atomic_load(&t->finishing) || t->freeze || t->suspend;
    if (!t->collectives || t->gate || ends) /* a gate may refuse the draft that would be read */
        return false;
    d->count = hzp_sample_queue_draw_ahead(t->config.queue, t->config.recipe.update_tokens,
                                           d->sample, d->room);
    pack(t, d);
    if (d->count && !d->bins)
        hzp_sample_queue_undo_ahead(t->config.queue); /* begin_accumulation gives them up */
    return d->bins > 0;
}

/* --- The source
 * ------------------------------------------------------------------------------- */

/* Offers an empty slice, so that deliver() runs and can publish. */
static bool offer_turn(struct hzp_trainer *t, bool flush)
{
    t->flush = flush;
    return flush;
}

int hzp_trainer_turn_ranks(struct hzp_trainer *t)
{
    if (!t->collectives || hzp_collectives_turn(t->collectives, t->at) >= 0)
        return HZP_OK;
    const char *why = hzp_collectives_error(t->collectives);
    if (t->stage != HZP_TRAINER_BROKEN) /* once */
        hzp_log(HZP_LOG_ERROR, "train", "the exchange with other ranks failed: %s", why);
    hzp_lock_take(&t->lock);
    snprintf(t->stats.failure, sizeof(t->stats.failure), "%s", why);
    t->stats.broken = !t->rejoins;
    hzp_lock_release(&t->lock);
    t->stage = HZP_TRAINER_BROKEN;
    return HZP_EIO;
}

/* Items [0, limit) of the chain may be offered. */
static int32_t limit_of(const struct hzp_trainer *t)
{
    return t->collectives
               ? hzp_transfers_limit(hzp_collectives_transfers(t->collectives), t->chain.items)
               : t->chain.items;
}

/* Where the next slice ends, at `end` or before. */
static int32_t cut_of(const struct hzp_trainer *t, int32_t limit, int32_t end)
{
    if (t->collectives)
        limit = hzp_transfers_cut(hzp_collectives_transfers(t->collectives), t->to, limit);
    return HZP_MIN(end, limit);
}

/* Whether the end of the chain in progress publishes a version, or may.  With several ranks it is
 * the end of the tail that does. */
static bool ends_in_a_version(const struct hzp_trainer *t)
{
    bool published = !t->config.trials; /* not put on trial first */
    return (t->stage == HZP_TRAINER_UPDATE && !t->gate && !t->collectives && published) ||
           (t->stage == HZP_TRAINER_GATE && hzp_trainer_gate_decides(t) && published);
}

/* Whether the chain in progress has ended; an update's when its results are known.  What comes
 * after a chain that was begun by a border call, that call does. */
static bool chain_ended(const struct hzp_trainer *t)
{
    bool micro = t->stage == HZP_TRAINER_ACCUMULATE;
    bool update = t->stage >= HZP_TRAINER_UPDATE && t->stage <= HZP_TRAINER_UNDO &&
                  t->stage != HZP_TRAINER_TRIAL;
    bool done = micro || !t->collectives || (!t->tail && hzp_collectives_updated(t->collectives));
    return (micro || update) && t->at == t->chain.items && done;
}

/* Training is paused.  What other ranks take part in goes on to its end if learning is to be
 * suspended, and the preparation if something waits for it. */
static bool stands_still(const struct hzp_trainer *t)
{
    bool waited_for = t->suspend || t->freeze || hzp_trainer_parting(t);
    return atomic_load(&t->paused) && !(t->collectives && t->suspend) &&
           !(t->stage == HZP_TRAINER_PREPARE && waited_for) && t->stage != HZP_TRAINER_GATHER;
}

/* Whether the update that is in its tail may end. */
static bool tail_ended(const struct hzp_trainer *t)
{
    bool goes_on = t->stage != HZP_TRAINER_BROKEN && !stands_still(t);
    return t->tail && goes_on && hzp_collectives_whole(t->collectives);
}

/* The next step that is delivered may end the tail.  True: it does. */
static bool offer_tail(struct hzp_trainer *t, const struct hzp_step *step, struct hzp_offer *offer)
{
    bool ends = tail_ended(t) && !offer->keep_version;
    t->tail_step = ends ? step->number : 0;
    if (ends && hzp_trainer_over_bound(t, t->unpublished + 1))
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
    return offered || !hzp_trainer_over_bound(t, t->unpublished + 1);
}

/* Returns the end of the slice that begins at t->to. */
static int32_t slice_end(const struct hzp_trainer *t, const struct hzp_rider *rider,
                         const struct hzp_step *step, const struct hzp_room *room)
{
    return hzp_ride_cut(rider, step->version, room->op_times, &t->chain, t->to, room->train_ns,
                        room->item_ns, room->ride_rows);
}

/* Returns the age of the oldest unfinished sample; 0: training could not use more time. */
static uint64_t note_pace(struct hzp_trainer *t, uint64_t now_ns)
{
    bool works = t->stage != HZP_TRAINER_IDLE || hzp_sample_queue_ready(t->config.queue);
    works = works && t->stage != HZP_TRAINER_TRIAL; /* then it waits for requests */
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
    bool writes = t->stage == HZP_TRAINER_UPDATE || t->tail;
    return t->unpublished && !writes && hzp_trainer_over_bound(t, t->unpublished);
}

/* Whether the next update may begin, of a trainer that is idle. */
static bool may_begin(struct hzp_trainer *t)
{
    return !atomic_load(&t->finishing) && !t->suspend && hzp_trainer_may_tell(t) &&
           !hzp_trainer_parting(t) && hzp_sample_queue_ready(t->config.queue);
}

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    struct hzp_trainer *t = HZP_CONTAINER_OF(source, struct hzp_trainer, source);
    bool flush = false, keep = offer->keep_version;
    offer->learn_age_ns = note_pace(t, step->begin_ns);
    t->flush = false;
    t->tail_step = 0;
    t->carried = room->ride_rows > 0;
    t->op_times = room->op_times;
    if (t->stage == HZP_TRAINER_BROKEN || hzp_trainer_turn_ranks(t) < 0)
        return false;
    if (t->stage == HZP_TRAINER_TRIAL && hzp_trainer_trial_turn(t, step, offer))
        return t->promotes;
    if (bound_lowered(t)) {
        offer->settle = HZP_SETTLE_ALL; /* the next step reads the version published here */
        return offer_turn(t, true);
    }
    bool turn = offer_tail(t, step, offer); /* deliver() ends it, also without a slice */
    if (t->gathering)
        return turn; /* the other ranks take part in nothing else meanwhile */
    bool still = stands_still(t) && t->stage != HZP_TRAINER_UNDO;
    if (still || offer->slices || !room->train_ns)
        return turn;
    if (t->stage == HZP_TRAINER_PREPARE && t->at == t->chain.items && !hzp_trainer_prepare_next(t))
        return turn;
    if (t->tail) {
        const struct hzp_slice *audit =
            hzp_collectives_offer_audit(t->collectives, step, room, offer);
        if (audit)
            return audit->to > audit->from || turn;
        if (t->stage == HZP_TRAINER_UPDATE)
            return turn;
    }
    if (t->stage == HZP_TRAINER_IDLE) {
        bool begin = may_begin(t);
        if (t->unpublished && (!begin || t->freeze))
            return offer_turn(t, !keep) || turn;
        if (!begin)
            return turn;
        begin_accumulation(t);
        if (t->stage == HZP_TRAINER_IDLE)
            return true; /* an empty draw: try again in the next step */
    }
    if (t->stage == HZP_TRAINER_WAIT && !hzp_trainer_begin_update(t, &flush))
        return offer_turn(t, flush && !keep) || turn;
    if (hzp_trainer_turn_ranks(t) < 0) /* posts what a chain that has just been built begins with */
        return turn;
    int32_t limit = limit_of(t);
    if (chain_ended(t)) /* other ranks were waited for: deliver() goes on */
        return !keep || !ends_in_a_version(t) || turn;
    if (t->to == limit)
        return turn; /* all items that may be offered have been */
    struct hzp_slice *slice = hzp_offer_add(
        offer, &(struct hzp_slice){.chain = &t->chain,
                                   .from = t->to,
                                   .rider = t->stage == HZP_TRAINER_ACCUMULATE ? &t->rider : NULL});
    slice->to = cut_of(t, limit, slice_end(t, slice->rider, step, room));
    if (keep && ends_in_a_version(t))
        slice->to = HZP_MIN(slice->to, t->chain.items - 1); /* the last item ends the update */
    t->to = slice->to;
    hzp_trainer_tell_work(t, slice);
    if (slice->to == slice->from)
        return turn; /* the next item would take too long; the split now knows its price */
    /* This slice ends the update, which is published when the slice has ended.  A step formed
     * before that would exceed the staleness bound. */
    if (ends_in_a_version(t) && t->to == t->chain.items &&
        hzp_trainer_over_bound(t, t->unpublished + 1))
        offer->settle = HZP_SETTLE_ALL;
    return true;
}

static void end_micro(struct hzp_trainer *t, uint64_t now_ns)
{
    int32_t each = t->collectives ? hzp_collectives_ranks(t->collectives) : 1;
    int32_t end = HZP_MIN(t->bin + each, t->draw->bins);
    double loss = 0;
    uint64_t rows = 0;
    hzp_track_add(t->track, "micro-batch", t->chain_ns, hzp_now_ns(), (uint64_t)t->bin);
    for (int32_t i = 0; i < t->micro->learned; i++)
        loss += (double)t->micro->loss.value[i];
    if (t->collectives)
        hzp_collectives_note_loss(t->collectives, loss);
    else
        t->loss_sum += loss;
    for (int32_t bin = t->bin; bin < end; bin++)
        rows += (uint64_t)t->draw->bin_rows[bin];
    hzp_pace_done(&t->pace, now_ns, (int32_t)HZP_MIN(rows, INT32_MAX));
    hzp_lock_take(&t->lock);
    t->stats.rows += rows;
    hzp_lock_release(&t->lock);
    t->bin = end;
    if (t->bin < t->draw->bins)
        hzp_trainer_build_micro(t);
    else
        t->stage = HZP_TRAINER_WAIT;
}

/* A chain has ended. */
static void end_chain(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns)
{
    if (t->stage == HZP_TRAINER_ACCUMULATE)
        end_micro(t, now_ns);
    else if (t->stage == HZP_TRAINER_UPDATE && t->collectives)
        hzp_trainer_begin_tail(t, step);
    else if (t->stage == HZP_TRAINER_UPDATE)
        hzp_trainer_end_update(t, step);
    else if (t->stage == HZP_TRAINER_GATE)
        hzp_trainer_end_gate(t, step);
    else
        hzp_trainer_end_undo(t, step);
}

static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    hzp_assert_engine_thread();
    struct hzp_trainer *t = HZP_CONTAINER_OF(source, struct hzp_trainer, source);
    const struct hzp_slice *slice = hzp_offer_slice(offer, &t->chain);
    if (outcome->status < 0) {
        t->stage = HZP_TRAINER_BROKEN;
        return;
    }
    if (t->flush)
        hzp_trainer_publish_early(t, step);
    bool promotes = t->promotes && step->number >= t->promotes && !offer->keep_version;
    if (promotes && t->stage == HZP_TRAINER_TRIAL)
        hzp_trainer_trial_promote(t, step);
    if (slice && slice->to > slice->from) {
        t->at = slice->to;
        t->now.device_ns += outcome->ns[HZP_TENANT_TRAIN];
    }
    if (t->collectives)
        hzp_collectives_deliver_audit(t->collectives, offer);
    if (hzp_trainer_turn_ranks(t) >= 0 && chain_ended(t))
        end_chain(t, step, outcome->end_ns);
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
    if (t->stage == HZP_TRAINER_BROKEN)
        return false;
    if (t->stage == HZP_TRAINER_TRIAL || t->stage == HZP_TRAINER_UNDO || t->holds_end)
        return true;
    if (atomic_load(&t->paused))
        return false;
    return (t->stage != HZP_TRAINER_IDLE && t->stage != HZP_TRAINER_PREPARE) || t->unpublished;
}

static uint64_t due_ns(struct hzp_source *source)
{
    struct hzp_trainer *t = HZP_CONTAINER_OF(source, struct hzp_trainer, source);
    bool waits = t->stage == HZP_TRAINER_TRIAL && !atomic_load(&t->paused);
    return waits ? hzp_trials_due_ns(t->config.trials) : UINT64_MAX;
}
