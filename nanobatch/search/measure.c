/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/measure.h"

#include "nanobatch/search/simulate.h"

enum { PASSES = 3, RUNS_MIN = 2, RUNS_MAX = 9, DEPTH = 512 };

/* The target for the summed duration of one part's timed runs; shorter plans are run more often. */
static const double part_ns = 130e6;

/* A plan's duration is discarded if it exceeds stretch_max * (the sum of its items' times): the run
 * was then interrupted from outside. */
static const double stretch_max = 1.3;

static const uint64_t warm_ns = 50000000;

/* In a plan that takes longer than long_ns, only some items of each kind are run (at most
 * OF_A_KIND_MAX): every layer has the same ops, so more samples add nothing. */
static const double long_ns = 150e6;
enum { OF_A_KIND_MAX = 8 };

enum what { STEP, MICRO, UPDATE, BETWEEN, PAIR };

struct part {
    enum what what;
    int32_t decode, depth, prefill, at; /* STEP; for MICRO, decode is the number of rows */
    int32_t pass;
    bool again; /* STEP: run as two nano-batches, layer by layer */
    int32_t share;
    enum hzp_class a, b; /* PAIR */
};

struct sample {
    struct hzp_op_key key;
    struct hzp_op_size size;
    double ns;
};

/* The plan's items that have the same key and size. */
struct kind {
    struct hzp_op_key key;
    struct hzp_op_size size;
    int32_t items, ran; /* items in the plan; items run in the last run */
    double ns;          /* the shortest time of those that ran */
};

struct hzp_measure {
    struct hzp_rig *rig;
    struct hzp_tables *tables;
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    struct part *part; /* [tables->parts] */
    int32_t parts_room;
    struct hzp_plan plan;
    struct hzp_span *span; /* [room], like the arrays below: when each of the plan's items ran */
    bool *again;
    bool *ran;          /* whether the item was in the last run */
    int32_t *kind;      /* index into kinds */
    int32_t room, pass; /* pass: the pass that newly listed parts belong to */
    struct kind *kinds;
    int32_t kinds_count, kinds_room;
    struct sample *sample;
    int32_t samples, samples_room;
};

/* ---- the list of parts ---- */

static void add_part(struct hzp_measure *m, struct part part)
{
    m->part = hzp_xgrow(m->part, &m->parts_room, m->tables->parts + 1, sizeof(*m->part));
    part.pass = m->pass;
    m->part[m->tables->parts++] = part;
}

static void add_step(struct hzp_measure *m, int32_t decode, int32_t depth, int32_t prefill,
                     int32_t at, bool again)
{
    for (int32_t s = m->tables->shares - 1; s >= 0; s--)
        if (hzp_rig_serve(m->rig, decode, depth, prefill, at) == HZP_OK)
            add_part(m, (struct part){.what = STEP,
                                      .decode = decode,
                                      .depth = depth,
                                      .prefill = prefill,
                                      .at = at,
                                      .again = again,
                                      .share = s});
}

static void list_steps(struct hzp_measure *m)
{
    static const int32_t decode[] = {1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 256};
    static const int32_t prefill[] = {16, 32, 48, 64, 96, 128, 160, 192, 256, 512};
    static const int32_t again[] = {2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512};
    const struct hzp_rig_config *c = &m->rig->config;
    int32_t depth = HZP_MIN(c->depth_max, DEPTH);
    for (int i = 0; i < HZP_COUNT(decode); i++)
        if (decode[i] <= c->decode_max)
            add_step(m, decode[i], depth, 0, 0, false);
    /* 1, 4, 12, 24, 40, 64, 128 rows, also at other depths */
    for (int i = 0; i < HZP_COUNT(decode); i += 2)
        if (decode[i] <= c->decode_max) {
            add_step(m, decode[i], 64, 0, 0, false);
            add_step(m, decode[i], 2 * DEPTH, 0, 0, false);
        }
    for (int i = 0; i < HZP_COUNT(prefill); i++)
        if (prefill[i] <= c->prefill_max)
            add_step(m, 0, 0, prefill[i], 0, false);
    /* 16, 64, 160, 512 rows, also behind earlier positions */
    for (int i = 0; i < HZP_COUNT(prefill); i += 3)
        if (prefill[i] <= c->prefill_max)
            add_step(m, 0, 0, prefill[i], depth, false);
    for (int i = 0; i < HZP_COUNT(again); i++)
        if (2 * again[i] <= c->decode_max && again[i] <= 32)
            add_step(m, again[i], depth, 0, 0, true);
        else if (2 * again[i] <= c->prefill_max)
            add_step(m, 0, 0, again[i], 0, true);
}

