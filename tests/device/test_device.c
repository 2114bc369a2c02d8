/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_device.c - memory, lanes, copies and fences: the same checks on every
 * backend that this machine supports. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "device/device.h"

static struct hzp_device *open_or_null(const char *name)
{
    struct hzp_device *dev = NULL;
    struct hzp_err_text why = {0};
    int r = hzp_device_open(&(struct hzp_device_config){.name = name}, &dev, &why);
    if (r < 0) {
        assert_int_equal(r, HZP_EUNSUP);
        assert_true(strlen(why.text) > 0);
        return NULL;
    }
    for (int op = 0; op < HZP_OP_COUNT; op++)
        assert_non_null(dev->op[op]);
    assert_true(dev->threads > 0 && dev->mem_total > 0 && dev->label[0]);
    return dev;
}

static void test_names(void **state)
{
    struct hzp_device *dev = NULL;
    struct hzp_err_text why = {0};
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "abacus"}, &dev, &why),
                     HZP_EINVAL);
    assert_string_equal(why.param, "device");
    assert_non_null(strstr(why.text, "abacus"));
    assert_null(dev);
    assert_int_equal(hzp_device_open(NULL, &dev, &why), HZP_OK); /* cuda or cpu */
    hzp_device_close(dev);
    hzp_device_close(NULL);
}

/* A chain over two lanes: a copy in, a fill that the other lane's copy out must wait for. */
static void check_lanes(struct hzp_device *dev)
{
    enum { N = 3000 };
    void *a, *b;
    float *host;
    struct hzp_lane *one, *two;
    struct hzp_fence *fence, *end;
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_DEVICE, N * sizeof(float), &a), HZP_OK);
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_DEVICE, N * sizeof(float), &b), HZP_OK);
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_HOST, N * sizeof(float), (void **)&host),
                     HZP_OK);
    assert_int_equal((uintptr_t)a % 512, 0);
    assert_int_equal((uintptr_t)host % 512, 0);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &one), HZP_OK);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_MEMORY, &two), HZP_OK);
    assert_ptr_equal(one->dev, dev);
    assert_int_equal(two->use, HZP_BOUND_MEMORY);
    assert_int_equal(hzp_fence_open(dev, &fence), HZP_OK);
    assert_int_equal(hzp_fence_open(dev, &end), HZP_OK);

    for (int turn = 1; turn <= 50; turn++) {
        for (int i = 0; i < N; i++)
            host[i] = (float)(turn * i);
        uint64_t before = hzp_device_now_ns(dev);
        assert_int_equal(hzp_lane_copy(one, a, host, N * sizeof(float)), HZP_OK);
        struct hzp_fill_args fill = {{a, 1, 7, 7, HZP_F32}, (float)-turn};
        assert_int_equal(hzp_op_fill(one, &fill), HZP_OK);
        assert_int_equal(hzp_fence_record(fence, one), HZP_OK);
        assert_int_equal(hzp_lane_wait(two, fence), HZP_OK);
        assert_int_equal(hzp_lane_copy(two, b, a, N * sizeof(float)), HZP_OK);
        assert_int_equal(hzp_lane_copy(two, host, b, N * sizeof(float)), HZP_OK);
        assert_int_equal(hzp_fence_record(end, two), HZP_OK);
        assert_int_equal(hzp_fence_wait(end), HZP_OK);
        assert_true(hzp_device_now_ns(dev) >= before);
        for (int i = 0; i < N; i++)
            assert_true(host[i] == (i < 7 ? (float)-turn : (float)(turn * i)));
    }
    hzp_fence_close(fence);
    hzp_fence_close(end);
    hzp_fence_close(NULL);
    hzp_lane_close(one);
    hzp_lane_close(two);
    hzp_lane_close(NULL);
    hzp_device_free(dev, HZP_MEM_DEVICE, a);
    hzp_device_free(dev, HZP_MEM_DEVICE, b);
    hzp_device_free(dev, HZP_MEM_HOST, host);
    hzp_device_free(dev, HZP_MEM_HOST, NULL);
}

