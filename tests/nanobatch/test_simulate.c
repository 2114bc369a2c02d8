/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator: plans whose duration can be computed by hand; and on the simulated device,
 * measured and then predicted, plans of one lane to the nanosecond. */
#include "device/backend.h"
#include "nanobatch/search/simulate.h"

#include "device/philox.h"
#include "nanobatch/run/exec.h"
#include "nanobatch/search/measure.h"
#include "paper.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float memory[4][64];

/* Tables in which fills take 10 ns an element on the whole device, 20 on half of it; casts
 * likewise. */
static void hand_tables(struct hzp_tables *t)
{
    hzp_tables_init(t);
    t->threads = 2;
    t->shares = 2;
    t->cores[0] = 1;
    t->cores[1] = 2;
    struct hzp_mat m = {memory[0], 1, 64, 64, HZP_F32};
    struct hzp_fill_args fill = {.y = m};
    struct hzp_cast_args cast = {.x = m, .y = m};
    for (int share = 0; share < 2; share++) {
        struct hzp_op_key key;
        struct hzp_op_size size;
        hzp_op_describe(HZP_OP_fill, &fill, &key, &size);
        for (int n = 1; n <= 64; n += 63) {
            size.x = n;
            hzp_tables_set(t, &key, &size, share, 10.0 * n * (2 - share));
        }
        hzp_op_describe(HZP_OP_cast, &cast, &key, &size);
        hzp_tables_set(t, &key, &size, share, 1000.0 * (2 - share));
    }
}

static void add_fill(struct hzp_plan *p, enum hzp_lane_name lane, int n)
{
    HZP_PLAN_ADD(p, fill, lane, .y = {memory[lane], 1, n, n, HZP_F32});
}

static void add_cast(struct hzp_plan *p, enum hzp_lane_name lane)
{
    HZP_PLAN_ADD(p, cast, lane, .x = {memory[2], 1, 64, 64, HZP_F32},
                 .y = {memory[3], 1, 64, 64, HZP_F32});
}

static double simulated(const struct hzp_tables *t, const struct hzp_plan *plan,
                        struct hzp_simulated *ret)
{
    struct hzp_simulator *sim;
    hzp_simulator_create(t, &sim);
    hzp_simulate(sim, plan, ret);
    hzp_simulator_destroy(sim);
    return ret->ns;
}

static void near(double is, double should)
{
    if (!(fabs(is - should) < 1e-3)) {
        print_error("%.9g is not %.9g\n", is, should);
        fail();
    }
}

static void one_lane(void **state)
{
    struct hzp_tables t;
    struct hzp_plan plan;
    struct hzp_simulated r;
    hand_tables(&t);
    t.gap_inline_ns = 5;
    hzp_plan_init(&plan);
    add_fill(&plan, HZP_LANE_COMPUTE, 10);
    add_fill(&plan, HZP_LANE_COMPUTE, 20);
    plan.tenant = HZP_TENANT_TRAIN;
    add_cast(&plan, HZP_LANE_COMPUTE);
    near(simulated(&t, &plan, &r), 100 + 5 + 200 + 5 + 1000);
    near(r.serve_end_ns, 305);
    near(r.train_end_ns, 1310);
    near(r.train_alone_ns, 1000);
    near(r.busy_ns[HZP_LANE_COMPUTE], 1300);
    hzp_plan_fini(&plan);
    hzp_tables_fini(&t);
}

static void two_lanes(void **state)
{
    struct hzp_tables t;
    struct hzp_plan plan;
    struct hzp_simulated r;
    hand_tables(&t);
    hzp_plan_init(&plan);
    add_fill(&plan, HZP_LANE_COMPUTE, 60); /* 1200 on half of the device */
    add_cast(&plan, HZP_LANE_MEMORY);      /* 2000 */
    near(simulated(&t, &plan, &r), 2000);
    /* A fill next to a cast at half its speed: alone 1200, so until 2400 if the cast ran as long;
     * the cast, undisturbed, ends at 2000, when 200 of the fill are left. */
    hzp_tables_set_rate(&t, &(struct hzp_rate){HZP_CLASS_UPDATE, HZP_CLASS_ROWS, 1, 1, 0.5, 1});
    near(simulated(&t, &plan, &r), 2200);
    /* Both disturbed: the fill ends at 2400, the cast has done 1200 of 2000 then. */
    hzp_tables_set_rate(&t, &(struct hzp_rate){HZP_CLASS_UPDATE, HZP_CLASS_ROWS, 1, 1, 0.5, 0.5});
    near(simulated(&t, &plan, &r), 3200);
    hzp_plan_fini(&plan);
    hzp_tables_fini(&t);
}

