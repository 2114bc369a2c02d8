/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_state.h - the trainer's struct, private to the files that implement it.
 *
 * Thread: see the comments in the struct.
 */
#ifndef HZP_TRAIN_TRAINER_STATE_H
#define HZP_TRAIN_TRAINER_STATE_H

#include "base/thread.h"
#include "nanobatch/build/ride.h"
#include "train/pace.h"
#include "train/trainer.h"

#include <stdatomic.h>

enum hzp_trainer_stage {
    HZP_TRAINER_IDLE,
    HZP_TRAINER_PREPARE,    /* a chain that zeroes memory is in progress, or the next to be built */
    HZP_TRAINER_ACCUMULATE, /* a micro-batch's chain is in progress */
    HZP_TRAINER_WAIT,       /* gradients are complete; the update may not begin yet */
    HZP_TRAINER_UPDATE,     /* the update's chain is in progress */
    HZP_TRAINER_BROKEN,     /* device or weights failed: the trainer offers nothing more */
};

/* The samples drawn for one update, and the micro-batch of each. */
struct hzp_draw {
    const struct hzp_sample **sample; /* [count], borrowed from the queue */
    int32_t *bin;                     /* [count] index of its micro-batch; -1: no learned token */
    int32_t *bin_rows;                /* [bins] rows taken so far */
    int32_t count, bins, room;
};

struct hzp_trainer {
    /* fixed after create */
    struct hzp_source source;
    struct hzp_trainer_config config;
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_rider rider; /* of the current micro-batch */
    /* engine thread: the newest step had room for riding rows (hzp_room.ride_rows); the next
     * micro-batch is then cut into chunks */
    bool carried;

    /* engine thread */
    enum hzp_trainer_stage stage;
    struct hzp_plan chain;
    int32_t at, to;  /* items of the chain: [0, at) have ended, [at, to) are offered or in flight */
    bool flush;      /* in this step: publish without offering a slice */
    size_t prepared; /* bytes of the space in the chains so far */
    int32_t prepare_pieces; /* of the next chain */
    struct hzp_draw draw;
    int32_t bin;              /* index of the current micro-batch, 0 .. draw.bins - 1 */
    struct hzp_version *held; /* the current version, acquired for this update; NULL: reads draft */
    struct hzp_version *draft; /* holds `unpublished` finished updates, or is being written */
    int32_t unpublished;
    bool publishes; /* the current update will be published when it ends */
    int64_t step, draws;
    int32_t failures;             /* consecutive failures on the current samples */
    struct hzp_update_report now; /* of the current update */
    double loss_sum;              /* of the current update: weighted losses of its learned tokens */
    double weight_sum;            /* weights of its learned tokens, 1 each by default */
    uint64_t begin_ns;
    struct hzp_pace pace;
    double version_loss_sum, version_weight_sum; /* since the last publication */
    int64_t learned_through;
    struct hzp_learned learned;
    /* the version acquired while frozen, as a checkpoint saves it; NULL: not frozen */
    struct hzp_version *picture;

    /* any thread */
    atomic_bool paused, finishing, freeze;
    _Atomic(struct hzp_version *) frozen;

    /* under lock */
    struct hzp_lock lock;
    struct hzp_trainer_stats stats;
};

#endif
