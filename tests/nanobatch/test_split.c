/* SPDX-License-Identifier: Apache-2.0 */
/* How long training may run in a step: the share rule, on steps that never ran. */
#include "nanobatch/split.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after the four that it needs */
#include <cmocka.h>

enum { MS = 1000000 };

static struct hzp_split split;

static void open_split(double share, bool beside)
{
    hzp_split_init(&split, &(struct hzp_split_config){
        .train_share = share, .idle_ns = 50 * MS, .beside = beside});
}

/* Runs a step in which serving takes serve_ns and training all it may, in items of item_ns: the
 * last of them may overrun.  Returns what training took. */
static uint64_t run(int32_t decode, int32_t prompt, uint64_t serve_ns, uint64_t item_ns)
{
    struct hzp_split_step step;
    struct hzp_batch batch = {.rows = decode + prompt, .decode_segs = decode};
    hzp_split_begin(&split, &step);
    if (batch.rows > 0)
        hzp_split_serve(&split, &step, &batch);
    struct hzp_exec_times times = {.serve_ns = batch.rows ? serve_ns : 0};
    times.serve_end_ns = times.serve_ns;
    while (item_ns > 0 && step.train_ns > 0 &&
           (times.train_ns == 0 || times.train_ns + item_ns <= step.train_ns))
        times.train_ns += item_ns;
    hzp_split_taken(&step, times.train_ns > 0);
    hzp_split_ended(&split, &step, &times, (double)item_ns);
    return times.train_ns;
}

static void test_an_idle_device_is_trainings(void **state)
{
    (void)state;
    open_split(0.5, false);
    assert_int_equal(run(0, 0, 0, 10 * MS), 50 * MS);
    for (int i = 0; i < 20; i++)
        run(4, 0, 10 * MS, 0);
    assert_int_equal(run(0, 0, 0, 10 * MS), 50 * MS);
}

static void test_over_many_steps_it_is_the_share(void **state)
{
    (void)state;
    static const double share[] = {0, 0.25, 0.5, 1, 2};
    static const uint64_t item[] = {MS / 10, MS, 7 * MS, 40 * MS};
    for (size_t s = 0; s < HZP_COUNT(share); s++) {
        for (size_t k = 0; k < HZP_COUNT(item); k++) {
            open_split(share[s], false);
            run(4, 0, 10 * MS, 0);
            double serve = 0, train = 0;
            for (int i = 0; i < 1000; i++) {
                serve += 10 * MS;
                train += (double)run(4, 0, 10 * MS, item[k]);
            }
            double slack = 2 * (double)item[k] + 10 * MS * share[s];
            assert_true(train <= share[s] * serve + slack);
            assert_true(train >= share[s] * serve - slack);
        }
    }
}

static void test_a_long_step_earns_no_long_slice(void **state)
{
    (void)state;
    open_split(0.5, false);
    for (int i = 0; i < 50; i++)
        run(4, 0, 10 * MS, MS);
    run(4, 300, 900 * MS, MS);
    assert_in_range(run(4, 0, 10 * MS, MS), 4 * MS, 7 * MS);
}

static void test_prompts_come_first_but_not_for_ever(void **state)
{
    (void)state;
    open_split(1, false);
    for (int i = 0; i < 10; i++)
        run(4, 0, 10 * MS, MS);
    for (int i = 0; i < HZP_SPLIT_PASSED_OVER_MAX; i++)
        assert_int_equal(run(4, 60, 30 * MS, MS), 0);
    assert_true(run(4, 60, 30 * MS, MS) > 0);
    assert_int_equal(run(4, 60, 30 * MS, MS), 0);
}

static void test_an_overrun_is_paid_back(void **state)
{
    (void)state;
    open_split(0.5, false);
    for (int i = 0; i < 10; i++)
        run(4, 0, 10 * MS, 0);
    assert_int_equal(run(4, 0, 10 * MS, 33 * MS), 33 * MS);
    /* 33 - 5 owed, 5 earned a step; a step's own share may be spent in it. */
    for (int i = 0; i < 5; i++)
        assert_int_equal(run(4, 0, 10 * MS, 33 * MS), 0);
    assert_int_equal(run(4, 0, 10 * MS, 33 * MS), 33 * MS);
}

static void test_beside_it_is_as_long_as_serving(void **state)
{
    (void)state;
    open_split(0.5, true);
    for (int i = 0; i < 100; i++)
        run(4, 0, 10 * MS, MS);
    assert_in_range(run(4, 0, 10 * MS, MS), 9 * MS, 10 * MS);
    hzp_split_set_share(&split, 0);
    assert_int_equal(run(4, 0, 10 * MS, MS), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_idle_device_is_trainings),
        cmocka_unit_test(test_over_many_steps_it_is_the_share),
        cmocka_unit_test(test_a_long_step_earns_no_long_slice),
        cmocka_unit_test(test_prompts_come_first_but_not_for_ever),
        cmocka_unit_test(test_an_overrun_is_paid_back),
        cmocka_unit_test(test_beside_it_is_as_long_as_serving),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
