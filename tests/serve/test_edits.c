/* SPDX-License-Identifier: Apache-2.0 */
/* tests/serve/test_edits.c - which tokens a sequence may draw: allowed ones, bad sequences, a
 * grammar, what ends it, and guesses, which are taken back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"
#include "serve/edits.h"
#include "tests/serve/seeded.h"
#include "text/grammar/grammar.h"
#include "text/grammar/rules.h"

#include <string.h>

enum { VOCAB = 300, END = 299, STOP = 'z' };

static const int32_t stop_ids[] = {STOP}, eos_ids[] = {END};

static struct hzp_edits *created(const struct hzp_token_rules *tokens, int want)
{
    struct hzp_edit_rules rules = {.vocab = VOCAB,
                                   .end = {stop_ids, eos_ids},
                                   .ends = {1, 1},
                                   .tokens = tokens,
                                   .max_tokens = 100};
    struct hzp_edits *edits = NULL;
    assert_int_equal(hzp_edits_create(&rules, &edits), want);
    return edits;
}

/* The mask has these tokens and no others. */
static void expect(const struct hzp_edits *edits, const char *tokens, bool end)
{
    const uint32_t *mask = hzp_edits_mask(edits);
    assert_non_null(mask);
    for (int32_t t = 0; t < VOCAB; t++) {
        bool want = t < 128 ? t && strchr(tokens, (char)t) : t == END && end;
        assert_int_equal(mask[t / 32] >> t % 32 & 1, want);
    }
}

static void test_allowed(void **state)
{
    static const int32_t allowed[] = {'a', 'c', END, 'a'};
    struct hzp_token_rules tokens = {.allowed = allowed, .alloweds = 4};
    struct hzp_edits *edits = created(&tokens, HZP_OK);
    assert_int_equal(hzp_edits_count(edits), 0);
    assert_false(hzp_edits_grow(edits)); /* the next mask is known without the token */
    expect(edits, "ac", true);
    assert_int_equal(hzp_edits_generated(edits, 'c', false), HZP_AFTER_MORE);
    expect(edits, "ac", true);
    hzp_edits_destroy(edits);
    assert_null(hzp_edits_mask(NULL));
}

static void test_bad(void **state)
{
    static const int32_t allowed[] = {'a', 'b', 'c'}, bad[] = {'a', 'b', 'a', 'c', 'b', 'b'};
    static const int32_t at[] = {0, 3, 4, 6}; /* a b a; c; b b */
    struct hzp_token_rules tokens = {
        .allowed = allowed, .alloweds = 3, .bad = bad, .bad_at = at, .bads = 3};
    struct hzp_edits *edits = created(&tokens, HZP_OK);
    assert_true(hzp_edits_grow(edits));
    expect(edits, "ab", false);
    hzp_edits_generated(edits, 'a', false);
    expect(edits, "ab", false);
    assert_int_equal(hzp_edits_generated(edits, 'b', false), HZP_AFTER_STUCK);
    hzp_edits_destroy(edits);
    tokens.alloweds = 1;
    tokens.bad = allowed;
    static const int32_t whole[] = {0, 1};
    tokens.bad_at = whole;
    tokens.bads = 1;
    assert_null(created(&tokens, HZP_EINVAL)); /* the only allowed token is bad */
}

static struct hzp_grammar *grammar(const char *text, struct hzp_lexicon **lexicon)
{
    static char byte[256];
    struct hzp_token_text token[256];
    struct hzp_grammar *g = NULL;
    int32_t root;
    for (int i = 0; i < 256; i++) {
        byte[i] = (char)i;
        token[i] = (struct hzp_token_text){&byte[i], 1, false};
    }
    hzp_lexicon_create(token, 256, lexicon);
    struct hzp_rules *rules = hzp_rules_create();
    assert_int_equal(hzp_gbnf_rules(rules, text, strlen(text), &root, NULL), HZP_OK);
    assert_int_equal(hzp_grammar_create(rules, root, *lexicon, &g, NULL), HZP_OK);
    hzp_rules_destroy(rules);
    return g;
}

static void test_grammar(void **state)
{
    struct hzp_lexicon *lexicon;
    struct hzp_grammar *g = grammar("root ::= \"a\" [bc]* \"d\"? ", &lexicon);
    struct hzp_token_rules tokens = {.constraint = hzp_grammar_constraint(g)};
    struct hzp_edits *edits = created(&tokens, HZP_OK);
    assert_true(hzp_edits_grow(edits));
    expect(edits, "a", false);
    assert_int_equal(hzp_edits_generated(edits, 'a', false), HZP_AFTER_MORE);
    expect(edits, "bcdz", true); /* it may end: by the end token and by the stop id */
    assert_int_equal(hzp_edits_generated(edits, 'b', false), HZP_AFTER_MORE);
    assert_int_equal(hzp_edits_generated(edits, END, true), HZP_AFTER_MORE); /* stops anyway */
    assert_int_equal(hzp_edits_generated(edits, END, false), HZP_AFTER_ENDED);
    assert_int_equal(hzp_edits_generated(edits, 'd', false), HZP_AFTER_WHOLE);
    hzp_edits_destroy(edits);
    edits = created(&tokens, HZP_OK);
    assert_int_equal(hzp_edits_generated(edits, 'x', false), HZP_AFTER_STUCK);
    hzp_edits_destroy(edits);
    /* the grammar and the allowed tokens have nothing in common */
    static const int32_t allowed[] = {'b'};
    tokens.allowed = allowed;
    tokens.alloweds = 1;
    assert_null(created(&tokens, HZP_EINVAL));
    hzp_grammar_unref(g);
    hzp_lexicon_destroy(lexicon);
}

