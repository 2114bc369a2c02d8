/* SPDX-License-Identifier: Apache-2.0 */
/* Products in F32 arithmetic (device/cpu/wide_tmpl.c, few_tmpl.c): with vectors of 4, 8 and 16
 * floats, all compiled here for the base instruction set, so that the wide ones run on any machine.
 * All give the same bits, near the sums in double.  On the levels of this machine's device: the
 * same bits however c's rows are split into calls and whatever the number of threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/bf16.h"
#include "device/cpu/matmul.h"
#include "device/fp8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const struct hzp_panel_kernels hzp_cpu_wide_lanes4, hzp_cpu_wide_lanes8,
    hzp_cpu_wide_lanes16;
extern const struct hzp_few_kernels hzp_cpu_few_lanes4, hzp_cpu_few_lanes8, hzp_cpu_few_lanes16;

enum { PAD = 3, GUARD = 16 };

struct shape {
    int m, n, k;
};

struct product {
    struct hzp_matmul_args args;
    void *a, *b, *bias;
    float *c, *before;
    size_t c_count;
};

static uint32_t seed = 1;

static float draw(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8 & 0xffff) / 32768.f - 1.f;
}

static void *fill(size_t count, enum hzp_dtype type)
{
    char *p = malloc(count * hzp_dtype_size(type) + GUARD);
    assert_non_null(p);
    for (size_t i = 0; i < count; i++)
        if (type == HZP_BF16)
            ((uint16_t *)(void *)p)[i] = hzp_bf16_from_f32(draw());
        else
            ((float *)(void *)p)[i] = draw();
    return p;
}

/* Rows are PAD elements longer than their width.  c is F32, between two guards. */
static struct product product_make(struct shape s, enum hzp_dtype type, int trans, bool add)
{
    struct product p = {0};
    int ta = trans >> 1, tb = trans & 1;
    struct hzp_mat a = {NULL, ta ? s.k : s.m, ta ? s.m : s.k, (ta ? s.m : s.k) + PAD, type};
    struct hzp_mat b = {NULL, tb ? s.n : s.k, tb ? s.k : s.n, (tb ? s.k : s.n) + PAD, type};

    p.a = a.ptr = fill((size_t)HZP_MAX(a.rows, 1) * (size_t)a.stride, type);
    p.b = b.ptr = fill((size_t)HZP_MAX(b.rows, 1) * (size_t)b.stride, type);
    p.bias = fill((size_t)s.n, type);
    p.c_count = (size_t)s.m * (size_t)(s.n + PAD) + 2 * GUARD;
    p.c = fill(p.c_count, HZP_F32);
    p.before = malloc(p.c_count * sizeof(*p.c));
    assert_non_null(p.before);
    memcpy(p.before, p.c, p.c_count * sizeof(*p.c));
    p.args = (struct hzp_matmul_args){.a = a,
                                      .b = b,
                                      .c = {p.c + GUARD, s.m, s.n, s.n + PAD, HZP_F32},
                                      .trans_a = ta,
                                      .trans_b = tb,
                                      .accumulate = add};
    if (add)
        p.args.bias = (struct hzp_mat){p.bias, 1, s.n, s.n, type};
    return p;
}

static void product_drop(struct product *p)
{
    free(p->a);
    free(p->b);
    free(p->bias);
    free(p->c);
    free(p->before);
}

static double at(const struct hzp_mat *mat, int row, int col)
{
    size_t i = (size_t)row * (size_t)mat->stride + (size_t)col;
    return mat->type == HZP_BF16 ? (double)hzp_bf16_to_f32(((uint16_t *)mat->ptr)[i])
                                 : (double)((float *)mat->ptr)[i];
}

