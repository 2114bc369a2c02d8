/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/member.h"

#include "base/thread.h"
#include "nanobatch/build/step.h"
#include "nanobatch/plan/plan_hash.h"
#include "nanobatch/run/exec.h"

#include <stdatomic.h>
#include <stdlib.h>

struct hzp_member {
    struct hzp_member_config config;
    struct hzp_step_link *records;
    struct hzp_exec *exec;
    struct hzp_plan plan;
    struct hzp_batch *batch[2]; /* of step n: batch[n % 2]; the first is the caller's */
    uint64_t step;              /* the newest one that has ended */
    _Atomic uint64_t steps, rows, version, serve_ns;
};

static int prepare(struct hzp_member *m)
{
    const struct hzp_plan_shapes *s = &m->config.shapes;
    struct hzp_device *dev = m->config.model->dev;
    uint32_t lanes = hzp_plan_shape_lanes(s->shape) | hzp_plan_shape_lanes(s->beside);
    if (s->plans)
        lanes |= hzp_plan_table_lanes(s->plans);
    HZP_TRY(hzp_exec_create(dev, &m->exec));
    HZP_TRY(hzp_exec_open_lanes(m->exec, lanes));
    const struct hzp_plan_shape *shape;
    for (int32_t i = 0; hzp_plan_shapes_at(s, i, &shape) || i < 2; i++)
        if (shape)
            hzp_exec_prepare(dev, shape);
    m->batch[0] = m->config.batch;
    HZP_TRY(hzp_batch_create(dev, &m->config.batch->max, &m->batch[1]));
    hzp_exec_steady(m->exec);
    if (!hzp_device_has_graphs(dev)) /* else the first steps choose algorithms, as on rank 0 */
        hzp_device_steady(dev);
    return HZP_OK;
}

int hzp_member_create(const struct hzp_member_config *config, struct hzp_member **ret)
{
    hzp_assert_engine_thread();
    struct hzp_member *m = hzp_xcalloc(1, sizeof(*m));
    struct hzp_step_link_config records = {
        .link = config->link, .max = config->batch->max, .limits = config->limits};
    m->config = *config;
    m->records = hzp_step_link_create(&records);
    hzp_plan_init(&m->plan);
    int r = prepare(m);
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
    hzp_plan_fini(&m->plan);
    hzp_exec_destroy(m->exec);
    hzp_batch_destroy(m->batch[1]);
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

static int make_plan(struct hzp_member *m, const struct hzp_step_record *record,
                     struct hzp_batch *batch, const struct hzp_version *version,
                     struct hzp_err_text *reterr)
{
    struct hzp_step_plan what = {.model = m->config.model,
                                 .version = version,
                                 .batch = batch,
                                 .kv = m->config.kv,
                                 .space = m->config.space,
                                 .in_turn = true};
    HZP_TRY(find_slice(m, record, &what, reterr));
    if (!hzp_plan_shapes_at(&m->config.shapes, record->shape, &what.shape))
        return hzp_fail(reterr, HZP_EINVAL, "rank 0 has a plan shape %d, which this rank has not",
                        record->shape);
    hzp_plan_clear(&m->plan);
    hzp_step_build(&m->plan, &what);
    uint64_t hash = hzp_plan_hash(&m->plan);
    if (hash != record->plan)
        return hzp_fail(reterr, HZP_EINVAL,
                        "made another plan of step %llu than rank 0 (%016llx, not %016llx)",
                        (unsigned long long)record->step, (unsigned long long)hash,
                        (unsigned long long)record->plan);
    return m->config.check_plans ? hzp_plan_check(&m->plan, reterr) : HZP_OK;
}

static int run_step(struct hzp_member *m, const struct hzp_step_record *record,
                    struct hzp_batch *batch, struct hzp_err_text *reterr)
{
    struct hzp_version *version = NULL;
    struct hzp_exec_times times;
    HZP_TRY(find_version(m, record, &version, reterr));
    HZP_TRY(make_plan(m, record, batch, version, reterr));
    int r = hzp_exec_run(m->exec, &m->plan, NULL, &times);
    if (r < 0)
        return hzp_step_link_check(m->records, reterr) < 0
                   ? HZP_EIO
                   : hzp_fail(reterr, r, "the device failed in step %llu",
                              (unsigned long long)record->step);
    hzp_step_link_drew(m->records, record->step, batch);
    m->step = record->step;
    atomic_fetch_add(&m->steps, 1);
    atomic_fetch_add(&m->rows, (uint64_t)batch->rows);
    atomic_fetch_add(&m->serve_ns, times.ns[HZP_TENANT_SERVE]);
    atomic_store(&m->version, record->version);
    version->last_step = HZP_MAX(version->last_step, record->step);
    hzp_weights_reclaim(m->config.model->weights, record->step);
    if (m->config.ran)
        m->config.ran(m->config.ctx, record, version, batch);
    return 1;
}

static int turn(struct hzp_member *m, struct hzp_err_text *reterr)
{
    struct hzp_step_record record;
    struct hzp_batch *before = m->step ? m->batch[m->step % 2] : NULL;
    struct hzp_batch *batch = m->batch[(m->step + 1) % 2];
    HZP_TRY(hzp_step_link_receive(m->records, before, &record, batch, reterr));
    return record.end ? 0 : run_step(m, &record, batch, reterr);
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
                                     .serve_ns = atomic_load(&m->serve_ns)};
}
