/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/loop.c - the loop.
 *
 * A step is formed, issued, served (serving's results are delivered) and landed (its slices too
 * have ended, and every source has its outcome).  At most two steps are in flight: step n lands
 * before step n + 2 is formed, so only slices of step n may still run while step n + 1 is formed.
 *
 *     run-ahead   land n - 1 | form, issue n + 1 | serve n
 *     else        land n - 1 | form, issue n | serve n           (slices on their own lanes run on)
 *     inlined     form, issue n, which runs it | serve, land n
 */
#include "nanobatch/loop_state.h"

#include "base/log.h"

/* --- Create and destroy ----------------------------------------------------------------------- */

/* Makes the variant of the step's serving for another slot of weights.  It uses the step's own
 * arrays: they are cut into nano-batches in the same way again, before the step is issued. */
static bool variant(void *ctx, const struct hzp_plan *plan, int32_t i, struct hzp_plan *ret)
{
    struct hzp_loop *loop = ctx;
    struct hzp_active_step *active = &loop->active[plan == &loop->active[1].plan];
    const struct hzp_model *model = loop->config.model;
    const struct hzp_version *slot;
    for (int32_t s = 0; (slot = hzp_weights_slot(model->weights, s)); s++) {
        if (slot == active->step.version || i-- > 0)
            continue;
        struct hzp_step_plan what = hzp_step_serving(loop, active);
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
    if (!loop->config.batch)
        return;
    const struct hzp_loop_config *c = &loop->config;
    struct hzp_graphs_room room = c->graphs;
    room.count = hzp_graphs_count(&c->batch->max, slots, HZP_COUNT(loop->active),
                                  c->trains ? hzp_plan_shapes_each(&loop->shapes) : 1);
    hzp_exec_prepare_graphs(loop->exec, variant, loop, &room);
}

static int open_actives(struct hzp_loop *loop)
{
    for (int i = 0; i < 2; i++) {
        struct hzp_active_step *active = &loop->active[i];
        HZP_TRY(hzp_flight_open(loop->exec, &active->flight));
        if (i == 0)
            active->batch = loop->config.batch;
        else if (loop->config.batch)
            HZP_TRY(hzp_batch_create(loop->config.model->dev, &loop->config.batch->max,
                                     &active->batch));
    }
    return HZP_OK;
}

int hzp_loop_create(const struct hzp_loop_config *config, struct hzp_loop **ret)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(config->sources > 0 && config->sources <= HZP_COUNT(config->source));
    struct hzp_loop *loop = hzp_xcalloc(1, sizeof(*loop));
    loop->config = *config;
    loop->shapes = (struct hzp_plan_shapes){config->shape, config->beside, config->plans};
    for (int i = 0; i < 2; i++)
        hzp_plan_init(&loop->active[i].plan);
    hzp_plan_init(&loop->joined);
    hzp_time_init(&loop->time, config->model->dev->threads, config->model->config,
                  config->model->act);
    hzp_time_use_tables(&loop->time, config->tables);
    hzp_wake_init(&loop->wake);
    hzp_borders_init(&loop->borders);
    if (hzp_device_computes(config->model->dev)) {
        loop->turns = hzp_track_open("engine", HZP_TRACK_FEW, false);
        loop->steps = hzp_track_open("steps", HZP_TRACK_FEW, true);
    }
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
        r = open_actives(loop);
    if (r >= 0)
        r = hzp_exec_open_shapes(loop->exec, &loop->shapes);
    if (r < 0) {
        hzp_loop_destroy(loop);
        return r;
    }
    prepare_graphs(loop);
    *ret = loop;
    return HZP_OK;
}

void hzp_loop_destroy(struct hzp_loop *loop)
{
    if (!loop)
        return;
    hzp_assert_engine_thread();
    hzp_loop_close_borders(loop);
    for (int i = 0; i < 2; i++) {
        struct hzp_active_step *active = &loop->active[i];
        struct hzp_exec_times times;
        if (active->stage == HZP_STEP_ISSUED || active->stage == HZP_STEP_SERVED)
            hzp_exec_land(active->flight, NULL, &times);
        hzp_flight_close(active->flight);
        hzp_plan_fini(&active->plan);
        if (i) /* the caller owns the first one */
            hzp_batch_destroy(active->batch);
    }
    hzp_exec_destroy(loop->exec);
    hzp_plan_fini(&loop->joined);
    hzp_split_fini(&loop->split);
    hzp_wake_fini(&loop->wake);
    hzp_borders_fini(&loop->borders);
    hzp_track_close(loop->turns);
    hzp_track_close(loop->steps);
    free(loop);
}