/* Some elements are near their sums, and memory beside c is unchanged. */
static void near_the_sums(const struct product *p, int k)
{
    const struct hzp_matmul_args *a = &p->args;

    for (size_t i = 0; i < p->c_count; i++) {
        size_t in = i - GUARD, row = in / (size_t)a->c.stride, col = in % (size_t)a->c.stride;
        if (i < GUARD || row >= (size_t)a->c.rows || col >= (size_t)a->c.cols) {
            assert_memory_equal(&p->c[i], &p->before[i], sizeof(*p->c));
            continue;
        }
        if (i % 7 && col + 1 < (size_t)a->c.cols)
            continue;
        int m = (int)row, n = (int)col;
        double sum = a->accumulate ? (double)p->before[i] + at(&a->bias, 0, n) : 0;
        for (int e = 0; e < k; e++)
            sum += (a->trans_a ? at(&a->a, e, m) : at(&a->a, m, e)) *
                   (a->trans_b ? at(&a->b, n, e) : at(&a->b, e, n));
        assert_true(fabs((double)p->c[i] - sum) <= 1e-5 * (sqrt(k) + 2));
    }
}

static const struct shape shapes[] = {{1, 1, 1},    {1, 70, 45},   {1, 131, 300}, {2, 33, 17},
                                      {5, 64, 32},  {7, 100, 129}, {13, 31, 257}, {6, 96, 600},
                                      {65, 50, 64}, {300, 37, 90}, {530, 70, 33}, {31, 20, 0}};

/* A product x W^T of E4M3 codes, none of them NaN, and scales. */
static struct product product_of_codes(struct shape s, float **scales)
{
    struct product p = product_make(s, HZP_F32, 1, true);
    struct hzp_mat *mat[] = {&p.args.a, &p.args.b};

    for (int i = 0; i < 2; i++) {
        size_t count = (size_t)HZP_MAX(mat[i]->rows, 1) * (size_t)mat[i]->stride;
        uint8_t *code = mat[i]->ptr;
        for (size_t k = 0; k < count; k++) {
            code[k] = (uint8_t)(draw() * 128.f + 128.f);
            code[k] = (uint8_t)((code[k] & 0x7f) == 0x7f ? code[k] - 1 : code[k]);
        }
        mat[i]->type = HZP_E4M3;
    }
    *scales = fill((size_t)(s.m + s.n), HZP_F32);
    p.args.scale_a = *scales;
    p.args.scale_b = *scales + s.m;
    return p;
}

static void near_the_sums_of_codes(const struct product *p, int k)
{
    const struct hzp_matmul_args *a = &p->args;

    for (int m = 0; m < a->c.rows; m++)
        for (int n = 0; n < a->c.cols; n++) {
            size_t i = GUARD + (size_t)m * (size_t)a->c.stride + (size_t)n;
            double sum = 0, size = 0;
            for (int e = 0; e < k; e++) {
                size_t at_a = (size_t)m * (size_t)a->a.stride + (size_t)e;
                size_t at_b = (size_t)n * (size_t)a->b.stride + (size_t)e;
                double product = (double)hzp_e4m3_to_f32(((uint8_t *)a->a.ptr)[at_a]) *
                                 (double)hzp_e4m3_to_f32(((uint8_t *)a->b.ptr)[at_b]);
                sum += product;
                size += fabs(product);
            }
            double scale = (double)a->scale_a[m] * (double)a->scale_b[n];
            sum = sum * scale + (double)p->before[i] + at(&a->bias, 0, n);
            assert_true(fabs((double)p->c[i] - sum) <= 1e-5 * (size * fabs(scale) + 2));
        }
}

static const struct hzp_panel_kernels *const kernels[] = {
    &hzp_cpu_wide_lanes16, &hzp_cpu_wide_lanes8, &hzp_cpu_wide_lanes4};

static void e4m3_in_every_width(void **state)
{
    struct hzp_team *team;

    assert_int_equal(hzp_team_open(2, 2, &team), HZP_OK);
    for (int s = 0; s < HZP_COUNT(shapes); s++) {
        float *scales;
        struct product p = product_of_codes(shapes[s], &scales);
        size_t bytes = p.c_count * sizeof(*p.c);
        float *first = malloc(bytes);
        assert_non_null(first);
        for (int i = 0; i < HZP_COUNT(kernels); i++) {
            memcpy(p.c, p.before, bytes);
            assert_int_equal(hzp_cpu_panel_run(team, &p.args, kernels[i]), HZP_OK);
            if (i == 0) {
                near_the_sums_of_codes(&p, shapes[s].k);
                memcpy(first, p.c, bytes);
            }
            assert_memory_equal(p.c, first, bytes);
        }
        free(first);
        free(scales);
        product_drop(&p);
    }
    hzp_team_close(team);
}

