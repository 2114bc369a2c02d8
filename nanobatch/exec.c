/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/exec.h"

#include <stdlib.h>
#include <string.h>

struct hzp_exec {
    struct hzp_device *dev;
    bool immediate; /* ops end before issue returns: no fence is ever needed */
    struct hzp_lane *lane[HZP_LANE_COUNT];
    struct hzp_fence *end[HZP_LANE_COUNT];
    struct hzp_fence **fence; /* [fences]: one for each item that another lane waits for */
    int32_t fences, fences_room;
    int32_t *fence_of;        /* [items_room]: -1, or the index of the item's fence */
    int32_t items_room;
    struct hzp_profile profile;
};

int hzp_exec_create(struct hzp_device *dev, struct hzp_exec **ret)
{
    static const enum hzp_bound use[HZP_LANE_COUNT] = {HZP_BOUND_COMPUTE, HZP_BOUND_MEMORY,
                                                       HZP_BOUND_NETWORK, HZP_BOUND_COPY};
    struct hzp_exec *e = hzp_xcalloc(1, sizeof(*e));
    e->dev = dev;
    e->immediate = !dev->backend->fence_record;
    int r;
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        HZP_TRY_GOTO(hzp_lane_open(dev, use[l], &e->lane[l]));
        HZP_TRY_GOTO(hzp_fence_open(dev, &e->end[l]));
    }
    *ret = e;
    return HZP_OK;
out:
    hzp_exec_destroy(e);
    return r;
}

void hzp_exec_destroy(struct hzp_exec *e)
{
    if (!e)
        return;
    for (int32_t i = 0; i < e->fences_room; i++)
        hzp_fence_close(e->fence[i]);
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        hzp_fence_close(e->end[l]);
        hzp_lane_close(e->lane[l]);
    }
    free(e->fence);
    free(e->fence_of);
    free(e);
}

const struct hzp_profile *hzp_exec_profile(const struct hzp_exec *exec)
{
    return &exec->profile;
}

static void profile_add(struct hzp_profile *profile, const struct hzp_item *item, uint64_t ns)
{
    struct hzp_cost cost = hzp_op_cost(item->op, item->args);
    struct hzp_profile_op *op =
        item->train ? &profile->train[item->op] : &profile->serve[item->op];
    op->runs++;
    op->ns += ns;
    op->flops += cost.flops;
    op->bytes += cost.bytes;
}

/* One item after another on the calling thread: the backend has no queues. */
static int run_immediate(struct hzp_exec *e, const struct hzp_plan *plan, struct hzp_price *price,
                         struct hzp_exec_times *ret)
{
    uint64_t before = hzp_device_now_ns(e->dev);
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        HZP_TRY(hzp_lane_issue(e->lane[item->lane], item->op, item->args));
        uint64_t now = hzp_device_now_ns(e->dev), took = now - before;
        before = now;
        *(item->train ? &ret->train_ns : &ret->serve_ns) += took;
        profile_add(&e->profile, item, took);
        if (price)
            hzp_price_learn(price, item->op, item->args, (double)took);
    }
    return HZP_OK;
}

/* Gives a fence to every item that an item of another lane waits for. */
static int assign_fences(struct hzp_exec *e, const struct hzp_plan *plan)
{
    if (e->items_room < plan->items) {
        e->items_room = plan->items;
        e->fence_of = hzp_xrealloc(e->fence_of, (size_t)e->items_room * sizeof(*e->fence_of));
    }
    e->fences = 0;
    for (int32_t i = 0; i < plan->items; i++) {
        e->fence_of[i] = -1;
        for (int32_t k = 0; k < plan->item[i].waits; k++) {
            int32_t w = plan->wait[plan->item[i].wait0 + k];
            if (plan->item[w].lane != plan->item[i].lane && e->fence_of[w] < 0)
                e->fence_of[w] = e->fences++;
        }
    }
    while (e->fences_room < e->fences) {
        e->fence = hzp_xrealloc(e->fence, ((size_t)e->fences_room + 1) * sizeof(*e->fence));
        HZP_TRY(hzp_fence_open(e->dev, &e->fence[e->fences_room]));
        e->fences_room++;
    }
    return HZP_OK;
}

/* Only the whole run was timed.  It is divided by prices, and what they missed together each
 * learns: so they have the device's scale, if not each op's own. */
static void divide(const struct hzp_plan *plan, struct hzp_price *price, uint64_t took,
                   struct hzp_exec_times *ret)
{
    static const struct hzp_price guess = {.flops_per_ns = 1000, .bytes_per_ns = 100};
    double train = 0, all = 0;
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        double ns = hzp_price_ns(price ? price : &guess, item->op, item->args);
        all += ns;
        train += item->train ? ns : 0;
    }
    if (all <= 0)
        return;
    ret->train_ns = (uint64_t)((double)took * (train / all));
    ret->serve_ns = took - ret->train_ns;
    double factor = (double)took / all;
    for (int32_t i = 0; price && i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        hzp_price_learn(price, item->op, item->args,
                        hzp_price_ns(price, item->op, item->args) * factor);
    }
}

static int run_queued(struct hzp_exec *e, const struct hzp_plan *plan, struct hzp_price *price,
                      struct hzp_exec_times *ret)
{
    uint64_t begin = hzp_device_now_ns(e->dev);
    HZP_TRY(assign_fences(e, plan));
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        struct hzp_lane *lane = e->lane[item->lane];
        for (int32_t k = 0; k < item->waits; k++) {
            int32_t w = plan->wait[item->wait0 + k];
            if (plan->item[w].lane != item->lane)
                HZP_TRY(hzp_lane_wait(lane, e->fence[e->fence_of[w]]));
        }
        HZP_TRY(hzp_lane_issue(lane, item->op, item->args));
        if (e->fence_of[i] >= 0)
            HZP_TRY(hzp_fence_record(e->fence[e->fence_of[i]], lane));
    }
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        HZP_TRY(hzp_fence_record(e->end[l], e->lane[l]));
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        HZP_TRY(hzp_fence_wait(e->end[l]));
    divide(plan, price, hzp_device_now_ns(e->dev) - begin, ret);
    return HZP_OK;
}

int hzp_exec_run(struct hzp_exec *e, const struct hzp_plan *plan, struct hzp_price *price,
                 struct hzp_exec_times *ret)
{
    memset(ret, 0, sizeof(*ret));
    return e->immediate ? run_immediate(e, plan, price, ret) : run_queued(e, plan, price, ret);
}
