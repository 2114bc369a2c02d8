/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_update.c - the update: when it may begin, what becomes of it, and its
 * version.
 *
 * With several ranks its end is a tail (train/learner/collectives.h), beside which the next
 * update's micro-batches may already be computed:
 *
 *     t->learner->tail                     the draft is being gathered and audited
 *     t->learner->tail, stage UPDATE       nothing else is going on
 *     t->learner->tail, any other stage    the next update has begun; it reads the draft
 *
 * Until the tail has ended t->now is the report of the update in its tail, and t->other holds its
 * samples if the next one has begun. */
#include "train/conductor/trainer_state.h"

enum { FAILURES_MAX = 2 /* attempts at the same samples */ };

static void set_waiting(struct hzp_trainer *t, bool swap, bool slot)
{
    HZP_LOCKED(&t->lock);
    t->stats.waiting_for_swap = swap;
    t->stats.waiting_for_slot = slot;
}

/* --- Drawing ---------------------------------------------------------------------------------- */

static void count_draw(struct hzp_trainer *t)
{
    t->draws++;
    t->group_of.draws++;
}

/* t->now is that of the samples in t->draw from here on. */
static void begin_report(struct hzp_trainer *t)
{
    const struct hzp_draw *d = t->draw;
    t->now =
        (struct hzp_update_report){.samples = d->samples,
                                   .rows = d->rows,
                                   .learned_tokens = d->learned_tokens,
                                   .paths = d->paths,
                                   .first_sequence = d->first_sequence,
                                   .last_sequence = d->last_sequence,
                                   .divisor = hzp_recipe_divisor(&t->config.recipe, d->weight_sum,
                                                                 d->learned_tokens, d->samples),
                                   .gate_before = NAN,
                                   .gate_after = NAN};
    t->loss_sum = 0;
    t->weight_sum = d->weight_sum;
    t->begin_ns = hzp_now_ns();
}

int32_t hzp_trainer_tokens_max(const struct hzp_trainer *t)
{
    int32_t rows = hzp_recipe_rows(&t->config.recipe);
    return HZP_MIN(rows, t->config.model->positions) + 1;
}

/* optimizer_step: of the update that the draw is for. */
static void pack(struct hzp_trainer *t, struct hzp_draw *d, int64_t optimizer_step)
{
    const struct hzp_collectives *x = t->learner->collectives;
    bool ordered = t->config.shards.ordered; /* then bits do not depend on how many ranks are */
    struct hzp_draw_limits limits = {
        .rows = t->config.recipe.micro_rows,
        .doc_rows = hzp_trainer_tokens_max(t) - 1,
        .by_length = x && hzp_collectives_ranks(x) > 1 && !ordered,
        .deck = hzp_recipe_deck(&t->config.recipe, t->config.model->config->layers),
        .stage_paths = t->stage_paths,
        .round = ordered ? 0
                 : x     ? hzp_collectives_ranks(x)
                         : 1,
        .optimizer_step = optimizer_step};
    hzp_draw_pack(d, t->config.queue, &limits, t->learner->micro);
}

bool hzp_trainer_begin_draw(struct hzp_trainer *t)
{
    struct hzp_draw *d = t->draw;
    d->count =
        hzp_sample_queue_draw(t->config.queue, t->config.recipe.update_tokens, d->sample, d->room);
    pack(t, d, t->learner->optimizer_step + 1);
    begin_report(t);
    if (!d->bins) {
        /* No sample of the draw has a learnable token (the log was written under other limits):
         * the draw counts as done. */
        t->learned_through = hzp_sample_queue_done(t->config.queue);
        hzp_trainer_note_unlearned(t); /* nothing may be published for long */
        count_draw(t);
        return false;
    }
    hzp_trainer_tell_deal(t);
    int r = hzp_learner_deal(t->learner, &d->works, NULL);
    HZP_ASSERT(r >= 0); /* it was written here */
    t->stage = HZP_TRAINER_ACCUMULATE;
    return true;
}

/* Draws and packs the samples of the update after the one in t->draw into t->other.  False: there
 * is no other rank, or it cannot be known yet which samples those will be. */
