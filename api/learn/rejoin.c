/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/rejoin.c - after the loss of another rank: what this rank serves and learns from here
 * on, and with it the ranks that have met again.
 *
 *     suspend -> the trainer takes over the link with the other ranks
 *     -> the newest checkpoint is the serving version's, and nothing was learned since?
 *         yes: read moments and residuals, which the lost rank has taken with it, and send them
 *              and the version to the others
 *         no:  that checkpoint serves again, as a new version, and what was learned since is
 *              learned again (rollback.c)
 *     -> resume
 *
 * So each example is learned once in the line of the serving version. */
#include "api/learn/state_private.h"
#include "base/log.h"
#include "train/history/trainer_rejoin.h"
#include "train/history/trainer_suspend.h"

/* --- Another thread --------------------------------------------------------------------------- */

int hzp_state_rejoin(struct hzp_state *s, hzp_state_joiner *join, void *ctx,
                     struct hzp_err_text *reterr)
{
    bool ended = false;
    int r = HZP_OK;
    hzp_lock_take(&s->lock);
    bool closed = s->rejoin.closed;
    s->rejoin.wanted = !closed;
    s->rejoin.ended = false;
    s->rejoin.join = join;
    s->rejoin.ctx = ctx;
    hzp_lock_release(&s->lock);
    if (closed)
        return hzp_fail(reterr, HZP_ECANCELED, "the server stops");
    hzp_wake_poke(&s->wake);
    while (!ended) {
        hzp_wake_wait(&s->rejoin_ended, UINT64_MAX);
        HZP_LOCKED(&s->lock);
        ended = s->rejoin.ended;
        r = s->rejoin.result;
        if (ended && r < 0 && reterr)
            *reterr = s->rejoin.why;
    }
    return r;
}

/* --- The file thread -------------------------------------------------------------------------- */

/* Whether the trainer stands where the checkpoint was written; id 0: at the model. */
static int stands_at(struct hzp_state *s, const struct hzp_logged_checkpoint *at, const char *dir,
                     bool *ret, struct hzp_err_text *reterr)
{
    struct hzp_trainer_numbers n = {.learned_through = -1};
    struct hzp_trainer_stats trainer;
    struct hzp_weights_stats weights;
    hzp_trainer_read_stats(s->trainer, &trainer);
    hzp_weights_read_stats(s->model->weights, &weights);
    const struct hzp_version_record *serving = &hzp_weights_current(s->model->weights)->record;
    if (at->id)
        HZP_TRY(hzp_trainer_read_numbers(dir, &n, reterr));
    *ret = n.optimizer_step == weights.serving_optimizer_step &&
           n.optimizer_step == trainer.optimizer_step && n.draws == trainer.draws &&
           n.learned_through == weights.learned_through &&
           (!at->id || n.checksum == serving->checksum);
    return HZP_OK;
}

/* Moments and residuals of the serving version, which the other ranks get, too. */
static int load_state(struct hzp_state *s, const struct hzp_logged_checkpoint *at, const char *dir,
                      struct hzp_err_text *reterr)
{
    struct hzp_trainer_numbers numbers;
    const struct hzp_version *v = hzp_weights_current(s->model->weights);
    if (at->id)
        HZP_TRY(hzp_trainer_load_suspended(s->trainer, v, dir, &numbers, reterr));
    int r = at->id ? HZP_OK : hzp_trainer_clear_suspended(s->trainer);
    if (r < 0)
        return hzp_fail(reterr, r, "cannot reset the optimizer's state: %s", hzp_err_name(r));
    return hzp_trainer_restore_ranks(s->trainer, v, NULL, reterr);
}

/* While suspended. */
static int restore(struct hzp_state *s, struct hzp_err_text *reterr)
{
    struct hzp_logged_checkpoint at = {.id = 0};
    char dir[PATH_MAX];
    bool same;
    HZP_TRY(hzp_state_newest_whole(s, &at, reterr));
    snprintf(dir, sizeof(dir), "%s/%s", s->dir ? s->dir : "", at.name);
    HZP_TRY(stands_at(s, &at, dir, &same, reterr));
    HZP_TRY(s->rejoin.join(s->rejoin.ctx, reterr));
    HZP_TRY(same ? load_state(s, &at, dir, reterr) : hzp_state_go_back(s, &at, reterr));
    if (!same)
        hzp_log(HZP_LOG_WARN, "state",
                "checkpoint=%" PRIu64 " serves again, because the state of a lost rank is gone; "
                "what was learned since is learned again",
                at.id);
    return HZP_OK;
}

static int rejoin(struct hzp_state *s, struct hzp_err_text *reterr)
{
    hzp_state_turn_saver(s, true); /* a checkpoint whose copy is whole: less is learned again */
    HZP_TRY(hzp_state_call(s, hzp_trainer_link_closed, s->trainer, reterr));
    HZP_TRY(hzp_state_call(s, hzp_trainer_suspend, s->trainer, reterr));
    if (!atomic_load(&s->read_only))
        hzp_state_journal(s);
    HZP_TRY(restore(s, reterr));
    hzp_state_release(s, hzp_trainer_resume);
    return HZP_OK;
}

void hzp_state_turn_rejoin(struct hzp_state *s, bool last)
{
    struct hzp_err_text why = {{0}, {0}};
    hzp_lock_take(&s->lock);
    bool wanted = s->rejoin.wanted;
    s->rejoin.closed = s->rejoin.closed || last;
    hzp_lock_release(&s->lock);
    if (!wanted)
        return;
    int r = last ? hzp_fail(&why, HZP_ECANCELED, "the server stops") : rejoin(s, &why);
    hzp_lock_take(&s->lock);
    s->rejoin.wanted = false;
    s->rejoin.ended = true;
    s->rejoin.result = r;
    s->rejoin.why = why;
    hzp_lock_release(&s->lock);
    hzp_wake_poke(&s->rejoin_ended);
    hzp_wake_poke(&s->wake); /* jobs and checkpoints have waited */
}
