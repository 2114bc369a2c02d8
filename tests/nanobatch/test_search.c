/* SPDX-License-Identifier: Apache-2.0 */
/* The search: with planted tables in which overlap must win, and in which it must lose; its
 * plans pass the checker; and the table of plans gives an entry for steps that have none of
 * their own. */
#include "mesh/link.h"
#include "nanobatch/model/train_space_state.h"
#include "nanobatch/search/search.h"

#include "paper.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Every op of the rig's steps takes `ns` on half of the device and ns / speedup on all of it. */
static void plant(struct hzp_tables *t, struct hzp_rig *rig, double speedup)
{
    struct hzp_plan plan;
    hzp_plan_init(&plan);
    hzp_tables_init(t);
    t->threads = 2;
    t->shares = 2;
    t->cores[0] = 1;
    t->cores[1] = 2;
    t->led = true;
    for (int rows = 1; rows <= 64; rows *= 2) {
        int32_t decode = HZP_MIN(rows, 16);
        assert_int_equal(hzp_rig_serve(rig, decode, 16, rows, 0), HZP_OK);
        assert_int_equal(hzp_rig_train(rig, rig->train ? 64 : 0), HZP_OK);
        hzp_rig_build(rig, &hzp_plan_sequential, 0, rig->chain.items, &plan);
        for (int32_t i = 0; i < plan.items; i++) {
            struct hzp_op_key key;
            struct hzp_op_size size;
            if (plan.item[i].op == HZP_OP_collective)
                continue; /* plant_link */
            hzp_op_describe(plan.item[i].op, plan.item[i].args, &key, &size);
            double ns = 10.0 * (double)hzp_op_cost(plan.item[i].op, plan.item[i].args).bytes + 1;
            hzp_tables_set(t, &key, &size, 0, ns);
            hzp_tables_set(t, &key, &size, 1, ns / speedup);
        }
    }
    hzp_plan_fini(&plan);
}

static struct hzp_plan_entry search_as(struct paper *p, const struct hzp_tables *t, double share,
                                       double goal_ns, int32_t tries, int32_t decode,
                                       int32_t prefill, int32_t train, struct hzp_search **ret)
{
    struct hzp_search_config config = {.rig = p->rig,
                                       .tables = t,
                                       .train_share = share,
                                       .goal_ns = goal_ns,
                                       .tries = tries,
                                       .seed = 3};
    struct hzp_plan_entry entry;
    assert_int_equal(hzp_search_create(&config, ret), HZP_OK);
    assert_int_equal(hzp_search_step(*ret, decode, 16, prefill, train, &entry), HZP_OK);
    return entry;
}

static struct hzp_plan_entry search(struct paper *p, const struct hzp_tables *t, int32_t decode,
                                    int32_t prefill, int32_t train, struct hzp_search **ret)
{
    return search_as(p, t, 1, 0, 40, decode, prefill, train, ret);
}

static int lanes_of(const struct hzp_plan_shape *s)
{
    bool used[HZP_LANE_COUNT] = {false};
    int lanes = 0;
    for (int32_t i = 0; i < s->nanos; i++)
        for (int k = 0; k < HZP_KIND_COUNT; k++)
            used[s->lane[i][k]] = true;
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        lanes += used[l];
    return lanes;
}

/* The whole device is no faster than half of it, so plans that use the halves side by side win. */
static void overlap_wins(void **state)
{
    struct paper p;
    struct hzp_tables t;
    struct hzp_search *s;
    paper_open(&p, "sim", "issue_ns=0", 0);
    plant(&t, p.rig, 1);
    struct hzp_plan_entry e = search(&p, &t, 8, 64, 0, &s);
    assert_int_equal(lanes_of(&e.shape), 2);
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        assert_in_range(e.shape.share[l], 0, 2); /* also where lanes share cores */
    assert_true(e.ns < 0.8 * e.plain_ns);
    assert_true(hzp_search_tried(s) > 50);
    hzp_search_destroy(s);
    hzp_tables_fini(&t);
    paper_close(&p);
}

