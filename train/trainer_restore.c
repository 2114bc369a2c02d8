/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_restore.c - with several ranks: sends the others an older version that rank 0 makes
 * serve again, and moments and residuals, unit by unit.
 *
 * The version serves on rank 0 by then, so a rank that is lost here stops learning, and changes
 * nothing about what serves.
 *
 * The engine thread exchanges something once in a step, so units are sent together, as many as have
 * room where the largest has. */
#include "train/trainer_state.h"
#include "weights/model_dir.h"

#include <stdlib.h>
#include <string.h>

/* Sends what waits. */
static int flush(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    struct hzp_rank_command command = {.kind = HZP_RANK_COMMAND_FILL,
                                       .part = t->batch.part,
                                       .unit = t->batch.unit,
                                       .units = t->batch.units};
    if (!t->batch.units)
        return HZP_OK;
    t->batch.units = 0;
    t->batch.elements = 0;
    return hzp_trainer_exchange(t, &command, t->batch.data, reterr);
}

int hzp_trainer_restore_begin(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    struct hzp_rank_command command = {.kind = HZP_RANK_COMMAND_RESTORE};
    if (!t->collectives)
        return HZP_OK;
    t->asked.filled = (struct hzp_rank_filled){0};
    t->batch.units = 0;
    t->batch.elements = 0;
    t->batch.begun = true;
    t->batch.room = hzp_collectives_fill_elements(t->collectives);
    if (!t->batch.data)
        t->batch.data = malloc(t->batch.room * sizeof(float));
    if (!t->batch.data)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for a unit that other ranks are sent");
    return hzp_trainer_exchange(t, &command, NULL, reterr);
}

int hzp_trainer_restore_unit(struct hzp_trainer *t, enum hzp_state_part part, int32_t u,
                             const struct hzp_unit_view *whole, struct hzp_err_text *reterr)
{
    if (!t->collectives)
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
    struct hzp_unit_view mine = hzp_version_unit(t->config.model->weights, v, u), whole = mine;
    const void *data;
    void *owned;
    HZP_ASSERT(source || mine.part.count == mine.elements);
    int r = hzp_unit_read(t->config.model->dev, &mine, &data, &owned);
    if (r < 0)
        return hzp_fail(reterr, r, "cannot copy the weights to host memory: %s", hzp_err_name(r));
    mine.base = (void *)(uintptr_t)data;
    t->asked.filled.weights += hzp_unit_checksum(&mine);
    if (source)
        r = source->read(source->ctx, u, &data, reterr);
    whole.base = (void *)(uintptr_t)data;
    whole.part = (struct hzp_extent){.first = 0, .count = whole.elements};
    if (r >= 0)
        r = hzp_trainer_restore_unit(t, HZP_STATE_WEIGHTS, u, &whole, reterr);
    free(owned);
    return r;
}

static int send_version(struct hzp_trainer *t, const struct hzp_version *v,
                        const struct hzp_unit_source *source, struct hzp_err_text *reterr)
{
    struct hzp_rank_command command = {.kind = HZP_RANK_COMMAND_ADOPT,
                                       .optimizer_step = v->record.optimizer_step,
                                       .version = v->record.id,
                                       .checksum = v->record.checksum};
    for (int32_t u = 0; u < t->config.model->layout->units; u++)
        HZP_TRY(send_weights(t, v, u, source, reterr));
    HZP_TRY(flush(t, reterr));
    return hzp_trainer_exchange(t, &command, NULL, reterr);
}

int hzp_trainer_restore_ranks(struct hzp_trainer *t, const struct hzp_version *v,
                              const struct hzp_unit_source *source, struct hzp_err_text *reterr)
{
    HZP_ASSERT(hzp_trainer_suspended(t));
    if (!t->collectives)
        return HZP_OK;
    if (!t->batch.begun) /* its moments and residuals are zero */
        HZP_TRY(hzp_trainer_restore_begin(t, reterr));
    HZP_TRY(send_version(t, v, source, reterr));
    free(t->batch.data); /* after a failure the link may still read it */
    t->batch.data = NULL;
    return HZP_OK;
}
