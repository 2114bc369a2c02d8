/* SPDX-License-Identifier: Apache-2.0 */
/* The step's budget on devices whose step times are known: where rows cost nothing, where each
 * costs the same, where that changes, and with noise. */
#include "serve/budget.h"
#include "tests/serve/seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { ROWS_MAX = 512 };

/* T(rows) = begin + row * rows beyond `free`. */
struct machine {
    double begin, row;
    int32_t free;
};

static double ns_of(const struct machine *m, int32_t rows)
{
    return m->begin + m->row * HZP_MAX(rows - m->free, 0);
}

static void run(struct hzp_budget *b, const struct machine *m, uint64_t *seed, int32_t steps)
{
    for (int32_t i = 0; i < steps; i++) {
        int32_t rows = 1 + (int32_t)seeded(seed, ROWS_MAX);
        rows = seeded(seed, 2) ? rows : 1 + rows / 16;
        double noise = 0.95 + (double)seeded(seed, 1000) * 1e-4;
        hzp_budget_learn(b, rows, (uint64_t)(ns_of(m, rows) * noise));
    }
}

static int32_t rows_at(struct hzp_budget *b, int32_t decodes, double pressure)
{
    struct hzp_budget_load load = {.decodes = decodes, .pressure = pressure, .rows_max = ROWS_MAX};
    int32_t rows = hzp_budget_rows(b, &load);
    assert_in_range(rows, decodes + 1, ROWS_MAX);
    return rows;
}

static void nothing_measured_holds_nothing_back(void **state)
{
    struct hzp_budget b;
    hzp_budget_init(&b);
    assert_int_equal(rows_at(&b, 4, 0), ROWS_MAX);
    assert_true(hzp_budget_ns(&b, 7) == 0);
    hzp_budget_learn(&b, 0, 5);
    hzp_budget_learn(&b, 5, 0);
    assert_true(hzp_budget_ns(&b, 7) == 0);
}

/* T = 7 ms + 0.27 ms a row: nine tenths of what 512 rows bring come from about 155. */
static void rows_that_cost_are_few_at_low_load(void **state)
{
    struct hzp_budget b;
    struct machine m = {.begin = 7e6, .row = 0.27e6};
    uint64_t seed = 1;
    hzp_budget_init(&b);
    run(&b, &m, &seed, 3000);
    int32_t low = rows_at(&b, 2, 0), before = low;
    assert_in_range(low, 112, 192);
    assert_int_equal(low % 16, 0);
    for (int i = 1; i <= 10; i++) {
        int32_t rows = rows_at(&b, 2, i / 10.0);
        assert_true(rows >= before); /* more load, more rows */
        before = rows;
    }
    assert_int_equal(before, ROWS_MAX);
    assert_int_equal(rows_at(&b, 0, 0), ROWS_MAX); /* nobody decodes: nobody is held up */
    /* What the choice is for. */
    assert_true(low / ns_of(&m, low) > 0.85 * ROWS_MAX / ns_of(&m, ROWS_MAX));
    assert_true(ns_of(&m, low) < 0.45 * ns_of(&m, ROWS_MAX));
}

/* As a GPU has it: weights take as long to read for 300 rows as for one. */
static void rows_that_are_free_are_filled(void **state)
{
    struct hzp_budget b;
    struct machine m = {.begin = 5e6, .row = 0.05e6, .free = 300};
    uint64_t seed = 2;
    hzp_budget_init(&b);
    run(&b, &m, &seed, 3000);
    assert_true(rows_at(&b, 2, 0) >= 192);
    m.row = 0;
    hzp_budget_init(&b);
    run(&b, &m, &seed, 3000);
    assert_true(rows_at(&b, 2, 0) >= 0.75 * ROWS_MAX);
}

static void a_new_machine_is_learned(void **state)
{
    struct hzp_budget b;
    struct machine slow = {.begin = 1e6, .row = 1e6}, wide = {.begin = 60e6, .row = 0.01e6};
    uint64_t seed = 3;
    hzp_budget_init(&b);
    run(&b, &slow, &seed, 2000);
    assert_true(rows_at(&b, 2, 0) <= 24);
    run(&b, &wide, &seed, 3000);
    assert_true(rows_at(&b, 2, 0) >= 256);
}

/* Only what was asked for is measured: from few rows on, more are tried, and found to pay. */
static void more_is_tried(void **state)
{
    struct hzp_budget b;
    struct machine m = {.begin = 20e6, .row = 0.02e6};
    hzp_budget_init(&b);
    for (int32_t i = 0; i < 20; i++) {
        hzp_budget_learn(&b, 1, (uint64_t)m.begin);
        hzp_budget_learn(&b, 8, (uint64_t)(m.begin * 7)); /* once it was slow */
    }
    int32_t rows = rows_at(&b, 2, 0);
    assert_true(rows < 16);
    for (int32_t i = 0; i < 1000; i++) {
        rows = rows_at(&b, 2, 0);
        hzp_budget_learn(&b, rows, (uint64_t)ns_of(&m, rows));
    }
    assert_true(rows >= 256);
}

/* Past the knee those who decode do not shut prompts out, and a bound cuts prompts only. */
static void prompts_keep_a_part(void **state)
{
    struct hzp_budget b;
    struct machine m = {.begin = 1e6, .row = 1e6};
    uint64_t seed = 4;
    hzp_budget_init(&b);
    run(&b, &m, &seed, 2000);
    assert_int_equal(rows_at(&b, 200, 0), 250);
    assert_int_equal(rows_at(&b, ROWS_MAX - 1, 0), ROWS_MAX);
    struct hzp_budget_load load = {.decodes = 20, .pressure = 1, .rows_max = ROWS_MAX, .bound = 40};
    assert_int_equal(hzp_budget_rows(&b, &load), 40);
    load.bound = 10;
    assert_int_equal(hzp_budget_rows(&b, &load), 21);
}

/* One step in a hundred is held up by something else, tenfold; and times never fall with rows. */
static void times_are_measured(void **state)
{
    struct hzp_budget b;
    struct machine m = {.begin = 7e6, .row = 0.27e6};
    uint64_t seed = 5;
    hzp_budget_init(&b);
    for (int32_t i = 0; i < 6000; i++) {
        int32_t rows = 1 + (int32_t)seeded(&seed, ROWS_MAX);
        hzp_budget_learn(&b, rows, (uint64_t)(ns_of(&m, rows) * (seeded(&seed, 100) ? 1 : 10)));
    }
    double before = 0;
    for (int32_t rows = 1; rows <= 2 * ROWS_MAX; rows++) {
        double ns = hzp_budget_ns(&b, rows);
        assert_true(ns >= before);
        before = ns;
    }
    for (int32_t rows = 16; rows <= ROWS_MAX; rows *= 2) {
        double ns = hzp_budget_ns(&b, rows) / ns_of(&m, rows);
        assert_true(ns > 0.8 && ns < 1.4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_measured_holds_nothing_back),
        cmocka_unit_test(rows_that_cost_are_few_at_low_load),
        cmocka_unit_test(rows_that_are_free_are_filled),
        cmocka_unit_test(a_new_machine_is_learned),
        cmocka_unit_test(more_is_tried),
        cmocka_unit_test(prompts_keep_a_part),
        cmocka_unit_test(times_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
