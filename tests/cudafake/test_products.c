/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/test_products.c - matrix products: which shapes, strides and SM targets
 * cuBLASLt is given, which algorithm is chosen, and what is kept on disk. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/cuda/algos.h"
#include "device/fallback.h"
#include "device/fp8.h"
#include "tests/cudafake/ops.h"

enum { FLOATS = 1 << 14 };

struct rig {
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    float *x, *w, *y, *from; /* device */
    float host[4][FLOATS];
    uint32_t state;
};

static struct rig rig;
static char cache[64];

static struct rig *rig_open(const char *lanes, const char *kept)
{
    struct rig *g = &rig;
    memset(g, 0, sizeof(*g));
    g->dev = fake_open(1, lanes, kept);
    assert_int_equal(hzp_lane_open(g->dev, HZP_BOUND_COMPUTE, &g->lane), HZP_OK);
    assert_int_equal(hzp_fence_open(g->dev, &g->fence), HZP_OK);
    float **to[] = {&g->x, &g->w, &g->y, &g->from};
    for (int i = 0; i < HZP_COUNT(to); i++)
        assert_int_equal(hzp_device_alloc(g->dev, HZP_MEM_DEVICE, FLOATS * 4, (void **)to[i]),
                         HZP_OK);
    g->state = 1;
    return g;
}

static void rig_close(struct rig *g)
{
    hzp_device_free(g->dev, HZP_MEM_DEVICE, g->x);
    hzp_device_free(g->dev, HZP_MEM_DEVICE, g->w);
    hzp_device_free(g->dev, HZP_MEM_DEVICE, g->y);
    hzp_device_free(g->dev, HZP_MEM_DEVICE, g->from);
    hzp_fence_close(g->fence);
    hzp_lane_close(g->lane);
    fake_close(g->dev);
}

static int32_t draw(struct rig *g, int32_t n)
{
    g->state = g->state * 1664525u + 1013904223u;
    return (int32_t)((g->state >> 8) % (uint32_t)n);
}

static void upload(struct rig *g)
{
    float *to[] = {g->x, g->w, g->y, g->from};
    for (int i = 0; i < HZP_COUNT(to); i++) {
        for (int k = 0; k < FLOATS; k++)
            g->host[i][k] = (float)(draw(g, 17) - 8) / 8;
        assert_int_equal(hzp_device_copy(g->dev, to[i], g->host[i], sizeof(g->host[i])), HZP_OK);
    }
}

static void finish(struct rig *g)
{
    assert_int_equal(hzp_fence_record(g->fence, g->lane), HZP_OK);
    assert_int_equal(hzp_fence_wait(g->fence), HZP_OK);
}

static struct hzp_matmul_args product(struct rig *g, int32_t m, int32_t n, int32_t k, int trans_a,
                                      int trans_b, int32_t beyond)
{
    int32_t ar = trans_a ? k : m, ac = trans_a ? m : k, br = trans_b ? n : k, bc = trans_b ? k : n;
    return (struct hzp_matmul_args){
        .a = {g->x, ar, ac, ac + beyond, HZP_F32},
        .b = {g->w, br, bc, bc + beyond, HZP_F32},
        .c = {g->y, m, n, n + beyond, HZP_F32},
        .trans_a = trans_a,
        .trans_b = trans_b,
    };
}

/* The product of what was uploaded; its values are eighths and sums are short, so it is exact. */
static double expected(const struct rig *g, const struct hzp_matmul_args *a, int32_t i, int32_t j)
{
    int32_t depth = a->trans_a ? a->a.rows : a->a.cols;
    double sum = 0;
    for (int32_t k = 0; k < depth; k++)
        sum += (double)g->host[0][a->trans_a ? k * a->a.stride + i : i * a->a.stride + k] *
               (double)g->host[1][a->trans_b ? j * a->b.stride + k : k * a->b.stride + j];
    if (a->accumulate)
        sum += (double)g->host[a->from.ptr ? 3 : 2][i * a->c.stride + j];
    return sum;
}

