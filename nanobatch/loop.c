/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/loop.c - the loop.
 *
 * A step is formed, issued, served (serving's results are delivered) and landed (its slice too has
 * ended, and everybody has heard).  At most two steps are under way: so a step is landed before the
 * second one behind it is formed, and what training still runs of a step when the next one is
 * formed is at most its slice.
 *
 *     run-ahead   land n - 1 | form, issue n + 1 | serve n
 *     else        land n - 1 | form, issue n | serve n            (what has its own lanes runs on)
 *     inlined     form, issue n: which runs it | serve, land n
 */
#include "nanobatch/loop.h"

#include "base/log.h"
#include "base/thread.h"
#include "nanobatch/run/exec.h"
#include "nanobatch/build/ride.h"
#include "nanobatch/build/step.h"
#include "nanobatch/split/split.h"
#include "nanobatch/run/warm.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct counters {
    _Atomic uint64_t steps, serve_steps, train_steps, serve_ns, train_ns, idle_ns;
    _Atomic uint64_t ride_steps;
    _Atomic uint64_t ahead_steps, form_ns, issue_ns, deliver_ns, hidden_ns;
    atomic_bool failed;
};

enum stage { LANDED, FORMED, ISSUED, SERVED };

/* One step from its forming to its landing. */
struct leg {
    enum stage stage;
    struct hzp_step step;
    struct hzp_split_step split; /* what the split knows of it */
    struct hzp_batch *batch;     /* NULL: nothing serves */
    struct hzp_plan plan;
    const struct hzp_plan_shape *shape; /* of serving's part; NULL: sequentially */
    struct hzp_flight *flight;
    uint64_t tokens_ns; /* when it was served */
};

struct hzp_loop {
    /* fixed after create */
    struct hzp_loop_config config;
    struct hzp_exec *exec;
    bool ahead;
    /* engine thread */
    struct leg leg[2];       /* of step n: leg[n % 2] */
    uint64_t number, landed; /* the newest formed; the newest landed: at most two before it */
    struct hzp_plan joined;  /* for the check of two in flight */
    struct hzp_time time;
    struct hzp_split split;
    /* any thread */
    struct hzp_wake wake;
    atomic_bool stop, hurry;
    struct counters counters;
};

/* --- Life ------------------------------------------------------------------------------------- */

/* What steps may look like is known now; how long the device takes to get ready for it is not for a
 * step to wait for. */
static void prepare(struct hzp_loop *loop)
{
    const struct hzp_loop_config *c = &loop->config;
    if (c->shape)
        hzp_exec_prepare(loop->exec, c->shape);
    if (c->beside)
        hzp_exec_prepare(loop->exec, c->beside);
    for (int32_t i = 0; c->plans && i < c->plans->entries; i++)
        hzp_exec_prepare(loop->exec, &c->plans->entry[i].shape);
}

/* Serving's part of the leg's step. */
static struct hzp_step_plan serving_of(const struct hzp_loop *loop, const struct leg *leg)
{
    return (struct hzp_step_plan){.model = loop->config.model,
                                  .version = leg->step.version,
                                  .batch = leg->batch,
                                  .kv = leg->step.kv,
                                  .space = loop->config.space,
                                  .shape = leg->shape};
}

/* The step's serving as it is on another slot's weights.  Its arrays are the step's own: they are
 * cut in the same way once more, before the step is issued. */
static bool twin(void *ctx, const struct hzp_plan *plan, int32_t i, struct hzp_plan *ret)
{
    struct hzp_loop *loop = ctx;
    struct leg *leg = &loop->leg[plan == &loop->leg[1].plan];
    const struct hzp_model *model = loop->config.model;
    const struct hzp_version *slot;
    for (int32_t s = 0; (slot = hzp_weights_slot(model->weights, s)); s++) {
        if (slot == leg->step.version || i-- > 0)
            continue;
        struct hzp_step_plan what = serving_of(loop, leg);
        what.version = slot;
        hzp_plan_clear(ret);
        hzp_step_build(ret, &what);
        return true;
    }
    return false;
}

