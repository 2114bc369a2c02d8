/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/crew.h"

#include "nanobatch/run/exec.h"
#include "nanobatch/search/measure.h"

enum { ROUNDS = 5, BESIDE_MAX = 64 };
enum what { PART, EXCHANGE, BESIDE, STEP, SPENT, END };

/* How long exchanges are to run beside a class, in one round. */
static const double beside_ns = 100e6;

struct order {
    int32_t what, part;                     /* PART: its number */
    int32_t kind, rows, class, count;       /* EXCHANGE, BESIDE */
    int32_t decode, depth, prefill, unused; /* STEP */
    uint64_t processors;                    /* SPENT */
    struct hzp_plan_shape shape;
};

struct hzp_crew {
    struct hzp_crew_config config;
    struct hzp_exec *exec;
    struct hzp_lane *lane;
    struct hzp_plan plan;
    struct order order;
    void *memory[2];                    /* [rows][width] F32 each */
    int32_t rows;                       /* the most of an exchange: a multiple of the ranks */
    double exchange_ns;                 /* duration of the newest EXCHANGE */
    double busy_ns[HZP_BOUND_COPY + 1]; /* busy time of the newest STEP's items */
};

static int32_t ranks_of(const struct hzp_crew *c)
{
    return hzp_link_ranks(c->config.link);
}

int hzp_crew_create(const struct hzp_crew_config *config, struct hzp_crew **ret)
{
    const struct hzp_rig_config *rig = &config->rig->config;
    struct hzp_device *dev = rig->model->dev;
    struct hzp_crew *c = hzp_xcalloc(1, sizeof(*c));
    int r;
    c->config = *config;
    c->rows = (int32_t)HZP_ROUND_UP(rig->decode_max + rig->prefill_max, ranks_of(c));
    hzp_plan_init(&c->plan);
    size_t bytes = (size_t)c->rows * (size_t)rig->model->config->width * sizeof(float);
    for (int i = 0; i < 2; i++)
        HZP_TRY_GOTO(hzp_device_alloc(dev, HZP_MEM_DEVICE, bytes, &c->memory[i]));
    HZP_TRY_GOTO(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &c->lane));
    HZP_TRY_GOTO(hzp_exec_create(dev, &c->exec));
    *ret = c;
    return HZP_OK;
out:
    hzp_crew_destroy(c);
    return r;
}

void hzp_crew_destroy(struct hzp_crew *c)
{
    if (!c)
        return;
    struct hzp_device *dev = c->config.rig->config.model->dev;
    hzp_exec_destroy(c->exec);
    hzp_lane_close(c->lane);
    for (int i = 0; i < 2; i++)
        hzp_device_free(dev, HZP_MEM_DEVICE, c->memory[i]);
    hzp_plan_fini(&c->plan);
    free(c);
}

/* ---- what all ranks do ---- */

static struct hzp_collective_args exchange_of(const struct hzp_crew *c, int32_t kind, int32_t rows)
{
    int32_t width = c->config.rig->config.model->config->width;
    bool scatter = kind == HZP_REDUCE_SCATTER;
    struct hzp_mat all = {c->memory[0], rows, width, width, HZP_F32};
    struct hzp_mat part = {c->memory[1], rows / ranks_of(c), width, width, HZP_F32};
    return (struct hzp_collective_args){.link = c->config.link,
                                        .recv = scatter ? part : all,
                                        .send = scatter ? all : (struct hzp_mat){0},
                                        .kind = kind,
                                        .accumulate = scatter};
}

static int do_exchange(struct hzp_crew *c, const struct order *o)
{
    struct hzp_device *dev = c->config.rig->config.model->dev;
    struct hzp_collective_args args = exchange_of(c, o->kind, o->rows);
    double ns[ROUNDS + 1];
    for (int i = 0; i <= ROUNDS; i++) { /* the first brings the ranks together */
        uint64_t begin = hzp_device_now_ns(dev);
        HZP_TRY(hzp_lane_issue(c->lane, HZP_OP_collective, &args));
        ns[i] = (double)(hzp_device_now_ns(dev) - begin);
    }
    double median = hzp_median(ns + 1, ROUNDS);
    c->exchange_ns = HZP_MAX(median, 1);
    return HZP_OK;
}

/* *value: the sum over all ranks. */
static int add_up(struct hzp_crew *c, uint64_t *value, struct hzp_err_text *reterr)
{
    struct hzp_transfer t = {.op = HZP_ALL_REDUCE,
                             .type = HZP_WIRE_U64,
                             .count = 1,
                             .send = value,
                             .recv = value,
                             .host = true};
    return hzp_link_move(c->config.link, &t, reterr);
}

