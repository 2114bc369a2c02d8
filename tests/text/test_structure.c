/* SPDX-License-Identifier: Apache-2.0 */
/* tests/text/test_structure.c - structures over a real vocabulary: calls in each form are what a
 * reply reads as calls, reasoning comes before them, and grammars are kept. */
#include "api/text/structure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct hzp_tokenizer *tok;
static struct hzp_structures *structures;

static int setup(void **state)
{
    char model[512];
    snprintf(model, sizeof(model), "%s/../../models/world", getenv("HZP_OWN_DATA"));
    assert_int_equal(hzp_tokenizer_open(model, &tok, NULL), HZP_OK);
    hzp_structures_open(tok, hzp_tokenizer_vocab(tok), HZP_STRUCTURES_IN_USE, &structures);
    return 0;
}

static int teardown(void **state)
{
    hzp_structures_close(structures);
    hzp_tokenizer_close(tok);
    return 0;
}

/* Whether the text is one of the grammar, token by token and within the masks. */
static bool takes(struct hzp_grammar *g, const char *text)
{
    struct hzp_grammar_run *run = hzp_grammar_run_create(g);
    struct hzp_tokens tokens = {0};
    uint32_t *mask = calloc((size_t)hzp_tokenizer_vocab(tok) / 32 + 1, sizeof(*mask));
    bool good = true;
    assert_int_equal(hzp_tokenizer_encode(tok, text, strlen(text), 0, INT32_MAX, &tokens, NULL),
                     HZP_OK);
    for (size_t i = 0; i < tokens.n && good; i++) {
        int32_t id = tokens.ids[i];
        hzp_grammar_run_mask(run, mask);
        good = hzp_grammar_run_token(run, id);
        assert_int_equal(good, mask[id / 32] >> id % 32 & 1);
    }
    good = good && hzp_grammar_run_may_end(run);
    hzp_tokens_fini(&tokens);
    hzp_grammar_run_destroy(run);
    free(mask);
    return good;
}

static int calls_in(enum hzp_reply_calls form, bool reasoning, const char *text)
{
    struct hzp_reply_rules rules = {.calls = form, .reasoning = reasoning, .names = NULL};
    struct hzp_reply *reply;
    assert_int_equal(hzp_reply_create(&rules, &reply), HZP_OK);
    assert_int_equal(hzp_reply_feed(reply, text, strlen(text), true), HZP_OK);
    int calls = reply->content.bytes ? -1 : reply->calls;
    hzp_reply_destroy(reply);
    return calls;
}

#define ONE "{\"name\": \"f\", \"%s\": {\"a\":1}}"

