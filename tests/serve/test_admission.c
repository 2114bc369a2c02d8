/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths learned from ended, cut and running requests, compared with known distributions; and
 * the predicted peak compared with a simulated pool. */
#include "base/base.h"
#include "serve/admission.h"
#include "tests/serve/seeded.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct hzp_admission *open_rule(enum hzp_admission_rule rule, int32_t pages,
                                       int32_t page_rows)
{
    struct hzp_admission *a = NULL;
    assert_int_equal(hzp_admission_create(rule, pages, page_rows, &a), 0);
    return a;
}

static struct hzp_growth new_one(int32_t prompt, int32_t most)
{
    return (struct hzp_growth){.rows = prompt, .most = most};
}

static void worst_case_counts_everything(void **state)
{
    struct hzp_admission *a = open_rule(HZP_ADMIT_WORST_CASE, 10, 8);
    struct hzp_growth one = new_one(9, 16); /* 24 rows: the last is never stored */
    assert_true(hzp_admission_fits(a, &one));
    hzp_admission_add(a, &one);
    assert_int_equal(hzp_admission_peak(a), 3);
    hzp_admission_add(a, &one);
    hzp_admission_add(a, &one);
    assert_false(hzp_admission_fits(a, &one));
    struct hzp_growth small = new_one(8, 0);
    assert_true(hzp_admission_fits(a, &small));
    for (int i = 0; i < 100; i++)
        hzp_admission_ended(a, &(struct hzp_growth){.rows = 10, .drawn = 1, .most = 16}, false);
    hzp_admission_look(a, (struct hzp_growth[]){one, one, one}, 3);
    assert_false(hzp_admission_fits(a, &one)); /* regardless of what was learned */
    hzp_admission_destroy(a);
}

/* With nothing learned every sequence is assumed to reach its maximum, but not all at the same
   time. */
static void unlearned_is_cautious(void **state)
{
    struct hzp_admission *a = open_rule(HZP_ADMIT_PREDICTED, 10, 8);
    struct hzp_growth one = new_one(9, 16);
    struct hzp_growth late = {.rows = 24, .drawn = 15, .most = 16};
    hzp_admission_look(a, (struct hzp_growth[]){one, one, one}, 3);
    assert_true(hzp_admission_peak(a) == 9);
    assert_false(hzp_admission_fits(a, &one));
    hzp_admission_look(a, (struct hzp_growth[]){one, one, late}, 3);
    assert_true(hzp_admission_fits(a, &one)); /* `late` has ended when the others are long */
    hzp_admission_look(a, NULL, 0);
    struct hzp_growth huge = new_one(1000, 1000);
    assert_true(hzp_admission_fits(a, &huge)); /* alone: submit has checked its size */
    hzp_admission_destroy(a);
}

/* Lengths of 1 + a geometric distribution with this mean, truncated at `most`. */
static int32_t draw_length(uint64_t *seed, double mean, int32_t most, bool *cut)
{
    double u = (1 + (double)seeded(seed, 1000000)) * 1e-6;
    int32_t n = 1 + (int32_t)(-mean * log(u));
    *cut = n > most;
    return HZP_MIN(n, most);
}

static void learn(struct hzp_admission *a, uint64_t *seed, double mean, int32_t most, int count)
{
    for (int i = 0; i < count; i++) {
        bool cut;
        int32_t n = draw_length(seed, mean, most, &cut);
        hzp_admission_ended(a, &(struct hzp_growth){.rows = n, .drawn = n, .most = most}, cut);
    }
    hzp_admission_look(a, NULL, 0);
}

/* Geometric lengths are memoryless: S(from + n) / S(from) is the same for every `from`.
 * Requests cut at 100 with mean 200 must not count as short. */
static void survival_is_found_behind_cuts(void **state)
{
    struct hzp_admission *a = open_rule(HZP_ADMIT_PREDICTED, 100, 16);
    uint64_t seed = 1;
    learn(a, &seed, 200, 100, 500);
    learn(a, &seed, 200, 800, 450);
    for (int32_t from = 0; from <= 200; from += 50)
        for (int32_t n = 20; n <= 150; n += 30) {
            double told = hzp_admission_goes_on(a, from, from + n), is = exp(-n / 200.0);
            assert_true(fabs(told - is) < 0.12);
        }
    hzp_admission_destroy(a);
}

