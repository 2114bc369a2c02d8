/* SPDX-License-Identifier: Apache-2.0 */
/* train/history/trainer_restore.c - with several ranks: sends the others a version, and moments and
 * residuals, unit by unit: what a run begins with, an older version that rank 0 makes serve again,
 * and what ranks that have come back begin with.
 *
 * A version that is restored serves on rank 0 by then, so a rank that is lost here stops learning,
 * and changes nothing about what serves.
 *
 * The engine thread exchanges something once in a step, so units are sent together, as many as have
 * room in the stage (collectives.h). */
#include "train/conductor/trainer_state.h"
#include "train/history/trainer_suspend.h"

/* Sends what waits in the stage. */
static int flush(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    const struct hzp_work work = {.kind = HZP_WORK_WRITE,
                                  .gather = {.part = t->batch.part, .unit = t->batch.unit},
                                  .units = t->batch.units};
    if (!t->batch.units)
        return HZP_OK;
    t->batch.units = 0;
    t->batch.elements = 0;
    return hzp_trainer_exchange(t, &work, reterr);
}

static int begin(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    if (!t->learner->collectives || t->batch.begun)
        return HZP_OK;
    memset(&t->batch, 0, sizeof(t->batch));
    t->batch.begun = true;
    t->asked.filled = (struct hzp_rank_filled){0};
    return hzp_trainer_exchange(t, &(struct hzp_work){.kind = HZP_WORK_CLEAR}, reterr);
}

/* A hzp_unit_take_fn of the trainer: the other ranks get the unit. */
static int send_unit(void *ctx, enum hzp_state_part part, int32_t u,
                     const struct hzp_unit_view *whole, struct hzp_err_text *reterr)
{
    struct hzp_trainer *t = ctx;
    struct hzp_collectives *x = t->learner->collectives;
    bool joins = part == t->batch.part && u == t->batch.unit + t->batch.units &&
                 t->batch.elements + whole->elements <= hzp_collectives_fill_elements(x);
    if (!joins)
        HZP_TRY(flush(t, reterr));
    if (!t->batch.units) {
        t->batch.part = part;
        t->batch.unit = u;
    }
    char *at = hzp_collectives_stage(x);
    at += t->batch.elements * hzp_dtype_size(whole->type);
    int r = hzp_device_copy(t->config.model->dev, at, whole->base, hzp_unit_bytes(whole));
    t->batch.elements += whole->elements;
    t->batch.units++;
    t->asked.filled.received += hzp_unit_checksum(whole);
    return r < 0 ? hzp_fail(reterr, r, "cannot copy the version: %s", hzp_err_name(r)) : r;
}

/* This rank's part of the weights, with which those of the others are compared. */
static int sum_own(struct hzp_trainer *t, const struct hzp_version *v, struct hzp_err_text *reterr)
{
    const struct hzp_model *model = t->config.model;
    int r = hzp_units_checksum(model->dev, hzp_version_units(model->weights, v),
                               &t->asked.filled.weights);
    return r < 0 ? hzp_fail(reterr, r, "cannot read the weights: %s", hzp_err_name(r)) : r;
}

static int adopt(struct hzp_trainer *t, const struct hzp_version *v, struct hzp_err_text *reterr)
{
    const struct hzp_work work = {.kind = HZP_WORK_ADOPT,
                                  .optimizer_step = v->record.optimizer_step,
                                  .version = v->record.id,
                                  .checksum = v->record.checksum};
    t->batch.begun = false;
    return hzp_trainer_exchange(t, &work, reterr);
}

int hzp_trainer_restore_ranks(struct hzp_trainer *t, const struct hzp_version *v,
                              const struct hzp_unit_source *source, struct hzp_err_text *reterr)
{
    struct hzp_weights_source own;
    const struct hzp_units *units = hzp_version_units(t->config.model->weights, v);
    HZP_ASSERT(source || hzp_units_whole(units));
    if (!t->learner->collectives)
        return HZP_OK;
    uint64_t *whole = source ? NULL : &t->asked.filled.weights; /* this rank's part is all */
    source = source ? source : hzp_weights_source(t->config.model->dev, units, &own);
    HZP_TRY(begin(t, reterr)); /* where no state was sent, it is zero */
    HZP_TRY(hzp_unit_stream(source, HZP_STATE_WEIGHTS, send_unit, t, whole, reterr));
    HZP_TRY(flush(t, reterr));
    if (!whole)
        HZP_TRY(sum_own(t, v, reterr));
    return adopt(t, v, reterr);
}

/* --- The state on rank 0 ---------------------------------------------------------------------- */

static int load(struct hzp_trainer *t, const struct hzp_version *v, const char *dir,
                struct hzp_trainer_numbers *ret, struct hzp_err_text *reterr)
{
    struct hzp_state_sink sink = hzp_state_space_sink(t->config.model, t->learner->space);
    struct hzp_state_file *file;
    if (t->learner->collectives) {
        sink.threads = 1; /* units are sent one after the other */
        sink.take = send_unit;
        sink.ctx = t;
    }
    HZP_TRY(hzp_state_file_open_for(t->config.model, &t->config.recipe, t->learner->space, true, v,
                                    dir, false, &file, ret, NULL, reterr));
    t->batch.begun = false; /* what an attempt that failed has sent is cleared */
    int r = begin(t, reterr);
    if (r >= 0)
        r = hzp_state_file_read(file, &sink, NULL, reterr);
    hzp_state_file_close(file);
    return r;
}

int hzp_trainer_load_suspended(struct hzp_trainer *t, const struct hzp_version *v, const char *dir,
                               struct hzp_trainer_numbers *ret, struct hzp_err_text *reterr)
{
    HZP_ASSERT(hzp_trainer_suspended(t));
    return load(t, v, dir, ret, reterr);
}

int hzp_trainer_send_start_state(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    const struct hzp_version *v = hzp_weights_current(t->config.model->weights);
    struct hzp_trainer_numbers numbers;
    hzp_assert_engine_thread();
    if (!t->learner->collectives || t->config.model->tensor) /* each group has read its own */
        return HZP_OK;
    if (!hzp_units_whole(hzp_version_units(t->config.model->weights, v))) { /* as each rank */
        HZP_TRY(sum_own(t, v, reterr));
        return adopt(t, v, reterr);
    }
    if (t->loaded_dir)
        HZP_TRY(load(t, v, t->loaded_dir, &numbers, reterr));
    return hzp_trainer_restore_ranks(t, v, NULL, reterr);
}

int hzp_trainer_clear_suspended(struct hzp_trainer *t)
{
    HZP_ASSERT(hzp_trainer_suspended(t));
    return hzp_train_space_clear(t->learner->space);
}
