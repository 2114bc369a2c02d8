/* SPDX-License-Identifier: Apache-2.0 */
/* How long training may run in a step, with all controllers together, on simulated times: share,
 * goals, and what other threads set and read.  The controllers one by one: test_controllers.c. */
#include "nanobatch/source.h"
#include "nanobatch/split/split.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MS = 1000000, ROWS = 2048 };

static struct hzp_split split;
static struct hzp_time model;
static uint64_t now_ns;
static int32_t pos[ROWS];
static struct hzp_waits waits;
static bool may_beside;

static void open_policy(const struct hzp_policy *policy, bool beside)
{
    static bool open;
    if (open)
        hzp_split_fini(&split);
    open = true;
    now_ns = 1000u * MS;
    memset(&waits, 0, sizeof(waits));
    may_beside = beside;
    hzp_time_init(&model, 1, NULL, HZP_F32);
    hzp_split_init(
        &split, &(struct hzp_split_config){.policy = *policy, .idle_ns = 50 * MS, .time = &model});
}

static void open_split(double share, bool beside)
{
    open_policy(&(struct hzp_policy){.train_share = share, .train_max = 1}, beside);
}

static uint64_t items_within(const struct hzp_split_step *step, uint64_t item_ns)
{
    uint64_t train = 0;
    while (item_ns > 0 && step->train_ns > 0 &&
           (train == 0 ? item_ns <= HZP_MAX(step->item_ns, step->train_ns)
                       : train + item_ns <= step->train_ns))
        train += item_ns;
    return train;
}

static enum hzp_tenant with_of(const struct hzp_exec_times *times)
{
    return times->ns[HZP_TENANT_TRAIN] > 0 ? HZP_TENANT_TRAIN : HZP_TENANT_SERVE;
}

/* A hold: a step of training alone. */
static uint64_t wait_out(struct hzp_split_step *step, uint64_t item_ns)
{
    struct hzp_exec_times times = {.ns[HZP_TENANT_TRAIN] = items_within(step, item_ns)};
    hzp_split_taken(&split, step, with_of(&times), (double)times.ns[HZP_TENANT_TRAIN]);
    now_ns += times.ns[HZP_TENANT_TRAIN];
    if (times.ns[HZP_TENANT_TRAIN] > 0)
        hzp_split_ended(&split, step, &times, now_ns, (double)item_ns);
    hzp_split_begin(&split, step, now_ns);
    assert_false(step->hold);
    return times.ns[HZP_TENANT_TRAIN];
}

/* Runs a step in which serving takes serve_ns and training all the time it may, in items of
 * item_ns; the last of them may overrun.  Returns training's time. */
static uint64_t run(int32_t decode, int32_t prompt, uint64_t serve_ns, uint64_t item_ns)
{
    struct hzp_split_step step;
    struct hzp_batch batch = {.rows = decode + prompt, .decode_segs = decode, .pos = pos};
    hzp_split_begin(&split, &step, now_ns);
    uint64_t waited = step.hold ? wait_out(&step, item_ns) : 0;
    if (batch.rows > 0)
        hzp_split_serve(&split, &step, &batch, &waits, may_beside);
    struct hzp_exec_times times = {.ns[HZP_TENANT_SERVE] = batch.rows ? serve_ns : 0};
    times.end_ns[HZP_TENANT_SERVE] = times.ns[HZP_TENANT_SERVE];
    times.ns[HZP_TENANT_TRAIN] = items_within(&step, item_ns);
    hzp_split_taken(&split, &step, with_of(&times), (double)times.ns[HZP_TENANT_TRAIN]);
    bool beside = step.beside;
    times.end_ns[HZP_TENANT_TRAIN] = times.ns[HZP_TENANT_TRAIN];
    now_ns += beside ? HZP_MAX(times.ns[HZP_TENANT_SERVE], times.ns[HZP_TENANT_TRAIN])
                     : times.ns[HZP_TENANT_SERVE] + times.ns[HZP_TENANT_TRAIN];
    /* If training gets no time, it is not asked how long its next item takes. */
    hzp_split_ended(&split, &step, &times, now_ns, step.train_ns ? (double)item_ns : 0);
    return times.ns[HZP_TENANT_TRAIN] + waited;
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
    /* 33 - 5 owed, 5 earned per step; a step's own share may be spent in that step. */
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
    hzp_split_set_policy(&split, &(struct hzp_policy){.train_share = 0, .train_max = 1});
    assert_int_equal(run(4, 0, 10 * MS, MS), 0);
}

