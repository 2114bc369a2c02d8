/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/test_steps.c - steps of a model on the CUDA backend's host side and on the
 * reference, side by side: as CUDA graphs or op by op, on one lane or several, with versions
 * swapped in between, with padding rows or without.
 *
 * Streams run in random order, so a missing wait, a stale staged array, or a graph that kept a
 * value it should read anew gives other tokens for some seed.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/arena.h"
#include "nanobatch/run/driver.h"
#include "nanobatch/run/exec.h"
#include "nanobatch/build/forward.h"
#include "nanobatch/run/graphs.h"
#include "device/fallback.h"
#include "tests/cudafake/ops.h"
#include "tests/fixture/model.h"

enum {
    LAYERS = 2,
    WIDTH = 128,
    VOCAB = 96,
    PAGE_ROWS = 16,
    STRIDE = 24,
    SEGS = 8,
    PAGES = 96,
    PROMPT = 5,
    ROWS = 96
};

struct world {
    struct fixture_model m;
    struct hzp_version *version[2];
    struct hzp_page_table *table; /* NULL: on the reference */
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_kv kv[LAYERS];
    struct hzp_exec *exec;
    struct hzp_plan plan;
};

static bool fp8; /* of the worlds that are opened */

static void world_open(struct world *w, struct hzp_device *dev)
{
    struct hzp_model_config config = {.family = "llama",
                                      .layers = LAYERS,
                                      .width = WIDTH,
                                      .inner = 192,
                                      .vocab = VOCAB,
                                      .heads = {4, 2, 64},
                                      .positions = STRIDE * PAGE_ROWS,
                                      .norm_eps = 1e-5f,
                                      .rope_theta = 10000,
                                      .tied = true,
                                      .disk_type = HZP_BF16};
    struct hzp_batch_config max = {.rows_max = ROWS,
                                   .segs_max = SEGS,
                                   .page_stride = STRIDE,
                                   .logits_max = SEGS,
                                   .edits_max = 1};
    size_t page = (size_t)2 * PAGE_ROWS * 64 * 2 * PAGES;
    memset(w, 0, sizeof(*w));
    struct fixture_config fixture = {
        .dev = dev, .config = config, .store = {.type = HZP_BF16, .fp8 = fp8}};
    fixture_open(&w->m, &fixture);
    for (uint64_t slot = 0; slot < 2; slot++)
        w->version[slot] = fixture_publish_random(&w->m, 5 + slot, 0.2f);
    struct hzp_page_table_config pages = {SEGS, STRIDE, SEGS * STRIDE};
    if (!hzp_device_host_memory(dev))
        assert_int_equal(hzp_page_table_create(dev, &pages, &w->table), HZP_OK);
    max.table = w->table;
    assert_int_equal(hzp_batch_create(dev, &max, &w->batch), HZP_OK);
    assert_int_equal(hzp_serve_space_create(w->m.model, ROWS, SEGS, &w->space), HZP_OK);
    assert_int_equal(hzp_exec_create(dev, &w->exec), HZP_OK);
    for (int l = 0; l < LAYERS; l++) {
        void *kv;
        assert_int_equal(hzp_device_alloc(dev, HZP_MEM_DEVICE, 2 * page, &kv), HZP_OK);
        void *zero = hzp_xcalloc(1, 2 * page);
        assert_int_equal(hzp_device_copy(dev, kv, zero, 2 * page), HZP_OK);
        free(zero);
        w->kv[l] = (struct hzp_kv){kv, (char *)kv + page, PAGES, PAGE_ROWS, HZP_BF16, NULL, NULL};
    }
    hzp_plan_init(&w->plan);
}

static void world_close(struct world *w)
{
    hzp_plan_fini(&w->plan);
    for (int l = 0; l < LAYERS; l++)
        hzp_device_free(w->m.dev, HZP_MEM_DEVICE, w->kv[l].k);
    hzp_exec_destroy(w->exec);
    hzp_serve_space_destroy(w->space);
    hzp_batch_destroy(w->batch);
    hzp_page_table_destroy(w->table);
    fixture_close(&w->m);
}