/* Half of the device is half as fast, and concurrent ops slow each other down: one nano-batch on
 * one lane wins. */
static void overlap_loses(void **state)
{
    struct paper p;
    struct hzp_tables t;
    struct hzp_search *s;
    paper_open(&p, "sim", "issue_ns=0", 0);
    plant(&t, p.rig, 2);
    for (int a = 0; a < HZP_CLASS_COUNT; a++)
        for (int b = a; b < HZP_CLASS_COUNT; b++)
            hzp_tables_set_rate(&t, &(struct hzp_rate){(uint8_t)a, (uint8_t)b, 1, 1, 0.8, 0.8});
    t.handover_ns = 1000;
    struct hzp_plan_entry e = search(&p, &t, 8, 64, 0, &s);
    assert_int_equal(e.shape.nanos, 1);
    assert_int_equal(lanes_of(&e.shape), 1);
    assert_true(e.ns == e.plain_ns);
    hzp_search_destroy(s);
    hzp_tables_fini(&t);
    paper_close(&p);
}

/* Sets what exchanges take: `ns` for each byte that a rank sends. */
static void plant_link(struct hzp_tables *t, double ns)
{
    for (int kind = 0; kind < HZP_TRANSFER_OP_COUNT; kind++)
        for (int i = 0; i < 2; i++) {
            struct hzp_op_key key = {.op = HZP_OP_collective, .flags = (uint8_t)kind, .a = 2};
            struct hzp_op_size size = {.x = i ? 1e6 : 1e3, .work = i ? 1e6 : 1e3};
            for (int share = 0; share < t->shares; share++)
                hzp_tables_set(t, &key, &size, share, 1000 + ns * size.x);
        }
}

/* Ranks that compute each step together: over a slow link nano-batches whose exchanges have a lane
 * of their own win, and the rows are divided, which sends less.  Over a fast link one nano-batch on
 * one lane wins. */
static void exchanges_overlap_or_not(void **state)
{
    struct paper p;
    paper_open_group(&p, "sim", "issue_ns=0");
    for (int slow = 0; slow < 2; slow++) {
        struct hzp_tables t;
        struct hzp_search *s;
        plant(&t, p.rig, 2);
        for (int a = 0; a < HZP_CLASS_COUNT; a++)
            for (int b = a; b < HZP_CLASS_COUNT; b++)
                hzp_tables_set_rate(&t, &(struct hzp_rate){(uint8_t)a, (uint8_t)b, 1, 1, 0.5, 0.5});
        for (int a = 0; a < HZP_CLASS_NETWORK; a++)
            hzp_tables_set_rate(
                &t, &(struct hzp_rate){(uint8_t)a, HZP_CLASS_NETWORK, 2, 1, slow ? 1 : 0.5, 0.5});
        plant_link(&t, slow ? 40 : 0.001);
        struct hzp_plan_entry e = search(&p, &t, 0, 64, 0, &s);
        if (slow) {
            assert_int_equal(e.shape.network_lane, HZP_LANE_NETWORK);
            assert_true(e.shape.nanos > 1 && e.ns < 0.95 * e.plain_ns);
            assert_true(lanes_of(&e.shape) == 1); /* and the link's */
            int divided = 0;
            for (int32_t i = 0; i < e.shape.nanos; i++)
                divided += e.shape.reduce[i] == HZP_REDUCE_SCATTERED;
            assert_true(divided > 0);
        } else {
            assert_int_equal(e.shape.nanos, 1);
            assert_int_equal(e.shape.network_lane, HZP_LANE_COMPUTE);
        }
        hzp_search_destroy(s);
        hzp_tables_fini(&t);
    }
    paper_close(&p);
}

/* Exchanges that wait where products use all cores: they get one that products leave, where that
 * costs less than the waiting. */