static bool draw_ahead(struct hzp_trainer *t)
{
    struct hzp_draw *d = t->other;
    bool ends = atomic_load(&t->finishing) || t->freeze || t->suspend;
    bool group = t->config.model->tensor; /* its chains are one behind the other */
    if (!t->learner->collectives || t->open || group || ends) /* it may read another version */
        return false;
    d->count = hzp_sample_queue_draw_ahead(t->config.queue, t->config.recipe.update_tokens,
                                           d->sample, d->room);
    pack(t, d, t->learner->optimizer_step + 2);
    if (d->count && !d->bins)
        hzp_sample_queue_undo_ahead(t->config.queue); /* begin_draw gives them up */
    return d->bins > 0;
}

/* --- Beginning -------------------------------------------------------------------------------- */

bool hzp_trainer_by_lesson(const struct hzp_trainer *t)
{
    return hzp_sample_queue_by_lesson(t->config.queue);
}

bool hzp_trainer_over_bound(struct hzp_trainer *t, int32_t unpublished)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(t->config.model->weights, &stats);
    return unpublished > 0 && unpublished > stats.bound;
}

static struct hzp_update_hyper hyper_of(struct hzp_trainer *t)
{
    const struct hzp_recipe *recipe = &t->config.recipe;
    int64_t next = t->learner->optimizer_step + 1;
    struct hzp_update_hyper hyper = {
        .lr = hzp_recipe_lr(recipe, next),
        .beta1 = recipe->beta1,
        .beta2 = recipe->beta2,
        .eps = recipe->eps,
        .decay = recipe->decay,
        .clip = recipe->clip,
        .grad_scale = 1.0f / (float)t->now.divisor,
        .t = (int32_t)HZP_MIN(next - t->reset_step, INT32_MAX),
    };
    if (recipe->optimizer == HZP_NADAM)
        hzp_recipe_nadam(recipe->beta1, hyper.t, &t->nadam_product, &t->nadam_done, &hyper.part_m,
                         &hyper.part_g);
    if (recipe->optimizer == HZP_MUON)
        hyper.momentum = recipe->momentum;
    return hyper;
}

bool hzp_trainer_begin_update(struct hzp_trainer *t, bool *ret_flush)
{
    struct hzp_weights *w = t->config.model->weights;
    struct hzp_learner *l = t->learner;
    bool by_lesson = hzp_trainer_by_lesson(t), begun = by_lesson && l->unpublished;
    if (l->tail || !hzp_trainer_may_tell(t) || t->site.lent)
        return false;
    if (t->freeze && !begun) {
        *ret_flush = l->unpublished > 0;
        return false;
    }
    t->publishes = by_lesson || l->unpublished + 1 >= t->config.recipe.publish_every ||
                   !hzp_weights_may_update(w, false);
    if ((!by_lesson && hzp_trainer_over_bound(t, l->unpublished)) ||
        !hzp_weights_may_update(w, t->publishes)) {
        *ret_flush = l->unpublished > 0;
        set_waiting(t, true, false);
        return false;
    }
    if (hzp_learner_take_draft(l) < 0) {
        set_waiting(t, false, true);
        return false;
    }
    set_waiting(t, false, false);
    t->open = by_lesson || hzp_trainer_checks(t) || hzp_trainer_tries(t);
    const struct hzp_work work = {.kind = HZP_WORK_UPDATE,
                                  .saves = by_lesson ? !begun : hzp_trainer_checks(t),
                                  .open = t->open,
                                  .optimizer_step = l->optimizer_step + 1,
                                  .hyper = hyper_of(t)};
    t->now.lr = work.hyper.lr;
    t->ahead = draw_ahead(t);
    hzp_trainer_tell_update(t, &work);
    int r = hzp_learner_update(l, &work, t->ahead ? &t->other->works : NULL);
    HZP_ASSERT(r >= 0); /* there is a draft */
    t->stage = HZP_TRAINER_UPDATE;
    return true;
}

/* --- Samples that no version will have learned -------------------------------------------------
 * */

void hzp_trainer_note_unlearned(struct hzp_trainer *t)
{
    int64_t number[64];
    int32_t n;
    do {
        n = hzp_sample_queue_failed(t->config.queue, t->failed_told, number, HZP_COUNT(number));
        for (int32_t i = 0; i < n; i++)
            hzp_weights_add_unlearned(t->config.model->weights, number[i]);
        t->failed_told += n;
    } while (n);
    do {
        n = hzp_sample_queue_rejected(t->config.queue, t->rejected_told, number, HZP_COUNT(number));
        for (int32_t i = 0; i < n; i++)
            hzp_weights_add_unlearned(t->config.model->weights, number[i]);
        t->rejected_told += n;
    } while (n);
}