/* --- Steps in flight -------------------------------------------------------------------------- */

/* Delivers the outcome to the sources that take it when serving has ended (slices false), or when
 * the slices have ended (true). */
static void deliver(struct hzp_loop *loop, struct hzp_active_step *active, bool slices, int status)
{
    active->outcome.status = status;
    for (int32_t i = 0; i < loop->config.sources; i++) {
        struct hzp_source *source = loop->config.source[i];
        if (source->slices == slices)
            source->deliver(source, &active->step, &active->offer, &active->outcome);
    }
}

int hzp_loop_rows_of(int32_t rows)
{
    int at = 0;
    while (rows >> at && at < HZP_LOOP_ROWS - 1)
        at++;
    return at;
}

static void count_rows(struct hzp_loop *loop, const struct hzp_active_step *active, uint64_t ns)
{
    if (!hzp_step_serves(active))
        return;
    int decodes = hzp_loop_rows_of(active->batch->decode_segs);
    int prompts = hzp_loop_rows_of(active->batch->rows - active->batch->decode_segs);
    hzp_count(&loop->counters.rows_steps[decodes][prompts], 1);
    hzp_count(&loop->counters.rows_ns[decodes][prompts], ns);
}

/* Waits for serving's part of the step and delivers its results. */
static int serve(struct hzp_loop *loop, struct hzp_active_step *active)
{
    uint64_t *served_ns = &active->outcome.ns[HZP_TENANT_SERVE];
    HZP_TRY(hzp_exec_wait_serving(active->flight, served_ns));
    uint64_t begin = hzp_host_ns();
    if (active->split.ride_ns > 0) /* subtract training's rows in serving's items */
        *served_ns -= HZP_MIN(*served_ns, (uint64_t)active->split.ride_ns);
    count_rows(loop, active, *served_ns);
    if (active->batch &&
        !active->batch->guesses) /* a step of all layers would have taken so much longer */
        hzp_rows_learn(&loop->time.rows, active->batch->rows,
                       (uint64_t)((double)*served_ns / hzp_batch_share(active->batch)));
    active->tokens_ns = active->outcome.end_ns = hzp_device_now_ns(loop->config.model->dev);
    active->stage = HZP_STEP_SERVED;
    if (loop->config.group && active->batch)
        hzp_step_link_drew(loop->config.group, active->step.number, active->batch);
    deliver(loop, active, false, HZP_OK);
    hzp_loop_count_host(loop, &loop->counters.deliver_ns, begin,
                        hzp_loop_newest(loop)->stage == HZP_STEP_ISSUED);
    return HZP_OK;
}

/* The longest predicted time of the chains' next items; 0: there are none. */
static double next_ns(const struct hzp_loop *loop, const struct hzp_offer *offer, bool beside)
{
    const struct hzp_op_times *times = beside ? &loop->time.beside : &loop->time.whole;
    double ns = 0;
    for (int32_t i = 0; i < offer->slices; i++) {
        const struct hzp_slice *slice = &offer->slice[i];
        if (slice->to == slice->chain->items)
            continue;
        const struct hzp_item *next = &slice->chain->item[slice->to];
        double next_ns = hzp_op_ns(times, next->op, next->args);
        ns = HZP_MAX(ns, next_ns);
    }
    return ns;
}