/* Serving takes 10 ms alone and 15 beside training: its mean rises by the share at most, and
 * training runs in as many steps as that allows. */
static void test_beside_serving_takes_longer_by_the_share(void **state)
{
    (void)state;
    static const double share[] = {0.1, 0.25, 0.4, 1};
    for (size_t s = 0; s < HZP_COUNT(share); s++) {
        open_policy(&(struct hzp_policy){.train_share = share[s], .train_max = 1}, true);
        double serve = 0, beside = 0;
        for (int i = 0; i < 4000; i++) {
            struct hzp_split_step step;
            struct hzp_batch batch = {.rows = 4, .decode_segs = 4, .pos = pos};
            hzp_split_begin(&split, &step, now_ns);
            hzp_split_serve(&split, &step, &batch, &waits, true);
            struct hzp_exec_times times = {.ns[HZP_TENANT_TRAIN] = items_within(&step, MS)};
            hzp_split_taken(&split, &step, with_of(&times), (double)times.ns[HZP_TENANT_TRAIN]);
            times.ns[HZP_TENANT_SERVE] = (step.beside ? 15 : 10) * MS;
            memcpy(times.end_ns, times.ns, sizeof(times.ns));
            if (times.ns[HZP_TENANT_TRAIN] > times.ns[HZP_TENANT_SERVE])
                times.late_ns = times.ns[HZP_TENANT_TRAIN] - times.ns[HZP_TENANT_SERVE];
            now_ns += times.ns[HZP_TENANT_SERVE];
            hzp_split_ended(&split, &step, &times, now_ns, MS);
            assert_true(split.pipeline.late_ns <=
                        2 * MS); /* an item, and what the first steps guess */
            serve += i < 1000 ? 0 : (double)times.ns[HZP_TENANT_SERVE];
            beside += i >= 1000 && step.beside;
            /* Where the next step cannot train, too, no item ends in it. */
            assert_true(i < 1000 || share[s] > 0.3 || times.late_ns == 0);
        }
        double expected = HZP_MIN(share[s] / 0.5, 63.0 / 64);
        assert_true(serve <= 3000 * (1 + share[s]) * 10 * MS * 1.02);
        assert_true(beside / 3000 > 0.9 * expected && beside / 3000 < 1.05 * expected);
    }
}

static void test_gaps_are_filled_up_to_their_goal(void **state)
{
    (void)state;
    for (int beside = 0; beside < 2; beside++) {
        open_policy(&(struct hzp_policy){.itl_ns = 40 * MS, .train_max = 1}, beside);
        double train = 0;
        for (int i = 0; i < 3000; i++) {
            uint64_t before = now_ns, got = run(4, 0, 10 * MS, MS);
            train += i < 1000 ? 0 : (double)got;
            assert_true(i < 100 || now_ns - before <= 40 * MS);
        }
        /* All steps are alike here, so nearly all that the goal leaves is used. */
        assert_true(train > 2000 * (beside ? 36 : 26) * 0.97 * MS);
    }
}

