/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_fp8.c - e4m3: all 256 codes against the format's definition, rounding against
 * the nearest of them by trying all, and the scale of a row. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "device/fp8.h"

/* By the definition: sign, 4 bits of exponent with a bias of 7, 3 of mantissa. */
static double value_of(int code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double x = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -x : x;
}

static void test_codes(void **state)
{
    for (int code = 0; code < 256; code++) {
        float x = hzp_e4m3_to_f32((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(x));
            assert_int_equal(hzp_e4m3_from_f32(x), 0x7f);
            continue;
        }
        assert_true((double)x == value_of(code));
        assert_int_equal(!!signbit(x), code >> 7);
        assert_int_equal(hzp_e4m3_from_f32(x), code);
        /* every code is a bf16 */
        assert_int_equal(hzp_f32_bits(x) & 0xffff, 0);
    }
    assert_true(value_of(0x7e) == 448);
}

/* The nearest code, found by trying all; of two equally near, the even one. */
static int nearest(float x)
{
    int best = 0;
    for (int code = 1; code < 0x7f; code++) {
        double now = fabs(value_of(code) - fabs((double)x)),
               was = fabs(value_of(best) - fabs((double)x));
        if (now < was || (now == was && code % 2 == 0))
            best = code;
    }
    return best | (signbit(x) ? 0x80 : 0);
}

static void check(float x)
{
    assert_int_equal(hzp_e4m3_from_f32(x), nearest(x));
    assert_int_equal(hzp_e4m3_from_f32(-x), nearest(-x));
}

static void test_rounding(void **state)
{
    for (int code = 0; code < 0x7e; code++) {
        float middle = (float)(value_of(code) + value_of(code + 1)) / 2;
        check(middle);
        check(nextafterf(middle, 0));
        check(nextafterf(middle, 448));
    }
    uint32_t bits = 3;
    for (int i = 0; i < 100000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float x = hzp_f32_from_bits(bits);
        if (isfinite(x) && fabsf(x) < 448)
            check(x);
    }
}

static void test_too_large(void **state)
{
    static const float large[] = {448, 448.00003f, 449, 463, 464, 465, 1e30f, INFINITY};
    for (size_t i = 0; i < sizeof(large) / sizeof(*large); i++) {
        assert_int_equal(hzp_e4m3_from_f32(large[i]), 0x7e);
        assert_int_equal(hzp_e4m3_from_f32(-large[i]), 0xfe);
    }
    assert_int_equal(hzp_e4m3_from_f32(-NAN), 0x7f);
    assert_int_equal(hzp_e4m3_from_f32(0), 0);
    assert_int_equal(hzp_e4m3_from_f32(-0.0f), 0x80);
    assert_int_equal(hzp_e4m3_from_f32(1e-45f), 0);
}

static void test_scale(void **state)
{
    assert_true(hzp_e4m3_scale(hzp_f32_bits(448)) == 1);
    assert_true(hzp_e4m3_scale(hzp_f32_bits(1)) == 1 / 448.0f);
    assert_true(hzp_e4m3_scale(0) == 0x1p-126f);
    assert_true(hzp_e4m3_scale(hzp_f32_bits(1e-40f)) == 0x1p-126f);
    assert_true(isfinite(hzp_e4m3_scale(hzp_f32_bits(3.4e38f))));
    assert_true(isnan(hzp_e4m3_scale(hzp_f32_bits(INFINITY))));
    assert_true(isnan(hzp_e4m3_scale(hzp_f32_bits(NAN))));
    /* the largest magnitude of a row maps to the largest code, whatever its value */
    uint32_t bits = 11;
    for (int i = 0; i < 100000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float x = fabsf(hzp_f32_from_bits(bits));
        if (isfinite(x) && x > 0x1p-110f)
            assert_int_equal(hzp_e4m3_from_f32(x / hzp_e4m3_scale(hzp_f32_bits(x))), 0x7e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
