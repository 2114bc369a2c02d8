/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/plan.h - the nano-operations of a step, as data.
 *
 * A plan is a list of items in issue order.  An item names its op, its lane, and the earlier items
 * it waits for; items of one lane run in order.  Nothing else orders anything.  hzp_plan_check()
 * proves from the ops' declared reads and writes that any two items touching the same memory, one
 * of them writing, are ordered by lanes and waits: overlap can then never be a data race.
 *
 * A chain is a plan too: the forward, loss and backward of one micro-batch, or the update of all
 * units.  The trainer offers ranges of its chain; a step's plan takes the items over.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_PLAN_H
#define HZP_NANOBATCH_PLAN_H

#include "base/arena.h"
#include "device/device.h"

#include <stdio.h>

enum hzp_lane_name { HZP_LANE_COMPUTE, HZP_LANE_MEMORY, HZP_LANE_NETWORK, HZP_LANE_COPY,
                     HZP_LANE_COUNT };

struct hzp_item {
    enum hzp_op op;
    const void *args;    /* hzp_<op>_args, in the arena of the plan that made it */
    uint8_t lane;        /* enum hzp_lane_name */
    bool train;          /* of a training chain */
    int16_t layer;       /* -1: of none */
    int32_t wait0, waits; /* its range of plan->wait: indices of earlier items */
};

struct hzp_plan {
    struct hzp_arena arena;
    struct hzp_item *item;
    int32_t *wait;
    int32_t items, items_room, waits, waits_room;
    int16_t layer; /* given to items added from here on */
    bool train;
};

void hzp_plan_init(struct hzp_plan *plan);
void hzp_plan_fini(struct hzp_plan *plan);
void hzp_plan_clear(struct hzp_plan *plan); /* keeps the memory */

/* Appends an op; args (of the op's own struct) are copied.  Returns the item's index. */
int32_t hzp_plan_add(struct hzp_plan *plan, enum hzp_op op, enum hzp_lane_name lane,
                     const void *args);

/* The newest item waits for item `earlier` (an index below it). */
void hzp_plan_wait(struct hzp_plan *plan, int32_t earlier);

/* Appends items [from, to) of a chain, which must outlive the run.  A wait for an item before
 * `from` is dropped: those ended in an earlier step. */
void hzp_plan_take(struct hzp_plan *plan, const struct hzp_plan *chain, int32_t from, int32_t to);

/* HZP_EINVAL names the first two items that race, or a wait that points forward. */
int hzp_plan_check(const struct hzp_plan *plan, struct hzp_err_text *reterr);

/* One line an item: number, lane, op, layer, shape, flops, bytes, waits. */
void hzp_plan_print(const struct hzp_plan *plan, FILE *out);

#define HZP_PLAN_ADD(plan, name, lane, ...)                                                        \
    hzp_plan_add((plan), HZP_OP_##name, (lane), &(struct hzp_##name##_args){__VA_ARGS__})

#endif
