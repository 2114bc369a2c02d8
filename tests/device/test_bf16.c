/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_bf16.c - the conversions and random numbers that every backend shares. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "device/philox.h"

/* The nearest bf16, found by trying both neighbours in double; ties go to the even one. */
static uint16_t nearest(float x)
{
    uint16_t down = (uint16_t)(hzp_f32_bits(x) >> 16), up = (uint16_t)(down + 1);
    double below = fabs((double)x - (double)hzp_bf16_to_f32(down));
    double above = fabs((double)hzp_bf16_to_f32(up) - (double)x);
    return below < above ? down : above < below ? up : (uint16_t)(down + (down & 1));
}

static void test_rounding(void **state)
{
    uint32_t bits = 1;
    for (int i = 0; i < 200000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float x = hzp_f32_from_bits(bits);
        if (isfinite(x) && fabsf(x) < 3e38f)
            assert_int_equal(hzp_bf16_from_f32(x), nearest(x));
    }
    assert_int_equal(hzp_bf16_from_f32(1.00390625f), 0x3f80); /* tie, even below */
    assert_int_equal(hzp_bf16_from_f32(1.01171875f), 0x3f82); /* tie, even above */
    assert_int_equal(hzp_bf16_from_f32(3.4e38f), 0x7f80);     /* too large: infinite */
    assert_int_equal(hzp_bf16_from_f32(-INFINITY), 0xff80);
}

static void test_nan_stays_nan(void **state)
{
    static const uint32_t nans[] = {0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc00000};
    for (size_t i = 0; i < sizeof(nans) / sizeof(*nans); i++)
        assert_true(isnan(hzp_bf16_to_f32(hzp_bf16_from_f32(hzp_f32_from_bits(nans[i])))));
}

static void test_master_is_exact(void **state)
{
    uint32_t bits = 7;
    for (int i = 0; i < 200000; i++) {
        uint16_t hi;
        int16_t low;
        bits = bits * 1664525u + 1013904223u;
        hzp_master_split(hzp_f32_from_bits(bits), &hi, &low);
        if (!isnan(hzp_f32_from_bits(bits)))
            assert_int_equal(hzp_f32_bits(hzp_master_join(hi, low)), bits);
        assert_int_equal(hi, (uint16_t)((bits + 0x8000u) >> 16));
    }
}

/* The known answers of Random123's kat_vectors for philox4x32 with 10 rounds. */
static void test_philox(void **state)
{
    assert_int_equal(hzp_philox(0, 0, 0, 0, 0), 0x6627e8d5);
    assert_int_equal(hzp_philox(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX),
                     0x408f276d);
    assert_int_equal(
        hzp_philox(0x299f31d0a4093822u, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344),
        0xd16cfe09);
}

static void test_gumbel(void **state)
{
    assert_true(isfinite(hzp_gumbel(0)) && hzp_gumbel(0) < -3);
    assert_true(isfinite(hzp_gumbel(UINT32_MAX)) && hzp_gumbel(UINT32_MAX) > 22);
    assert_true(fabs(hzp_gumbel(UINT32_MAX / 2) - 0.36651292) < 1e-6); /* -log(log 2) */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding),        cmocka_unit_test(test_nan_stays_nan),
        cmocka_unit_test(test_master_is_exact), cmocka_unit_test(test_philox),
        cmocka_unit_test(test_gumbel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