static int meet(struct hzp_crew *c, struct hzp_err_text *reterr)
{
    uint64_t one = 1;
    return add_up(c, &one, reterr);
}

static int do_spent(struct hzp_crew *c, const struct order *o, double *ret_ns,
                    struct hzp_err_text *reterr)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    bool counts =
        hzp_link_rank(c->config.link) && o->processors && o->processors == c->config.processors;
    uint64_t ns = counts ? (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec : 0;
    HZP_TRY(add_up(c, &ns, reterr));
    *ret_ns = (double)ns;
    return HZP_OK;
}

static void add_busy(struct hzp_crew *c)
{
    const struct hzp_span *span = hzp_exec_spans(c->exec);
    memset(c->busy_ns, 0, sizeof(c->busy_ns));
    for (int32_t i = 0; span && i < c->plan.items; i++) {
        const struct hzp_item *item = &c->plan.item[i];
        enum hzp_bound bound = hzp_class_bound(hzp_op_class(item->op, item->args));
        c->busy_ns[bound] += (double)(span[i].end_ns - span[i].begin_ns);
    }
}

double hzp_crew_busy_ns(const struct hzp_crew *c, enum hzp_bound bound)
{
    return c->busy_ns[bound];
}

static int do_step(struct hzp_crew *c, const struct order *o, double *ret_ns,
                   struct hzp_err_text *reterr)
{
    struct hzp_rig *rig = c->config.rig;
    struct hzp_exec_times times;
    HZP_TRY(hzp_rig_serve(rig, o->decode, o->depth, o->prefill, 0));
    HZP_TRY(hzp_rig_train(rig, 0));
    hzp_rig_build(rig, &o->shape, 0, 0, &c->plan);
    HZP_TRY(hzp_plan_check(&c->plan, reterr));
    HZP_TRY(meet(c, reterr));
    uint64_t begin = hzp_device_now_ns(rig->config.model->dev);
    HZP_TRY(hzp_exec_run(c->exec, &c->plan, NULL, &times));
    *ret_ns = (double)(hzp_device_now_ns(rig->config.model->dev) - begin);
    add_busy(c);
    return HZP_OK;
}

static int act(struct hzp_crew *c, const struct order *o, double *ret_ns,
               struct hzp_err_text *reterr)
{
    struct hzp_collective_args args;
    switch (o->what) {
    case PART:
        c->config.tables->parts_done = o->part;
        HZP_TRY(hzp_measure_next(c->config.measure));
        return meet(c, reterr);
    case EXCHANGE:
        return do_exchange(c, o);
    case BESIDE:
        args = exchange_of(c, o->kind, o->rows);
        return hzp_pair_exchange(c->config.rig, c->config.tables, (enum hzp_class)o->class, &args,
                                 o->count);
    case STEP:
        return do_step(c, o, ret_ns, reterr);
    case SPENT:
        return do_spent(c, o, ret_ns, reterr);
    default:
        return HZP_OK;
    }
}

/* ---- orders ---- */

static int broadcast(struct hzp_crew *c, struct hzp_err_text *reterr)
{
    struct hzp_transfer t = {.op = HZP_BROADCAST,
                             .type = HZP_WIRE_BYTE,
                             .count = sizeof(c->order),
                             .recv = &c->order,
                             .idle = true,
                             .host = true};
    return hzp_link_move(c->config.link, &t, reterr);
}

/* A device whose exchange fails does not say why: if it is the link, that knows which rank. */
static int name_rank(struct hzp_crew *c, int r, struct hzp_err_text *reterr)
{
    return r < 0 && hzp_link_check(c->config.link, reterr) < 0 ? HZP_EIO : r;
}

static int say(struct hzp_crew *c, const struct order *o, double *ret_ns,
               struct hzp_err_text *reterr)
{
    c->order = *o;
    int r = broadcast(c, reterr);
    if (r >= 0)
        r = act(c, o, ret_ns, reterr);
    return name_rank(c, r, reterr);
}

int hzp_crew_part(struct hzp_crew *c, struct hzp_err_text *reterr)
{
    struct order o = {.what = PART, .part = c->config.tables->parts_done};
    return say(c, &o, NULL, reterr);
}

