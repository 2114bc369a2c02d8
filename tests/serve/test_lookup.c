/* SPDX-License-Identifier: Apache-2.0 */
/* Guesses compared with a search of the whole text, and trust with how many were right. */
#include "base/base.h"
#include "serve/lookup.h"
#include "serve/request.h"
#include "tests/serve/seeded.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 300 };

static int32_t prompt[MOST];
static struct hzp_output out[MOST];
static struct hzp_lookup lookup;

static void add(struct hzp_prefix_tokens *tokens, int32_t prompt_count, int32_t token)
{
    if (tokens->count < prompt_count)
        prompt[tokens->count] = token;
    else
        out[tokens->count - prompt_count] = (struct hzp_output){.token = token};
    tokens->count++;
    tokens->prompt_count = HZP_MIN(prompt_count, tokens->count);
}

/* The newest place behind the same three tokens as the last ones; 0: none. */
static int32_t search(const struct hzp_prefix_tokens *tokens)
{
    int32_t n = tokens->count;
    for (int32_t at = n - 1; at >= 3; at--)
        if (hzp_prefix_token(tokens, at - 1) == hzp_prefix_token(tokens, n - 1) &&
            hzp_prefix_token(tokens, at - 2) == hzp_prefix_token(tokens, n - 2) &&
            hzp_prefix_token(tokens, at - 3) == hzp_prefix_token(tokens, n - 3))
            return at;
    return 0;
}

/* The table may have lost a place to other three tokens; most are there. */
static void guesses_what_followed(void **state)
{
    uint64_t seed = 7;
    for (int text = 0; text < 200; text++) {
        struct hzp_prefix_tokens tokens = {.prompt = prompt, .out = out};
        int32_t prompt_count = 1 + (int32_t)seeded(&seed, 100), there = 0, found = 0;
        int32_t words = 2 + (int32_t)seeded(&seed, 6), guess[HZP_LOOKUP_MAX];
        hzp_lookup_begin(&lookup);
        while (tokens.count < MOST) {
            int32_t some = 1 + (int32_t)seeded(&seed, 5);
            while (some-- > 0 && tokens.count < MOST)
                add(&tokens, prompt_count, (int32_t)seeded(&seed, (uint32_t)words));
            hzp_lookup_follow(&lookup, &tokens);
            int32_t at = tokens.count < 3 ? 0 : search(&tokens);
            int32_t n = hzp_lookup_guess(&lookup, &tokens, HZP_LOOKUP_MAX, guess);
            assert_true(at ? n <= tokens.count - at : n == 0);
            for (int32_t i = 0; i < n; i++)
                assert_int_equal(guess[i], hzp_prefix_token(&tokens, at + i));
            there += at > 0;
            found += n > 0;
        }
        assert_true(found > 0.8 * there && lookup.trust >= 0 && lookup.trust <= 1);
    }
}

static void trusts_what_was_right(void **state)
{
    struct hzp_prefix_tokens tokens = {.prompt = prompt, .out = out};
    hzp_lookup_begin(&lookup);
    for (int32_t i = 0; i < 200; i++) {
        add(&tokens, 10, i % 7);
        hzp_lookup_follow(&lookup, &tokens);
    }
    assert_true(lookup.trust > 0.99);
    assert_true(fabs(hzp_lookup_expected(&lookup, 4) - 4) < 0.1);
    uint64_t seed = 3;
    for (int32_t i = 0; i < 90; i++) {
        add(&tokens, 10, (int32_t)seeded(&seed, 2));
        hzp_lookup_follow(&lookup, &tokens);
    }
    assert_true(lookup.trust < 0.9);
    assert_true(hzp_lookup_expected(&lookup, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(guesses_what_followed),
                                       cmocka_unit_test(trusts_what_was_right)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