/* Waits for the end of the whole step and delivers its outcome; the steps before it have landed. */
static int land(struct hzp_loop *loop, struct hzp_active_step *active)
{
    const struct hzp_step *step = &active->step;
    struct hzp_exec_times times;
    struct hzp_loop_counters *c = &loop->counters;
    HZP_DEBUG_ASSERT(step->number == loop->landed + 1);
    if (active->stage == HZP_STEP_ISSUED)
        HZP_TRY(serve(loop, active));
    HZP_TRY(hzp_exec_land(active->flight,
                          active->split.beside ? &loop->time.beside : &loop->time.whole, &times));
    active->outcome.end_ns = hzp_device_now_ns(loop->config.model->dev);
    uint64_t trained_ns = times.end_ns[HZP_TENANT_TRAIN];
    active->outcome.ns[HZP_TENANT_TRAIN] =
        active->split.beside && trained_ns ? trained_ns : times.ns[HZP_TENANT_TRAIN];
    hzp_split_ended(&loop->split, &active->split, &times, active->tokens_ns,
                    next_ns(loop, &active->offer, active->split.beside));
    hzp_track_add(loop->steps, "step", step->begin_ns, active->outcome.end_ns, step->number);
    hzp_count(&c->steps, 1);
    hzp_count(&c->serve_ns, times.ns[HZP_TENANT_SERVE]);
    hzp_count(&c->train_ns, times.ns[HZP_TENANT_TRAIN]);
    hzp_count(&c->serve_steps, hzp_step_serves(active));
    hzp_count(&c->train_steps, active->split.trains);
    deliver(loop, active, true, HZP_OK);
    active->stage = HZP_STEP_LANDED;
    loop->landed = step->number;
    hzp_weights_reclaim(loop->config.model->weights, loop->landed);
    return HZP_OK;
}

static int land_through(struct hzp_loop *loop, uint64_t number)
{
    while (loop->landed < number)
        HZP_TRY(land(loop, hzp_loop_step(loop, loop->landed + 1)));
    return HZP_OK;
}

/* --- The other ranks of the group ------------------------------------------------------------- */

static int check_group(struct hzp_loop *loop)
{
    return loop->config.group ? hzp_step_link_check(loop->config.group, NULL) : HZP_OK;
}

/* This rank's steps do not go on, because of another rank, which the link's text names, or of its
 * own device: a plan's exchange that another rank ended looks like a failure of the device. */
void hzp_loop_tell_failure(struct hzp_loop *loop, int status)
{
    struct hzp_err_text text;
    struct hzp_step_link *group = loop->config.group;
    if (group && hzp_step_link_check_late(group, &text) < 0) {
        hzp_log(HZP_LOG_ERROR, "loop", "ranks failed: step=%llu cannot end: %s",
                (unsigned long long)loop->number, text.text);
        return;
    }
    hzp_log(HZP_LOG_ERROR, "loop", "device failed step=%llu code=%s",
            (unsigned long long)loop->number, hzp_err_name(status));
    if (group)
        hzp_step_link_fail(group, "its device failed");
}

int hzp_loop_tell_group(struct hzp_loop *loop, const struct hzp_active_step *active)
{
    const struct hzp_loop_config *c = &loop->config;
    if (!c->group)
        return HZP_OK;
    struct hzp_step_record record = {.step = active->step.number,
                                     .version = active->step.version->record.id,
                                     .current = active->current,
                                     .plan = hzp_plan_hash(&active->plan),
                                     .shape = hzp_plan_shapes_number(&loop->shapes, active->shape),
                                     .warms = active->warms};
    HZP_ASSERT(active->offer.slices <= 1);
    const struct hzp_slice *slice = active->offer.slices ? &active->offer.slice[0] : NULL;
    if (slice && slice->to > slice->from) { /* a slice without items needs no run */
        HZP_ASSERT(slice->number);
        HZP_ASSERT(!active->shape || hzp_plan_shape_plain(active->shape));
        record.training = (struct hzp_step_training){slice->number, slice->from, slice->to,
                                                     slice->work, slice->work_bytes};
    }
    return hzp_step_link_send(c->group, &record, active->batch, NULL);
}

/* Training's chain may end here between two items, with sums that all ranks have begun. */
static int end_group(struct hzp_loop *loop)
{
    struct hzp_step_record record = {.step = loop->number + 1, .shape = -1, .end = true};
    if (!loop->config.group)
        return HZP_OK;
    HZP_TRY(hzp_step_link_send(loop->config.group, &record, NULL, NULL));
    return hzp_link_end_all(loop->config.model->tensor_train, NULL);
}

