/* SPDX-License-Identifier: Apache-2.0 */
/* Guesses compared with a search of the whole text, and trust with how many were right; earlier
 * answers are followed from the first token on, and again where an answer agrees with them. */
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
        hzp_lookup_begin(&lookup, NULL, 0);
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
    hzp_lookup_begin(&lookup, NULL, 0);
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

/* How many of `count` answer tokens were the first guess for their place, if the answer is the
 * text with every `wrong`-th token another one (0: none). */
static int32_t guessed_of(struct hzp_history *history, const int32_t *text, int32_t prompt_count,
                          int32_t count, int32_t wrong, uint64_t draws)
{
    struct hzp_prefix_tokens tokens = {.prompt = prompt, .out = out};
    int32_t right = 0, guess[HZP_LOOKUP_MAX];
    hzp_lookup_begin(&lookup, history, draws);
    for (int32_t i = 0; i < prompt_count; i++)
        add(&tokens, prompt_count, i);
    for (int32_t i = 0; i < count; i++) {
        int32_t token = wrong && i % wrong == wrong - 1 ? 5000 + i : text[i];
        hzp_lookup_follow(&lookup, &tokens);
        int32_t n = hzp_lookup_guess(&lookup, &tokens, HZP_LOOKUP_MAX, guess);
        assert_true(n <= HZP_LOOKUP_MAX);
        right += n && guess[0] == token;
        add(&tokens, prompt_count, token);
    }
    hzp_history_keep(history, &tokens, draws);
    return right;
}

static void follows_earlier_answers(void **state)
{
    enum { PROMPT = 20, ANSWER = 200 };
    struct hzp_history *history = calloc(1, sizeof(*history));
    int32_t text[2][ANSWER];
    assert_non_null(history);
    for (int32_t i = 0; i < ANSWER; i++) {
        text[0][i] = 1000 + i;
        text[1][i] = i % 10 ? 1000 + i : 2000 + i; /* begins otherwise, and parts again and again */
    }
    history->end = HZP_HISTORY_TOKENS - 100; /* answers go over the end of the ring */
    assert_int_equal(guessed_of(history, text[0], PROMPT, ANSWER, 0, 1), 0);
    assert_int_equal(guessed_of(history, text[0], PROMPT, ANSWER, 0, 1), ANSWER);
    /* each wrong token costs itself, and those before three agree again */
    int32_t right = guessed_of(history, text[0], PROMPT, ANSWER, 20, 2);
    assert_in_range(right, ANSWER - 4 * (ANSWER / 20), ANSWER - ANSWER / 20);
    /* of two answers the one that was drawn with the same numbers is guessed first */
    guessed_of(history, text[1], PROMPT, ANSWER, 0, 3);
    assert_int_equal(guessed_of(history, text[1], PROMPT, ANSWER, 0, 3), ANSWER);
    assert_int_equal(guessed_of(history, text[0], PROMPT, ANSWER, 0, 1), ANSWER);
    /* another prompt has none */
    assert_int_equal(guessed_of(history, text[0], PROMPT + 1, ANSWER, 0, 1), 0);
    /* no more answers than there is room for, and none that is too old */
    for (int32_t i = 0; i < 40; i++)
        guessed_of(history, text[1], PROMPT, ANSWER, 0, 10 + (uint64_t)i);
    struct hzp_prefix_tokens tokens = {.prompt = prompt, .prompt_count = PROMPT, .count = PROMPT};
    const struct hzp_history_prompt *found = hzp_history_find(history, &tokens);
    assert_true(found && found->count == HZP_HISTORY_ANSWERS);
    for (int32_t i = 0; i < found->count; i++)
        assert_true(found->draws[i] >= 10 + 40 - HZP_HISTORY_ANSWERS);
    /* what has been overwritten is a wrong guess, no more */
    for (int32_t i = 0; i < HZP_HISTORY_TOKENS; i++)
        history->token[i] = 7;
    assert_true(guessed_of(history, text[0], PROMPT, ANSWER, 0, 49) <= 1);
    free(history);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(guesses_what_followed),
                                       cmocka_unit_test(trusts_what_was_right),
                                       cmocka_unit_test(follows_earlier_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
