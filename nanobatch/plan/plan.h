/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/plan/plan.h - the nano-operations of a step, as data.
 *
 * A plan is a list of items in issue order.  An item names its op, its lane, and the earlier items
 * it waits for; items of one lane run in order.  There is no other ordering.  hzp_plan_check()
 * proves from the ops' declared reads and writes that any two items that touch the same memory, at
 * least one of them writing, are ordered by lanes and waits, so items that overlap in time cannot
 * race.
 *
 * hzp_plan_next appends an item that needs what the plan's `needs` name, most often the item before
 * it, and waits for those on other lanes.  The item's lane is looked up in the plan's lane_of by
 * the kind of its op.  Further dependences are added with hzp_plan_need.
 *
 * A chain is a training plan that outlives a step: the forward, loss and backward of one
 * micro-batch, or the update of all units.  The trainer offers ranges of its chain; a step's plan
 * takes those items over.
 *
 * Thread: engine.
 */
#pragma once

#include "base/arena.h"
#include "device/device.h"

enum {
    HZP_NANO_MAX = 8, /* nano-batches of one step */
    HZP_STRANDS_MAX =
        40, /* the same, and parts of a step whose rows have several paths (batch.h) */
};

enum hzp_lane_name {
    HZP_LANE_COMPUTE,
    HZP_LANE_MEMORY,
    HZP_LANE_NETWORK,
    HZP_LANE_COPY,
    HZP_LANE_TRAIN,
    HZP_LANE_COUNT
};

/* Groups of op classes that go to one lane: a shape assigns a lane to each kind. */
enum hzp_kind {
    HZP_KIND_PRODUCT, /* THIN, WIDE, GRAD */
    HZP_KIND_DECODE,  /* DECODE */
    HZP_KIND_PREFILL, /* PREFILL, ATTN_BWD */
    HZP_KIND_ROWS,    /* all others */
    HZP_KIND_COUNT
};
enum hzp_kind hzp_op_kind(enum hzp_op op);               /* the kind that the op's class maps to */
const char *hzp_lane_name_text(enum hzp_lane_name lane); /* "compute" and so on */

/* Which kind of work an item belongs to.  Tenants of a step share lanes, but only lanes and named
 * waits order one tenant's items behind another's. */
enum hzp_tenant {
    HZP_TENANT_SERVE, /* answers requests */
    HZP_TENANT_TRAIN, /* learns: forward and backward of micro-batches, updates */
    HZP_TENANT_COUNT
};

struct hzp_item {
    enum hzp_op op;
    const void *args; /* hzp_<op>_args, owned by the arena of the plan that made it */
    uint8_t lane;     /* enum hzp_lane_name */
    uint8_t tenants;  /* a bit for each enum hzp_tenant that has rows in the item, most often one */
    bool again;       /* computes once more what was not kept (recompute) */
    int32_t rides;    /* number of leading rows that belong to training; 0: none */
    int16_t layer;    /* -1: belongs to no layer */
    int16_t cores;    /* cores (SMs) of its lane that it uses at most; 0: all */
    /* the rows of its nano-batch within the step or the micro-batch; 0: it has none */
    int32_t row0, rows;
    int32_t wait0, waits; /* its range in plan->wait, which holds indices of earlier items */
};

/* Whether the tenant has rows in the item. */
static inline bool hzp_item_of(const struct hzp_item *item, enum hzp_tenant tenant)
{
    return item->tenants >> tenant & 1;
}

/* Whether the item belongs to this tenant alone. */
static inline bool hzp_item_only(const struct hzp_item *item, enum hzp_tenant tenant)
{
    return item->tenants == 1 << tenant;
}

/* The names of the tenants that have rows in the item: "serve", "train" or "serve+train". */
const char *hzp_item_tenants_text(const struct hzp_item *item);

/* What an item needs: the newest item on each lane, because earlier ones of the lane have ended
 * before; -1: none. */
struct hzp_needs {
    int32_t item[HZP_LANE_COUNT];
};

struct hzp_plan {
    struct hzp_arena arena;
    struct hzp_item *item;
    int32_t *wait;
    int32_t items, items_room, waits, waits_room;
    /* cores (SMs) of each lane, if several lanes compute; 0: equal */
    int16_t share[HZP_LANE_COUNT];
    /* The last item of serving that reads training's memory, for which the next step's items of
     * training wait; -1: none. */
    int32_t reads_train;
    /* Lanes that count as computing though no item is on them (a bit for each): a step that stands
     * for one with training, at the start. */
    uint32_t computing;

