/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/test_steps.c - steps of a model on the CUDA backend's host side and on the
 * reference, side by side: as CUDA graphs or op by op, on one lane or several, with versions
 * swapped in between, with padding rows or without.
 *
 * Streams run in random order, so a missing wait, a stale staged array, or a graph that kept a
 * value it should read anew gives other tokens for some seed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/fallback.h"
#include "nanobatch/run/driver.h"
#include "nanobatch/run/graphs.h"
#include "tests/cudafake/ops.h"
#include "tests/cudafake/world.h"

/* ---- graphs ---- */

struct steps {
    struct world real, plain;
    struct hzp_graphs *graphs;
    struct hzp_lane *lane[HZP_LANE_COUNT]; /* only one is used */
    struct hzp_fence *fence;
    int32_t token[SEGS];
    int graph_steps;
    int slot; /* of the current step */
};

static void steps_open(struct steps *s, unsigned seed)
{
    memset(s, 0, sizeof(*s));
    world_open(&s->real, fake_open(seed, NULL, NULL));
    world_open(&s->plain, world_reference());
    s->graphs = hzp_graphs_create(s->real.m.dev);
    assert_non_null(s->graphs);
    assert_int_equal(hzp_lane_open(s->real.m.dev, HZP_BOUND_COMPUTE, &s->lane[0]), HZP_OK);
    assert_int_equal(hzp_fence_open(s->real.m.dev, &s->fence), HZP_OK);
}

static void steps_close(struct steps *s)
{
    struct hzp_device *plain = s->plain.m.dev, *real = s->real.m.dev;
    hzp_graphs_destroy(s->graphs);
    hzp_fence_close(s->fence);
    hzp_lane_close(s->lane[0]);
    world_close(&s->plain);
    hzp_device_close(plain);
    world_close(&s->real);
    fake_close(real);
}

static void finish(struct steps *s)
{
    assert_int_equal(hzp_fence_record(s->fence, s->lane[0]), HZP_OK);
    assert_int_equal(hzp_fence_wait(s->fence), HZP_OK);
}

static const int alone[HZP_LANE_COUNT];

static void issue_items(struct steps *s, const struct hzp_plan *plan, int32_t from, int32_t to)
{
    for (int32_t i = from; i < to; i++)
        assert_int_equal(hzp_lane_issue(s->lane[0], plan->item[i].op, plan->item[i].args), HZP_OK);
}

/* The rows of the product that makes the logits. */
static int32_t head_rows(const struct hzp_plan *plan)
{
    for (int32_t i = plan->items - 1; i >= 0; i--) {
        const struct hzp_project_args *project = plan->item[i].args;
        const struct hzp_matmul_args *product = plan->item[i].args;
        if (plan->item[i].op == HZP_OP_project)
            return project->product.c.rows;
        if (plan->item[i].op == HZP_OP_matmul)
            return product->c.rows;
    }
    return 0;
}

static void step(struct steps *s, int number, int segs, int slot, struct hzp_span *span)
{
    s->slot = slot;
    world_build(&s->plain, number, segs, s->token, slot, NULL);
    world_run(&s->plain);
    world_build(&s->real, number, segs, s->token, slot, NULL);
    struct hzp_plan *plan = &s->real.plan;
    struct hzp_graph_part part;
    bool fits = hzp_graphs_fit(s->graphs, plan, &part);
    assert_int_equal(fits, number > 0);
    if (number == 0) { /* prompts: padding rows without segments */
        assert_int_equal(s->real.batch->pads,
                         hzp_batch_size(s->real.batch->rows) - s->real.batch->rows);
        assert_int_equal(s->real.batch->pad_segs, 0);
        assert_int_equal(s->real.batch->logits, segs);
        assert_int_equal(head_rows(plan), hzp_batch_bucket(segs));
    }
    /* what changes the table of pages is not in the graph */
    int32_t from = plan->item[0].op == HZP_OP_scatter;
    assert_true(!fits || (part.from == from && part.to == plan->items));
    issue_items(s, plan, 0, from);
    int launched = fits ? hzp_graphs_issue(s->graphs, plan, &part, s->lane, alone, span) : 0;
    assert_in_range(launched, 0, 1);
    s->graph_steps += launched;
    issue_items(s, plan, launched ? part.to : from, plan->items);
    finish(s);
    world_agree(&s->real, &s->plain, segs, s->token);
    assert_string_equal(fake_mistakes(), "");
}

