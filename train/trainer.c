/* SPDX-License-Identifier: Apache-2.0 */
#include "train/trainer_state.h"

#include "base/log.h"
#include "base/thread.h"
#include "nanobatch/build/update.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DRAWS_MAX = 65536,     /* most samples in one update */
    FAILURES_MAX = 2,      /* attempts at the same samples */
    LOGITS_MIN = 32 << 20, /* elements of the logits chunk: 128 MB and their gradients */
};

/* --- Creation and destruction ----------------------------------------------------------------- */

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer);
static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome);
static bool busy(struct hzp_source *source);

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

int hzp_trainer_create(const struct hzp_trainer_config *config, struct hzp_trainer **ret,
                       struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_recipe_check(&config->recipe, reterr));
    struct hzp_trainer *t = hzp_xcalloc(1, sizeof(*t));
    t->config = *config;
    t->source = (struct hzp_source){
        .name = "train", .slices = true, .offer = offer, .deliver = deliver, .busy = busy};
    t->learned_through = -1;
    hzp_plan_init(&t->chain);
    t->track = hzp_track_open("training", HZP_TRACK_FEW, false);
    hzp_lock_init(&t->lock, HZP_LOCK_TRAINER);
    hzp_wake_init(&t->gathered);
    t->draw.room = DRAWS_MAX;
    t->draw.sample = hzp_xcalloc(DRAWS_MAX, sizeof(*t->draw.sample));
    t->draw.bin = hzp_xcalloc(DRAWS_MAX, sizeof(*t->draw.bin));
    t->draw.bin_rows = hzp_xcalloc(DRAWS_MAX, sizeof(*t->draw.bin_rows));
    struct hzp_train_space_config space =
        hzp_trainer_space_config(&config->recipe, config->model->config, config->quantum_flops);
    space.ride_rows = config->ride_rows;
    space.unprepared = config->prepare_behind;
    t->stage = config->prepare_behind ? HZP_TRAINER_PREPARE : HZP_TRAINER_IDLE;
    t->stats.preparing = config->prepare_behind;
    space.shards = config->shards;
    space.backup = config->gate != NULL;
    t->stats.gate_before = t->stats.gate_after = NAN;
    int r;
    HZP_TRY_GOTO(hzp_train_space_create(config->model, &space, &t->space));
    HZP_TRY_GOTO(hzp_micro_create(config->model->dev, config->recipe.micro_rows, &t->micro));
    HZP_TRY_GOTO(open_collectives(t, reterr));
    if (config->gate) {
        HZP_ASSERT(!config->link && config->recipe.publish_every == 1);
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
    hzp_trainer_gate_destroy(t->gate);
    hzp_micro_destroy(t->micro);
    hzp_trainer_drop_rest(t);
    hzp_train_space_destroy(t->space);
    hzp_plan_fini(&t->chain);
    hzp_track_close(t->track);
    hzp_lock_fini(&t->lock);
    hzp_wake_fini(&t->gathered);
    free(t->draw.sample);
    free(t->draw.bin);
    free(t->draw.bin_rows);
    free(t->loaded_dir);
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

/* --- Calls from other threads ----------------------------------------------------------------- */

bool hzp_trainer_idle(const struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    bool writes = t->stage >= HZP_TRAINER_UPDATE && t->stage != HZP_TRAINER_BROKEN;
    return !writes && t->stage != HZP_TRAINER_PREPARE && t->unpublished == 0;
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

static void set_waiting(struct hzp_trainer *t, bool swap, bool slot)
{
    hzp_lock_take(&t->lock);
    t->stats.waiting_for_swap = swap;
    t->stats.waiting_for_slot = slot;
    hzp_lock_release(&t->lock);
}

/* --- Beginning an update ---------------------------------------------------------------------- */

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
static void count_sample(struct hzp_trainer *t, const struct hzp_sample *sample)
{
    int32_t learned = 0;
    for (int32_t i = 1; i < sample->count; i++)
        if (sample->learn[i]) {
            learned++;
            t->weight_sum += sample->weight ? (double)sample->weight[i] : 1;
        }
    t->now.samples++;
    t->now.rows += sample->count - 1;
    t->now.learned_tokens += learned;
}

/* First fit in draw order: documents stay whole, and the packing depends on the draw only. */
static void pack(struct hzp_trainer *t)
{
    struct hzp_draw *d = &t->draw;
    int32_t rows_max = t->config.recipe.micro_rows, open = 0;
    int32_t doc_rows_max = HZP_MIN(rows_max, t->config.model->positions);
    d->bins = 0;
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
        count_sample(t, d->sample[i]);
        while (open < d->bins && d->bin_rows[open] == rows_max)
            open++; /* skip full micro-batches from now on */
    }
}

static struct hzp_version *version_read(const struct hzp_trainer *t)
{
    return t->held ? t->held : t->draft;
}

/* Fills the micro-batch with the samples of a bin.  Returns NULL if there is no such bin: this rank
 * has none in the last round. */
static struct hzp_micro *fill_micro(struct hzp_trainer *t, int32_t bin)
{
    struct hzp_draw *d = &t->draw;
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

static void build_micro(struct hzp_trainer *t)
{
    struct hzp_micro *micro = fill_micro(t, t->bin);
    HZP_ASSERT(micro); /* rank 0 has the first position in a round */
    /* Cutting into chunks costs time and only pays off when training rides in serving's products,
     * so the forward pass is not cut while no request runs. */
    hzp_micro_cut(micro, t->carried ? t->config.chunk_rows : 0);
    t->rider = (struct hzp_rider){version_read(t), micro, t->space};
    hzp_plan_clear(&t->chain);
    t->chain_ns = hzp_now_ns();
    if (t->collectives)
        hzp_collectives_micro(t->collectives, &t->chain, version_read(t), micro, t->bin == 0,
                              t->bin + hzp_collectives_ranks(t->collectives) >= t->draw.bins);
    else
        hzp_micro_build(&t->chain, t->config.model, version_read(t), micro, t->space, t->bin == 0);
    t->at = t->to = 0;
}

static void note_sequences(struct hzp_trainer *t)
{
    for (int32_t i = 0; i < t->draw.count; i++) {
        int64_t n = t->draw.sample[i]->sequence_number;
        if (n <= 0)
            continue;
        if (!t->now.first_sequence || n < t->now.first_sequence)
            t->now.first_sequence = n;
        t->now.last_sequence = HZP_MAX(t->now.last_sequence, n);
    }
}

static void begin_accumulation(struct hzp_trainer *t)
{
    memset(&t->now, 0, sizeof(t->now));
    t->now.gate_before = t->now.gate_after = NAN;
    t->loss_sum = t->weight_sum = 0;
    t->begin_ns = hzp_now_ns();
    t->draw.count = hzp_sample_queue_draw(t->config.queue, t->config.recipe.update_tokens,
                                          t->draw.sample, t->draw.room);
    pack(t);
    note_sequences(t);
    if (!t->draw.bins) {
        /* No sample of the draw has a learnable token (the log was written under other limits): the
         * draw counts as done. */
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
    build_micro(t);
}

/* --- Waiting for the update ------------------------------------------------------------------- */

/* True: with this many unpublished updates the server would exceed the staleness bound. */
static bool over_bound(struct hzp_trainer *t, int32_t unpublished)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(t->config.model->weights, &stats);
    return unpublished > 0 && unpublished > stats.bound;
}

/* True: the update's chain is built.  False: it must wait; *ret_flush: wait until deliver() has
 * published the finished updates. */
static bool begin_update(struct hzp_trainer *t, bool *ret_flush)
{
    struct hzp_weights *w = t->config.model->weights;
    if (t->collectives && !hzp_collectives_may_send(t->collectives))
        return false;
    if (atomic_load(&t->freeze) || t->picture) {
        *ret_flush = t->unpublished > 0;
        return false;
    }
    t->publishes =
        t->unpublished + 1 >= t->config.recipe.publish_every || !hzp_weights_may_update(w, false);
    if (over_bound(t, t->unpublished) || !hzp_weights_may_update(w, t->publishes)) {
        *ret_flush = t->unpublished > 0;
        set_waiting(t, true, false);
        return false;
    }
    if (!t->draft && hzp_weights_begin(w, &t->draft) < 0) {
        t->draft = NULL;
        set_waiting(t, false, true);
        return false;
    }
    set_waiting(t, false, false);
    const struct hzp_recipe *recipe = &t->config.recipe;
    struct hzp_update_hyper hyper = {
        .lr = hzp_recipe_lr(recipe, t->optimizer_step + 1),
        .beta1 = recipe->beta1,
        .beta2 = recipe->beta2,
        .eps = recipe->eps,
        .decay = recipe->decay,
        .clip = recipe->clip,
        .grad_scale = 1.0f / (float)t->weight_sum,
        .t = (int32_t)HZP_MIN(t->optimizer_step + 1 - t->reset_step, INT32_MAX),
    };
    t->now.lr = hyper.lr;
    hzp_plan_clear(&t->chain);
    t->chain_ns = hzp_now_ns();
    if (t->gate)
        hzp_update_save(&t->chain, t->space);
    if (t->collectives) {
        struct hzp_rank_command command = {.kind = HZP_RANK_COMMAND_UPDATE,
                                           .optimizer_step = t->optimizer_step + 1,
                                           .hyper = hyper};
        hzp_collectives_send(t->collectives, &command, NULL);
        hzp_collectives_update(t->collectives, &t->chain, version_read(t), t->draft, &hyper);
    } else {
        hzp_update_build(&t->chain, t->config.model, version_read(t), t->draft, &hyper, t->space);
    }
    t->at = t->to = 0;
    t->stage = HZP_TRAINER_UPDATE;
    return true;
}

/* --- The source ------------------------------------------------------------------------------- */

/* Offers an empty slice, so that deliver() runs and can publish. */
static bool offer_turn(struct hzp_trainer *t, bool flush)
{
    t->flush = flush;
    return flush;
}

/* Takes notice of what other ranks have done.  < 0: the exchange with them has failed, and with it
 * training. */
static int turn_collectives(struct hzp_trainer *t)
{
    if (!t->collectives || hzp_collectives_turn(t->collectives, t->at) >= 0)
        return HZP_OK;
    const char *why = hzp_collectives_error(t->collectives);
    if (t->stage != HZP_TRAINER_BROKEN) /* once */
        hzp_log(HZP_LOG_ERROR, "train", "the exchange with other ranks failed: %s", why);
    hzp_lock_take(&t->lock);
    snprintf(t->stats.failure, sizeof(t->stats.failure), "%s", why);
    t->stats.broken = true;
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

/* Where the next slice ends at the latest. */
static int32_t cut_of(const struct hzp_trainer *t, int32_t limit)
{
    return t->collectives
               ? hzp_transfers_cut(hzp_collectives_transfers(t->collectives), t->to, limit)
               : limit;
}

/* Whether the end of the chain in progress publishes a version, or may. */
static bool ends_in_a_version(const struct hzp_trainer *t)
{
    return (t->stage == HZP_TRAINER_UPDATE && !t->gate) || t->stage == HZP_TRAINER_RESTORE ||
           (t->stage == HZP_TRAINER_GATE && hzp_trainer_gate_decides(t));
}

/* Whether the chain in progress has ended; an update also with its transfers. */
static bool chain_ended(const struct hzp_trainer *t)
{
    bool micro = t->stage == HZP_TRAINER_ACCUMULATE;
    bool update = t->stage >= HZP_TRAINER_UPDATE && t->stage != HZP_TRAINER_BROKEN;
    bool done = micro || !t->collectives || hzp_collectives_done(t->collectives);
    return (micro || update) && t->at == t->chain.items && done;
}

/* Returns the end of the slice that begins at t->to. */
static int32_t slice_end(const struct hzp_trainer *t, const struct hzp_rider *rider,
                         const struct hzp_step *step, const struct hzp_room *room)
{
    return hzp_ride_cut(rider, step->version, room->op_times, &t->chain, t->to, room->train_ns,
                        room->item_ns, room->ride_rows);
}

static bool trains_already(const struct hzp_offer *offer)
{
    for (int32_t i = 0; i < offer->slices; i++)
        if (offer->slice[i].tenant == HZP_TENANT_TRAIN)
            return true;
    return offer->slices == HZP_SLICES_MAX;
}

/* Returns the age of the oldest unfinished sample; 0: training could not use more time. */
static uint64_t note_pace(struct hzp_trainer *t, uint64_t now_ns)
{
    bool works = t->stage != HZP_TRAINER_IDLE || hzp_sample_queue_ready(t->config.queue);
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
    return t->unpublished && t->stage != HZP_TRAINER_UPDATE && over_bound(t, t->unpublished);
}

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    struct hzp_trainer *t = HZP_CONTAINER_OF(source, struct hzp_trainer, source);
    bool flush = false, gave_back = hzp_trainer_given_back(t); /* and a step releases it */
    bool keep = offer->keep_version;
    offer->learn_age_ns = note_pace(t, step->begin_ns);
    t->flush = false;
    t->carried = room->ride_rows > 0;
    if (hzp_trainer_serve_suspend(t, step->number - 1, keep))
        return true;
    if (t->stage == HZP_TRAINER_BROKEN || turn_collectives(t) < 0) {
        hzp_trainer_serve_gather(t); /* fails it */
        return false;
    }
    hzp_trainer_serve_freeze(t, step->number - 1);
    if (bound_lowered(t)) {
        offer->settle = HZP_SETTLE_ALL; /* the next step reads the version published here */
        return offer_turn(t, true);
    }
    hzp_trainer_serve_gather(t);
    if (t->gathering && turn_collectives(t) >= 0)
        return gave_back; /* the other ranks take part in nothing else meanwhile */
    if (atomic_load(&t->paused) || trains_already(offer) || !room->train_ns)
        return gave_back;
    if (t->stage == HZP_TRAINER_PREPARE && t->at == t->chain.items && !hzp_trainer_prepare_next(t))
        return gave_back;
    if (t->stage == HZP_TRAINER_IDLE) {
        bool begin = !atomic_load(&t->finishing) && !atomic_load(&t->suspend) &&
                     hzp_sample_queue_ready(t->config.queue);
        if (t->unpublished && (!begin || atomic_load(&t->freeze)))
            return offer_turn(t, !keep) || gave_back;
        if (!begin)
            return gave_back;
        begin_accumulation(t);
        if (t->stage == HZP_TRAINER_IDLE)
            return true; /* an empty draw: try again in the next step */
    }
    if (t->stage == HZP_TRAINER_WAIT && !begin_update(t, &flush))
        return offer_turn(t, flush && !keep) || gave_back;
    if (turn_collectives(t) < 0) /* posts what a chain that has just been built begins with */
        return gave_back;
    int32_t limit = limit_of(t);
    if (chain_ended(t)) /* other ranks were waited for: deliver() goes on */
        return !keep || !ends_in_a_version(t) || gave_back;
    if (t->to == limit)
        return gave_back; /* all items that may be offered have been */
    struct hzp_slice *slice = hzp_offer_add(
        offer, &(struct hzp_slice){.chain = &t->chain,
                                   .from = t->to,
                                   .tenant = HZP_TENANT_TRAIN,
                                   .rider = t->stage == HZP_TRAINER_ACCUMULATE ? &t->rider : NULL});
    slice->to = HZP_MIN(slice_end(t, slice->rider, step, room), cut_of(t, limit));
    if (keep && ends_in_a_version(t))
        slice->to = HZP_MIN(slice->to, t->chain.items - 1); /* the last item ends the update */
    t->to = slice->to;
    if (slice->to == slice->from)
        return gave_back; /* the next item would take too long; the split now knows its price */
    /* This slice ends the update, which is published when the slice has ended.  A step formed
     * before that would exceed the staleness bound. */
    if (ends_in_a_version(t) && t->to == t->chain.items && over_bound(t, t->unpublished + 1))
        offer->settle = HZP_SETTLE_ALL;
    return true;
}

static void publish(struct hzp_trainer *t, const struct hzp_step *step)
{
    struct hzp_weights *w = t->config.model->weights;
    hzp_trainer_note_unlearned(t);
    struct hzp_version_record *record = &t->draft->record;
    record->optimizer_step = t->optimizer_step;
    record->loss = t->version_weight_sum > 0 ? t->version_loss_sum / t->version_weight_sum : NAN;
    record->checksum = hzp_update_result(t->space)->checksum;
    record->learned = t->learned;
    record->learned_through = t->learned_through;
    record->gate_before = t->now.gate_before;
    record->gate_after = t->now.gate_after;
    t->draft->fp8_made = true; /* by the last items of the update's chain, which has ended */
    hzp_weights_publish(w, t->draft, step->number);
    uint64_t now = hzp_now_ns();
    hzp_track_add(t->track, "publish", now, now, record->id);
    t->draft = NULL;
    t->unpublished = 0;
    t->version_loss_sum = 0;
    t->version_weight_sum = 0;
    memset(&t->learned, 0, sizeof(t->learned));
}

static void end_micro(struct hzp_trainer *t, uint64_t now_ns)
{
    int32_t each = t->collectives ? hzp_collectives_ranks(t->collectives) : 1;
    int32_t end = HZP_MIN(t->bin + each, t->draw.bins);
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
        rows += (uint64_t)t->draw.bin_rows[bin];
    hzp_pace_done(&t->pace, now_ns, (int32_t)HZP_MIN(rows, INT32_MAX));
    hzp_lock_take(&t->lock);
    t->stats.rows += rows;
    hzp_lock_release(&t->lock);
    t->bin = end;
    if (t->bin < t->draw.bins)
        build_micro(t);
    else
        t->stage = HZP_TRAINER_WAIT;
}

static int compare_numbers(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void add_learned(struct hzp_trainer *t)
{
    int64_t *number = hzp_xmalloc((size_t)HZP_MAX(t->draw.count, 1) * sizeof(*number));
    int32_t n = 0;
    for (int32_t i = 0; i < t->draw.count; i++)
        if (t->draw.sample[i]->sequence_number > 0 && t->draw.bin[i] >= 0)
            number[n++] = t->draw.sample[i]->sequence_number;
    qsort(number, (size_t)n, sizeof(*number), compare_numbers);
    for (int32_t i = 0; i < n; i++)
        hzp_learned_add(&t->learned, number[i]);
    free(number);
}

static void undo_update(struct hzp_trainer *t, const struct hzp_update_result *result)
{
    if (!t->unpublished) {
        hzp_weights_abandon(t->config.model->weights, t->draft);
        t->draft = NULL;
    }
    t->now.skipped = true;
    if (isfinite(result->sumsq)) {
        /* The gradients were finite but the draft is not: the weights it was made from are not
         * finite either, and moments and residuals have already changed.  Only a checkpoint can
         * restore them. */
        t->now.broken = true;
        t->stage = HZP_TRAINER_BROKEN;
        return;
    }
    if (++t->failures < FAILURES_MAX) {
        hzp_sample_queue_undo(t->config.queue);
        return;
    }
    t->now.dropped = true;
    t->failures = 0;
    t->draws++;
    t->learned_through = hzp_sample_queue_give_up(t->config.queue);
    hzp_trainer_note_unlearned(t);
}

/* True: publish now, because it was decided when the update began, the staleness bound was lowered
 * meanwhile, or no further update is about to begin. */
static bool must_publish(struct hzp_trainer *t)
{
    return t->publishes || over_bound(t, t->unpublished) || atomic_load(&t->finishing) ||
           !hzp_sample_queue_ready(t->config.queue);
}

static void count_update(struct hzp_trainer *t)
{
    hzp_lock_take(&t->lock);
    struct hzp_trainer_stats *s = &t->stats;
    s->optimizer_step = t->optimizer_step;
    s->draws = t->draws;
    s->updates += !t->now.skipped;
    s->skipped += t->now.skipped && !t->now.rejected;
    s->dropped += t->now.dropped;
    s->broken = t->now.broken;
    s->device_ns += t->now.device_ns;
    s->loss = t->now.loss;
    s->grad_norm = t->now.grad_norm;
    s->lr = t->now.lr;
    if (!t->now.skipped)
        s->learned_tokens += (uint64_t)t->now.learned_tokens;
    hzp_lock_release(&t->lock);
}

/* The update counts, and its draft is published now or later. */
static void keep_update(struct hzp_trainer *t, const struct hzp_step *step)
{
    struct hzp_weights *w = t->config.model->weights;
    t->optimizer_step++;
    t->draws++;
    t->failures = 0;
    t->unpublished++;
    t->version_loss_sum += t->loss_sum;
    t->version_weight_sum += t->weight_sum;
    add_learned(t);
    t->learned_through = hzp_sample_queue_done(t->config.queue);
    /* Publishing counts the update as finished in the same call, so no reader sees a staleness
     * above the bound. */
    if (must_publish(t)) {
        publish(t, step);
        t->now.version = hzp_weights_current(w)->record.id;
    } else {
        hzp_weights_finished(w, t->optimizer_step);
    }
}

/* The update has ended, whatever became of it. */
static void close_update(struct hzp_trainer *t, const struct hzp_step *step)
{
    t->stage = t->stage == HZP_TRAINER_BROKEN ? t->stage : HZP_TRAINER_IDLE;
    if (t->held)
        hzp_weights_release(t->config.model->weights, t->held, step->number);
    t->held = NULL;
    t->now.wall_ns = hzp_now_ns() - t->begin_ns;
    count_update(t);
    if (t->config.on_update)
        t->config.on_update(t->config.ctx, &t->now);
}

static void end_update(struct hzp_trainer *t, const struct hzp_step *step)
{
    const struct hzp_update_result *result = hzp_update_result(t->space);
    t->now.optimizer_step = t->optimizer_step + 1;
    hzp_track_add(t->track, "update", t->chain_ns, hzp_now_ns(), (uint64_t)t->now.optimizer_step);
    for (int32_t bin = 0; t->collectives && bin < t->draw.bins; bin++)
        t->loss_sum += hzp_collectives_loss(t->collectives, bin);
    t->now.loss = t->loss_sum / t->weight_sum;
    t->now.grad_norm = sqrt(result->sumsq) / t->weight_sum;
    bool finite = isfinite(result->sumsq) && result->nonfinite == 0;
    if (finite && t->gate) {
        hzp_trainer_gate_begin(t);
        return;
    }
    if (finite)
        keep_update(t, step);
    else
        undo_update(t, result);
    close_update(t, step);
}

static void end_gate(struct hzp_trainer *t, const struct hzp_step *step)
{
    switch (hzp_trainer_gate_next(t)) {
    case HZP_GATE_PASSED:
        keep_update(t, step);
        close_update(t, step);
        break;
    case HZP_GATE_REFUSED: /* moments and residuals first */
        hzp_plan_clear(&t->chain);
        hzp_update_restore(&t->chain, t->space);
        t->at = t->to = 0;
        t->stage = HZP_TRAINER_UNDO;
        break;
    case HZP_GATE_GOES_ON:
        break;
    }
}

/* The optimizer's state is as it was before the update. */
static void end_undo(struct hzp_trainer *t, const struct hzp_step *step)
{
    hzp_weights_abandon(t->config.model->weights, t->draft);
    t->draft = NULL;
    t->now.skipped = t->now.rejected = true;
    t->draws++;
    for (int32_t i = 0; i < t->draw.count; i++)
        if (t->draw.sample[i]->sequence_number > 0)
            hzp_weights_add_unlearned(t->config.model->weights, t->draw.sample[i]->sequence_number);
    t->learned_through = hzp_sample_queue_reject(t->config.queue);
    close_update(t, step);
}

/* A chain and its transfers have ended. */
static void end_chain(struct hzp_trainer *t, const struct hzp_step *step, bool keep_version,
                      uint64_t now_ns)
{
    if (t->stage == HZP_TRAINER_ACCUMULATE)
        end_micro(t, now_ns);
    else if (t->collectives && keep_version)
        return;
    else if (t->stage == HZP_TRAINER_UPDATE)
        end_update(t, step);
    else if (t->stage == HZP_TRAINER_GATE)
        end_gate(t, step);
    else if (t->stage == HZP_TRAINER_UNDO)
        end_undo(t, step);
    else
        hzp_trainer_publish_older(t, step->number);
}

/* Publishes the finished updates while the next one accumulates gradients or waits, reading the
 * draft: it continues with the same weights, now held as the current version. */
static void publish_early(struct hzp_trainer *t, const struct hzp_step *step)
{
    publish(t, step);
    if (t->stage != HZP_TRAINER_IDLE)
        t->held = hzp_weights_acquire(t->config.model->weights);
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
        publish_early(t, step);
    if (t->older.now)
        hzp_trainer_publish_older(t, step->number);
    if (slice && slice->to > slice->from) {
        t->at = slice->to;
        t->now.device_ns += outcome->ns[HZP_TENANT_TRAIN];
    }
    if (turn_collectives(t) >= 0 && chain_ended(t))
        end_chain(t, step, offer->keep_version, outcome->end_ns);
    t->flush = false;
    hzp_trainer_serve_freeze(t, step->number);
}

static bool busy(struct hzp_source *source)
{
    struct hzp_trainer *t = HZP_CONTAINER_OF(source, struct hzp_trainer, source);
    if (t->stage == HZP_TRAINER_BROKEN || atomic_load(&t->paused))
        return false;
    return (t->stage != HZP_TRAINER_IDLE && t->stage != HZP_TRAINER_PREPARE) || t->unpublished;
}
