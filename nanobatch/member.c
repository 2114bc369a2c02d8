/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/member.h"

#include "base/log.h"
#include "base/thread.h"
#include "nanobatch/run/warm.h"

/* How long the host rests between two looks whether a record has come or a step has ended. */
enum { REST_NS = 20000 };

struct member_step {
    struct hzp_step_record record;
    struct hzp_version *version;
    struct hzp_batch *batch; /* the first step's is the caller's */
    struct hzp_plan plan;
    struct hzp_flight *flight;
};

struct hzp_member {
    struct hzp_member_config config;
    struct hzp_step_link *records;
    struct hzp_exec *exec;
    struct member_step at[2]; /* step n: at[n % 2] */
    struct member_step *runs; /* issued, and not landed; NULL: none */
    struct hzp_plan joined;   /* two steps in flight, to be checked */
    uint64_t step, chain;     /* the newest one issued, and the newest chain */
    bool steady;              /* rank 0's start has ended */
    _Atomic uint64_t steps, rows, version, warms, serve_ns;
};

/* As rank 0 does for its own steps (loop_warm.c): makes what steps of any shape need. */
static int reserve(struct hzp_member *m)
{
    const struct hzp_member_config *c = &m->config;
    const struct hzp_warm warm = {.kv = c->kv, .positions = c->model->positions};
    int32_t items = 0;
    struct hzp_step_plan what = {.model = c->model,
                                 .version = hzp_weights_current(c->model->weights),
                                 .kv = c->kv,
                                 .space = c->space,
                                 .in_turn = true};
    for (int32_t i = -1; hzp_plan_shapes_at(&c->shapes, i, &what.shape) || i < 2; i++)
        for (int k = 0; k < HZP_COUNT(m->at) && (what.shape || i < 0); k++) {
            what.batch = m->at[k].batch;
            HZP_TRY(hzp_warm_reserve(m->at[k].flight, &m->at[k].plan, &what, &warm, &items));
            hzp_batch_clear(what.batch);
        }
    hzp_page_table_forget(c->batch->max.table); /* those steps never run */
    return hzp_warm_times(c->model, items);
}

static int try_products(struct hzp_member *m)
{
    const struct hzp_plan *products = m->config.products;
    struct hzp_exec_times times;
    if (!products || !products->items)
        return HZP_OK;
    int r = hzp_exec_run(m->exec, products, NULL, &times);
    if (r != HZP_ENOMEM && r != HZP_EUNSUP)
        return r;
    hzp_log(HZP_LOG_WARN, "loop", "products of training cannot be tried: %s, ignoring",
            hzp_err_name(r));
    return HZP_OK;
}

static int prepare(struct hzp_member *m)
{
    struct hzp_device *dev = m->config.model->dev;
    HZP_TRY(hzp_exec_create(dev, &m->exec));
    HZP_TRY(hzp_exec_open_shapes(m->exec, &m->config.shapes));
    m->at[0].batch = m->config.batch;
    HZP_TRY(hzp_batch_create(dev, &m->config.batch->max, &m->at[1].batch));
    for (int i = 0; i < HZP_COUNT(m->at); i++)
        HZP_TRY(hzp_flight_open(m->exec, &m->at[i].flight));
    if (!hzp_device_has_graphs(dev) || !hzp_weights_current(m->config.model->weights))
        return HZP_OK;
    HZP_TRY(reserve(m));
    return try_products(m);
}

/* Before the first step with requests, or with training. */
static void end_start(struct hzp_member *m)
{
    if (m->steady)
        return;
    m->steady = true;
    hzp_exec_steady(m->exec);
    hzp_device_steady(m->config.model->dev);
    hzp_log(HZP_LOG_INFO, "loop", "warm-up ended told_steps=%llu",
            (unsigned long long)atomic_load(&m->warms));
}

int hzp_member_create(const struct hzp_member_config *config, struct hzp_member **ret)
{
    hzp_assert_engine_thread();
    struct hzp_member *m = hzp_xcalloc(1, sizeof(*m));
    struct hzp_step_link_config records = {
        .link = config->link, .max = config->batch->max, .limits = config->limits};
    m->config = *config;
    m->records = hzp_step_link_create(&records);
    for (int i = 0; i < HZP_COUNT(m->at); i++)
        hzp_plan_init(&m->at[i].plan);
    hzp_plan_init(&m->joined);
    int r = prepare(m);
    m->config.products = NULL; /* the caller's again */
    if (r < 0) {
        hzp_member_destroy(m);
        return r;
    }
    *ret = m;
    return HZP_OK;
}