static void prepare_graphs(struct hzp_loop *loop)
{
    const struct hzp_model *model = loop->config.model;
    int32_t slots = 0;
    while (hzp_weights_slot(model->weights, slots))
        slots++;
    if (loop->config.batch)
        hzp_exec_prepare_graphs(loop->exec, twin, loop,
                                hzp_graphs_count(&loop->config.batch->max, model->positions, slots,
                                                 HZP_COUNT(loop->leg)));
}

static int open_legs(struct hzp_loop *loop)
{
    for (int i = 0; i < 2; i++) {
        struct leg *leg = &loop->leg[i];
        HZP_TRY(hzp_flight_open(loop->exec, &leg->flight));
        if (i == 0)
            leg->batch = loop->config.batch;
        else if (loop->config.batch)
            HZP_TRY(
                hzp_batch_create(loop->config.model->dev, &loop->config.batch->max, &leg->batch));
    }
    return HZP_OK;
}

int hzp_loop_create(const struct hzp_loop_config *config, struct hzp_loop **ret)
{
    HZP_ASSERT(config->sources > 0 && config->sources <= HZP_COUNT(config->source));
    struct hzp_loop *loop = hzp_xcalloc(1, sizeof(*loop));
    loop->config = *config;
    for (int i = 0; i < 2; i++)
        hzp_plan_init(&loop->leg[i].plan);
    hzp_plan_init(&loop->joined);
    hzp_time_init(&loop->time, config->model->dev->threads, config->model->config,
                  config->model->act);
    hzp_time_use_tables(&loop->time, config->tables);
    hzp_wake_init(&loop->wake);
    int r = hzp_exec_create(config->model->dev, &loop->exec);
    bool alone = r >= 0 && hzp_exec_alone(loop->exec);
    loop->ahead =
        config->run_ahead == HZP_AHEAD_ALWAYS || (config->run_ahead == HZP_AHEAD_AUTO && alone);
    hzp_split_init(&loop->split, &(struct hzp_split_config){
                                     .policy = config->policy,
                                     .idle_ns = config->idle_ns,
                                     .early = loop->ahead && (alone || config->shape),
                                     .time = &loop->time,
                                 });
    if (r >= 0)
        r = open_legs(loop);
    if (r < 0) {
        hzp_loop_destroy(loop);
        return r;
    }
    prepare(loop);
    prepare_graphs(loop);
    *ret = loop;
    return HZP_OK;
}

void hzp_loop_destroy(struct hzp_loop *loop)
{
    if (!loop)
        return;
    for (int i = 0; i < 2; i++) {
        struct leg *leg = &loop->leg[i];
        struct hzp_exec_times times;
        if (leg->stage == ISSUED || leg->stage == SERVED)
            hzp_exec_land(leg->flight, NULL, &times);
        hzp_flight_close(leg->flight);
        hzp_plan_fini(&leg->plan);
        if (i) /* the first is the caller's */
            hzp_batch_destroy(leg->batch);
    }
    hzp_exec_destroy(loop->exec);
    hzp_plan_fini(&loop->joined);
    hzp_split_fini(&loop->split);
    hzp_wake_fini(&loop->wake);
    free(loop);
}

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    /* Relaxed: counters are read for people, one by one. */
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* --- Legs ------------------------------------------------------------------------------------- */

static struct leg *leg_of(struct hzp_loop *loop, uint64_t number)
{
    return &loop->leg[number % 2];
}

/* The newest step formed, if it has not landed. */
static struct leg *newest(struct hzp_loop *loop)
{
    return loop->number > loop->landed ? leg_of(loop, loop->number) : NULL;
}

static void tell(struct hzp_loop *loop, struct leg *leg, bool slices, int status)
{
    for (int32_t i = 0; i < loop->config.sources; i++) {
        struct hzp_source *source = loop->config.source[i];
        if (source->slices == slices)
            source->deliver(source, &leg->step, status);
    }
}