    /* set on items added from here on */
    int16_t layer;
    enum hzp_tenant tenant; /* if rides > 0, the items belong to training too */
    int32_t row0, rows, rides;
    bool again;
    const uint8_t *lane_of;  /* [HZP_KIND_COUNT]; NULL: all items go to HZP_LANE_COMPUTE */
    const int16_t *cores_of; /* [HZP_KIND_COUNT]; NULL: all of their lane's */
    uint8_t network_lane;    /* lane of collectives */
    struct hzp_needs needs;  /* the next item's */
};

/* Without items, on the lanes of the default shape; fini frees what they consist of. */
void hzp_plan_init(struct hzp_plan *plan);
void hzp_plan_fini(struct hzp_plan *plan);
void hzp_plan_clear(struct hzp_plan *plan); /* keeps the memory */

/* Appends an op; args (of the op's own struct) are copied.  Returns the item's index. */
int32_t hzp_plan_add(struct hzp_plan *plan, enum hzp_op op, enum hzp_lane_name lane,
                     const void *args);

/* The next item needs this one and nothing else; -1: nothing. */
void hzp_plan_after(struct hzp_plan *plan, int32_t item);

/* It also needs this one; -1: no effect. */
void hzp_plan_also(struct hzp_plan *plan, int32_t item);

extern const struct hzp_needs hzp_needs_none;

/* Needs of both. */
struct hzp_needs hzp_needs_join(struct hzp_needs a, struct hzp_needs b);

/* The newest item among them; -1: none. */
int32_t hzp_needs_newest(const struct hzp_needs *needs);

/* Appends an op that needs what plan->needs name, on the lane of its kind; the next one needs it.
 * Returns the item's index. */
int32_t hzp_plan_next(struct hzp_plan *plan, enum hzp_op op, const void *args);

/* The same on a lane of the caller's choice. */
int32_t hzp_plan_next_on(struct hzp_plan *plan, enum hzp_op op, enum hzp_lane_name lane,
                         const void *args);

/* Makes the newest item depend on item `earlier` (-1: none); a wait is added only if they are on
 * different lanes. */
void hzp_plan_need(struct hzp_plan *plan, int32_t earlier);

/* The newest item waits for item `earlier` (an index below it). */
void hzp_plan_wait(struct hzp_plan *plan, int32_t earlier);

/* Appends items [from, to) of a chain, which must outlive the run.  A wait for an item before
 * `from` is dropped: such items ended in an earlier step.  If lane_of or network_lane is set, the
 * items go to the lanes they name instead of their own, each needing the one before it, and the
 * first what plan->needs name. */
void hzp_plan_take(struct hzp_plan *plan, const struct hzp_plan *chain, int32_t from, int32_t to);

/* For two plans in flight: the newer one's first item of a tenant on each lane waits for the last
 * items of the same tenant on every lane of the older one. Different tenants of the two steps do
 * not wait for each other.  An item of two tenants waits for both. */
struct hzp_plan_ends {
    int32_t item[HZP_TENANT_COUNT][HZP_LANE_COUNT]; /* -1: no item there */
};
void hzp_plan_firsts(const struct hzp_plan *plan, struct hzp_plan_ends *ret);
void hzp_plan_lasts(const struct hzp_plan *plan, struct hzp_plan_ends *ret);

/* Appends both plans, with those waits, to `ret`, which borrows their arguments: what the checker
 * proves about `ret` holds for the two plans in flight. */
void hzp_plan_join(struct hzp_plan *ret, const struct hzp_plan *older,
                   const struct hzp_plan *newer);

/* HZP_EINVAL names the first two items that race, a wait that points forward, an item that touches
 * what a transfer moves between its begin and its end (hzp_collective_args), or one that ends
 * another transfer than the oldest. */
int hzp_plan_check(const struct hzp_plan *plan, struct hzp_err_text *reterr);

/* Prints one line per item: number, lane, op, layer, shape, flops, bytes, waits. */
void hzp_plan_print(const struct hzp_plan *plan, FILE *out);

#define HZP_PLAN_ADD(plan, name, lane, ...)                                                        \
    hzp_plan_add((plan), HZP_OP_##name, (lane), &(struct hzp_##name##_args){__VA_ARGS__})

#define HZP_PLAN_NEXT(plan, name, ...)                                                             \
    hzp_plan_next((plan), HZP_OP_##name, &(struct hzp_##name##_args){__VA_ARGS__})

/* Hashes what plans of one step have in common on all ranks that compute it together: each
 * item's op, lane, tenants, layer, rows and waits, and the lanes' shares.  Arguments are left out:
 * they hold addresses. */
uint64_t hzp_plan_hash(const struct hzp_plan *plan);

/* The hash of `count` numbers, continuing `hash` (0 at first). */
uint64_t hzp_hash_numbers(uint64_t hash, const int32_t *number, int32_t count);