void hzp_member_destroy(struct hzp_member *m)
{
    if (!m)
        return;
    struct hzp_exec_times times;
    if (m->runs)
        hzp_exec_land(m->runs->flight, NULL, &times);
    for (int i = 0; i < HZP_COUNT(m->at); i++) {
        hzp_flight_close(m->at[i].flight);
        hzp_plan_fini(&m->at[i].plan);
    }
    hzp_plan_fini(&m->joined);
    hzp_exec_destroy(m->exec);
    hzp_batch_destroy(m->at[1].batch);
    hzp_step_link_destroy(m->records);
    free(m);
}

/* The version that computes the step's rows, with the one that rank 0 has published before it. */
static int find_version(struct hzp_member *m, const struct hzp_step_record *record,
                        struct hzp_version **ret, struct hzp_err_text *reterr)
{
    struct hzp_weights *weights = m->config.model->weights;
    struct hzp_version *current = hzp_weights_current(weights);
    if (current->record.id != record->current && m->config.publish)
        HZP_TRY(m->config.publish(m->config.ctx, record->current, reterr));
    current = hzp_weights_current(weights);
    if (current->record.id != record->current)
        return hzp_fail(reterr, HZP_EINVAL, "version %llu serves on rank 0, version %llu here",
                        (unsigned long long)record->current,
                        (unsigned long long)current->record.id);
    if (record->version != record->current)
        return hzp_fail(reterr, HZP_EINVAL,
                        "step %llu reads version %llu, which is not the current one",
                        (unsigned long long)record->step, (unsigned long long)record->version);
    *ret = current;
    return HZP_OK;
}

/* Training's slice of the step, if it has any. */
static int find_slice(struct hzp_member *m, const struct hzp_step_record *record,
                      struct hzp_step_plan *what, struct hzp_err_text *reterr)
{
    const struct hzp_step_training *training = &record->training;
    if (!training->chain)
        return HZP_OK;
    if (!m->config.chain)
        return hzp_fail(reterr, HZP_EINVAL, "rank 0 trains in step %llu, this rank does not",
                        (unsigned long long)record->step);
    HZP_TRY(m->config.chain(m->config.ctx, record, &what->chain, reterr));
    if (training->to > what->chain->items)
        return hzp_fail(reterr, HZP_EINVAL, "chain %llu has %d items, rank 0 runs up to item %d",
                        (unsigned long long)training->chain, what->chain->items, training->to);
    what->from = training->from;
    what->to = training->to;
    return HZP_OK;
}

/* The plan, and the one of the step that still runs with it. */
static int check_plans(struct hzp_member *m, const struct member_step *step,
                       struct hzp_err_text *reterr)
{
    if (!m->config.check_plans)
        return HZP_OK;
    HZP_TRY(hzp_plan_check(&step->plan, reterr));
    if (!m->runs)
        return HZP_OK;
    hzp_plan_clear(&m->joined);
    hzp_plan_join(&m->joined, &m->runs->plan, &step->plan);
    return hzp_plan_check(&m->joined, reterr);
}

static int make_plan(struct hzp_member *m, struct member_step *step, struct hzp_err_text *reterr)
{
    const struct hzp_step_record *record = &step->record;
    struct hzp_step_plan what = {.model = m->config.model,
                                 .version = step->version,
                                 .batch = step->batch,
                                 .kv = m->config.kv,
                                 .space = m->config.space,
                                 .in_turn = true};
    HZP_TRY(find_slice(m, record, &what, reterr));
    if (!hzp_plan_shapes_at(&m->config.shapes, record->shape, &what.shape))
        return hzp_fail(reterr, HZP_EINVAL, "rank 0 has a plan shape %d, which this rank has not",
                        record->shape);
    hzp_plan_clear(&step->plan);
    hzp_step_build(&step->plan, &what);
    uint64_t hash = hzp_plan_hash(&step->plan);
    if (hash != record->plan)
        return hzp_fail(reterr, HZP_EINVAL,
                        "made another plan of step %llu than rank 0 (%016llx, not %016llx)",
                        (unsigned long long)record->step, (unsigned long long)hash,
                        (unsigned long long)record->plan);
    return check_plans(m, step, reterr);
}

/* ---- steps ---- */

static int device_failed(const struct hzp_member *m, int r, const struct member_step *step,
                         struct hzp_err_text *reterr)
{
    if (hzp_step_link_check_late(m->records, reterr) < 0)
        return HZP_EIO;
    return hzp_fail(reterr, r, "the device failed in step %llu",
                    (unsigned long long)step->record.step);
}