/* --- Ending ----------------------------------------------------------------------------------- */

void hzp_trainer_fill_record(struct hzp_trainer *t, struct hzp_version_record *record)
{
    record->checksum = hzp_update_result(t->learner->space)->checksum;
    record->gate_before = t->now.gate_before;
    record->gate_after = t->now.gate_after;
}

void hzp_trainer_publish(struct hzp_trainer *t, const struct hzp_step *step)
{
    hzp_trainer_note_unlearned(t);
    struct hzp_version_record *record = &t->learner->draft->record;
    hzp_trainer_fill_record(t, record);
    record->optimizer_step = t->learner->optimizer_step;
    record->loss = t->version_weight_sum > 0 ? t->version_loss_sum / t->version_weight_sum : NAN;
    record->learned = t->learned;
    record->learned_through = t->learned_through;
    hzp_learner_publish(t->learner, step->number);
    uint64_t now = hzp_now_ns();
    hzp_track_add(t->learner->track, "publish", now, now, record->id);
    t->version_loss_sum = 0;
    t->version_weight_sum = 0;
    memset(&t->learned, 0, sizeof(t->learned));
}

/* Whether the next update's micro-batches are being computed. */
static bool next_begun(const struct hzp_trainer *t)
{
    return t->learner->tail && t->stage != HZP_TRAINER_UPDATE;
}

/* The samples of the update that ends. */
static const struct hzp_draw *draw_of_update(const struct hzp_trainer *t)
{
    return next_begun(t) ? t->other : t->draw;
}

