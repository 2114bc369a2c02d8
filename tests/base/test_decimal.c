/* SPDX-License-Identifier: Apache-2.0 */
/* Decimal numbers as users write them, and forms that only strtod() accepts. */
#include "base/decimal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void numbers_are_read(void **state)
{
    static const struct {
        const char *text, *rest;
        double value;
    } good[] = {{"5", "", 5},         {"0.25ms", "ms", 0.25}, {"-3.5e2,", ",", -350},
                {"+.5s", "s", 0.5},   {"7.", "", 7},          {"1e", "e", 1},
                {"12 ms", " ms", 12}, {"00x", "x", 0},        {"1e-400", "", 0},
                {"0x10", "x10", 0},   {"-0X1p3", "X1p3", 0},  {"1.5.2", ".2", 1.5}};
    for (int i = 0; i < HZP_COUNT(good); i++) {
        double value = -1;
        const char *rest = hzp_decimal(good[i].text, &value);
        assert_non_null(rest);
        assert_string_equal(rest, good[i].rest);
        assert_true(value == good[i].value);
    }
}

static void others_are_none(void **state)
{
    static const char *const bad[] = {"",  " 5", "\t5", "nan", "NAN(1)", "inf",   "-infinity",
                                      ".", "-",  "+-5", "e5",  "x10",    "1e400", "-1e999"};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        double value = 42;
        assert_null(hzp_decimal(bad[i], &value));
        assert_true(value == 42);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_read),
                                       cmocka_unit_test(others_are_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
