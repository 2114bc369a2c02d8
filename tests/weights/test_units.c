/* SPDX-License-Identifier: Apache-2.0 */
/* tests/weights/test_units.c - every function treats units in separate allocations, of layers
 * that differ, like units side by side. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "device/backend.h"
#include "tests/fixture/units.h"
#include "tests/weights/scratch.h"
#include "tests/weights/tiny_models.h"
#include "weights/model_dir.h"

#include <stdatomic.h>

static const int32_t inner[] = {20, 72, 8};
static struct hzp_layout layout; /* with the inner widths below */

static int setup(void **state)
{
    struct hzp_model_config c;
    struct hzp_err_text err;
    if (scratch_setup(state) < 0)
        return -1;
    scratch_write_text(scratch_path("config.json"), tiny_models[1]);
    if (hzp_config_read(scratch_dir, &c, &err) != HZP_OK || c.layers != HZP_COUNT(inner))
        return -1;
    hzp_layout_make_inner(&c, inner, &layout);
    return 0;
}

static int teardown(void **state)
{
    hzp_layout_free(&layout);
    return scratch_teardown(state);
}

/* Every unit in an allocation of its own, of exactly its size. */
static struct hzp_units apart(enum hzp_dtype type)
{
    struct hzp_units units;
    hzp_units_init(&units, &layout, type, NULL);
    for (int32_t u = layout.units - 1; u >= 0; u--)
        units.base[u] = malloc(layout.unit[u].elements * hzp_dtype_size(type));
    return units;
}

static void apart_free(struct hzp_units *units)
{
    for (int32_t u = 0; u < layout.units; u++)
        free(units->base[u]);
    hzp_units_free(units);
}

static void test_views(void **state)
{
    struct hzp_units units = fixture_units(&layout, HZP_BF16);
    char *at = units.base[0];
    for (int32_t u = 0; u < layout.units; u++) {
        struct hzp_unit_view view = hzp_unit_view(&units, u);
        assert_ptr_equal(view.base, at);
        assert_int_equal(view.type, HZP_BF16);
        assert_int_equal(view.elements, layout.unit[u].elements);
        assert_int_equal(view.decayed, layout.unit[u].decayed);
        assert_int_equal(hzp_unit_bytes(&view), view.elements * 2);
        struct hzp_mat piece = hzp_unit_piece(&view, 64, view.elements - 64);
        assert_ptr_equal(piece.ptr, at + 128);
        assert_int_equal(piece.rows, 1);
        assert_int_equal(piece.cols, view.elements - 64);
        at += hzp_unit_bytes(&view);
    }
    assert_int_equal(at - (char *)units.base[0], hzp_units_bytes(&layout, HZP_BF16));
    for (int32_t i = 0; i < layout.tensors; i++) {
        const struct hzp_tensor *t = &layout.tensor[i];
        struct hzp_mat m = hzp_units_mat(&units, t->role, t->layer);
        assert_ptr_equal(m.ptr, (char *)units.base[t->unit] + t->offset * 2);
        assert_int_equal(m.rows, t->rows);
        assert_int_equal(m.cols, t->cols);
        assert_int_equal(m.stride, t->cols);
        assert_int_equal(m.type, HZP_BF16);
    }
    assert_null(hzp_units_mat(&units, HZP_QKV_BIAS, 0).ptr);
    fixture_units_free(&units);
}

/* A unit that is not resident does not hide those that are. */
static void test_not_resident(void **state)
{
    struct hzp_units units = apart(HZP_F32);
    free(units.base[2]);
    units.base[2] = NULL;
    assert_null(hzp_unit_view(&units, 2).base);
    assert_int_equal(hzp_unit_view(&units, 2).elements, layout.unit[2].elements);
    assert_ptr_equal(hzp_units_mat(&units, HZP_QKV, 2).ptr, units.base[3]);
    apart_free(&units);
}

static void test_same_as_side_by_side(void **state)
{
    for (int type = HZP_F32; type <= HZP_BF16; type++) {
        struct hzp_units side = fixture_units(&layout, (enum hzp_dtype)type);
        struct hzp_units a = apart((enum hzp_dtype)type), b = apart((enum hzp_dtype)type);
        uint64_t sum, sum_a, sum_b;
        assert_int_equal(hzp_model_init(NULL, &side, 7, 0.5f), HZP_OK);
        assert_int_equal(hzp_model_init(NULL, &a, 7, 0.5f), HZP_OK);
        assert_true(fixture_units_same(NULL, &side, &a));
        assert_int_equal(hzp_units_checksum(NULL, &side, &sum), HZP_OK);
        assert_int_equal(hzp_units_checksum(NULL, &a, &sum_a), HZP_OK);
        assert_int_equal(sum, sum_a);
        /* small shards: layers share files, and are split between files */
        assert_int_equal(
            hzp_model_save_shards(scratch_path("out"), NULL, &a, scratch_dir, 6000, NULL), HZP_OK);
        for (int32_t u = 0; u < layout.units; u++)
            memset(b.base[u], 0xff, layout.unit[u].elements * hzp_dtype_size(b.type));
        assert_int_equal(hzp_model_load(scratch_path("out"), NULL, &b, &sum_b, NULL), HZP_OK);
        assert_true(fixture_units_same(NULL, &side, &b));
        assert_int_equal(sum, sum_b);
        /* one bit differs */
        ((uint8_t *)b.base[3])[17] ^= 4;
        assert_false(fixture_units_same(NULL, &side, &b));
        assert_int_equal(hzp_units_checksum(NULL, &b, &sum_b), HZP_OK);
        assert_int_not_equal(sum, sum_b);
        fixture_units_free(&side);
        apart_free(&a);
        apart_free(&b);
    }
}