/* Step `step` of `segs` sequences: step 0 holds prompts, later ones one row per sequence with
   its last token. */
static void fill(struct world *w, int step, int segs, const int32_t *token)
{
    struct hzp_batch *b = w->batch;
    hzp_batch_clear(b);
    for (int i = 0; i < segs; i++) {
        int32_t pos0 = step ? PROMPT + i + step - 1 : 0, rows = step ? 1 : PROMPT + i, row = 0;
        int32_t *page = hzp_batch_add_segment(b, pos0, step > 0);
        for (int32_t k = 0; k * PAGE_ROWS < pos0 + rows; k++)
            page[k] = (k * SEGS + i) % PAGES;
        hzp_batch_set_pages(b, (i + step / 5) % SEGS, page, HZP_DIV_UP(pos0 + rows, PAGE_ROWS));
        for (int32_t k = 0; k < rows; k++) {
            int32_t p = pos0 + k;
            row = hzp_batch_add_row(b, step ? token[i] : (7 * k + 3 * i) % VOCAB,
                                    page[p / PAGE_ROWS] * PAGE_ROWS + p % PAGE_ROWS);
        }
        b->sample[hzp_batch_add_logits(b, row)] =
            (struct hzp_sample_row){.temperature = i % 2 ? 0.9f : 0,
                                    .top_p = 1,
                                    .repetition = 1,
                                    .given = -1,
                                    .seed = (uint64_t)i,
                                    .position = (uint32_t)(pos0 + rows)};
    }
}

static void build(struct world *w, int step, int segs, const int32_t *token, int slot,
                  const struct hzp_plan_shape *shape)
{
    fill(w, step, segs, token);
    hzp_plan_clear(&w->plan);
    hzp_forward_build(&w->plan, w->m.model, w->version[slot], w->batch, w->kv, w->space, shape);
}

static void run(struct world *w)
{
    struct hzp_exec_times times;
    assert_int_equal(hzp_exec_run(w->exec, &w->plan, NULL, &times), HZP_OK);
}

/* How far logarithms of probabilities may be apart. */
static float apart = 2e-3f;

/* Both must draw the same tokens with about the same probabilities; `token` receives them for
   the next step. */
static void agree(const struct world *a, const struct world *b, int segs, int32_t *token)
{
    for (int i = 0; i < segs; i++) {
        assert_int_equal(a->batch->token[i], b->batch->token[i]);
        assert_true(fabsf(a->batch->logprob[i] - b->batch->logprob[i]) < apart);
        token[i] = a->batch->token[i];
    }
}

static struct hzp_device *plain_open(void)
{
    struct hzp_device *dev;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &dev, NULL),
                     HZP_OK);
    return dev;
}

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
    world_open(&s->plain, plain_open());
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

