/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/time/op_times.h - how long an op, and a slice of training's items, will take on this
 * device.
 *
 * Four estimates, the best known one first:
 *
 *     shape   t = m(shape)                    each shape that comes often: an exponential average
 *                                             of its own measurements, over 16 runs
 *     table   t = curve(shape)                where `hzpserve search` has measured it (tables.h)
 *     class   t = roofline(op) x f(op, class) any other op: the roofline (rates.h) times a factor
 *                                             learned for that op and size class, over 64 runs
 *     prior   t = roofline(op)                nothing measured yet: f = 1
 *
 * Ops of one size class differ by twice and more with how their operands lie in memory, hence the
 * estimate by shape.  First runs may be many times slower than later ones (cold memory), so the
 * first measurements replace the estimate, a high one is cut to twice (shape) or four times (class)
 * the estimate, and one below half of it is learned four times as fast.
 *
 * Estimates decide how large training's slices are; nothing correct depends on them.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/plan/plan.h"
#include "nanobatch/time/rates.h"
#include "nanobatch/time/tables.h"

/* Four by flops, or bytes x HZP_FLOPS_PER_BYTE: 1e6, 1e8, 1e10; two for parts of collectives. */
enum { HZP_OP_TIMES_CLASSES = 6 };
enum { HZP_OP_TIMES_SHAPES = 512 }; /* shapes kept; one that comes seldom is replaced */

struct hzp_op_times {
    struct hzp_rates rates;
    const struct hzp_tables *tables;                   /* borrowed; NULL: none */
    double factor[HZP_OP_COUNT][HZP_OP_TIMES_CLASSES]; /* 0: nothing measured yet */
    /* number of measurements behind the factor (saturates at 255) */
    uint8_t runs[HZP_OP_COUNT][HZP_OP_TIMES_CLASSES];
    struct hzp_op_timed {
        uint64_t key; /* 0: none */
        double ns;
        int32_t runs;             /* recent ones, <= 64; keys of the same set lower it */
    } shape[HZP_OP_TIMES_SHAPES]; /* 2-way associative */
    double peak; /* operations per ns of training's fastest product so far; 0: none was timed */
};

void hzp_op_times_init(struct hzp_op_times *times, const struct hzp_rates *rates);

/* Nanoseconds, > 0. */
double hzp_op_ns(const struct hzp_op_times *times, enum hzp_op op, const void *args);

/* An op of these arguments took ns; 0, shorter than the clock can tell, is not counted. */
void hzp_op_learn(struct hzp_op_times *times, enum hzp_op op, const void *args, double ns);

/* The same of one that was timed by itself: `peak` may rise. */
void hzp_op_note_peak(struct hzp_op_times *times, enum hzp_op op, const void *args, double ns);

/* How long item i of a chain takes, where that is not the time of its op alone. */
struct hzp_item_time {
    double (*ns)(const struct hzp_op_times *times, const struct hzp_plan *chain, int32_t i,
                 const void *ctx);
    const void *ctx;
};

/* Where a slice that begins at `from` and may last ns ends: the largest `to` such that items
 * [from, to) take at most ns together; at least from + 1 if that item takes at most item_ns.
 * time NULL: each item takes as long as its op. */
int32_t hzp_slice_end(const struct hzp_op_times *times, const struct hzp_plan *chain, int32_t from,
                      uint64_t ns, uint64_t item_ns, const struct hzp_item_time *time);

/* How long items [from, to) take, one after another. */
double hzp_slice_ns(const struct hzp_op_times *times, const struct hzp_plan *chain, int32_t from,
                    int32_t to, const struct hzp_item_time *time);

/* How many rows the item's op has, if it is one whose rows may belong to two tenants; else 0. */
int32_t hzp_item_rows(const struct hzp_item *item);

/* How long the item's op would take with so many rows; 0 for none. */
double hzp_item_ns_with(const struct hzp_op_times *times, const struct hzp_item *item,
                        int32_t rows);

/* Serving's part of an item's duration, 0 .. 1: of an item that holds rows of both tenants, what it
 * would take without training's. */
double hzp_item_serving_part(const struct hzp_op_times *times, const struct hzp_item *item);
