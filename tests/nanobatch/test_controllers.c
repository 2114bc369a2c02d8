/* SPDX-License-Identifier: Apache-2.0 */
/* The split's controllers one by one: share (credit, floor), throttles (misses, slots, overdue),
 * deadlines (ITL, TTFT, idle), exceptions (skip, overrun, beside). */
#include "nanobatch/split/deadline.h"
#include "nanobatch/split/exceptions.h"
#include "nanobatch/split/share.h"
#include "nanobatch/split/throttle.h"
#include "nanobatch/time/step_times.h"
#include "tests/serve/seeded.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define MS 1e6

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b));
}

/* ---- share ---- */

static void test_a_part_of_all_time(void **state)
{
    (void)state;
    assert_true(hzp_share_of_part(0) == 0 && near(hzp_share_of_part(0.25), 1.0 / 3));
    assert_true(isinf(hzp_share_of_part(1)));
    struct hzp_policy policy = {.train_share = 2, .train_max = 0.5};
    struct hzp_time_share share = hzp_share_of(&policy, false);
    assert_true(near(share.turn, 1) && near(share.beside, 1)); /* train_max is the smaller bound */
    policy.train_max = 1;
    assert_true(hzp_share_of(&policy, false).turn == 2);
    assert_true(isinf(hzp_share_of(&policy, true).turn)); /* a goal replaces train_share */
}

static void test_credit(void **state)
{
    (void)state;
    struct hzp_credit c = {.credit_ns = 0};
    struct hzp_time_share share = {.turn = 0.5, .beside = INFINITY};
    /* Before the first decode-only step the predicted step time is used, then the average. */
    assert_true(near(hzp_credit_allows(&c, &share, false, 8 * MS), 4 * MS));
    hzp_credit_usual(&c, 10 * MS);
    hzp_credit_usual(&c, 26 * MS);
    assert_true(near(c.usual_ns, 11 * MS));
    assert_true(near(hzp_credit_allows(&c, &share, false, 8 * MS), 5.5 * MS));
    /* C = min(C + s serve - train, next): an item of 30 ms is paid back over three steps. */
    hzp_credit_settle(&c, &share, false, 20 * MS, 30 * MS, 30 * MS);
    assert_true(near(c.credit_ns, -20 * MS));
    for (int i = 0; i < 3; i++)
        hzp_credit_settle(&c, &share, false, 20 * MS, 0, 30 * MS);
    assert_true(near(c.credit_ns, 10 * MS));
    for (int i = 0; i < 100; i++) /* credit is saved for one item at most */
        hzp_credit_settle(&c, &share, false, 20 * MS, 0, 30 * MS);
    assert_true(near(c.credit_ns, 30 * MS));
    /* O: an in-flight slice's excess over the usual share is subtracted. */
    c.owed_ns = hzp_credit_owes(&c, &share, false, 9.5 * MS);
    assert_true(near(c.owed_ns, 4 * MS));
    assert_true(hzp_credit_owes(&c, &share, false, 5 * MS) == 0);
    assert_true(near(hzp_credit_allows(&c, &share, false, 8 * MS), 31.5 * MS));
}

static void test_credit_without_a_bound(void **state)
{
    (void)state;
    struct hzp_credit c = {.credit_ns = -7, .usual_ns = 10 * MS};
    struct hzp_time_share none = {INFINITY, INFINITY};
    assert_true(isinf(hzp_credit_allows(&c, &none, false, 1)));
    assert_true(hzp_credit_owes(&c, &none, false, 1e12) == 0);
    hzp_credit_settle(&c, &none, false, 10 * MS, 90 * MS, 5 * MS);
    assert_true(c.credit_ns == 0);
}

static void test_floor_grows_with_age(void **state)
{
    (void)state;
    struct hzp_policy policy = hzp_policy_default;
    const uint64_t second = 1000u * MS;
    assert_true(policy.train_min > 0);
    assert_true(near(hzp_floor_part(&policy, 0), policy.train_min));
    assert_true(near(hzp_floor_part(&policy, 30 * second), policy.train_min));
    assert_true(near(hzp_floor_part(&policy, 60 * second), 2 * policy.train_min));
    assert_true(near(hzp_floor_part(&policy, 3600 * second), 5 * policy.train_min));
    policy.train_max = 3 * policy.train_min;
    assert_true(near(hzp_floor_part(&policy, 3600 * second), policy.train_max));
    policy.train_min = 0;
    assert_true(hzp_floor_part(&policy, 3600 * second) == 0);
}