static void test_lanes(void **state)
{
    static const char *const names[] = {"ref", "cpu", "sim", "cuda"};
    for (int i = 0; i < HZP_COUNT(names); i++) {
        struct hzp_device *dev = open_or_null(names[i]);
        if (dev)
            check_lanes(dev);
        hzp_device_close(dev);
    }
}

/* Pairs of lanes with shares of their own: each adds to the others' result, in an order that
 * only waits enforce; then the same with other shares. */
static void check_shares(struct hzp_device *dev)
{
    enum { LANES = 3, TURNS = 3000 };
    struct hzp_lane *lane[LANES];
    struct hzp_fence *fence[LANES], *end;
    float *x, *y;
    static struct hzp_span span[TURNS];
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_HOST, 64, (void **)&x), HZP_OK);
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_HOST, TURNS * sizeof(float), (void **)&y),
                     HZP_OK);
    for (int i = 0; i < LANES; i++) {
        assert_int_equal(hzp_lane_open(dev, (enum hzp_bound)i, &lane[i]), HZP_OK);
        assert_int_equal(hzp_fence_open(dev, &fence[i]), HZP_OK);
    }
    assert_int_equal(hzp_fence_open(dev, &end), HZP_OK);
    for (int round = 0; round < 4; round++) {
        uint32_t seed = (uint32_t)round + 1;
        bool timed = true;
        for (int i = 0; i < LANES; i++)
            assert_int_equal(hzp_lane_set_share(lane[i], round == 2 ? 0 : (i + round) % 3), HZP_OK);
        memset(span, 0, sizeof(span));
        for (int turn = 0; turn < TURNS; turn++) {
            seed = seed * 1664525u + 1013904223u;
            int l = (int)(seed >> 16) % LANES;
            for (int i = 0; i < LANES && turn; i++)
                if (i != l)
                    assert_int_equal(hzp_lane_wait(lane[l], fence[i]), HZP_OK);
            struct hzp_fill_args fill = {{x, 1, 16, 16, HZP_F32}, (float)(turn + round)};
            timed &= hzp_lane_time(lane[l], &span[turn]) == HZP_OK;
            assert_int_equal(hzp_op_fill(lane[l], &fill), HZP_OK);
            assert_int_equal(hzp_lane_copy(lane[l], y + turn, x + turn % 16, sizeof(float)),
                             HZP_OK);
            for (int i = 0; i < LANES; i++)
                if (i == l || !turn)
                    assert_int_equal(hzp_fence_record(fence[i], lane[i]), HZP_OK);
            if (l == 0)
                assert_int_equal(hzp_fence_record(end, lane[l]), HZP_OK);
        }
        for (int i = 0; i < LANES; i++)
            assert_int_equal(hzp_fence_wait(fence[i]), HZP_OK);
        for (int turn = 0; turn < TURNS; turn++)
            assert_true(y[turn] == (float)(turn + round));
        for (int turn = 1; turn < TURNS && timed; turn++)
            assert_true(span[turn].begin_ns >= span[turn - 1].end_ns &&
                        span[turn].end_ns >= span[turn].begin_ns);
    }
    for (int i = 0; i < LANES; i++) {
        hzp_fence_close(fence[i]);
        hzp_lane_close(lane[i]);
    }
    hzp_fence_close(end);
    hzp_device_free(dev, HZP_MEM_HOST, x);
    hzp_device_free(dev, HZP_MEM_HOST, y);
}

static void test_shares(void **state)
{
    static const char *const names[] = {"ref", "cpu", "sim", "cuda"};
    for (int i = 0; i < HZP_COUNT(names); i++) {
        struct hzp_device *dev = open_or_null(names[i]);
        if (dev)
            check_shares(dev);
        hzp_device_close(dev);
    }
    for (int threads = 1; threads <= 4; threads++) {
        struct hzp_device *dev = NULL;
        struct hzp_device_config config = {.name = "cpu", .threads = threads};
        assert_int_equal(hzp_device_open(&config, &dev, NULL), HZP_OK);
        check_shares(dev);
        hzp_device_close(dev);
    }
}