/* The processor's time of this thread. */
static uint64_t host_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The host's work that began at `begin`; hidden: a step was under way meanwhile. */
static void count_host(struct hzp_loop *loop, _Atomic uint64_t *counter, uint64_t begin,
                       bool hidden)
{
    uint64_t took = host_ns() - begin;
    count(counter, took);
    if (hidden)
        count(&loop->counters.hidden_ns, took);
}

/* Serving's part has ended: who serves gets its results. */
static int serve(struct hzp_loop *loop, struct leg *leg)
{
    HZP_TRY(hzp_exec_wait_serving(leg->flight, &leg->step.served_ns));
    uint64_t begin = host_ns();
    if (leg->split.ride_ns > 0) /* of that, training's rows took so long by their op times */
        leg->step.served_ns -= HZP_MIN(leg->step.served_ns, (uint64_t)leg->split.ride_ns);
    hzp_rows_learn(&loop->time.rows, leg->step.batch ? leg->step.batch->rows : 0,
                   leg->step.served_ns);
    leg->tokens_ns = leg->step.end_ns = hzp_device_now_ns(loop->config.model->dev);
    leg->stage = SERVED;
    tell(loop, leg, false, HZP_OK);
    count_host(loop, &loop->counters.deliver_ns, begin, newest(loop)->stage == ISSUED);
    return HZP_OK;
}

/* What training's next item will take; 0: its chain has none. */
static double next_ns(const struct hzp_loop *loop, const struct hzp_step *step)
{
    if (!step->chain || step->to == step->chain->items)
        return 0;
    const struct hzp_item *next = &step->chain->item[step->to];
    return hzp_op_ns(&loop->time.whole, next->op, next->args);
}

/* All of it has ended, and what came before it has landed. */
static int land(struct hzp_loop *loop, struct leg *leg)
{
    struct hzp_step *step = &leg->step;
    struct hzp_exec_times times;
    struct counters *c = &loop->counters;
    HZP_DEBUG_ASSERT(step->number == loop->landed + 1);
    if (leg->stage == ISSUED)
        HZP_TRY(serve(loop, leg));
    HZP_TRY(hzp_exec_land(leg->flight, leg->split.beside ? &loop->time.beside : &loop->time.whole,
                          &times));
    step->end_ns = hzp_device_now_ns(loop->config.model->dev);
    step->trained_ns = leg->split.beside && times.end_ns[HZP_TENANT_TRAIN]
                           ? times.end_ns[HZP_TENANT_TRAIN]
                           : times.ns[HZP_TENANT_TRAIN];
    hzp_split_ended(&loop->split, &leg->split, &times, leg->tokens_ns, next_ns(loop, step));
    count(&c->steps, 1);
    count(&c->serve_ns, times.ns[HZP_TENANT_SERVE]);
    count(&c->train_ns, times.ns[HZP_TENANT_TRAIN]);
    count(&c->serve_steps, step->batch && step->batch->rows > 0);
    count(&c->train_steps, leg->split.trains);
    tell(loop, leg, true, HZP_OK);
    leg->stage = LANDED;
    loop->landed = step->number;
    hzp_weights_reclaim(loop->config.model->weights, loop->landed);
    return HZP_OK;
}

static int land_through(struct hzp_loop *loop, uint64_t number)
{
    while (loop->landed < number)
        HZP_TRY(land(loop, leg_of(loop, loop->landed + 1)));
    return HZP_OK;
}

/* Everybody hears of the failure, step by step; also who had already got his results. */
static int fail(struct hzp_loop *loop, int status)
{
    for (uint64_t n = loop->landed + 1; n <= loop->number; n++) {
        struct leg *leg = leg_of(loop, n);
        tell(loop, leg, false, status);
        tell(loop, leg, true, status);
        leg->stage = LANDED;
    }
    loop->landed = loop->number;
    hzp_log(HZP_LOG_ERROR, "loop", "device failed step=%llu code=%s",
            (unsigned long long)loop->number, hzp_err_name(status));
    atomic_store(&loop->counters.failed, true);
    return status;
}

