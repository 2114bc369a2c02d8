/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_behind.c - what is done before a server learns: at its start the products
 * of micro-batches, so that their algorithms are timed; when it is ready, memory is zeroed by
 * slices, and another thread reads the optimizer's state of a checkpoint. */
#include "train/conductor/trainer_state.h"

enum {
    PREPARE_FIRST = 4,  /* MB zeroed by the first chain of the preparation */
    PREPARE_MOST = 256, /* and by the longest */
};

bool hzp_trainer_prepare_next(struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    struct hzp_plan *chain = hzp_learner_begin_chain(t->learner);
    /* How long it takes to touch memory for the first time is not known before it was done: the
     * first chain is short, and each of the next twice as long, so that slices are cut by what the
     * ones before took. */
    if (hzp_train_space_prepare(t->learner->space, chain, &t->prepared,
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
