/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_update.c - the update: when it may begin, what becomes of it, and its version.
 *
 * With several ranks its end is a tail (train/collectives.h), beside which the next update's
 * micro-batches may already be computed:
 *
 *     t->tail                     the draft is being gathered and audited
 *     t->tail, stage UPDATE       nothing else is going on
 *     t->tail, any other stage    the next update has begun; it reads the draft
 *
 * Until the tail has ended t->now is the report of the update in its tail, and t->other holds its
 * samples if the next one has begun. */
#include "base/arena.h"
#include "base/thread.h"
#include "nanobatch/model/update.h"
#include "train/trainer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FAILURES_MAX = 2 /* attempts at the same samples */ };

static void set_waiting(struct hzp_trainer *t, bool swap, bool slot)
{
    hzp_lock_take(&t->lock);
    t->stats.waiting_for_swap = swap;
    t->stats.waiting_for_slot = slot;
    hzp_lock_release(&t->lock);
}

/* --- Beginning ------------------------------------------------------------------- */

bool hzp_trainer_over_bound(struct hzp_trainer *t, int32_t unpublished)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(t->config.model->weights, &stats);
    return unpublished > 0 && unpublished > stats.bound;
}

bool hzp_trainer_begin_update(struct hzp_trainer *t, bool *ret_flush)
{
    struct hzp_weights *w = t->config.model->weights;
    if (t->tail || (t->collectives && !hzp_collectives_may_send(t->collectives)))
        return false;
    if (t->freeze) {
        *ret_flush = t->unpublished > 0;
        return false;
    }
    t->publishes =
        t->unpublished + 1 >= t->config.recipe.publish_every || !hzp_weights_may_update(w, false);
    if (hzp_trainer_over_bound(t, t->unpublished) || !hzp_weights_may_update(w, t->publishes)) {
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
    t->update_ns = hzp_now_ns();
    bool saves = t->gate || t->config.trials;
    if (saves)
        hzp_update_save(&t->chain, t->space);
    if (t->collectives) {
        t->ahead = hzp_trainer_draw_ahead(t);
        hzp_trainer_tell_update(t, &hyper);
        hzp_collectives_update(t->collectives, &t->chain, hzp_trainer_version(t), t->draft, &hyper,
                               t->ahead);
    } else {
        hzp_update_build(&t->chain, t->config.model, hzp_trainer_version(t), t->draft, &hyper,
                         t->space);
    }
    hzp_trainer_note_work(
        t, &(struct hzp_chain_work){.kind = HZP_CHAIN_UPDATE, .saves = saves, .hyper = hyper});
    t->at = t->to = 0;
    t->stage = HZP_TRAINER_UPDATE;
    return true;
}

/* --- Ending ----------------------------------------------------------------------------------- */

void hzp_trainer_fill_record(struct hzp_trainer *t, struct hzp_version_record *record)
{
    record->checksum = hzp_update_result(t->space)->checksum;
    record->gate_before = t->now.gate_before;
    record->gate_after = t->now.gate_after;
}

static void publish(struct hzp_trainer *t, const struct hzp_step *step)
{
    struct hzp_weights *w = t->config.model->weights;
    hzp_trainer_note_unlearned(t);
    struct hzp_version_record *record = &t->draft->record;
    hzp_trainer_fill_record(t, record);
    record->optimizer_step = t->optimizer_step;
    record->loss = t->version_weight_sum > 0 ? t->version_loss_sum / t->version_weight_sum : NAN;
    record->learned = t->learned;
    record->learned_through = t->learned_through;
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

/* Whether the next update's micro-batches are being computed. */
static bool next_begun(const struct hzp_trainer *t)
{
    return t->tail && t->stage != HZP_TRAINER_UPDATE;
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
    if (!t->unpublished) {
        hzp_weights_abandon(t->config.model->weights, t->draft);
        t->draft = NULL;
    }
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
    t->draws++;
    t->learned_through = hzp_sample_queue_give_up(t->config.queue);
    hzp_trainer_note_unlearned(t);
}

/* True: publish now, because it was decided when the update began, the staleness bound was lowered
 * meanwhile, or no further update is about to begin. */
static bool must_publish(struct hzp_trainer *t)
{
    return t->publishes || hzp_trainer_over_bound(t, t->unpublished) ||
           atomic_load(&t->finishing) ||
           (!next_begun(t) && !hzp_sample_queue_ready(t->config.queue));
}

static void count_update(struct hzp_trainer *t)
{
    hzp_lock_take(&t->lock);
    struct hzp_trainer_stats *s = &t->stats;
    s->optimizer_step = t->optimizer_step;
    s->draws = t->draws;
    s->updates += !t->now.skipped;
    s->skipped += t->now.skipped && !t->now.rejected && !t->now.withdrawn;
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

void hzp_trainer_keep_update(struct hzp_trainer *t, const struct hzp_step *step)
{
    struct hzp_weights *w = t->config.model->weights;
    t->optimizer_step++;
    t->draws++;
    t->failures = 0;
    t->unpublished++;
    t->version_loss_sum += t->loss_sum;
    t->version_weight_sum += t->weight_sum;
    hzp_trainer_add_learned(t, &t->learned);
    hzp_trainer_gate_accept(t);
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

void hzp_trainer_close_update(struct hzp_trainer *t, const struct hzp_step *step)
{
    if (!next_begun(t) && t->stage != HZP_TRAINER_BROKEN)
        t->stage = HZP_TRAINER_IDLE;
    if (t->held)
        hzp_weights_release(t->config.model->weights, t->held, step->number);
    t->held = NULL;
    t->now.wall_ns = hzp_now_ns() - t->begin_ns;
    count_update(t);
    if (t->config.on_update)
        t->config.on_update(t->config.ctx, &t->now);
}

/* The draft has passed what it is checked with here. */
static void pass(struct hzp_trainer *t, const struct hzp_step *step)
{
    if (t->config.trials) {
        hzp_trainer_trial_begin(t);
        return;
    }
    hzp_trainer_keep_update(t, step);
    hzp_trainer_close_update(t, step);
}

void hzp_trainer_end_update(struct hzp_trainer *t, const struct hzp_step *step)
{
    const struct hzp_update_result *result = hzp_update_result(t->space);
    t->now.optimizer_step = t->optimizer_step + 1;
    hzp_track_add(t->track, "update", t->update_ns, hzp_now_ns(), (uint64_t)t->now.optimizer_step);
    t->now.loss = t->loss_sum / t->weight_sum;
    t->now.grad_norm = sqrt(result->sumsq) / t->weight_sum;
    bool finite = isfinite(result->sumsq) && result->nonfinite == 0;
    if (finite && t->gate) {
        hzp_trainer_gate_begin(t);
        return;
    }
    if (finite) {
        pass(t, step);
        return;
    }
    undo_update(t, result);
    hzp_trainer_close_update(t, step);
}

void hzp_trainer_end_gate(struct hzp_trainer *t, const struct hzp_step *step)
{
    switch (hzp_trainer_gate_next(t)) {
    case HZP_GATE_PASSED:
        hzp_trainer_tell_verdict(t, true);
        pass(t, step);
        break;
    case HZP_GATE_REFUSED: /* moments and residuals first */
        hzp_trainer_tell_verdict(t, false);
        hzp_trainer_begin_undo(t);
        break;
    case HZP_GATE_GOES_ON:
        break;
    }
}

void hzp_trainer_begin_undo(struct hzp_trainer *t)
{
    hzp_plan_clear(&t->chain);
    hzp_update_restore(&t->chain, t->space);
    hzp_trainer_note_work(t, &(struct hzp_chain_work){.kind = HZP_CHAIN_RESTORE});
    t->at = t->to = 0;
    t->stage = HZP_TRAINER_UNDO;
}

/* The samples of the update are rejected. */
static void reject(struct hzp_trainer *t)
{
    t->now.rejected = true;
    t->draws++;
    for (int32_t i = 0; i < t->draw->count; i++)
        if (t->draw->sample[i]->sequence_number > 0)
            hzp_weights_add_unlearned(t->config.model->weights,
                                      t->draw->sample[i]->sequence_number);
    t->learned_through = hzp_sample_queue_reject(t->config.queue);
}

void hzp_trainer_end_undo(struct hzp_trainer *t, const struct hzp_step *step)
{
    if (t->draft) /* a trial has left it already */
        hzp_weights_abandon(t->config.model->weights, t->draft);
    t->draft = NULL;
    t->now.skipped = true;
    t->now.withdrawn = t->withdraws;
    t->withdraws = false;
    if (t->now.withdrawn)
        hzp_sample_queue_undo(t->config.queue);
    else
        reject(t);
    hzp_trainer_close_update(t, step);
}

/* --- The tail --------------------------------------------------------------------------------- */

void hzp_trainer_begin_tail(struct hzp_trainer *t, const struct hzp_step *step)
{
    struct hzp_draw *next = t->other;
    for (int32_t bin = 0; bin < t->draw->bins; bin++)
        t->loss_sum += hzp_collectives_loss(t->collectives, bin);
    t->tail = true;
    hzp_collectives_audit(t->collectives);
    /* Only a norm that is not finite makes an update that is repeated; all ranks know it by now. */
    if (!t->ahead || !isfinite(hzp_update_result(t->space)->sumsq))
        return;
    if (t->held)
        hzp_weights_release(t->config.model->weights, t->held, step->number);
    t->held = NULL; /* the draft is read from here on */
    t->other = t->draw;
    t->draw = next;
    t->bin = 0;
    t->stage = HZP_TRAINER_ACCUMULATE;
    hzp_trainer_build_micro(t);
}

void hzp_trainer_end_tail(struct hzp_trainer *t, const struct hzp_step *step)
{
    bool begun = next_begun(t);
    hzp_trainer_end_update(t, step);
    t->tail = false;
    if (!begun || t->stage == HZP_TRAINER_BROKEN)
        return;
    if (!t->draft) /* it was published: the same weights */
        t->held = hzp_weights_acquire(t->config.model->weights);
    hzp_trainer_begin_report(t);
}

void hzp_trainer_publish_early(struct hzp_trainer *t, const struct hzp_step *step)
{
    publish(t, step);
    if (t->stage != HZP_TRAINER_IDLE)
        t->held = hzp_weights_acquire(t->config.model->weights);
}