static void test_floor(void **state)
{
    (void)state;
    double f = 0; /* a fifth of all time: a quarter of serving's */
    for (int i = 0; i < 4; i++)
        f = hzp_floor_settle(f, 0.2, 8 * MS, 0, 6 * MS);
    assert_true(near(f, 8 * MS)); /* max(next, serve) */
    assert_true(near(hzp_floor_due(f, 6 * MS), 8 * MS));
    assert_true(hzp_floor_due(f, 9 * MS) == 0 && hzp_floor_due(0, 0) == 0);
    assert_true(hzp_floor_settle(f, 0.2, 8 * MS, 20 * MS, 6 * MS) == 0);
    assert_true(hzp_floor_settle(0, 0, 8 * MS, 0, 6 * MS) == 0);
}

/* ---- throttle ---- */

static void test_misses_throttle(void **state)
{
    (void)state;
    assert_true(hzp_throttle_missed(0) == 1 && hzp_throttle_missed(0.005) == 1);
    assert_true(near(hzp_throttle_missed(0.0075), 0.5));
    assert_true(hzp_throttle_missed(0.01) == 0 && hzp_throttle_missed(1) == 0);
    assert_true(hzp_throttle_rarely_missed(0.002) && !hzp_throttle_rarely_missed(0.0024));
}

static void test_slots_throttle(void **state)
{
    (void)state;
    assert_true(hzp_throttle_slots(5, 0) == 1);
    assert_true(hzp_throttle_slots(0, 40) == 1 && hzp_throttle_slots(20, 40) == 1);
    assert_true(near(hzp_throttle_slots(29, 40), 0.5));
    assert_true(hzp_throttle_slots(38, 40) < 1e-9 && hzp_throttle_slots(40, 40) == 0);
}

static void test_overdue_requests_throttle(void **state)
{
    (void)state;
    double f = hzp_throttle_overdue(1, true);
    assert_true(near(f, 0.75));
    f = hzp_throttle_overdue(f, true);
    assert_true(near(f, 0.5625));
    assert_true(near(hzp_throttle_overdue(f, false), 0.6125));
    assert_true(hzp_throttle_overdue(0.99, false) == 1);

    struct hzp_waits waits = {.count = 2, .of = {{1000, 40, 40}, {1000, 40, 0}}};
    uint64_t quarter = 1000 + 100000000; /* of a TTFT goal of 400 ms */
    assert_false(hzp_overdue(NULL, quarter, 0, false));
    assert_true(hzp_overdue(&waits, 1001, 0, false)); /* taking turns: overdue at once */
    assert_false(hzp_overdue(&waits, quarter, 400000000, true));
    assert_true(hzp_overdue(&waits, quarter + 1, 400000000, true));
    assert_false(hzp_overdue(&waits, 1000 + 250000000, 0, true));
    assert_true(hzp_overdue(&waits, 1001 + 250000000, 0, true));
    waits.count = 1; /* with rows in this step it is not overdue, whatever its age */
    assert_false(hzp_overdue(&waits, UINT64_MAX, 0, false));
}

static void test_crowded_is_where_one_waits_for_a_slot(void **state)
{
    (void)state;
    struct hzp_waits waits = {.running = 8, .slots = 8, .count = 2, .of = {{1, 40, 40}, {1, 9, 0}}};
    assert_true(hzp_crowded(&waits));
    waits.count = 1; /* the only one has rows */
    assert_false(hzp_crowded(&waits));
    waits.count = 2;
    waits.running = 7;
    assert_false(hzp_crowded(&waits));
    waits.running = waits.slots = 0; /* not known */
    assert_false(hzp_crowded(&waits) || hzp_crowded(NULL));
}

/* ---- the aim ---- */

/* The part that is late because of training comes to 0.002, wherever that is: here ITLs scatter
 * evenly from 0.5 to 1.5 of what was predicted, and the goal is 10, so that 10 / 1.498 is the
 * prediction that 0.002 of them exceed. */