static int compare_numbers(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

void hzp_trainer_add_learned(const struct hzp_trainer *t, struct hzp_learned *learned)
{
    const struct hzp_draw *d = draw_of_update(t);
    int64_t *number = hzp_xmalloc((size_t)HZP_MAX(d->count, 1) * sizeof(*number));
    int32_t n = 0;
    for (int32_t i = 0; i < d->count; i++)
        if (d->sample[i]->sequence_number > 0 && d->bin[i] >= 0)
            number[n++] = d->sample[i]->sequence_number;
    qsort(number, (size_t)n, sizeof(*number), compare_numbers);
    for (int32_t i = 0; i < n; i++)
        hzp_learned_add(learned, number[i]);
    free(number);
}

static void undo_update(struct hzp_trainer *t, const struct hzp_update_result *result)
{
    if (!t->learner->unpublished)
        hzp_learner_abandon(t->learner);
    t->now.skipped = true;
    hzp_sample_queue_undo_ahead(t->config.queue);
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
    count_draw(t);
    t->learned_through = hzp_sample_queue_give_up(t->config.queue);
    hzp_trainer_note_unlearned(t);
}

/* True: publish now, because it was decided when the update began, the staleness bound was lowered
 * meanwhile, or no further update is about to begin. */
static bool must_publish(struct hzp_trainer *t)
{
    return t->publishes || hzp_trainer_over_bound(t, t->learner->unpublished) ||
           atomic_load(&t->finishing) ||
           (!next_begun(t) && !hzp_sample_queue_ready(t->config.queue));
}

double hzp_update_utilisation(const struct hzp_update_report *report, uint64_t operations)
{
    double most = report->peak * (double)report->wall_ns;
    return most > 0 ? (double)operations / most : NAN;
}

/* On the timeline, where a span has a name and a number. */
static void track_use(const struct hzp_trainer *t, uint64_t now)
{
    if (isnan(t->stats.mfu) || !t->now.operations.model)
        return;
    hzp_track_add(t->use, "model, 1/1000 of peak", t->begin_ns, now,
                  (uint64_t)(1000 * t->stats.mfu + 0.5));
    hzp_track_add(t->use, "hardware, 1/1000 of peak", t->begin_ns, now,
                  (uint64_t)(1000 * t->stats.hfu + 0.5));
}

/* Under lock.  open: what becomes of the update is not known yet. */
static void count_work(struct hzp_trainer *t, bool open)
{
    struct hzp_trainer_stats *s = &t->stats;
    const struct hzp_operations *did = &t->now.operations;
    s->device_ns += t->now.device_ns;
    s->operations.model += did->model;
    s->operations.hardware += did->hardware;
    s->peak = t->now.peak;
    s->mfu = hzp_update_utilisation(&t->now, did->model);
    s->hfu = hzp_update_utilisation(&t->now, did->hardware);
    uint64_t own = t->now.device_ns - t->now.gate_ns;
    bool undone = t->now.rejected || t->now.withdrawn, alone = t->now.skipped && !undone;
    t->undecided_ns += alone ? 0 : own;
    s->lost_ns += t->now.gate_ns + (alone ? own : 0) + (undone ? t->undecided_ns : 0);
    if (!open || undone)
        t->undecided_ns = 0;
}

/* Of a group of lessons, as of its publication. */
static void count_update(struct hzp_trainer *t)
{
    bool open = hzp_trainer_by_lesson(t) && t->learner->unpublished;
    t->group_of.updates += !t->now.skipped;
    t->group_of.learned_tokens += t->now.skipped ? 0 : (uint64_t)t->now.learned_tokens;
    hzp_lock_take(&t->lock);
    struct hzp_trainer_stats *s = &t->stats;
    if (!open) {
        s->optimizer_step = t->learner->optimizer_step;
        s->draws = t->draws;
        s->updates += t->group_of.updates;
        s->learned_tokens += t->group_of.learned_tokens;
    }
    s->skipped += t->now.skipped && !t->now.rejected && !t->now.withdrawn;
    s->dropped += t->now.dropped;
    s->broken = t->now.broken;
    count_work(t, open);
    s->loss = t->now.loss;
    s->grad_norm = t->now.grad_norm;
    s->ratios = t->now.ratios;
    s->path_layers = t->now.paths.layers;
    s->lr = t->now.lr;
    hzp_lock_release(&t->lock);
    if (!open)
        memset(&t->group_of, 0, sizeof(t->group_of));
}

/* The draft has the update, and the queue counts its samples' pass. */
static void take_update(struct hzp_trainer *t)
{
    hzp_learner_keep(t->learner);
    count_draw(t);
    t->failures = 0;
    t->version_loss_sum += t->loss_sum;
    t->version_weight_sum += t->weight_sum;
    hzp_trainer_add_learned(t, &t->learned);
    t->learned_through = hzp_sample_queue_done(t->config.queue);
}

void hzp_trainer_keep_update(struct hzp_trainer *t, const struct hzp_step *step)
{
    struct hzp_weights *w = t->config.model->weights;
    bool by_lesson = hzp_trainer_by_lesson(t);
    if (t->config.sites && !t->site.alone)
        hzp_sites_note(t->config.sites, 1, hzp_trainer_judged(t).samples);
    if (t->open)
        hzp_trainer_tell_verdict(t, true);
    if (by_lesson && !t->site.alone)
        t->learned_through = hzp_sample_queue_judge(t->config.queue, HZP_GROUP_ACCEPTED);
    else if (!t->site.alone)
        take_update(t);
    if (t->gate)
        hzp_gate_accept(t->gate);
    /* Publishing counts the update as finished in the same call, so no reader sees a staleness
     * above the bound. */
    if (by_lesson || t->site.alone || must_publish(t)) {
        hzp_trainer_publish(t, step);
        t->now.version = hzp_weights_current(w)->record.id;
    } else {
        hzp_weights_finished(w, t->learner->optimizer_step);
    }
}

void hzp_trainer_close_update(struct hzp_trainer *t, const struct hzp_step *step)
{
    hzp_learner_let_go(t->learner, step->number);
    if (!next_begun(t) && t->stage != HZP_TRAINER_BROKEN)
        t->stage = HZP_TRAINER_IDLE;
    uint64_t now = hzp_now_ns();
    t->now.wall_ns = now - t->begin_ns;
    if (!t->site.alone) {
        count_update(t);
        track_use(t, now);
    }
    hzp_trainer_note_merged(t, !t->now.skipped);
    if (t->config.on_update)
        t->config.on_update(t->config.ctx, &t->now);
}

void hzp_trainer_end_update(struct hzp_trainer *t, const struct hzp_step *step)
{
    const struct hzp_update_result *result = hzp_update_result(t->learner->space);
    t->now.optimizer_step = t->learner->optimizer_step + 1;
    t->loss_sum = t->learner->update_loss;
    t->now.loss = t->loss_sum / t->weight_sum;
    t->now.grad_norm = sqrt(result->sumsq) / t->now.divisor;
    t->now.ratios = t->learner->update_ratios;
    t->now.operations = t->learner->update_operations;
    t->now.peak = HZP_MAX(t->stats.peak, t->learner->op_times ? t->learner->op_times->peak : 0);
    bool good = hzp_learner_result(t->learner) == HZP_UPDATE_GOOD;
    bool by_lesson = hzp_trainer_by_lesson(t);
    if (good && !by_lesson) {
        hzp_trainer_check(t, step);
        return;
    }
    if (good)
        take_update(t);
    else
        undo_update(t, result);
    if (by_lesson && t->stage == HZP_TRAINER_UPDATE &&
        hzp_sample_queue_group(t->config.queue).ended)
        hzp_trainer_judge(t, step);
    else
        hzp_trainer_close_update(t, step);
}

/* --- Lessons ---------------------------------------------------------------------------------- */

struct hzp_sample_group hzp_trainer_judged(const struct hzp_trainer *t)
{
    const struct hzp_update_report *now = &t->now;
    if (hzp_trainer_by_lesson(t) && !t->site.alone)
        return hzp_sample_queue_group(t->config.queue);
    return (struct hzp_sample_group){
        .samples = now->samples, .first = now->first_sequence, .last = now->last_sequence};
}

void hzp_trainer_judge(struct hzp_trainer *t, const struct hzp_step *step)
{
    if (t->learner->unpublished) {
        hzp_trainer_check(t, step);
        return;
    }
    /* Nothing of it could be learned. */
    t->learned_through = hzp_sample_queue_judge(t->config.queue, HZP_GROUP_ACCEPTED);
    hzp_trainer_note_unlearned(t);
    if (t->stage == HZP_TRAINER_UPDATE)
        hzp_trainer_close_update(t, step);
}

void hzp_trainer_withdraw(struct hzp_trainer *t)
{
    t->now.device_ns = t->now.gate_ns = 0;
    t->now.operations = (struct hzp_operations){0};
    t->now.dropped = false;
    t->begin_ns = hzp_now_ns();
    t->withdraws = true;
    hzp_trainer_begin_undo(t);
}

void hzp_trainer_forget_group(struct hzp_trainer *t, enum hzp_group_verdict verdict)
{
    struct hzp_sample_group group = hzp_trainer_judged(t);
    t->now.samples = group.samples;
    t->now.first_sequence = group.first;
    t->now.last_sequence = group.last;
    t->learner->optimizer_step =
        hzp_weights_current(t->config.model->weights)->record.optimizer_step;
    t->draws -= t->group_of.draws;
    memset(&t->group_of, 0, sizeof(t->group_of));
    t->version_loss_sum = t->version_weight_sum = 0;
    memset(&t->learned, 0, sizeof(t->learned));
    t->learned_through = hzp_sample_queue_judge(t->config.queue, verdict);
}

void hzp_trainer_begin_undo(struct hzp_trainer *t)
{
    hzp_trainer_tell_verdict(t, false);
    hzp_learner_begin(t->learner, &(struct hzp_work){.kind = HZP_WORK_UNDO});
    t->stage = HZP_TRAINER_UNDO;
}

void hzp_trainer_end_undo(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns)
{
    hzp_learner_abandon(t->learner);
    t->now.skipped = true;
    t->now.withdrawn = t->withdraws;
    t->withdraws = false;
    t->now.rejected = !t->now.withdrawn;
    if (t->site.alone) {
        t->now.dropped = false;
    } else if (hzp_trainer_by_lesson(t)) {
        hzp_trainer_forget_group(t, t->now.rejected ? HZP_GROUP_REJECTED : HZP_GROUP_WITHDRAWN);
    } else if (t->now.rejected) {
        t->draws++;
        t->learned_through = hzp_sample_queue_reject(t->config.queue);
    } else {
        hzp_sample_queue_undo(t->config.queue);
    }
    hzp_trainer_note_unlearned(t);
    hzp_trainer_close_update(t, step);
}

/* --- The tail --------------------------------------------------------------------------------- */

void hzp_trainer_begin_tail(struct hzp_trainer *t)
{
    struct hzp_draw *next = t->other;
    if (!hzp_learner_runs_ahead(t->learner))
        return;
    t->other = t->draw;
    t->draw = next;
    t->stage = HZP_TRAINER_ACCUMULATE;
}

void hzp_trainer_end_tail(struct hzp_trainer *t, const struct hzp_step *step)
{
    bool begun = next_begun(t);
    hzp_trainer_end_update(t, step);
    hzp_learner_end_tail(t->learner);
    if (!begun || t->stage == HZP_TRAINER_BROKEN)
        return;
    hzp_learner_hold(t->learner); /* if it was published: the same weights */
    begin_report(t);
}
