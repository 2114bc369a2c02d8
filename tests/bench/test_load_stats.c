/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics against values computed by hand and goals. */
#include "dev/bench/load_stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct hzp_err_text err;

#define NEAR(a, b) assert_true(fabs((double)(a) - (double)(b)) < 1e-6 * (1 + fabs((double)(b))))

static void quantiles(void **state)
{
    static const float one[] = {3}, four[] = {1, 2, 4, 8};
    NEAR(hzp_load_quantile(one, 1, 0.99), 3);
    NEAR(hzp_load_quantile(four, 4, 0), 1);
    NEAR(hzp_load_quantile(four, 4, 0.5), 3);     /* halfway from 2 to 4 */
    NEAR(hzp_load_quantile(four, 4, 0.9), 6.8);   /* 2.7: 4 + 0.7 x 4 */
    NEAR(hzp_load_quantile(four, 4, 0.99), 7.88); /* 2.97: 4 + 0.97 x 4 */
    NEAR(hzp_load_quantile(four, 4, 1), 8);
}

/* Three answers: of 3, 2 and 1 tokens. */
static void add_three(struct hzp_load_record *r)
{
    float a[] = {0.3f, 0.1f}, b[] = {0.2f};
    const struct hzp_load_answer answer[] = {
        {.ttft_s = 0.5, .e2el_s = 0.9, .input = 10, .output = 3},
        {.ttft_s = 0.1, .e2el_s = 0.3, .input = 20, .output = 2},
        {.ttft_s = 0.3, .e2el_s = 0.3, .input = 30, .output = 1}};
    assert_int_equal(hzp_load_record_answer(r, &answer[0], a, 2, &err), 0);
    assert_int_equal(hzp_load_record_answer(r, &answer[1], b, 1, &err), 0);
    assert_int_equal(hzp_load_record_answer(r, &answer[2], NULL, 0, &err), 0);
    r->duration_s = 2;
    r->failed = 4;
}

static void summary(void **state)
{
    struct hzp_load_record r = {.goals = {.ttft = 0.4}};
    struct hzp_load_summary s;
    add_three(&r);
    assert_int_equal(hzp_load_summarise(&r, &s, &err), 0);
    assert_int_equal(s.completed, 3);
    assert_int_equal(s.failed, 4);
    assert_int_equal(s.good, 2);
    assert_int_equal(s.input_tokens, 60);
    assert_int_equal(s.output_tokens, 6);
    NEAR(s.request_rate, 1.5);
    NEAR(s.good_rate, 1);
    NEAR(s.output_rate, 3);
    NEAR(s.total_rate, 33);
    NEAR(s.ttft.mean, 0.3);
    NEAR(s.ttft.median, 0.3);
    NEAR(s.ttft.p99, 0.496); /* 1.98: 0.3 + 0.98 x 0.2 */
    NEAR(s.ttft.std, sqrt(0.08 / 3));
    NEAR(s.ttft.max, 0.5);
    assert_int_equal(s.tpot.n, 2); /* an answer of one token has no TPOT */
    NEAR(s.tpot.mean, 0.2);        /* 0.4 / 2 and 0.2 / 1 */
    assert_int_equal(s.itl.n, 3);
    NEAR(s.itl.mean, 0.2);
    NEAR(s.itl.median, 0.2);
    NEAR(s.itl.p90, 0.28);
    NEAR(s.e2el.mean, 0.5);
    NEAR(r.answer[0].itl_p99_s, 0.298);
    hzp_load_record_free(&r);
}

static void goals(void **state)
{
    static const struct {
        struct hzp_load_goals goals;
        int64_t good;
    } of[] = {{{.ttft = 0.5}, 3},  {{.ttft = 0.2}, 1},
              {{.itl = 0.25}, 2},  {{.itl = 0.05}, 1},
              {{.tpot = 0.21}, 3}, {{.tpot = 0.1}, 1},
              {{.e2el = 0.3}, 2},  {{.e2el = 0.3, .ttft = 0.2}, 1}};
    for (int i = 0; i < HZP_COUNT(of); i++) {
        struct hzp_load_record r = {.goals = of[i].goals};
        struct hzp_load_summary s;
        add_three(&r);
        assert_int_equal(hzp_load_summarise(&r, &s, &err), 0);
        assert_int_equal(s.good, of[i].good);
        hzp_load_record_free(&r);
    }
    struct hzp_load_goals g;
    assert_int_equal(hzp_load_goals_parse("ttft=500ms,itl=50,e2el=1.5s", &g, &err), 0);
    NEAR(g.ttft, 0.5);
    NEAR(g.itl, 0.05);
    NEAR(g.e2el, 1.5);
    NEAR(g.tpot, 0);
    assert_int_equal(hzp_load_goals_parse("tpot:20", &g, &err), 0);
    NEAR(g.tpot, 0.02);
    static const char *const bad[] = {
        "",         "ttft",     "ttft=",     "ttft=x",           "ttft=-5",
        "ttft=0",   "ttft=nan", "ttft=5m",   "latency=5ms",      "ttft=5ms,",
        ",itl=5ms", "t=1",      "ttft=1e99", "ttft=5ms;itl=5ms", "ttft=0x5",
        "itl= 5ms"};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        if (hzp_load_goals_parse(bad[i], &g, &err) != HZP_EINVAL)
            fail_msg("\"%s\" was accepted", bad[i]);
        assert_string_equal(err.param, "--slo");
    }
}

static void nothing(void **state)
{
    struct hzp_load_record r = {0};
    struct hzp_load_summary s;
    assert_int_equal(hzp_load_summarise(&r, &s, &err), 0);
    assert_int_equal(s.completed, 0);
    NEAR(s.total_rate, 0);
    hzp_load_record_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles),
        cmocka_unit_test(summary),
        cmocka_unit_test(goals),
        cmocka_unit_test(nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