/* Lanes that have worked and wait for more work use no processor time. */
static void test_idle(void **state)
{
    struct hzp_device *dev = open_or_null("cpu");
    struct hzp_lane *lane[2];
    struct hzp_fence *fence;
    struct timespec before, after, nap = {0, 1000};
    float *x;
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_HOST, 1 << 20, (void **)&x), HZP_OK);
    assert_int_equal(hzp_fence_open(dev, &fence), HZP_OK);
    for (int i = 0; i < 2; i++) {
        struct hzp_fill_args fill = {{x, 16, 1024, 1024, HZP_F32}, 1};
        assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane[i]), HZP_OK);
        assert_int_equal(hzp_lane_set_share(lane[i], 1), HZP_OK);
        assert_int_equal(hzp_op_fill(lane[i], &fill), HZP_OK);
        assert_int_equal(hzp_fence_record(fence, lane[i]), HZP_OK);
        assert_int_equal(hzp_fence_wait(fence), HZP_OK);
    }
    nap.tv_nsec = 50000000; /* the end of polling */
    nanosleep(&nap, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nap = (struct timespec){1, 0};
    nanosleep(&nap, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t ns = (after.tv_sec - before.tv_sec) * 1000000000ll + after.tv_nsec - before.tv_nsec;
    assert_true(ns < 5000000);
    hzp_fence_close(fence);
    hzp_lane_close(lane[0]);
    hzp_lane_close(lane[1]);
    hzp_device_free(dev, HZP_MEM_HOST, x);
    hzp_device_close(dev);
}

/* A lane is closed while its thread polls for work, just after the engine thread took its lead. */
static void test_closing(void **state)
{
    struct hzp_device *dev = NULL;
    struct hzp_device_config config = {.name = "cpu", .threads = 2};
    struct hzp_lane *lane[2];
    struct hzp_fence *fence;
    float *x;
    assert_int_equal(hzp_device_open(&config, &dev, NULL), HZP_OK);
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_HOST, 64, (void **)&x), HZP_OK);
    assert_int_equal(hzp_fence_open(dev, &fence), HZP_OK);
    struct hzp_fill_args fill = {{x, 1, 16, 16, HZP_F32}, 1};
    for (int round = 0; round < 500; round++) {
        for (int i = 0; i < 2; i++) {
            assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane[i]), HZP_OK);
            assert_int_equal(hzp_lane_set_share(lane[i], 1), HZP_OK);
        }
        assert_int_equal(hzp_op_fill(lane[1], &fill), HZP_OK);
        assert_int_equal(hzp_fence_record(fence, lane[1]), HZP_OK);
        assert_int_equal(hzp_fence_wait(fence), HZP_OK);
        assert_int_equal(hzp_lane_set_share(lane[0], 0), HZP_OK);
        hzp_lane_close(lane[1]);
        hzp_lane_close(lane[0]);
    }
    hzp_fence_close(fence);
    hzp_device_free(dev, HZP_MEM_HOST, x);
    hzp_device_close(dev);
}

/* A lane's thread has just finished a command when the engine thread takes its lead and executes
 * commands itself: no command runs twice or too early. */
