/* SPDX-License-Identifier: Apache-2.0 */
/* Products on the CPU, whose bits do not depend on what else runs:
 *   - x W^T of few rows in BF16: a row's bits are those it has alone, whatever rows share the
 *     product and however many threads there are; and near the sums in double (tests/opcheck checks
 *     that more closely, for other shapes);
 *   - the gradients' products in F32: the same bits whatever share of the device's threads the lane
 *     has;
 * and of W, which lies between pages that cannot be read, they read nothing around it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/bf16.h"
#include "device/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS = 48, OUT = 203, IN_MAX = 2600, PAD = 24 };

struct fixture {
    uint16_t x[ROWS][IN_MAX + PAD], w[OUT][IN_MAX + PAD];
    float alone[ROWS][OUT], together[ROWS][OUT];
};

static void fill(uint16_t *p, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = hzp_bf16_from_f32((float)(seed >> 8 & 0xffff) / 32768.f - 1.f);
    }
}

static void multiply(struct hzp_lane *lane, struct fixture *f, int row, int rows, int out, int in,
                     int stride, float (*c)[OUT])
{
    struct hzp_matmul_args a = {
        .a = {f->x[row], rows, in, IN_MAX + PAD, HZP_BF16},
        .b = {f->w, out, in, stride, HZP_BF16},
        .c = {c, rows, out, OUT, HZP_F32},
        .trans_b = 1,
    };
    assert_int_equal(hzp_op_matmul(lane, &a), HZP_OK);
}

static void near_the_sums(const struct fixture *f, int rows, int out, int in, int stride)
{
    for (int r = 0; r < rows; r += 3)
        for (int n = 0; n < out; n += 7) {
            double sum = 0;
            for (int k = 0; k < in; k++)
                sum +=
                    (double)hzp_bf16_to_f32(f->x[r][k]) *
                    (double)hzp_bf16_to_f32((&f->w[0][0])[(size_t)n * (size_t)stride + (size_t)k]);
            assert_true(fabs(f->together[r][n] - sum) <= 1e-4 * sqrt(in + 1.0));
        }
}

static void rows_do_not_matter(int threads)
{
    static const int rows[] = {1, 2, 3, 5, 6, 7, 11, 12, 13, 16, 17, 23, 31, 32, 40, 48};
    static const struct {
        int out, in, stride;
    } shape[] = {{OUT, 576, 576},  {OUT, 576, 600},  {1, 1, 1},
                 {2, 31, 31},      {63, 33, 40},     {OUT, 1100, 1100},
                 {17, 2048, 2048}, {66, 2563, 2563}, {66, 2600, 2624}};
    struct hzp_device_config config = {.name = "cpu", .threads = threads};
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_err_text err;
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    assert_int_equal(hzp_device_open(&config, &dev, &err), HZP_OK);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane), HZP_OK);
    fill(&f->x[0][0], sizeof(f->x) / 2, 1);
    fill(&f->w[0][0], sizeof(f->w) / 2, 2);
    for (int s = 0; s < HZP_COUNT(shape); s++) {
        int out = shape[s].out, in = shape[s].in, stride = shape[s].stride;
        for (int r = 0; r < ROWS; r++)
            multiply(lane, f, r, 1, out, in, stride, &f->alone[r]);
        for (int i = 0; i < HZP_COUNT(rows); i++) {
            memset(f->together, 0xff, sizeof(f->together));
            multiply(lane, f, 0, rows[i], out, in, stride, f->together);
            for (int r = 0; r < rows[i]; r++)
                assert_memory_equal(f->together[r], f->alone[r], (size_t)out * sizeof(float));
            /* columns beside it are not touched */
            for (int r = 0; r < rows[i] && out < OUT; r++)
                assert_true(isnan(f->together[r][out]));
            near_the_sums(f, rows[i], out, in, stride);
        }
    }
    free(f);
    hzp_lane_close(lane);
    hzp_device_close(dev);
}

static void one_thread(void **state)
{
    rows_do_not_matter(1);
}

static void two_threads(void **state)
{
    rows_do_not_matter(2);
}

static void five_threads(void **state)
{
    rows_do_not_matter(5);
}

enum { GRAD_THREADS = 5, GRAD_SIDE = 1100 };

static struct hzp_mat f32_mat(float *p, int rows, int cols, int pad)
{
    return (struct hzp_mat){p, rows, cols, cols + pad, HZP_F32};
}

static float *f32_noise(size_t count, uint32_t seed)
{
    float *p = calloc(count, sizeof(*p));
    assert_non_null(p);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(seed >> 8 & 0xffff) / 32768.f - 1.f;
    }
    return p;
}

