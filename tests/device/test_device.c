/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_device.c - memory, lanes, copies and fences: the same checks on every backend
 * that this machine has. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
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
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_HOST, N * sizeof(float), (void **)&host), HZP_OK);
    assert_int_equal((uintptr_t)a % 4096, 0);
    assert_int_equal((uintptr_t)host % 4096, 0);
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
    m.stride = 8;
    assert_int_equal(hzp_mat_flat(m).cols, 48);
    assert_int_equal(hzp_mat_flat(m).rows, 1);
    assert_int_equal(hzp_dtype_size(HZP_BF16), 2);
    assert_string_equal(hzp_op_name(HZP_OP_attn_packed_bwd), "attn_packed_bwd");
    assert_string_equal(hzp_op_name(HZP_OP_COUNT), "?");
    assert_int_equal(hzp_op_bound(HZP_OP_matmul), HZP_BOUND_COMPUTE);
    assert_int_equal(hzp_op_args_size(HZP_OP_fill), sizeof(struct hzp_fill_args));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names), cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_too_much), cmocka_unit_test(test_poison),
        cmocka_unit_test(test_mats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
