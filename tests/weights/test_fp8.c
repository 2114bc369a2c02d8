/* SPDX-License-Identifier: Apache-2.0 */
/* tests/weights/test_fp8.c - the place of a version's e4m3 projections, how they are computed,
 * and that no version is published without them. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "device/fp8.h"
#include "tests/fixture/units.h"
#include "weights/fp8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hzp_device *dev;
static struct hzp_layout layout;

static int setup(void **state)
{
    struct hzp_model_config c = {.family = "qwen2",
                                 .layers = 3,
                                 .width = 20,
                                 .inner = 28,
                                 .vocab = 11,
                                 .heads = {5, 1, 4},
                                 .positions = 4,
                                 .tied = true,
                                 .qkv_bias = true};
    struct hzp_device_config config = {.name = "ref"};
    hzp_layout_make(&c, &layout);
    return hzp_device_open(&config, &dev, NULL);
}

static int teardown(void **state)
{
    hzp_layout_free(&layout);
    hzp_device_close(dev);
    return 0;
}

static void mark(uint8_t *seen, size_t bytes, const char *base, const void *ptr, size_t size)
{
    size_t at = (size_t)((const char *)ptr - base);
    assert_true(at + size <= bytes);
    for (size_t i = 0; i < size; i++)
        assert_int_equal(seen[at + i]++, 0);
}

/* Returns the layer's bytes. */
static size_t check_layer(const struct hzp_layout *l, int32_t layer)
{
    size_t bytes = hzp_fp8_layer_bytes(l, layer), used = 0;
    uint8_t *seen = calloc(1, bytes);
    char *base = aligned_alloc(256, bytes);
    for (int i = 0; i < HZP_FP8_ROLES; i++) {
        float *scale;
        struct hzp_mat mat = hzp_fp8_mat(l, base, hzp_fp8_role[i], layer, &scale);
        const struct hzp_tensor *like = hzp_layout_find(l, hzp_fp8_role[i], layer);
        size_t codes = (size_t)mat.rows * (size_t)mat.cols;
        assert_int_equal(mat.rows, like->rows);
        assert_int_equal(mat.cols, like->cols);
        assert_int_equal(mat.stride, mat.cols);
        assert_int_equal(mat.type, HZP_E4M3);
        assert_int_equal((uintptr_t)mat.ptr % 64, 0);
        assert_int_equal((uintptr_t)scale % 16, 0);
        mark(seen, bytes, base, mat.ptr, codes);
        mark(seen, bytes, base, scale, (size_t)mat.rows * sizeof(*scale));
        used += codes + (size_t)mat.rows * sizeof(*scale);
    }
    assert_int_equal(bytes % 256, 0);
    assert_true(bytes - used <= 256 + 8 * 64); /* almost nothing but codes and scales */
    free(seen);
    free(base);
    return bytes;
}

static void test_places(void **state)
{
    const int32_t inner[] = {28, 100, 4};
    struct hzp_layout uneven;
    hzp_layout_make_inner(&layout.config, inner, &uneven);
    for (int i = 0; i < 2; i++) {
        const struct hzp_layout *l = i ? &uneven : &layout;
        size_t bytes = 0;
        for (int32_t layer = 0; layer < 3; layer++)
            bytes += check_layer(l, layer);
        assert_int_equal(hzp_fp8_bytes(l), bytes);
    }
    hzp_layout_free(&uneven);
}

static struct hzp_weights *make(bool fp8, struct hzp_version **ret_draft)
{
    struct hzp_weights *w;
    struct hzp_weights_config config = {
        .type = HZP_BF16, .fp8 = fp8, .slots = 2, .max_staleness = 1, .first_id = 1};
    assert_int_equal(hzp_weights_create(dev, &layout, &config, &w), HZP_OK);
    assert_int_equal(hzp_weights_begin(w, ret_draft), HZP_OK);
    return w;
}

static void test_made(void **state)
{
    struct hzp_version *v;
    struct hzp_weights *w = make(true, &v);
    fixture_units_random(dev, hzp_version_units(w, v), 37, 3.125f);
    assert_false(v->fp8_made);
    assert_int_equal(hzp_version_quantize(w, v), HZP_OK);
    assert_true(v->fp8_made);
    for (int i = 0; i < HZP_FP8_ROLES; i++) {
        float *scale;
        struct hzp_mat x = hzp_version_mat(w, v, hzp_fp8_role[i], 2);
        struct hzp_mat y = hzp_version_fp8(w, v, hzp_fp8_role[i], 2, &scale);
        for (int32_t r = 0; r < x.rows; r++)
            for (int32_t c = 0; c < x.cols; c++) {
                float was = hzp_bf16_to_f32(((uint16_t *)x.ptr)[r * x.stride + c]);
                float is = hzp_e4m3_to_f32(((uint8_t *)y.ptr)[r * y.stride + c]) * scale[r];
                /* half a unit in the last place of three mantissa bits, or of the subnormals */
                float bound = was < 0 ? -was : was;
                bound = HZP_MAX(bound / 16, scale[r] * 0x1p-10f) * 1.0001f;
                assert_true(is - was <= bound && was - is <= bound);
            }
    }
    hzp_weights_publish(w, v, 0);
    assert_int_equal(hzp_weights_begin(w, &v), HZP_OK);
    assert_false(v->fp8_made); /* a draft's slot holds old ones, or none */
    hzp_weights_destroy(w);
}

static void test_without(void **state)
{
    struct hzp_version *v;
    struct hzp_weights *w = make(false, &v);
    assert_false(hzp_weights_fp8(w));
    assert_int_equal(hzp_version_quantize(w, v), HZP_OK);
    hzp_weights_publish(w, v, 0);
    hzp_weights_destroy(w);
}

/* Publishing a version without its e4m3 projections is a bug, and aborts. */
static void test_not_published_without(void **state)
{
    struct hzp_version *v;
    struct hzp_weights *w = make(true, &v);
    pid_t child = fork();
    if (child == 0) {
        fclose(stderr);
        signal(SIGABRT, SIG_DFL);
        hzp_weights_publish(w, v, 0);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    hzp_weights_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_made),
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_not_published_without),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