/* Thirty tokens, a swap every third step: exactly two graphs, one per slot. */
static void test_graphs(void **state)
{
    struct steps s;
    steps_open(&s, 1);
    for (int i = 0; i < 30; i++) {
        struct hzp_span span = {0};
        uint64_t before = hzp_device_now_ns(s.real.m.dev);
        step(&s, i, 6, i / 3 % 2, &span);
        if (span.end_ns)
            assert_true(span.begin_ns + 20000 >= before && span.end_ns >= span.begin_ns);
        assert_int_equal(span.end_ns > 0, i >= 2 && i != 3);
    }
    struct hzp_graphs_stats stats = hzp_graphs_read_stats(s.graphs);
    assert_int_equal(stats.captures, 2);
    assert_int_equal(stats.launches, 27); /* all but the prompts and each slot's first */
    assert_int_equal(s.graph_steps, 27);
    assert_int_equal(fake_count(FAKE_GRAPH), 27);
    assert_int_equal(stats.refusals[0] + stats.refusals[1], 0);
    steps_close(&s);
}

/* The head of a step with prompts is padded to a decode step's size; no draw changes. */
static void test_head(void **state)
{
    struct steps s;
    steps_open(&s, 3);
    for (int segs = 1; segs <= SEGS; segs++)
        step(&s, 0, segs, 0, NULL);
    steps_close(&s);
}

/* Sequences come and go: every number of rows maps to one of a few graphs, and the padding rows
 * in them change no token. */
static void test_rows(void **state)
{
    struct steps s;
    steps_open(&s, 2);
    for (int i = 0; i < 4; i++)
        step(&s, i, SEGS, 0, NULL);
    for (int i = 4; i < 60; i++) {
        int segs = 1 + (i + i / 7) % SEGS;
        step(&s, i, segs, i / 11 % 2, NULL);
        assert_int_equal(s.plain.batch->pads, 0);
        assert_int_equal(s.real.batch->pads, hzp_batch_bucket(segs) - segs);
        assert_int_equal(s.real.batch->rows, segs);
    }
    assert_int_equal(hzp_graphs_read_stats(s.graphs).captures,
                     8); /* 1, 2, 4, 8 rows, of two slots */
    assert_true(s.graph_steps > 45);
    steps_close(&s);
}

/* A graph serves every context. */
static void test_contexts(void **state)
{
    struct steps s;
    steps_open(&s, 3);
    step(&s, 0, 6, 0, NULL);
    for (int i = 130; i < 370; i += 3) { /* the longest context goes from 139 to 379 */
        world_build(&s.real, i, 6, s.token, 0, NULL);
        struct hzp_graph_part part;
        assert_true(hzp_graphs_fit(s.graphs, &s.real.plan, &part));
        if (!hzp_graphs_issue(s.graphs, &s.real.plan, &part, s.lane, alone, NULL))
            continue;
        finish(&s);
    }
    assert_int_equal(hzp_graphs_read_stats(s.graphs).captures, 1);
    steps_close(&s);
}

/* Many steps in turn: each becomes a graph when it occurs for the second time, even if keys
 * collide in the hash table. */