static void check(struct rig *g, const struct hzp_matmul_args *a)
{
    static float got[FLOATS];
    finish(g);
    fake_peek(got, g->y, sizeof(got));
    for (int32_t i = 0; i < a->c.rows; i++)
        for (int32_t j = 0; j < a->c.cols; j++)
            assert_true(fabs((double)got[i * a->c.stride + j] - expected(g, a, i, j)) < 1e-5);
    for (int32_t i = 0; i + 1 < a->c.rows; i++) /* the gaps between rows must stay untouched */
        for (int32_t j = a->c.cols; j < a->c.stride; j++)
            assert_true(got[i * a->c.stride + j] == g->host[2][i * a->c.stride + j]);
}

static void test_shapes(void **state)
{
    struct rig *g = rig_open(NULL, NULL);
    for (int i = 0; i < 60; i++) {
        struct hzp_matmul_args a = product(g, 1 + draw(g, 20), 1 + draw(g, 20), 1 + draw(g, 20),
                                           draw(g, 2), draw(g, 2), draw(g, 5));
        a.accumulate = draw(g, 2);
        if (a.accumulate && draw(g, 2)) {
            a.from = a.c;
            a.from.ptr = g->from;
        }
        upload(g);
        assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
        check(g, &a);
    }
    assert_int_equal(fake_count(FAKE_PRODUCT), 60);
    assert_string_equal(fake_mistakes(), "");
    rig_close(g);
}

static struct fake_call last_product(void)
{
    for (int i = fake_calls() - 1; i >= 0; i--)
        if (fake_call_at(i)->kind == FAKE_PRODUCT)
            return *fake_call_at(i);
    fail();
    return (struct fake_call){0};
}

/* A lane with a share passes its number of SMs; the algorithm for a known shape is then asked
   for again. */
static void test_sm_target(void **state)
{
    static const char *const lanes[] = {"green", "grid"};
    for (int i = 0; i < 2; i++) {
        struct rig *g = rig_open(lanes[i], NULL);
        struct hzp_matmul_args a = product(g, 16, 16, 16, 0, 1, 0);
        struct hzp_lane *other;
        upload(g);
        assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
        assert_int_equal(last_product().sm_target, 0);
        assert_int_equal(hzp_lane_open(g->dev, HZP_BOUND_COMPUTE, &other), HZP_OK);
        assert_int_equal(hzp_lane_set_share(g->lane, 48), HZP_OK);
        assert_int_equal(hzp_lane_set_share(other, 80), HZP_OK);
        assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
        assert_int_equal(last_product().sm_target, 48);
        check(g, &a);
        assert_int_equal(hzp_op_matmul(other, &a), HZP_OK);
        assert_int_equal(last_product().sm_target, i ? 80 : 84);
        assert_int_equal(hzp_fence_record(g->fence, other), HZP_OK);
        assert_int_equal(hzp_fence_wait(g->fence), HZP_OK);
        assert_int_equal(hzp_lane_set_share(g->lane, 0), HZP_OK);
        assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
        assert_int_equal(last_product().sm_target, 0);
        hzp_lane_close(other);
        finish(g);
        rig_close(g);
    }
}

/* A refusal by the library does not stop a step: our own kernel computes the product. */
static void test_refusal(void **state)
{
    struct rig *g = rig_open(NULL, NULL);
    struct hzp_matmul_args a = product(g, 16, 16, 16, 0, 0, 0);
    upload(g);
    fake_fail("cublasLtMatmul", 0, 15);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
    assert_int_equal(fake_count(FAKE_PRODUCT), 0);
    assert_true(fake_count(FAKE_KERNEL) > 0);
    check(g, &a);
    rig_close(g);
}

/* A refused product is remembered; one for which the library had no memory is tried again; one too
 * large for our kernel is an error.  Each is counted. */
