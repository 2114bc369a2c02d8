/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_link_sim.c - transfers on the virtual clock: how long each takes, beside ops
 * and behind one another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/device.h"
#include "tests/links/links.h"

static struct hzp_device *dev;
static struct hzp_lane *lane;
static struct hzp_fence *fence;
static struct hzp_link *link64;
static struct hzp_err_text why;

/* 64 ranks, 8 in a node; 10 bytes a nanosecond in a node, 1 between nodes; latency 100 ns. */
static const struct hzp_link_sim config = {
    .rank = 9, .ranks = 64, .node_ranks = 8, .rate_node = 10e9, .rate_net = 1e9, .latency_ns = 100};

static int setup(void **state)
{
    setenv("HZP_SIM", "flops=1e9,bytes=1e9,copy=1e9,issue_ns=0,mem=1e9", 1);
    if (hzp_device_open(&(struct hzp_device_config){.name = "sim"}, &dev, NULL) < 0 ||
        hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane) < 0 || hzp_fence_open(dev, &fence) < 0)
        return -1;
    return hzp_link_open_sim(&config, dev, &link64, NULL);
}

static int teardown(void **state)
{
    hzp_link_close(link64);
    hzp_fence_close(fence);
    hzp_lane_close(lane);
    hzp_device_close(dev);
    return 0;
}

static char area[1 << 20];

/* A gather of n bytes a member; large, so nothing moves. */
static hzp_ticket gather(int group, size_t n)
{
    hzp_ticket ticket = 0;
    struct hzp_transfer t = {.op = HZP_ALL_GATHER, .group = group, .count = n, .recv = area};
    t.send = area + n * (size_t)hzp_link_group_index(link64, group);
    assert_int_equal(hzp_link_post(link64, &t, &ticket, &why), HZP_OK);
    return ticket;
}

static uint64_t until(hzp_ticket ticket)
{
    assert_int_equal(hzp_link_wait(link64, ticket, &why), HZP_OK);
    return hzp_device_now_ns(dev);
}

static void test_rates(void **state)
{
    static const int node[] = {8, 9, 10, 11, 12, 13, 14, 15}, across[] = {1, 9};
    int near = hzp_link_group(link64, node, 8, &why), far = hzp_link_group(link64, across, 2, &why);
    int alone = hzp_link_group(link64, &node[1], 1, &why);
    uint64_t t0 = hzp_device_now_ns(dev);
    hzp_ticket ticket = gather(near, 100000);
    assert_int_equal(hzp_link_poll(link64, ticket, &why), 0);
    assert_int_equal(hzp_device_now_ns(dev), t0); /* polling takes no time */
    assert_int_equal(until(ticket) - t0, 7 * 100000 / 10 + 100);
    t0 = hzp_device_now_ns(dev);
    assert_int_equal(until(gather(far, 100000)) - t0, 100000 + 100);
    t0 = hzp_device_now_ns(dev);
    assert_int_equal(until(gather(0, 5000)) - t0, 63 * 5000 + 100);
    t0 = hzp_device_now_ns(dev);
    assert_int_equal(until(gather(alone, 100000)) - t0, 0);
}

/* The wire carries one transfer after another, and works beside the device's ops. */
static void test_beside_ops(void **state)
{
    static float x[4];
    struct hzp_cast_args move = {.x = {x, 5, 100, 100, HZP_F32}, .y = {x, 5, 100, 100, HZP_F32}};
    static const int node[] = {8, 9, 10, 11, 12, 13, 14, 15};
    int near = hzp_link_group(link64, node, 8, &why);
    uint64_t t0 = hzp_device_now_ns(dev);
    hzp_ticket first = gather(near, 10000), second = gather(near, 20000); /* 7100, 14100 */
    assert_int_equal(dev->op[HZP_OP_cast](lane, &move), HZP_OK);          /* 4000 */
    assert_int_equal(dev->op[HZP_OP_cast](lane, &move), HZP_OK);          /* 8000 */
    assert_int_equal(hzp_fence_record(fence, lane), HZP_OK);
    assert_int_equal(hzp_fence_wait(fence), HZP_OK);
    assert_int_equal(hzp_device_now_ns(dev) - t0, 8000);
    assert_int_equal(hzp_link_poll(link64, first, &why), 1); /* hidden behind the ops */
    assert_int_equal(hzp_link_poll(link64, second, &why), 0);
    assert_int_equal(until(second) - t0, 7100 + 14100);
}

/* Small transfers have results as if all ranks were like this one. */
static void test_results(void **state)
{
    float x[2] = {1.5f, -2}, all[128];
    uint64_t ready = 1;
    hzp_ticket ticket;
    struct hzp_transfer sum = {
        .op = HZP_ALL_REDUCE, .type = HZP_WIRE_U64, .count = 1, .send = &ready, .recv = &ready};
    assert_int_equal(hzp_link_post(link64, &sum, &ticket, &why), HZP_OK);
    until(ticket);
    assert_int_equal(ready, 64);
    struct hzp_transfer rest = {
        .op = HZP_ALL_GATHER, .type = HZP_WIRE_F32, .count = 2, .send = x, .recv = all};
    assert_int_equal(hzp_link_post(link64, &rest, &ticket, &why), HZP_OK);
    until(ticket);
    assert_true(all[0] == 1.5f && all[127] == -2);
    rest = (struct hzp_transfer){
        .op = HZP_REDUCE_SCATTER, .type = HZP_WIRE_F32, .count = 2, .send = all, .recv = x};
    assert_int_equal(hzp_link_post(link64, &rest, &ticket, &why), HZP_OK);
    until(ticket);
    assert_true(x[0] == 96 && x[1] == -128);
}

/* A planted slow rank. */
static void test_late(void **state)
{
    struct hzp_link_sim slow = config;
    slow.late_ns = 5000;
    hzp_link_close(link64);
    assert_int_equal(hzp_link_open_sim(&slow, dev, &link64, &why), HZP_OK);
    uint64_t t0 = hzp_device_now_ns(dev);
    assert_int_equal(until(gather(0, 5000)) - t0, 5000 + 63 * 5000 + 100);
}

static void refused(struct hzp_link_sim c, struct hzp_device *device, int code)
{
    struct hzp_link *other;
    assert_int_equal(hzp_link_open_sim(&c, device, &other, &why), code);
}

static void test_arguments(void **state)
{
    struct hzp_link_sim c = config;
    c.ranks = 9;
    refused(c, dev, HZP_EINVAL);
    c = config;
    c.rate_net = 0;
    refused(c, dev, HZP_EINVAL);
    c = config;
    c.node_ranks = 0;
    refused(c, dev, HZP_EINVAL);
    struct hzp_device *ref;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &ref, &why),
                     HZP_OK);
    refused(config, ref, HZP_EUNSUP);
    hzp_device_close(ref);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rates, setup, teardown),
        cmocka_unit_test_setup_teardown(test_beside_ops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_results, setup, teardown),
        cmocka_unit_test_setup_teardown(test_late, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arguments, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
