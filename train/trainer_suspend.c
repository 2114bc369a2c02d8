/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_suspend.c - pausing; freezing the state for a checkpoint; suspending learning while
 * an older version is made to serve again. */
#include "train/trainer_suspend.h"

#include "nanobatch/model/update.h"
#include "train/trainer_state.h"

#include <math.h>
#include <string.h>

/* What is asked of the engine thread, and what it has done. */
enum hzp_restore {
    NOTHING,
    DRAFT_WANTED,
    DRAFT_READY,
    DRAFT_NONE,
    PUBLISH_WANTED,
    PUBLISHED,
    DROP_WANTED,
};

/* --- Pausing and ending ----------------------------------------------------------------------- */

void hzp_trainer_pause(struct hzp_trainer *t, bool on)
{
    atomic_store(&t->paused, on);
}

void hzp_trainer_finish(struct hzp_trainer *t)
{
    atomic_store(&t->finishing, true);
}

/* --- Freezing the state for a checkpoint ------------------------------------------------------ */

void hzp_trainer_set_asker(struct hzp_trainer *t, struct hzp_wake *asker)
{
    t->asker = asker;
}

/* What another thread has asked for is granted. */
static void tell_asker(struct hzp_trainer *t)
{
    if (t->asker)
        hzp_wake_poke(t->asker);
}

void hzp_trainer_freeze(struct hzp_trainer *t)
{
    atomic_store(&t->freeze, true);
}

struct hzp_version *hzp_trainer_frozen(struct hzp_trainer *t)
{
    return atomic_load(&t->frozen);
}

void hzp_trainer_thaw(struct hzp_trainer *t)
{
    /* In this order; otherwise the engine could grant another freeze in between. */
    atomic_store(&t->freeze, false);
    atomic_store(&t->frozen, NULL);
}

/* Detects that the freeze has ended; covers a freeze that was granted while thaw was called. */
bool hzp_trainer_given_back(struct hzp_trainer *t)
{
    return t->picture && (!atomic_load(&t->freeze) || !atomic_load(&t->frozen));
}

void hzp_trainer_serve_freeze(struct hzp_trainer *t, uint64_t last_step)
{
    struct hzp_weights *w = t->config.model->weights;
    if (hzp_trainer_given_back(t)) {
        hzp_weights_release(w, t->picture, last_step);
        t->picture = NULL;
        atomic_store(&t->frozen, NULL);
    }
    /* A trainer that has stopped, wherever that was, writes nothing any more. */
    bool still = hzp_trainer_idle(t) || t->stage == HZP_TRAINER_BROKEN;
    if (!t->picture && atomic_load(&t->freeze) && still && hzp_weights_current(w)) {
        t->picture = hzp_weights_acquire(w);
        t->asked.command.units = 0; /* what was gathered before is of another state */
        atomic_store(&t->frozen, t->picture);
        tell_asker(t);
    }
}

/* --- Holding: other threads ------------------------------------------------------------------- */

void hzp_trainer_suspend(struct hzp_trainer *t)
{
    t->batch.begun = false;
    /* Granted anew: the engine may have read that it may go on, and not have noted it yet. */
    atomic_store(&t->suspended, false);
    atomic_store(&t->suspend, true);
}

bool hzp_trainer_suspended(struct hzp_trainer *t)
{
    return atomic_load(&t->suspended);
}

void hzp_trainer_resume(struct hzp_trainer *t)
{
    atomic_store(&t->restore, NOTHING);
    atomic_store(&t->suspend, false);
}

void hzp_trainer_ask_draft(struct hzp_trainer *t, uint64_t id, bool only)
{
    HZP_ASSERT(hzp_trainer_suspended(t));
    t->older.id = id;
    t->older.only = only;
    atomic_store(&t->restore, DRAFT_WANTED);
}

int hzp_trainer_draft(struct hzp_trainer *t, struct hzp_version **ret, bool *ret_revived)
{
    int restore = atomic_load(&t->restore);
    if (restore == DRAFT_NONE)
        return HZP_ENOENT;
    if (restore != DRAFT_READY)
        return HZP_EBUSY;
    *ret = t->older.draft;
    *ret_revived = t->older.revived;
    return HZP_OK;
}