static void test_fallbacks(void **state)
{
    struct rig *g = rig_open(NULL, NULL);
    struct hzp_matmul_args a = product(g, 16, 16, 16, 0, 0, 0), b = product(g, 8, 24, 16, 0, 0, 0);
    upload(g);
    assert_int_equal(hzp_device_fallbacks(g->dev, HZP_FALLBACK_product), 0);
    fake_fail("cublasLtMatmul", 0, 3 /* CUBLAS_STATUS_ALLOC_FAILED */);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
    assert_int_equal(hzp_device_fallbacks(g->dev, HZP_FALLBACK_product), 1);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
    assert_int_equal(fake_count(FAKE_PRODUCT), 1);
    fake_fail("cublasLtMatmul", 0, 15 /* CUBLAS_STATUS_NOT_SUPPORTED */);
    assert_int_equal(hzp_op_matmul(g->lane, &b), HZP_OK);
    assert_int_equal(hzp_op_matmul(g->lane, &b), HZP_OK);
    assert_int_equal(fake_count(FAKE_PRODUCT), 1);
    assert_int_equal(hzp_device_fallbacks(g->dev, HZP_FALLBACK_product), 3);
    assert_int_equal(hzp_device_fallbacks(g->dev, HZP_FALLBACK_attention), 0);
    rig_close(g);
}

/* An algorithm that fails is replaced by another, which is kept; a product is given up when three
 * in a row have failed. */
static void test_another_algorithm(void **state)
{
    struct rig *g = rig_open(NULL, NULL);
    struct hzp_matmul_args a = product(g, 16, 16, 16, 0, 0, 0), b = product(g, 8, 24, 16, 0, 0, 0);
    upload(g);
    fake_fail("cublasLtMatmul", 0, 14 /* CUBLAS_STATUS_INTERNAL_ERROR */);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
    check(g, &a);
    for (int failing = 1; failing < 3; failing++) {
        fake_algos_failing = failing;
        for (int i = 0; i < 4; i++) {
            assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
            assert_int_equal(last_product().algo, failing);
        }
        check(g, &a);
    }
    assert_int_equal(hzp_device_fallbacks(g->dev, HZP_FALLBACK_product), 0);
    fake_algos_failing = 5; /* all */
    int products = fake_count(FAKE_PRODUCT);
    assert_int_equal(hzp_op_matmul(g->lane, &b), HZP_OK);
    assert_int_equal(hzp_device_fallbacks(g->dev, HZP_FALLBACK_product), 1);
    check(g, &b);
    fake_algos_failing = 0;
    assert_int_equal(hzp_op_matmul(g->lane, &b), HZP_OK); /* it is not asked again */
    assert_int_equal(fake_count(FAKE_PRODUCT), products);
    assert_int_equal(hzp_device_fallbacks(g->dev, HZP_FALLBACK_product), 2);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK); /* other products are */
    assert_int_equal(fake_count(FAKE_PRODUCT), products + 1);
    rig_close(g);
}

static void test_too_large(void **state)
{
    struct rig *g = rig_open(NULL, NULL);
    float *x, *w, *y;
    enum { M = 512, N = 512, K = 257 }; /* just above what our kernel is given */
    assert_int_equal(hzp_device_alloc(g->dev, HZP_MEM_DEVICE, M * K * 4, (void **)&x), HZP_OK);
    assert_int_equal(hzp_device_alloc(g->dev, HZP_MEM_DEVICE, N * K * 4, (void **)&w), HZP_OK);
    assert_int_equal(hzp_device_alloc(g->dev, HZP_MEM_DEVICE, M * N * 4, (void **)&y), HZP_OK);
    struct hzp_matmul_args a = {.a = {x, M, K, K, HZP_F32},
                                .b = {w, N, K, K, HZP_F32},
                                .c = {y, M, N, N, HZP_F32},
                                .trans_b = 1};
    fake_fail("cublasLtMatmulAlgoGetHeuristic", 0, 15);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_EUNSUP);
    assert_int_equal(hzp_device_fallbacks(g->dev, HZP_FALLBACK_product), 1);
    a.trans_b = 0; /* another product, for which the library has an algorithm and no memory */
    a.b = (struct hzp_mat){w, K, N, N, HZP_F32};
    fake_fail("cublasLtMatmul", 0, 3 /* CUBLAS_STATUS_ALLOC_FAILED */);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_ENOMEM);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
    finish(g);
    hzp_device_free(g->dev, HZP_MEM_DEVICE, x);
    hzp_device_free(g->dev, HZP_MEM_DEVICE, w);
    hzp_device_free(g->dev, HZP_MEM_DEVICE, y);
    rig_close(g);
}