/* --- Forming a step --------------------------------------------------------------------------- */

static struct leg *begin_step(struct hzp_loop *loop)
{
    struct leg *leg = leg_of(loop, loop->number + 1), *before = newest(loop);
    struct hzp_step *step = &leg->step;
    /* Here too: who gave a version back while nothing ran must not have to wait for a step. */
    hzp_weights_reclaim(loop->config.model->weights, loop->landed);
    memset(step, 0, sizeof(*step));
    step->number = loop->number + 1;
    step->begin_ns = hzp_device_now_ns(loop->config.model->dev);
    step->batch = leg->batch;
    step->under_way = before && before->stage == ISSUED ? &before->step : NULL;
    step->version = hzp_weights_current(loop->config.model->weights);
    hzp_split_begin(&loop->split, &leg->split, step->begin_ns);
    step->rows_left = step->batch && !leg->split.hold ? step->batch->max.rows_max : 0;
    /* Two such steps may be under way when a request comes. */
    bool halves = loop->ahead && hzp_exec_alone(loop->exec) && !leg->split.hold;
    step->train_ns = leg->split.train_ns / (halves ? 2 : 1);
    step->item_ns = leg->split.item_ns;
    step->serve_max_ns = leg->split.serve_max_ns;
    step->time = &loop->time;
    step->op_times = &loop->time.whole;
    if (step->batch)
        hzp_batch_clear(step->batch);
    hzp_plan_clear(&leg->plan);
    return leg;
}

/* How the step is cut and spread, if training comes and if not; NULL: sequentially. */
static const struct hzp_plan_shape *shape_of(const struct hzp_loop *loop,
                                             const struct hzp_batch *batch, bool trains)
{
    const struct hzp_loop_config *c = &loop->config;
    const struct hzp_plan_entry *entry = NULL;
    if (trains && c->beside)
        return c->beside;
    if (c->plans)
        entry = hzp_plan_table_find(c->plans, batch->decode_segs, batch->rows - batch->decode_segs,
                                    trains);
    return entry ? &entry->shape : c->shape;
}

/* Serving's rows become ops, and the split says how long training may run with them. */
static void plan_serving(struct hzp_loop *loop, struct leg *leg)
{
    struct hzp_step *step = &leg->step;
    const struct hzp_plan_shape *both = shape_of(loop, step->batch, true);
    leg->shape = shape_of(loop, step->batch, false);
    struct hzp_step_plan what = serving_of(loop, leg);
    hzp_step_build(&leg->plan, &what);
    hzp_split_serve(&loop->split, &leg->split, step->batch, &step->waits,
                    both && hzp_plan_shape_beside(both));
    if (leg->split.beside)
        step->op_times = &loop->time.beside;
    step->train_ns = leg->split.train_ns;
    step->item_ns = leg->split.item_ns;
    bool rides = both && both->ride && !hzp_weights_fp8(loop->config.model->weights);
    step->ride_rows = rides ? step->batch->rows + step->batch->pads : 0;
}

/* Serving's part was planned before anybody knew whether training would come. */
static void take_training(struct hzp_loop *loop, struct leg *leg)
{
    struct hzp_step *step = &leg->step;
    const struct hzp_plan_shape *both = NULL;
    if (step->batch && step->batch->rows > 0)
        both = shape_of(loop, step->batch, true);
    if (both && hzp_plan_shape_beside(both) && !leg->split.beside)
        both = NULL; /* in turns, then */
    bool in_turn = !both || !(leg->split.beside || both->ride || loop->config.plans);
    if (!in_turn) {
        hzp_plan_clear(&leg->plan);
        leg->shape = both;
    }
    struct hzp_step_plan what = serving_of(loop, leg);
    what.chain = step->chain;
    what.from = step->from;
    what.to = step->to;
    what.rider = step->rider;
    what.in_turn = in_turn;
    if (hzp_step_build(&leg->plan, &what))
        count(&loop->counters.ride_steps, 1);
}