static void test_the_aim_follows_what_was_late(void **state)
{
    (void)state;
    struct hzp_aim aim;
    uint64_t random = 1;
    int32_t late = 0;
    hzp_aim_init(&aim);
    for (int i = 0; i < 120000; i++) {
        double itl = aim.part * 10 * (0.5 + (double)seeded(&random, 1 << 20) / (1 << 20));
        hzp_aim_note(&aim, itl > 10);
        late += i >= 20000 && itl > 10;
    }
    assert_in_range(late, 100, 400);
    assert_true(aim.part > 0.55 && aim.part < 0.75);
}

static void test_the_aim_recovers(void **state)
{
    (void)state;
    struct hzp_aim aim;
    hzp_aim_init(&aim);
    for (int i = 0; i < 200; i++)
        hzp_aim_note(&aim, true);
    assert_true(near(aim.part, 0.05));
    int32_t on_time = 0;
    for (; aim.part < 0.9; on_time++)
        hzp_aim_note(&aim, false);
    assert_in_range(on_time, 500, 4000);
    for (int i = 0; i < 10000; i++)
        hzp_aim_note(&aim, false);
    assert_true(aim.part == 1);
}

/* ---- deadlines ---- */

static void test_the_slice_of_a_limit(void **state)
{
    (void)state;
    /* left = 40: factor 1 where serving needs half of it, 1/2 at 5/8, 0 at 3/4. */
    assert_true(near(hzp_deadline_slice(42, 2, 20, true), 20));
    assert_true(near(hzp_deadline_slice(42, 2, 25, true), 7.5));
    assert_true(hzp_deadline_slice(42, 2, 30, true) == 0);
    assert_true(near(hzp_deadline_slice(42, 2, 30, false), 10));
    assert_true(hzp_deadline_slice(20, 2, 30, false) < 0);
    assert_true(near(hzp_deadline_ease(40, 25), 0.5) && hzp_deadline_ease(40, 20) == 1);
    assert_true(hzp_deadline_ease(40, 40) == 0 && hzp_deadline_ease(-5, 1) == 0);
}

static void test_ttft_limits(void **state)
{
    (void)state;
    struct hzp_seen *seen = hzp_xcalloc(1, sizeof(*seen));
    hzp_seen_init(seen);
    struct hzp_deadline_step step = {.begin_ns = 50000000, .pace = 32, .host_ns = MS};
    struct hzp_waits waits = {.count = 1, .of = {{30000000, 32, 32}}};
    uint64_t goal = 120000000;
    double one = hzp_deadline_ttft(seen, goal, &step, &waits);
    double aim = seen->ttft_aim.part;
    assert_true(near(one, aim * 100 * MS)); /* it is 20 ms old */
    waits.of[0].rows_left = 96;             /* three steps */
    assert_true(near(hzp_deadline_ttft(seen, goal, &step, &waits), one / 3));
    waits.of[0].rows_left = 32;
    waits.count = 2; /* a second request of the same age behind it needs four in all */
    waits.of[1] = (struct hzp_wait){30000000, 96, 0};
    assert_true(near(hzp_deadline_ttft(seen, goal, &step, &waits), one / 4));
    waits.count = 1;
    step.in_flight_ns = 40 * MS;
    assert_true(near(hzp_deadline_ttft(seen, goal, &step, &waits), aim * 60 * MS));
    /* No request waits: F is a quarter of the goal while no TTFT is known. */
    step.serve_ns = 5 * MS;
    assert_true(near(hzp_deadline_ttft(seen, goal, &step, NULL), aim * 90 * MS + 6 * MS));
    assert_true(hzp_deadline_idle(seen, 0, 7) == 7);
    assert_true(hzp_deadline_idle(seen, goal, 50 * MS) == 50 * MS);
    assert_true(near(hzp_deadline_idle(seen, goal, 500 * MS), aim * 90 * MS));
    free(seen);
}

/* ---- exceptions ---- */

static void test_prompts_pass_training_over_eight_times(void **state)
{
    (void)state;
    struct hzp_exceptions e = {.passed_over = 0};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < HZP_SPLIT_PASSED_OVER_MAX; i++)
            assert_true(hzp_skip_step(&e, true, false, false, 100));
        assert_false(hzp_skip_step(&e, true, false, false, 100));
    }
    assert_false(hzp_skip_step(&e, false, false, false, 0));
    assert_false(hzp_skip_step(&e, true, false, true, 100)); /* a TTFT goal takes care of prompts */
}

