/* SPDX-License-Identifier: Apache-2.0 */
/* train/history/trainer_suspend.c - suspending learning while an older version is made to serve
 * again. */
#include "train/history/trainer_suspend.h"

#include "train/conductor/trainer_state.h"

/* --- Suspending learning ---------------------------------------------------------------------- */

/* Gives up micro-batches none of whose items is in flight, and what a trainer that has stopped
 * leaves behind.  With several ranks transfers of the last chain may be in flight, and are posted
 * by what of it has ended. */
static void give_up(struct hzp_trainer *t, uint64_t last_step)
{
    struct hzp_learner *l = t->learner;
    bool micro = t->stage == HZP_TRAINER_ACCUMULATE && l->at == l->to && !l->collectives;
    if (micro || (t->stage == HZP_TRAINER_WAIT && !l->tail)) {
        hzp_sample_queue_undo(t->config.queue);
        hzp_learner_let_go(l, last_step);
        if (!l->collectives)
            hzp_learner_drop_chain(l);
        t->stage = HZP_TRAINER_IDLE;
    }
    if (t->stage == HZP_TRAINER_IDLE && hzp_trainer_by_lesson(t) && l->unpublished)
        hzp_trainer_withdraw(t);
    if (t->stage == HZP_TRAINER_TRIAL)
        hzp_trainer_trial_withdraw(t, "other weights are to serve");
    if (t->stage == HZP_TRAINER_BROKEN) { /* maybe in the middle, when a rank was lost */
        hzp_learner_abandon(l);
        hzp_learner_let_go(l, last_step);
    }
}

int hzp_trainer_suspend(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    hzp_assert_engine_thread();
    t->suspend = true;
    bool lost = hzp_trainer_parting(t) || hzp_trainer_rejoins(t);
    if (t->learner->collectives && lost && !t->suspended)
        return HZP_EBUSY; /* the link may still read and write what would be given up */
    give_up(t, border->last_step);
    bool rests = t->stage == HZP_TRAINER_IDLE || t->stage == HZP_TRAINER_BROKEN;
    if (!rests || t->learner->unpublished || t->site.lent)
        return HZP_EBUSY;
    t->batch.begun = false;
    t->suspended = true;
    return HZP_OK;
}

bool hzp_trainer_suspended(const struct hzp_trainer *t)
{
    return t->suspended;
}

int hzp_trainer_resume(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    bool lost = hzp_trainer_parting(t) || hzp_trainer_rejoins(t);
    hzp_assert_engine_thread();
    t->suspend = t->suspended = false;
    if (!atomic_load(&t->stops) || lost) /* ranks that meet again get another state */
        return HZP_OK;
    t->stage = HZP_TRAINER_BROKEN;
    hzp_lock_take(&t->lock);
    t->stats.broken = true;
    hzp_lock_release(&t->lock);
    atomic_store(&t->stops, false);
    return HZP_OK;
}

void hzp_trainer_stop_learning(struct hzp_trainer *t)
{
    HZP_ASSERT(t->suspended);
    atomic_store(&t->stops, true);
}

bool hzp_trainer_stopped(struct hzp_trainer *t)
{
    struct hzp_trainer_stats stats;
    bool stops = atomic_load(&t->stops); /* before broken, which resume sets first */
    hzp_trainer_read_stats(t, &stats);
    return stats.broken || stops;
}

/* --- Which samples no version will have learned ----------------------------------------------- */

void hzp_trainer_set_failed(struct hzp_trainer *t, const int64_t *number, int64_t count)
{
    t->failed_before = number;
    t->failed_before_count = count;
}

void hzp_trainer_tell_marks(struct hzp_trainer *t, const struct hzp_mark *mark, int32_t count)
{
    struct hzp_weights *w = t->config.model->weights;
    hzp_weights_clear_unlearned(w);
    for (int64_t i = 0; i < t->failed_before_count; i++)
        hzp_weights_add_unlearned(w, t->failed_before[i]);
    for (int32_t i = 0; i < count; i++)
        for (int64_t n = mark[i].first; n <= mark[i].last; n++)
            hzp_weights_add_unlearned(w, n);
    t->failed_told = t->rejected_told = 0;
    hzp_trainer_note_unlearned(t);
}

/* --- An older version serves again ------------------------------------------------------------ */

static void publish_older(struct hzp_trainer *t, struct hzp_trainer_older *older,
                          uint64_t last_step)
{
    const struct hzp_trainer_numbers *n = &older->numbers;
    struct hzp_version *draft = older->draft;
    draft->record.optimizer_step = n->optimizer_step;
    draft->record.learned_through = n->learned_through;
    draft->record.checksum = n->checksum;
    draft->fp8_made = true;
    hzp_weights_publish(t->config.model->weights, draft, last_step);
    older->published = draft->record.id;
    older->draft = NULL;
    t->stage = HZP_TRAINER_IDLE;
    t->learner->optimizer_step = n->optimizer_step;
    t->draws = n->draws;
    t->reset_step = n->reset_step;
    t->learned_through = n->learned_through;
    t->failures = 0;
    if (t->gate)
        hzp_gate_forget(t->gate);
    t->version_loss_sum = t->version_weight_sum = 0;
    memset(&t->learned, 0, sizeof(t->learned));
    memset(&t->group_of, 0, sizeof(t->group_of));
    HZP_LOCKED(&t->lock);
    t->stats.optimizer_step = n->optimizer_step;
    t->stats.draws = n->draws;
    t->stats.broken = false;
}

int hzp_trainer_publish_older(void *ctx, const struct hzp_border *border)
{
    struct hzp_trainer_older *older = ctx;
    struct hzp_trainer *t = older->trainer;
    hzp_assert_engine_thread();
    HZP_ASSERT(t->suspended);
    bool made = !hzp_weights_fp8(t->config.model->weights) || older->draft->fp8_made;
    if (!made && t->stage != HZP_TRAINER_RESTORE) { /* a chain quantizes the weights */
        hzp_update_end(hzp_learner_begin_chain(t->learner), t->config.model, older->draft,
                       t->learner->space);
        t->stage = HZP_TRAINER_RESTORE;
    }
    bool chain = t->stage == HZP_TRAINER_RESTORE && t->learner->at < t->learner->chain.items;
    if (chain || border->keep_version)
        return HZP_EBUSY;
    publish_older(t, older, border->last_step);
    return HZP_OK;
}
