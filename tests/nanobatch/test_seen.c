/* SPDX-License-Identifier: Apache-2.0 */
/* What the split observes, windows and spreads; the operator's goals as text. */
#include "nanobatch/split/policy.h"
#include "nanobatch/split/seen.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_quantiles_of_a_window(void **state)
{
    (void)state;
    struct hzp_window *w = hzp_xcalloc(1, sizeof(*w));
    assert_int_equal(hzp_window_quantile(w, 0.5), 0);
    for (int i = 1; i <= 3 * HZP_WINDOW_VALUES; i++)
        hzp_window_add(w, (uint64_t)i, 1);
    assert_int_equal(hzp_window_weight(w), HZP_WINDOW_VALUES);
    assert_int_equal(hzp_window_quantile(w, 0), 2 * HZP_WINDOW_VALUES + 1);
    assert_int_equal(hzp_window_quantile(w, 0.5), 2 * HZP_WINDOW_VALUES + HZP_WINDOW_VALUES / 2);
    assert_int_equal(hzp_window_quantile(w, 1), 3 * HZP_WINDOW_VALUES);
    hzp_window_add(w, 7, 3 * HZP_WINDOW_VALUES);
    assert_int_equal(hzp_window_quantile(w, 0.7), 7);
    free(w);
}

static void test_a_spread_forgets(void **state)
{
    (void)state;
    struct hzp_spread s;
    hzp_spread_init(&s, 0.25, 1.04, 0.99);
    assert_true(hzp_spread_quantile(&s, 0.99) == 0);
    for (int i = 0; i < 1000; i++)
        hzp_spread_add(&s, i % 100 < 95 ? 1 : 3, 1);
    double p99 = hzp_spread_quantile(&s, 0.99), p50 = hzp_spread_quantile(&s, 0.5);
    assert_true(p99 >= 3 && p99 <= 3.2 && p50 >= 1 && p50 <= 1.1);
    for (int i = 0; i < 1000; i++)
        hzp_spread_add(&s, 1, 1);
    assert_true(hzp_spread_quantile(&s, 0.99) <= 1.1);
    hzp_spread_add(&s, 1e30, 1e6);
    hzp_spread_add(&s, 0, 1e9);
    assert_true(hzp_spread_quantile(&s, 1) > 30 && hzp_spread_quantile(&s, 0.5) < 0.3);
}

/* Steps of 10 ms, then 30 of training: how much of a wait was training's is known at every
   moment. */
static void test_training_within_a_wait(void **state)
{
    (void)state;
    struct hzp_seen *seen = hzp_xcalloc(1, sizeof(*seen));
    struct hzp_policy policy = {.ttft_ns = 100};
    hzp_seen_init(seen);
    for (uint64_t i = 0; i < 2000; i++)
        hzp_seen_step(seen, i * 40000000, (i + 1) * 40000000, 10000000, 30000000);
    uint64_t end = 2000 * 40000000ull;
    for (int i = 0; i < 400; i++)
        hzp_seen_ttft(seen, &policy, end - 100000000, end);
    double alone = hzp_spread_quantile(&seen->ttft_alone, 0.99);
    assert_true(alone > 25e6 && alone < 29e6);
    assert_true(seen->missed_ttft > 0.5);
    assert_int_equal(hzp_window_quantile(&seen->ttft, 0.5), 100000000);
    double serve, train;
    hzp_seen_shares(seen, end, 30, &serve, &train);
    assert_true(fabs(serve - 0.25) < 0.01 && fabs(train - 0.75) < 0.01);
    free(seen);
}

/* A time without training does not raise the aim of steps with it. */
static void test_the_aim_rests_without_training(void **state)
{
    (void)state;
    struct hzp_seen *seen = hzp_xcalloc(1, sizeof(*seen));
    struct hzp_policy policy = {.itl_ns = 100};
    hzp_seen_init(seen);
    for (int i = 0; i < 300; i++)
        hzp_seen_itl(seen, &policy, HZP_TENANT_TRAIN, i % 10 ? 90 : 110, 50, 1);
    double lowered = seen->itl_aim[HZP_TENANT_TRAIN].part;
    assert_true(lowered < 0.3);
    for (int i = 0; i < 100000; i++)
        hzp_seen_itl(seen, &policy, HZP_TENANT_SERVE, 50, 50, 1);
    assert_true(seen->itl_aim[HZP_TENANT_TRAIN].part < 1.1 * lowered);
    assert_true(seen->itl_aim[HZP_TENANT_SERVE].part == 1);
    for (int i = 0; i < 100000; i++)
        hzp_seen_itl(seen, &policy, HZP_TENANT_TRAIN, 90, 50, 1);
    assert_true(seen->itl_aim[HZP_TENANT_TRAIN].part == 1);
    free(seen);
}