static void test_many(void **state)
{
    enum { MANY = 64 };
    struct steps s;
    struct hzp_graph_part part;
    steps_open(&s, 6);
    step(&s, 0, 6, 0, NULL);
    world_build(&s.real, 1, 6, s.token, 0, NULL);
    assert_true(hzp_graphs_fit(s.graphs, &s.real.plan, &part));
    for (int i = 0; i < 2 * MANY; i++) {
        int units[HZP_LANE_COUNT] = {1 + i % MANY};
        int launched = hzp_graphs_issue(s.graphs, &s.real.plan, &part, s.lane, units, NULL);
        assert_int_equal(launched, i >= MANY);
        finish(&s);
    }
    assert_int_equal(hzp_graphs_read_stats(s.graphs).captures, MANY);
    steps_close(&s);
}

static bool other_slot(void *ctx, const struct hzp_plan *plan, int32_t i, struct hzp_plan *ret)
{
    struct steps *s = ctx;
    struct world *w = &s->real;
    if (i > 0)
        return false;
    hzp_plan_clear(ret);
    hzp_forward_build(ret, w->m.model, w->version[!s->slot], w->batch, w->kv, w->space, NULL);
    return true;
}

/* A swap every third step, and even the first step after it finds its graph: the graphs of both
   slots were captured at once. */
static void test_swaps(void **state)
{
    struct steps s;
    steps_open(&s, 7);
    hzp_graphs_prepare(s.graphs, other_slot, &s, &(struct hzp_graphs_room){0});
    for (int i = 0; i < 30; i++) {
        step(&s, i, 6, i / 3 % 2, NULL);
        assert_int_equal(hzp_graphs_read_stats(s.graphs).captures, i < 2 ? 0 : 2);
    }
    assert_int_equal(s.graph_steps, 28); /* all but the prompts and the first */
    steps_close(&s);
}

/* More graphs than there is room for: the least recently used are evicted as whole sets, and no
 * part of a set remains. */
static void test_room(void **state)
{
    enum { SETS = HZP_GRAPHS_MIN / 2 + 6 };
    struct steps s;
    struct hzp_graph_part part;
    steps_open(&s, 8);
    hzp_graphs_prepare(s.graphs, other_slot, &s, &(struct hzp_graphs_room){0});
    step(&s, 0, 6, 0, NULL);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < SETS + 8; i++) {
            int units[HZP_LANE_COUNT] = {1 + (i < SETS ? i : SETS - 1 - i % 4)};
            s.slot = i >= SETS;
            if (s.slot && !turn)
                continue; /* the last one's variants for other slots */
            world_build(&s.real, 1, 6, s.token, s.slot, NULL);
            assert_true(hzp_graphs_fit(s.graphs, &s.real.plan, &part));
            assert_int_equal(hzp_graphs_issue(s.graphs, &s.real.plan, &part, s.lane, units, NULL),
                             turn);
            finish(&s);
        }
    struct hzp_graphs_stats stats = hzp_graphs_read_stats(s.graphs);
    assert_int_equal(stats.captures, 2 * SETS);
    assert_int_equal(stats.evictions, 2 * SETS - HZP_GRAPHS_MIN);
    steps_close(&s);
}

/* Graphs may take so many bytes: sets of variants beyond that are evicted, the least recently used
 * first, and a set that is larger is not kept. */