/* Two lanes that share both cores: items are limited to fewer, or slow each other down. */
static void shared_cores(void **state)
{
    struct hzp_tables t;
    struct hzp_plan plan;
    struct hzp_simulated r;
    hand_tables(&t);
    hzp_plan_init(&plan);
    add_fill(&plan, HZP_LANE_COMPUTE, 60); /* 600 on both cores, 1200 on one */
    add_cast(&plan, HZP_LANE_MEMORY);      /* 1000, 2000 */
    plan.share[HZP_LANE_COMPUTE] = plan.share[HZP_LANE_MEMORY] = 2;
    /* Each at half its speed until 1200, when 400 of the cast are left. */
    near(simulated(&t, &plan, &r), 1600);
    plan.item[0].cores = plan.item[1].cores = 1;
    near(simulated(&t, &plan, &r), 2000);
    /* Three cores of two: until 900 the cast has done 600 of its 2000. */
    plan.item[0].cores = 0;
    near(simulated(&t, &plan, &r), 2300);
    /* One behind the other: the second has both cores again. */
    plan.item[0].cores = 1;
    plan.item[1].cores = 0;
    hzp_plan_wait(&plan, 0);
    near(simulated(&t, &plan, &r), 2200);
    hzp_plan_fini(&plan);
    hzp_tables_fini(&t);
}

/* Times so large that an item's own time vanishes beside them in rounding: the item ends all the
   same. */
static void absurd_times(void **state)
{
    struct hzp_tables t;
    struct hzp_plan plan;
    struct hzp_simulated r;
    hand_tables(&t);
    t.gap_ns = t.gap_inline_ns = 1e18;
    t.handover_ns = 1e17;
    hzp_tables_set_rate(&t, &(struct hzp_rate){HZP_CLASS_ROWS, HZP_CLASS_UPDATE, 1, 1, 0.3, 0.7});
    hzp_plan_init(&plan);
    for (int i = 0; i < 4; i++) {
        add_fill(&plan, i % 2 ? HZP_LANE_MEMORY : HZP_LANE_COMPUTE, 7);
        add_cast(&plan, HZP_LANE_COMPUTE);
    }
    assert_true(simulated(&t, &plan, &r) > 1e18);
    hzp_plan_fini(&plan);
    hzp_tables_fini(&t);
}

static void handing_over(void **state)
{
    struct hzp_tables t;
    struct hzp_plan plan;
    struct hzp_simulated r;
    hand_tables(&t);
    t.handover_ns = 7;
    t.gap_ns = 3;
    hzp_plan_init(&plan);
    add_cast(&plan, HZP_LANE_MEMORY);      /* until 2000 */
    add_fill(&plan, HZP_LANE_COMPUTE, 10); /* until 200 */
    add_fill(&plan, HZP_LANE_COMPUTE, 10);
    hzp_plan_wait(&plan, 0);              /* polls: 2007 to 2207 */
    add_fill(&plan, HZP_LANE_MEMORY, 20); /* 2003 to 2403 */
    near(simulated(&t, &plan, &r), 2403);
    near(r.busy_ns[HZP_LANE_COMPUTE], 400);
    hzp_plan_wait(&plan, 2); /* now 2214 to 2614 */
    near(simulated(&t, &plan, &r), 2614);
    hzp_plan_fini(&plan);
    hzp_tables_fini(&t);
}

static void issuing(void **state)
{
    struct hzp_tables t;
    struct hzp_plan plan;
    struct hzp_simulated r;
    hand_tables(&t);
    t.issue_ns = 50;
    t.led = true;
    hzp_plan_init(&plan);
    add_fill(&plan, HZP_LANE_COMPUTE, 10); /* begins once all is issued: at 100, until 300 */
    add_fill(&plan, HZP_LANE_MEMORY, 5);   /* begins at 100 too, its own issue; until 200 */
    near(simulated(&t, &plan, &r), 300);
    add_fill(&plan, HZP_LANE_MEMORY, 1); /* one more issue */
    near(simulated(&t, &plan, &r), 350);
    hzp_plan_fini(&plan);
    hzp_tables_fini(&t);
}

static int measure_all(struct paper *p, struct hzp_tables *t)
{
    struct hzp_measure *m;
    char what[64];
    HZP_TRY(hzp_measure_create(p->rig, t, &m, NULL));
    int r = HZP_OK;
    while (r == HZP_OK && t->parts_done < t->parts) {
        assert_true(strlen(hzp_measure_what(m, what)) > 3);
        r = hzp_measure_next(m);
    }
    hzp_measure_destroy(m);
    return r;
}

static double run(struct paper *p, struct hzp_exec *exec, struct hzp_plan *plan)
{
    struct hzp_exec_times times;
    uint64_t begin = hzp_device_now_ns(p->m.dev);
    assert_int_equal(hzp_exec_run(exec, plan, NULL, &times), HZP_OK);
    return (double)(hzp_device_now_ns(p->m.dev) - begin);
}

