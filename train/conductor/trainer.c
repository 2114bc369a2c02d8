/* SPDX-License-Identifier: Apache-2.0 */
#include "train/conductor/trainer_state.h"

/* --- Creation and destruction ----------------------------------------------------------------- */

static int create_learner(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    const struct hzp_trainer_config *c = &t->config;
    const struct hzp_learner_config config = {.recipe = c->recipe,
                                              .model = c->model,
                                              .shards = c->shards,
                                              .link = c->link,
                                              .quantum_flops = c->quantum_flops,
                                              .chunk_rows = c->chunk_rows,
                                              .half_rows = c->half_rows ? c->half_rows : 128,
                                              .ride_rows = c->ride_rows,
                                              .host_state = c->host_state,
                                              .rides = true,
                                              .undoes = hzp_trainer_checks(t) ||
                                                        hzp_sample_queue_by_lesson(c->queue),
                                              .unprepared = c->prepare_behind};
    return hzp_learner_create(&config, &t->learner, reterr);
}

static int create_paths(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    const struct hzp_trainer_config *c = &t->config;
    if (c->shards.stages <= 1 || (!(c->recipe.skip > 0) && !c->recipe.swap))
        return HZP_OK;
    return hzp_stage_paths_create(&c->recipe, &c->shards, c->model->layout, c->link_rate,
                                  c->link_latency_s, &t->stage_paths, reterr);
}

int hzp_trainer_create(const struct hzp_trainer_config *config, struct hzp_trainer **ret,
                       struct hzp_err_text *reterr)
{
    struct hzp_deck deck = hzp_recipe_deck(&config->recipe, config->model->config->layers);
    HZP_TRY(hzp_recipe_check(&config->recipe, reterr));
    if (config->shards.stages <= 1)
        HZP_TRY(hzp_deck_check(&deck, reterr));
    HZP_TRY(hzp_trainer_check_group(config, reterr));
    if (config->gate && !hzp_shards_whole(&config->shards))
        return hzp_fail(reterr, HZP_EUNSUP,
                        "a gate evaluates whole weights on rank 0: use --shard z3=1, no stages");
    bool observes = config->trials && !hzp_trials_undo(config->trials);
    HZP_ASSERT(!config->trials || config->recipe.publish_every == 1);
    HZP_ASSERT(!config->trials || !config->link || (observes && hzp_shards_whole(&config->shards)));
    HZP_ASSERT(!config->gate || config->recipe.publish_every == 1);
    HZP_ASSERT(!hzp_sample_queue_by_lesson(config->queue) || config->recipe.publish_every == 1);
    struct hzp_trainer *t = hzp_xcalloc(1, sizeof(*t));
    t->config = *config;
    hzp_conductor_init(t);
    t->learned_through = -1;
    hzp_lock_init(&t->lock, HZP_LOCK_TRAINER);
    hzp_draw_init(&t->draws_of[0]);
    if (config->link)
        hzp_draw_init(&t->draws_of[1]);
    t->draw = &t->draws_of[0];
    t->other = &t->draws_of[1];
    t->stats.preparing = config->prepare_behind;
    t->stats.gate_before = t->stats.gate_after = t->stats.mfu = t->stats.hfu = NAN;
    t->use = hzp_track_open("training mfu", HZP_TRACK_FEW, true);
    int r = create_paths(t, reterr);
    if (r >= 0)
        r = create_learner(t, reterr);
    if (r >= 0 && config->gate)
        t->gate = hzp_gate_create(config->gate, t->learner);
    if (r < 0) {
        hzp_trainer_destroy(t);
        return r;
    }
    *ret = t;
    return HZP_OK;
}

void hzp_trainer_destroy(struct hzp_trainer *t)
{
    if (!t)
        return;
    hzp_sample_destroy(t->compare.sample);
    hzp_track_close(t->use);
    hzp_trainer_close_group(t);
    hzp_gate_destroy(t->gate);
    hzp_stage_paths_destroy(t->stage_paths);
    hzp_trainer_drop_rest(t);
    hzp_learner_destroy(t->learner);
    hzp_lock_fini(&t->lock);
    for (int i = 0; i < HZP_COUNT(t->draws_of); i++)
        hzp_draw_fini(&t->draws_of[i]);
    free(t->loaded_dir);
    free(t->gathered_unit);
    free(t);
}

struct hzp_source *hzp_trainer_source(struct hzp_trainer *t)
{
    return &t->source;
}

struct hzp_train_space *hzp_trainer_space(struct hzp_trainer *t)
{
    return t->learner->space;
}

struct hzp_learner *hzp_trainer_learner(struct hzp_trainer *t)
{
    return t->learner;
}

/* --- Calls from other threads ----------------------------------------------------------------- */

void hzp_trainer_read_stats(struct hzp_trainer *t, struct hzp_trainer_stats *ret)
{
    hzp_lock_take(&t->lock);
    *ret = t->stats;
    hzp_lock_release(&t->lock);
    ret->paused = atomic_load(&t->paused);
}

bool hzp_trainer_awaits_ranks(const struct hzp_trainer *t)
{
    return t->learner->collectives && t->stage != HZP_TRAINER_BROKEN &&
           !hzp_collectives_done(t->learner->collectives);
}

/* --- Pausing and ending ----------------------------------------------------------------------- */

void hzp_trainer_pause(struct hzp_trainer *t, bool on)
{
    atomic_store(&t->paused, on);
}

void hzp_trainer_finish(struct hzp_trainer *t)
{
    atomic_store(&t->finishing, true);
}

/* --- Ranks that are lost ---------------------------------------------------------------------- */

void hzp_trainer_set_rejoins(struct hzp_trainer *t, bool on)
{
    HZP_LOCKED(&t->lock);
    t->rejoins = on;
    t->stats.broken |= !on && t->stats.failure[0];
}

bool hzp_trainer_rejoins(struct hzp_trainer *t)
{
    HZP_LOCKED(&t->lock);
    bool rejoins = t->rejoins && (t->stats.failure[0] || hzp_trainer_parting(t));
    return rejoins;
}

bool hzp_trainer_parting(const struct hzp_trainer *t)
{
    return atomic_load(&t->parting);
}