/* Delivers the failure of every step in flight to every source, even if it already had the
 * results. */
static int fail(struct hzp_loop *loop, int status)
{
    for (uint64_t n = loop->landed + 1; n <= loop->number; n++) {
        struct hzp_active_step *active = hzp_loop_step(loop, n);
        deliver(loop, active, false, status);
        deliver(loop, active, true, status);
        active->stage = HZP_STEP_LANDED;
    }
    loop->landed = loop->number;
    hzp_loop_tell_failure(loop, status);
    atomic_store(&loop->counters.failed, true);
    hzp_borders_close(&loop->borders, status);
    return status;
}

/* --- Running steps ---------------------------------------------------------------------------- */

static void must_be_sound(const struct hzp_plan *plan, const struct hzp_active_step *active,
                          const char *what)
{
    struct hzp_err_text text;
    int r = hzp_plan_check(plan, &text);
    if (r < 0)
        hzp_log(HZP_LOG_ERROR, "loop", "%s step=%llu %s", what,
                (unsigned long long)active->step.number, text.text);
    HZP_ASSERT(r >= 0);
}

static void check(struct hzp_loop *loop, const struct hzp_active_step *active,
                  const struct hzp_active_step *before)
{
    must_be_sound(&active->plan, active, "plan");
    if (!before)
        return;
    hzp_plan_clear(&loop->joined);
    hzp_plan_join(&loop->joined, &before->plan, &active->plan);
    must_be_sound(&loop->joined, active, "two plans");
}

static int issue(struct hzp_loop *loop, struct hzp_active_step *active)
{
    bool queues = hzp_exec_queues(loop->exec, &active->plan);
    if (!queues) /* issuing runs the step: results of earlier steps are delivered first */
        HZP_TRY(land_through(loop, active->step.number - 1));
    const struct hzp_active_step *before = loop->landed + 1 < active->step.number
                                               ? hzp_loop_step(loop, active->step.number - 1)
                                               : NULL;
    if (loop->config.check_plans)
        check(loop, active, before);
    HZP_TRY(hzp_loop_tell_group(loop, active));
    uint64_t begin = hzp_host_ns();
    HZP_TRY(
        hzp_exec_issue(loop->exec, &active->plan, active->flight, before ? before->flight : NULL));
    if (queues)
        hzp_loop_count_host(loop, &loop->counters.issue_ns, begin,
                            before && before->stage == HZP_STEP_ISSUED);
    active->stage = HZP_STEP_ISSUED;
    if (!queues)
        return land(loop, active);
    return HZP_OK;
}

/* Waits for what must have ended before the next step is formed. */
static int settle(struct hzp_loop *loop)
{
    struct hzp_active_step *before = hzp_loop_newest(loop);
    if (loop->landed + 1 < loop->number)
        HZP_TRY(land_through(loop, loop->number - 1));
    if (!before)
        return HZP_OK;
    if (before->offer.settle == HZP_SETTLE_ALL)
        return land(loop, before);
    if (before->stage == HZP_STEP_ISSUED &&
        (!loop->ahead || before->offer.settle == HZP_SETTLE_SERVING))
        return serve(loop, before);
    return HZP_OK;
}

/* No step was formed: waits for the one in flight. */
static int wind_up(struct hzp_loop *loop)
{
    struct hzp_active_step *last = hzp_loop_newest(loop);
    if (!last)
        return 0;
    HZP_TRY(last->stage == HZP_STEP_ISSUED ? serve(loop, last) : land(loop, last));
    return 1;
}

/* True: a call has ended. */
static bool run_border(struct hzp_loop *loop)
{
    if (!hzp_borders_wait(&loop->borders))
        return false;
    hzp_weights_reclaim(loop->config.model->weights, loop->landed);
    struct hzp_border border = hzp_loop_border(loop);
    return hzp_borders_run(&loop->borders, &border) > 0;
}