void hzp_trainer_ask_publish(struct hzp_trainer *t, const struct hzp_trainer_numbers *numbers)
{
    HZP_ASSERT(atomic_load(&t->restore) == DRAFT_READY);
    t->older.numbers = *numbers;
    atomic_store(&t->restore, PUBLISH_WANTED);
}

uint64_t hzp_trainer_published(struct hzp_trainer *t)
{
    return atomic_load(&t->restore) == PUBLISHED ? t->older.published : 0;
}

void hzp_trainer_ask_marks(struct hzp_trainer *t, const struct hzp_mark *mark, int32_t count)
{
    HZP_ASSERT(hzp_trainer_suspended(t));
    t->older.mark = mark;
    t->older.marks = count;
    atomic_store(&t->marks_wanted, true);
}

bool hzp_trainer_told(struct hzp_trainer *t)
{
    return !atomic_load(&t->marks_wanted);
}

void hzp_trainer_ask_drop(struct hzp_trainer *t)
{
    atomic_store(&t->restore, DROP_WANTED);
}

bool hzp_trainer_dropped(struct hzp_trainer *t)
{
    return atomic_load(&t->restore) == NOTHING;
}

void hzp_trainer_stop_learning(struct hzp_trainer *t)
{
    HZP_ASSERT(hzp_trainer_suspended(t));
    atomic_store(&t->stop_wanted, true);
}

bool hzp_trainer_stopped(struct hzp_trainer *t)
{
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(t, &stats);
    return stats.broken || atomic_load(&t->stop_wanted);
}

/* --- Holding: the engine thread --------------------------------------------------------------- */

/* Gives up micro-batches none of whose items is in flight, and what a trainer that has stopped
 * leaves behind.  With several ranks transfers of the last chain may be in flight, and are posted
 * by what of it has ended. */
static void give_up(struct hzp_trainer *t, uint64_t last_step)
{
    struct hzp_weights *w = t->config.model->weights;
    bool micro = t->stage == HZP_TRAINER_ACCUMULATE && t->at == t->to && !t->collectives;
    if (micro || (t->stage == HZP_TRAINER_WAIT && !t->tail)) {
        hzp_sample_queue_undo(t->config.queue);
        if (t->held)
            hzp_weights_release(w, t->held, last_step);
        t->held = NULL;
        if (!t->collectives) {
            hzp_plan_clear(&t->chain);
            t->at = t->to = 0;
        }
        t->stage = HZP_TRAINER_IDLE;
    }
    if (t->stage == HZP_TRAINER_TRIAL)
        hzp_trainer_trial_withdraw(t, "other weights are to serve");
    if (t->stage == HZP_TRAINER_BROKEN && t->draft) {
        hzp_weights_abandon(w, t->draft);
        t->draft = NULL;
        t->unpublished = 0;
    }
    if (t->stage == HZP_TRAINER_BROKEN && t->held) { /* a rank was lost in the middle */
        hzp_weights_release(w, t->held, last_step);
        t->held = NULL;
    }
}

static void find_draft(struct hzp_trainer *t)
{
    struct hzp_weights *w = t->config.model->weights;
    int r = hzp_weights_revive(w, t->older.id, &t->older.draft);
    t->older.revived = r == HZP_OK;
    if (r != HZP_OK && !t->older.only) /* it has readers: the version is on disk, too */
        r = hzp_weights_begin(w, &t->older.draft);
    if (r != HZP_EBUSY)
        atomic_store(&t->restore, r == HZP_OK ? DRAFT_READY : DRAFT_NONE);
}

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
}

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
    int64_t number[64];
    int32_t n, from = 0;
    do {
        n = hzp_sample_queue_rejected(t->config.queue, from, number, HZP_COUNT(number));
        for (int32_t i = 0; i < n; i++)
            hzp_weights_add_unlearned(w, number[i]);
        from += n;
    } while (n);
    t->failed_told = 0;
    hzp_trainer_note_unlearned(t);
}