/* The audit op, unit by unit, gives the same checksum; copies work unit by unit. */
static void test_on_device(void **state)
{
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_units a = apart(HZP_F32), b = apart(HZP_F32);
    uint64_t sum = 0, expected;
    int64_t nonfinite = 0;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &dev, NULL), 0);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_MEMORY, &lane), HZP_OK);
    fixture_units_random(dev, &a, 3, 1);
    for (int32_t u = 0; u < layout.units; u++) {
        struct hzp_unit_view to = hzp_unit_view(&b, u), from = hzp_unit_view(&a, u);
        assert_int_equal(hzp_device_copy(dev, to.base, from.base, hzp_unit_bytes(&from)), HZP_OK);
    }
    assert_true(fixture_units_same(dev, &a, &b));
    for (int32_t u = 0; u < layout.units; u++) {
        struct hzp_unit_view view = hzp_unit_view(&b, u);
        struct hzp_audit_args args = {.x = hzp_unit_piece(&view, 0, view.elements),
                                      .checksum = &sum,
                                      .nonfinite = &nonfinite};
        assert_int_equal(hzp_op_audit(lane, &args), HZP_OK);
    }
    assert_int_equal(hzp_units_checksum(dev, &a, &expected), HZP_OK);
    assert_int_equal(sum, expected);
    assert_int_equal(nonfinite, 0);
    hzp_lane_close(lane);
    hzp_device_close(dev);
    apart_free(&a);
    apart_free(&b);
}

static int copy_fails(struct hzp_device *dev, void *dst, const void *src, size_t size)
{
    return HZP_EDEVICE;
}

/* A device that fails in a copy is not taken for a lack of memory. */
static void test_failed_copy(void **state)
{
    static const struct hzp_backend backend = {.name = "broken", .host_copy = copy_fails};
    struct hzp_device dev = {.backend = &backend};
    struct hzp_units units = apart(HZP_F32);
    struct hzp_unit_view view = hzp_unit_view(&units, 0);
    void *owned = &units;
    uint64_t sum;
    assert_int_equal(hzp_unit_read(&dev, &view, &view, &owned), HZP_EDEVICE);
    assert_null(owned);
    assert_int_equal(hzp_units_checksum(&dev, &units, &sum), HZP_EDEVICE);
    apart_free(&units);
}

struct numbers {
    _Atomic int calls[16];
    int32_t bad; /* the unit that cannot be filled; -1: none */
};

static int fill_numbers(void *ctx, int32_t u, const struct hzp_unit_view *host)
{
    struct numbers *numbers = ctx;
    atomic_fetch_add(&numbers->calls[u], 1);
    if (u == numbers->bad)
        return HZP_EFORMAT;
    float *to = host->base;
    for (size_t i = 0; i < host->elements; i++)
        to[i] = (float)(u * 1000) + (float)(i % 1000);
    return HZP_OK;
}

/* Several threads fill each unit once, with what one thread fills; a failure comes back. */
static void test_fill_by(void **state)
{
    struct hzp_units one = apart(HZP_F32), many = apart(HZP_F32);
    struct numbers numbers = {.bad = -1};
    uint64_t want, sum;
    assert_int_equal(hzp_units_fill(NULL, &one, fill_numbers, &numbers), HZP_OK);
    assert_int_equal(hzp_units_checksum(NULL, &one, &want), HZP_OK);
    for (int threads = 1; threads <= 20; threads++) {
        memset(&numbers, 0, sizeof(numbers));
        numbers.bad = -1;
        assert_int_equal(hzp_units_fill_by(NULL, &many, fill_numbers, &numbers, threads), HZP_OK);
        assert_int_equal(hzp_units_checksum(NULL, &many, &sum), HZP_OK);
        assert_true(sum == want);
        for (int32_t u = 0; u < layout.units; u++)
            assert_int_equal(numbers.calls[u], 1);
        numbers.bad = threads % layout.units;
        assert_int_equal(hzp_units_fill_by(NULL, &many, fill_numbers, &numbers, threads),
                         HZP_EFORMAT);
    }
    apart_free(&one);
    apart_free(&many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_not_resident),
        cmocka_unit_test(test_same_as_side_by_side),
        cmocka_unit_test(test_fill_by),
        cmocka_unit_test(test_on_device),
        cmocka_unit_test(test_failed_copy),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
