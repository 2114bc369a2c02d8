/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_save.c - the trainer's state as a source of units, and its checkpoints:
 * loading and saving. */
#include "train/conductor/trainer_state.h"

/* --- Freezing the state for a checkpoint ------------------------------------------------------ */

int hzp_trainer_freeze(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    struct hzp_weights *w = t->config.model->weights;
    hzp_assert_engine_thread();
    HZP_ASSERT(!t->picture);
    t->freeze = true;
    /* A trainer that has stopped, wherever that was, writes nothing any more. */
    bool still = hzp_trainer_idle(t) || t->stage == HZP_TRAINER_BROKEN;
    if (!still || !hzp_weights_current(w))
        return HZP_EBUSY;
    t->picture = hzp_weights_acquire(w);
    t->asked.work.units = 0; /* what was gathered before is of another state */
    return HZP_OK;
}

struct hzp_version *hzp_trainer_frozen(const struct hzp_trainer *t)
{
    return t->picture;
}

int hzp_trainer_thaw(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    hzp_assert_engine_thread();
    t->freeze = false;
    if (t->picture)
        hzp_weights_release(t->config.model->weights, t->picture, border->last_step);
    t->picture = NULL;
    return HZP_OK;
}

/* --- The source ------------------------------------------------------------------------------- */

/* A unit of which this rank has a shard is gathered. */
static int read_unit(void *ctx, enum hzp_state_part part, int32_t u, struct hzp_unit_view *ret,
                     void **ret_owned, struct hzp_err_text *reterr)
{
    const struct hzp_train_state *from = ctx;
    struct hzp_trainer *t = from->owner;
    *ret_owned = NULL;
    *ret = hzp_unit_view(from->source.part[part], u);
    if (t->learner->collectives && !hzp_units_whole(from->source.part[part]))
        return hzp_trainer_gather(t, part, u, ret, reterr);
    int r = hzp_unit_read(t->config.model->dev, ret, ret, ret_owned);
    return r < 0 ? hzp_fail(reterr, r, "cannot copy the state to host memory: %s", hzp_err_name(r))
                 : r;
}

void hzp_trainer_state(struct hzp_trainer *t, const struct hzp_version *v,
                       struct hzp_train_state *ret)
{
    struct hzp_trainer_stats stats;
    const struct hzp_unit_source *whole = hzp_trainer_whole(t);
    hzp_trainer_read_stats(t, &stats);
    *ret = (struct hzp_train_state){
        .source = {.read = read_unit, .ctx = ret},
        .numbers = {.optimizer_step = stats.optimizer_step,
                    .draws = stats.draws,
                    .learned_through = v->record.learned_through,
                    .reset_step = t->reset_step,
                    .loss = isfinite(v->record.loss) ? v->record.loss : -1},
        .recipe = t->config.recipe,
        .owner = t};
    for (int p = 0; p < HZP_STATE_PARTS; p++)
        ret->source.part[p] =
            hzp_gather_units(t->config.model, v, t->learner->space, (enum hzp_state_part)p);
    if (whole)
        ret->source = *whole;
}

int hzp_trainer_save(struct hzp_trainer *t, const struct hzp_version *v, const char *dir,
                     const char *note, struct hzp_err_text *reterr)
{
    struct hzp_train_state state;
    hzp_trainer_state(t, v, &state);
    return hzp_state_file_write(&state, dir, note, reterr);
}

/* --- Loading ---------------------------------------------------------------------------------- */

/* The trainer goes on from a checkpoint's numbers. */
static void begin_from(struct hzp_trainer *t, const char *dir,
                       const struct hzp_trainer_numbers *saved)
{
    free(t->loaded_dir);
    t->loaded_dir = strdup(dir);
    HZP_ASSERT(t->loaded_dir);
    t->learner->optimizer_step = saved->optimizer_step;
    t->draws = saved->draws;
    t->reset_step = saved->reset_step;
    t->learned_through = saved->learned_through;
    HZP_LOCKED(&t->lock);
    t->stats.optimizer_step = saved->optimizer_step;
    t->stats.draws = saved->draws;
    t->stats.loss = saved->loss;
}

int hzp_trainer_load(struct hzp_trainer *t, struct hzp_version *v, const char *dir,
                     bool same_recipe, char *ret_note, struct hzp_err_text *reterr)
{
    struct hzp_trainer_numbers saved;
    if (t->config.model->tensor)
        HZP_TRY(hzp_trainer_load_slices(t, v, dir, same_recipe, &saved, ret_note, reterr));
    else
        HZP_TRY(hzp_state_load(t->config.model, &t->config.recipe, t->learner->space, v, dir,
                               same_recipe, &saved, ret_note, reterr));
    begin_from(t, dir, &saved);
    return HZP_OK;
}

/* --- Loading behind --------------------------------------------------------------------------- */

int hzp_trainer_load_begin(struct hzp_trainer *t, struct hzp_version *v, const char *dir,
                           struct hzp_err_text *reterr)
{
    struct hzp_trainer_numbers saved;
    bool behind = t->config.prepare_behind && !t->learner->collectives &&
                  hzp_device_host_memory(t->config.model->dev);
    if (!behind)
        return hzp_trainer_load(t, v, dir, false, NULL, reterr);
    HZP_TRY(hzp_state_file_open_for(t->config.model, &t->config.recipe, t->learner->space, false, v,
                                    dir, false, &t->rest.file, &saved, NULL,
                                    reterr)); /* it stays open */
    hzp_state_fill_record(v, &saved);
    begin_from(t, dir, &saved);
    atomic_store(&t->rest.state, HZP_REST_UNREAD);
    return HZP_OK;
}

int hzp_trainer_load_rest(struct hzp_trainer *t, const atomic_bool *stop,
                          struct hzp_err_text *reterr)
{
    struct hzp_state_sink sink = hzp_state_space_sink(t->config.model, t->learner->space);
    if (!t->rest.file)
        return HZP_OK;
    sink.threads = 1; /* requests are served meanwhile */
    int r = hzp_state_file_read(t->rest.file, &sink, stop, reterr);
    hzp_trainer_drop_rest(t);
    atomic_store(&t->rest.state, r < 0 ? HZP_REST_FAILED : HZP_REST_NONE);
    return r;
}

void hzp_trainer_drop_rest(struct hzp_trainer *t)
{
    hzp_state_file_close(t->rest.file);
    t->rest.file = NULL;
}