static void every_width_the_same_bits(void **state)
{
    struct hzp_team *team;

    assert_int_equal(hzp_team_open(2, 2, &team), HZP_OK);
    for (int s = 0; s < HZP_COUNT(shapes); s++)
        for (int way = 0; way < 16; way++) {
            struct product p =
                product_make(shapes[s], way & 4 ? HZP_BF16 : HZP_F32, way & 3, way & 8);
            size_t bytes = p.c_count * sizeof(*p.c);
            float *first = malloc(bytes);
            assert_non_null(first);
            for (int i = 0; i < HZP_COUNT(kernels); i++) {
                memcpy(p.c, p.before, bytes);
                assert_int_equal(hzp_cpu_panel_run(team, &p.args, kernels[i]), HZP_OK);
                if (i == 0) {
                    near_the_sums(&p, shapes[s].k);
                    memcpy(first, p.c, bytes);
                }
                assert_memory_equal(p.c, first, bytes);
            }
            free(first);
            product_drop(&p);
        }
    hzp_team_close(team);
}

/* Few rows without packing W: the bits of the panels, in every width and by any number of threads;
 * one row also by several streams through W.  W's rows with and without a gap between them. */
static void few_rows_the_same_bits(void **state)
{
    static const struct hzp_few_kernels *const few[] = {&hzp_cpu_few_lanes16, &hzp_cpu_few_lanes8,
                                                        &hzp_cpu_few_lanes4};
    static const struct shape some[] = {{1, 32, 1},    {1, 70, 45},  {1, 131, 600}, {1, 50, 64},
                                        {1, 150, 70},  {1, 400, 40}, {2, 48, 33},   {8, 100, 64},
                                        {12, 50, 129}, {3, 97, 257}, {16, 61, 600}, {23, 51, 45},
                                        {24, 96, 200}, {5, 49, 2}};
    struct hzp_team *team[2];

    for (int t = 0; t < 2; t++)
        assert_int_equal(hzp_team_open(2 * t + 1, 3, &team[t]), HZP_OK);
    for (int s = 0; s < HZP_COUNT(some); s++)
        for (int way = 0; way < 8; way++) {
            struct product p =
                product_make(some[s], way & 1 ? HZP_BF16 : HZP_F32, 1, (way & 2) != 0);
            size_t bytes = p.c_count * sizeof(*p.c);
            float *whole = malloc(bytes);
            assert_non_null(whole);
            if (way & 4)
                p.args.b.stride = p.args.b.cols;
            assert_int_equal(hzp_cpu_panel_run(team[1], &p.args, kernels[0]), HZP_OK);
            near_the_sums(&p, some[s].k);
            memcpy(whole, p.c, bytes);
            for (int i = 0; i < 4 * HZP_COUNT(few); i++) {
                const struct hzp_few_kernels *k = few[i / 4];
                if (some[s].m > HZP_FEW_VECTORS * k->lanes)
                    continue;
                memcpy(p.c, p.before, bytes);
                assert_int_equal(hzp_cpu_few_run(team[i % 2], &p.args, k, i & 2), HZP_OK);
                assert_memory_equal(p.c, whole, bytes);
            }
            free(whole);
            product_drop(&p);
        }
    for (int t = 0; t < 2; t++)
        hzp_team_close(team[t]);
}

