/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/plan/price.h - how long work will take on this device.
 *
 * An op's price is its roofline time, max(flops / peak, bytes / bandwidth), times a factor learned
 * online for that op and size class from what the executor measured (exponential average over
 * about 64 runs).  Ops of one size class differ by a factor of two and more with how their operands
 * lie in memory, and the first runs of one may be many times slower: so each shape that comes often
 * has a price of its own, learned within a few runs.  Prices steer the size of training slices; nothing
 * correct depends on them.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_PLAN_PRICE_H
#define HZP_NANOBATCH_PLAN_PRICE_H

#include "nanobatch/plan/plan.h"

enum { HZP_PRICE_CLASSES = 4 };  /* by flops or bytes: 1e6, 1e8, 1e10 and up */
enum { HZP_PRICE_SHAPES = 512 }; /* of ops; those that come seldom make room */

struct hzp_price {
    double flops_per_ns, bytes_per_ns;              /* first guesses; the factors correct them */
    double factor[HZP_OP_COUNT][HZP_PRICE_CLASSES]; /* 0: nothing measured yet */
    uint8_t runs[HZP_OP_COUNT][HZP_PRICE_CLASSES];  /* behind it, up to 255 */
    struct hzp_price_shape {
        uint64_t key; /* 0: none */
        double ns;
        int32_t runs;          /* lately */
    } shape[HZP_PRICE_SHAPES]; /* in pairs: a key may stand in either of one */
};

void hzp_price_init(struct hzp_price *price, const struct hzp_device *dev);
double hzp_price_ns(const struct hzp_price *price, enum hzp_op op, const void *args);
void hzp_price_learn(struct hzp_price *price, enum hzp_op op, const void *args, double ns);

/* What item i of a chain costs, where that is not the price of its op alone. */
struct hzp_item_cost {
    double (*ns)(const struct hzp_price *price, const struct hzp_plan *chain, int32_t i,
                 const void *ctx);
    const void *ctx;
};

/* The largest `to` such that items [from, to) cost at most ns together; at least from + 1 if that
 * item costs at most item_ns.  cost NULL: each costs hzp_price_ns of its op. */
int32_t hzp_price_cut(const struct hzp_price *price, const struct hzp_plan *chain, int32_t from,
                      uint64_t ns, uint64_t item_ns, const struct hzp_item_cost *cost);

/* What items [from, to) cost together. */
double hzp_price_slice(const struct hzp_price *price, const struct hzp_plan *chain, int32_t from,
                       int32_t to, const struct hzp_item_cost *cost);

/* How many rows the item's op has, if it is one whose rows may belong to two tenants; else 0. */
int32_t hzp_price_rows(const struct hzp_item *item);

/* What the item's op would cost with so many rows. */
double hzp_price_with_rows(const struct hzp_price *price, const struct hzp_item *item,
                           int32_t rows);

/* Serving's part of what an item costs, 0 .. 1: of an item of two tenants, what it would cost
 * without training's rows. */
double hzp_price_serving(const struct hzp_price *price, const struct hzp_item *item);

#endif