/* Running requests count with their length so far: without them the first ones to end would make
   all look short. */
static void who_runs_counts(void **state)
{
    struct hzp_admission *a = open_rule(HZP_ADMIT_PREDICTED, 100, 16);
    struct hzp_growth running[40];
    for (int i = 0; i < 40; i++)
        running[i] = (struct hzp_growth){.rows = 100, .drawn = 90, .most = 1000};
    for (int i = 0; i < 10; i++)
        hzp_admission_ended(a, &(struct hzp_growth){.rows = 10, .drawn = 10, .most = 1000}, false);
    hzp_admission_look(a, NULL, 0);
    double blind = hzp_admission_goes_on(a, 0, 50);
    hzp_admission_look(a, running, 40);
    double seeing = hzp_admission_goes_on(a, 0, 50);
    assert_true(blind < 0.3 && seeing > 0.75);
    hzp_admission_destroy(a);
}

static void new_lengths_replace_old_ones(void **state)
{
    struct hzp_admission *a = open_rule(HZP_ADMIT_PREDICTED, 100, 16);
    uint64_t seed = 2;
    learn(a, &seed, 10, 4000, 5000);
    assert_true(hzp_admission_goes_on(a, 0, 200) < 0.02);
    learn(a, &seed, 500, 4000, 5000);
    assert_true(hzp_admission_goes_on(a, 0, 200) > 0.5);
    /* Requests whose limits fixed their length in advance teach nothing. */
    for (int i = 0; i < 5000; i++)
        hzp_admission_ended(a, &(struct hzp_growth){.rows = 9, .drawn = 4, .least = 4, .most = 4},
                            true);
    hzp_admission_look(a, NULL, 0);
    assert_true(hzp_admission_goes_on(a, 0, 200) > 0.5);
    hzp_admission_destroy(a);
}

/* The predicted peak of 64 sequences is about what they need in many simulated futures. */
static void peak_is_what_comes(void **state)
{
    enum { RUN = 64, FUTURES = 300, MOST = 1000, PAGE_ROWS = 16 };
    struct hzp_admission *a = open_rule(HZP_ADMIT_PREDICTED, 100000, PAGE_ROWS);
    uint64_t seed = 3;
    learn(a, &seed, 150, MOST, 999);
    struct hzp_growth running[RUN];
    for (int i = 0; i < RUN; i++) {
        int32_t drawn = (int32_t)seeded(&seed, 100);
        running[i] = (struct hzp_growth){
            .rows = 20 + (int32_t)seeded(&seed, 200) + drawn, .drawn = drawn, .most = MOST};
    }
    hzp_admission_look(a, running, RUN);
    int32_t peak = hzp_admission_peak(a), held = 0;
    double sum = 0;
    for (int f = 0; f < FUTURES; f++) {
        int32_t left[RUN], most = 0;
        bool cut;
        for (int i = 0; i < RUN; i++)
            left[i] = draw_length(&seed, 150, MOST - running[i].drawn, &cut);
        for (int32_t t = 0; t < MOST; t++) {
            int32_t pages = 0;
            for (int i = 0; i < RUN; i++)
                pages += t < left[i] ? HZP_DIV_UP(running[i].rows + t, PAGE_ROWS) : 0;
            most = HZP_MAX(most, pages);
        }
        sum += most;
        held += most <= peak;
    }
    double mean = sum / FUTURES;
    print_message("predicted %d, mean of %d futures %.0f, enough in %d\n", peak, FUTURES, mean,
                  held);
    assert_true(peak > mean * 0.95 && peak < mean * 1.3);
    assert_true(held > FUTURES / 2);
    hzp_admission_destroy(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worst_case_counts_everything),  cmocka_unit_test(unlearned_is_cautious),
        cmocka_unit_test(survival_is_found_behind_cuts), cmocka_unit_test(who_runs_counts),
        cmocka_unit_test(new_lengths_replace_old_ones),  cmocka_unit_test(peak_is_what_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