/* More shapes than the table of products holds: the least recently used of a set are evicted one by
 * one, and products stay right. */
static void test_many_shapes(void **state)
{
    struct rig *g = rig_open(NULL, NULL);
    hzp_device_steady(g->dev); /* algorithms are not timed */
    upload(g);
    for (int turn = 0; turn < 2; turn++)
        for (int32_t m = 1; m <= 16; m++)
            for (int32_t n = 1; n <= 16; n++)
                for (int32_t k = 1; k <= 20; k++) {
                    struct hzp_matmul_args a = product(g, m, n, k, 0, 1, 0);
                    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
                    if ((m * n + k) % 97 == 0) {
                        check(g, &a);
                        upload(g);
                    }
                }
    assert_string_equal(fake_mistakes(), "");
    assert_int_equal(hzp_device_fallbacks(g->dev, HZP_FALLBACK_product), 0);
    rig_close(g);
}

/* ---- e4m3 ---- */

/* Small codes, scales and initial sums: exact, like the other products. */
static struct hzp_matmul_args product_e4m3(struct rig *g, int32_t m, int32_t n, int32_t k,
                                           int accumulate)
{
    uint8_t *code[2] = {(uint8_t *)g->host[0], (uint8_t *)g->host[1]};
    size_t at[2] = {(size_t)m * (size_t)k, (size_t)n * (size_t)k}; /* the scales follow the codes */
    upload(g);
    for (int s = 0; s < 2; s++) {
        float *scale = (float *)(void *)(code[s] + at[s]);
        for (size_t i = 0; i < at[s]; i++)
            code[s][i] = (uint8_t)(draw(g, 2) * 0x80 + 0x30 + draw(g, 16)); /* 0.5 .. 1.9 */
        for (int32_t i = 0; i < (s ? n : m); i++)
            scale[i] = ldexpf(1, -draw(g, 4));
        assert_int_equal(hzp_device_copy(g->dev, s ? g->w : g->x, code[s], sizeof(g->host[0])),
                         HZP_OK);
    }
    return (struct hzp_matmul_args){
        .a = {g->x, m, k, k, HZP_E4M3},
        .b = {g->w, n, k, k, HZP_E4M3},
        .c = {g->y, m, n, n, HZP_F32},
        .scale_a = (float *)(void *)((uint8_t *)g->x + at[0]),
        .scale_b = (float *)(void *)((uint8_t *)g->w + at[1]),
        .trans_b = 1,
        .accumulate = accumulate,
    };
}

/* within: of each element's products, as a fraction. */
static void check_e4m3_within(struct rig *g, const struct hzp_matmul_args *a, double within)
{
    static float got[FLOATS];
    int32_t m = a->c.rows, n = a->c.cols, k = a->a.cols;
    const uint8_t *x = (uint8_t *)g->host[0], *w = (uint8_t *)g->host[1];
    const float *scale_a = (const float *)(const void *)(x + m * k);
    const float *scale_b = (const float *)(const void *)(w + n * k);
    finish(g);
    fake_peek(got, g->y, sizeof(got));
    for (int32_t i = 0; i < m; i++)
        for (int32_t j = 0; j < n; j++) {
            double sum = 0;
            for (int32_t d = 0; d < k; d++)
                sum +=
                    (double)hzp_e4m3_to_f32(x[i * k + d]) * (double)hzp_e4m3_to_f32(w[j * k + d]);
            sum *= (double)scale_a[i] * (double)scale_b[j];
            double allowed = 1e-5 + within * fabs(sum);
            if (a->accumulate)
                sum += (double)g->host[2][i * n + j];
            assert_true(fabs((double)got[i * n + j] - sum) < allowed);
        }
}

static void check_e4m3(struct rig *g, const struct hzp_matmul_args *a)
{
    check_e4m3_within(g, a, 0);
}

/* The library's operands are exchanged, and each side's scales must follow its operand; one
 * descriptor serves ops with other scales. */
