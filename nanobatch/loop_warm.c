/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/loop_warm.c - the last phase of a server's start: runs steps of padding rows, so that
 * one-time costs are paid before a request arrives. */
#include "nanobatch/loop_state.h"

#include "base/log.h"
#include "nanobatch/run/warm.h"

/* Plans the active step's batch in the same way as a real step. */
static void warm_build(struct hzp_loop *loop, struct hzp_active_step *active,
                       const struct hzp_plan_shape *shape)
{
    active->shape = shape;
    struct hzp_step_plan what = hzp_step_serving(loop, active);
    hzp_plan_clear(&active->plan);
    hzp_step_build(&active->plan, &what);
}

/* Whether such steps have one nano-batch on one lane, with training behind it or riding. */
static bool is_plain(const struct hzp_plan_shape *shape)
{
    struct hzp_plan_shape in_turn = shape ? *shape : hzp_plan_sequential;
    in_turn.ride = 0;
    return hzp_plan_shape_plain(&in_turn);
}

/* Whether serving's part of a step of these rows is another one with training in it: in its shape,
 * or in its lanes' shares. */
static bool differs(const struct hzp_loop *loop, const struct hzp_batch *batch)
{
    const struct hzp_plan_shape *both = hzp_loop_shape(loop, batch, HZP_TENANT_TRAIN);
    return loop->config.trains && (both || loop->config.group) &&
           !(is_plain(both) && is_plain(hzp_loop_shape(loop, batch, HZP_TENANT_SERVE)));
}

static struct hzp_warm warm_of(const struct hzp_loop *loop)
{
    const struct hzp_loop_config *c = &loop->config;
    return (struct hzp_warm){.kv = loop->active[0].offer.kv,
                             .positions = c->model->positions,
                             .lines = c->group ? hzp_step_link_limits(c->group)->lines : 0};
}

/* Plans the batch as in a step with this tenant: training takes lanes too, though it has no items
 * here. */
static void warm_build_with(struct hzp_loop *loop, struct hzp_active_step *active,
                            enum hzp_tenant with)
{
    const struct hzp_plan_shape *shape = hzp_loop_shape(loop, active->batch, with);
    warm_build(loop, active, shape);
    for (int kind = 0; kind < HZP_KIND_COUNT && shape && with == HZP_TENANT_TRAIN; kind++)
        if (kind != HZP_KIND_DECODE)
            active->plan.computing |= 1u << shape->train_lane[kind];
}

static int warm_run(struct hzp_loop *loop, struct hzp_active_step *active, enum hzp_tenant with)
{
    struct hzp_exec_times times;
    struct hzp_step_link *group = loop->config.group;
    warm_build_with(loop, active, with);
    if (group) { /* a step like any other for them */
        active->step.number = ++loop->number;
        HZP_TRY(hzp_loop_tell_group(loop, active));
    }
    HZP_TRY(hzp_exec_issue(loop->exec, &active->plan, active->flight, NULL));
    HZP_TRY(hzp_exec_land(active->flight, NULL, &times));
    loop->landed = loop->number;
    if (group)
        hzp_step_link_drew(group, loop->number, active->batch);
    return HZP_OK;
}

static int warm_reserve(struct hzp_loop *loop, const struct hzp_plan_shape *shape,
                        int32_t *ret_items)
{
    const struct hzp_warm warm = warm_of(loop);
    for (int i = 0; i < HZP_COUNT(loop->active); i++) {
        struct hzp_active_step *active = &loop->active[i];
        active->shape = shape;
        struct hzp_step_plan what = hzp_step_serving(loop, active);
        HZP_TRY(hzp_warm_reserve(active->flight, &active->plan, &what, &warm, ret_items));
    }
    return HZP_OK;
}

/* Runs the first active step, which chooses algorithms; then captures both, which a group's are
 * not. */