static int turn(struct hzp_loop *loop)
{
    HZP_TRY(check_group(loop));
    HZP_TRY(settle(loop));
    bool ended = run_border(loop);
    struct hzp_active_step *before = hzp_loop_newest(loop), *active = hzp_loop_form(loop);
    if (!active) {
        int r = wind_up(loop);
        /* A call may wait for what the sources have just done.  One that has ended may have made
         * work, or let the loop end, so there is another turn before the thread sleeps. */
        ended = (r == 0 && run_border(loop)) || ended;
        return r == 0 && ended ? 1 : r;
    }
    HZP_TRY(issue(loop, active));
    if (before && before->stage == HZP_STEP_ISSUED)
        HZP_TRY(serve(loop, before));
    if (loop->ahead || active->stage != HZP_STEP_ISSUED)
        return 1;
    HZP_TRY(serve(loop, active));
    if (!active->split.beside)
        HZP_TRY(land_through(loop, active->step.number));
    return 1;
}

int hzp_loop_turn(struct hzp_loop *loop)
{
    const struct hzp_device *engine = loop->config.model->dev;
    hzp_thread_enter_engine(engine);
    hzp_track_enter(loop->turns, "turn", loop->number + 1);
    int r = turn(loop);
    hzp_track_leave(loop->turns);
    r = r < 0 ? fail(loop, r) : r;
    hzp_thread_leave_engine(engine);
    return r;
}

struct hzp_graphs_stats hzp_loop_graphs(const struct hzp_loop *loop)
{
    return hzp_exec_graphs(loop->exec);
}

/* --- The loop's thread ------------------------------------------------------------------------ */

static bool may_end(struct hzp_loop *loop)
{
    if (!atomic_load(&loop->stop))
        return false;
    bool hurry = atomic_load(&loop->hurry);
    for (int32_t i = 0; i < loop->config.sources; i++) {
        struct hzp_source *source = loop->config.source[i];
        bool (*stays)(struct hzp_source *) = hurry ? source->owes : source->busy;
        if (stays && stays(source))
            return false;
    }
    return true;
}

/* Begins a pause at `since`, or ends the present one (0).  A reader counts the pause in progress,
 * so the two values change together. */
static void set_idle(struct hzp_loop *loop, uint64_t since)
{
    struct hzp_loop_counters *c = &loop->counters;
    uint64_t before = atomic_load(&c->idle_since);
    atomic_fetch_add(&c->idle_turn, 1);
    if (before)
        atomic_fetch_add(&c->idle_ns, hzp_now_ns() - before);
    atomic_store(&c->idle_since, since);
    atomic_fetch_add(&c->idle_turn, 1);
}

/* Idle time up to now, with the pause in progress. */
static uint64_t idle_ns(struct hzp_loop *loop)
{
    struct hzp_loop_counters *c = &loop->counters;
    for (;;) {
        uint64_t turn = atomic_load(&c->idle_turn);
        uint64_t counted = atomic_load(&c->idle_ns), since = atomic_load(&c->idle_since);
        uint64_t now = hzp_now_ns();
        if (!(turn & 1) && turn == atomic_load(&c->idle_turn))
            return counted + (since && now > since ? now - since : 0);
    }
}

/* How long the thread may sleep when there is no work. */
static uint64_t sleep_ns(struct hzp_loop *loop)
{
    uint64_t due = UINT64_MAX;
    for (int32_t i = 0; i < loop->config.sources; i++) {
        struct hzp_source *source = loop->config.source[i];
        uint64_t its = source->due_ns ? source->due_ns(source) : due;
        due = HZP_MIN(due, its);
    }
    uint64_t now = hzp_device_now_ns(loop->config.model->dev);
    return due == UINT64_MAX ? due : due - HZP_MIN(due, now);
}

static int run(struct hzp_loop *loop)
{
    int r = HZP_OK;
    while (!may_end(loop)) {
        r = hzp_loop_turn(loop);
        if (r < 0)
            return r;
        if (r == 0) {
            set_idle(loop, hzp_now_ns());
            hzp_wake_wait(&loop->wake, sleep_ns(loop));
            set_idle(loop, 0);
        }
    }
    r = land_through(loop, loop->number);
    if (r == HZP_OK)
        r = end_group(loop);
    hzp_borders_close(&loop->borders, r < 0 ? r : HZP_ECANCELED);
    return r < 0 ? fail(loop, r) : HZP_OK;
}