static void exchanges_have_a_core(void **state)
{
    struct paper p;
    paper_open_group(&p, "sim", "issue_ns=0");
    for (int waits = 0; waits < 2; waits++) {
        struct hzp_tables t;
        struct hzp_search *s;
        plant(&t, p.rig, waits ? 1.1 : 2);
        for (int a = 0; a < HZP_CLASS_COUNT; a++)
            for (int b = a; b < HZP_CLASS_COUNT; b++)
                hzp_tables_set_rate(&t, &(struct hzp_rate){(uint8_t)a, (uint8_t)b, 1, 1, 0.5, 0.5});
        for (int a = 0; a < HZP_CLASS_NETWORK; a++)
            for (int cores = 1; cores <= 2; cores++) {
                double rate = waits && cores == 2 ? 0.5 : 1;
                hzp_tables_set_rate(&t, &(struct hzp_rate){(uint8_t)a, HZP_CLASS_NETWORK,
                                                           (uint8_t)cores, 1, rate, rate});
            }
        plant_link(&t, 100);
        struct hzp_plan_entry e = search(&p, &t, 0, 64, 0, &s);
        assert_int_equal(e.shape.network_lane, HZP_LANE_NETWORK);
        assert_true(lanes_of(&e.shape) == 1 && e.shape.nanos > 1);
        assert_int_equal(e.shape.share[HZP_LANE_COMPUTE], waits ? 1 : 0);
        hzp_search_destroy(s);
        hzp_tables_fini(&t);
    }
    paper_close(&p);
}

/* An attention that takes as long for few rows as for many: cutting it costs, while products are
 * cut so that exchanges run beside them.  The stages get cuts of their own. */
static void stages_cut_apart(void **state)
{
    struct paper p;
    struct hzp_tables t;
    struct hzp_search *s;
    struct hzp_plan plan;
    struct hzp_err_text text = {0};
    paper_open_group(&p, "sim", "issue_ns=0");
    plant(&t, p.rig, 2);
    for (int a = 0; a < HZP_CLASS_COUNT; a++)
        hzp_tables_set_rate(&t, &(struct hzp_rate){(uint8_t)a, HZP_CLASS_NETWORK, 2, 1, 1, 1});
    plant_link(&t, 100);
    hzp_plan_init(&plan);
    for (int rows = 1; rows <= 64; rows *= 2) {
        assert_int_equal(hzp_rig_serve(p.rig, 0, 16, rows, 0), HZP_OK);
        hzp_rig_build(p.rig, &hzp_plan_sequential, 0, 0, &plan);
        for (int32_t i = 0; i < plan.items; i++) {
            struct hzp_op_key key;
            struct hzp_op_size size;
            if (plan.item[i].op != HZP_OP_attn_prefill)
                continue;
            hzp_op_describe(plan.item[i].op, plan.item[i].args, &key, &size);
            for (int share = 0; share < 2; share++)
                hzp_tables_set(&t, &key, &size, share, 1e6);
        }
    }
    struct hzp_plan_entry e = search(&p, &t, 0, 64, 0, &s);
    assert_int_equal(e.shape.network_lane, HZP_LANE_NETWORK);
    assert_true(e.shape.nanos > 1 && e.ns < e.plain_ns);
    assert_true(hzp_plan_shape_parts(&e.shape, HZP_STAGE_ATTEND) <
                hzp_plan_shape_parts(&e.shape, HZP_STAGE_REST));
    assert_int_equal(hzp_rig_serve(p.rig, 0, 16, 64, 0), HZP_OK);
    hzp_rig_build(p.rig, &e.shape, 0, 0, &plan);
    assert_int_equal(hzp_plan_check(&plan, &text), HZP_OK);
    hzp_plan_fini(&plan);
    hzp_search_destroy(s);
    hzp_tables_fini(&t);
    paper_close(&p);
}