static void test_goals_need_steps_without_training(void **state)
{
    (void)state;
    struct hzp_exceptions e = {.passed_over = 0};
    int32_t skipped = 0;
    assert_true(hzp_skip_step(&e, false, true, false, HZP_STEP_TIMES_FEW - 1));
    for (int i = 0; i < 640; i++)
        skipped += hzp_skip_step(&e, false, true, false, HZP_STEP_TIMES_FEW);
    assert_int_equal(skipped, 10);
}

static void test_an_overrun_is_rare(void **state)
{
    (void)state;
    struct hzp_exceptions e = {.since_overrun = 255};
    struct hzp_overrun_case c = {
        .rarely_missed = true, .allowed_ns = 5, .share_ns = INFINITY, .next_ns = 30, .itl_ns = 20};
    assert_false(hzp_overrun_allowed(&e, &c));
    hzp_exceptions_count(&e, false, false);
    assert_true(hzp_overrun_allowed(&e, &c));
    c.next_ns = 5; /* it fits */
    assert_false(hzp_overrun_allowed(&e, &c));
    c.next_ns = 40; /* twice the goal */
    assert_false(hzp_overrun_allowed(&e, &c));
    c.next_ns = 30;
    c.prompts = true;
    assert_false(hzp_overrun_allowed(&e, &c));
    c.prompts = c.rarely_missed = false;
    assert_false(hzp_overrun_allowed(&e, &c));
    hzp_exceptions_count(&e, true, false);
    assert_int_equal(e.since_overrun, 0);
}

static void test_an_overrun_of_a_derived_goal(void **state)
{
    (void)state;
    struct hzp_exceptions e = {.since_overrun = 128};
    struct hzp_overrun_case c = {
        .derived_goal = true, .rarely_missed = true, .share_ns = 5, .next_ns = 90, .itl_ns = 20};
    assert_true(hzp_overrun_allowed(&e, &c)); /* even if the goal leaves no time */
    c.prompts = true;
    assert_false(hzp_overrun_allowed(&e, &c));
    e.since_overrun = 256;
    assert_true(hzp_overrun_allowed(&e, &c));
    c.rarely_missed = false;
    assert_false(hzp_overrun_allowed(&e, &c));
    e.since_overrun = 1024;
    assert_true(hzp_overrun_allowed(&e, &c));
    c.share_ns = 0;
    assert_false(hzp_overrun_allowed(&e, &c));
    c.share_ns = 5;
    c.skipped = true;
    assert_false(hzp_overrun_allowed(&e, &c));
}

static void test_beside_is_tried_again(void **state)
{
    (void)state;
    struct hzp_exceptions e = {.since_beside = 255};
    assert_false(hzp_beside_allowed(&e, 15, 10, 1, true));
    hzp_exceptions_count(&e, false, false);
    assert_true(hzp_beside_allowed(&e, 15, 10, 1, true));
    assert_false(hzp_beside_allowed(&e, 20, 10, 1, true));   /* twice the limit */
    assert_false(hzp_beside_allowed(&e, 15, 10, 0.9, true)); /* a request was overdue */
    assert_false(hzp_beside_allowed(&e, 15, 10, 1, false));
    hzp_exceptions_count(&e, false, true);
    assert_int_equal(e.since_beside, 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_part_of_all_time),
        cmocka_unit_test(test_credit),
        cmocka_unit_test(test_credit_without_a_bound),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_floor_grows_with_age),
        cmocka_unit_test(test_misses_throttle),
        cmocka_unit_test(test_slots_throttle),
        cmocka_unit_test(test_overdue_requests_throttle),
        cmocka_unit_test(test_crowded_is_where_one_waits_for_a_slot),
        cmocka_unit_test(test_the_slice_of_a_limit),
        cmocka_unit_test(test_the_aim_follows_what_was_late),
        cmocka_unit_test(test_the_aim_recovers),
        cmocka_unit_test(test_ttft_limits),
        cmocka_unit_test(test_prompts_pass_training_over_eight_times),
        cmocka_unit_test(test_goals_need_steps_without_training),
        cmocka_unit_test(test_an_overrun_is_rare),
        cmocka_unit_test(test_an_overrun_of_a_derived_goal),
        cmocka_unit_test(test_beside_is_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
