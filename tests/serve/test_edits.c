/* SPDX-License-Identifier: Apache-2.0 */
/* tests/serve/test_edits.c - which tokens a sequence may draw: allowed ones, bad sequences, a
 * grammar, and what ends it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"
#include "serve/edits.h"
#include "text/grammar/grammar.h"
#include "text/grammar/gbnf.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_grammar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
