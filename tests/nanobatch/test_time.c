/* SPDX-License-Identifier: Apache-2.0 */
/* The model of time: step times find a device's coefficients, follow a device that changes,
 * resist outliers and separate training's slowdown from serving; op times; the curve by rows. */
#include "nanobatch/time/time.h"
#include "tests/serve/seeded.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t seed;

static double draw(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) / 16777216.0;
}

static struct hzp_step_shape random_shape(void)
{
    struct hzp_step_shape s = {.decode_rows = (int32_t)(draw() * 32),
                               .prompt_rows = draw() < 0.5 ? 0 : (int32_t)(draw() * 128)};
    s.decode_reads = s.decode_rows * draw() * 500;
    s.prompt_reads = s.prompt_rows * draw() * 500;
    return s;
}

/* A device with a knee: the first rows are nearly free. */
static double device(const struct hzp_step_shape *s, double speed)
{
    double rows = s->decode_rows + s->prompt_rows;
    double ns = 4e6 + 3e4 * rows + 2e5 * HZP_MAX(rows - 16, 0.0) + 40 * s->decode_reads +
                60 * s->prompt_reads;
    return ns / speed;
}

static void init(struct hzp_step_times *times)
{
    struct hzp_rates rates = hzp_rates_of(1);
    hzp_step_times_init(times, NULL, HZP_F32, &rates);
}

/* The mean relative error of n predictions while the model learns from each step. */
static double mean_error(struct hzp_step_times *p, int n, double speed, double slow, bool outliers)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        struct hzp_step_shape s = random_shape();
        double alone = device(&s, speed), train = slow > 0 && i % 4 ? alone * draw() * 2 : 0;
        double took = alone * (train > 0 ? 1 + slow : 1) * (0.95 + 0.1 * draw());
        double guessed = hzp_step_alone_ns(p, &s);
        guessed *= hzp_step_slowdown(p, false, guessed, train);
        sum += fabs(guessed / took - 1);
        hzp_step_learn(p, &s, false, train, outliers && i % 50 == 7 ? 30 * took : took);
    }
    return sum / n;
}

static void test_it_finds_the_device(void **state)
{
    (void)state;
    struct hzp_step_times p;
    seed = 1;
    init(&p);
    mean_error(&p, 300, 1, 0, false);
    assert_true(mean_error(&p, 500, 1, 0, false) < 0.08);
    /* Ten times as fast, from one step to the next. */
    mean_error(&p, 100, 10, 0, false);
    assert_true(mean_error(&p, 500, 10, 0, false) < 0.1);
}

static void test_outliers_do_not_spoil_it(void **state)
{
    (void)state;
    struct hzp_step_times p;
    seed = 2;
    init(&p);
    mean_error(&p, 300, 1, 0, true);
    assert_true(mean_error(&p, 500, 1, 0, true) < 0.12);
}

static void test_slowdown_is_told_from_serving(void **state)
{
    (void)state;
    struct hzp_step_times p;
    seed = 3;
    init(&p);
    mean_error(&p, 1000, 1, 0.4, false);
    struct hzp_step_shape s = {.decode_rows = 8, .decode_reads = 800};
    double alone = hzp_step_alone_ns(&p, &s);
    assert_true(fabs(alone / device(&s, 1) - 1) < 0.1);
    double slowdown = hzp_step_slowdown(&p, false, alone, alone);
    assert_true(slowdown > 1.3 && slowdown < 1.5);
    assert_true(hzp_step_slowdown(&p, false, alone, 0) == 1);
}

/* A step without a time (its clock stood still, or all of it belonged to another step) teaches
 * nothing, also as the first step, or several times in a row. */
static void test_no_time(void **state)
{
    struct hzp_step_times p;
    seed = 11;
    init(&p);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 12; i++) {
            struct hzp_step_shape s = random_shape();
            hzp_step_learn(&p, &s, false, 0, 0);
        }
        mean_error(&p, 300, 1, 0, false);
        assert_true(mean_error(&p, 200, 1, 0, false) < 0.15);
    }
}

/* An op too short for the device's clock is estimated all the same. */
static void test_no_time_of_an_op(void **state)
{
    struct hzp_op_times *times = hzp_xcalloc(1, sizeof(*times));
    struct hzp_fill_args fill = {.y = {NULL, 4, 64, 64, HZP_F32}};
    struct hzp_rates rates = hzp_rates_of(1);
    hzp_op_times_init(times, &rates);
    for (int i = 0; i < 50; i++)
        hzp_op_learn(times, HZP_OP_fill, &fill, i == 1 ? 0 : 2000);
    double ns = hzp_op_ns(times, HZP_OP_fill, &fill);
    assert_true(ns > 1900 && ns < 2100);
    free(times);
}

/* Without a measurement an op takes its roofline time; from its second run on the measured time
 * is used, and corrects the other ops of its class. */
static void test_an_op_before_and_after_it_ran(void **state)
{
    (void)state;
    struct hzp_op_times *times = hzp_xcalloc(1, sizeof(*times));
    struct hzp_fill_args fill = {.y = {NULL, 64, 1024, 1024, HZP_F32}}, other = fill;
    struct hzp_rates rates = hzp_rates_of(2);
    hzp_op_times_init(times, &rates);
    double prior = hzp_op_ns(times, HZP_OP_fill, &fill);
    assert_true(prior == hzp_rates_ns(&rates, hzp_op_cost(HZP_OP_fill, &fill)));
    for (int i = 0; i < 20; i++)
        hzp_op_learn(times, HZP_OP_fill, &fill, prior / 50);
    assert_true(fabs(hzp_op_ns(times, HZP_OP_fill, &fill) / (prior / 50) - 1) < 0.01);
    other.y.rows = 65;
    double near = hzp_op_ns(times, HZP_OP_fill, &other);
    assert_true(near > prior / 60 && near < prior / 40);
    free(times);
}