/* dY^T X, added to `to`, or dY W: m x n, sums of k. */
static void grad_product(struct hzp_device *dev, struct hzp_lane *lane, bool of_weight, int m,
                         int n, int k, float *a, float *b, float *to)
{
    struct hzp_fence *fence;
    struct hzp_matmul_args args = {
        .a = of_weight ? f32_mat(a, k, m, 3) : f32_mat(a, m, k, 3),
        .b = f32_mat(b, k, n, 5),
        .c = f32_mat(to, m, n, 0),
        .trans_a = of_weight,
        .accumulate = of_weight,
    };
    for (size_t i = 0; i < (size_t)m * (size_t)n; i++)
        to[i] = of_weight ? 0.25f : NAN;
    assert_int_equal(hzp_fence_open(dev, &fence), HZP_OK);
    assert_int_equal(hzp_lane_issue(lane, HZP_OP_matmul, &args), HZP_OK);
    assert_int_equal(hzp_fence_record(fence, lane), HZP_OK);
    assert_int_equal(hzp_fence_wait(fence), HZP_OK);
    hzp_fence_close(fence);
}

/* A plan's shape gives shares to lanes; a chain's products may run with any of them. */
static void shares_do_not_matter(void **state)
{
    static const struct {
        int m, n, k;
    } shape[] = {{72, 32, 4},    {80, 32, 17},   {130, 40, 31}, {36, 390, 12}, {200, 200, 9},
                 {40, 1100, 33}, {1100, 64, 20}, {65, 383, 64}, {7, 5, 3},     {300, 600, 128}};
    struct hzp_device_config config = {.name = "cpu", .threads = GRAD_THREADS};
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_err_text err;
    size_t room = (size_t)(GRAD_SIDE + 8) * GRAD_SIDE;
    float *a = f32_noise(room, 3), *b = f32_noise(room, 4);
    float *whole = f32_noise(room, 5), *shared = f32_noise(room, 6);

    assert_int_equal(hzp_device_open(&config, &dev, &err), HZP_OK);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane), HZP_OK);
    for (int s = 0; s < HZP_COUNT(shape); s++)
        for (int of_weight = 0; of_weight < 2; of_weight++) {
            int m = shape[s].m, n = shape[s].n, k = shape[s].k;
            size_t bytes = (size_t)m * (size_t)n * sizeof(float);
            assert_int_equal(hzp_lane_set_share(lane, 0), HZP_OK);
            grad_product(dev, lane, of_weight, m, n, k, a, b, whole);
            for (int units = 1; units <= GRAD_THREADS; units++) {
                assert_int_equal(hzp_lane_set_share(lane, units), HZP_OK);
                grad_product(dev, lane, of_weight, m, n, k, a, b, shared);
                if (memcmp(shared, whole, bytes))
                    fail_msg("%d x %d, sums of %d: other bits with %d of %d threads", m, n, k,
                             units, GRAD_THREADS);
            }
        }
    hzp_lane_close(lane);
    hzp_device_close(dev);
    free(a);
    free(b);
    free(whole);
    free(shared);
}

/* W at the end, then at the beginning, of what may be read. */
static void products_beside_a_border(struct hzp_lane *lane, char *first, size_t bytes)
{
    static const int shape[][2] = {{OUT, 576}, {96, 1536}, {40, 2048}, {64, 64}, {17, 2600}};
    static const int rows[] = {1, 2, 4, 7, 16, 33, 60};
    enum { MOST = 60 };
    uint16_t *x = calloc((size_t)MOST * IN_MAX, sizeof(*x));
    float *c = calloc((size_t)MOST * OUT, sizeof(*c));

    assert_true(x && c);
    for (int s = 0; s < HZP_COUNT(shape); s++)
        for (int i = 0; i < 2 * HZP_COUNT(rows); i++) {
            int out = shape[s][0], in = shape[s][1], n = rows[i / 2];
            size_t size = (size_t)out * (size_t)in * 2;
            struct hzp_matmul_args a = {
                .a = {x, n, in, in, HZP_BF16},
                .b = {i % 2 ? first : first + bytes - size, out, in, in, HZP_BF16},
                .c = {c, n, out, out, HZP_F32},
                .trans_b = 1,
            };
            assert_int_equal(hzp_op_matmul(lane, &a), HZP_OK);
        }
    free(x);
    free(c);
}

static void nothing_beside_w_is_read(void **state)
{
    static const char *const level[] = {"base", "avx2", "avx512", "avx512_bf16"};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = HZP_ROUND_UP((size_t)OUT * IN_MAX * 2, page);
    char *all = mmap(NULL, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int opened = 0;

    assert_true(all != MAP_FAILED);
    assert_int_equal(mprotect(all + page, bytes, PROT_READ | PROT_WRITE), 0);
    fill((uint16_t *)(void *)(all + page), bytes / 2, 7);
    for (int i = 0; i < HZP_COUNT(level); i++) {
        struct hzp_device_config config = {.name = "cpu", .threads = 2, .level = level[i]};
        struct hzp_device *dev;
        struct hzp_lane *lane;
        struct hzp_err_text err;
        if (hzp_device_open(&config, &dev, &err) < 0)
            continue; /* this CPU does not have it */
        opened++;
        assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane), HZP_OK);
        products_beside_a_border(lane, all + page, bytes);
        hzp_lane_close(lane);
        hzp_device_close(dev);
    }
    assert_true(opened > 0);
    munmap(all, bytes + 2 * page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_do_not_matter), cmocka_unit_test(nothing_beside_w_is_read),
        cmocka_unit_test(one_thread),           cmocka_unit_test(two_threads),
        cmocka_unit_test(five_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
