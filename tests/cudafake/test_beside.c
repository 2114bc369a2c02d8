/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/test_beside.c - the start of a loop whose training has SMs of its own: steps of
 * serving are prepared as they are alone and as they are beside training, so that no request waits
 * for a capture, and every product, of serving and of training, has a timed algorithm, whatever its
 * lane's share.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/fallback.h"
#include "nanobatch/loop.h"
#include "tests/cudafake/ops.h"
#include "tests/cudafake/world.h"

enum { STEPS = 50, TRAIN_SMS = 48, SERVE_SMS = 84, PROMPT_ROWS = 40 };
enum { MIXED_TRAIN_SMS = 64, MIXED_SMS = 68 }; /* in a table, of steps with prompts */

/* A source of serving: each step has decode rows, and some have a piece of a prompt, too. */
struct serving {
    struct hzp_source source;
    const struct world *w;
    int steps;
};

static bool serving_offer(struct hzp_source *source, const struct hzp_step *step,
                          struct hzp_room *room, struct hzp_offer *offer)
{
    struct serving *s = HZP_CONTAINER_OF(source, struct serving, source);
    struct hzp_batch *b = offer->batch;
    int32_t prompts = s->steps % 2 ? PROMPT_ROWS : 0;
    int32_t decodes = prompts ? 5 + s->steps % 3 : 1 << s->steps % 3; /* no size of decode steps */
    if (s->steps++ >= STEPS)
        return false;
    for (int32_t i = 0; i < decodes; i++) {
        int32_t page = i;
        hzp_batch_add_segment(b, 3, true);
        hzp_batch_set_pages(b, i, &page, 1);
        b->sample[hzp_batch_add_logits(b, hzp_batch_add_row(b, 1, i * PAGE_ROWS + 3))] =
            (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = -1};
    }
    if (prompts) {
        static const int32_t page[] = {20, 21, 22};
        hzp_batch_add_segment(b, 0, false);
        hzp_batch_set_pages(b, decodes, page, HZP_COUNT(page));
        for (int32_t i = 0; i < prompts; i++)
            hzp_batch_add_row(b, i, page[0] * PAGE_ROWS + i);
    }
    room->rows -= decodes + prompts;
    offer->kv = s->w->kv;
    return true;
}

static void no_delivery(struct hzp_source *source, const struct hzp_step *step,
                        const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    assert_int_equal(outcome->status, HZP_OK);
}

/* A source of training: a product in two steps of three. */
struct training {
    struct hzp_source source;
    struct hzp_plan chain;
    int32_t next;
    int steps;
};

static bool training_offer(struct hzp_source *source, const struct hzp_step *step,
                           struct hzp_room *room, struct hzp_offer *offer)
{
    struct training *t = HZP_CONTAINER_OF(source, struct training, source);
    if (t->steps++ % 3 == 2 || t->next == t->chain.items || !offer->batch->rows)
        return false;
    hzp_offer_add(offer,
                  &(struct hzp_slice){.chain = &t->chain, .from = t->next, .to = t->next + 1});
    t->next++;
    return true;
}

static void *device_zeros(struct hzp_device *dev, size_t size)
{
    void *ptr, *zero = hzp_xcalloc(1, size);
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_DEVICE, size, &ptr), HZP_OK);
    assert_int_equal(hzp_device_copy(dev, ptr, zero, size), HZP_OK);
    free(zero);
    return ptr;
}

/* Products of 24 rows, which serving's steps do not have. */
static void *chain_make(struct hzp_plan *chain, struct hzp_device *dev)
{
    enum { M = 24, N = 64, K = 32 };
    char *at = device_zeros(dev, 2 * (M * K + N * K) + 4 * M * N);
    hzp_plan_init(chain);
    chain->tenant = HZP_TENANT_TRAIN;
    for (int i = 0; i < STEPS; i++)
        HZP_PLAN_ADD(chain, matmul, HZP_LANE_COMPUTE, .a = {at, M, K, K, HZP_BF16},
                     .b = {at + 2 * M * K, N, K, K, HZP_BF16},
                     .c = {at + 2 * (M * K + N * K), M, N, N, HZP_F32}, .trans_b = 1);
    return at;
}

static struct hzp_plan_shape beside_make(void)
{
    struct hzp_plan_shape beside = hzp_plan_sequential;
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        beside.train_lane[k] = HZP_LANE_TRAIN;
    beside.share[HZP_LANE_TRAIN] = TRAIN_SMS;
    beside.share[HZP_LANE_COMPUTE] = SERVE_SMS;
    return beside;
}

