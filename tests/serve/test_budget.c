/* SPDX-License-Identifier: Apache-2.0 */
/* The number of prompt rows on devices with known step times: where rows cost nothing, where
 * each costs the same, where that changes; with a fixed number, an ITL goal, and under full
 * load. */
#include "nanobatch/model/batch.h"
#include "serve/budget.h"
#include "tests/serve/seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { ROWS_MAX = 512 };

/* T(rows) = begin + row * (rows beyond `free`). */
struct machine {
    double begin, row;
    int32_t free;
};

static double ns_of(const struct machine *m, int32_t rows)
{
    return m->begin + m->row * HZP_MAX(rows - m->free, 0);
}

static struct hzp_time model;
static struct hzp_budget budget;

static void start(void)
{
    hzp_budget_init(&budget);
    hzp_time_init(&model, 1, NULL, HZP_F32);
}

static void run(const struct machine *m, uint64_t *seed, int32_t steps)
{
    for (int32_t i = 0; i < steps; i++) {
        int32_t rows = 1 + (int32_t)seeded(seed, ROWS_MAX);
        rows = seeded(seed, 2) ? rows : 1 + rows / 16;
        double noise = 0.95 + (double)seeded(seed, 1000) * 1e-4;
        hzp_rows_learn(&model.rows, rows, (uint64_t)(ns_of(m, rows) * noise));
    }
}

/* A load with this many decode rows in an otherwise empty batch; `tenths` of the slots are in
   use. */
static struct hzp_budget_load load_of(int32_t decodes, int32_t tenths)
{
    return (struct hzp_budget_load){.decode_rows = decodes,
                                    .decode_reads = decodes,
                                    .rows_left = ROWS_MAX - decodes,
                                    .running = tenths,
                                    .running_max = 10};
}

static struct hzp_prompt_rows decide(const struct hzp_budget_load *load)
{
    struct hzp_prompt_rows ret = hzp_budget_decide(&budget, load, &model);
    assert_in_range(ret.rows, 1, load->rows_left);
    assert_in_range(ret.reason, 0, HZP_BUDGET_COUNT - 1);
    return ret;
}

/* The total of decode and prompt rows. */
static int32_t rows_at(int32_t decodes, int32_t tenths)
{
    struct hzp_budget_load load = load_of(decodes, tenths);
    return decodes + decide(&load).rows;
}

static void nothing_measured_holds_nothing_back(void **state)
{
    start();
    assert_int_equal(rows_at(4, 0), ROWS_MAX);
    struct hzp_budget_load load = load_of(4, 0);
    assert_int_equal(decide(&load).reason, HZP_BUDGET_ALL);
    load.rows_left = 0;
    assert_int_equal(hzp_budget_decide(&budget, &load, &model).rows, 0);
}

/* T = 7 ms + 0.27 ms a row: about 155 rows reach nine tenths of the throughput of 512. */
static void rows_that_cost_are_few_at_low_load(void **state)
{
    struct machine m = {.begin = 7e6, .row = 0.27e6};
    uint64_t seed = 1;
    start();
    run(&m, &seed, 3000);
    int32_t low = rows_at(2, 0), before = low;
    assert_in_range(low, 112, 192);
    assert_int_equal(low % 16, 0);
    for (int i = 1; i <= 10; i++) {
        int32_t rows = rows_at(2, i);
        assert_true(rows >= before); /* more load, more rows */
        before = rows;
    }
    assert_int_equal(before, ROWS_MAX);
    assert_int_equal(rows_at(0, 0), ROWS_MAX); /* nothing decodes */
    /* The purpose of the choice: most of the throughput in less than half of the time. */
    assert_true(low / ns_of(&m, low) > 0.85 * ROWS_MAX / ns_of(&m, ROWS_MAX));
    assert_true(ns_of(&m, low) < 0.45 * ns_of(&m, ROWS_MAX));
}

/* As on a GPU: reading the weights takes as long for 300 rows as for one. */
static void rows_that_are_free_are_filled(void **state)
{
    struct machine m = {.begin = 5e6, .row = 0.05e6, .free = 300};
    uint64_t seed = 2;
    start();
    run(&m, &seed, 3000);
    assert_true(rows_at(2, 0) >= 192);
    m.row = 0;
    start();
    run(&m, &seed, 3000);
    assert_true(rows_at(2, 0) >= 0.75 * ROWS_MAX);
}

static void a_new_machine_is_learned(void **state)
{
    struct machine slow = {.begin = 1e6, .row = 1e6}, wide = {.begin = 60e6, .row = 0.01e6};
    uint64_t seed = 3;
    start();
    run(&slow, &seed, 2000);
    assert_true(rows_at(2, 0) <= 24);
    run(&wide, &seed, 3000);
    assert_true(rows_at(2, 0) >= 256);
}

/* Only requested sizes are measured: after a start with few rows, more are tried, and found to
   pay. */
static void more_is_tried(void **state)
{
    struct machine m = {.begin = 20e6, .row = 0.02e6};
    start();
    for (int32_t i = 0; i < 20; i++) {
        hzp_rows_learn(&model.rows, 1, (uint64_t)m.begin);
        hzp_rows_learn(&model.rows, 8, (uint64_t)(m.begin * 7)); /* once it was slow */
    }
    int32_t rows = rows_at(2, 0);
    assert_true(rows < 16);
    for (int32_t i = 0; i < 1000; i++) {
        rows = rows_at(2, 0);
        hzp_rows_learn(&model.rows, rows, (uint64_t)ns_of(&m, rows));
    }
    assert_true(rows >= 256);
}