static void test_e4m3(void **state)
{
    struct rig *g = rig_open(NULL, NULL);
    for (int i = 0; i < 6; i++) {
        struct hzp_matmul_args a = product_e4m3(g, 12 + 8 * (i % 2), 32, 48, i / 2 % 2);
        assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
        check_e4m3(g, &a);
    }
    assert_int_equal(fake_count(FAKE_PRODUCT), 6);
    assert_int_equal(fake_count(FAKE_KERNEL), 0);
    rig_close(g);
}

/* Where the library has no algorithm of e4m3 into F32, it writes BF16, which is added: no fallback,
 * and it is asked once. */
static void test_e4m3_by_half(void **state)
{
    fake_e4m3 = FAKE_E4M3_HALF;
    struct rig *g = rig_open(NULL, NULL);
    for (int i = 0; i < 4; i++) {
        struct hzp_matmul_args a = product_e4m3(g, 12, 32, 48, i % 2);
        int kernels = fake_count(FAKE_KERNEL);
        assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
        check_e4m3_within(g, &a, 0x1p-8);
        assert_int_equal(fake_count(FAKE_PRODUCT), i + 1);
        assert_int_equal(fake_count(FAKE_KERNEL), kernels + 1);
    }
    fake_e4m3 = FAKE_E4M3_ALL;
    /* one that is refused only when it runs */
    struct hzp_matmul_args late = product_e4m3(g, 40, 32, 48, 1);
    fake_fail("cublasLtMatmul", 0, 15);
    assert_int_equal(hzp_op_matmul(g->lane, &late), HZP_OK);
    check_e4m3_within(g, &late, 0x1p-8);
    assert_int_equal(hzp_device_fallbacks(g->dev, HZP_FALLBACK_product), 0);
    rig_close(g);
}

/* Products of e4m3, which are serving's, may add up with fewer bits; others never, and none where
 * the operator says so. */
static void test_fast(void **state)
{
    for (int on = 1; on >= 0; on--) {
        if (!on)
            setenv("HZP_CUDA_FAST_ACCUM", "0", 1);
        struct rig *g = rig_open(NULL, NULL);
        struct hzp_matmul_args narrow = product_e4m3(g, 12, 32, 48, false);
        struct hzp_matmul_args other = product(g, 12, 32, 48, 0, 1, 0);
        assert_int_equal(hzp_op_matmul(g->lane, &narrow), HZP_OK);
        assert_int_equal(last_product().fast, on);
        assert_int_equal(hzp_op_matmul(g->lane, &other), HZP_OK);
        assert_int_equal(last_product().fast, 0);
        finish(g);
        rig_close(g);
    }
    unsetenv("HZP_CUDA_FAST_ACCUM");
}

/* Our kernels take products with few rows, with shapes the library does not support, and those
 * it has no algorithm for. */
static void test_e4m3_by_ourselves(void **state)
{
    static const struct {
        int32_t m, n, k;
        enum fake_e4m3 has;
    } cases[] = {{8, 32, 48, FAKE_E4M3_ALL},
                 {20, 24, 48, FAKE_E4M3_ALL},
                 {20, 32, 40, FAKE_E4M3_ALL},
                 {20, 32, 48, FAKE_E4M3_NONE}};
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct rig *g = rig_open(NULL, NULL);
        struct hzp_matmul_args a = product_e4m3(g, cases[i].m, cases[i].n, cases[i].k, 1);
        fake_e4m3 = cases[i].has;
        assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
        assert_int_equal(fake_count(FAKE_PRODUCT), 0);
        assert_int_equal(fake_count(FAKE_KERNEL), 1);
        check_e4m3(g, &a);
        assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK); /* the library is not asked again */
        assert_int_equal(fake_count(FAKE_KERNEL), 2);
        finish(g);
        rig_close(g);
    }
    fake_e4m3 = FAKE_E4M3_ALL;
}

/* ---- what is kept ---- */

