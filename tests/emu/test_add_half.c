/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/test_add_half.c - the kernel behind products that the library writes as BF16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "device/bf16.h"
#include "device/cuda/cuda.h"

enum { ROWS = 3, ROOM = 4096 };

static void *memory(size_t bytes)
{
    void *ret = NULL;
    assert_int_equal(cudaMalloc(&ret, bytes), cudaSuccess);
    return ret;
}

/* What c and from hold at i. */
static float value(size_t i)
{
    return (float)(int)(i * 37 % 251) / 8;
}

static void check(int32_t cols, int32_t stride, int32_t accumulate, bool apart)
{
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_err_text err;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "cuda"}, &dev, &err), 0);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane), 0);
    uint16_t *half = memory(ROOM * sizeof(*half));
    float *c = memory(ROOM * sizeof(*c)), *from = memory(ROOM * sizeof(*from));
    for (size_t i = 0; i < ROOM; i++) {
        half[i] = hzp_bf16_from_f32((float)i / 16);
        c[i] = accumulate && !apart ? value(i) : -1;
        from[i] = value(i);
    }
    struct hzp_mat narrow = {half, ROWS, cols, cols, HZP_BF16};
    struct hzp_matmul_args a = {.c = {c, ROWS, cols, stride, HZP_F32}, .accumulate = accumulate};
    if (apart)
        a.from = (struct hzp_mat){from, ROWS, cols, stride, HZP_F32};
    assert_int_equal(hzp_cuda_lane_ready(hzp_cuda_lane(lane)), 0);
    assert_int_equal(hzp_cuda_add_half(lane, &narrow, &a), 0);
    assert_int_equal(cudaStreamSynchronize(hzp_cuda_lane(lane)->stream), cudaSuccess);
    for (size_t i = 0; i < ROOM; i++) {
        size_t r = i / (size_t)stride, j = i % (size_t)stride;
        float want = accumulate && !apart ? value(i) : -1;
        if (r < ROWS && j < (size_t)cols)
            want = (accumulate ? value(i) : 0) + hzp_bf16_to_f32(half[r * (size_t)cols + j]);
        assert_true(c[i] == want);
    }
    cudaFree(half);
    cudaFree(c);
    cudaFree(from);
    hzp_lane_close(lane);
    hzp_device_close(dev);
}

static void test_sums(void **state)
{
    for (int apart = 0; apart < 2; apart++) {
        check(256, 256, 1, apart);
        check(256, 272, 1, apart);
        check(97, 131, 1, apart); /* element by element */
    }
    check(256, 256, 0, false);
    check(97, 131, 0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
