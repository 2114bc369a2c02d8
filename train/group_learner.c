/* SPDX-License-Identifier: Apache-2.0 */
#include "train/group_learner.h"

#include "base/arena.h"
#include "base/thread.h"
#include "nanobatch/model/chain_work.h"
#include "nanobatch/run/warm.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

struct hzp_group_learner {
    struct hzp_group_learner_config config;
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_plan chain;
    struct hzp_chain_work work; /* what the chain is made from */
    uint64_t number;            /* the chain's; 0: none so far */
    int32_t planned, done;      /* its items that steps have been given, and that have run */
    struct hzp_version *draft;  /* holds `unpublished` finished updates, or is being written */
    int32_t unpublished;
    uint64_t step; /* the newest one that has ended */
    struct hzp_group_learner_stats stats;
};

/* --- Creation --------------------------------------------------------------------------------- */

int32_t hzp_group_work_room(const struct hzp_recipe *recipe)
{
    return (int32_t)hzp_chain_work_room(recipe->micro_rows);
}

int hzp_group_learner_create(const struct hzp_group_learner_config *config,
                             struct hzp_group_learner **ret)
{
    hzp_assert_engine_thread();
    struct hzp_group_learner *l = hzp_xcalloc(1, sizeof(*l));
    const struct hzp_model *model = config->model;
    struct hzp_train_space_config space =
        hzp_trainer_space_config(&config->recipe, model->config, config->quantum_flops);
    int r;
    space.backup = config->gate;
    l->config = *config;
    hzp_plan_init(&l->chain);
    HZP_TRY_GOTO(hzp_train_space_create(model, &space, &l->space));
    HZP_TRY_GOTO(hzp_micro_create(model->dev, config->recipe.micro_rows, &l->micro));
    *ret = l;
    return HZP_OK;
out:
    hzp_group_learner_destroy(l);
    return r;
}

void hzp_group_learner_destroy(struct hzp_group_learner *l)
{
    if (!l)
        return;
    hzp_plan_fini(&l->chain);
    hzp_micro_destroy(l->micro);
    hzp_train_space_destroy(l->space);
    free(l);
}

struct hzp_train_space *hzp_group_learner_space(struct hzp_group_learner *l)
{
    return l->space;
}

int hzp_group_learner_products(struct hzp_group_learner *l, struct hzp_plan *chain)
{
    return hzp_warm_micros(chain, l->config.model, l->micro, l->space);
}

void hzp_group_learner_read_stats(const struct hzp_group_learner *l,
                                  struct hzp_group_learner_stats *ret)
{
    *ret = l->stats;
}

/* --- Chains ----------------------------------------------------------------------------------- */

/* Builds the chain of l->work.  The version it reads is rank 0's: the draft while that holds
 * updates that are not published; of an evaluation the one that the work names. */
static int build(struct hzp_group_learner *l, struct hzp_err_text *reterr)
{
    struct hzp_model *model = l->config.model;
    bool current = !l->draft || (l->work.kind == HZP_CHAIN_EVAL && !l->work.draft);
    struct hzp_version *v = current ? hzp_weights_current(model->weights) : l->draft;
    bool update = l->work.kind == HZP_CHAIN_UPDATE;
    if (update && !l->draft) {
        int r = hzp_weights_begin(model->weights, &l->draft);
        if (r < 0) {
            l->draft = NULL;
            return hzp_fail(reterr, r, "chain %" PRIu64 " updates: no slot of weights is free here",
                            l->number);
        }
    }
    hzp_plan_clear(&l->chain);
    hzp_chain_work_build(&l->chain, &l->work, model, v, l->draft, l->micro, l->space);
    l->done = l->planned = 0;
    return HZP_OK;
}

/* What rank 0 gathers belongs to its current version, which is this rank's current one, too. */
static int check_gather(const struct hzp_group_learner *l, struct hzp_err_text *reterr)
{
    const struct hzp_model *model = l->config.model;
    const struct hzp_gather *g = &l->work.gather;
    const struct hzp_version *v = hzp_weights_current(model->weights);
    if (l->draft || !hzp_gather_valid(model, v, l->space, g))
        return hzp_fail(reterr, HZP_EINVAL,
                        "rank 0 gathers elements from %" PRId64 " on, %d of them, of unit %d of "
                        "part %d of the state, which this rank has not",
                        g->from, g->count, g->unit, (int)g->part);
    return HZP_OK;
}