/* Training's slices shrink when few running slots are free. */
static void test_steps_are_shorter_where_places_are_scarce(void **state)
{
    (void)state;
    for (int beside = 0; beside < 2; beside++) {
        open_policy(&(struct hzp_policy){.itl_ns = 60 * MS, .train_max = 1}, beside);
        for (int i = 0; i < 1000; i++)
            run(4, 0, 10 * MS, MS);
        waits = (struct hzp_waits){.running = 4, .slots = 8};
        assert_true(run(4, 0, 10 * MS, MS) > 40 * MS);
        waits.running = 6;
        run(4, 0, 10 * MS, MS);
        assert_in_range(run(4, 0, 10 * MS, MS), 15 * MS, 35 * MS);
        waits.running = 8; /* beside serving training may still run: TTFT is met */
        run(4, 0, 10 * MS, MS);
        assert_in_range(run(4, 0, 10 * MS, MS), beside ? 5 * MS : 0, beside ? 11 * MS : 0);
        waits.running = 3;
        run(4, 0, 10 * MS, MS);
        assert_true(run(4, 0, 10 * MS, MS) > 40 * MS);
        /* A request that is overdue without rows stops training, however many slots are free. */
        waits = (struct hzp_waits){.count = 1, .of = {{now_ns, 100, 0}}};
        assert_true(!beside || run(4, 0, 10 * MS, MS) > 40 * MS);
        now_ns += 300u * MS;
        for (int i = 0; i < 60; i++)
            run(4, 0, 10 * MS, MS);
        assert_int_equal(run(4, 0, 10 * MS, MS), 0);
    }
}

/* Without a goal, too, training has only train_min while a request waits for a running slot.  It
 * goes on where all slots are taken and no request waits. */
static void test_nobody_waits_for_a_slot_because_of_training(void **state)
{
    (void)state;
    for (int beside = 0; beside < 2; beside++) {
        struct hzp_policy policy = {.itl_stretch = 1.2, .train_share = 0.5, .train_max = 1};
        open_policy(&policy, beside);
        uint64_t train = 0;
        for (int i = 0; i < 1000; i++)
            run(4, i % 20 ? 0 : 60, (i % 20 ? 10 : 25) * MS, MS);
        waits = (struct hzp_waits){.running = 8, .slots = 8, .count = 1, .of = {{now_ns, 60, 0}}};
        run(8, 0, 10 * MS, MS); /* training that was issued before may end in it */
        for (int i = 0; i < 100; i++)
            assert_int_equal(run(8, 0, 10 * MS, MS), 0);
        waits.count = 0;
        for (int i = 0; i < 100; i++)
            train += run(8, 0, 10 * MS, MS);
        assert_true(train > 200 * MS);
        policy.train_min = 0.1;
        hzp_split_set_policy(&split, &policy);
        waits.count = 1;
        train = 0;
        for (int i = 0; i < 1000; i++)
            train += run(8, 0, 10 * MS, MS);
        assert_in_range(train, 900 * MS, 1400 * MS);
    }
}

/* A step that would miss its goal beside training gets the whole device. */
static void test_beside_only_where_that_is_in_time(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        open_policy(&(struct hzp_policy){.itl_ns = 14 * MS, .train_max = 1}, true);
        uint64_t train = 0;
        for (int i = 0; i < 2000; i++) {
            struct hzp_split_step step;
            struct hzp_batch batch = {.rows = 4, .decode_segs = 4, .pos = pos};
            hzp_split_begin(&split, &step, now_ns);
            if (step.hold)
                train += wait_out(&step, MS / 4);
            hzp_split_serve(&split, &step, &batch, &waits, may_beside);
            struct hzp_exec_times times = {.ns[HZP_TENANT_SERVE] = 10 * MS};
            times.ns[HZP_TENANT_TRAIN] = items_within(&step, MS / 4);
            hzp_split_taken(&split, &step, with_of(&times), (double)times.ns[HZP_TENANT_TRAIN]);
            if (step.beside)
                times.ns[HZP_TENANT_SERVE] = (slow ? 18 : 11) * MS;
            times.end_ns[HZP_TENANT_SERVE] = times.ns[HZP_TENANT_SERVE];
            times.end_ns[HZP_TENANT_TRAIN] = times.ns[HZP_TENANT_TRAIN];
            now_ns += times.ns[HZP_TENANT_SERVE] + (step.beside ? 0 : times.ns[HZP_TENANT_TRAIN]);
            train += times.ns[HZP_TENANT_TRAIN];
            hzp_split_ended(&split, &step, &times, now_ns, MS / 4);
        }
        struct hzp_split_report *report = test_malloc(sizeof(*report));
        hzp_split_read(&split, now_ns, report);
        if (slow)
            assert_true(report->beside < 200);
        else
            assert_true(report->beside > 1500 && train > 1500u * 10 * MS);
        test_free(report);
    }
}