static int cache_open(void **state)
{
    snprintf(cache, sizeof(cache), "%s/hzp-algos-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(cache) ? 0 : 1;
}

/* Finds the only file in the cache; its path goes to ret. */
static void cache_file(char *ret, size_t size)
{
    char folder[128];
    int found = 0;
    snprintf(folder, sizeof(folder), "%s/hzpserve", cache);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (e->d_name[0] != '.') {
            snprintf(ret, size, "%s/%s", folder, e->d_name);
            found++;
        }
    closedir(dir);
    assert_int_equal(found, 1);
}

static int cache_close(void **state)
{
    char path[512];
    cache_file(path, sizeof(path));
    unlink(path);
    snprintf(path, sizeof(path), "%s/hzpserve", cache);
    rmdir(path);
    return rmdir(cache);
}

/* Runs one product in a device of its own; returns the algorithm it used. */
static int algo_of(bool tune, int accumulate)
{
    setenv("HZP_CUDA_TUNE", tune ? "" : "0", 1);
    struct rig *g = rig_open(NULL, cache);
    struct hzp_matmul_args a = product(g, 16, 24, 8, 0, 1, 0);
    a.accumulate = accumulate;
    upload(g);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
    int algo = last_product().algo;
    check(g, &a);
    rig_close(g);
    setenv("HZP_CUDA_TUNE", "0", 1);
    return algo;
}

static void test_kept(void **state)
{
    static const int times[] = {9000, 7000, 2000, 5000, 8000};
    char path[512];
    struct stat info;
    fake_set_algo_times(times, 5);
    assert_int_equal(algo_of(false, 0), 0); /* the one advised first */
    assert_int_equal(algo_of(true, 0), 2);  /* the fastest */
    assert_int_equal(algo_of(false, 0), 2); /* from disk */
    assert_int_equal(algo_of(true, 1), 2);  /* the same shape: accumulating makes no other */
    cache_file(path, sizeof(path));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);

    /* a change of any byte of the file must be detected, and so must a truncated file */
    FILE *file = fopen(path, "rb");
    static char good[1 << 16];
    size_t size = fread(good, 1, sizeof(good), file);
    fclose(file);
    assert_in_range(size, 256, sizeof(good) - 1);
    for (size_t cut = 0; cut <= size + 1; cut += 1 + size / 23) {
        char bad[sizeof(good)];
        memcpy(bad, good, size + 1);
        size_t length = cut % 2 ? cut : size;
        if (length == size)
            bad[HZP_MIN(cut, size - 1)] ^= 0x20;
        file = fopen(path, "wb");
        assert_int_equal(fwrite(bad, 1, length, file), length);
        fclose(file);
        assert_int_equal(algo_of(false, 0), 0);
    }
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* a FIFO: opening it must not block */
    assert_int_equal(algo_of(false, 0), 0);
    algo_of(false, 0);
    fake_set_algo_times(times, 0);
}

/* The only entry of the file is marked as tuned. */
static bool is_tuned(void)
{
    char path[512];
    struct hzp_cuda_algo last;
    cache_file(path, sizeof(path));
    FILE *file = fopen(path, "rb");
    assert_int_equal(fseek(file, -(long)sizeof(last), SEEK_END), 0);
    assert_int_equal(fread(&last, sizeof(last), 1, file), 1);
    fclose(file);
    return last.tuned;
}

/* Sums that are too large for the memory in which algorithms are timed: the library's advice is
 * used, and not kept as if it had been timed. */
static void test_untimed(void **state)
{
    enum { M = 4096 + 64, N = 4096 };
    float *y;
    setenv("HZP_CUDA_TUNE", "", 1);
    struct rig *g = rig_open(NULL, cache);
    assert_int_equal(hzp_device_alloc(g->dev, HZP_MEM_DEVICE, (size_t)M * N * 4, (void **)&y),
                     HZP_OK);
    struct hzp_matmul_args a = {.a = {g->x, M, 1, 1, HZP_F32}, /* quick to compute */
                                .b = {g->w, N, 1, 1, HZP_F32},
                                .c = {y, M, N, N, HZP_F32},
                                .trans_b = 1,
                                .accumulate = 1};
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
    finish(g);
    assert_int_equal(fake_count(FAKE_PRODUCT), 1);
    hzp_device_free(g->dev, HZP_MEM_DEVICE, y);
    rig_close(g);
    assert_false(is_tuned());
    setenv("HZP_CUDA_TUNE", "0", 1);
}

/* If no algorithm runs while they are timed, the one advised first is used, and not kept as if it
 * had been timed. */
