/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/loop.h"

#include "base/log.h"
#include "base/thread.h"
#include "nanobatch/exec.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* So many steps with prompts in them may pass training over in a row. */
enum { PASSED_OVER_MAX = 8 };

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
    double usual_beside_ns;               /* of serving, training beside it */
    bool beside;                          /* this step may have both */
    struct hzp_step step;
    uint64_t number;
    double credit_ns; /* beside serving: what training saved for its next item; < 0: it owes */
    double usual_ns;  /* of serving in a step that only decodes, averaged */
    int32_t passed_over;
    /* any thread */
    struct hzp_wake wake;
    atomic_bool stop, hurry;
    _Atomic double train_share;
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
    atomic_store(&loop->train_share, config->train_share);
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
    step->train_ns = loop->config.idle_ns;
    step->price = &loop->price;
    if (step->batch)
        hzp_batch_clear(step->batch);
    loop->beside = false;
    hzp_plan_clear(&loop->plan);
}

/* Serving's rows become ops, and training gets a usual step's share of time beside them: what a
 * long step earned must not make another one long.  A step with prompts in it is long already and
 * takes no training, unless prompts never cease. */
static void plan_serving(struct hzp_loop *loop)
{
    struct hzp_step *step = &loop->step;
    hzp_forward_build(&loop->plan, loop->config.model, step->version, step->batch, step->kv,
                      loop->config.space, loop->config.shape);
    double share = atomic_load_explicit(&loop->train_share, memory_order_relaxed);
    double train_ns = loop->credit_ns + share * loop->usual_ns;
    if (loop->config.beside) {
        loop->beside = true;
        step->price = &loop->price_beside;
        double usual = loop->usual_beside_ns > 0 ? loop->usual_beside_ns : loop->usual_ns;
        train_ns = share > 0 ? usual : 0;
    }
    bool prompts = step->batch->rows > step->batch->decode_segs;
    if (prompts && loop->passed_over < PASSED_OVER_MAX) {
        loop->passed_over++;
        train_ns = 0;
    } else {
        loop->passed_over = 0;
    }
    step->train_ns = train_ns > 0 ? (uint64_t)train_ns : 0;
}

/* Training may use its share of what serving really took, but for what it was passed over.  An item
 * longer than what is left of it runs all the same, and the next steps pay for it; one that does
 * not fit behind others in a slice is saved for.  Nothing else is: a trainer that had nothing to do
 * must not hold a later step up.  So over any run of steps training takes at most its share, two
 * items and one helping. */
static void account(struct hzp_loop *loop, const struct hzp_exec_times *times)
{
    const struct hzp_step *step = &loop->step;
    if (!step->batch || step->batch->rows == 0) {
        loop->credit_ns = 0;
        return;
    }
    double share = atomic_load_explicit(&loop->train_share, memory_order_relaxed), saved = 0;
    double serve_ns = (double)times->serve_ns;
    if (loop->beside) {
        loop->credit_ns = 0;
        if (step->batch->rows == step->batch->decode_segs && step->to > step->from) {
            double *usual = &loop->usual_beside_ns;
            serve_ns = (double)(times->serve_end_ns ? times->serve_end_ns : times->serve_ns);
            *usual += (serve_ns - *usual) / (*usual > 0 ? 16 : 1);
            return;
        }
    }
    if (step->chain && step->to < step->chain->items) {
        const struct hzp_item *next = &step->chain->item[step->to];
        saved = hzp_price_ns(&loop->price, next->op, next->args);
    }
    loop->credit_ns += share * serve_ns - (double)times->train_ns;
    loop->credit_ns = HZP_MIN(loop->credit_ns, saved);
    if (step->batch->rows == step->batch->decode_segs)
        loop->usual_ns += (serve_ns - loop->usual_ns) / (loop->usual_ns > 0 ? 16 : 1);
}

/* Serving's part was planned before anybody knew whether training would come. */
static void take_training(struct hzp_loop *loop)
{
    struct hzp_step *step = &loop->step;
    if (loop->beside) {
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
    if (step->chain && step->to > step->from)
        take_training(loop);
    else
        loop->beside = false;
    return any;
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
    r = hzp_exec_run(loop->exec, &loop->plan, loop->beside ? &loop->price_beside : &loop->price,
                     &times);
    step->end_ns = hzp_device_now_ns(loop->config.model->dev);
    step->trained_ns = loop->beside && times.train_end_ns ? times.train_end_ns : times.train_ns;
    step->served_ns = loop->beside && times.serve_end_ns ? times.serve_end_ns : times.serve_ns;
    count(&loop->counters.steps, 1);
    count(&loop->counters.serve_ns, times.serve_ns);
    count(&loop->counters.train_ns, times.train_ns);
    if (step->batch && step->batch->rows > 0)
        count(&loop->counters.serve_steps, 1);
    account(loop, &times);
    if (step->to > step->from)
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

void hzp_loop_set_train_share(struct hzp_loop *loop, double share)
{
    atomic_store_explicit(&loop->train_share, share, memory_order_relaxed);
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