static void test_bytes(void **state)
{
    enum { SETS = 5 };
    struct steps s;
    struct hzp_graph_part part;
    steps_open(&s, 9);
    step(&s, 0, 6, 0, NULL);
    world_build(&s.real, 1, 6, s.token, 0, NULL);
    assert_true(hzp_graphs_fit(s.graphs, &s.real.plan, &part));
    struct hzp_graphs_room room = {.graph = 5000, .node = 100};
    size_t one = room.graph + (size_t)(part.to - part.from) * room.node;
    room.bytes = 2 * SETS * one + one / 2;
    hzp_graphs_prepare(s.graphs, other_slot, &s, &room);
    for (int turn = 0; turn < 4; turn++)
        for (int i = 0; i < 2 * SETS; i++) {
            int units[HZP_LANE_COUNT] = {1 + (turn < 2 ? i : 2 * SETS - 1 - i)};
            world_build(&s.real, 1, 6, s.token, 0, NULL);
            int launched = hzp_graphs_issue(s.graphs, &s.real.plan, &part, s.lane, units, NULL);
            assert_int_equal(launched, turn > 0);
            finish(&s);
            struct hzp_graphs_stats stats = hzp_graphs_read_stats(s.graphs);
            assert_true(stats.bytes <= room.bytes);
            assert_int_equal(stats.bytes, (stats.captures - stats.evictions) * one);
            if (turn == 2 && i < SETS) /* the newest are still there */
                assert_int_equal(stats.captures, 4 * SETS);
        }
    assert_int_equal(hzp_graphs_read_stats(s.graphs).bytes, 2 * SETS * one);
    assert_string_equal(fake_mistakes(), "");
    steps_close(&s);
    steps_open(&s, 9);
    room.bytes = one - 1;
    hzp_graphs_prepare(s.graphs, other_slot, &s, &room);
    for (int i = 0; i < 6; i++)
        step(&s, i, 6, 0, NULL);
    assert_int_equal(hzp_graphs_read_stats(s.graphs).captures, 0);
    assert_int_equal(s.graph_steps, 0);
    /* each of its steps is counted, from the first that would have been captured on */
    assert_int_equal(hzp_device_fallbacks(s.real.m.dev, HZP_FALLBACK_graph), 4);
    steps_close(&s);
    steps_open(&s, 9);
    room.bytes = one + one / 2; /* for the step, and not for its variants */
    hzp_graphs_prepare(s.graphs, other_slot, &s, &room);
    for (int i = 0; i < 6; i++)
        step(&s, i, 6, 0, NULL);
    assert_int_equal(hzp_graphs_read_stats(s.graphs).captures, 1);
    assert_int_equal(s.graph_steps, 4);
    assert_int_equal(hzp_device_fallbacks(s.real.m.dev, HZP_FALLBACK_graph), 0);
    steps_close(&s);
}

/* What graphs and partitions take of a device's memory is measured, whatever blocks the driver
 * takes. */
static void test_driver(void **state)
{
    struct hzp_plan_shape beside = hzp_plan_sequential;
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        beside.train_lane[k] = HZP_LANE_TRAIN;
    beside.share[HZP_LANE_TRAIN] = 48;
    beside.share[HZP_LANE_COMPUTE] = 84;
    struct hzp_driver_memory driver;
    static const size_t blocks[] = {1, 4096, 2 << 20};
    for (int i = 0; i < HZP_COUNT(blocks); i++) {
        size_t block = blocks[i];
        struct hzp_device *dev = fake_open(3, NULL, NULL);
        fake_set_driver(3 << 20, 20000, 3000, block);
        size_t before = hzp_device_bytes_free(dev);
        assert_int_equal(hzp_driver_measure(dev, NULL, &beside, LAYERS, &driver), HZP_OK);
        assert_in_range(driver.splits, 6 << 20, (6 << 20) + block); /* two parts */
        assert_in_range(driver.node, 3000 - block / 4000, 3000 + block / 4000);
        assert_true(driver.graph <= 20000 + block);
        /* all but the partitions is given back */
        assert_int_equal(before - hzp_device_bytes_free(dev), driver.splits);
        assert_int_equal(hzp_driver_graphs(&driver, 2, 10), 2 * (driver.graph + 10 * driver.node));
        fake_close(dev);
        fake_set_driver(0, 0, 0, 1);
    }
    struct hzp_device *dev = fake_open(3, NULL, NULL);
    size_t lane = hzp_lane_bytes(dev, HZP_BOUND_COMPUTE);
    fake_set_driver(0, 20000, 3000, 1);
    /* memory for small graphs alone, then for none: there is a budget all the same */
    for (int i = 0; i < 2; i++) {
        size_t all = (size_t)64 << 30, used = all - hzp_device_bytes_free(dev);
        fake_set_memory(used + lane + (i ? 300000 : 3000000));
        assert_int_equal(hzp_driver_measure(dev, NULL, NULL, LAYERS, &driver), HZP_OK);
        assert_int_equal(driver.node, i ? 65536 : (20000 + 32 * 3000) / 32);
        assert_int_equal(driver.graph, i ? 65536 : 0);
        fake_set_memory(all);
        assert_int_equal(all - hzp_device_bytes_free(dev), used); /* all is given back */
    }
    fake_set_driver(0, 0, 0, 1);
    fake_close(dev);
    dev = fake_open(3, NULL, NULL); /* a driver that takes nothing */
    assert_int_equal(hzp_driver_measure(dev, NULL, NULL, LAYERS, &driver), HZP_OK);
    assert_int_equal(driver.splits + driver.graph + driver.node, 0);
    fake_close(dev);
    dev = fake_open(3, NULL, NULL); /* too little memory even for a lane */
    fake_set_memory((size_t)100 << 20);
    assert_int_equal(hzp_driver_measure(dev, NULL, NULL, LAYERS, &driver), HZP_ENOMEM);
    fake_set_memory((size_t)64 << 30);
    fake_close(dev);
}