static void test_taking_the_lead(void **state)
{
    enum { ROUNDS = 3000 };
    struct hzp_device *dev = NULL;
    struct hzp_device_config config = {.name = "cpu", .threads = 2};
    struct hzp_lane *lane[2];
    struct hzp_fence *fence;
    struct timespec pause = {0, 100000};
    uint32_t *from, *to;
    assert_int_equal(hzp_device_open(&config, &dev, NULL), HZP_OK);
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_HOST, 2 * ROUNDS * 4, (void **)&from), HZP_OK);
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_HOST, 2 * ROUNDS * 4, (void **)&to), HZP_OK);
    assert_int_equal(hzp_fence_open(dev, &fence), HZP_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane[i]), HZP_OK);
        assert_int_equal(hzp_lane_set_share(lane[i], 1), HZP_OK);
    }
    for (int i = 0; i < 2 * ROUNDS; i++) {
        from[i] = (uint32_t)i + 1;
        to[i] = 0;
        /* even: run by the lane's thread; odd: by this one */
        assert_int_equal(hzp_lane_set_share(lane[0], i % 2 ? 0 : 1), HZP_OK);
        assert_int_equal(hzp_lane_copy(lane[1], &to[i], &from[i], sizeof(from[i])), HZP_OK);
        assert_int_equal(hzp_fence_record(fence, lane[1]), HZP_OK);
        assert_int_equal(hzp_fence_wait(fence), HZP_OK);
        assert_int_equal(to[i], i + 1);
        if (i % 16 == 15)
            nanosleep(&pause, NULL); /* nothing to do: a thread that looked too early continues */
    }
    hzp_fence_close(fence);
    hzp_lane_close(lane[1]);
    hzp_lane_close(lane[0]);
    hzp_device_free(dev, HZP_MEM_HOST, from);
    hzp_device_free(dev, HZP_MEM_HOST, to);
    hzp_device_close(dev);
}

static void test_too_much(void **state)
{
    struct hzp_device *dev = open_or_null("ref");
    void *ptr = NULL;
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_DEVICE, SIZE_MAX - 100, &ptr), HZP_ENOMEM);
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_HOST, SIZE_MAX, &ptr), HZP_ENOMEM);
    assert_null(ptr);
    hzp_device_close(dev);
}

static void test_poison(void **state)
{
    struct hzp_device *dev = open_or_null("ref");
    setenv("HZP_POISON", "1", 1);
    for (int where = 0; where < 2; where++) {
        float *ptr;
        assert_int_equal(hzp_device_alloc(dev, (enum hzp_mem)where, 10000, (void **)&ptr), HZP_OK);
        for (int i = 0; i < 2500; i++)
            assert_true(isnan(ptr[i]));
        hzp_device_free(dev, (enum hzp_mem)where, ptr);
    }
    unsetenv("HZP_POISON");
    hzp_device_close(dev);
}

static void test_mats(void **state)
{
    float memory[60];
    struct hzp_mat m = {memory, 6, 8, 10, HZP_F32}, rows = hzp_mat_rows(m, 2, 3);
    assert_ptr_equal(rows.ptr, memory + 20);
    assert_int_equal(rows.rows, 3);
    assert_int_equal(rows.stride, 10);
    assert_int_equal(hzp_dtype_size(HZP_BF16), 2);
    assert_string_equal(hzp_op_name(HZP_OP_attn_packed_bwd), "attn_packed_bwd");
    assert_string_equal(hzp_op_name(HZP_OP_COUNT), "?");
    assert_int_equal(hzp_op_class(HZP_OP_matmul, NULL), HZP_CLASS_WIDE);
    assert_int_equal(hzp_class_bound(HZP_CLASS_WIDE), HZP_BOUND_COMPUTE);
    assert_int_equal(hzp_class_bound(hzp_op_class(HZP_OP_attn_decode, NULL)), HZP_BOUND_MEMORY);
    assert_int_equal(hzp_op_class(HZP_OP_adamw, NULL), HZP_CLASS_UPDATE);
    assert_int_equal(hzp_op_args_size(HZP_OP_fill), sizeof(struct hzp_fill_args));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),    cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_shares),   cmocka_unit_test(test_idle),
        cmocka_unit_test(test_closing),  cmocka_unit_test(test_taking_the_lead),
        cmocka_unit_test(test_too_much), cmocka_unit_test(test_poison),
        cmocka_unit_test(test_mats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