/* How long the slice will take; into the split, how much of that in serving's own items. */
static double slice_ns(const struct hzp_loop *loop, struct leg *leg)
{
    const struct hzp_step *step = &leg->step;
    return hzp_ride_slice_ns(step->rider, step->version, step->op_times, step->chain, step->from,
                             step->to, step->ride_rows, &leg->split.ride_ns);
}

/* True: there is something to run. */
static bool offer(struct hzp_loop *loop, struct leg *leg)
{
    struct hzp_step *step = &leg->step;
    bool any = false, serving_planned = false;
    for (int32_t i = 0; i < loop->config.sources; i++) {
        struct hzp_source *source = loop->config.source[i];
        any |= source->offer(source, step);
        if (!serving_planned && step->batch && step->batch->rows > 0) {
            plan_serving(loop, leg);
            serving_planned = true;
        }
    }
    bool trains = step->chain && step->to > step->from;
    hzp_split_taken(&loop->split, &leg->split, trains,
                    trains && (leg->split.rows || leg->split.hold) ? slice_ns(loop, leg) : 0);
    if (trains)
        take_training(loop, leg);
    return any;
}

/* NULL: there is nothing to do.  The step is then no step, and its number comes again. */
static struct leg *form(struct hzp_loop *loop)
{
    uint64_t begin = host_ns();
    bool hidden = newest(loop) && newest(loop)->stage == ISSUED;
    struct leg *leg = begin_step(loop);
    bool any = offer(loop, leg);
    if (!any && leg->split.hold) { /* training has nothing to do */
        leg = begin_step(loop);
        any = offer(loop, leg);
    }
    if (!any)
        return NULL;
    loop->number++;
    leg->stage = FORMED;
    /* Whatever is published from here on, this version's memory stays until the step has landed. */
    if (leg->step.version)
        leg->step.version->last_step = HZP_MAX(leg->step.version->last_step, loop->number);
    count(&loop->counters.ahead_steps, hidden);
    count_host(loop, &loop->counters.form_ns, begin, hidden);
    return leg;
}

/* --- Running it ------------------------------------------------------------------------------- */

static void must_be_sound(const struct hzp_plan *plan, const struct leg *leg, const char *what)
{
    struct hzp_err_text text;
    int r = hzp_plan_check(plan, &text);
    if (r < 0)
        hzp_log(HZP_LOG_ERROR, "loop", "%s step=%llu %s", what,
                (unsigned long long)leg->step.number, text.text);
    HZP_ASSERT(r >= 0);
}

static void check(struct hzp_loop *loop, const struct leg *leg, const struct leg *before)
{
    must_be_sound(&leg->plan, leg, "plan");
    if (!before)
        return;
    hzp_plan_clear(&loop->joined);
    hzp_plan_join(&loop->joined, &before->plan, &leg->plan);
    must_be_sound(&loop->joined, leg, "two plans");
}

static int issue(struct hzp_loop *loop, struct leg *leg)
{
    bool queues = hzp_exec_queues(loop->exec, &leg->plan);
    if (!queues) /* it would run before those who wait for the steps before it hear of them */
        HZP_TRY(land_through(loop, leg->step.number - 1));
    const struct leg *before =
        loop->landed + 1 < leg->step.number ? leg_of(loop, leg->step.number - 1) : NULL;
    if (loop->config.check_plans)
        check(loop, leg, before);
    uint64_t begin = host_ns();
    HZP_TRY(hzp_exec_issue(loop->exec, &leg->plan, leg->flight, before ? before->flight : NULL));
    if (queues)
        count_host(loop, &loop->counters.issue_ns, begin, before && before->stage == ISSUED);
    leg->stage = ISSUED;
    if (!queues)
        return land(loop, leg);
    return HZP_OK;
}