/* The number of graphs is that of step sizes times slots and batches. */
static void test_count(void **state)
{
    struct hzp_batch_config max = {
        .rows_max = 256, .segs_max = 8, .page_stride = 16, .logits_max = 8, .edits_max = 1};
    assert_int_equal(hzp_graphs_count(&max, 2, 2, 1), 4 * 2 * 2); /* 1, 2, 4, 8 */
    max.segs_max = max.logits_max = 40;
    assert_int_equal(hzp_graphs_count(&max, 1, 1, 1), 8); /* and 16, 24, 32, 40 */
    max.rows_max = max.segs_max = max.logits_max = 512;
    assert_int_equal(hzp_graphs_count(&max, 2, 2, 1), 92);
    assert_int_equal(hzp_graphs_count(&max, 2, 2, 2), 184); /* with training and without */
}

/* A step that cannot be captured: three attempts, then its steps go op by op, each counted; steps
 * of another size still become graphs. */
static void test_refusals(void **state)
{
    static const char *const fails[] = {"", "cudaStreamBeginCapture", "cudaStreamEndCapture",
                                        "cudaGraphInstantiate"};
    struct steps s;
    steps_open(&s, 4);
    step(&s, 0, 6, 0, NULL);
    for (int i = 1; i < 5; i++) {
        fake_fail(fails[i - 1], 0, cudaErrorNotSupported);
        step(&s, i, 6, 0, NULL);
        assert_int_equal(s.graph_steps, 0);
    }
    assert_int_equal(hzp_graphs_read_stats(s.graphs).refusals[0], 3);
    step(&s, 5, 6, 0, NULL);
    assert_int_equal(s.graph_steps, 0);
    assert_int_equal(hzp_graphs_read_stats(s.graphs).refusals[0], 3);
    assert_int_equal(hzp_device_fallbacks(s.real.m.dev, HZP_FALLBACK_graph), 4); /* and this step */
    step(&s, 6, 3, 0, NULL);
    step(&s, 7, 3, 0, NULL);
    assert_int_equal(s.graph_steps, 1);
    steps_close(&s);
}

/* After the start captures are rationed: four, then one for every sixteen steps. */
static void test_rationed(void **state)
{
    struct steps s;
    steps_open(&s, 4);
    step(&s, 0, 6, 0, NULL);
    hzp_graphs_steady(s.graphs);
    int number = 1;
    for (int segs = 1; segs <= SEGS; segs *= 2) /* 1, 2, 4, 8 rows */
        for (int turn = 0; turn < 2; turn++)
            step(&s, number++, segs, 0, NULL);
    assert_int_equal(hzp_graphs_read_stats(s.graphs).captures, 4);
    for (int turn = 0; turn < 6; turn++)
        step(&s, number++, 1 + turn % 2, 1, NULL); /* of the other slot */
    assert_int_equal(hzp_graphs_read_stats(s.graphs).captures, 4);
    for (int turn = 0; turn < 20; turn++) /* the 16th and the 32nd step earn one each */
        step(&s, number++, 1 + turn % 2, 1, NULL);
    assert_int_equal(hzp_graphs_read_stats(s.graphs).captures, 6);
    steps_close(&s);
}