/* Lanes of 6 and 2 cores that share all 8: ops keep to what their lane had, but for one kind. */
static void lanes_share_cores(void **state)
{
    struct hzp_vary v = {.seed = 1, .rows = 64, .overlap = 8};
    struct hzp_plan_shape shape = {.nanos = 2, .weight = {1, 1}}, with;
    shape.lane[1][HZP_KIND_DECODE] = HZP_LANE_MEMORY;
    assert_false(hzp_vary_shared(&v, &shape, HZP_KIND_PRODUCT, &with));
    shape.share[HZP_LANE_COMPUTE] = 6;
    shape.share[HZP_LANE_MEMORY] = 2;
    assert_true(hzp_vary_shared(&v, &shape, HZP_KIND_PRODUCT, &with));
    assert_int_equal(with.share[HZP_LANE_COMPUTE], 8);
    assert_int_equal(with.share[HZP_LANE_MEMORY], 8);
    assert_int_equal(with.cores[1][HZP_KIND_DECODE], 2);
    assert_int_equal(with.cores[0][HZP_KIND_DECODE], 6);
    assert_int_equal(with.cores[0][HZP_KIND_PRODUCT], 0);
    assert_int_equal(hzp_plan_shape_check(&with, NULL), HZP_OK);
    assert_false(hzp_vary_shared(&v, &with, HZP_KIND_PRODUCT, &shape)); /* they share already */
    int32_t limited = 0, possible = 0;
    for (int i = 0; i < 2000; i++) {
        struct hzp_plan_shape now = with;
        hzp_vary_change(&v, &now);
        possible += hzp_plan_shape_check(&now, NULL) >= 0;
        limited += memcmp(now.cores[0], with.cores[0], sizeof(now.cores[0])) != 0;
        for (int32_t n = 0; n < now.nanos; n++)
            for (int k = 0; k < HZP_KIND_COUNT; k++)
                assert_in_range(now.cores[n][k], 0, 8);
    }
    assert_true(possible > 1900 && limited > 50);
}

/* The link's rate and latency from the times of its all-reduces. */
static void link_of_the_tables(void **state)
{
    struct hzp_tables t;
    double rate, latency;
    hzp_tables_init(&t);
    t.threads = t.cores[0] = t.shares = 1;
    assert_false(hzp_tables_link(&t, &rate, &latency));
    plant_link(&t, 10);
    assert_true(hzp_tables_link(&t, &rate, &latency));
    assert_true(fabs(rate - 1e8) < 1e5 && fabs(latency - 1000) < 1);
    hzp_tables_fini(&t);
}

/* Where the whole device is little faster than half of it, training beside serving trains more;
 * where it is twice as fast, and concurrent ops slow each other down, training takes turns. */
static void training_beside_or_in_turn(void **state)
{
    struct paper p;
    struct hzp_search *s;
    paper_open(&p, "sim", "issue_ns=0", 64);
    for (int speedup = 1; speedup <= 2; speedup++) {
        struct hzp_tables t;
        plant(&t, p.rig, speedup);
        for (int a = 0; speedup == 2 && a < HZP_CLASS_COUNT; a++)
            for (int b = a; b < HZP_CLASS_COUNT; b++)
                hzp_tables_set_rate(&t, &(struct hzp_rate){(uint8_t)a, (uint8_t)b, 1, 1, 0.7, 0.7});
        struct hzp_plan_entry e = search(&p, &t, 8, 0, 64, &s);
        assert_true(e.ns <= 1.01 * e.goal_ns && e.plain_ns <= 1.01 * e.goal_ns);
        assert_true(e.rate >= e.plain_rate && e.plain_rate > 0.49 && e.plain_rate <= 0.5);
        bool apart = false;
        for (int k = 0; k < HZP_KIND_COUNT; k++)
            apart |= e.shape.train_lane[k] != e.shape.lane[0][k];
        assert_int_equal(apart, speedup == 1);
        if (speedup == 1)
            assert_true(e.rate > 1.4 * e.plain_rate);
        hzp_search_destroy(s);
        hzp_tables_fini(&t);
    }
    paper_close(&p);
}

/* Training gets the time the split would give it: a share of a usual step on average, however
 * long its items are; the same in a step with prompts; and with a goal, the time it leaves, in
 * whole items. */