/* Beyond the knee decode rows leave prompts a fifth of the step. */
static void prompts_keep_a_part(void **state)
{
    struct machine m = {.begin = 1e6, .row = 1e6};
    uint64_t seed = 4;
    start();
    run(&m, &seed, 2000);
    assert_int_equal(rows_at(200, 0), 250);
    assert_int_equal(rows_at(ROWS_MAX - 1, 0), ROWS_MAX);
}

/* --prefill-rows replaces the choice by throughput; the ITL goal limits both. */
static void a_fixed_number_wins(void **state)
{
    struct machine m = {.begin = 7e6, .row = 0.27e6};
    uint64_t seed = 6;
    start();
    run(&m, &seed, 2000);
    struct hzp_budget_load load = load_of(4, 5);
    load.fixed = 48;
    struct hzp_prompt_rows fixed = decide(&load);
    assert_int_equal(fixed.rows, 48);
    assert_int_equal(fixed.reason, HZP_BUDGET_FIXED);
    load.waiting = 3;
    assert_int_equal(decide(&load).rows, 48);
    load.decode_rows = 0;
    assert_int_equal(decide(&load).rows, load.rows_left);
    load.fixed = 0;
    load.decode_rows = 4;
    assert_int_equal(decide(&load).rows, load.rows_left); /* a request waits: full load */
}

/* A step takes 10 ms plus 0.25 ms for each prompt row: a goal of 30 ms leaves 80 rows, one of 1
   ms leaves the minimum. */
static void a_goal_bounds_prompts(void **state)
{
    start();
    for (int32_t i = 0; i < 500; i++) {
        struct hzp_step_shape shape = {
            .decode_rows = 4, .decode_reads = 4, .prompt_rows = 16 * (i % 8)};
        hzp_step_learn(&model.step, &shape, false, 0, 10e6 + shape.prompt_rows * 0.25e6);
    }
    struct hzp_budget_load load = load_of(4, 5);
    load.waiting = 1;
    load.serve_max_ns = 30e6;
    struct hzp_prompt_rows bound = decide(&load);
    assert_in_range(bound.rows, 60, 95);
    assert_int_equal(bound.reason, HZP_BUDGET_GOAL);
    load.serve_max_ns = 1e6;
    assert_int_equal(decide(&load).rows, 16);
    load.fixed = 8;
    assert_int_equal(decide(&load).rows, 8);
    assert_int_equal(decide(&load).reason, HZP_BUDGET_FIXED);
    load.decode_rows = load.fixed = 0; /* no running request has an ITL to keep */
    assert_int_equal(decide(&load).rows, load.rows_left);
}

/* Where steps are padded, prompt rows take the place of padding rows; under an ITL goal the step
 * has the largest size below. */
static void whole_sizes(void **state)
{
    struct machine m = {.begin = 1e6, .row = 4000, .free = 180};
    uint64_t seed = 5;
    start();
    run(&m, &seed, 400);
    for (int32_t i = 0; i < 500; i++) {
        struct hzp_step_shape shape = {
            .decode_rows = 4, .decode_reads = 4, .prompt_rows = 16 * (i % 8)};
        hzp_step_learn(&model.step, &shape, false, 0, 10e6 + shape.prompt_rows * 0.25e6);
    }
    int sizes = 0, less = 0;
    for (int32_t decodes = 1; decodes < 200; decodes += 7) {
        struct hzp_budget_load load = load_of(decodes, 3);
        struct hzp_budget alike = budget;
        struct hzp_prompt_rows bare = decide(&load);
        load.padded = true;
        budget = alike;
        struct hzp_prompt_rows whole = decide(&load);
        assert_true(whole.rows >= bare.rows);
        int32_t total = decodes + whole.rows;
        assert_true(total == hzp_batch_size(total) || total == ROWS_MAX);
        sizes += whole.rows > bare.rows;
        load.serve_max_ns = 100e6; /* about 340 rows */
        load.running = load.running_max;
        load.padded = false;
        bare = decide(&load);
        load.padded = true;
        whole = decide(&load);
        assert_true(whole.rows <= bare.rows && whole.rows >= HZP_MIN(16, bare.rows));
        total = decodes + whole.rows;
        assert_true(total == hzp_batch_size(total) || whole.rows == bare.rows || whole.rows == 16);
        less += whole.rows < bare.rows;
    }
    assert_true(sizes > 5);
    assert_true(less > 5);
}

/* Sizes: as decode steps up to 128, then tiles; never much more than the rows. */
static void sizes_of_steps(void **state)
{
    static const int32_t expected[][2] = {{1, 1},       {3, 4},       {9, 16},      {65, 80},
                                          {128, 128},   {129, 256},   {2048, 2048}, {2049, 2304},
                                          {4096, 4096}, {4097, 4608}, {8193, 9216}};
    for (int i = 0; i < HZP_COUNT(expected); i++)
        assert_int_equal(hzp_batch_size(expected[i][0]), expected[i][1]);
    for (int32_t rows = 1024; rows < 20000; rows++)
        assert_true(hzp_batch_size(rows) >= rows && hzp_batch_size(rows) - rows < rows / 8 + 1);
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
        cmocka_unit_test(a_fixed_number_wins),
        cmocka_unit_test(a_goal_bounds_prompts),
        cmocka_unit_test(whole_sizes),
        cmocka_unit_test(sizes_of_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