/* The executor captures graphs by itself, on lanes of their own or not, with spans in order. */
static void test_executor(void **state)
{
    struct hzp_plan_shape beside = hzp_plan_sequential;
    beside.share[HZP_LANE_COMPUTE] = 64;
    for (unsigned seed = 0; seed < 4; seed++) {
        struct world real, plain;
        int32_t token[SEGS];
        world_open(&real, fake_open(seed, NULL, NULL));
        world_open(&plain, world_reference());
        for (int i = 0; i < 20; i++) {
            struct hzp_exec_times times;
            struct hzp_rates rates = hzp_rates_of(real.m.dev->threads);
            struct hzp_op_times op_times;
            hzp_op_times_init(&op_times, &rates);
            world_build(&plain, i, 6, token, i / 3 % 2, NULL);
            world_run(&plain);
            world_build(&real, i, 6, token, i / 3 % 2, &beside);
            assert_int_equal(hzp_exec_run(real.exec, &real.plan, &op_times, &times), HZP_OK);
            world_agree(&real, &plain, 6, token);
            const struct hzp_span *span = hzp_exec_spans(real.exec);
            for (int32_t k = 1; k < real.plan.items; k++) {
                assert_true(span[k].end_ns >= span[k].begin_ns);
                assert_true(span[k].begin_ns + 20000 >= span[k - 1].end_ns);
            }
            assert_true(times.ns[HZP_TENANT_SERVE] > 0 && times.end_ns[HZP_TENANT_SERVE] > 0 &&
                        times.ns[HZP_TENANT_TRAIN] == 0);
        }
        assert_int_equal(fake_count(FAKE_GRAPH), 17);
        struct hzp_device *a = real.m.dev, *b = plain.m.dev;
        world_close(&plain);
        hzp_device_close(b);
        world_close(&real);
        fake_close(a);
    }
}

/* ---- lanes ---- */

/* A step split over two lanes, with green contexts and without, in many orders. */
static void test_lanes(void **state)
{
    static const char *const lanes[] = {"green", "grid", "plain"};
    struct hzp_plan_shape shape = {.nanos = 2,
                                   .weight = {2, 3},
                                   .order = HZP_ORDER_SKEWED,
                                   .share = {[HZP_LANE_COMPUTE] = 84, [HZP_LANE_MEMORY] = 48}};
    for (int kind = 0; kind < HZP_KIND_COUNT; kind++)
        shape.lane[1][kind] = HZP_LANE_MEMORY;
    shape.lane[0][HZP_KIND_DECODE] = HZP_LANE_MEMORY;
    shape.lane[1][HZP_KIND_PRODUCT] = HZP_LANE_COMPUTE;
    for (unsigned seed = 0; seed < 12; seed++) {
        struct world real, plain;
        int32_t token[SEGS];
        world_open(&real, fake_open(seed, lanes[seed % 3], NULL));
        world_open(&plain, world_reference());
        for (int i = 0; i < 12; i++) {
            world_build(&plain, i, 6, token, i % 2, NULL);
            world_run(&plain);
            world_build(&real, i, 6, token, i % 2, i == 3 ? NULL : &shape);
            world_run(&real);
            world_agree(&real, &plain, 6, token);
        }
        struct hzp_graphs_stats stats = hzp_exec_graphs(real.exec);
        assert_int_equal(stats.launches, 12 - 4); /* the prompts, 3, and the first of each slot */
        assert_int_equal(stats.pieces, fake_count(FAKE_GRAPH));
        assert_int_equal(stats.pieces > stats.launches, seed % 3 == 0);
        assert_string_equal(fake_mistakes(), "");
        struct hzp_device *a = real.m.dev, *b = plain.m.dev;
        world_close(&plain);
        hzp_device_close(b);
        world_close(&real);
        fake_close(a);
    }
}