/* What the step before must be through with before the next is formed. */
static int settle(struct hzp_loop *loop)
{
    struct leg *before = newest(loop);
    if (loop->landed + 1 < loop->number)
        HZP_TRY(land_through(loop, loop->number - 1));
    if (!before)
        return HZP_OK;
    if (before->step.settle == HZP_SETTLE_ALL)
        return land(loop, before);
    if (before->stage == ISSUED && (!loop->ahead || before->step.settle == HZP_SETTLE_SERVING))
        return serve(loop, before);
    return HZP_OK;
}

/* Nothing was formed: what is under way comes to its end. */
static int wind_up(struct hzp_loop *loop)
{
    struct leg *last = newest(loop);
    if (!last)
        return 0;
    HZP_TRY(last->stage == ISSUED ? serve(loop, last) : land(loop, last));
    return 1;
}

static int turn(struct hzp_loop *loop)
{
    HZP_TRY(settle(loop));
    struct leg *before = newest(loop), *leg = form(loop);
    if (!leg)
        return wind_up(loop);
    HZP_TRY(issue(loop, leg));
    if (before && before->stage == ISSUED)
        HZP_TRY(serve(loop, before));
    if (loop->ahead || leg->stage != ISSUED)
        return 1;
    HZP_TRY(serve(loop, leg));
    if (!leg->split.beside)
        HZP_TRY(land_through(loop, leg->step.number));
    return 1;
}

int hzp_loop_turn(struct hzp_loop *loop)
{
    int r = turn(loop);
    return r < 0 ? fail(loop, r) : r;
}

/* --- The end of the start --------------------------------------------------------------------- */

/* The leg gets the plan of its batch, as a step of that would be. */
static void warm_build(struct hzp_loop *loop, struct leg *leg, const struct hzp_plan_shape *shape)
{
    leg->shape = shape;
    struct hzp_step_plan what = serving_of(loop, leg);
    hzp_plan_clear(&leg->plan);
    hzp_step_build(&leg->plan, &what);
}

static int warm_run(struct hzp_loop *loop, struct leg *leg)
{
    struct hzp_exec_times times;
    warm_build(loop, leg, shape_of(loop, leg->batch, false));
    HZP_TRY(hzp_exec_issue(loop->exec, &leg->plan, leg->flight, NULL));
    return hzp_exec_land(leg->flight, NULL, &times);
}

/* Fences for steps of this shape; the most items of any so far. */
static int warm_reserve(struct hzp_loop *loop, const struct hzp_plan_shape *shape,
                        int32_t *ret_items)
{
    for (int i = 0; i < HZP_COUNT(loop->leg); i++) {
        struct leg *leg = &loop->leg[i];
        hzp_warm_mixed(leg->batch, leg->step.kv);
        warm_build(loop, leg, shape);
        HZP_TRY(hzp_flight_reserve(leg->flight, &leg->plan));
        *ret_items = HZP_MAX(*ret_items, leg->plan.items);
    }
    return HZP_OK;
}

/* Events for two steps' items, each with a slice of training, whose items no step has shown yet: a
 * layer's there and back are about forty, more where products are cut to a quantum. */
static int warm_times(struct hzp_loop *loop, int32_t items)
{
    enum { TRAIN_ITEMS = 64, UPDATE_ITEMS = 512 };
    const struct hzp_model *model = loop->config.model;
    return hzp_device_prepare_times(
        model->dev, 2 * (items + TRAIN_ITEMS * model->config->layers + UPDATE_ITEMS));
}

/* The first leg's step runs, and chooses algorithms; then either's is captured. */
static int warm_decode(struct hzp_loop *loop, int32_t rows)
{
    for (int i = 0; i < HZP_COUNT(loop->leg); i++) {
        struct leg *leg = &loop->leg[i];
        hzp_warm_decode(leg->batch, rows);
        if (i == 0)
            HZP_TRY(warm_run(loop, leg));
        else
            warm_build(loop, leg, shape_of(loop, leg->batch, false));
        HZP_TRY(hzp_exec_capture(loop->exec, &leg->plan));
    }
    return HZP_OK;
}

