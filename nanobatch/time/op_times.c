/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/time/op_times.h"

void hzp_op_times_init(struct hzp_op_times *times, const struct hzp_rates *rates)
{
    memset(times, 0, sizeof(*times));
    times->rates = *rates;
}

static int part_of_collective(enum hzp_op op, const void *args)
{
    return op == HZP_OP_collective ? ((const struct hzp_collective_args *)args)->part : 0;
}

static int class_of(enum hzp_op op, const void *args, struct hzp_cost cost)
{
    int part = part_of_collective(op, args);
    if (part)
        return HZP_OP_TIMES_CLASSES - part;
    uint64_t size = HZP_MAX(cost.flops, HZP_FLOPS_PER_BYTE * cost.bytes);
    return size < 1000000 ? 0 : size < 100000000 ? 1 : size < 10000000000u ? 2 : 3;
}

/* What an op's duration depends on; 0: on more than that, or it comes in too many shapes. */
static uint64_t key_of(enum hzp_op op, const void *args)
{
    if (hzp_op_kind(op) == HZP_KIND_DECODE)
        return 0;
    struct hzp_cost cost = hzp_op_cost(op, args);
    uint64_t part[] = {op, cost.flops, cost.bytes, 0, (uint64_t)part_of_collective(op, args), 0};
    if (op == HZP_OP_matmul) {
        const struct hzp_matmul_args *m = args;
        part[3] = (uint64_t)m->c.rows << 32 | (uint32_t)m->c.cols;
        part[4] = (m->trans_a ? 1u : 0u) | (m->trans_b ? 2u : 0u) | (m->accumulate ? 4u : 0u);
        part[5] = (uint64_t)m->a.type * 16 + (uint64_t)m->c.type;
    }
    uint64_t key = 1;
    for (int i = 0; i < HZP_COUNT(part); i++)
        key = (key ^ part[i]) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    return key | 1;
}

static int32_t pair_of(uint64_t key)
{
    return (int32_t)((key >> 32) % (HZP_OP_TIMES_SHAPES / 2)) * 2;
}

/* NULL: not known. */
static const struct hzp_op_timed *shape_of(const struct hzp_op_times *times, uint64_t key)
{
    const struct hzp_op_timed *pair = &times->shape[pair_of(key)];
    for (int i = 0; key && i < 2; i++)
        if (pair[i].key == key)
            return &pair[i];
    return NULL;
}

/* Over how many runs to learn: few where the run took less than half of what was known.  Nothing
 * runs that fast by accident, and much runs slowly at first, in memory that was never touched. */
static double runs_to_learn(double seen, double known, double runs)
{
    return seen < known / 2 ? HZP_MIN(runs, 4) : runs;
}

static void learn_shape(struct hzp_op_times *times, uint64_t key, double ns)
{
    struct hzp_op_timed *shape = (struct hzp_op_timed *)shape_of(times, key);
    if (shape) {
        /* The first runs may be cold, and one descheduled must not show for the next fifty. */
        double seen = HZP_MIN(ns, shape->runs > 2 ? 2 * shape->ns : shape->ns);
        shape->ns +=
            (seen - shape->ns) / (shape->runs > 2 ? runs_to_learn(seen, shape->ns, 16) : 1);
        shape->runs = HZP_MIN(shape->runs + 1, 64);
        return;
    }
    struct hzp_op_timed *pair = &times->shape[pair_of(key)];
    shape = pair[0].runs <= pair[1].runs ? &pair[0] : &pair[1];
    if (shape->runs > 0 && --shape->runs > 0)
        return;
    *shape = (struct hzp_op_timed){key, ns, 1};
}

/* As `search` measured it on the whole device; 0: it did not. */
static double table_ns(const struct hzp_op_times *times, enum hzp_op op, const void *args)
{
    struct hzp_op_key key;
    struct hzp_op_size size;
    if (!times->tables)
        return 0;
    hzp_op_describe(op, args, &key, &size);
    return hzp_tables_known_ns(times->tables, &key, &size, times->tables->threads);
}

double hzp_op_ns(const struct hzp_op_times *times, enum hzp_op op, const void *args)
{
    uint64_t key = key_of(op, args);
    const struct hzp_op_timed *shape = shape_of(times, key);
    if (shape && shape->runs > 1)
        return shape->ns;
    /* Only of shapes that are measured here, too: the table is not corrected by the class. */
    double table = key ? table_ns(times, op, args) : 0;
    if (table > 0)
        return table;
    struct hzp_cost cost = hzp_op_cost(op, args);
    double factor = times->factor[op][class_of(op, args, cost)];
    double ns = hzp_rates_ns(&times->rates, cost) * (factor > 0 ? factor : 1);
    /* One run says little: were it believed, a cold one could keep the next from ever coming. */
    bool known = times->runs[op][class_of(op, args, cost)] > 3;
    return shape ? HZP_MIN(shape->ns, known ? 2 * ns : shape->ns) : ns;
}

/* Of shorter products the clock's steps would be a large part. */
static const uint64_t peak_flops_min = 1000000;