static void training_gets_what_the_split_gives(void **state)
{
    struct paper p;
    struct hzp_tables t;
    struct hzp_search *s;
    paper_open(&p, "sim", "issue_ns=0", 64);
    plant(&t, p.rig, 1);
    double serve = 0;
    for (int i = 0; i < 4; i++) { /* down to shares so small that no item fits into a step */
        double share = i == 0 ? 1 : i == 1 ? 0.5 : i == 2 ? 0.1 : 0.001;
        struct hzp_plan_entry e = search_as(&p, &t, share, 0, 0, 8, 0, 64, &s);
        double wanted = share / (1 + share);
        if (e.plain_rate < 0.98 * wanted || e.plain_rate > wanted * 1.001)
            fail_msg("share %g: rate %g, wanted %g", share, e.plain_rate, wanted);
        serve = e.goal_ns / (1 + share);
        hzp_search_destroy(s);
    }
    struct hzp_plan_entry e = search_as(&p, &t, 0.5, 0, 0, 8, 64, 64, &s);
    double train = 0.5 * serve; /* of a step without prompts */
    assert_true(e.goal_ns > 2 * (serve + train));
    assert_true(fabs(e.plain_rate - train / e.goal_ns) < 0.02 * e.plain_rate);
    hzp_search_destroy(s);
    e = search_as(&p, &t, 0.5, 0, 0, 0, 64, 64, &s);
    assert_true(e.plain_rate > 0);
    hzp_search_destroy(s);
    e = search_as(&p, &t, 0, 0, 40, 8, 0, 64, &s); /* no share: no training time in any placement */
    assert_true(e.rate == 0 && e.plain_rate == 0 && hzp_plan_shape_plain(&e.shape));
    hzp_search_destroy(s);
    e = search_as(&p, &t, 0.5, 3 * serve, 0, 8, 0, 64, &s); /* with a goal the share is ignored */
    assert_true(e.plain_rate > 0.5 && e.plain_rate <= 2.0 / 3 && e.plain_ns <= 3 * serve);
    hzp_search_destroy(s);
    e = search_as(&p, &t, 0.5, 1.3 * serve, 0, 8, 0, 64, &s); /* serving takes three quarters */
    assert_true(e.plain_rate == 0);
    hzp_search_destroy(s);
    hzp_tables_fini(&t);
    paper_close(&p);
}

/* Products whose cost is that of reading the weights: where nothing overlaps, training rides,
 * and its part of a step is the cost of its own rows. */
static void riding_wins(void **state)
{
    struct paper p;
    struct hzp_tables t;
    struct hzp_search *s;
    struct hzp_plan plan;
    paper_open(&p, "sim", "issue_ns=0", 64);
    plant(&t, p.rig, 2);
    for (int a = 0; a < HZP_CLASS_COUNT; a++)
        for (int b = a; b < HZP_CLASS_COUNT; b++)
            hzp_tables_set_rate(&t, &(struct hzp_rate){(uint8_t)a, (uint8_t)b, 1, 1, 0.7, 0.7});
    struct hzp_plan_entry e = search(&p, &t, 8, 0, 64, &s);
    assert_int_equal(e.shape.ride, 64);
    assert_int_equal(e.shape.nanos, 1);
    assert_true(e.rate > 1.02 * e.plain_rate);
    hzp_search_destroy(s);

    /* A rig without room for riding rows never rides. */
    struct hzp_train_space_config *space = &p.rig->train->config;
    space->ride_rows = 0;
    e = search(&p, &t, 8, 0, 64, &s);
    assert_int_equal(e.shape.ride, 0);
    hzp_search_destroy(s);
    space->ride_rows = 80;

    hzp_plan_init(&plan);
    struct hzp_plan_shape shape = hzp_plan_sequential;
    shape.ride = 64;
    hzp_rig_chunks(p.rig, 32);
    assert_int_equal(hzp_rig_train(p.rig, 64), HZP_OK);
    hzp_rig_build(p.rig, &shape, 0, p.rig->chain.items, &plan);
    int32_t both = 0, last = -1;
    for (int32_t i = 0; i < plan.items; i++)
        if (plan.item[i].rides) {
            both++;
            last = HZP_MAX(last, plan.item[i].layer);
            assert_int_equal(plan.item[i].rides, 32);
        }
    assert_int_equal(last, p.m.model->config->layers - 1);
    assert_int_equal(both, 7 * p.m.model->config->layers);
    hzp_plan_fini(&plan);
    hzp_tables_fini(&t);
    paper_close(&p);
}

