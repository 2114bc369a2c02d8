/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/loop.h"

#include "base/log.h"
#include "base/thread.h"
#include "nanobatch/exec.h"
#include "nanobatch/split.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct counters {
    _Atomic uint64_t steps, serve_steps, train_steps, serve_ns, train_ns, idle_ns;
    atomic_bool failed;
};

struct hzp_loop {
    /* fixed after create */
    struct hzp_loop_config config;
    struct hzp_exec *exec;
    /* engine thread */
    struct hzp_plan plan;
    struct hzp_price price, price_beside; /* of ops on the whole device; on lanes side by side */
    struct hzp_split split;
    struct hzp_split_step now;            /* what the split knows of this step */
    struct hzp_step step;
    uint64_t number;
    /* any thread */
    struct hzp_wake wake;
    atomic_bool stop, hurry;
    struct counters counters;
};

int hzp_loop_create(const struct hzp_loop_config *config, struct hzp_loop **ret)
{
    HZP_ASSERT(config->sources > 0 && config->sources <= HZP_COUNT(config->source));
    struct hzp_loop *loop = hzp_xcalloc(1, sizeof(*loop));
    loop->config = *config;
    hzp_plan_init(&loop->plan);
    hzp_price_init(&loop->price, config->model->dev);
    hzp_price_init(&loop->price_beside, config->model->dev);
    hzp_wake_init(&loop->wake);
    hzp_split_init(&loop->split, &(struct hzp_split_config){
        .policy = config->policy,
        .idle_ns = config->idle_ns,
        .beside = config->beside != NULL,
        .model = config->model,
        .price = &loop->price,
    });
    int r = hzp_exec_create(config->model->dev, &loop->exec);
    if (r < 0) {
        hzp_loop_destroy(loop);
        return r;
    }
    *ret = loop;
    return HZP_OK;
}

void hzp_loop_destroy(struct hzp_loop *loop)
{
    if (!loop)
        return;
    hzp_exec_destroy(loop->exec);
    hzp_plan_fini(&loop->plan);
    hzp_split_fini(&loop->split);
    hzp_wake_fini(&loop->wake);
    free(loop);
}

static void begin_step(struct hzp_loop *loop)
{
    struct hzp_step *step = &loop->step;
    /* Here too: who gave a version back while nothing ran must not have to wait for a step. */
    hzp_weights_reclaim(loop->config.model->weights, loop->number);
    memset(step, 0, sizeof(*step));
    step->number = loop->number + 1;
    step->begin_ns = hzp_device_now_ns(loop->config.model->dev);
    step->batch = loop->config.batch;
    step->rows_left = step->batch ? step->batch->max.rows_max : 0;
    step->version = hzp_weights_current(loop->config.model->weights);
    hzp_split_begin(&loop->split, &loop->now, step->begin_ns);
    step->train_ns = loop->now.train_ns;
    step->item_ns = loop->now.item_ns;
    step->split = &loop->split;
    step->price = &loop->price;
    if (step->batch)
        hzp_batch_clear(step->batch);
    hzp_plan_clear(&loop->plan);
}

/* Serving's rows become ops, and the split says how long training may run with them. */
static void plan_serving(struct hzp_loop *loop)
{
    struct hzp_step *step = &loop->step;
    hzp_forward_build(&loop->plan, loop->config.model, step->version, step->batch, step->kv,
                      loop->config.space, loop->config.shape);
    hzp_split_serve(&loop->split, &loop->now, step->batch, &step->waits);
    if (loop->now.beside)
        step->price = &loop->price_beside;
    step->train_ns = loop->now.train_ns;
    step->item_ns = loop->now.item_ns;
}

/* Serving's part was planned before anybody knew whether training would come. */
static void take_training(struct hzp_loop *loop)
{
    struct hzp_step *step = &loop->step;
    if (loop->now.beside) {
        hzp_plan_clear(&loop->plan);
        hzp_forward_build(&loop->plan, loop->config.model, step->version, step->batch, step->kv,
                          loop->config.space, loop->config.beside);
        hzp_plan_for_training(&loop->plan, loop->config.beside);
    }
    hzp_plan_take(&loop->plan, step->chain, step->from, step->to);
}

/* True: there is something to run. */
static bool offer(struct hzp_loop *loop)
{
    struct hzp_step *step = &loop->step;
    bool any = false, serving_planned = false;
    for (int32_t i = 0; i < loop->config.sources; i++) {
        struct hzp_source *source = loop->config.source[i];
        any |= source->offer(source, step);
        if (!serving_planned && step->batch && step->batch->rows > 0) {
            plan_serving(loop);
            serving_planned = true;
        }
    }
    bool trains = step->chain && step->to > step->from;
    hzp_split_taken(&loop->split, &loop->now, trains,
                    trains && loop->now.rows
                        ? hzp_price_slice(step->price, step->chain, step->from, step->to)
                        : 0);
    if (trains)
        take_training(loop);
    return any;
}