static void step(struct steps *s, int number, int segs, int slot, struct hzp_span *span)
{
    s->slot = slot;
    build(&s->plain, number, segs, s->token, slot, NULL);
    run(&s->plain);
    build(&s->real, number, segs, s->token, slot, NULL);
    struct hzp_plan *plan = &s->real.plan;
    struct hzp_graph_part part;
    bool fits = hzp_graphs_fit(s->graphs, plan, &part);
    assert_int_equal(fits, number > 0);
    if (number == 0) { /* prompts: padding rows without segments */
        assert_int_equal(s->real.batch->pads,
                         hzp_batch_size(s->real.batch->rows) - s->real.batch->rows);
        assert_int_equal(s->real.batch->pad_segs, 0);
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
    agree(&s->real, &s->plain, segs, s->token);
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
        build(&s.real, i, 6, s.token, 0, NULL);
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
    build(&s.real, 1, 6, s.token, 0, NULL);
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
            build(&s.real, 1, 6, s.token, s.slot, NULL);
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
    build(&s.real, 1, 6, s.token, 0, NULL);
    assert_true(hzp_graphs_fit(s.graphs, &s.real.plan, &part));
    struct hzp_graphs_room room = {.graph = 5000, .node = 100};
    size_t one = room.graph + (size_t)(part.to - part.from) * room.node;
    room.bytes = 2 * SETS * one + one / 2;
    hzp_graphs_prepare(s.graphs, other_slot, &s, &room);
    for (int turn = 0; turn < 4; turn++)
        for (int i = 0; i < 2 * SETS; i++) {
            int units[HZP_LANE_COUNT] = {1 + (turn < 2 ? i : 2 * SETS - 1 - i)};
            build(&s.real, 1, 6, s.token, 0, NULL);
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
        assert_int_equal(hzp_driver_measure(dev, NULL, &beside, &driver), HZP_OK);
        assert_in_range(driver.splits, 6 << 20, (6 << 20) + block); /* two parts */
        assert_in_range(driver.node, 3000 - block / 4000, 3000 + block / 4000);
        assert_true(driver.graph <= 20000 + block);
        /* all but the partitions is given back */
        assert_int_equal(before - hzp_device_bytes_free(dev), driver.splits);
        assert_int_equal(hzp_driver_graphs(&driver, 2, 10), 2 * (driver.graph + 10 * driver.node));
        fake_close(dev);
        fake_set_driver(0, 0, 0, 1);
    }
    struct hzp_device *dev = fake_open(3, NULL, NULL); /* a driver that takes nothing */
    assert_int_equal(hzp_driver_measure(dev, NULL, NULL, &driver), HZP_OK);
    assert_int_equal(driver.splits + driver.graph + driver.node, 0);
    fake_close(dev);
    dev = fake_open(3, NULL, NULL); /* too little memory even for a lane */
    fake_set_memory((size_t)100 << 20);
    assert_int_equal(hzp_driver_measure(dev, NULL, NULL, &driver), HZP_ENOMEM);
    fake_set_memory((size_t)64 << 30);
    fake_close(dev);
}

/* The number of graphs is that of step sizes times slots and batches. */
static void test_count(void **state)
{
    struct hzp_batch_config max = {
        .rows_max = 256, .segs_max = 8, .page_stride = 16, .logits_max = 8, .edits_max = 1};
    assert_int_equal(hzp_graphs_count(&max, 2, 2), 4 * 2 * 2); /* 1, 2, 4, 8 */
    max.segs_max = max.logits_max = 40;
    assert_int_equal(hzp_graphs_count(&max, 1, 1), 8); /* and 16, 24, 32, 40 */
    max.rows_max = max.segs_max = max.logits_max = 512;
    assert_int_equal(hzp_graphs_count(&max, 2, 2), 92);
}

/* A step that cannot be captured: three attempts, then its steps go op by op; steps of another size
 * still become graphs. */
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
    assert_int_equal(hzp_device_fallbacks(s.real.m.dev, HZP_FALLBACK_graph), 3);
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
        world_open(&plain, plain_open());
        for (int i = 0; i < 20; i++) {
            struct hzp_exec_times times;
            struct hzp_rates rates = hzp_rates_of(real.m.dev->threads);
            struct hzp_op_times op_times;
            hzp_op_times_init(&op_times, &rates);
            build(&plain, i, 6, token, i / 3 % 2, NULL);
            run(&plain);
            build(&real, i, 6, token, i / 3 % 2, &beside);
            assert_int_equal(hzp_exec_run(real.exec, &real.plan, &op_times, &times), HZP_OK);
            agree(&real, &plain, 6, token);
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
        world_open(&plain, plain_open());
        for (int i = 0; i < 12; i++) {
            build(&plain, i, 6, token, i % 2, NULL);
            run(&plain);
            build(&real, i, 6, token, i % 2, i == 3 ? NULL : &shape);
            run(&real);
            agree(&real, &plain, 6, token);
        }
        assert_int_equal(fake_count(FAKE_GRAPH),
                         12 - 4); /* the prompts, 3, and the first of each slot */
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
    world_open(&plain, plain_open());
    for (int i = 0; i < 4; i++) {
        build(&plain, i, SEGS, token, 0, NULL);
        run(&plain);
        build(&real, i, SEGS, token, 0, &shape);
        run(&real);
        agree(&real, &plain, SEGS, token);
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
            build(&real, i, 6, token, 0, &shape);
            run(&real);
        }
        assert_string_equal(fake_mistakes(), "");
        assert_int_equal(fake_count(FAKE_GRAPH), 2);
        for (int captured = 0; captured < 2; captured++) {
            build(&real, 4, 6, token, 0, &shape);
            int32_t at = real.plan.items - 1;
            while (real.plan.item[at].op != HZP_OP_attn_decode)
                at--;
            assert_true(real.plan.item[at].waits > 0);
            real.plan.item[at].waits = 0;
            run(&real);
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
    build(w, 1, segs, token, 0, NULL);
    int first = fake_calls();
    run(w);
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
 * at the head.  With fp8 the norm's rows are quantized, and only SwiGLU is part of a product.  All
 * kernels of a step of one to four rows may begin early, none of a larger one. */
static void test_few_launches(void **state)
{
    static const struct {
        const char *fuse;
        bool fp8;
        int segs, projections, kernels;
    } cases[] = {
        {"1", false, 1, 2 * LAYERS + 1, 6 * LAYERS + 7},
        {"1", false, 3, 2 * LAYERS + 1, 6 * LAYERS + 7},
        {"1", false, 4, 2 * LAYERS + 1, 6 * LAYERS + 7},
        {"0", false, 1, 0, 9 * LAYERS + 8},
        {"0", false, 4, 0, 9 * LAYERS + 8},
        {"1", true, 1, LAYERS + 1, 12 * LAYERS + 7},
        {"0", true, 4, 0, 13 * LAYERS + 8},
    };
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct world real;
        int all, early;
        setenv("HZP_CUDA_FUSE", cases[i].fuse, 1);
        fp8 = cases[i].fp8;
        world_open(&real, fake_open(1, NULL, NULL));
        fp8 = false;
        unsetenv("HZP_CUDA_FUSE");
        kernels_of(&real, cases[i].segs, &all, &early);
        assert_int_equal(count_op(&real.plan, HZP_OP_project), cases[i].projections);
        assert_int_equal(all, cases[i].kernels);
        assert_int_equal(early, all);
        kernels_of(&real, 5, &all, &early); /* eight rows with the padding */
        assert_int_equal(count_op(&real.plan, HZP_OP_project), 0);
        assert_true(all > 0 && early == 0);
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
        fp8 = turn;
        apart = fp8 ? 1e-2f : 2e-3f;
        steps_open(&s, 5);
        fp8 = false;
        step(&s, 0, 4, 0, NULL);
        for (int i = 1; i < 12; i++) {
            step(&s, i, 4 - i / 3, i / 3 % 2, NULL);
            assert_int_equal(count_op(&s.real.plan, HZP_OP_project), (2 - turn) * LAYERS + 1);
            assert_int_equal(count_op(&s.plain.plan, HZP_OP_project), 0);
        }
        assert_true(s.graph_steps > 0);
        steps_close(&s);
    }
    apart = 2e-3f;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs),       cmocka_unit_test(test_rows),
        cmocka_unit_test(test_contexts),     cmocka_unit_test(test_many),
        cmocka_unit_test(test_swaps),        cmocka_unit_test(test_room),
        cmocka_unit_test(test_count),        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bytes),        cmocka_unit_test(test_driver),
        cmocka_unit_test(test_rationed),     cmocka_unit_test(test_executor),
        cmocka_unit_test(test_lanes),        cmocka_unit_test(test_many_nanos),
        cmocka_unit_test(test_missing_wait), cmocka_unit_test(test_few_launches),
        cmocka_unit_test(test_few_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