static void test_serving_that_misses_alone_is_left_alone(void **state)
{
    (void)state;
    open_policy(&(struct hzp_policy){.itl_ns = 9 * MS, .train_max = 1}, false);
    for (int i = 0; i < 300; i++)
        run(4, 0, 10 * MS, MS);
    for (int i = 0; i < 300; i++)
        assert_int_equal(run(4, 0, 10 * MS, MS), 0);
    struct hzp_split_report *report = test_malloc(sizeof(*report));
    hzp_split_read(&split, now_ns, report);
    assert_true(report->missed_itl_alone > 0.5);
    test_free(report);
    /* train_min holds regardless of the goals. */
    hzp_split_set_policy(&split,
                         &(struct hzp_policy){.itl_ns = 9 * MS, .train_max = 1, .train_min = 0.2});
    double train = 0;
    for (int i = 0; i < 1000; i++)
        train += (double)run(4, 0, 10 * MS, MS);
    assert_true(train > 2400.0 * MS && train < 2600.0 * MS);
}

/* Every running slot is taken, as it is under overload: training's time over serving's, with the
 * work waiting for `age_ns`. */
static double learns_when_full(const struct hzp_policy *policy, uint64_t age_ns)
{
    open_policy(policy, false);
    double train = 0;
    for (int i = 0; i < 4000; i++) {
        waits.running = waits.slots = 64;
        hzp_split_age(&split, age_ns);
        train += (double)run(64, 0, 20 * MS, 3 * MS);
    }
    return train / (4000.0 * 20 * MS);
}

static void test_full_slots_do_not_stop_learning(void **state)
{
    (void)state;
    struct hzp_policy policy = hzp_policy_default;
    for (int goal = 0; goal < 2; goal++) {
        policy.itl_ns = goal ? 60 * MS : 0;
        policy.train_min = hzp_policy_default.train_min;
        double floor = policy.train_min;
        double now = learns_when_full(&policy, 0),
               old = learns_when_full(&policy, 3600000u * (uint64_t)MS);
        if (goal) /* without a goal of the operator's full slots do not count */
            assert_true(now < 1.2 * floor / (1 - floor));
        assert_true(now > 0.9 * floor && old > 4.5 * floor);
        policy.train_min = 0;
        if (goal)
            assert_true(learns_when_full(&policy, 3600000u * (uint64_t)MS) < 0.001);
    }
}

static void test_the_most_is_the_most(void **state)
{
    (void)state;
    open_policy(&(struct hzp_policy){.itl_ns = 100 * MS, .train_max = 0.25}, false);
    double train = 0;
    for (int i = 0; i < 3000; i++)
        train += (double)run(4, 0, 9 * MS, MS);
    assert_true(train > 8800.0 * MS && train < 9030.0 * MS);
    hzp_split_set_policy(&split, &(struct hzp_policy){.itl_ns = 100 * MS, .train_max = 0});
    run(4, 0, 9 * MS, MS);
    for (int i = 0; i < 100; i++)
        assert_int_equal(run(4, 0, 9 * MS, MS), 0);
    assert_int_equal(run(0, 0, 0, MS), 50 * MS);
}

/* train_max also bounds training on a lane of its own, with a goal and without. */
static void test_the_most_is_the_most_beside(void **state)
{
    (void)state;
    for (int goal = 0; goal < 2; goal++) {
        open_policy(
            &(struct hzp_policy){.itl_ns = goal * 100 * MS, .train_share = 0.5, .train_max = 0.1},
            true);
        double train = 0;
        for (int i = 0; i < 3000; i++)
            train += (double)run(4, 0, 9 * MS, MS);
        assert_true(train > 2700.0 * MS && train < 3030.0 * MS);
    }
}