/* What training's next item will take; 0: its chain has none. */
static double next_ns(const struct hzp_loop *loop)
{
    const struct hzp_step *step = &loop->step;
    if (!step->chain || step->to == step->chain->items)
        return 0;
    const struct hzp_item *next = &step->chain->item[step->to];
    return hzp_price_ns(&loop->price, next->op, next->args);
}

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    /* Relaxed: counters are read for people, one by one. */
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static int execute(struct hzp_loop *loop)
{
    struct hzp_step *step = &loop->step;
    struct hzp_exec_times times = {0};
    int r = HZP_OK;
    if (loop->config.check_plans) {
        struct hzp_err_text text;
        r = hzp_plan_check(&loop->plan, &text);
        if (r < 0)
            hzp_log(HZP_LOG_ERROR, "loop", "plan step=%llu %s", (unsigned long long)step->number,
                    text.text);
        HZP_ASSERT(r >= 0);
    }
    r = hzp_exec_run(loop->exec, &loop->plan, loop->now.beside ? &loop->price_beside : &loop->price,
                     &times);
    step->end_ns = hzp_device_now_ns(loop->config.model->dev);
    step->trained_ns = loop->now.beside && times.train_end_ns ? times.train_end_ns : times.train_ns;
    step->served_ns = loop->now.beside && times.serve_end_ns ? times.serve_end_ns : times.serve_ns;
    count(&loop->counters.steps, 1);
    count(&loop->counters.serve_ns, times.serve_ns);
    count(&loop->counters.train_ns, times.train_ns);
    if (step->batch && step->batch->rows > 0)
        count(&loop->counters.serve_steps, 1);
    hzp_split_ended(&loop->split, &loop->now, &times, step->end_ns, next_ns(loop));
    if (loop->now.trains)
        count(&loop->counters.train_steps, 1);
    return r;
}

static void deliver(struct hzp_loop *loop, int status)
{
    for (int32_t i = 0; i < loop->config.sources; i++)
        loop->config.source[i]->deliver(loop->config.source[i], &loop->step, status);
}

int hzp_loop_turn(struct hzp_loop *loop)
{
    begin_step(loop);
    if (!offer(loop))
        return 0;
    loop->number++;
    int status = execute(loop);
    deliver(loop, status);
    if (status < 0) {
        hzp_log(HZP_LOG_ERROR, "loop", "device failed step=%llu code=%s",
                (unsigned long long)loop->number, hzp_err_name(status));
        atomic_store(&loop->counters.failed, true);
        return status;
    }
    hzp_weights_reclaim(loop->config.model->weights, loop->number);
    return 1;
}

static bool may_end(struct hzp_loop *loop)
{
    if (!atomic_load(&loop->stop))
        return false;
    if (atomic_load(&loop->hurry))
        return true;
    for (int32_t i = 0; i < loop->config.sources; i++) {
        struct hzp_source *source = loop->config.source[i];
        if (source->busy && source->busy(source))
            return false;
    }
    return true;
}

int hzp_loop_run(struct hzp_loop *loop)
{
    while (!may_end(loop)) {
        int r = hzp_loop_turn(loop);
        if (r < 0)
            return r;
        if (r == 0) {
            uint64_t begin = hzp_now_ns();
            hzp_wake_wait(&loop->wake, UINT64_MAX);
            count(&loop->counters.idle_ns, hzp_now_ns() - begin);
        }
    }
    return HZP_OK;
}

const struct hzp_profile *hzp_loop_profile(const struct hzp_loop *loop)
{
    return hzp_exec_profile(loop->exec);
}

void hzp_loop_poke(struct hzp_loop *loop)
{
    hzp_wake_poke(&loop->wake);
}

void hzp_loop_stop(struct hzp_loop *loop, bool hurry)
{
    if (hurry)
        atomic_store(&loop->hurry, true);
    atomic_store(&loop->stop, true);
    hzp_wake_poke(&loop->wake);
}

struct hzp_split *hzp_loop_split(struct hzp_loop *loop)
{
    return &loop->split;
}

void hzp_loop_read_stats(struct hzp_loop *loop, struct hzp_loop_stats *ret)
{
    const struct counters *c = &loop->counters;
    *ret = (struct hzp_loop_stats){
        .steps = atomic_load_explicit(&c->steps, memory_order_relaxed),
        .serve_steps = atomic_load_explicit(&c->serve_steps, memory_order_relaxed),
        .train_steps = atomic_load_explicit(&c->train_steps, memory_order_relaxed),
        .serve_ns = atomic_load_explicit(&c->serve_ns, memory_order_relaxed),
        .train_ns = atomic_load_explicit(&c->train_ns, memory_order_relaxed),
        .idle_ns = atomic_load_explicit(&c->idle_ns, memory_order_relaxed),
        .failed = atomic_load(&c->failed),
    };
}
