/* SPDX-License-Identifier: Apache-2.0 */
#include "train/history/trainer_rejoin.h"

#include "train/conductor/trainer_state.h"
#include "train/history/trainer_suspend.h"

struct joining {
    struct hzp_trainer *trainer;
    struct hzp_collectives *collectives; /* with the ranks that have met again */
};

/* At a border: takes over the exchange with them. */
static int join(void *ctx, const struct hzp_border *border)
{
    struct joining *j = ctx;
    struct hzp_trainer *t = j->trainer;
    hzp_assert_engine_thread();
    HZP_ASSERT(!t->learner->collectives);
    t->learner->collectives = j->collectives;
    t->config.link = hzp_collectives_link(t->learner->collectives);
    hzp_link_set_wake(t->config.link, hzp_loop_wake, t->loop);
    atomic_store(&t->stops, false); /* the state was loaded anew */
    hzp_lock_take(&t->lock);
    t->stats.failure[0] = 0;
    t->stats.broken = false;
    hzp_lock_release(&t->lock);
    atomic_store(&t->parting, false);
    return HZP_OK;
}

int hzp_trainer_join(struct hzp_trainer *t, struct hzp_link *link, struct hzp_err_text *reterr)
{
    HZP_ASSERT(hzp_trainer_parting(t) && hzp_trainer_suspended(t));
    struct hzp_collectives_config config = {.link = link,
                                            .shards = t->config.shards,
                                            .model = t->config.model,
                                            .space = t->learner->space,
                                            .micro_rows = hzp_recipe_rows(&t->config.recipe)};
    struct joining j = {.trainer = t};
    hzp_thread_own_engine(&config); /* the exchange is this thread's until the engine takes it */
    int r = hzp_collectives_create(&config, &j.collectives, reterr);
    hzp_thread_disown_engine(&config);
    HZP_TRY(r);
    r = hzp_loop_call(t->loop, join, &j);
    if (r < 0)
        hzp_collectives_destroy(j.collectives);
    return r < 0 ? hzp_fail(reterr, r, "the server stops") : r;
}

/* --- The engine thread ------------------------------------------------------------------------ */

int hzp_trainer_part(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    hzp_assert_engine_thread();
    if (!t->config.link)
        return HZP_OK; /* a loss while the ranks join: it was done */
    atomic_store(&t->parting, true);
    if (t->stage == HZP_TRAINER_PREPARE)
        return HZP_EBUSY; /* memory is made ready without the other ranks */
    hzp_collectives_fail(t->learner->collectives, "a rank was lost");
    hzp_trainer_turn_ranks(t); /* takes notice of it */
    if (t->learner->at != t->learner->to || !hzp_collectives_quiet(t->learner->collectives))
        return HZP_EBUSY; /* items in flight read and write what the link does */
    hzp_link_set_wake(t->config.link, NULL, NULL);
    t->config.link = NULL;
    return HZP_OK;
}

int hzp_trainer_link_closed(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    hzp_assert_engine_thread();
    HZP_ASSERT(hzp_trainer_parting(t) && !t->config.link);
    if (!t->learner->collectives)
        return HZP_OK; /* it was done */
    bool begun = hzp_trainer_by_lesson(t) && t->learner->unpublished;
    hzp_learner_part(t->learner);
    hzp_sample_queue_undo(t->config.queue);
    if (begun)
        hzp_trainer_forget_group(t, HZP_GROUP_WITHDRAWN);
    hzp_learner_abandon(t->learner);
    hzp_learner_let_go(t->learner, border->last_step);
    t->failures = 0;
    t->version_loss_sum = t->version_weight_sum = 0;
    memset(&t->learned, 0, sizeof(t->learned));
    t->ahead = t->gathering = false;
    t->stage = HZP_TRAINER_IDLE;
    return HZP_OK;
}