int hzp_loop_run(struct hzp_loop *loop)
{
    const struct hzp_device *engine = loop->config.model->dev;
    hzp_thread_enter_engine(engine);
    int r = run(loop);
    hzp_thread_leave_engine(engine);
    return r;
}

const struct hzp_profile *hzp_loop_profile(const struct hzp_loop *loop)
{
    return hzp_exec_profile(loop->exec);
}

/* --- Other threads ---------------------------------------------------------------------------- */

int hzp_loop_call(struct hzp_loop *loop, hzp_border_fn *fn, void *ctx)
{
    struct hzp_border_call call = {.fn = fn, .ctx = ctx};
    hzp_loop_post(loop, &call);
    return hzp_loop_await(loop, &call);
}

void hzp_loop_post(struct hzp_loop *loop, struct hzp_border_call *call)
{
    hzp_borders_post(&loop->borders, call);
    hzp_loop_poke(loop);
}

bool hzp_loop_ended(struct hzp_loop *loop, const struct hzp_border_call *call, int *ret)
{
    return hzp_borders_ended(&loop->borders, call, ret);
}

int hzp_loop_await(struct hzp_loop *loop, const struct hzp_border_call *call)
{
    return hzp_borders_await(&loop->borders, call);
}

int hzp_loop_cancel(struct hzp_loop *loop, struct hzp_border_call *call)
{
    return hzp_borders_cancel(&loop->borders, call);
}

void hzp_loop_close_borders(struct hzp_loop *loop)
{
    hzp_borders_close(&loop->borders, HZP_ECANCELED);
}

struct hzp_border hzp_loop_border(const struct hzp_loop *loop)
{
    return (struct hzp_border){.last_step = loop->number, .keep_version = loop->keep_version};
}

void hzp_loop_poke(struct hzp_loop *loop)
{
    hzp_wake_poke(&loop->wake);
}

void hzp_loop_wake(void *loop)
{
    hzp_loop_poke(loop);
}

void hzp_loop_sleep(struct hzp_loop *loop, uint64_t wait_ns)
{
    hzp_wake_wait(&loop->wake, wait_ns);
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

void hzp_loop_read_rows(const struct hzp_loop *loop, struct hzp_loop_rows *ret)
{
    const struct hzp_loop_counters *c = &loop->counters;
    for (int d = 0; d < HZP_LOOP_ROWS; d++)
        for (int p = 0; p < HZP_LOOP_ROWS; p++) {
            ret->steps[d][p] = atomic_load_explicit(&c->rows_steps[d][p], memory_order_relaxed);
            ret->ns[d][p] = atomic_load_explicit(&c->rows_ns[d][p], memory_order_relaxed);
        }
}

void hzp_loop_read_stats(struct hzp_loop *loop, struct hzp_loop_stats *ret)
{
    const struct hzp_loop_counters *c = &loop->counters;
    *ret = (struct hzp_loop_stats){
        .steps = atomic_load_explicit(&c->steps, memory_order_relaxed),
        .serve_steps = atomic_load_explicit(&c->serve_steps, memory_order_relaxed),
        .train_steps = atomic_load_explicit(&c->train_steps, memory_order_relaxed),
        .ride_steps = atomic_load_explicit(&c->ride_steps, memory_order_relaxed),
        .serve_ns = atomic_load_explicit(&c->serve_ns, memory_order_relaxed),
        .train_ns = atomic_load_explicit(&c->train_ns, memory_order_relaxed),
        .idle_ns = idle_ns(loop),
        .ahead_steps = atomic_load_explicit(&c->ahead_steps, memory_order_relaxed),
        .form_ns = atomic_load_explicit(&c->form_ns, memory_order_relaxed),
        .issue_ns = atomic_load_explicit(&c->issue_ns, memory_order_relaxed),
        .deliver_ns = atomic_load_explicit(&c->deliver_ns, memory_order_relaxed),
        .hidden_ns = atomic_load_explicit(&c->hidden_ns, memory_order_relaxed),
        .failed = atomic_load(&c->failed),
    };
}
