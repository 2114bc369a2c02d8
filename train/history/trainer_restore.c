/* SPDX-License-Identifier: Apache-2.0 */
/* train/history/trainer_restore.c - with several ranks: sends the others an older version that rank
 * 0 makes serve again, and moments and residuals, unit by unit.
 *
 * The version serves on rank 0 by then, so a rank that is lost here stops learning, and changes
 * nothing about what serves.
 *
 * The engine thread exchanges something once in a step, so units are sent together, as many as have
 * room where the largest has. */
#include "train/conductor/trainer_state.h"
#include "train/history/trainer_suspend.h"

/* Sends what waits. */
static int flush(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    const struct hzp_work work = {.kind = HZP_WORK_WRITE,
                                  .gather = {.part = t->batch.part, .unit = t->batch.unit},
                                  .units = t->batch.units};
    if (!t->batch.units)
        return HZP_OK;
    t->batch.units = 0;
    t->batch.elements = 0;
    return hzp_trainer_exchange(t, &work, t->batch.data, reterr);
}

static int restore_begin(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    const struct hzp_work work = {.kind = HZP_WORK_CLEAR};
    if (!t->learner->collectives)
        return HZP_OK;
    t->asked.filled = (struct hzp_rank_filled){0};
    t->batch.units = 0;
    t->batch.elements = 0;
    t->batch.begun = true;
    t->batch.room = hzp_collectives_fill_elements(t->learner->collectives);
    if (!t->batch.data)
        t->batch.data = malloc(t->batch.room * sizeof(float));
    if (!t->batch.data)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for a unit that other ranks are sent");
    return hzp_trainer_exchange(t, &work, NULL, reterr);
}

static int restore_unit(struct hzp_trainer *t, enum hzp_state_part part, int32_t u,
                        const struct hzp_unit_view *whole, struct hzp_err_text *reterr)
{
    if (!t->learner->collectives)
        return HZP_OK;
    bool joins = part == t->batch.part && u == t->batch.unit + t->batch.units &&
                 t->batch.elements + whole->elements <= t->batch.room;
    if (!joins)
        HZP_TRY(flush(t, reterr));
    if (!t->batch.units) {
        t->batch.part = part;
        t->batch.unit = u;
    }
    memcpy(t->batch.data + t->batch.elements * hzp_dtype_size(whole->type), whole->base,
           hzp_unit_bytes(whole));
    t->batch.elements += whole->elements;
    t->batch.units++;
    t->asked.filled.received += hzp_unit_checksum(whole);
    return HZP_OK;
}

static int send_weights(struct hzp_trainer *t, const struct hzp_version *v, int32_t u,
                        const struct hzp_unit_source *source, struct hzp_err_text *reterr)
{
    struct hzp_unit_view mine = hzp_version_unit(t->config.model->weights, v, u), whole;
    void *owned, *none;
    HZP_ASSERT(source || mine.part.count == mine.elements);
    int r = hzp_unit_read(t->config.model->dev, &mine, &mine, &owned);
    if (r < 0)
        return hzp_fail(reterr, r, "cannot copy the weights to host memory: %s", hzp_err_name(r));
    t->asked.filled.weights += hzp_unit_checksum(&mine);
    whole = mine;
    if (source)
        r = source->read(source->ctx, HZP_STATE_WEIGHTS, u, &whole, &none, reterr);
    if (r >= 0)
        r = restore_unit(t, HZP_STATE_WEIGHTS, u, &whole, reterr);
    free(owned);
    return r;
}

static int send_version(struct hzp_trainer *t, const struct hzp_version *v,
                        const struct hzp_unit_source *source, struct hzp_err_text *reterr)
{
    const struct hzp_work work = {.kind = HZP_WORK_ADOPT,
                                  .optimizer_step = v->record.optimizer_step,
                                  .version = v->record.id,
                                  .checksum = v->record.checksum};
    for (int32_t u = 0; u < t->config.model->layout->units; u++)
        HZP_TRY(send_weights(t, v, u, source, reterr));
    HZP_TRY(flush(t, reterr));
    return hzp_trainer_exchange(t, &work, NULL, reterr);
}

int hzp_trainer_restore_ranks(struct hzp_trainer *t, const struct hzp_version *v,
                              const struct hzp_unit_source *source, struct hzp_err_text *reterr)
{
    HZP_ASSERT(hzp_trainer_suspended(t));
    if (!t->learner->collectives)
        return HZP_OK;
    if (!t->batch.begun) /* its moments and residuals are zero */
        HZP_TRY(restore_begin(t, reterr));
    HZP_TRY(send_version(t, v, source, reterr));
    free(t->batch.data); /* after a failure the link may still read it */
    t->batch.data = NULL;
    return HZP_OK;
}

/* --- The state on rank 0 ---------------------------------------------------------------------- */

/* A unit of the state, read from a file: the other ranks get it, too. */
static int take_unit(void *ctx, enum hzp_state_part part, int32_t u,
                     const struct hzp_unit_view *whole, struct hzp_err_text *reterr)
{
    return restore_unit(ctx, part, u, whole, reterr);
}

int hzp_trainer_load_suspended(struct hzp_trainer *t, const struct hzp_version *v, const char *dir,
                               struct hzp_trainer_numbers *ret, struct hzp_err_text *reterr)
{
    struct hzp_state_sink sink = hzp_state_space_sink(t->config.model, t->learner->space);
    struct hzp_state_file *file;
    HZP_ASSERT(hzp_trainer_suspended(t));
    if (t->learner->collectives) {
        sink.threads = 1; /* units are sent one after the other */
        sink.take = take_unit;
        sink.ctx = t;
    }
    HZP_TRY(hzp_state_file_open_for(t->config.model, &t->config.recipe, t->learner->space, true, v,
                                    dir, false, &file, ret, NULL, reterr));
    int r = restore_begin(t, reterr);
    if (r >= 0)
        r = hzp_state_file_read(file, &sink, NULL, reterr);
    hzp_state_file_close(file);
    return r;
}

int hzp_trainer_clear_suspended(struct hzp_trainer *t)
{
    HZP_ASSERT(hzp_trainer_suspended(t));
    return hzp_train_space_clear(t->learner->space);
}
