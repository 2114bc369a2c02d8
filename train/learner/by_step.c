/* SPDX-License-Identifier: Apache-2.0 */
#include "train/learner/by_step.h"

#include "base/thread.h"

struct hzp_learner_by_step {
    struct hzp_learner *learner;
    uint64_t step; /* the newest one that has ended */
    struct hzp_learner_by_step_stats stats;
};

int32_t hzp_learner_work_room(const struct hzp_recipe *recipe)
{
    return (int32_t)hzp_work_room(hzp_recipe_rows(recipe));
}

int hzp_learner_by_step_create(const struct hzp_learner_config *config,
                               struct hzp_learner_by_step **ret)
{
    struct hzp_learner_by_step *b = hzp_xcalloc(1, sizeof(*b));
    int r = hzp_learner_create(config, &b->learner, NULL);
    if (r < 0) {
        free(b);
        return r;
    }
    *ret = b;
    return HZP_OK;
}

void hzp_learner_by_step_destroy(struct hzp_learner_by_step *b)
{
    if (!b)
        return;
    hzp_learner_destroy(b->learner);
    free(b);
}

struct hzp_learner *hzp_learner_by_step_learner(struct hzp_learner_by_step *b)
{
    return b->learner;
}

void hzp_learner_by_step_read_stats(const struct hzp_learner_by_step *b,
                                    struct hzp_learner_by_step_stats *ret)
{
    *ret = b->stats;
}

/* --- Chains ----------------------------------------------------------------------------------- */

/* What rank 0 gathers belongs to its current version, which is this rank's current one, too. */
static int check_gather(const struct hzp_learner *l, const struct hzp_gather *g,
                        struct hzp_err_text *reterr)
{
    const struct hzp_model *model = l->config.model;
    const struct hzp_version *v = hzp_weights_current(model->weights);
    if (l->draft || !hzp_gather_valid(model, v, l->space, g))
        return hzp_fail(reterr, HZP_EINVAL,
                        "rank 0 gathers elements from %" PRId64 " on, %d of them, of unit %d of "
                        "part %d of the state, which this rank has not",
                        g->from, g->count, g->unit, (int)g->part);
    return HZP_OK;
}

/* A gate looks at the updates of the draft; what the first has changed was copied before it. */
static int check_gate(const struct hzp_learner *l, const struct hzp_work *work,
                      struct hzp_err_text *reterr)
{
    bool update = work->kind == HZP_WORK_UPDATE;
    if (!l->config.undoes && (!update || work->saves))
        return hzp_fail(reterr, HZP_EINVAL, "rank 0 has --gate, this rank has not");
    if (!update && !l->unpublished)
        return hzp_fail(reterr, HZP_EINVAL,
                        "rank 0's gate looks at an update, this rank has none in its draft");
    return HZP_OK;
}

/* Whether the work may be done where this rank is. */
static int check(const struct hzp_learner *l, const struct hzp_work *work,
                 struct hzp_err_text *reterr)
{
    switch (work->kind) {
    case HZP_WORK_MICRO:
    case HZP_WORK_NONE:
        return HZP_OK;
    case HZP_WORK_GATHER:
        return check_gather(l, &work->gather, reterr);
    case HZP_WORK_UPDATE:
    case HZP_WORK_EVAL:
    case HZP_WORK_UNDO:
        return check_gate(l, work, reterr);
    default:
        return hzp_fail(reterr, HZP_EINVAL, "rank 0 has sent work that makes no chain (%d)",
                        (int)work->kind);
    }
}

/* The next chain, from its work. */
static int begin(struct hzp_learner_by_step *b, const struct hzp_step_training *t,
                 struct hzp_err_text *reterr)
{
    struct hzp_learner *l = b->learner;
    if (t->chain != l->number + 1 || l->at != l->chain.items)
        return hzp_fail(reterr, HZP_EINVAL,
                        "rank 0 begins chain %" PRIu64 " of training, this rank is at item %d of "
                        "%d of chain %" PRIu64,
                        t->chain, l->at, l->chain.items, l->number);
    HZP_TRY(hzp_learner_read(l, t->work, t->work_bytes, reterr));
    HZP_TRY(check(l, &l->work, reterr));
    if (l->work.kind == HZP_WORK_UPDATE && hzp_learner_take_draft(l) < 0)
        return hzp_fail(reterr, HZP_EBUSY,
                        "chain %" PRIu64 " updates: no slot of weights is free here", t->chain);
    if (!l->unpublished) /* the draft holds nothing yet */
        l->optimizer_step = hzp_weights_current(l->config.model->weights)->record.optimizer_step;
    hzp_learner_begin_read(l);
    return HZP_OK;
}

int hzp_learner_by_step_chain(void *by_step, const struct hzp_step_record *record,
                              const struct hzp_plan **ret, struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_learner_by_step *b = by_step;
    struct hzp_learner *l = b->learner;
    const struct hzp_step_training *t = &record->training;
    if (t->work_bytes)
        HZP_TRY(begin(b, t, reterr));
    if (t->chain != l->number || t->from != l->to)
        return hzp_fail(reterr, HZP_EINVAL,
                        "rank 0 is at item %d of chain %" PRIu64 " of training, this rank at item "
                        "%d of chain %" PRIu64,
                        t->from, t->chain, l->to, l->number);
    l->to = t->to;
    *ret = &l->chain;
    return HZP_OK;
}

/* As the trainer decides, from the same numbers. */
static void end_update(struct hzp_learner_by_step *b)
{
    struct hzp_learner *l = b->learner;
    if (hzp_learner_result(l) == HZP_UPDATE_GOOD) {
        b->stats.updates++;
        hzp_learner_keep(l);
        return;
    }
    b->stats.skipped++;
    if (!l->unpublished)
        hzp_learner_abandon(l);
}

void hzp_learner_by_step_ran(void *by_step, const struct hzp_step_record *record,
                             const struct hzp_version *version, const struct hzp_batch *batch)
{
    hzp_assert_engine_thread();
    struct hzp_learner_by_step *b = by_step;
    struct hzp_learner *l = b->learner;
    const struct hzp_step_training *t = &record->training;
    b->step = record->step;
    if (t->chain == 0 || t->to == l->at)
        return;
    l->at = t->to;
    if (l->at < l->chain.items)
        return;
    if (l->work.kind == HZP_WORK_UPDATE)
        end_update(b);
    if (l->work.kind == HZP_WORK_UNDO)
        hzp_learner_abandon(l);
    b->stats.micros += l->work.kind == HZP_WORK_MICRO;
    b->stats.halved += l->work.halved;
    b->stats.evaluations += l->work.kind == HZP_WORK_EVAL;
    b->stats.undone += l->work.kind == HZP_WORK_UNDO;
}

int hzp_learner_by_step_publish(void *by_step, uint64_t id, struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_learner_by_step *b = by_step;
    struct hzp_learner *l = b->learner;
    bool writes = l->work.kind == HZP_WORK_UPDATE && l->at < l->chain.items;
    if (!l->draft || !l->unpublished || writes)
        return hzp_fail(reterr, HZP_EINVAL,
                        "rank 0 has published version %" PRIu64 ", which this rank has not learned",
                        id);
    hzp_learner_publish(l, b->step);
    /* the next update may need the slot in this very step */
    hzp_weights_reclaim(l->config.model->weights, b->step);
    b->stats.publications++;
    return HZP_OK;
}