static void list_training(struct hzp_measure *m)
{
    int32_t most = m->rig->train ? m->rig->micro->rows_max : 0;
    for (int32_t rows = most; rows >= 64 || (rows > 0 && rows == most); rows /= 2)
        for (int32_t s = m->tables->shares - 1; s >= 0; s--)
            if (rows <= m->rig->config.model->positions)
                add_part(m, (struct part){.what = MICRO, .decode = rows, .share = s});
    for (int32_t s = m->tables->shares - 1; most && m->rig->config.draft && s >= 0; s--)
        add_part(m, (struct part){.what = UPDATE, .share = s});
}

static void list_pairs(struct hzp_measure *m)
{
    for (int a = 0; a < HZP_CLASS_COUNT; a++)
        for (int b = a; b < HZP_CLASS_COUNT; b++)
            if (hzp_pair_possible(m->rig, (enum hzp_class)a, (enum hzp_class)b))
                add_part(
                    m, (struct part){.what = PAIR, .a = (enum hzp_class)a, .b = (enum hzp_class)b});
}

static void list_shares(struct hzp_tables *t, struct hzp_device *dev)
{
    int32_t eighths[] = {1, 2, 4, 6, 7, 8}, all = HZP_MAX(dev->threads, 1);
    t->threads = all;
    t->shares = 0;
    for (int i = 0; i < HZP_SHARES_MAX; i++) {
        int32_t cores = all <= HZP_SHARES_MAX ? i + 1 : all * eighths[i] / 8;
        if (cores <= all && (hzp_device_has_shares(dev) || cores == all))
            t->cores[t->shares++] = (int16_t)cores;
    }
}

int hzp_measure_create(struct hzp_rig *rig, struct hzp_tables *tables, struct hzp_measure **ret,
                       struct hzp_err_text *reterr)
{
    struct hzp_device *dev = rig->config.model->dev;
    if (!hzp_device_times_ops(dev))
        return hzp_fail(reterr, HZP_EUNSUP, "search: %s does not time single ops", dev->label);
    struct hzp_measure *m = hzp_xcalloc(1, sizeof(*m));
    m->rig = rig;
    m->tables = tables;
    m->dev = dev;
    hzp_plan_init(&m->plan);
    int r;
    HZP_TRY_GOTO(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &m->lane));
    HZP_TRY_GOTO(hzp_fence_open(dev, &m->fence));
    list_shares(tables, dev);
    tables->parts = 0;
    for (; m->pass < PASSES; m->pass++) {
        list_steps(m);
        list_training(m);
        if (m->pass == 1)
            add_part(m, (struct part){.what = BETWEEN});
        if (m->pass > 0)
            list_pairs(m);
    }
    tables->parts_done = HZP_MIN(tables->parts_done, tables->parts);
    *ret = m;
    return HZP_OK;
out:
    hzp_measure_destroy(m);
    return r;
}

void hzp_measure_destroy(struct hzp_measure *m)
{
    if (!m)
        return;
    hzp_fence_close(m->fence);
    hzp_lane_close(m->lane);
    hzp_plan_fini(&m->plan);
    free(m->part);
    free(m->span);
    free(m->again);
    free(m->ran);
    free(m->kind);
    free(m->kinds);
    free(m->sample);
    free(m);
}

const char *hzp_measure_what(const struct hzp_measure *m, char *text)
{
    const struct hzp_tables *t = m->tables;
    const struct part *p = &m->part[HZP_MIN(t->parts_done, t->parts - 1)];
    int32_t cores = t->cores[p->share];
    if (t->parts_done >= t->parts)
        snprintf(text, 64, "done");
    else if (p->what == STEP)
        snprintf(text, 64, "%d decode, %d prompt rows%s on %d", p->decode, p->prefill,
                 p->again ? " in two" : "", cores);
    else if (p->what == MICRO)
        snprintf(text, 64, "training %d rows on %d", p->decode, cores);
    else if (p->what == UPDATE)
        snprintf(text, 64, "an update on %d", cores);
    else if (p->what == BETWEEN)
        snprintf(text, 64, "between items");
    else
        snprintf(text, 64, "%s beside %s", hzp_class_text(p->a), hzp_class_text(p->b));
    return text;
}

/* ---- one lane ---- */