/* Whatever the tables say, the resulting plans are free of races. */
static void plans_pass_the_checker(void **state)
{
    static const int32_t step[][3] = {{1, 0, 0},  {16, 0, 0},  {0, 64, 0}, {5, 33, 0},
                                      {8, 0, 64}, {0, 16, 64}, {3, 60, 64}};
    struct paper p;
    struct hzp_plan plan;
    struct hzp_err_text text = {0};
    hzp_plan_init(&plan);
    paper_open(&p, "sim", "issue_ns=0", 64);
    for (int speedup = 1; speedup <= 2; speedup++)
        for (int i = 0; i < HZP_COUNT(step); i++) {
            struct hzp_tables t;
            struct hzp_search *s;
            plant(&t, p.rig, speedup);
            struct hzp_plan_entry e = search(&p, &t, step[i][0], step[i][1], step[i][2], &s);
            assert_int_equal(hzp_plan_shape_check(&e.shape, NULL), HZP_OK);
            hzp_rig_build(p.rig, &e.shape, 0, p.rig->chain.items, &plan);
            if (hzp_plan_check(&plan, &text) < 0)
                fail_msg("%s", text.text);
            hzp_search_destroy(s);
            hzp_tables_fini(&t);
        }
    hzp_plan_fini(&plan);
    paper_close(&p);
}

/* A plan that wins by prediction but not on the device is not kept. */
static void runs_decide(void **state)
{
    struct paper p;
    struct hzp_tables t;
    struct hzp_search *s;
    struct hzp_exec *exec;
    paper_open(&p, "sim", "flops=1e15,bytes=1e8,issue_ns=0", 64);
    plant(&t, p.rig, 1);
    assert_int_equal(hzp_exec_create(p.m.dev, &exec), HZP_OK);
    struct hzp_plan_entry e = search(&p, &t, 8, 64, 0, &s);
    assert_false(hzp_plan_shape_plain(&e.shape));
    assert_int_equal(hzp_search_confirm(s, exec, 16, 1, &e),
                     HZP_OK); /* one nanosecond is too little */
    assert_true(e.confirmed == 0 && !hzp_plan_shape_plain(&e.shape) && e.ns < e.plain_ns);
    assert_int_equal(hzp_search_confirm(s, exec, 16, 0, &e), HZP_OK);
    assert_true(e.confirmed > 0 && e.confirmed < 1.02);
    assert_true(hzp_plan_shape_plain(&e.shape));
    assert_true(e.ns == e.plain_ns);
    hzp_search_destroy(s);
    e = search(&p, &t, 8, 0, 64, &s); /* training beside serving: predicted to cost nothing */
    assert_true(e.rate > 1.4 * e.plain_rate);
    assert_int_equal(hzp_search_confirm(s, exec, 16, 0, &e), HZP_OK);
    assert_true(e.confirmed < 1.2);
    hzp_search_destroy(s);
    hzp_exec_destroy(exec);
    hzp_tables_fini(&t);
    paper_close(&p);
}

static void set(struct hzp_plan_table *table, int32_t decode, int32_t prefill, int32_t train)
{
    struct hzp_plan_entry e = {decode, prefill, train, hzp_plan_sequential, 1, 1, 1, 1, 0, 0, 0, 0};
    assert_int_equal(hzp_plan_table_set(table, &e, NULL), HZP_OK);
}

static void found(const struct hzp_plan_table *t, int32_t decode, int32_t prefill, int32_t train,
                  int32_t as_decode, int32_t as_prefill, int32_t as_train)
{
    const struct hzp_plan_entry *e = hzp_plan_table_find(t, decode, prefill, train);
    assert_non_null(e);
    assert_int_equal(e->decode, as_decode);
    assert_int_equal(e->prefill, as_prefill);
    assert_int_equal(e->train, as_train);
}