/* As many nano-batches as there can be, on one lane: all arrays that their ops read are staged. */
static void test_many_nanos(void **state)
{
    struct hzp_plan_shape shape = {.nanos = HZP_NANO_MAX, .order = HZP_ORDER_STRANDS};
    struct world real, plain;
    int32_t token[SEGS];
    for (int i = 0; i < HZP_NANO_MAX; i++)
        shape.weight[i] = 1;
    world_open(&real, fake_open(1, NULL, NULL));
    world_open(&plain, world_reference());
    for (int i = 0; i < 4; i++) {
        world_build(&plain, i, SEGS, token, 0, NULL);
        world_run(&plain);
        world_build(&real, i, SEGS, token, 0, &shape);
        world_run(&real);
        world_agree(&real, &plain, SEGS, token);
    }
    assert_int_equal(hzp_device_fallbacks(real.m.dev, HZP_FALLBACK_staging), 0);
    struct hzp_device *a = real.m.dev, *b = plain.m.dev;
    world_close(&plain);
    hzp_device_close(b);
    world_close(&real);
    fake_close(a);
}

/* A wait is missing from the plan, in steps issued op by op and in captured ones: it is reported
 * every time, whatever order they ran in. */
static void test_missing_wait(void **state)
{
    struct hzp_plan_shape shape = {.nanos = 1, .weight = {1}, .order = HZP_ORDER_STRANDS};
    shape.lane[0][HZP_KIND_DECODE] = HZP_LANE_MEMORY;
    for (unsigned seed = 0; seed < 6; seed++) {
        struct world real;
        int32_t token[SEGS] = {1, 2, 3, 4, 5, 6};
        world_open(&real, fake_open(seed, "plain", NULL));
        for (int i = 0; i < 4; i++) {
            world_build(&real, i, 6, token, 0, &shape);
            world_run(&real);
        }
        assert_string_equal(fake_mistakes(), "");
        assert_int_equal(fake_count(FAKE_GRAPH), 2);
        for (int captured = 0; captured < 2; captured++) {
            world_build(&real, 4, 6, token, 0, &shape);
            int32_t at = real.plan.items - 1;
            while (real.plan.item[at].op != HZP_OP_attn_decode)
                at--;
            assert_true(real.plan.item[at].waits > 0);
            real.plan.item[at].waits = 0;
            world_run(&real);
            assert_non_null(strstr(fake_mistakes(), "a race: rope and then attn_decode"));
            fake_reset(seed);
        }
        struct hzp_device *a = real.m.dev;
        world_close(&real);
        fake_close(a);
    }
}

/* ---- steps of few rows ---- */

static int count_op(const struct hzp_plan *plan, enum hzp_op op)
{
    int count = 0;
    for (int32_t i = 0; i < plan->items; i++)
        count += plan->item[i].op == op;
    return count;
}

/* One decode step of `segs` sequences: how many kernels of ours it launches, and how many of them
 * may begin before the one in front has ended.  The page table's changes are not counted. */
static void kernels_of(struct world *w, int segs, int *ret_all, int *ret_early)
{
    int32_t token[SEGS] = {1, 2, 3, 4, 5, 6, 7, 8};
    world_build(w, 1, segs, token, 0, NULL);
    int first = fake_calls();
    world_run(w);
    *ret_all = *ret_early = 0;
    for (int i = first; i < fake_calls(); i++) {
        const struct fake_call *call = fake_call_at(i);
        if (call->kind != FAKE_KERNEL || strcmp(call->name, "scatter") == 0)
            continue;
        ++*ret_all;
        *ret_early += call->early;
    }
}

