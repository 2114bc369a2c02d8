/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_sites.c - averages of sites (train/sites/sites.h) in drafts.
 *
 *     update has ended well -> MERGE: write, audit -> the checks of any draft
 *     idle, no sample waits -> MERGE: save, write, audit -> the same; the draft is a copy
 *
 * The sites' thread writes, so that steps go on meanwhile; the audit goes over the whole draft
 * again, because checks, checkpoints and other servers rely on its checksum. */
#include "train/conductor/trainer_state.h"

enum { SAVE, WRITE, AUDIT };

/* --- What the thread reads -------------------------------------------------------------------- */

static int lend(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    struct hzp_weights *w = t->config.model->weights;
    if (!hzp_trainer_idle(t) || t->stage == HZP_TRAINER_BROKEN || !hzp_weights_current(w))
        return HZP_EBUSY;
    t->site.lent = hzp_weights_acquire(w);
    return HZP_OK;
}

static int give_back(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    if (t->site.lent)
        hzp_weights_release(t->config.model->weights, t->site.lent, border->last_step);
    t->site.lent = NULL;
    return HZP_OK;
}

int hzp_trainer_start_sites(struct hzp_trainer *t, struct hzp_loop *loop)
{
    const struct hzp_sites_host host = {.loop = loop,
                                        .weights = t->config.model->weights,
                                        .residual = hzp_train_space_residual(t->learner->space),
                                        .lend = lend,
                                        .give_back = give_back,
                                        .ctx = t,
                                        .lent = &t->site.lent};
    if (!t->config.sites)
        return HZP_OK;
    t->loop = loop;
    return hzp_sites_start(t->config.sites, &host);
}

void hzp_trainer_end_sites(struct hzp_trainer *t)
{
    if (!t->config.sites)
        return;
    hzp_sites_stop(t->config.sites);
    struct hzp_border border = hzp_loop_border(t->loop);
    give_back(t, &border); /* what the thread could not any more */
}

/* --- What it writes --------------------------------------------------------------------------- */

static void begin_write(struct hzp_trainer *t)
{
    struct hzp_learner *l = t->learner;
    hzp_learner_begin_chain(l);
    t->site.phase = WRITE;
    hzp_sites_apply(t->config.sites, l->draft, t->site.alone ? l->held : NULL);
}

bool hzp_trainer_merge(struct hzp_trainer *t)
{
    if (!t->config.sites || !hzp_sites_ready(t->config.sites, false))
        return false;
    t->site.alone = false;
    t->stage = HZP_TRAINER_MERGE;
    begin_write(t);
    return true;
}

bool hzp_trainer_merge_alone(struct hzp_trainer *t)
{
    struct hzp_learner *l = t->learner;
    if (!t->config.sites || !hzp_sites_ready(t->config.sites, true) || t->freeze || t->suspend ||
        atomic_load(&t->finishing) || l->unpublished ||
        !hzp_weights_may_update(t->config.model->weights, true) || hzp_learner_take_draft(l) < 0)
        return false;
    hzp_learner_hold(l);
    t->now = (struct hzp_update_report){.alone = true,
                                        .optimizer_step = l->optimizer_step,
                                        .loss = NAN,
                                        .grad_norm = NAN,
                                        .gate_before = NAN,
                                        .gate_after = NAN};
    t->loss_sum = t->weight_sum = 0;
    t->begin_ns = hzp_now_ns();
    struct hzp_plan *chain = hzp_learner_begin_chain(l);
    if (hzp_trainer_checks(t))
        hzp_update_save(chain, l->space);
    t->site.alone = true;
    t->site.phase = SAVE;
    t->stage = HZP_TRAINER_MERGE;
    return true;
}

bool hzp_trainer_merge_turn(struct hzp_trainer *t)
{
    struct hzp_learner *l = t->learner;
    if (t->site.phase != WRITE)
        return true;
    if (!hzp_sites_applied(t->config.sites))
        return false;
    hzp_update_audit_again(hzp_learner_begin_chain(l), t->config.model, l->draft, l->space,
                           t->site.alone);
    t->site.phase = AUDIT;
    return true;
}

void hzp_trainer_end_merge(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns)
{
    if (t->site.phase == SAVE)
        begin_write(t);
    if (t->site.phase == WRITE)
        return;
    t->site.open = true;
    t->now.sites = hzp_sites_in(t->config.sites);
    if (!t->now.sites) { /* nothing but the draft was changed */
        hzp_trainer_end_undo(t, step, now_ns);
        return;
    }
    t->learner->draft->record.sites |= t->now.sites;
    HZP_ASSERT(hzp_learner_result(t->learner) == HZP_UPDATE_GOOD); /* hzp_site_apply sees to it */
    t->check = -1;
    hzp_trainer_passed(t, step); /* the first check follows */
}

void hzp_trainer_note_merged(struct hzp_trainer *t, bool kept)
{
    if (t->site.open)
        hzp_sites_ended(t->config.sites, kept);
    t->site.open = t->site.alone = false;
}