static int warm_all(struct hzp_loop *loop)
{
    const struct hzp_loop_config *c = &loop->config;
    const struct hzp_batch_config *max = &c->batch->max;
    int32_t items = 0, most = HZP_MIN(max->rows_max, HZP_MIN(max->segs_max, max->logits_max));
    HZP_TRY(warm_reserve(loop, c->shape, &items));
    HZP_TRY(warm_reserve(loop, c->beside, &items));
    for (int32_t i = 0; c->plans && i < c->plans->entries; i++)
        HZP_TRY(warm_reserve(loop, &c->plans->entry[i].shape, &items));
    HZP_TRY(warm_times(loop, items));
    hzp_warm_prompts(loop->leg[0].batch, loop->leg[0].step.kv);
    HZP_TRY(warm_run(loop, &loop->leg[0]));
    for (int32_t rows = 1; rows <= most; rows = hzp_batch_bucket(rows) + 1)
        HZP_TRY(warm_decode(loop, HZP_MIN(hzp_batch_bucket(rows), most)));
    return HZP_OK;
}

int hzp_loop_warm_up(struct hzp_loop *loop, const struct hzp_kv *kv)
{
    struct hzp_device *dev = loop->config.model->dev;
    struct hzp_version *version = hzp_weights_current(loop->config.model->weights);
    int r = HZP_OK;
    HZP_ASSERT(loop->number == 0);
    if (hzp_device_has_graphs(dev) && loop->config.batch && version) {
        uint64_t begin = hzp_now_ns();
        for (int i = 0; i < HZP_COUNT(loop->leg); i++) {
            loop->leg[i].step.version = version;
            loop->leg[i].step.kv = kv;
        }
        r = warm_all(loop);
        for (int i = 0; i < HZP_COUNT(loop->leg); i++) {
            hzp_batch_clear(loop->leg[i].batch);
            hzp_plan_clear(&loop->leg[i].plan);
        }
        hzp_log(HZP_LOG_INFO, "loop", "warm-up ms=%.0f graphs=%llu",
                (double)(hzp_now_ns() - begin) / 1e6,
                (unsigned long long)hzp_exec_graphs(loop->exec).captures);
    }
    hzp_device_steady(dev);
    return r;
}

struct hzp_graphs_stats hzp_loop_graphs(const struct hzp_loop *loop)
{
    return hzp_exec_graphs(loop->exec);
}

/* --- Turning ---------------------------------------------------------------------------------- */

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
    int r = HZP_OK;
    while (!may_end(loop)) {
        r = hzp_loop_turn(loop);
        if (r < 0)
            return r;
        if (r == 0) {
            uint64_t begin = hzp_now_ns();
            hzp_wake_wait(&loop->wake, UINT64_MAX);
            count(&loop->counters.idle_ns, hzp_now_ns() - begin);
        }
    }
    r = land_through(loop, loop->number);
    return r < 0 ? fail(loop, r) : HZP_OK;
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
        .ride_steps = atomic_load_explicit(&c->ride_steps, memory_order_relaxed),
        .serve_ns = atomic_load_explicit(&c->serve_ns, memory_order_relaxed),
        .train_ns = atomic_load_explicit(&c->train_ns, memory_order_relaxed),
        .idle_ns = atomic_load_explicit(&c->idle_ns, memory_order_relaxed),
        .ahead_steps = atomic_load_explicit(&c->ahead_steps, memory_order_relaxed),
        .form_ns = atomic_load_explicit(&c->form_ns, memory_order_relaxed),
        .issue_ns = atomic_load_explicit(&c->issue_ns, memory_order_relaxed),
        .deliver_ns = atomic_load_explicit(&c->deliver_ns, memory_order_relaxed),
        .hidden_ns = atomic_load_explicit(&c->hidden_ns, memory_order_relaxed),
        .failed = atomic_load(&c->failed),
    };
}