/* Norms and SwiGLU are part of the products: three launches of nine are saved in a layer, and one
 * at the head.  With fp8 the norm is one kernel with the quantization, and SwiGLU part of a
 * product.  In a larger step of fp8 SwiGLU is one kernel with the quantization, too: three launches
 * less in a layer.  All kernels of a step of one to four rows may begin early, those of a larger
 * one only where that is asked for. */
static void test_few_launches(void **state)
{
    static const struct {
        const char *fuse;
        bool fp8;
        int segs, projections, kernels, larger;
        bool all;
    } cases[] = {
        {"1", false, 1, 2 * LAYERS + 1, 6 * LAYERS + 8, 6, false},
        {"1", false, 3, 2 * LAYERS + 1, 6 * LAYERS + 8, 6, true},
        {"1", false, 4, 2 * LAYERS + 1, 6 * LAYERS + 8, 6, false},
        {"0", false, 1, 0, 9 * LAYERS + 9, 6, false},
        {"0", false, 4, 0, 9 * LAYERS + 9, 6, false},
        {"1", true, 1, LAYERS + 1, 10 * LAYERS + 8, 11, false},
        {"0", true, 4, 0, 13 * LAYERS + 9, 14, false},
        {"0", true, 4, 0, 13 * LAYERS + 9, 14, true},
    };
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct world real;
        int all, early;
        setenv("HZP_CUDA_FUSE", cases[i].fuse, 1);
        setenv("HZP_CUDA_EARLY", cases[i].all ? "all" : "", 1);
        world_fp8 = cases[i].fp8;
        world_open(&real, fake_open(1, NULL, NULL));
        world_fp8 = false;
        unsetenv("HZP_CUDA_FUSE");
        unsetenv("HZP_CUDA_EARLY");
        kernels_of(&real, cases[i].segs, &all, &early);
        assert_int_equal(count_op(&real.plan, HZP_OP_project), cases[i].projections);
        assert_int_equal(all, cases[i].kernels);
        assert_int_equal(early, all);
        kernels_of(&real, 5, &all, &early); /* eight rows with the padding */
        assert_int_equal(count_op(&real.plan, HZP_OP_project), 0);
        assert_int_equal(all, cases[i].larger * LAYERS + 6);
        assert_int_equal(early, cases[i].all ? all : 0);
        struct hzp_device *dev = real.m.dev;
        world_close(&real);
        fake_close(dev);
    }
}

/* The tokens are those of the ops one by one, which round between norm, product and SwiGLU; with
 * fp8 a code of e4m3 may then be the neighbour's. */
static void test_few_rows(void **state)
{
    for (int turn = 0; turn < 2; turn++) {
        struct steps s;
        world_fp8 = turn;
        world_apart = world_fp8 ? 1e-2f : 2e-3f;
        steps_open(&s, 5);
        world_fp8 = false;
        step(&s, 0, 4, 0, NULL);
        for (int i = 1; i < 12; i++) {
            step(&s, i, 4 - i / 3, i / 3 % 2, NULL);
            assert_int_equal(count_op(&s.real.plan, HZP_OP_project), (2 - turn) * LAYERS + 1);
            assert_int_equal(count_op(&s.plain.plan, HZP_OP_project), 0);
        }
        assert_true(s.graph_steps > 0);
        steps_close(&s);
    }
    world_apart = 2e-3f;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs),       cmocka_unit_test(test_head),
        cmocka_unit_test(test_rows),         cmocka_unit_test(test_contexts),
        cmocka_unit_test(test_many),         cmocka_unit_test(test_swaps),
        cmocka_unit_test(test_room),         cmocka_unit_test(test_count),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_driver),       cmocka_unit_test(test_rationed),
        cmocka_unit_test(test_executor),     cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_many_nanos),   cmocka_unit_test(test_missing_wait),
        cmocka_unit_test(test_few_launches), cmocka_unit_test(test_few_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