static void test_calls(void **state)
{
    static const struct {
        enum hzp_reply_calls form;
        const char *key, *one, *two;
    } forms[] = {
        {HZP_CALLS_HERMES, "arguments", "<tool_call>\n%s\n</tool_call>",
         "<tool_call>\n%s\n</tool_call>\n<tool_call>\n%s\n</tool_call>"},
        {HZP_CALLS_LLAMA, "parameters", "%s", "%s; %s"},
        {HZP_CALLS_MISTRAL, "arguments", "[TOOL_CALLS][%s]", "[TOOL_CALLS][%s, %s]"},
    };
    json_t *tools = json_loads("[{\"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
                               "\"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, "
                               "\"required\": [\"a\"], \"additionalProperties\": false}}}, "
                               "{\"function\": {\"name\": \"g\"}}]",
                               0, NULL);
    for (int i = 0; i < HZP_COUNT(forms); i++)
        for (int one_call = 0; one_call < 2; one_call++) {
            struct hzp_structure what = {
                .tools = tools, .calls = forms[i].form, .one_call = one_call};
            struct hzp_grammar *g;
            char call[64], one[128], two[256], thought[200];
            snprintf(call, sizeof(call), ONE, forms[i].key);
            snprintf(one, sizeof(one), forms[i].one, call);
            snprintf(two, sizeof(two), forms[i].two, call, call);
            assert_int_equal(hzp_structures_get(structures, &what, &g, NULL), HZP_OK);
            assert_true(takes(g, one));
            assert_int_equal(takes(g, two), !one_call);
            assert_int_equal(calls_in(forms[i].form, false, one), 1);
            assert_int_equal(calls_in(forms[i].form, false, two), 2);
            hzp_grammar_unref(g);
            what.tool = "g";
            what.reasoning = true;
            assert_int_equal(hzp_structures_get(structures, &what, &g, NULL), HZP_OK);
            assert_false(takes(g, one));
            hzp_grammar_unref(g);
            what.tool = "f";
            assert_int_equal(hzp_structures_get(structures, &what, &g, NULL), HZP_OK);
            snprintf(thought, sizeof(thought), "<think>\na < b </thin\n</think>\n\n%s", one);
            assert_true(takes(g, one) && takes(g, thought));
            assert_int_equal(calls_in(forms[i].form, true, thought), 1);
            hzp_grammar_unref(g);
            what.inside = true;
            assert_int_equal(hzp_structures_get(structures, &what, &g, NULL), HZP_OK);
            assert_true(takes(g, thought + strlen("<think>")) && !takes(g, one));
            hzp_grammar_unref(g);
        }
    struct hzp_structure what = {.tools = tools, .calls = HZP_CALLS_NONE};
    struct hzp_grammar *g;
    struct hzp_err_text err = {0};
    assert_int_equal(hzp_structures_get(structures, &what, &g, &err), HZP_EINVAL);
    assert_non_null(strstr(err.text, "cannot be asked for"));
    what.calls = HZP_CALLS_LLAMA;
    what.tool = "h";
    assert_int_equal(hzp_structures_get(structures, &what, &g, &err), HZP_EINVAL);
    assert_non_null(strstr(err.text, "\"h\""));
    json_decref(tools);
}

/* The same question gets the same grammar, until others have pushed it out. */
static void test_kept(void **state)
{
    struct hzp_structure what = {.regex = "a+"};
    struct hzp_grammar *first, *again, *other;
    assert_int_equal(hzp_structures_get(structures, &what, &first, NULL), HZP_OK);
    assert_int_equal(hzp_structures_get(structures, &what, &again, NULL), HZP_OK);
    assert_ptr_equal(first, again);
    hzp_grammar_unref(again);
    for (int i = 0; i < HZP_STRUCTURES_MAX; i++) {
        char regex[32];
        snprintf(regex, sizeof(regex), "b{%d}", i + 1);
        struct hzp_structure next = {.regex = regex};
        assert_int_equal(hzp_structures_get(structures, &next, &other, NULL), HZP_OK);
        hzp_grammar_unref(other);
    }
    assert_int_equal(hzp_structures_get(structures, &what, &again, NULL), HZP_OK);
    assert_ptr_not_equal(first, again);
    assert_true(takes(first, "aaa") && takes(again, "aaa"));
    hzp_grammar_unref(first);
    hzp_grammar_unref(again);
    struct hzp_structure object = {.gbnf = "a+"}; /* the same text, another question */
    assert_int_equal(hzp_structures_get(structures, &object, &other, NULL), HZP_EINVAL);
}

/* Grammars that requests still own count; those that are merely kept make room. */
static void test_in_use(void **state)
{
    struct hzp_structures *few;
    struct hzp_grammar *first, *second;
    struct hzp_structure a = {.regex = "a+"}, b = {.regex = "b+"}, c = {.regex = "c+"};
    struct hzp_err_text err = {0};
    hzp_structures_open(tok, hzp_tokenizer_vocab(tok), 0, &few);
    assert_int_equal(hzp_structures_get(few, &a, &first, NULL), HZP_OK);
    assert_int_equal(hzp_structures_get(few, &b, &second, &err), HZP_EBUSY);
    assert_non_null(strstr(err.text, "in progress"));
    hzp_grammar_unref(first);
    for (int i = 0; i < 2; i++) { /* the second time b is kept, and dropped for c */
        assert_int_equal(hzp_structures_get(few, i ? &c : &b, &second, NULL), HZP_OK);
        assert_true(takes(second, i ? "cc" : "bb"));
        hzp_grammar_unref(second);
    }
    hzp_structures_close(few);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_in_use),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