static void looking_up(void **state)
{
    struct hzp_plan_table t;
    hzp_plan_table_init(&t);
    hzp_plan_table_index(&t);
    assert_null(hzp_plan_table_find(&t, 1, 2, 3));
    set(&t, 8, 0, 0);
    set(&t, 32, 0, 0);
    set(&t, 8, 64, 0);
    set(&t, 0, 64, 0);
    set(&t, 8, 0, 512);
    set(&t, 8, 0, 512); /* replaces */
    assert_int_equal(t.entries, 5);
    hzp_plan_table_index(&t);
    found(&t, 8, 0, 0, 8, 0, 0);
    found(&t, 1, 0, 0, 8, 0, 0);
    found(&t, 15, 0, 0, 8, 0, 0);
    found(&t, 17, 0, 0, 32, 0, 0); /* by ratio */
    found(&t, 4000, 0, 0, 32, 0, 0);
    found(&t, 10, 1, 0, 8, 64, 0);
    found(&t, 0, 9999, 0, 0, 64, 0);
    found(&t, 8, 0, 100, 8, 0, 512);
    found(&t, 32, 0, 100, 8, 0, 512); /* no entry in these buckets: the nearest that trains */
    found(&t, 30, 70, 0, 8, 64, 0);
    for (int32_t i = 0; i < 20; i++) { /* more buckets than there is room for */
        struct hzp_plan_entry e = {100 + i, 0, 0, hzp_plan_sequential, 1, 1, 1, 1, 0, 0, 0, 0};
        int r = hzp_plan_table_set(&t, &e, NULL);
        assert_int_equal(r, t.buckets[0] < HZP_BUCKETS_MAX || i < 9 ? HZP_OK : HZP_EBUSY);
    }
    hzp_plan_table_index(&t);
    found(&t, 8, 0, 0, 8, 0, 0);
    struct hzp_plan_entry bad = {1, 0, 0, hzp_plan_sequential, 1, 1, 1, 1, 0, 0, 0, 0};
    bad.shape.nanos = 0;
    assert_int_equal(hzp_plan_table_set(&t, &bad, NULL), HZP_EINVAL);
    hzp_plan_table_fini(&t);
}

/* An entry that was not run, or lost, is not used. */
static void unproven(void **state)
{
    struct hzp_plan_table t;
    hzp_plan_table_init(&t);
    struct hzp_plan_entry e = {8, 0, 0, hzp_plan_sequential, 1, 2, 1, 2, 0.5, 0.25, 3, 1.5};
    e.shape.nanos = 2;
    e.shape.weight[1] = 1;
    e.shape.lane[1][0] = HZP_LANE_MEMORY;
    assert_int_equal(hzp_plan_table_set(&t, &e, NULL), HZP_OK);
    e.decode = 16;
    e.confirmed = 0;
    assert_int_equal(hzp_plan_table_set(&t, &e, NULL), HZP_OK);
    hzp_plan_table_index(&t);
    hzp_plan_table_drop_unproven(&t);
    assert_int_equal(hzp_plan_table_find(&t, 8, 0, 0)->shape.nanos, 2);
    const struct hzp_plan_entry *dropped = hzp_plan_table_find(&t, 16, 0, 0);
    assert_true(hzp_plan_shape_plain(&dropped->shape));
    assert_true(dropped->ns == 2 && dropped->serve_ns == 2 && dropped->rate == 0.25);
    hzp_plan_table_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_wins),
        cmocka_unit_test(overlap_loses),
        cmocka_unit_test(exchanges_have_a_core),
        cmocka_unit_test(exchanges_overlap_or_not),
        cmocka_unit_test(stages_cut_apart),
        cmocka_unit_test(lanes_share_cores),
        cmocka_unit_test(link_of_the_tables),
        cmocka_unit_test(training_beside_or_in_turn),
        cmocka_unit_test(training_gets_what_the_split_gives),
        cmocka_unit_test(riding_wins),
        cmocka_unit_test(plans_pass_the_checker),
        cmocka_unit_test(runs_decide),
        cmocka_unit_test(looking_up),
        cmocka_unit_test(unproven),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
