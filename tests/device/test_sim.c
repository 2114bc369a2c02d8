/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_sim.c - the virtual clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/device.h"

static struct hzp_device *dev;
static struct hzp_lane *one, *two;
static struct hzp_fence *fence;

/* 1 flop and 1 byte a nanosecond; issuing costs nothing. */
static int setup(void **state)
{
    setenv("HZP_SIM", "flops=1e9,bytes=1e9,copy=1e9,issue_ns=0,mem=1e9", 1);
    if (hzp_device_open(&(struct hzp_device_config){.name = "sim"}, &dev, NULL) < 0 ||
        hzp_lane_open(dev, HZP_BOUND_COMPUTE, &one) < 0 ||
        hzp_lane_open(dev, HZP_BOUND_MEMORY, &two) < 0 || hzp_fence_open(dev, &fence) < 0)
        return -1;
    return 0;
}

static int teardown(void **state)
{
    hzp_fence_close(fence);
    hzp_lane_close(one);
    hzp_lane_close(two);
    hzp_device_close(dev);
    return 0;
}

static uint64_t until(struct hzp_lane *lane)
{
    assert_int_equal(hzp_fence_record(fence, lane), HZP_OK);
    assert_int_equal(hzp_fence_wait(fence), HZP_OK);
    return hzp_device_now_ns(dev);
}

/* 2000 flops and 300 * 4 bytes; 4000 bytes and no flops.  The memory is never touched. */
static float area[4];
static struct hzp_matmul_args product = {.a = {area, 10, 10, 10, HZP_F32},
                                         .b = {area, 10, 10, 10, HZP_F32},
                                         .c = {area, 10, 10, 10, HZP_F32}};
static struct hzp_cast_args move = {.x = {area, 5, 100, 100, HZP_F32},
                                    .y = {area, 5, 100, 100, HZP_F32}};

static void run(struct hzp_lane *lane, enum hzp_op op, const void *args)
{
    assert_int_equal(dev->op[op](lane, args), HZP_OK);
}

static void test_clock(void **state)
{
    uint64_t t0 = hzp_device_now_ns(dev);
    run(one, HZP_OP_matmul, &product);
    assert_int_equal(hzp_device_now_ns(dev), t0); /* no wait yet: the clock has not moved */
    assert_int_equal(until(one) - t0, 2000);
    t0 = hzp_device_now_ns(dev);
    run(one, HZP_OP_cast, &move);
    run(one, HZP_OP_cast, &move);
    assert_int_equal(until(one) - t0, 8000);
}

/* Different resources run side by side; with the same resource there is no gain over one after
   the other. */
static void test_overlap(void **state)
{
    uint64_t t0 = hzp_device_now_ns(dev);
    struct hzp_matmul_args large = product;
    large.a.rows = large.c.rows = 100; /* 20000 flops, 8400 bytes */
    run(one, HZP_OP_matmul, &large);
    run(two, HZP_OP_cast, &move);
    assert_int_equal(until(two) - t0, 8400 + 4000);
    assert_int_equal(until(one) - t0, 20000);

    t0 = hzp_device_now_ns(dev);
    run(one, HZP_OP_cast, &move);
    run(two, HZP_OP_cast, &move);
    until(one);
    assert_int_equal(until(two) - t0, 8000);

    t0 = hzp_device_now_ns(dev);
    run(one, HZP_OP_matmul, &large);
    assert_int_equal(hzp_fence_record(fence, one), HZP_OK);
    assert_int_equal(hzp_lane_wait(two, fence), HZP_OK);
    run(two, HZP_OP_cast, &move);
    assert_int_equal(until(two) - t0, 24000);
}

static void test_tokens(void **state)
{
    enum { ROWS = 50, VOCAB = 1000 };
    static struct hzp_sample_row row[ROWS];
    static float logits[ROWS * VOCAB], logprob[ROWS];
    int32_t token[2][ROWS], rank[ROWS], different = 0;
    for (int r = 0; r < ROWS; r++)
        row[r] =
            (struct hzp_sample_row){.seed = 7, .position = (uint32_t)r, .given = r % 10 ? -1 : r};
    for (int turn = 0; turn < 2; turn++) {
        struct hzp_sample_args a = {.logits = {logits, ROWS, VOCAB, VOCAB, HZP_F32},
                                    .row = row,
                                    .token = token[turn],
                                    .logprob = logprob,
                                    .rank = rank};
        run(one, HZP_OP_sample, &a);
    }
    for (int r = 0; r < ROWS; r++) {
        assert_true(token[0][r] >= 0 && token[0][r] < VOCAB);
        assert_int_equal(token[0][r], token[1][r]);
        if (r % 10 == 0)
            assert_int_equal(token[0][r], r);
        different += r > 0 && token[0][r] != token[0][r - 1];
    }
    assert_true(different > 40);
}

static void test_settings(void **state)
{
    static const char *const bad[] = {
        "flops", "flops=", "flops=-1", "flops=0", "speed=3", "flops=1e9;bytes=1", "flops=nan"};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        struct hzp_device *other = NULL;
        struct hzp_err_text why = {0};
        setenv("HZP_SIM", bad[i], 1);
        assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "sim"}, &other, &why),
                         HZP_EINVAL);
        assert_string_equal(why.param, "HZP_SIM");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_clock, setup, teardown),
        cmocka_unit_test_setup_teardown(test_overlap, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tokens, setup, teardown),
        cmocka_unit_test(test_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
