/* SPDX-License-Identifier: Apache-2.0 */
/* tests/serve/test_rounds.c - how long rounds of guesses are (serve/depth.h), over made-up servers:
 * with any share of right guesses, any cost of a row and of a step that guesses, and one sequence
 * or many, all tokens take at most 2 % longer than decoding, after what it costs to learn that; and
 * where rounds pay, they come, and are not much slower than the best length; late steps do
 * not let them go on where they do not pay. */
#include "serve/depth.h"
#include "tests/serve/seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

struct server {
    double row, cost, right; /* a step of n rows takes 1 + row n; guessing: cost of that */
    int32_t sequences;
};

static double time_of(const struct server *s, int32_t rows)
{
    return 1e6 * (1 + s->row * rows);
}

/* Right guesses of k; the first wrong one ends them. */
static int32_t guess(const struct server *s, uint64_t *random, int32_t k)
{
    int32_t right = 0;
    while (right < k && seeded(random, 1000) < 1000 * s->right)
        right++;
    return right;
}

/* Tokens per time of rounds of length k, beside those of decoding. */
static double speed(const struct server *s, int32_t k)
{
    double tokens = 1, right = 1, one = time_of(s, s->sequences);
    for (int32_t i = 0; i < k; i++)
        tokens += right *= s->right;
    return tokens * one / (k * s->cost * one + time_of(s, s->sequences * (k + 1)));
}

/* A step of so many rows. */
static double step(struct hzp_rounds *r, int32_t sequences, int32_t kind, int32_t rows, double ns)
{
    static uint64_t number;
    struct hzp_rounds_mix mix = {.guess = sequences};
    hzp_rounds_began(r, ++number, false, &mix, kind);
    hzp_rounds_ended(r, number, rows, r->end_ns + (uint64_t)ns);
    return ns;
}

static void run(const struct server *s)
{
    struct hzp_rounds rounds;
    struct hzp_lookup lookup[16];
    uint64_t random = 5;
    int32_t n = s->sequences;
    double spent = 0, tokens = 0, best = 1, one = time_of(s, n);
    hzp_rounds_init(&rounds);
    for (int32_t q = 0; q < n; q++)
        lookup[q].trust = rounds.trust;
    for (int32_t k = 1; k <= HZP_LOOKUP_MAX; k++) {
        double so_fast = speed(s, k);
        best = HZP_MAX(best, so_fast);
    }
    while (tokens < 40000.0 * n) {
        double trust = 0;
        for (int32_t q = 0; q < n; q++)
            trust += lookup[q].trust / n;
        int32_t k = hzp_rounds_length(&rounds, &(struct hzp_rounds_mix){.guess = n}, trust,
                                      HZP_LOOKUP_MAX, 256, true);
        for (int32_t i = 0; i < k; i++)
            spent += step(&rounds, n, HZP_ROUNDS_GUESS, n, s->cost * one);
        spent += step(&rounds, n, k, n * (k + 1), time_of(s, n * (k + 1)));
        for (int32_t q = 0; q < n; q++) {
            int32_t right = guess(s, &random, k);
            hzp_rounds_verified(&rounds, &lookup[q], k, right);
            tokens += 1 + right;
        }
    }
    double faster = tokens / n * one / spent;
    if (faster < 0.98 || faster < 1 + 0.6 * (best - 1) - 0.05)
        fail_msg("%d sequences, row %g, cost %g, right %g: %.3f times as fast, at best %.3f", n,
                 s->row, s->cost, s->right, faster, best);
}

static void test_never_slower(void **state)
{
    static const double row[] = {0, 0.02, 0.1, 0.5, 2}, cost[] = {0.3, 0.55, 0.7, 1, 1.5},
                        right[] = {0, 0.2, 0.5, 0.7, 0.9, 0.99};
    static const int32_t sequences[] = {1, 2, 4, 16};
    (void)state;
    for (int r = 0; r < HZP_COUNT(row); r++)
        for (int c = 0; c < HZP_COUNT(cost); c++)
            for (int p = 0; p < HZP_COUNT(right); p++)
                for (int n = 0; n < HZP_COUNT(sequences); n++)
                    run(&(struct server){row[r], cost[c], right[p], sequences[n]});
}

/* Of the first steps that decode some take three times as long as the others: rounds that do not
 * pay end soon. */
static void late_steps(int32_t late)
{
    const struct server s = {.row = 0.25, .cost = 0.8, .right = 1, .sequences = 4};
    double one = time_of(&s, s.sequences), spent = 0, tokens = 0;
    struct hzp_lookup lookup = {0};
    struct hzp_rounds rounds;
    hzp_rounds_init(&rounds);
    while (tokens < 1000) {
        int32_t k = hzp_rounds_length(&rounds, &(struct hzp_rounds_mix){.guess = s.sequences}, 1,
                                      HZP_LOOKUP_MAX, 256, true);
        double verify = time_of(&s, s.sequences * (k + 1)) * (k || late <= 0 ? 1 : 3);
        late -= k == 0;
        for (int32_t i = 0; i < k; i++)
            spent += step(&rounds, s.sequences, HZP_ROUNDS_GUESS, s.sequences, s.cost * one);
        spent += step(&rounds, s.sequences, k, s.sequences * (k + 1), verify);
        hzp_rounds_verified(&rounds, &lookup, k, k);
        tokens += 1 + k;
    }
    if (tokens * one < 0.95 * spent)
        fail_msg("%.3f times as fast", tokens * one / spent);
}

static void test_late_step(void **state)
{
    (void)state;
    late_steps(1);
    late_steps(3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_never_slower),
                                       cmocka_unit_test(test_late_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