static void drop_draft(struct hzp_trainer *t)
{
    if (t->older.draft)
        hzp_weights_abandon(t->config.model->weights, t->older.draft);
    t->older.draft = NULL;
    atomic_store(&t->restore, NOTHING);
}

/* Publishes with this step, or begins the chain that comes before. */
static bool begin_publish(struct hzp_trainer *t, bool keep_version)
{
    const struct hzp_model *model = t->config.model;
    if (t->stage == HZP_TRAINER_RESTORE)
        return false; /* the chain is offered like any other */
    if (!hzp_weights_fp8(model->weights) || t->older.draft->fp8_made) {
        t->older.now = !keep_version;
        return t->older.now;
    }
    hzp_plan_clear(&t->chain);
    t->chain.tenant = HZP_TENANT_TRAIN;
    t->chain.layer = -1;
    hzp_update_end(&t->chain, model, t->older.draft, t->space);
    t->at = t->to = 0;
    t->stage = HZP_TRAINER_RESTORE;
    return false;
}

bool hzp_trainer_serve_suspend(struct hzp_trainer *t, uint64_t last_step, bool keep_version)
{
    int parting = atomic_load(&t->parting);
    t->older.now = false;
    if (parting == HZP_PARTING_CLOSED)
        hzp_trainer_give_up_ranks(t, last_step);
    else if ((parting != HZP_PARTING_NONE || hzp_trainer_rejoins(t)) && !atomic_load(&t->suspended))
        return false; /* the link may still read and write what would be given up */
    if (!atomic_load(&t->suspend)) {
        atomic_store(&t->suspended, false);
        if (atomic_exchange(&t->stop_wanted, false)) {
            t->stage = HZP_TRAINER_BROKEN;
            hzp_lock_take(&t->lock);
            t->stats.broken = true;
            hzp_lock_release(&t->lock);
        }
        return false;
    }
    give_up(t, last_step);
    hzp_trainer_serve_join(t);
    bool rests = t->stage == HZP_TRAINER_IDLE || t->stage == HZP_TRAINER_BROKEN;
    if (rests && !t->unpublished && !atomic_exchange(&t->suspended, true))
        tell_asker(t);
    if (atomic_load(&t->marks_wanted)) {
        hzp_trainer_tell_marks(t, t->older.mark, t->older.marks);
        atomic_store(&t->marks_wanted, false);
    }
    switch (atomic_load(&t->restore)) {
    case DRAFT_WANTED:
        find_draft(t);
        return false;
    case DROP_WANTED:
        drop_draft(t);
        return false;
    case PUBLISH_WANTED:
        return begin_publish(t, keep_version);
    default:
        return false;
    }
}

void hzp_trainer_publish_older(struct hzp_trainer *t, uint64_t last_step)
{
    struct hzp_weights *w = t->config.model->weights;
    const struct hzp_trainer_numbers *n = &t->older.numbers;
    struct hzp_version *draft = t->older.draft;
    draft->record.optimizer_step = n->optimizer_step;
    draft->record.learned_through = n->learned_through;
    draft->record.checksum = n->checksum;
    draft->fp8_made = true; /* by the chain, or when it was first published */
    hzp_weights_publish(w, draft, last_step);
    t->older.published = draft->record.id;
    t->older.draft = NULL;
    t->older.now = false;
    t->stage = HZP_TRAINER_IDLE;
    t->optimizer_step = n->optimizer_step;
    t->draws = n->draws;
    t->reset_step = n->reset_step;
    t->learned_through = n->learned_through;
    t->failures = 0;
    hzp_trainer_gate_forget(t);
    t->version_loss_sum = t->version_weight_sum = 0;
    memset(&t->learned, 0, sizeof(t->learned));
    hzp_lock_take(&t->lock);
    t->stats.optimizer_step = n->optimizer_step;
    t->stats.draws = n->draws;
    t->stats.broken = false;
    hzp_lock_release(&t->lock);
    atomic_store(&t->restore, PUBLISHED);
}
