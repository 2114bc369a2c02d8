/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_group.c - rank 0 of a group that computes each step together: what the other ranks
 * make its chains from. */
#include "base/arena.h"
#include "train/trainer_state.h"

int hzp_trainer_open_group(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    const struct hzp_trainer_config *c = &t->config;
    if (!c->model->tensor)
        return HZP_OK;
    if (c->link || c->gate || c->trials || c->chunk_rows || c->prepare_behind)
        return hzp_fail(reterr, HZP_EUNSUP,
                        "ranks that compute each step together learn without followers, gate, "
                        "trials, riding rows, and memory that is prepared behind");
    t->work.data = hzp_xmalloc(hzp_chain_work_room(c->recipe.micro_rows));
    return HZP_OK;
}

void hzp_trainer_note_work(struct hzp_trainer *t, const struct hzp_chain_work *work)
{
    hzp_assert_engine_thread();
    if (!t->work.data)
        return;
    t->work.number++;
    t->work.bytes = hzp_chain_work_write(work, t->micro, t->work.data);
}

void hzp_trainer_tell_work(const struct hzp_trainer *t, struct hzp_slice *slice)
{
    if (!t->work.data)
        return;
    slice->number = t->work.number;
    if (slice->from == 0 && slice->to > 0) { /* a slice without items is not told to anyone */
        slice->work = t->work.data;
        slice->work_bytes = t->work.bytes;
    }
}