static int warm_decode(struct hzp_loop *loop, int32_t rows, enum hzp_tenant with)
{
    const struct hzp_warm warm = warm_of(loop);
    for (int i = 0; i < HZP_COUNT(loop->active); i++) {
        struct hzp_active_step *active = &loop->active[i];
        hzp_warm_decode(active->batch, &warm, rows);
        if (with == HZP_TENANT_TRAIN && !differs(loop, active->batch))
            return HZP_OK;
        if (i == 0)
            HZP_TRY(warm_run(loop, active, with));
        else
            warm_build_with(loop, active, with);
        if (loop->config.group)
            return HZP_OK;
        HZP_TRY(hzp_exec_capture(loop->exec, &active->plan));
    }
    return HZP_OK;
}

/* Steps with prompts of fewer rows multiply at sizes that decode steps have too, if there are such
 * decode steps. */
enum { MIXED_MIN = 128 };

/* Sizes of the head that steps with prompts of one shape have run with. */
struct heads {
    const struct hzp_plan_shape *shape;
    int32_t most;
};

/* Runs a step with prompts, several times if there are sizes of the head that are new with its
 * shape: the shape says how many SMs the product has. */
static int warm_prompts(struct hzp_loop *loop, int32_t rows, enum hzp_tenant with,
                        struct heads *heads)
{
    struct hzp_active_step *active = &loop->active[0];
    const struct hzp_batch_config *max = &active->batch->max;
    const struct hzp_warm warm = warm_of(loop);
    hzp_warm_prompts(active->batch, &warm, rows, 1);
    const struct hzp_plan_shape *shape = hzp_loop_shape(loop, active->batch, with);
    if (with == HZP_TENANT_TRAIN && !differs(loop, active->batch))
        return HZP_OK;
    if (shape != heads->shape)
        *heads = (struct heads){.shape = shape};
    int32_t logits = HZP_MIN(active->batch->rows, max->logits_max);
    do {
        heads->most = hzp_batch_head_rows(max, HZP_MIN(heads->most + 1, logits));
        hzp_warm_prompts(active->batch, &warm, rows, heads->most);
        HZP_TRY(warm_run(loop, active, with));
    } while (heads->most < logits);
    return HZP_OK;
}

/* Runs every size of step, as it is alone or with training. */
static int warm_sizes(struct hzp_loop *loop, enum hzp_tenant with)
{
    const struct hzp_batch_config *max = &loop->config.batch->max;
    const struct hzp_warm warm = warm_of(loop);
    int32_t most = hzp_batch_decodes_max(max);
    struct heads heads = {0};
    for (int32_t rows = hzp_batch_size(1); rows < max->rows_max; rows = hzp_batch_size(rows + 1))
        if (rows >= MIXED_MIN || rows > most)
            HZP_TRY(warm_prompts(loop, rows, with, &heads));
    HZP_TRY(warm_prompts(loop, max->rows_max, with, &heads));
    if (warm.lines) /* more sequences cannot decode in one step */
        most = HZP_MIN(most, HZP_MIN(warm.lines, warm.kv->pages));
    for (int32_t rows = 1, bucket; rows <= most; rows = bucket + 1) {
        bucket = hzp_batch_bucket(rows);
        HZP_TRY(warm_decode(loop, HZP_MIN(bucket, most), with));
    }
    return HZP_OK;
}

static int warm_all(struct hzp_loop *loop)
{
    const struct hzp_loop_config *c = &loop->config;
    int32_t items = 0;
    HZP_TRY(warm_reserve(loop, c->shape, &items));
    HZP_TRY(warm_reserve(loop, c->beside, &items));
    for (int32_t i = 0; c->plans && i < c->plans->entries; i++)
        HZP_TRY(warm_reserve(loop, &c->plans->entry[i].shape, &items));
    hzp_page_table_forget(c->batch->max.table); /* those steps never run */
    HZP_TRY(hzp_warm_times(c->model, items));
    HZP_TRY(warm_sizes(loop, HZP_TENANT_TRAIN));
    return warm_sizes(loop, HZP_TENANT_SERVE); /* last: these graphs are evicted last */
}

/* ---- training's products ---- */

