/* SPDX-License-Identifier: Apache-2.0 */
#include "train/trainer_rejoin.h"

#include "base/thread.h"
#include "train/start_state.h"
#include "train/trainer_state.h"

#include <string.h>

/* --- Other threads ---------------------------------------------------------------------------- */

void hzp_trainer_set_rejoins(struct hzp_trainer *t, bool on)
{
    hzp_lock_take(&t->lock);
    t->rejoins = on;
    t->stats.broken |= !on && t->stats.failure[0];
    hzp_lock_release(&t->lock);
}

bool hzp_trainer_rejoins(struct hzp_trainer *t)
{
    hzp_lock_take(&t->lock);
    bool rejoins = t->rejoins && (t->stats.failure[0] || hzp_trainer_parting(t));
    hzp_lock_release(&t->lock);
    return rejoins;
}

void hzp_trainer_part(struct hzp_trainer *t)
{
    int none = HZP_PARTING_NONE; /* a loss while the ranks join: it was done */
    atomic_compare_exchange_strong(&t->parting, &none, HZP_PARTING_ASKED);
}

bool hzp_trainer_parted(struct hzp_trainer *t)
{
    return atomic_load(&t->parting) >= HZP_PARTING_DONE;
}

void hzp_trainer_link_closed(struct hzp_trainer *t)
{
    HZP_ASSERT(hzp_trainer_parted(t));
    atomic_store(&t->parting, HZP_PARTING_CLOSED);
}

bool hzp_trainer_parting(const struct hzp_trainer *t)
{
    return atomic_load(&t->parting) != HZP_PARTING_NONE;
}

static int give(struct hzp_trainer *t, struct hzp_collectives *x, const char *dir,
                struct hzp_err_text *reterr)
{
    struct hzp_version *v = hzp_weights_current(t->config.model->weights);
    struct hzp_start_state state = {.collectives = x,
                                    .model = t->config.model,
                                    .space = t->space,
                                    .version = v,
                                    .optimizer_step = v->record.optimizer_step,
                                    .state_dir = dir};
    return hzp_start_state_send(&state, reterr);
}

int hzp_trainer_give(struct hzp_trainer *t, struct hzp_link *link, const char *dir,
                     struct hzp_err_text *reterr)
{
    HZP_ASSERT(atomic_load(&t->parting) == HZP_PARTING_CLOSED && hzp_trainer_suspended(t));
    struct hzp_collectives_config config = {.link = link,
                                            .shards = t->config.shards,
                                            .model = t->config.model,
                                            .space = t->space,
                                            .micro_rows = t->config.recipe.micro_rows};
    struct hzp_collectives *x = NULL;
    hzp_thread_own_engine(&config); /* the exchange is this thread's until the engine takes it */
    int r = hzp_collectives_create(&config, &x, reterr);
    if (r >= 0)
        r = give(t, x, dir, reterr);
    hzp_thread_disown_engine(&config);
    if (r < 0)
        hzp_collectives_destroy(x);
    else
        atomic_store(&t->joins, x);
    return r;
}

bool hzp_trainer_joined(struct hzp_trainer *t)
{
    return !hzp_trainer_parting(t);
}

/* --- The engine thread ------------------------------------------------------------------------ */

void hzp_trainer_serve_part(struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    if (atomic_load(&t->parting) != HZP_PARTING_ASKED || t->stage == HZP_TRAINER_PREPARE)
        return; /* memory is made ready without the other ranks */
    hzp_collectives_fail(t->collectives, "a rank was lost");
    hzp_trainer_turn_ranks(t); /* takes notice of it */
    if (t->at != t->to || !hzp_collectives_quiet(t->collectives))
        return; /* items in flight read and write what the link does */
    hzp_link_set_wake(t->config.link, NULL, NULL);
    t->config.link = NULL;
    atomic_store(&t->parting, HZP_PARTING_DONE);
}

void hzp_trainer_give_up_ranks(struct hzp_trainer *t, uint64_t last_step)
{
    struct hzp_weights *w = t->config.model->weights;
    hzp_assert_engine_thread();
    if (!t->collectives)
        return; /* it was done */
    hzp_collectives_destroy(t->collectives);
    t->collectives = NULL;
    hzp_sample_queue_undo(t->config.queue);
    if (t->held)
        hzp_weights_release(w, t->held, last_step);
    if (t->draft)
        hzp_weights_abandon(w, t->draft);
    t->held = t->draft = NULL;
    t->unpublished = t->failures = 0;
    t->version_loss_sum = t->version_weight_sum = 0;
    memset(&t->learned, 0, sizeof(t->learned));
    t->tail = t->ahead = t->gathering = false;
    hzp_plan_clear(&t->chain);
    t->at = t->to = 0;
    t->stage = HZP_TRAINER_IDLE;
}

void hzp_trainer_serve_join(struct hzp_trainer *t)
{
    struct hzp_collectives *x = atomic_exchange(&t->joins, NULL);
    hzp_assert_engine_thread();
    if (!x)
        return;
    HZP_ASSERT(!t->collectives);
    t->collectives = x;
    t->config.link = hzp_collectives_link(x);
    if (t->wake)
        hzp_link_set_wake(t->config.link, t->wake, t->wake_ctx);
    atomic_store(&t->stop_wanted, false); /* the state was loaded anew */
    hzp_lock_take(&t->lock);
    t->stats.failure[0] = 0;
    t->stats.broken = false;
    hzp_lock_release(&t->lock);
    atomic_store(&t->parting, HZP_PARTING_NONE);
}