/* Leaves out what ranks exchange, which crew.h measures: this rank runs the plan by itself. */
static void drop_exchanges(struct hzp_plan *plan)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < plan->items; i++)
        if (plan->item[i].op != HZP_OP_collective)
            plan->item[kept++] = plan->item[i];
    plan->items = kept;
}

/* Prepares for the plan: grows the per-item arrays and groups its items into kinds. */
static void take_plan(struct hzp_measure *m)
{
    drop_exchanges(&m->plan);
    if (m->plan.items > m->room) {
        m->room = m->plan.items;
        m->span = hzp_xrealloc(m->span, (size_t)m->room * sizeof(*m->span));
        m->again = hzp_xrealloc(m->again, (size_t)m->room * sizeof(*m->again));
        m->ran = hzp_xrealloc(m->ran, (size_t)m->room * sizeof(*m->ran));
        m->kind = hzp_xrealloc(m->kind, (size_t)m->room * sizeof(*m->kind));
    }
    hzp_plan_find_again(&m->plan, m->again);
    m->kinds_count = 0;
    for (int32_t i = 0; i < m->plan.items; i++) {
        struct kind new = {.items = 0};
        int32_t k = 0;
        hzp_op_describe(m->plan.item[i].op, m->plan.item[i].args, &new.key, &new.size);
        new.key.again = m->again[i];
        while (k < m->kinds_count &&
               (memcmp(&m->kinds[k].key, &new.key, sizeof(new.key)) != 0 ||
                m->kinds[k].size.x != new.size.x || m->kinds[k].size.y != new.size.y))
            k++;
        m->kinds = hzp_xgrow(m->kinds, &m->kinds_room, k + 1, sizeof(*m->kinds));
        if (k == m->kinds_count)
            m->kinds[m->kinds_count++] = new;
        m->kinds[k].items++;
        m->kind[i] = k;
    }
}

/* Runs the plan in order on one lane of so many cores (SMs) and times each item; of each kind it
 * runs at most `most` items. An item left out leaves its output buffers unchanged, which does not
 * change the time of any other op. */
static int run_some(struct hzp_measure *m, int32_t cores, int32_t most)
{
    for (int32_t k = 0; k < m->kinds_count; k++) {
        m->kinds[k].ran = 0;
        m->kinds[k].ns = INFINITY;
    }
    HZP_TRY(hzp_lane_set_share(m->lane, cores == m->tables->threads ? 0 : cores));
    for (int32_t i = 0; i < m->plan.items; i++) {
        struct kind *kind = &m->kinds[m->kind[i]];
        m->ran[i] = kind->ran < most;
        if (!m->ran[i])
            continue;
        kind->ran++;
        HZP_TRY(hzp_lane_time(m->lane, &m->span[i]));
        HZP_TRY(hzp_lane_issue(m->lane, m->plan.item[i].op, m->plan.item[i].args));
    }
    HZP_TRY(hzp_fence_record(m->fence, m->lane));
    HZP_TRY(hzp_fence_wait(m->fence));
    for (int32_t i = 0; i < m->plan.items; i++)
        if (m->ran[i]) {
            double *ns = &m->kinds[m->kind[i]].ns;
            *ns = HZP_MIN(*ns, (double)(m->span[i].end_ns - m->span[i].begin_ns));
        }
    return HZP_OK;
}

static int run_once(struct hzp_measure *m, int32_t cores)
{
    return run_some(m, cores, INT32_MAX);
}

/* The duration of the whole plan, estimated from the last run as the sum over kinds of items *
 * shortest time; *ret_one_each: the time of one item of each kind. */
static double whole_ns(const struct hzp_measure *m, double *ret_one_each)
{
    double whole = 0;
    *ret_one_each = 0;
    for (int32_t k = 0; k < m->kinds_count; k++) {
        whole += m->kinds[k].ns * m->kinds[k].items;
        *ret_one_each += m->kinds[k].ns;
    }
    return whole;
}

/* The same sum from the times in the tables; 0 if the tables lack one of the kinds. */
static double known_ns(const struct hzp_measure *m, int32_t share)
{
    double whole = 0;
    for (int32_t k = 0; k < m->kinds_count; k++) {
        const struct kind *kind = &m->kinds[k];
        double ns = hzp_tables_measured(m->tables, &kind->key, &kind->size, share);
        if (!(ns > 0))
            return 0;
        whole += ns * kind->items;
    }
    return whole;
}