/* shape NULL: in turn, with the whole device. */
static int warm_products_with(struct hzp_loop *loop, const struct hzp_plan *products,
                              const struct hzp_plan_shape *shape)
{
    struct hzp_active_step *active = &loop->active[0];
    struct hzp_exec_times times;
    if (active->batch)
        hzp_batch_clear(active->batch);
    active->shape = shape;
    struct hzp_step_plan what = hzp_step_serving(loop, active);
    what.chain = products;
    what.to = products->items;
    what.in_turn = !shape;
    hzp_plan_clear(&active->plan);
    hzp_step_build(&active->plan, &what);
    for (int kind = 0; kind < HZP_KIND_COUNT && shape; kind++) /* serving takes lanes, too */
        active->plan.computing |= 1u << shape->lane[0][kind];
    int r = hzp_exec_issue(loop->exec, &active->plan, active->flight, NULL);
    if (r == HZP_OK)
        r = hzp_exec_land(active->flight, NULL, &times);
    if (r != HZP_ENOMEM && r != HZP_EUNSUP)
        return r;
    hzp_log(HZP_LOG_WARN, "loop", "products of training cannot be tried: %s, ignoring",
            hzp_err_name(r));
    return HZP_OK;
}

/* Whether training has the same lanes and shares in both. */
static bool same_shares(const struct hzp_plan_shape *a, const struct hzp_plan_shape *b)
{
    return memcmp(a->share, b->share, sizeof(a->share)) == 0 &&
           memcmp(a->train_lane, b->train_lane, sizeof(a->train_lane)) == 0 &&
           memcmp(a->lane[0], b->lane[0], sizeof(a->lane[0])) == 0;
}

static int warm_products(struct hzp_loop *loop, const struct hzp_plan *products)
{
    const struct hzp_loop_config *c = &loop->config;
    const struct hzp_plan_entry *entry = c->plans ? c->plans->entry : NULL;
    HZP_TRY(warm_products_with(loop, products, NULL));
    if (c->group) /* training is in turn */
        return HZP_OK;
    if (c->beside && hzp_plan_shape_beside(c->beside))
        HZP_TRY(warm_products_with(loop, products, c->beside));
    for (int32_t i = 0; entry && i < c->plans->entries; i++) {
        bool known = !entry[i].train || !hzp_plan_shape_beside(&entry[i].shape);
        for (int32_t k = 0; k < i && !known; k++)
            known = entry[k].train && same_shares(&entry[i].shape, &entry[k].shape);
        if (!known)
            HZP_TRY(warm_products_with(loop, products, &entry[i].shape));
    }
    return HZP_OK;
}

int hzp_loop_warm_up(struct hzp_loop *loop, const struct hzp_kv *kv,
                     const struct hzp_plan *products)
{
    struct hzp_device *dev = loop->config.model->dev;
    struct hzp_version *version = hzp_weights_current(loop->config.model->weights);
    int r = HZP_OK;
    HZP_ASSERT(loop->number == 0);
    if (hzp_device_has_graphs(dev) && (loop->config.batch || products) && version) {
        uint64_t begin = hzp_now_ns();
        for (int i = 0; i < HZP_COUNT(loop->active); i++) {
            loop->active[i].step.version = version;
            loop->active[i].current = version->record.id;
            loop->active[i].offer.kv = kv;
            loop->active[i].warms = true;
        }
        r = loop->config.batch ? warm_all(loop) : hzp_warm_times(loop->config.model, 0);
        if (r == HZP_OK && products && products->items)
            r = warm_products(loop, products);
        for (int i = 0; i < HZP_COUNT(loop->active); i++) {
            if (loop->active[i].batch)
                hzp_batch_clear(loop->active[i].batch);
            hzp_plan_clear(&loop->active[i].plan);
            loop->active[i].warms = false;
        }
        if (loop->config.batch && !loop->config.group) /* some of those steps never ran */
            hzp_page_table_forget(loop->config.batch->max.table);
        hzp_log(HZP_LOG_INFO, "loop", "warm-up ms=%.0f graphs=%llu told_steps=%llu",
                (double)(hzp_now_ns() - begin) / 1e6,
                (unsigned long long)hzp_exec_graphs(loop->exec).captures,
                (unsigned long long)loop->number);
    }
    if (r < 0 && loop->config.group)
        hzp_loop_tell_failure(loop, r);
    hzp_exec_steady(loop->exec);
    hzp_device_steady(dev);
    return r;
}
