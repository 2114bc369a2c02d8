/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_trial.c - a draft that passed every check serves a share of the requests
 * before it is published (weights/trials.h).
 *
 * The update's samples stay drawn, the copy of moments and residuals is kept, and no other work
 * begins, so that the draft can still be dropped as if it had never been made. */
#include "base/log.h"
#include "train/conductor/trainer_state.h"

struct hzp_trials *hzp_trainer_trials(const struct hzp_trainer *t)
{
    return hzp_trainer_observes(t) ? NULL : t->config.trials;
}

bool hzp_trainer_observes(const struct hzp_trainer *t)
{
    return t->config.trials && !hzp_trials_undo(t->config.trials);
}

static void set_on_trial(struct hzp_trainer *t, bool on)
{
    HZP_LOCKED(&t->lock);
    t->stats.on_trial = on;
}

void hzp_trainer_trial_begin(struct hzp_trainer *t)
{
    struct hzp_weights *w = t->config.model->weights;
    struct hzp_version_record *record = &t->learner->draft->record;
    hzp_trainer_note_unlearned(t);
    hzp_trainer_fill_record(t, record);
    record->learned_through = hzp_sample_queue_foresee(t->config.queue);
    record->learned = t->learned;
    if (hzp_trainer_by_lesson(t) || t->site.alone) { /* its updates count in the draft already */
        record->optimizer_step = t->learner->optimizer_step;
        record->loss = t->version_loss_sum / t->version_weight_sum;
    } else {
        record->optimizer_step = t->learner->optimizer_step + 1;
        record->loss = t->weight_sum > 0 ? t->loss_sum / t->weight_sum : NAN;
        hzp_trainer_add_learned(t, &record->learned);
    }
    t->learner->draft->fp8_made =
        true; /* by the last items of the update's chain, which has ended */
    hzp_weights_begin_trial(w, t->learner->draft);
    struct hzp_sample_group judged = hzp_trainer_judged(t);
    hzp_log(hzp_trainer_observes(t) ? HZP_LOG_DEBUG : HZP_LOG_INFO, "train",
            "trial begins version=%" PRIu64 " parent=%" PRIu64 " optimizer_step=%" PRId64
            " sequence=%" PRId64 "..%" PRId64,
            record->id, record->parent, record->optimizer_step, judged.first, judged.last);
    hzp_trials_begin(t->config.trials, record->id, record->parent,
                     hzp_device_now_ns(t->config.model->dev));
    t->stage = HZP_TRAINER_TRIAL;
    set_on_trial(t, true);
}

/* why: as of hzp_trials_end.  False: the opposite was asked for since the verdict. */
static bool end_trial(struct hzp_trainer *t, enum hzp_trial_end end, const char *why)
{
    struct hzp_trials_stats stats;
    t->promotes = 0;
    if (!hzp_trials_end(t->config.trials, end, why))
        return false;
    hzp_trials_read(t->config.trials, &stats);
    hzp_log(hzp_trainer_observes(t)    ? HZP_LOG_DEBUG
            : end == HZP_TRIAL_DROPPED ? HZP_LOG_WARN
                                       : HZP_LOG_INFO,
            "train", "trial %s version=%" PRIu64 ": %s", hzp_trial_end_name(end),
            stats.newest.version, stats.newest.reason);
    set_on_trial(t, false);
    return true;
}

void hzp_trainer_trial_break_off(struct hzp_trainer *t)
{
    t->promotes = 0;
    hzp_trials_end(t->config.trials, HZP_TRIAL_WITHDRAWN, "a rank was lost");
    set_on_trial(t, false);
    hzp_weights_drop_trial(t->config.model->weights);
    int32_t updates = t->learner->unpublished;
    hzp_learner_leave_draft(t->learner);
    t->learner->unpublished = updates; /* who gives the draft up takes its lessons back by this */
}

/* False: it goes on. */
static bool drop(struct hzp_trainer *t, enum hzp_trial_end end, const char *why)
{
    if (!end_trial(t, end, why))
        return false;
    t->now.trial = t->learner->draft->record.id;
    t->withdraws = end == HZP_TRIAL_WITHDRAWN;
    hzp_weights_drop_trial(t->config.model->weights);
    hzp_learner_leave_draft(t->learner);
    hzp_trainer_begin_undo(t);
    return true;
}

void hzp_trainer_trial_withdraw(struct hzp_trainer *t, const char *why)
{
    if (!hzp_trainer_observes(t)) /* else the next turn promotes it */
        drop(t, HZP_TRIAL_WITHDRAWN, why);
}

bool hzp_trainer_trial_turn(struct hzp_trainer *t, const struct hzp_step *step,
                            struct hzp_offer *offer)
{
    uint64_t since = t->promotes;
    bool observes = hzp_trainer_observes(t), ends = atomic_load(&t->finishing);
    t->promotes = 0;
    if (ends && !observes) {
        hzp_trainer_trial_withdraw(t, "the server stops");
        return false;
    }
    ends = observes && (ends || t->suspend);
    if (atomic_load(&t->paused) && !ends)
        return true;
    enum hzp_verdict verdict =
        ends ? HZP_VERDICT_PROMOTE : hzp_trials_verdict(t->config.trials, step->begin_ns);
    if (verdict == HZP_VERDICT_DROP)
        return !drop(t, HZP_TRIAL_DROPPED, NULL);
    if (verdict == HZP_VERDICT_PROMOTE && !offer->keep_version)
        t->promotes = since ? since : step->number;
    if (t->promotes && hzp_trainer_over_bound(t, t->learner->unpublished + 1))
        offer->settle = HZP_SETTLE_ALL; /* the next step reads the version published here */
    return true;
}

void hzp_trainer_trial_promote(struct hzp_trainer *t, const struct hzp_step *step)
{
    if (!end_trial(t, HZP_TRIAL_PROMOTED, NULL))
        return; /* the next turn drops it */
    hzp_trainer_passed(t, step);
}