/* Exchanges of one kind by their rows. */
static int measure_kind(struct hzp_crew *c, int32_t kind, struct hzp_err_text *reterr)
{
    struct hzp_tables *t = c->config.tables;
    for (int32_t rows = ranks_of(c);; rows = HZP_MIN(4 * rows, c->rows)) {
        struct order o = {.what = EXCHANGE, .kind = kind, .rows = rows};
        struct hzp_collective_args args = exchange_of(c, kind, rows);
        struct hzp_op_key key;
        struct hzp_op_size size;
        HZP_TRY(say(c, &o, NULL, reterr));
        hzp_op_describe(HZP_OP_collective, &args, &key, &size);
        for (int32_t s = 0; s < t->shares; s++)
            hzp_tables_set(t, &key, &size, s, c->exchange_ns);
        if (rows == c->rows)
            return HZP_OK;
    }
}

int hzp_crew_link(struct hzp_crew *c, struct hzp_err_text *reterr)
{
    static const enum hzp_class beside[] = {HZP_CLASS_THIN, HZP_CLASS_WIDE, HZP_CLASS_DECODE,
                                            HZP_CLASS_PREFILL, HZP_CLASS_ROWS};
    const struct hzp_rig_config *rig = &c->config.rig->config;
    HZP_TRY(measure_kind(c, HZP_ALL_GATHER, reterr));
    HZP_TRY(measure_kind(c, HZP_REDUCE_SCATTER, reterr));
    HZP_TRY(measure_kind(c, HZP_ALL_REDUCE, reterr));
    double each = c->exchange_ns; /* duration of the largest all-reduce */
    int32_t count = (int32_t)HZP_MIN(HZP_MAX(beside_ns / each, 3), BESIDE_MAX);
    for (int i = 0; i < HZP_COUNT(beside); i++) {
        struct order o = {.what = BESIDE,
                          .kind = HZP_ALL_REDUCE,
                          .rows = c->rows,
                          .class = beside[i],
                          .count = count};
        bool few = beside[i] == HZP_CLASS_THIN || beside[i] == HZP_CLASS_DECODE;
        if ((few ? rig->decode_max : rig->prefill_max) >= 2)
            HZP_TRY(say(c, &o, NULL, reterr));
    }
    return HZP_OK;
}

int hzp_crew_step(struct hzp_crew *c, const struct hzp_plan_shape *shape, int32_t decode,
                  int32_t depth, int32_t prefill, double *ret_ns, struct hzp_err_text *reterr)
{
    struct order o = {
        .what = STEP, .decode = decode, .depth = depth, .prefill = prefill, .shape = *shape};
    HZP_TRY(hzp_rig_serve(c->config.rig, decode, depth, prefill, 0)); /* before others are told */
    return say(c, &o, ret_ns, reterr);
}

int hzp_crew_spent(struct hzp_crew *c, double *ret_ns, struct hzp_err_text *reterr)
{
    struct order o = {.what = SPENT, .processors = c->config.processors};
    return say(c, &o, ret_ns, reterr);
}

int hzp_crew_end(struct hzp_crew *c, struct hzp_err_text *reterr)
{
    struct order o = {.what = END};
    return say(c, &o, NULL, reterr);
}

/* Whether the order can be carried out here. */
static bool is_sound(const struct hzp_crew *c, const struct order *o)
{
    switch (o->what) {
    case PART:
        return o->part >= 0 && o->part < c->config.tables->parts;
    case BESIDE:
        if (o->class < 0 || o->class >= HZP_CLASS_NETWORK || o->count < 1 || o->count > BESIDE_MAX)
            return false; /* fall through */
    case EXCHANGE:
        return o->rows > 0 && o->rows <= c->rows && o->rows % ranks_of(c) == 0 &&
               (o->kind == HZP_ALL_GATHER || o->kind == HZP_REDUCE_SCATTER ||
                o->kind == HZP_ALL_REDUCE);
    case STEP:
        return hzp_plan_shape_check(&o->shape, NULL) == HZP_OK && o->decode >= 0 && o->depth >= 0 &&
               o->prefill >= 0 && o->decode + (int64_t)o->prefill > 0;
    default:
        return o->what == SPENT || o->what == END;
    }
}

int hzp_crew_follow(struct hzp_crew *c, struct hzp_err_text *reterr)
{
    double ns;
    for (;;) {
        HZP_TRY(broadcast(c, reterr));
        struct order o = c->order;
        int r = is_sound(c, &o) ? act(c, &o, &ns, reterr)
                                : hzp_fail(reterr, HZP_EFORMAT, "an order that makes no sense");
        if (r < 0)
            hzp_link_abort(c->config.link, hzp_link_rank(c->config.link), "cannot do what is next");
        if (r < 0 || o.what == END)
            return r;
    }
}
