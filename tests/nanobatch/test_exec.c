/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes of an executor: opened when a plan needs them, counted in the memory plan, and given a
 * share of the device only if they compute. */
#include "device/backend.h"
#include "nanobatch/plan/plan_table.h"
#include "nanobatch/run/exec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The CPU backend, with its lane calls observed. */
static struct hzp_backend backend;
static int opened[HZP_BOUND_COPY + 1], share_max;

static int watched_open(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret)
{
    opened[use]++;
    return hzp_backend_cpu.lane_open(dev, use, ret);
}

static int watched_share(struct hzp_lane *lane, int units)
{
    share_max = HZP_MAX(share_max, units);
    return hzp_backend_cpu.lane_set_share(lane, units);
}

static size_t some_bytes(struct hzp_device *dev, enum hzp_bound use)
{
    return (size_t)1 << 4 * use;
}

static struct hzp_device *open_device(void)
{
    struct hzp_device *dev;
    assert_int_equal(
        hzp_device_open(&(struct hzp_device_config){.name = "cpu", .threads = 2}, &dev, NULL),
        HZP_OK);
    backend = hzp_backend_cpu;
    backend.lane_open = watched_open;
    backend.lane_set_share = watched_share;
    backend.lane_bytes = some_bytes;
    dev->backend = &backend;
    memset(opened, 0, sizeof(opened));
    share_max = 0;
    return dev;
}

static void add_fill(struct hzp_plan *plan, enum hzp_tenant tenant, enum hzp_lane_name lane,
                     float *to, float value)
{
    struct hzp_mat y = {to, 1, 4, 4, HZP_F32};
    plan->tenant = tenant;
    HZP_PLAN_ADD(plan, fill, lane, .y = y, .value = value);
}

static void lanes_open_when_needed(void **state)
{
    struct hzp_device *dev = open_device();
    struct hzp_exec *exec;
    struct hzp_exec_times times;
    struct hzp_plan plan;
    float x[4], y[4];
    assert_int_equal(hzp_exec_create(dev, &exec), HZP_OK);
    assert_int_equal(opened[HZP_BOUND_COMPUTE], 1);
    assert_int_equal(opened[HZP_BOUND_MEMORY] + opened[HZP_BOUND_COPY], 0);
    assert_int_equal(hzp_exec_open_lanes(exec, 1u << HZP_LANE_TRAIN | 1u << HZP_LANE_COMPUTE),
                     HZP_OK);
    assert_int_equal(opened[HZP_BOUND_COMPUTE], 2); /* training's lane computes too */
    hzp_plan_init(&plan);
    add_fill(&plan, HZP_TENANT_SERVE, HZP_LANE_COMPUTE, x, 1);
    add_fill(&plan, HZP_TENANT_SERVE, HZP_LANE_MEMORY, y, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(hzp_exec_run(exec, &plan, NULL, &times), HZP_OK);
    assert_true(x[3] == 1 && y[3] == 2);
    assert_int_equal(opened[HZP_BOUND_MEMORY], 1);
    assert_int_equal(opened[HZP_BOUND_NETWORK] + opened[HZP_BOUND_COPY], 0);
    hzp_plan_fini(&plan);
    hzp_exec_destroy(exec);
    hzp_device_close(dev);
}

static void memory_of_the_lanes_named(void **state)
{
    struct hzp_device *dev = open_device();
    struct hzp_plan_shape shape = hzp_plan_sequential;
    struct hzp_plan_table table;
    assert_int_equal(hzp_exec_bytes(dev, 0), 1);
    assert_int_equal(hzp_plan_shape_lanes(NULL), 0);
    assert_int_equal(hzp_exec_bytes(dev, hzp_plan_shape_lanes(&shape)), 1);
    shape.lane[0][HZP_KIND_DECODE] = HZP_LANE_MEMORY;
    shape.lane[1][HZP_KIND_DECODE] = HZP_LANE_COPY; /* for a nano-batch that does not exist */
    assert_int_equal(hzp_exec_bytes(dev, hzp_plan_shape_lanes(&shape)), 1 + 0x10);
    shape.train_lane[HZP_KIND_ROWS] = HZP_LANE_TRAIN;
    assert_int_equal(hzp_exec_bytes(dev, hzp_plan_shape_lanes(&shape)), 2 + 0x10);
    hzp_plan_table_init(&table);
    assert_int_equal(hzp_plan_table_lanes(&table), 0);
    struct hzp_plan_entry entry = {.decode = 1, .shape = shape};
    assert_int_equal(hzp_plan_table_set(&table, &entry, NULL), HZP_OK);
    assert_int_equal(hzp_plan_table_lanes(&table), hzp_plan_shape_lanes(&shape));
    hzp_plan_table_fini(&table);
    hzp_device_close(dev);
}

/* A single lane has the whole device; two that compute share it. */
static void lanes_share_the_device(void **state)
{
    struct hzp_device *dev = open_device();
    struct hzp_exec *exec;
    struct hzp_exec_times times;
    struct hzp_plan plan;
    float x[4], y[4];
    assert_int_equal(hzp_exec_create(dev, &exec), HZP_OK);
    hzp_plan_init(&plan);
    add_fill(&plan, HZP_TENANT_SERVE, HZP_LANE_COMPUTE, x, 1);
    assert_false(hzp_exec_queues(exec, &plan));
    assert_int_equal(hzp_exec_run(exec, &plan, NULL, &times), HZP_OK);
    assert_true(x[3] == 1);
    assert_int_equal(share_max, 0);
    assert_true(times.end_ns[HZP_TENANT_SERVE] > 0 && times.end_ns[HZP_TENANT_TRAIN] == 0);
    const struct hzp_profile *profile = hzp_exec_profile(exec);
    assert_int_equal(profile->of[HZP_TENANT_SERVE][HZP_OP_fill].runs, 1);
    assert_int_equal(profile->of[HZP_TENANT_TRAIN][HZP_OP_fill].runs, 0);

    /* Two lanes: an item waits for what it needs from the other one. */
    add_fill(&plan, HZP_TENANT_TRAIN, HZP_LANE_TRAIN, y, 3);
    add_fill(&plan, HZP_TENANT_SERVE, HZP_LANE_COMPUTE, y, 4);
    hzp_plan_wait(&plan, 1);
    assert_int_equal(hzp_plan_check(&plan, NULL), HZP_OK);
    assert_true(hzp_exec_queues(exec, &plan));
    assert_int_equal(hzp_exec_run(exec, &plan, NULL, &times), HZP_OK);
    assert_int_equal(share_max, 1);
    assert_true(y[3] == 4);
    assert_int_equal(profile->of[HZP_TENANT_TRAIN][HZP_OP_fill].runs, 1);
    hzp_plan_fini(&plan);
    hzp_exec_destroy(exec);
    hzp_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_open_when_needed),
        cmocka_unit_test(memory_of_the_lanes_named),
        cmocka_unit_test(lanes_share_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