void hzp_op_note_peak(struct hzp_op_times *times, enum hzp_op op, const void *args, double ns)
{
    bool product = op == HZP_OP_matmul || op == HZP_OP_project;
    uint64_t flops = product ? hzp_op_cost(op, args).flops : 0;
    if (flops >= peak_flops_min && ns > 0)
        times->peak = HZP_MAX(times->peak, (double)flops / ns);
}

void hzp_op_learn(struct hzp_op_times *times, enum hzp_op op, const void *args, double ns)
{
    if (!(ns > 0))
        return; /* shorter than the clock can tell; from 0 no estimate would ever rise again */
    struct hzp_cost cost = hzp_op_cost(op, args);
    double *factor = &times->factor[op][class_of(op, args, cost)];
    uint64_t key = key_of(op, args);
    if (key)
        learn_shape(times, key, ns);
    uint8_t *runs = &times->runs[op][class_of(op, args, cost)];
    double seen = ns / hzp_rates_ns(&times->rates, cost);
    /* The first runs may be cold; one descheduled op must not halve the trainer's slices for the
     * next fifty. */
    if (*runs > 0)
        seen = HZP_MIN(seen, (*runs < 4 ? 1 : 4) * *factor);
    *factor = *runs < 4 ? seen : *factor + (seen - *factor) / runs_to_learn(seen, *factor, 64);
    *runs = (uint8_t)HZP_MIN(*runs + 1, 255);
}

/* The arguments of ops that rows of two tenants may share. */
union row_args {
    struct hzp_matmul_args matmul;
    struct hzp_rmsnorm_args rmsnorm;
    struct hzp_swiglu_args swiglu;
    struct hzp_cast_args cast;
};

int32_t hzp_item_rows(const struct hzp_item *item)
{
    switch (item->op) {
    case HZP_OP_matmul:
        return ((const struct hzp_matmul_args *)item->args)->c.rows;
    case HZP_OP_rmsnorm:
        return ((const struct hzp_rmsnorm_args *)item->args)->y.rows;
    case HZP_OP_swiglu:
        return ((const struct hzp_swiglu_args *)item->args)->y.rows;
    case HZP_OP_cast:
        return ((const struct hzp_cast_args *)item->args)->y.rows;
    default:
        return 0;
    }
}

double hzp_item_ns_with(const struct hzp_op_times *times, const struct hzp_item *item, int32_t rows)
{
    union row_args a;
    if (rows <= 0)
        return 0;
    switch (item->op) {
    case HZP_OP_matmul:
        a.matmul = *(const struct hzp_matmul_args *)item->args;
        a.matmul.a.rows = a.matmul.c.rows = rows;
        break;
    case HZP_OP_rmsnorm:
        a.rmsnorm = *(const struct hzp_rmsnorm_args *)item->args;
        a.rmsnorm.x.rows = a.rmsnorm.y.rows = rows;
        break;
    case HZP_OP_swiglu:
        a.swiglu = *(const struct hzp_swiglu_args *)item->args;
        a.swiglu.x.rows = a.swiglu.y.rows = rows;
        break;
    case HZP_OP_cast:
        a.cast = *(const struct hzp_cast_args *)item->args;
        a.cast.x.rows = a.cast.y.rows = rows;
        break;
    default:
        return hzp_op_ns(times, item->op, item->args);
    }
    return hzp_op_ns(times, item->op, &a);
}

double hzp_item_serving_part(const struct hzp_op_times *times, const struct hzp_item *item)
{
    if (!item->rides)
        return hzp_item_of(item, HZP_TENANT_SERVE) ? 1 : 0;
    double all = hzp_op_ns(times, item->op, item->args);
    double serving = hzp_item_ns_with(times, item, hzp_item_rows(item) - item->rides);
    return all > 0 ? HZP_MIN(serving / all, 1.0) : 1;
}

static double item_ns_of(const struct hzp_op_times *times, const struct hzp_plan *chain, int32_t i,
                         const struct hzp_item_time *time)
{
    const struct hzp_item *item = &chain->item[i];
    return time ? time->ns(times, chain, i, time->ctx) : hzp_op_ns(times, item->op, item->args);
}

int32_t hzp_slice_end(const struct hzp_op_times *times, const struct hzp_plan *chain, int32_t from,
                      uint64_t ns, uint64_t item_ns, const struct hzp_item_time *time)
{
    double left = (double)ns;
    int32_t to = from;
    while (to < chain->items) {
        double item = item_ns_of(times, chain, to, time);
        left -= item;
        if (left < 0 && (to > from || item > (double)item_ns))
            break;
        to++;
        if (left < 0)
            break;
    }
    return to;
}

double hzp_slice_ns(const struct hzp_op_times *times, const struct hzp_plan *chain, int32_t from,
                    int32_t to, const struct hzp_item_time *time)
{
    double ns = 0;
    for (int32_t i = from; i < to; i++)
        ns += item_ns_of(times, chain, i, time);
    return ns;
}
