/* SPDX-License-Identifier: Apache-2.0 */
#include "train/conductor/pace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const uint64_t second = 1000000000;

static bool near(double a, double b)
{
    return fabs(a - b) <= 0.02 * fabs(b);
}

static void test_steady(void **state)
{
    struct hzp_pace pace = {0};
    uint64_t now = 5 * second;
    assert_true(hzp_pace_rate(&pace, now) == 0);
    hzp_pace_note(&pace, now, true);
    for (int i = 0; i < 200; i++) {
        now += second / 2;
        hzp_pace_done(&pace, now, 100);
        hzp_pace_note(&pace, now, true);
    }
    assert_true(near(hzp_pace_rate(&pace, now), 200));
    assert_int_equal(hzp_pace_stalled(&pace, now), 0);
}

/* Time without work does not count; time with work and without progress does. */
static void test_pauses_and_stalls(void **state)
{
    struct hzp_pace pace = {0};
    uint64_t now = second;
    for (int i = 0; i < 100; i++) {
        hzp_pace_note(&pace, now, true);
        now += second;
        hzp_pace_done(&pace, now, 100);
        hzp_pace_note(&pace, now, false);
        now += 50 * second;
    }
    assert_true(near(hzp_pace_rate(&pace, now), 100));
    hzp_pace_note(&pace, now, true);
    assert_true(near(hzp_pace_rate(&pace, now), 100));
    double before = hzp_pace_rate(&pace, now);
    for (int i = 1; i <= 10; i++) {
        now += 10 * second;
        double rate = hzp_pace_rate(&pace, now);
        assert_true(rate < before && rate > 0);
        before = rate;
    }
    assert_true(before < 3);
    assert_int_equal(hzp_pace_stalled(&pace, now), 100 * second);
}

/* A pace that changes is followed within a minute. */
static void test_follows(void **state)
{
    struct hzp_pace pace = {0};
    uint64_t now = second;
    hzp_pace_note(&pace, now, true);
    for (int i = 0; i < 120; i++)
        hzp_pace_done(&pace, now += second, 1000);
    for (int i = 0; i < 60; i++)
        hzp_pace_done(&pace, now += second, 10);
    assert_true(hzp_pace_rate(&pace, now) < 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady),
        cmocka_unit_test(test_pauses_and_stalls),
        cmocka_unit_test(test_follows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