static void take_samples(struct hzp_measure *m, bool only_again)
{
    for (int32_t i = 0; i < m->plan.items; i++) {
        const struct kind *kind = &m->kinds[m->kind[i]];
        if (!m->ran[i] || (only_again && !m->again[i]))
            continue;
        m->sample = hzp_xgrow(m->sample, &m->samples_room, m->samples + 1, sizeof(*m->sample));
        m->sample[m->samples++] = (struct sample){
            kind->key, kind->size, (double)(m->span[i].end_ns - m->span[i].begin_ns)};
    }
}

static int by_kind(const struct sample *x, const struct sample *y)
{
    int r = memcmp(&x->key, &y->key, sizeof(x->key));
    if (r)
        return r;
    if (x->size.x != y->size.x)
        return x->size.x < y->size.x ? -1 : 1;
    return x->size.y < y->size.y ? -1 : x->size.y > y->size.y;
}

static int by_kind_and_time(const void *a, const void *b)
{
    const struct sample *x = a, *y = b;
    int r = by_kind(x, y);
    return r ? r : x->ns < y->ns ? -1 : x->ns > y->ns;
}

/* Stores the mean of each kind's middle half: outliers from interruptions are cut off, and the sum
 * of the means still approximates the plan's duration. In later passes the shorter of the new and
 * the stored time is kept, because disturbances that last for seconds only ever make times
 * longer. */
static void store_samples(struct hzp_measure *m, int32_t share, int32_t runs, int32_t pass)
{
    qsort(m->sample, (size_t)m->samples, sizeof(*m->sample), by_kind_and_time);
    for (int32_t from = 0, to; from < m->samples; from = to) {
        const struct sample *s = &m->sample[from];
        for (to = from + 1; to < m->samples && !by_kind(s, &m->sample[to]);)
            to++;
        int32_t cut = (to - from) / 4;
        double sum = 0;
        for (int32_t i = from + cut; i < to - cut; i++)
            sum += m->sample[i].ns;
        double mean = HZP_MAX(sum / (to - from - 2 * cut), 1.0);
        double before = hzp_tables_measured(m->tables, &s->key, &s->size, share);
        m->tables->items_ns += mean * (to - from) / runs;
        if (pass && before > 0)
            mean = HZP_MIN(mean, before);
        hzp_tables_set(m->tables, &s->key, &s->size, share, mean);
    }
    m->samples = 0;
}

/* Measures a long plan by some items of each kind. *ret_done is false if the plan is not that
 * long. */
static int measure_long(struct hzp_measure *m, const struct part *p, bool *ret_done)
{
    int32_t cores = m->tables->cores[p->share];
    double one_each;
    *ret_done = false;
    if (whole_ns(m, &one_each) < long_ns)
        return HZP_OK;
    HZP_TRY(run_some(m, cores, 1)); /* the first run also created primitives: check again */
    if (whole_ns(m, &one_each) < long_ns)
        return HZP_OK;
    *ret_done = true;
    take_samples(m, p->again);
    double most = HZP_MIN(HZP_MAX(part_ns / HZP_MAX(one_each, 1.0), 2.0), OF_A_KIND_MAX);
    HZP_TRY(run_some(m, cores, (int32_t)most));
    take_samples(m, p->again);
    double items_before = m->tables->items_ns;
    store_samples(m, p->share, 1, p->pass);
    m->tables->items_ns = items_before; /* the whole plan was not timed */
    return HZP_OK;
}

static int measure_plan(struct hzp_measure *m, const struct part *p)
{
    int32_t cores = m->tables->cores[p->share], runs = RUNS_MIN;
    double took[RUNS_MAX];
    bool done;
    take_plan(m);
    if (p->pass > 1 && known_ns(m, p->share) >= long_ns)
        return HZP_OK; /* two passes are enough for a long plan */
    /* Warm-up: the first run creates primitives and touches memory, and a core that was idle takes
     * some time to reach its full clock. */
    uint64_t warm = hzp_device_now_ns(m->dev);
    HZP_TRY(run_some(m, cores, 1));
    HZP_TRY(measure_long(m, p, &done));
    if (done)
        return hzp_lane_set_share(m->lane, 0);
    for (int32_t i = 0; i == 0 || (i < RUNS_MAX && hzp_device_now_ns(m->dev) - warm < warm_ns); i++)
        HZP_TRY(run_once(m, cores));
    for (int32_t i = 0; i < runs; i++) {
        uint64_t begin = hzp_device_now_ns(m->dev);
        HZP_TRY(run_once(m, cores));
        took[i] = (double)(hzp_device_now_ns(m->dev) - begin);
        if (i == 0)
            runs = (int32_t)HZP_MIN(HZP_MAX(part_ns / HZP_MAX(took[i], 1.0), RUNS_MIN), RUNS_MAX);
        take_samples(m, p->again);
    }
    double items_before = m->tables->items_ns;
    store_samples(m, p->share, runs, p->pass);
    hzp_median(took, runs);
    double items = m->tables->items_ns - items_before, whole = took[(runs - 1) / 2];
    if (p->again || whole > stretch_max * items)
        /* the samples cover only some items, or the run was interrupted */
        m->tables->items_ns = items_before;
    else
        m->tables->plans_ns += whole;
    return hzp_lane_set_share(m->lane, 0);
}