/* Both lists, and both masks, are the same. */
static void expect_same(const struct hzp_edits *a, const struct hzp_edits *b)
{
    struct hzp_logit_edit x[VOCAB] = {{0}}, y[VOCAB] = {{0}};
    const uint32_t *one = hzp_edits_mask(a), *other = hzp_edits_mask(b);
    assert_int_equal(hzp_edits_count(a), hzp_edits_count(b));
    hzp_edits_write(a, false, x);
    hzp_edits_write(b, false, y);
    assert_memory_equal(x, y, sizeof(x));
    assert_int_equal(one == NULL, other == NULL);
    if (one)
        assert_memory_equal(one, other, (VOCAB + 31) / 32 * sizeof(*one));
}

/* A token that the mask allows, or any, sometimes. */
static int32_t some_token(const struct hzp_edits *edits, uint64_t *seed)
{
    const uint32_t *mask = hzp_edits_mask(edits);
    int32_t token = 'a' + (int32_t)seeded(seed, 6);
    while (mask && seeded(seed, 8) && !(mask[token / 32] >> token % 32 & 1))
        token = (int32_t)seeded(seed, 128);
    return token;
}

/* Behind guesses the edits are those of a sequence that has drawn these tokens; when they are taken
 * back, those that were before. */
static void test_guesses(void **state)
{
    static const int32_t bad[] = {'a', 'b', 'a', 'c'}, at[] = {0, 2, 4}, prompt[] = {'a', 'q'};
    struct hzp_lexicon *lexicon;
    struct hzp_grammar *g = grammar("root ::= (\"(\" root \")\" | [a-f])+", &lexicon);
    uint64_t seed = 7;
    int32_t deep = 0, refused = 0;
    for (int32_t round = 0; round < 64; round++) {
        struct hzp_token_rules tokens = {.bad = bad,
                                         .bad_at = at,
                                         .bads = round & 1 ? 2 : 0,
                                         .constraint =
                                             round & 2 ? hzp_grammar_constraint(g) : NULL};
        struct hzp_edit_rules rules = {.vocab = VOCAB,
                                       .bias_token = bad,
                                       .bias = (const float[]){1, 2},
                                       .biases = round & 8 ? 2 : 0,
                                       .tokens = round & 3 ? &tokens : NULL,
                                       .penalties = round & 4 || !(round & 3),
                                       .prompt = prompt,
                                       .prompt_count = 2,
                                       .max_tokens = 200};
        struct hzp_edits *edits, *drawn, *tried;
        int32_t token[64], count = 0;
        assert_int_equal(hzp_edits_create(&rules, &edits), HZP_OK);
        assert_int_equal(hzp_edits_create(&rules, &drawn), HZP_OK);
        for (bool more = true; more && count < 60;) {
            assert_int_equal(hzp_edits_create(&rules, &tried), HZP_OK);
            for (int32_t i = 0; i < count; i++)
                hzp_edits_generated(tried, token[i], false);
            int32_t guesses = (int32_t)seeded(&seed, 1 + HZP_EDITS_GUESSES_MAX);
            for (int32_t i = 0; i < guesses; i++) {
                int32_t guess = some_token(edits, &seed);
                more = hzp_edits_guess(edits, guess);
                assert_int_equal(more, hzp_edits_generated(tried, guess, false) == HZP_AFTER_MORE);
                refused += !more;
                if (!more)
                    break;
                expect_same(edits, tried);
                deep++;
            }
            hzp_edits_back(edits);
            hzp_edits_destroy(tried);
            expect_same(edits, drawn);
            token[count] = some_token(edits, &seed);
            more = hzp_edits_generated(edits, token[count], false) == HZP_AFTER_MORE;
            assert_int_equal(more,
                             hzp_edits_generated(drawn, token[count++], false) == HZP_AFTER_MORE);
            if (more)
                expect_same(edits, drawn);
        }
        hzp_edits_destroy(edits);
        hzp_edits_destroy(drawn);
    }
    assert_true(deep > 1000 && refused > 20);
    hzp_grammar_unref(g);
    hzp_lexicon_destroy(lexicon);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_grammar),
        cmocka_unit_test(test_guesses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