/* Waits for the end of the step that runs, if one does. */
static int land(struct hzp_member *m, struct hzp_err_text *reterr)
{
    struct member_step *step = m->runs;
    struct hzp_exec_times times;
    if (!step)
        return HZP_OK;
    m->runs = NULL;
    int r = hzp_exec_land(step->flight, NULL, &times);
    if (r < 0)
        return device_failed(m, r, step, reterr);
    hzp_step_link_drew(m->records, step->record.step, step->batch);
    if (step->record.warms) {
        atomic_fetch_add(&m->warms, 1);
        return HZP_OK;
    }
    atomic_fetch_add(&m->steps, 1);
    atomic_fetch_add(&m->rows, (uint64_t)step->batch->rows);
    atomic_fetch_add(&m->serve_ns, times.ns[HZP_TENANT_SERVE]);
    atomic_store(&m->version, step->record.version);
    hzp_weights_reclaim(m->config.model->weights, step->record.step);
    if (m->config.ran)
        m->config.ran(m->config.ctx, &step->record, step->version, step->batch);
    return HZP_OK;
}

/* Whether the next step's record, plan or version follow from the end of the one that runs. */
static bool needs_end(const struct hzp_member *m, const struct hzp_step_record *next)
{
    uint64_t chain = next->training.chain;
    return next->end || next->drawn_step >= m->runs->record.step ||
           next->current != m->runs->record.current || (chain && chain != m->chain);
}

/* Issues the step behind the one that runs, which then lands. */
static int run_step(struct hzp_member *m, struct member_step *step, struct hzp_err_text *reterr)
{
    struct member_step *before = m->runs;
    HZP_TRY(find_version(m, &step->record, &step->version, reterr));
    HZP_TRY(make_plan(m, step, reterr));
    if (before && !hzp_exec_queues(m->exec, &step->plan)) {
        HZP_TRY(land(m, reterr));
        before = NULL;
    }
    int r = hzp_exec_issue(m->exec, &step->plan, step->flight, before ? before->flight : NULL);
    if (r < 0)
        return device_failed(m, r, step, reterr);
    HZP_TRY(land(m, reterr));
    m->runs = step;
    m->step = step->record.step;
    m->chain = HZP_MAX(m->chain, step->record.training.chain);
    step->record.training.work = NULL; /* the record's memory is used again */
    step->version->last_step = HZP_MAX(step->version->last_step, m->step);
    return hzp_exec_alone(m->exec) ? HZP_OK : land(m, reterr);
}

/* Until the next record is there.  Meanwhile the step that runs lands when it has ended, so that a
 * failure of the device is not noticed only with a record that may never come. */
static int await_record(struct hzp_member *m, struct hzp_err_text *reterr)
{
    while (m->runs) {
        int r = hzp_step_link_arrived(m->records, reterr);
        if (r)
            return r < 0 ? r : HZP_OK;
        r = hzp_exec_poll(m->runs->flight);
        if (r)
            HZP_TRY(land(m, reterr)); /* which fails if the device has */
        else
            nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
    }
    return HZP_OK;
}

static int turn(struct hzp_member *m, struct hzp_err_text *reterr)
{
    struct member_step *step = &m->at[(m->step + 1) % 2];
    const struct hzp_batch *before = m->step ? m->at[m->step % 2].batch : NULL;
    HZP_TRY(await_record(m, reterr));
    HZP_TRY(hzp_step_link_receive(m->records, before, &step->record, step->batch, reterr));
    if (m->runs && needs_end(m, &step->record))
        HZP_TRY(land(m, reterr));
    if (!step->record.warms)
        end_start(m);
    if (step->record.end) /* as rank 0 does (end_group in loop.c) */
        return hzp_link_end_all(m->config.model->tensor_train, reterr);
    HZP_TRY(hzp_step_link_compare(m->records, &step->record, reterr));
    HZP_TRY(run_step(m, step, reterr));
    return 1;
}

int hzp_member_turn(struct hzp_member *m, struct hzp_err_text *reterr)
{
    const struct hzp_device *engine = m->config.model->dev;
    struct hzp_err_text text = {0};
    hzp_thread_enter_engine(engine);
    int r = turn(m, &text);
    hzp_thread_leave_engine(engine);
    if (r < 0 && r != HZP_EIO)
        hzp_step_link_fail(m->records, text.text);
    if (r < 0 && reterr)
        *reterr = text;
    return r;
}

int hzp_member_run(struct hzp_member *m, struct hzp_err_text *reterr)
{
    int r;
    do {
        r = hzp_member_turn(m, reterr);
    } while (r > 0);
    return r;
}

void hzp_member_read_stats(const struct hzp_member *m, struct hzp_member_stats *ret)
{
    *ret = (struct hzp_member_stats){.steps = atomic_load(&m->steps),
                                     .rows = atomic_load(&m->rows),
                                     .version = atomic_load(&m->version),
                                     .warms = atomic_load(&m->warms),
                                     .serve_ns = atomic_load(&m->serve_ns)};
}