/* Without a goal: an ITL with a prompt takes 25 ms by itself, the others 10, and two prompts
 * arrive per second, in two percent of the ITLs.  So the p99 is 25 ms, and training may fill all
 * ITLs up to 30. */
static void test_gaps_are_stretched_by_so_much(void **state)
{
    (void)state;
    for (int beside = 0; beside < 2; beside++) {
        open_policy(&(struct hzp_policy){.itl_stretch = 1.2, .train_share = 4, .train_max = 1},
                    beside);
        int32_t late = 0;
        double train = 0;
        uint64_t next_ns = now_ns;
        for (int i = 0; i < 6000; i++) {
            bool due = now_ns >= next_ns;
            uint64_t before = now_ns, got = run(4, due ? 60 : 0, (due ? 25 : 10) * MS, MS);
            next_ns += due ? 500u * MS : 0;
            late += i >= 3000 && now_ns - before > 31 * MS;
            train += i < 3000 ? 0 : (double)got;
        }
        assert_in_range(late, 0, 30);
        assert_true(train > 3000 * 8.0 * MS);
        struct hzp_split_report *report = test_malloc(sizeof(*report));
        hzp_split_read(&split, now_ns, report);
        assert_in_range(report->derived_itl_ns, 28 * MS, 32 * MS);
        /* An explicit goal replaces the derived one at once, with or without a step. */
        hzp_split_set_policy(&split, &(struct hzp_policy){.itl_ns = 15 * MS, .train_max = 1});
        hzp_split_read(&split, now_ns, report);
        assert_int_equal(report->derived_itl_ns, 0);
        test_free(report);
        run(4, 0, 10 * MS, MS);
        for (int i = 0; i < 100; i++) {
            uint64_t before = now_ns;
            run(4, 0, 10 * MS, MS);
            assert_true(now_ns - before <= 15 * MS);
        }
    }
}

/* An item longer than the time the stretch leaves is admitted now and then; otherwise training
 * would stop. */
static void test_no_item_is_too_long_for_a_stretch_for_ever(void **state)
{
    (void)state;
    open_policy(&(struct hzp_policy){.itl_stretch = 1.2, .train_share = 4, .train_max = 1}, false);
    int long_ones = 0;
    for (int i = 0; i < 5000; i++)
        long_ones += run(4, 0, 10 * MS, 60 * MS) > 0 && i >= 500;
    assert_in_range(long_ones, 10, 4500 / 128 + 1);
}

/* Where step times hardly scatter no margin is kept: the whole stretch is used, also by training
 * that begins late. */
static void test_steady_steps_need_no_margin(void **state)
{
    (void)state;
    open_policy(&(struct hzp_policy){.itl_stretch = 1.2, .train_share = 4, .train_max = 1}, false);
    for (int i = 0; i < 1000; i++)
        run(4, 0, (uint64_t)(98 + i % 5) * MS / 10, 0);
    double train = 0;
    int32_t late = 0;
    for (int i = 0; i < 8000; i++) {
        uint64_t before = now_ns, got = run(4, 0, (uint64_t)(98 + i % 5) * MS / 10, MS);
        train += i < 4000 ? 0 : (double)got;
        late += i >= 4000 && now_ns - before > 123 * MS / 10;
    }
    assert_true(train > 4000 * 0.75 * MS);
    assert_in_range(late, 0, 40);
}

/* Training continues where prompts never stop, and where samples arrive after a long time
 * without any. */
