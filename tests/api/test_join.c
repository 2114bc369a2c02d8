/* SPDX-License-Identifier: Apache-2.0 */
/* tests/api/test_join.c - how many steps' tokens streams join. */
#include "api/http/wire/notify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static const uint64_t MS = 1000000;

/* A controller that has seen ten flushes, each of one step. */
static struct hzp_join after(double flush_ms, double step_ms, int processors, int threads,
                             double bound_ms)
{
    struct hzp_join join = {.processors = processors,
                            .threads = threads,
                            .bound_ns = (uint64_t)(bound_ms * (double)MS)};
    struct hzp_join_seen seen = {.time_ns = (uint64_t)(10 * step_ms * (double)MS),
                                 .spent_ns = (uint64_t)(10 * flush_ms * (double)MS),
                                 .flushes = 10,
                                 .steps = 10};
    hzp_join_learn(&join, &seen);
    return join;
}

static int32_t steps(double flush_ms, double step_ms, int processors, int threads, double bound_ms)
{
    struct hzp_join join = after(flush_ms, step_ms, processors, threads, bound_ms);
    return hzp_join_steps(&join);
}

static void nothing_known_nothing_waits(void **state)
{
    struct hzp_join join = {.processors = 2, .threads = 1, .bound_ns = 20 * MS};
    assert_int_equal(hzp_join_steps(&join), 1);
    assert_int_equal(hzp_join_window(&join), 0);
}

static void cheap_writing_waits_for_nothing(void **state)
{
    assert_int_equal(steps(0.02, 0.4, 2, 1, 20), 1); /* one stream, 2.5 % of two processors */
    assert_int_equal(steps(0.99, 10, 2, 1, 20), 1);
    assert_int_equal(steps(5, 100, 1, 1, 1000), 1);
}

static void flushes_take_a_share_of_the_processors(void **state)
{
    /* k steps' time on P processors, of which a flush takes 5 % at most. */
    assert_int_equal(steps(1.01, 10, 2, 1, 1000), 2);
    assert_int_equal(steps(2.5, 10, 2, 1, 1000), 3);
    assert_int_equal(steps(2.5, 10, 4, 1, 1000), 2);
    assert_int_equal(steps(2.5, 10, 8, 2, 1000), 1);
    /* With many processors a half of the I/O threads is less than 5 % of all. */
    assert_int_equal(steps(12, 10, 64, 1, 1000), 3);
    assert_int_equal(steps(12, 10, 64, 8, 1000), 1);
}

/* A token waits for k - 1 steps. */
static void the_window_is_bounded(void **state)
{
    struct hzp_join join = after(50, 11, 2, 1, 20);
    assert_int_equal(hzp_join_steps(&join), 2);
    assert_int_equal(hzp_join_window(&join), 11 * MS);
    assert_int_equal(steps(50, 9.9, 2, 1, 20), 3);
    assert_int_equal(steps(50, 21, 2, 1, 20), 1);
    assert_int_equal(steps(50, 0.001, 2, 1, 0), 1);
    for (int i = 1; i < 200; i++) {
        join = after(1e6, 0.37 * i, 1, 1, 20);
        assert_in_range(hzp_join_window(&join), 0, 20 * MS);
    }
}

/* The newest period counts one half, so the window follows the load both ways. */
static void it_follows(void **state)
{
    struct hzp_join join = after(4, 10, 2, 1, 1000);
    struct hzp_join_seen cheap = {
        .time_ns = 100 * MS, .spent_ns = 1 * MS, .flushes = 10, .steps = 10};
    struct hzp_join_seen costly = {
        .time_ns = 100 * MS, .spent_ns = 20 * MS, .flushes = 5, .steps = 10};
    assert_int_equal(hzp_join_steps(&join), 4);
    hzp_join_learn(&join, &cheap); /* 2.05 ms */
    assert_int_equal(hzp_join_steps(&join), 3);
    hzp_join_learn(&join, &cheap); /* 1.08 ms */
    assert_int_equal(hzp_join_steps(&join), 2);
    hzp_join_learn(&join, &cheap);
    assert_int_equal(hzp_join_steps(&join), 1);
    for (int i = 0; i < 20; i++)
        hzp_join_learn(&join, &costly);
    assert_int_equal(hzp_join_steps(&join), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_known_nothing_waits),
        cmocka_unit_test(cheap_writing_waits_for_nothing),
        cmocka_unit_test(flushes_take_a_share_of_the_processors),
        cmocka_unit_test(the_window_is_bounded),
        cmocka_unit_test(it_follows),
    };
    return cmocka_run_group_tests_name("join", tests, NULL, NULL);
}
