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

int32_t hzp_price_cut(const struct hzp_price *price, const struct hzp_plan *chain, int32_t from,
                      uint64_t ns, uint64_t item_ns)
{
    double left = (double)ns;
    int32_t to = from;
    while (to < chain->items) {
        double item = hzp_price_ns(price, chain->item[to].op, chain->item[to].args);
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
                       int32_t to)
{
    double ns = 0;
    for (int32_t i = from; i < to; i++)
        ns += hzp_price_ns(price, chain->item[i].op, chain->item[i].args);
    return ns;
}