/* The same shapes as entries of a table, as the search finds them. */
static void table_make(struct hzp_plan_table *table)
{
    hzp_plan_table_init(table);
    for (int32_t train = 0; train <= 64; train += 64) {
        struct hzp_plan_entry entry = {.decode = 4, .prefill = 0, .train = train};
        entry.shape = train ? beside_make() : hzp_plan_sequential;
        assert_int_equal(hzp_plan_table_set(table, &entry, NULL), HZP_OK);
        entry.prefill = PROMPT_ROWS;
        entry.shape.share[HZP_LANE_TRAIN] = train ? MIXED_TRAIN_SMS : 0;
        entry.shape.share[HZP_LANE_COMPUTE] = train ? MIXED_SMS : 0;
        assert_int_equal(hzp_plan_table_set(table, &entry, NULL), HZP_OK);
    }
    hzp_plan_table_index(table);
}

/* Every product since `from` has a timed algorithm; *ret: how many had a part of the SMs. */
static void check_products(int from, int *ret)
{
    *ret = 0;
    for (int i = from; i < fake_calls(); i++) {
        const struct fake_call *call = fake_call_at(i);
        if (call->kind != FAKE_PRODUCT)
            continue;
        assert_int_not_equal(call->algo, 0); /* the one advised */
        *ret += call->sm_target == SERVE_SMS || call->sm_target == MIXED_SMS;
    }
}

/* Runs the steps, with the shape of --train-share cores or with those of a table. */
static void run(unsigned seed, bool table, const char *cache)
{
    struct world w;
    struct hzp_plan_table plans;
    struct hzp_plan_shape beside = beside_make();
    struct serving s = {
        .source = {.name = "serving", .offer = serving_offer, .deliver = no_delivery}, .w = &w};
    struct training t = {
        .source = {
            .name = "training", .slices = true, .offer = training_offer, .deliver = no_delivery}};
    struct hzp_loop *loop;
    world_open(&w, fake_open(seed, NULL, cache));
    void *memory = chain_make(&t.chain, w.m.dev);
    table_make(&plans);
    struct hzp_loop_config config = {.model = w.m.model,
                                     .space = w.space,
                                     .batch = w.batch,
                                     .source = {&s.source, &t.source},
                                     .sources = 2,
                                     .trains = true,
                                     .idle_ns = 1000000000,
                                     .beside = table ? NULL : &beside,
                                     .plans = table ? &plans : NULL,
                                     .check_plans = true};
    assert_int_equal(hzp_loop_create(&config, &loop), HZP_OK);
    assert_int_equal(hzp_loop_warm_up(loop, w.kv, &t.chain), HZP_OK);
    fake_steady(true);
    struct hzp_graphs_stats start = hzp_loop_graphs(loop);
    /* 1, 2, 4, 8 rows; two slots, two batches, with training and without */
    assert_int_equal(start.captures, 4 * 2 * 2 * 2);
    assert_int_equal(start.evictions, 0);
    int first = fake_calls(), shared;
    while (hzp_loop_turn(loop) == 1)
        ;
    struct hzp_graphs_stats end = hzp_loop_graphs(loop);
    struct hzp_loop_stats stats;
    hzp_loop_read_stats(loop, &stats);
    assert_int_equal(stats.serve_steps, STEPS);
    assert_in_range(stats.train_steps, STEPS / 2, STEPS);
    assert_int_equal(end.captures, start.captures);
    assert_int_equal(end.evictions, 0);
    assert_int_equal(end.launches, STEPS / 2);
    check_products(first, &shared);
    assert_true(shared > 0);
    fake_steady(false);
    hzp_loop_destroy(loop);
    hzp_plan_fini(&t.chain);
    hzp_plan_table_fini(&plans);
    struct hzp_device *dev = w.m.dev;
    hzp_device_free(dev, HZP_MEM_DEVICE, memory);
    world_close(&w);
    fake_close(dev);
}

static void test_beside(void **state)
{
    char cache[] = "/tmp/hzp-beside-XXXXXX", file[128];
    assert_non_null(mkdtemp(cache));
    run(0, false, cache);
    run(1, true, cache); /* with the first one's algorithms, which takes less time */
    snprintf(file, sizeof(file), "rm -r %s", cache);
    assert_int_equal(system(file), 0);
}

int main(void)
{
    static const int times[] = {1000000, 0}; /* the one advised takes a second */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_beside)};
    setenv("HZP_CUDA_TUNE", "", 1);
    fake_set_algo_times(times, HZP_COUNT(times));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