static void test_a_stretch_lets_training_go_on_for_ever(void **state)
{
    (void)state;
    for (int stretched = 0; stretched < 2; stretched++)
        for (int32_t prompt = 0; prompt <= 64; prompt += 64) {
            open_policy(&(struct hzp_policy){.itl_stretch = stretched ? 1.2 : 1,
                                             .train_share = 0.5,
                                             .train_max = 1},
                        false);
            for (int i = 0; i < 2000; i++)
                assert_int_equal(run(4, prompt, 10 * MS, 0), 0);
            int trained = 0;
            for (int i = 0; i < 10000; i++)
                trained += run(4, prompt, 10 * MS, 8 * MS) > 0;
            assert_in_range(trained, 5, 10000 / 128 + 1);
        }
}

static void test_an_item_that_does_not_fit_is_rare(void **state)
{
    (void)state;
    open_policy(&(struct hzp_policy){.itl_ns = 20 * MS, .train_max = 1}, false);
    int long_ones = 0;
    for (int i = 0; i < 5000; i++)
        long_ones += run(4, 0, 10 * MS, 30 * MS) > 0;
    assert_in_range(long_ones, 10, 5000 / 256 + 1);
}

/* Prompts of 96 rows, 32 of them per step: the longest TTFT under a goal, and training's time. */
static uint64_t longest_first(uint64_t goal_ns, uint64_t *ret_train)
{
    uint64_t longest = 0;
    open_policy(&(struct hzp_policy){.itl_ns = 400 * MS, .ttft_ns = goal_ns, .train_max = 1},
                false);
    *ret_train = 0;
    for (int i = 0; i < 1500; i++) {
        uint64_t since = now_ns - 2 * MS;
        waits.count = i % 3 ? 1 : 0;
        for (int32_t left = 96; left > 0; left -= 32) {
            waits.count = 1;
            waits.of[0] = (struct hzp_wait){since, left, 32};
            *ret_train += run(4, 32, 20 * MS, MS);
        }
        if (i > 300)
            longest = HZP_MAX(longest, now_ns - since);
        waits.count = 0;
        for (int k = 0; k < 5; k++)
            *ret_train += run(4, 0, 10 * MS, MS);
    }
    return longest;
}

static void test_first_tokens_come_in_time(void **state)
{
    (void)state;
    uint64_t train, more;
    assert_true(longest_first(100 * MS, &train) <= 100 * MS);
    assert_true(train > 0);
    assert_true(longest_first(200 * MS, &more) <= 200 * MS);
    assert_true(more > train);
}

static void test_prompts_rows_keep_gaps_within_their_goal(void **state)
{
    (void)state;
    open_policy(&(struct hzp_policy){.itl_ns = 40 * MS, .train_max = 1}, false);
    for (int i = 0; i < 500; i++) {
        int32_t prompt = 16 * (i % 8);
        run(4, prompt, (uint64_t)(10 * MS + prompt * MS / 4), 0);
    }
    struct hzp_split_step step;
    hzp_split_begin(&split, &step, now_ns);
    /* 10 + n / 4 <= 40, with a margin. */
    assert_in_range(hzp_step_prompt_rows(&model.step, 4, 4, 0, step.serve_max_ns), 80, 120);
    assert_int_equal(hzp_step_prompt_rows(&model.step, 4, 4, 1e9, step.serve_max_ns), 0);
    hzp_split_set_policy(&split, &hzp_policy_default);
    run(4, 0, 10 * MS, 0);
    hzp_split_begin(&split, &step, now_ns);
    assert_true(step.serve_max_ns == 0);
}