/* Requests that waited for a running slot do not set the usual time to first token. */
static void test_a_burst_does_not_set_the_goal(void **state)
{
    (void)state;
    struct hzp_seen *seen = hzp_xcalloc(1, sizeof(*seen));
    struct hzp_policy policy = {.itl_ns = 0};
    uint64_t now = 1000000000;
    hzp_seen_init(seen);
    for (int i = 0; i < 31; i++, now += 100000000)
        hzp_seen_ttft(seen, &policy, now - 40000000, now);
    seen->crowded_ns = now;
    for (int i = 0; i < 100; i++)
        hzp_seen_ttft(seen, &policy, now - 10, now + 2000000000);
    assert_int_equal(hzp_seen_ttft_alone_p99(seen), 0); /* 31 are too few */
    now += 2000000000;
    hzp_seen_ttft(seen, &policy, now - 40000000, now);
    assert_in_range(hzp_seen_ttft_alone_p99(seen), 40000000, 46000000);
    free(seen);
}

static void test_goals_as_text(void **state)
{
    (void)state;
    static const char *const bad[] = {"x",
                                      "ttft",
                                      "ttft=",
                                      "ttft=5",
                                      "ttft=5m",
                                      "ttft=5ms,",
                                      "ttft=5ms;itl=3ms",
                                      "itl=5ms,itl=6ms",
                                      "itl=-1ms",
                                      "itl=0s",
                                      "itl=nanms",
                                      "itl=1e9s",
                                      "itl=5ms ttft=3ms",
                                      " itl=5ms",
                                      "itl=5msx",
                                      "ttft=infs",
                                      ",itl=5ms",
                                      "itl=0x5ms",
                                      "itl= 5ms",
                                      "ttft=0x1p3s"};
    struct hzp_policy policy = {.ttft_ns = 1, .itl_ns = 2};
    struct hzp_err_text text;
    for (size_t i = 0; i < HZP_COUNT(bad); i++) {
        memset(&text, 0, sizeof(text));
        assert_int_equal(hzp_policy_parse_goals(bad[i], "--slo", &policy, &text), HZP_EINVAL);
        assert_non_null(strstr(text.text, "--slo"));
        assert_string_equal(text.param, "--slo");
        assert_int_equal(policy.ttft_ns, 1);
        assert_int_equal(policy.itl_ns, 2);
    }
    assert_int_equal(hzp_policy_parse_goals("ttft=0.5s,itl=50ms", "x", &policy, &text), HZP_OK);
    assert_int_equal(policy.ttft_ns, 500000000);
    assert_int_equal(policy.itl_ns, 50000000);
    assert_int_equal(hzp_policy_parse_goals("itl=900us", "x", &policy, &text), HZP_OK);
    assert_int_equal(policy.ttft_ns, 0);
    assert_int_equal(policy.itl_ns, 900000);
    assert_int_equal(hzp_policy_parse_goals("none", "x", &policy, &text), HZP_OK);
    assert_int_equal(policy.itl_ns, 0);
}

static void test_a_policy_is_checked(void **state)
{
    (void)state;
    struct hzp_err_text text;
    struct hzp_policy policy = hzp_policy_default;
    assert_int_equal(hzp_policy_check(&policy, &text), HZP_OK);
    policy.train_min = 0.5;
    assert_int_equal(hzp_policy_check(&policy, &text), HZP_OK);
    policy.train_max = 0.4; /* it then bounds the least, too */
    assert_int_equal(hzp_policy_check(&policy, &text), HZP_OK);
    policy.train_min = 1.01;
    assert_int_equal(hzp_policy_check(&policy, &text), HZP_EINVAL);
    assert_string_equal(text.param, "train_min");
    policy = (struct hzp_policy){.train_share = NAN, .train_max = 1};
    assert_int_equal(hzp_policy_check(&policy, &text), HZP_EINVAL);
    policy = (struct hzp_policy){.train_max = 1.01};
    assert_int_equal(hzp_policy_check(&policy, &text), HZP_EINVAL);
    assert_string_equal(text.param, "train_max");
    static const double stretch[] = {0.5, -1, 101, NAN, INFINITY};
    for (int i = 0; i < HZP_COUNT(stretch); i++) {
        policy = (struct hzp_policy){.itl_stretch = stretch[i], .train_max = 1};
        assert_int_equal(hzp_policy_check(&policy, &text), HZP_EINVAL);
        assert_string_equal(text.param, "itl_stretch");
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles_of_a_window),
        cmocka_unit_test(test_a_spread_forgets),
        cmocka_unit_test(test_training_within_a_wait),
        cmocka_unit_test(test_the_aim_rests_without_training),
        cmocka_unit_test(test_a_burst_does_not_set_the_goal),
        cmocka_unit_test(test_goals_as_text),
        cmocka_unit_test(test_a_policy_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
