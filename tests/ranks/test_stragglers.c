/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ranks/test_stragglers.c - reports of made-up ranks, twice a second: who is named, when, and
 * who is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "mesh/peers/selftest.h"
#include "mesh/peers/control_state.h"

enum { RANKS = 4, WITHIN = 10 /* reports: five seconds */ };

static uint64_t random_state;

static double uniform(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 40) / (double)(1u << 24);
}

/* One report of each rank: in every kind of work about 1 ns, with noise of up to a third; rank
 * `slow` is slower in `meter`, or in all ops (-1). */
static void report(struct hzp_stragglers *s, int ranks, int slow, int meter, double times)
{
    for (int r = 0; r < ranks; r++) {
        float rate[HZP_METER_COUNT];
        for (int m = 0; m < HZP_METER_COUNT; m++) {
            bool is = r == slow && (m == meter || (meter < 0 && m != HZP_METER_LINK));
            rate[m] = (float)((1 + uniform() / 3) * (is ? times : 1));
        }
        hzp_stragglers_note(s, r, rate);
    }
}

/* Reports until a rank is named, at most WITHIN times; -1: none was. */
static int named(struct hzp_stragglers *s, int ranks, int slow, int meter, double times)
{
    for (int i = 0; i < WITHIN; i++) {
        report(s, ranks, slow, meter, times);
        hzp_stragglers_judge(s);
        int rank = hzp_stragglers_next(s);
        if (rank >= 0)
            return rank;
    }
    return -1;
}

static void test_planted(void **state)
{
    static const int meters[] = {-1, HZP_OP_matmul, HZP_METER_LINK};
    for (int ranks = 2; ranks <= RANKS; ranks += 2)
        for (int i = 0; i < HZP_COUNT(meters); i++)
            for (int slow = 0; slow < ranks; slow++) {
                struct hzp_stragglers s;
                hzp_stragglers_init(&s, ranks);
                for (int turn = 0; turn < 100; turn++)
                    assert_int_equal(named(&s, ranks, -1, 0, 1), -1);
                assert_int_equal(named(&s, ranks, slow, meters[i], 6), slow);
                assert_true(s.slow[slow].named && s.slow[slow].times > HZP_STRAGGLER_SLOW);
                if (meters[i] >= 0)
                    assert_int_equal(s.slow[slow].meter, meters[i]);
                assert_int_equal(named(&s, ranks, slow, meters[i], 6), -1); /* once */
                assert_int_equal(named(&s, ranks, -1, 0, 1), slow);         /* none any more */
                assert_false(s.slow[slow].named);
                hzp_stragglers_fini(&s);
            }
}

/* No rank is named for one bad moment, nor where there is nothing to compare with. */
static void test_not_named(void **state)
{
    struct hzp_stragglers s;
    float none[HZP_METER_COUNT] = {0}, bad[HZP_METER_COUNT];
    for (int m = 0; m < HZP_METER_COUNT; m++)
        bad[m] = 100;
    hzp_stragglers_init(&s, RANKS);
    assert_int_equal(named(&s, RANKS, -1, 0, 1), -1);
    for (int i = 0; i < 100; i++) {
        hzp_stragglers_note(&s, 2, i % 6 < 2 ? bad : none); /* two of its newest five */
        assert_int_equal(named(&s, RANKS, -1, 0, 1), -1);
    }
    hzp_stragglers_fini(&s);
    hzp_stragglers_init(&s, RANKS);
    for (int i = 0; i < 100; i++) {
        hzp_stragglers_note(&s, 1, bad); /* the others do no work */
        hzp_stragglers_note(&s, 0, none);
        hzp_stragglers_judge(&s);
        assert_int_equal(hzp_stragglers_next(&s), -1);
        assert_int_equal(s.slow[1].meter, -1);
    }
    hzp_stragglers_fini(&s);
}

static void test_report(void **state)
{
    struct hzp_meter before[HZP_METER_COUNT] = {{0}}, now[HZP_METER_COUNT] = {{0}};
    float rate[HZP_METER_COUNT];
    before[HZP_OP_matmul] = (struct hzp_meter){1000, 500};
    now[HZP_OP_matmul] = (struct hzp_meter){4000, 1500};
    now[HZP_METER_LINK] = (struct hzp_meter){10, 10}; /* too little to say anything */
    hzp_stragglers_report(before, now, rate);
    for (int m = 0; m < HZP_METER_COUNT; m++)
        assert_true(rate[m] == (m == HZP_OP_matmul ? 3.0f : 0));
}

/* Of the start-up self-test: the rank that is slowest compared with the others, and in what. */
static void test_selftest(void **state)
{
    struct hzp_selftest all[RANKS];
    int which;
    double times;
    for (int ranks = 2; ranks <= RANKS; ranks++)
        for (int slow = 0; slow < ranks; slow++)
            for (int w = 0; w < HZP_SELFTEST_COUNT; w++) {
                for (int r = 0; r < ranks; r++)
                    all[r] = (struct hzp_selftest){{1e-3, 5e-3, 2e-4}};
                all[slow].seconds[w] *= 7;
                assert_int_equal(hzp_selftest_slowest(all, ranks, &which, &times), slow);
                assert_int_equal(which, w);
                assert_true(times > 6.99 && times < 7.01);
            }
}

static void test_speeds(void **state)
{
    struct hzp_selftest all[4] = {{{2e-3}}, {{1e-3}}, {{1.03e-3}}, {{1}}};
    uint8_t speed[4];
    hzp_selftest_speeds(all, 4, speed);
    assert_int_equal(speed[0], 50);
    assert_int_equal(speed[1], 100);
    assert_int_equal(speed[2], 100); /* so little is noise */
    assert_int_equal(speed[3], 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_speeds),    cmocka_unit_test(test_planted),
        cmocka_unit_test(test_not_named), cmocka_unit_test(test_report),
        cmocka_unit_test(test_selftest),
    };
    return cmocka_run_group_tests_name("stragglers", tests, NULL, NULL);
}