/* One row by the dot kernels: the same bits by neighbouring rows of W and by streams through it. */
static void dot_streams_the_same_bits(void **state)
{
    static const struct shape some[] = {{1, 32, 64}, {1, 71, 45}, {1, 3, 300}, {1, 130, 2048}};
    const struct hzp_cpu_product *product[] = {
        &hzp_cpu_product_base,
#if defined(__x86_64__)
        __builtin_cpu_supports("avx2") ? &hzp_cpu_product_avx2 : NULL,
        __builtin_cpu_supports("avx512bw") ? &hzp_cpu_product_avx512 : NULL,
#endif
    };

    for (int s = 0; s < HZP_COUNT(some); s++)
        for (int codes = 0; codes < 2; codes++) {
            float *scales = NULL;
            struct product p = codes ? product_of_codes(some[s], &scales)
                                     : product_make(some[s], HZP_BF16, 1, true);
            size_t bytes = p.c_count * sizeof(*p.c);
            uint16_t *x = fill((size_t)some[s].k, HZP_BF16);
            float *near = malloc(bytes), *work = malloc(HZP_DOT_WORK);
            assert_true(near && work);
            for (int i = 0; i < HZP_COUNT(product); i++) {
                struct hzp_dot dot = {.args = &p.args, .x = (char *)x, .k_block = some[s].k};
                if (!product[i])
                    continue;
                memcpy(p.c, p.before, bytes);
                product[i]->dot(&dot, 0, 1, 0, some[s].n, work);
                memcpy(near, p.c, bytes);
                assert_memory_not_equal(near, p.before, bytes);
                memcpy(p.c, p.before, bytes);
                dot.streams = true;
                product[i]->dot(&dot, 0, 1, 0, some[s].n, work);
                assert_memory_equal(p.c, near, bytes);
            }
            free(near);
            free(work);
            free(x);
            free(scales);
            product_drop(&p);
        }
}

/* Computes only rows begin .. end-1 of c. */
static void some_rows(struct hzp_lane *lane, const struct product *p, int begin, int end)
{
    struct hzp_matmul_args a = p->args;
    char *from = a.a.ptr;
    size_t size = hzp_dtype_size(a.a.type);

    a.c = hzp_mat_rows(a.c, begin, end - begin);
    if (a.trans_a) {
        a.a.ptr = from + (size_t)begin * size;
        a.a.cols = end - begin;
    } else {
        a.a = hzp_mat_rows(a.a, begin, end - begin);
    }
    assert_int_equal(hzp_op_matmul(lane, &a), HZP_OK);
}

static void level_cut(const char *level, int threads)
{
    static const int cut[] = {0, 1, 2, 4, 12, 15, 16, 32, 56, 129, 300};
    struct hzp_device_config config = {.name = "cpu", .threads = threads, .level = level};
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_err_text err;

    if (hzp_device_open(&config, &dev, &err) < 0)
        return; /* this CPU lacks the level */
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane), HZP_OK);
    for (int way = 0; way < 8; way++) {
        struct product p = product_make((struct shape){300, 203, 700}, way & 4 ? HZP_BF16 : HZP_F32,
                                        way & 3, false);
        size_t bytes = p.c_count * sizeof(*p.c);
        float *whole = malloc(bytes);
        assert_non_null(whole);
        assert_int_equal(hzp_op_matmul(lane, &p.args), HZP_OK);
        memcpy(whole, p.c, bytes);
        memcpy(p.c, p.before, bytes);
        for (int i = 0; i + 1 < HZP_COUNT(cut); i++)
            some_rows(lane, &p, cut[i], cut[i + 1]);
        assert_memory_equal(p.c, whole, bytes);
        free(whole);
        product_drop(&p);
    }
    hzp_lane_close(lane);
    hzp_device_close(dev);
}

static void rows_cut_any_way(void **state)
{
    /* levels with pairs of bf16 use other kernels, see test_product.c */
    static const char *const level[] = {"base", "avx2"};

    for (int i = 0; i < HZP_COUNT(level); i++)
        for (int threads = 1; threads < 4; threads += 2)
            level_cut(level[i], threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width_the_same_bits), cmocka_unit_test(e4m3_in_every_width),
        cmocka_unit_test(few_rows_the_same_bits),    cmocka_unit_test(dot_streams_the_same_bits),
        cmocka_unit_test(rows_cut_any_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