/* Every size that is asked for was measured, so nothing is interpolated. */
static void as_the_simulated_device(void **state)
{
    static const int32_t step[][3] = {{8, 0, 0},  {1, 0, 0},  {4, 0, 64},  {16, 0, 0},
                                      {0, 64, 0}, {0, 16, 0}, {0, 32, 64}, {0, 48, 0}};
    struct paper p;
    struct hzp_tables t;
    struct hzp_plan plan;
    struct hzp_exec *exec;
    struct hzp_simulated r;
    hzp_tables_init(&t);
    hzp_plan_init(&plan);
    paper_open(&p, "sim", "flops=1e9,bytes=1e8,issue_ns=0", 64);
    assert_int_equal(measure_all(&p, &t), HZP_OK);
    assert_true(t.curves > 20);
    assert_false(t.led);
    near(t.handover_ns, 0);
    near(hzp_tables_stretch(&t), 1);
    assert_int_equal(hzp_exec_create(p.m.dev, &exec), HZP_OK);
    for (int i = 0; i < HZP_COUNT(step); i++) {
        assert_int_equal(hzp_rig_serve(p.rig, step[i][0], 128, step[i][1], 0), HZP_OK);
        assert_int_equal(hzp_rig_train(p.rig, step[i][2]), HZP_OK);
        hzp_rig_build(p.rig, &hzp_plan_sequential, 0, p.rig->chain.items, &plan);
        double predicted = simulated(&t, &plan, &r), measured = run(&p, exec, &plan);
        if (fabs(predicted - measured) > 1 + 1e-6 * measured) {
            print_error("step %d: predicted %.1f, took %.1f\n", i, predicted, measured);
            fail();
        }
    }
    hzp_exec_destroy(exec);
    paper_close(&p);
    hzp_plan_fini(&plan);
    hzp_tables_fini(&t);
}

/* Weights read again: products of the second nano-batch when layers alternate, of none in
   chains. */
static void weights_read_again(void **state)
{
    struct paper p;
    struct hzp_plan plan;
    hzp_plan_init(&plan);
    paper_open(&p, "sim", "issue_ns=0", 0);
    for (int order = 0; order < 2; order++) {
        struct hzp_plan_shape shape = hzp_plan_sequential;
        shape.nanos = 2;
        shape.weight[1] = 1;
        shape.order = (uint8_t)order;
        assert_int_equal(hzp_rig_serve(p.rig, 8, 16, 0, 0), HZP_OK);
        hzp_rig_build(p.rig, &shape, 0, 0, &plan);
        bool *again = calloc((size_t)plan.items, sizeof(*again));
        int first = 0, second = 0;
        hzp_plan_find_again(&plan, again);
        for (int32_t i = 0; i < plan.items; i++)
            if (again[i])
                *(plan.item[i].row0 ? &second : &first) += 1;
        assert_int_equal(first, 0);
        assert_int_equal(second, order == HZP_ORDER_LAYERS ? 4 * 4 : 0);
        free(again);
    }
    paper_close(&p);
    hzp_plan_fini(&plan);
}

static int any_share(struct hzp_lane *lane, int cores)
{
    return HZP_OK;
}

/* A device of many cores, the longest micro-batch and every size of step: any number of parts
 * must work. */
static void many_parts(void **state)
{
    struct paper p;
    struct hzp_tables t;
    struct hzp_measure *m;
    struct hzp_rig *rig;
    struct hzp_train_space_config space = {
        .rows_max = 1 << 20, .head_rows = 16, .moment_type = HZP_F32};
    hzp_tables_init(&t);
    paper_open(&p, "sim", "issue_ns=0", 0);
    struct hzp_backend backend = *p.m.dev->backend;
    const struct hzp_backend *sim = p.m.dev->backend;
    backend.lane_set_share = any_share;
    p.m.dev->backend = &backend;
    p.m.dev->threads = 132;
    p.m.model->positions = 1 << 20;
    struct hzp_rig_config config = p.rig->config;
    config.decode_max = 256;
    config.prefill_max = 4096;
    config.depth_max = 1024;
    config.train = &space;
    assert_int_equal(hzp_rig_create(&config, &rig), HZP_OK);
    assert_int_equal(hzp_measure_create(rig, &t, &m, NULL), HZP_OK);
    assert_int_equal(t.shares, HZP_SHARES_MAX);
    assert_true(t.parts > 1152);
    hzp_measure_destroy(m);
    hzp_rig_destroy(rig);
    p.m.dev->backend = sim;
    paper_close(&p);
    hzp_tables_fini(&t);
}

/* Keys and values so large that few pages fit (many KV heads): everything measurable is
 * measured, with shorter contexts. */
static void few_pages(void **state)
{
    struct paper p;
    struct hzp_tables t;
    struct hzp_rig *rig;
    hzp_tables_init(&t);
    paper_open(&p, "sim", "issue_ns=0", 0);
    struct hzp_rig_config config = p.rig->config;
    config.kv_tokens = 300;
    hzp_rig_destroy(p.rig);
    assert_int_equal(hzp_rig_create(&config, &rig), HZP_OK);
    p.rig = rig;
    assert_int_equal(measure_all(&p, &t), HZP_OK);
    assert_true(t.curves > 10);
    paper_close(&p);
    hzp_tables_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_lane),
        cmocka_unit_test(two_lanes),
        cmocka_unit_test(shared_cores),
        cmocka_unit_test(absurd_times),
        cmocka_unit_test(handing_over),
        cmocka_unit_test(issuing),
        cmocka_unit_test(as_the_simulated_device),
        cmocka_unit_test(weights_read_again),
        cmocka_unit_test(many_parts),
        cmocka_unit_test(few_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