static void test_none_timed(void **state)
{
    setenv("HZP_CUDA_TUNE", "", 1);
    struct rig *g = rig_open(NULL, cache);
    struct hzp_matmul_args a = product(g, 16, 24, 8, 0, 1, 0);
    upload(g);
    fake_fail("cudaEventCreate", 0, cudaErrorMemoryAllocation);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
    fake_fail("", 0, 0);
    assert_int_equal(last_product().algo, 0);
    check(g, &a);
    rig_close(g);
    assert_false(is_tuned());
    setenv("HZP_CUDA_TUNE", "0", 1);
}

/* Runs one product of this many rows; returns the algorithm it used. */
static int algo_with(struct rig *g, int32_t rows)
{
    struct hzp_matmul_args a = product(g, rows, 24, 8, 0, 1, 0);
    upload(g);
    assert_int_equal(hzp_op_matmul(g->lane, &a), HZP_OK);
    int algo = last_product().algo;
    check(g, &a);
    return algo;
}

/* Each timed product finds the cache without its weights: before it, as much of the lane's memory
 * as the cache has is written, then its activations are read. */
static void check_cold(int from)
{
    int timed = 0, sets = 0, copies = 0;
    for (int i = from; i < fake_calls(); i++) {
        const struct fake_call *call = fake_call_at(i);
        sets += call->kind == FAKE_SET && call->size >= 1 << 16;
        copies += call->kind == FAKE_COPY && sets == 2;
        if (call->kind != FAKE_PRODUCT)
            continue;
        if (sets)
            assert_true(sets == 2 && copies == 1);
        timed += sets > 0;
        sets = copies = 0;
    }
    assert_int_equal(timed, 5 * 4); /* algorithms; a warm-up run and three timed ones */
}

/* Until the device is steady each shape's algorithms are timed once; later only if that was
 * asked for, and a new shape gets those of one with nearly as many rows. */
static void test_steady(void **state)
{
    static const int times[] = {9000, 7000, 2000, 5000, 8000};
    fake_set_algo_times(times, 5);
    for (int how = 0; how < 3; how++) {
        static const char *const tune[] = {"", "0", "1"};
        setenv("HZP_CUDA_TUNE", tune[how], 1);
        struct rig *g = rig_open(NULL, NULL);
        int calls = fake_calls();
        assert_int_equal(algo_with(g, 16), how == 1 ? 0 : 2);
        if (how != 1)
            check_cold(calls);
        int products = fake_count(FAKE_PRODUCT);
        assert_int_equal(algo_with(g, 16), how == 1 ? 0 : 2);
        assert_int_equal(fake_count(FAKE_PRODUCT), products + 1);
        hzp_device_steady(g->dev);
        assert_int_equal(algo_with(g, 16), how == 1 ? 0 : 2);
        /* a shape that was not timed: as the one of twice or half as many rows */
        assert_int_equal(algo_with(g, 32), how == 1 ? 0 : 2);
        assert_int_equal(algo_with(g, 8), how == 1 ? 0 : 2);
        assert_int_equal(algo_with(g, 33 + how), how == 2 ? 2 : 0);
        rig_close(g);
    }
    setenv("HZP_CUDA_TUNE", "0", 1);
    fake_set_algo_times(times, 0);
}

/* An unknown word is refused, as for the lanes' setting; otherwise it would cause timing while
 * serving. */
static void test_tune_words(void **state)
{
    static const char *const bad[] = {"x", "2", "on", "01"};
    struct hzp_device_config config = {.name = "cuda"};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        struct hzp_device *dev = NULL;
        struct hzp_err_text why = {0};
        setenv("HZP_CUDA_TUNE", bad[i], 1);
        assert_int_equal(hzp_device_open(&config, &dev, &why), HZP_EINVAL);
        assert_non_null(strstr(why.text, "HZP_CUDA_TUNE"));
        assert_string_equal(fake_leaks(), "");
    }
    setenv("HZP_CUDA_TUNE", "0", 1);
}

/* Results of timing are written to disk soon, while the device stays open, so that a killed
 * process loses none of them. */