/* An op measured by `search` takes its table's time until it was measured here; an op of another
 * shape does not. */
static void test_an_op_of_the_tables(void **state)
{
    (void)state;
    struct hzp_time *time = hzp_xcalloc(1, sizeof(*time));
    struct hzp_tables tables;
    struct hzp_fill_args fill = {.y = {NULL, 64, 1024, 1024, HZP_F32}};
    struct hzp_sumsq_args other = {.x = fill.y};
    struct hzp_op_key key;
    struct hzp_op_size size;
    hzp_time_init(time, 2, NULL, HZP_F32);
    hzp_tables_init(&tables);
    tables.threads = tables.cores[0] = 2;
    tables.shares = 1;
    hzp_op_describe(HZP_OP_fill, &fill, &key, &size);
    hzp_tables_set(&tables, &key, &size, 0, 777);
    double prior = hzp_op_ns(&time->whole, HZP_OP_sumsq, &other);
    hzp_time_use_tables(time, &tables);
    assert_true(hzp_op_ns(&time->whole, HZP_OP_fill, &fill) == 777);
    assert_true(hzp_op_ns(&time->beside, HZP_OP_fill, &fill) != 777); /* on fewer cores */
    assert_true(hzp_op_ns(&time->whole, HZP_OP_sumsq, &other) == prior);
    for (int i = 0; i < 20; i++)
        hzp_op_learn(&time->whole, HZP_OP_fill, &fill, 900);
    assert_true(fabs(hzp_op_ns(&time->whole, HZP_OP_fill, &fill) - 900) < 1);
    hzp_tables_fini(&tables);
    free(time);
}

/* The number of rows that fit into a duration is the inverse of the duration by rows. */
static void test_rows_within_a_duration(void **state)
{
    (void)state;
    struct hzp_step_times p;
    seed = 5;
    init(&p);
    mean_error(&p, 500, 1, 0, false);
    for (int32_t rows = 1; rows <= 4096; rows *= 8) {
        struct hzp_step_shape s = {.decode_rows = 4,
                                   .decode_reads = 400,
                                   .prompt_rows = rows,
                                   .prompt_reads = rows * 64.0};
        double ns = hzp_step_alone_ns(&p, &s);
        int32_t fit = hzp_step_prompt_rows(&p, 4, 400, 64, ns);
        s.prompt_rows = fit;
        s.prompt_reads = fit * 64.0;
        assert_true(fit >= rows && hzp_step_alone_ns(&p, &s) <= ns);
    }
    assert_int_equal(hzp_step_prompt_rows(&p, 4, 400, 64, 1), 0);
}

/* One step in a hundred is delayed tenfold from outside; and times never fall with rows. */
static void test_times_by_rows(void **state)
{
    (void)state;
    enum { ROWS_MAX = 512 };
    struct hzp_rows_times times;
    struct hzp_rows_curve curve;
    uint64_t random = 5;
    hzp_rows_times_init(&times);
    hzp_rows_learn(&times, 0, 5);
    hzp_rows_learn(&times, 5, 0);
    hzp_rows_curve_of(&times, &curve);
    assert_true(hzp_rows_curve_ns(&curve, 7) == 0);
    for (int32_t i = 0; i < 6000; i++) {
        int32_t rows = 1 + (int32_t)seeded(&random, ROWS_MAX);
        double ns = 7e6 + 0.27e6 * rows;
        hzp_rows_learn(&times, rows, (uint64_t)(ns * (seeded(&random, 100) ? 1 : 10)));
    }
    hzp_rows_curve_of(&times, &curve);
    double before = 0;
    for (int32_t rows = 1; rows <= 2 * ROWS_MAX; rows++) {
        double ns = hzp_rows_curve_ns(&curve, rows);
        assert_true(ns >= before);
        before = ns;
    }
    for (int32_t rows = 16; rows <= ROWS_MAX; rows *= 2) {
        double ns = hzp_rows_curve_ns(&curve, rows) / (7e6 + 0.27e6 * rows);
        assert_true(ns > 0.8 && ns < 1.4);
    }
}

/* Of an op, as many elements as cost what the quantum does at the stated balance. */
static void test_items_of_a_quantum(void **state)
{
    (void)state;
    const uint64_t quantum = 1000000000;
    struct hzp_cost copy = {.bytes = 8000, .flops = 0}, product = {.bytes = 0, .flops = 2000};
    assert_int_equal(hzp_quantum_elements(quantum, product, 1000), quantum / 2);
    assert_int_equal(hzp_quantum_elements(quantum, copy, 1000),
                     quantum / (8 * HZP_QUANTUM_FLOPS_PER_BYTE));
    struct hzp_cost both = {.bytes = 8000, .flops = 2000};
    assert_true(hzp_quantum_elements(quantum, both, 1000) <
                hzp_quantum_elements(quantum, copy, 1000));
    assert_true(hzp_quantum_elements(0, copy, 1000) == SIZE_MAX);
    assert_true(hzp_quantum_elements(quantum, (struct hzp_cost){0}, 1000) == SIZE_MAX);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_finds_the_device),
        cmocka_unit_test(test_outliers_do_not_spoil_it),
        cmocka_unit_test(test_slowdown_is_told_from_serving),
        cmocka_unit_test(test_no_time),
        cmocka_unit_test(test_no_time_of_an_op),
        cmocka_unit_test(test_an_op_before_and_after_it_ran),
        cmocka_unit_test(test_an_op_of_the_tables),
        cmocka_unit_test(test_rows_within_a_duration),
        cmocka_unit_test(test_items_of_a_quantum),
        cmocka_unit_test(test_times_by_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
