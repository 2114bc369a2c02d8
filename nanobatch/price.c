/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/price.h"

#include <string.h>

/* First guesses, right within a factor of about four on anything since 2018; learned away within
 * some tens of ops. */
static const double cpu_flops_per_ns_per_thread = 60, cpu_bytes_per_ns = 15;

void hzp_price_init(struct hzp_price *price, const struct hzp_device *dev)
{
    memset(price, 0, sizeof(*price));
    price->flops_per_ns = cpu_flops_per_ns_per_thread * HZP_MAX(dev->threads, 1);
    price->bytes_per_ns = cpu_bytes_per_ns;
}

static double roofline_ns(const struct hzp_price *price, struct hzp_cost cost)
{
    double compute = (double)cost.flops / price->flops_per_ns;
    double memory = (double)cost.bytes / price->bytes_per_ns;
    return HZP_MAX(compute, memory) + 200; /* an empty op still costs a call */
}

static int class_of(struct hzp_cost cost)
{
    uint64_t size = HZP_MAX(cost.flops, 10 * cost.bytes);
    return size < 1000000 ? 0 : size < 100000000 ? 1 : size < 10000000000u ? 2 : 3;
}

double hzp_price_ns(const struct hzp_price *price, enum hzp_op op, const void *args)
{
    struct hzp_cost cost = hzp_op_cost(op, args);
    double factor = price->factor[op][class_of(cost)];
    return roofline_ns(price, cost) * (factor > 0 ? factor : 1);
}

void hzp_price_learn(struct hzp_price *price, enum hzp_op op, const void *args, double ns)
{
    struct hzp_cost cost = hzp_op_cost(op, args);
    double *factor = &price->factor[op][class_of(cost)];
    double seen = ns / roofline_ns(price, cost);
    /* One descheduled op must not halve the trainer's slices for the next fifty. */
    if (*factor > 0)
        seen = HZP_MIN(seen, 4 * *factor);
    *factor = *factor > 0 ? *factor + (seen - *factor) / 64 : seen;
}

/* The arguments of ops that rows of two tenants may share. */
union row_args {
    struct hzp_matmul_args matmul;
    struct hzp_rmsnorm_args rmsnorm;
    struct hzp_swiglu_args swiglu;
    struct hzp_cast_args cast;
};

/* How many rows an item's op has; 0: it is not one that tenants share. */
static int32_t rows_of(const struct hzp_item *item)
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

/* What the item's op would cost, had it so many rows. */
static double with_rows(const struct hzp_price *price, const struct hzp_item *item, int32_t rows)
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
        return hzp_price_ns(price, item->op, item->args);
    }
    return hzp_price_ns(price, item->op, &a);
}

double hzp_price_serving(const struct hzp_price *price, const struct hzp_item *item)
{
    if (!item->rides)
        return item->train ? 0 : 1;
    double all = hzp_price_ns(price, item->op, item->args);
    double serving = with_rows(price, item, rows_of(item) - item->rides);
    return all > 0 ? HZP_MIN(serving / all, 1.0) : 1;
}

static double item_ns_of(const struct hzp_price *price, const struct hzp_plan *chain, int32_t i,
                         const struct hzp_shared *shared)
{
    const struct hzp_item *item = &chain->item[i];
    double alone = hzp_price_ns(price, item->op, item->args);
    int32_t rows = rows_of(item);
    if (!shared || i < shared->from || i >= shared->to || item->layer < 0 || !rows)
        return alone;
    double more = with_rows(price, item, rows + shared->rows) - with_rows(price, item, shared->rows);
    /* Factors of two classes of size may differ by more than the op does. */
    return HZP_MIN(HZP_MAX(more, alone / 4), alone);
}

int32_t hzp_price_cut(const struct hzp_price *price, const struct hzp_plan *chain, int32_t from,
                      uint64_t ns, uint64_t item_ns, const struct hzp_shared *shared)
{
    double left = (double)ns;
    int32_t to = from;
    while (to < chain->items) {
        double item = item_ns_of(price, chain, to, shared);
        left -= item;
        if (left < 0 && (to > from || item > (double)item_ns))
            break;
        to++;
        if (left < 0)
            break;
    }
    return to;
}

double hzp_price_slice(const struct hzp_price *price, const struct hzp_plan *chain, int32_t from,
                       int32_t to, const struct hzp_shared *shared)
{
    double ns = 0;
    for (int32_t i = from; i < to; i++)
        ns += item_ns_of(price, chain, i, shared);
    return ns;
}