static void test_kept_soon(void **state)
{
    char folder[128];
    struct rig *g = rig_open(NULL, cache);
    algo_with(g, 16);
    algo_with(g, 32);
    snprintf(folder, sizeof(folder), "%s/hzpserve", cache);
    int entries = 0;
    for (int i = 0; i < 60000 && entries < 2; i++) { /* bounds the wait */
        char path[512];
        struct stat info;
        usleep(10000);
        if (stat(folder, &info) < 0 || info.st_nlink < 2)
            continue;
        DIR *dir = opendir(folder);
        for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
            const char *end = strstr(e->d_name, ".algos");
            snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
            if (end && !end[6] && stat(path, &info) == 0) /* no entry is half written */
                entries = (int)(((size_t)info.st_size - 128) / sizeof(struct hzp_cuda_algo));
        }
        closedir(dir);
    }
    assert_int_equal(entries, 2);
    rig_close(g);
}

/* An intact file whose algorithm is for another problem: the library's check rejects it. */
static void test_foreign_algorithm(void **state)
{
    static const int times[] = {9000, 7000, 8000, 5000, 8000};
    char path[512];
    fake_set_algo_times(times, 5);
    assert_int_equal(algo_of(true, 1), 3); /* timing must not add to the result */
    fake_set_algo_times(times, 0);
    cache_file(path, sizeof(path));
    setenv("XDG_CACHE_HOME", cache, 1);
    struct hzp_cuda_algos *algos =
        hzp_cuda_algos_open("Recorder, 132 SMs, sm_90; driver 13000; cublasLt 130100");
    uint64_t algo[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    FILE *file = fopen(path, "rb");
    unsigned char last[sizeof(struct hzp_cuda_algo)];
    assert_int_equal(fseek(file, -(long)sizeof(last), SEEK_END), 0);
    assert_int_equal(fread(last, sizeof(last), 1, file), 1);
    fclose(file);
    assert_non_null(hzp_cuda_algos_find(algos, last, HZP_CUDA_ALGO_KEY));
    hzp_cuda_algos_add(algos, last, HZP_CUDA_ALGO_KEY, algo, true);
    hzp_cuda_algos_close(algos);
    assert_int_equal(algo_of(false, 0), 0);
}

static void test_many(void **state)
{
    setenv("XDG_CACHE_HOME", cache, 1);
    struct hzp_cuda_algos *algos = hzp_cuda_algos_open("many");
    for (uint64_t turn = 0; turn < 2; turn++) {
        for (uint64_t i = 0; i < HZP_CUDA_ALGOS_MAX + 100; i++) {
            uint64_t algo[8] = {i + turn};
            hzp_cuda_algos_add(algos, &i, sizeof(i), algo, false);
        }
        for (uint64_t i = 0; i < HZP_CUDA_ALGOS_MAX + 100; i++) {
            const struct hzp_cuda_algo *e = hzp_cuda_algos_find(algos, &i, sizeof(i));
            assert_true(i >= 100 ? e && e->algo[0] == i + turn : !e); /* the oldest left */
        }
    }
    hzp_cuda_algos_close(algos);
    algos = hzp_cuda_algos_open("many");
    uint64_t some = 177;
    assert_int_equal(hzp_cuda_algos_find(algos, &some, sizeof(some))->algo[0], 178);
    hzp_cuda_algos_close(algos);
    algos = hzp_cuda_algos_open("others");
    assert_null(hzp_cuda_algos_find(algos, &some, sizeof(some)));
    hzp_cuda_algos_close(algos);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_sm_target),
        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_e4m3_by_half),
        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_fallbacks),
        cmocka_unit_test(test_another_algorithm),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_many_shapes),
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_e4m3_by_ourselves),
        cmocka_unit_test(test_steady),
        cmocka_unit_test(test_tune_words),
        cmocka_unit_test_setup_teardown(test_kept, cache_open, cache_close),
        cmocka_unit_test_setup_teardown(test_untimed, cache_open, cache_close),
        cmocka_unit_test_setup_teardown(test_none_timed, cache_open, cache_close),
        cmocka_unit_test_setup_teardown(test_kept_soon, cache_open, cache_close),
        cmocka_unit_test_setup_teardown(test_foreign_algorithm, cache_open, cache_close),
        cmocka_unit_test_setup_teardown(test_many, cache_open, cache_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
