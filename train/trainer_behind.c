/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_behind.c - what is done before a server learns: at its start the products of
 * micro-batches, so that their algorithms are timed; when it is ready, memory is zeroed by slices,
 * and another thread reads the optimizer's state of a checkpoint. */
#include "train/trainer_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    PREPARE_FIRST = 4,  /* MB zeroed by the first chain of the preparation */
    PREPARE_MOST = 256, /* and by the longest */
    PRODUCT_ROWS = 128, /* products of fewer rows are not timed, but for those of all */
};

/* One document of so many rows, all learned. */
static int fill_micro(struct hzp_micro *micro, int32_t rows)
{
    int32_t count = rows + 1;
    int32_t *token = calloc((size_t)count, sizeof(*token));
    uint8_t *learn = malloc((size_t)count);
    int r = HZP_ENOMEM;
    hzp_micro_clear(micro);
    if (token && learn) {
        memset(learn, 1, (size_t)count);
        r = hzp_micro_add(micro, token, learn, count);
    }
    free(token);
    free(learn);
    return r;
}

/* Micro-batches have any number of rows: the algorithm of a size serves those that are nearest to
 * it (device/cuda/matmul.c), so halves are enough. */
int hzp_trainer_products(struct hzp_trainer *t, struct hzp_plan *chain)
{
    hzp_assert_engine_thread();
    const struct hzp_model *model = t->config.model;
    const struct hzp_version *v = hzp_weights_current(model->weights);
    int32_t rows = t->micro->rows_max, r = HZP_OK;
    do {
        r = fill_micro(t->micro, rows);
        if (r == HZP_OK)
            hzp_micro_products(chain, model, v, t->micro, t->space);
        rows /= 2;
    } while (r == HZP_OK && rows >= PRODUCT_ROWS);
    hzp_micro_clear(t->micro);
    return r;
}

bool hzp_trainer_prepare_next(struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    hzp_plan_clear(&t->chain);
    t->at = t->to = 0;
    /* How long it takes to touch memory for the first time is not known before it was done: the
     * first chain is short, and each of the next twice as long, so that slices are cut by what the
     * ones before took. */
    if (hzp_train_space_prepare(t->space, &t->chain, &t->prepared,
                                HZP_MAX(t->prepare_pieces, (int32_t)PREPARE_FIRST))) {
        t->prepare_pieces =
            HZP_MIN(2 * HZP_MAX(t->prepare_pieces, (int32_t)PREPARE_FIRST), (int32_t)PREPARE_MOST);
        return true;
    }
    int rest = atomic_load(&t->rest.state);
    if (rest == HZP_REST_UNREAD)
        return false;
    t->stage = rest == HZP_REST_FAILED ? HZP_TRAINER_BROKEN : HZP_TRAINER_IDLE;
    hzp_lock_take(&t->lock);
    t->stats.preparing = false;
    t->stats.broken = rest == HZP_REST_FAILED;
    hzp_lock_release(&t->lock);
    return rest != HZP_REST_FAILED;
}