static int measure_step(struct hzp_measure *m, const struct part *p)
{
    struct hzp_plan_shape shape = hzp_plan_sequential;
    if (p->again) {
        shape.nanos = 2;
        shape.weight[1] = 1;
        shape.order = HZP_ORDER_LAYERS;
    }
    /* Two nano-batches of that many rows each. */
    int32_t times = p->again ? 2 : 1;
    int r = hzp_rig_serve(m->rig, times * p->decode, p->depth, times * p->prefill, p->at);
    if (r == HZP_EINVAL)
        return HZP_OK; /* too few pages for twice the rows: the size is left out */
    HZP_TRY(hzp_rig_train(m->rig, 0));
    hzp_rig_build(m->rig, &shape, 0, 0, &m->plan);
    return measure_plan(m, p);
}

static int measure_chain(struct hzp_measure *m, const struct part *p)
{
    HZP_TRY(p->what == UPDATE ? hzp_rig_update(m->rig) : hzp_rig_train(m->rig, p->decode));
    HZP_TRY(hzp_rig_serve(m->rig, 0, 0, 0, 0));
    hzp_rig_build(m->rig, &hzp_plan_sequential, 0, m->rig->chain.items, &m->plan);
    return measure_plan(m, p);
}

/* ---- between items ---- */

/* The time that a lane of so many cores (SMs) spends between one item's end and the next one's
 * start. */
static int measure_gap(struct hzp_measure *m, int32_t cores, double *ret)
{
    const struct hzp_rig_config *c = &m->rig->config;
    HZP_TRY(hzp_rig_train(m->rig, 0));
    HZP_TRY(hzp_rig_serve_shallow(m->rig, HZP_MIN(c->decode_max, 8), HZP_MIN(c->depth_max, DEPTH),
                                  c->decode_max ? 0 : HZP_MIN(c->prefill_max, 8)));
    hzp_rig_build(m->rig, &hzp_plan_sequential, 0, 0, &m->plan);
    take_plan(m);
    double least = INFINITY;
    for (int run = 0; run < 5 && m->plan.items > 1; run++) {
        HZP_TRY(run_once(m, cores));
        double busy = 0;
        int32_t last = m->plan.items - 1;
        for (int32_t i = 0; i <= last; i++)
            busy += (double)(m->span[i].end_ns - m->span[i].begin_ns);
        double all = (double)(m->span[last].end_ns - m->span[0].begin_ns);
        least = HZP_MIN(least, HZP_MAX(all - busy, 0) / last);
    }
    *ret = least < INFINITY ? least : 0;
    return hzp_lane_set_share(m->lane, 0);
}

static int measure_between(struct hzp_measure *m)
{
    struct hzp_tables *t = m->tables;
    if (!m->rig->batch)
        return HZP_OK;
    HZP_TRY(measure_gap(m, t->threads, &t->gap_inline_ns));
    HZP_TRY(measure_gap(m, t->cores[0], &t->gap_ns));
    return hzp_pair_handover(m->rig, t);
}

int hzp_measure_next(struct hzp_measure *m)
{
    struct hzp_tables *t = m->tables;
    if (t->parts_done >= t->parts)
        return HZP_OK;
    const struct part *p = &m->part[t->parts_done];
    if (p->what == STEP)
        HZP_TRY(measure_step(m, p));
    else if (p->what == BETWEEN)
        HZP_TRY(measure_between(m));
    else if (p->what == PAIR)
        HZP_TRY(hzp_pair_measure(m->rig, t, p->a, p->b, p->pass > 1));
    else
        HZP_TRY(measure_chain(m, p));
    t->parts_done++;
    return HZP_OK;
}