/* A gate looks at the newest update, and what that has changed was copied before. */
static int check_gate(const struct hzp_group_learner *l, struct hzp_err_text *reterr)
{
    bool update = l->work.kind == HZP_CHAIN_UPDATE;
    if (!l->config.gate && (!update || l->work.saves))
        return hzp_fail(reterr, HZP_EINVAL, "rank 0 has --gate, this rank has not");
    if (!update && l->unpublished != 1)
        return hzp_fail(reterr, HZP_EINVAL,
                        "rank 0's gate looks at an update, this rank has %d that are not published",
                        l->unpublished);
    return HZP_OK;
}

/* The next chain, from its work. */
static int begin(struct hzp_group_learner *l, const struct hzp_step_training *t,
                 struct hzp_err_text *reterr)
{
    const struct hzp_model *model = l->config.model;
    if (t->chain != l->number + 1 || l->done != l->chain.items)
        return hzp_fail(reterr, HZP_EINVAL,
                        "rank 0 begins chain %" PRIu64 " of training, this rank is at item %d of "
                        "%d of chain %" PRIu64,
                        t->chain, l->done, l->chain.items, l->number);
    HZP_TRY(hzp_chain_work_read(t->work, t->work_bytes, model->config->vocab, model->positions,
                                &l->work, l->micro, reterr));
    if (l->work.kind == HZP_CHAIN_GATHER)
        HZP_TRY(check_gather(l, reterr));
    else if (l->work.kind != HZP_CHAIN_MICRO)
        HZP_TRY(check_gate(l, reterr));
    l->number++;
    return build(l, reterr);
}

int hzp_group_learner_chain(void *learner, const struct hzp_step_record *record,
                            const struct hzp_plan **ret, struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_group_learner *l = learner;
    const struct hzp_step_training *t = &record->training;
    if (t->work_bytes)
        HZP_TRY(begin(l, t, reterr));
    if (t->chain != l->number || t->from != l->planned)
        return hzp_fail(reterr, HZP_EINVAL,
                        "rank 0 is at item %d of chain %" PRIu64 " of training, this rank at item "
                        "%d of chain %" PRIu64,
                        t->from, t->chain, l->planned, l->number);
    l->planned = t->to;
    *ret = &l->chain;
    return HZP_OK;
}

static void abandon(struct hzp_group_learner *l)
{
    hzp_weights_abandon(l->config.model->weights, l->draft);
    l->draft = NULL;
    l->unpublished = 0;
}

/* As the trainer decides, from the same numbers. */
static void end_update(struct hzp_group_learner *l)
{
    const struct hzp_update_result *result = hzp_update_result(l->space);
    if (isfinite(result->sumsq) && result->nonfinite == 0) {
        l->stats.updates++;
        l->unpublished++;
        l->draft->record.optimizer_step++;
        l->draft->record.checksum = result->checksum;
        return;
    }
    l->stats.skipped++;
    if (!l->unpublished)
        abandon(l);
}

void hzp_group_learner_ran(void *learner, const struct hzp_step_record *record,
                           const struct hzp_version *version, const struct hzp_batch *batch)
{
    hzp_assert_engine_thread();
    struct hzp_group_learner *l = learner;
    const struct hzp_step_training *t = &record->training;
    l->step = record->step;
    if (t->chain == 0 || t->to == l->done)
        return;
    l->done = t->to;
    if (l->done < l->chain.items)
        return;
    if (l->work.kind == HZP_CHAIN_UPDATE)
        end_update(l);
    if (l->work.kind == HZP_CHAIN_RESTORE)
        abandon(l);
    l->stats.micros += l->work.kind == HZP_CHAIN_MICRO;
    l->stats.halved += l->work.halved;
    l->stats.evaluations += l->work.kind == HZP_CHAIN_EVAL;
    l->stats.undone += l->work.kind == HZP_CHAIN_RESTORE;
}

int hzp_group_learner_publish(void *learner, uint64_t id, struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_group_learner *l = learner;
    struct hzp_weights *w = l->config.model->weights;
    bool writes = l->work.kind == HZP_CHAIN_UPDATE && l->done < l->chain.items;
    if (!l->draft || !l->unpublished || writes)
        return hzp_fail(reterr, HZP_EINVAL,
                        "rank 0 has published version %" PRIu64 ", which this rank has not learned",
                        id);
    hzp_weights_publish(w, l->draft, l->step);
    hzp_weights_reclaim(w, l->step); /* the next update may need the slot in this very step */
    l->draft = NULL;
    l->unpublished = 0;
    l->stats.publications++;
    return HZP_OK;
}