/* A derived goal bounds prompt rows only behind a hold, by what the hold took. */
static void test_prompt_rows_are_fewer_behind_a_hold(void **state)
{
    (void)state;
    open_policy(&(struct hzp_policy){.itl_stretch = 1.2, .train_share = 4, .train_max = 1}, true);
    struct hzp_batch batch = {.rows = 4, .decode_segs = 4, .pos = pos};
    struct hzp_split_step step;
    int32_t held = 0;
    for (int i = 0; i < 3000; i++)
        run(4, i % 20 ? 0 : 60, (i % 20 ? 10 : 25) * MS, MS);
    for (int i = 0; i < 200; i++) {
        hzp_split_begin(&split, &step, now_ns);
        uint64_t took = step.hold ? wait_out(&step, MS) : 0;
        double spent = (double)took + split.pipeline.late_ns, most = 30 * MS - spent;
        held += took > 0;
        if (spent > 0)
            assert_true(step.serve_max_ns > 0.9 * most && step.serve_max_ns < 1.1 * most);
        else
            assert_true(step.serve_max_ns == 0);
        hzp_split_serve(&split, &step, &batch, &waits, true);
        struct hzp_exec_times times = {
            .ns = {[HZP_TENANT_SERVE] = 10 * MS, [HZP_TENANT_TRAIN] = items_within(&step, MS)}};
        memcpy(times.end_ns, times.ns, sizeof(times.ns));
        hzp_split_taken(&split, &step, with_of(&times), (double)times.ns[HZP_TENANT_TRAIN]);
        now_ns += HZP_MAX(times.ns[HZP_TENANT_SERVE], times.ns[HZP_TENANT_TRAIN]);
        hzp_split_ended(&split, &step, &times, now_ns, MS);
    }
    assert_true(held > 20);
}

static void test_what_was_measured_is_told(void **state)
{
    (void)state;
    struct hzp_split_report *report = test_malloc(sizeof(*report));
    open_policy(&(struct hzp_policy){.itl_ns = 40 * MS, .ttft_ns = 500 * MS, .train_max = 1},
                false);
    for (int i = 0; i < 2000; i++) {
        waits.count = i % 10 == 0;
        waits.of[0] = (struct hzp_wait){now_ns - 5 * MS, 16, 16};
        run(4, waits.count ? 16 : 0, 10 * MS, MS);
    }
    hzp_split_read(&split, now_ns, report);
    assert_int_equal(report->steps, 2000);
    assert_true(report->trained > 1500);
    assert_in_range(hzp_window_quantile(&report->itl, 0.5), 25 * MS, 40 * MS);
    assert_in_range(hzp_window_quantile(&report->itl, 0.99), 25 * MS, 40 * MS);
    assert_in_range(hzp_window_quantile(&report->ttft, 0.5), 15 * MS, 45 * MS);
    assert_true(report->error < 0.1);
    assert_true(report->alone_ns > 9 * MS && report->alone_ns < 11 * MS);
    assert_true(report->train_part > 0.5 && report->serve_part > 0.2);
    assert_true(report->train_part + report->serve_part <= 1.05);
    uint64_t counted = 0;
    for (int i = 0; i < HZP_LIMIT_COUNT; i++)
        counted += report->limited[i];
    assert_int_equal(counted, 2000);
    test_free(report);
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
        cmocka_unit_test(test_beside_serving_takes_longer_by_the_share),
        cmocka_unit_test(test_gaps_are_filled_up_to_their_goal),
        cmocka_unit_test(test_steps_are_shorter_where_places_are_scarce),
        cmocka_unit_test(test_nobody_waits_for_a_slot_because_of_training),
        cmocka_unit_test(test_beside_only_where_that_is_in_time),
        cmocka_unit_test(test_serving_that_misses_alone_is_left_alone),
        cmocka_unit_test(test_full_slots_do_not_stop_learning),
        cmocka_unit_test(test_the_most_is_the_most),
        cmocka_unit_test(test_the_most_is_the_most_beside),
        cmocka_unit_test(test_gaps_are_stretched_by_so_much),
        cmocka_unit_test(test_no_item_is_too_long_for_a_stretch_for_ever),
        cmocka_unit_test(test_steady_steps_need_no_margin),
        cmocka_unit_test(test_a_stretch_lets_training_go_on_for_ever),
        cmocka_unit_test(test_an_item_that_does_not_fit_is_rare),
        cmocka_unit_test(test_first_tokens_come_in_time),
        cmocka_unit_test(test_prompts_rows_keep_gaps_within_their_goal),
        cmocka_unit_test(test_prompt_rows_are_fewer_behind_a_hold),
        cmocka_unit_test(test_what_was_measured_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
