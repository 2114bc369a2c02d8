/* SPDX-License-Identifier: Apache-2.0 */
/* tests/text/test_structure.c - structures over a real vocabulary: calls in each form are what a
 * reply reads as calls, reasoning comes before them, and grammars are kept. */
#include "tests/text/structures.h"

#include "base/thread.h"
#include "tests/text/call_makes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct hzp_tokenizer *tok;
static struct hzp_structures *structures;

/* The bundled model's, which has none of the marks, and one that has them as special tokens. */
static struct {
    struct hzp_tokenizer *tok;
    struct hzp_structures *structures;
} both[2];

/* The following tests use this vocabulary. */
static void use(int i)
{
    tok = both[i].tok;
    structures = both[i].structures;
}

static int setup(void **state)
{
    char model[512];
    snprintf(model, sizeof(model), "%s/../../models/world", getenv("HZP_OWN_DATA"));
    assert_int_equal(hzp_tokenizer_open(model, &both[0].tok, NULL), HZP_OK);
    scratch_setup(state);
    both[1].tok = make_open_marks();
    for (int i = 0; i < HZP_COUNT(both); i++)
        hzp_structures_open(both[i].tok, hzp_tokenizer_vocab(both[i].tok), HZP_STRUCTURES_IN_USE,
                            &both[i].structures);
    use(0);
    return 0;
}

static int teardown(void **state)
{
    for (int i = 0; i < HZP_COUNT(both); i++) {
        hzp_structures_close(both[i].structures);
        hzp_tokenizer_close(both[i].tok);
    }
    return scratch_teardown(state);
}

/* Whether the text is one of the grammar, token by token and within the masks. */
static bool takes(struct hzp_grammar *g, const char *text)
{
    struct hzp_constraint_run *run = hzp_grammar_run_create(g);
    struct hzp_tokens tokens = {0};
    uint32_t *mask = calloc((size_t)hzp_tokenizer_vocab(tok) / 32 + 1, sizeof(*mask));
    bool good = true;
    assert_int_equal(hzp_tokenizer_encode(tok, text, strlen(text), HZP_TOKENIZER_PARSE_SPECIAL,
                                          INT32_MAX, &tokens, NULL),
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
            assert_int_equal(make_structure(structures, &what, &g, NULL), HZP_OK);
            assert_true(takes(g, one));
            assert_int_equal(takes(g, two), !one_call);
            assert_int_equal(calls_in(forms[i].form, false, one), 1);
            assert_int_equal(calls_in(forms[i].form, false, two), 2);
            hzp_grammar_unref(g);
            what.tool = "g";
            what.reasoning = true;
            assert_int_equal(make_structure(structures, &what, &g, NULL), HZP_OK);
            assert_false(takes(g, one));
            hzp_grammar_unref(g);
            what.tool = "f";
            assert_int_equal(make_structure(structures, &what, &g, NULL), HZP_OK);
            snprintf(thought, sizeof(thought), "<think>\na < b </thin\n</think>\n\n%s", one);
            assert_true(takes(g, one) && takes(g, thought));
            assert_int_equal(calls_in(forms[i].form, true, thought), 1);
            hzp_grammar_unref(g);
            what.inside = true;
            assert_int_equal(make_structure(structures, &what, &g, NULL), HZP_OK);
            assert_true(takes(g, thought + strlen("<think>")) && !takes(g, one));
            hzp_grammar_unref(g);
        }
    struct hzp_structure what = {.tools = tools, .calls = HZP_CALLS_NONE};
    struct hzp_grammar *g;
    struct hzp_err_text err = {0};
    assert_int_equal(make_structure(structures, &what, &g, &err), HZP_EINVAL);
    assert_non_null(strstr(err.text, "cannot be asked for"));
    what.calls = HZP_CALLS_LLAMA;
    what.tool = "h";
    assert_int_equal(make_structure(structures, &what, &g, &err), HZP_EINVAL);
    assert_non_null(strstr(err.text, "\"h\""));
    json_decref(tools);
}

/* ---- each form, as text and as special tokens ---- */

#define TOOLS                                                                                      \
    "[{\"function\": {\"name\": \"f\", \"strict\": true, \"parameters\": {\"type\": \"object\", "  \
    "\"properties\": {\"a\": {\"type\": \"integer\"}, \"s\": {\"type\": \"string\"}, \"c\": "      \
    "{\"type\": "                                                                                  \
    "\"string\", \"enum\": [\"x y\", \"z\"]}}, \"required\": [\"a\"], \"additionalProperties\": "  \
    "false}}}, "                                                                                   \
    "{\"function\": {\"name\": \"g\"}}]"

/* Answers of one form that are calls, and that are not: a call of f, one that does not fit its
 * parameters, one of g, text, text and a call, and an unknown tool. */
static const struct form {
    enum hzp_reply_calls calls;
    bool marked; /* the marks have to be special tokens */
    const char *good, *misfit, *other, *text, *behind_text, *unknown;
} every[] = {
    {HZP_CALLS_HERMES, false,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}\n</tool_call>",
     "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"k\": [1]}}\n</tool_call>", "1 < 2 <tool",
     "so: <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>"},
    {HZP_CALLS_LLAMA, false, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
     "{\"name\": \"f\", \"parameters\": {\"b\": 1}}",
     "{\"name\": \"g\", \"parameters\": {\"b\": 1}}", "{\"name\": \"Bob\"}",
     "so: <|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
     "so: <|python_tag|>{\"name\": \"h\", \"parameters\": {}}"},
    {HZP_CALLS_MISTRAL_ARGS, true, "[TOOL_CALLS]f[ARGS]{\"a\": 1}", "[TOOL_CALLS]f[ARGS]{}",
     "[TOOL_CALLS]g[ARGS]{\"k\": 1}", "a [list] of", "so: [TOOL_CALLS]f[ARGS]{\"a\": 1}",
     "[TOOL_CALLS]h[ARGS]{}"},
    {HZP_CALLS_GLM, false,
     "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n"
     "<arg_value>any \"text\" </arg></arg_value>\n<arg_key>c</arg_key>\n<arg_value>x "
     "y</arg_value>\n"
     "</tool_call>",
     "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>c</arg_key>\n"
     "<arg_value>x</arg_value>\n</tool_call>",
     "<tool_call>g\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>", "a < b",
     "so: <tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
     "<tool_call>h\n</tool_call>"},
    {HZP_CALLS_CHANNELS, false,
     "<|channel|>analysis<|message|>to=functions.f?<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{\"a\": 1}",
     "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"s\": \"\"}",
     "<|channel|>commentary to=functions.g<|message|>{\"k\": 2}",
     "<|channel|>final<|message|>ask to=functions.h for it",
     "<|channel|>commentary<|message|>so<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{\"a\": 1}",
     "<|channel|>commentary to=functions.h <|constrain|>json<|message|>{}"},
};

static struct hzp_grammar *calls_grammar(const struct form *form, const json_t *tools, bool free)
{
    struct hzp_structure what = {.tools = tools,
                                 .calls = form->calls,
                                 .channels = form->calls == HZP_CALLS_CHANNELS,
                                 .free = free};
    struct hzp_grammar *g = NULL;
    struct hzp_err_text err = {0};
    if (make_structure(structures, &what, &g, &err) != HZP_OK)
        fail_msg("%d: %s", (int)form->calls, err.text);
    return g;
}

/* A call that has to come; and with strict tools text, and calls that fit once they have begun. */
static void check_form(const struct form *form, const json_t *tools)
{
    struct hzp_grammar *must = calls_grammar(form, tools, false),
                       *free = calls_grammar(form, tools, true);
    const char *reads[] = {form->good, form->other};
    assert_true(takes(must, form->good) && takes(free, form->good));
    assert_true(!takes(must, form->misfit) && !takes(free, form->misfit));
    assert_true(takes(must, form->other) && takes(free, form->other));
    assert_true(!takes(must, form->text) && takes(free, form->text));
    assert_true(!takes(must, form->behind_text) && takes(free, form->behind_text));
    assert_true(!takes(must, form->unknown) && !takes(free, form->unknown));
    hzp_grammar_unref(must);
    hzp_grammar_unref(free);
    for (int i = 0; i < HZP_COUNT(reads); i++) {
        struct hzp_reply_rules rules = {.calls = form->calls,
                                        .channels = form->calls == HZP_CALLS_CHANNELS};
        struct hzp_reply *reply;
        assert_int_equal(hzp_reply_create(&rules, &reply), HZP_OK);
        assert_int_equal(hzp_reply_feed(reply, reads[i], strlen(reads[i]), true), HZP_OK);
        assert_int_equal(reply->calls, 1);
        assert_string_equal(reply->call[0].name, i ? "g" : "f");
        assert_int_equal(reply->content.bytes, 0);
        hzp_reply_destroy(reply);
    }
}

/* gpt-oss may name the tool before the channel: its arguments fit too. */
static void check_recipient(const json_t *tools)
{
    static const char begin[] =
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.f<|channel|>"
        "commentary <|constrain|>json<|message|>";
    const struct form form = {.calls = HZP_CALLS_CHANNELS};
    struct hzp_grammar *free = calls_grammar(&form, tools, true);
    char fits[256], misfits[256];
    snprintf(fits, sizeof(fits), "%s{\"a\": 1}", begin);
    snprintf(misfits, sizeof(misfits), "%s{\"a\": \"x\"}", begin);
    assert_true(takes(free, fits));
    assert_false(takes(free, misfits));
    hzp_grammar_unref(free);
}

static void test_forms(void **state)
{
    json_t *tools = json_loads(TOOLS, 0, NULL);
    for (int i = 0; i < HZP_COUNT(both); i++) {
        use(i);
        for (int k = 0; k < HZP_COUNT(every); k++)
            if (i || !every[k].marked)
                check_form(&every[k], tools);
        check_recipient(tools);
    }
    /* of a model with channels a structure is in the final one */
    struct hzp_structure what = {.regex = "a+", .channels = true};
    struct hzp_grammar *g;
    assert_int_equal(make_structure(structures, &what, &g, NULL), HZP_OK);
    assert_true(takes(g, "<|channel|>final<|message|>aa"));
    assert_true(takes(g, "<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final "
                         "<|constrain|>json<|message|>aa"));
    assert_false(takes(g, "<|channel|>final<|message|>ab"));
    hzp_grammar_unref(g);
    /* a call that has begun goes on, whatever the text before it was */
    g = calls_grammar(&every[0], tools, true);
    assert_false(takes(g, "so: <tool_call>"));
    hzp_grammar_unref(g);
    use(0);
    json_decref(tools);
}

/* Parameters that cannot be honoured are any object; those of a strict tool are refused, with its
 * name.  What they admit beside objects, no call has. */
static void test_parameters(void **state)
{
    json_t *tools = json_loads(
        "[{\"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": "
        "{\"a\": {\"type\": \"integer\"}}, \"additionalProperties\": false}}}, "
        "{\"function\": {\"name\": \"g\", \"parameters\": {\"properties\": {\"a\": {\"contains\": "
        "1}}}}}, {\"function\": {\"name\": \"h\", \"parameters\": {\"enum\": [\"x\", {\"k\": "
        "1}]}}}]",
        0, NULL);
    struct hzp_err_text err = {0};
    struct hzp_grammar *g;
    for (int calls = HZP_CALLS_NONE + 1; calls < HZP_CALLS_FORMS; calls++) {
        struct hzp_structure what = {.tools = tools, .calls = (enum hzp_reply_calls)calls};
        json_t *function = json_object_get(json_array_get(tools, 1), "function");
        assert_int_equal(make_structure(structures, &what, &g, NULL), HZP_OK);
        if (calls == HZP_CALLS_HERMES) {
            assert_true(takes(g, "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"a\": 5}}\n"
                                 "</tool_call>"));
            assert_false(takes(g, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"\"}}\n"
                                  "</tool_call>"));
            assert_true(takes(g, "<tool_call>\n{\"name\": \"h\", \"arguments\": {\"k\": 1}}\n"
                                 "</tool_call>"));
            assert_false(takes(g, "<tool_call>\n{\"name\": \"h\", \"arguments\": \"x\"}\n"
                                  "</tool_call>"));
        }
        hzp_grammar_unref(g);
        json_object_set_new(function, "strict", json_true());
        for (int free = 0; free < 2; free++) {
            what.free = free;
            assert_int_equal(make_structure(structures, &what, &g, &err), HZP_EINVAL);
            assert_non_null(strstr(err.text, "\"g\""));
        }
        json_object_del(function, "strict");
    }
    json_decref(tools);
}

/* A name that a form cannot write is refused in it. */
static void test_names(void **state)
{
    json_t *tools = json_loads("[{\"function\": {\"name\": \"a [b] <c\"}}]", 0, NULL);
    for (int calls = HZP_CALLS_NONE + 1; calls < HZP_CALLS_FORMS; calls++) {
        struct hzp_structure what = {.tools = tools, .calls = (enum hzp_reply_calls)calls};
        struct hzp_grammar *g = NULL;
        int r = make_structure(structures, &what, &g, NULL);
        assert_int_equal(r, hzp_call_form[calls].not_in_names ? HZP_EINVAL : HZP_OK);
        hzp_grammar_unref(g);
    }
    json_decref(tools);
}

/* An object that a schema admits, and nothing else of what that admits. */
static void test_object(void **state)
{
    json_t *schema = json_loads("{\"anyOf\": [{\"type\": \"integer\"}, {\"properties\": {\"ok\": "
                                "{\"const\": true}}, \"required\": [\"ok\"], "
                                "\"additionalProperties\": false}]}",
                                0, NULL);
    struct hzp_structure what = {.object = true, .schema = schema};
    struct hzp_grammar *g;
    assert_int_equal(make_structure(structures, &what, &g, NULL), HZP_OK);
    assert_true(takes(g, "{\"ok\":true}"));
    assert_false(takes(g, "{\"other\": 1}") || takes(g, "1") || takes(g, "[]"));
    hzp_grammar_unref(g);
    json_decref(schema);
}

/* The same question gets the same grammar, until others have pushed it out. */
static void test_kept(void **state)
{
    struct hzp_structure what = {.regex = "a+"};
    struct hzp_grammar *first, *again, *other;
    assert_int_equal(make_structure(structures, &what, &first, NULL), HZP_OK);
    assert_int_equal(make_structure(structures, &what, &again, NULL), HZP_OK);
    assert_ptr_equal(first, again);
    hzp_grammar_unref(again);
    for (int i = 0; i < HZP_STRUCTURES_MAX; i++) {
        char regex[32];
        snprintf(regex, sizeof(regex), "b{%d}", i + 1);
        struct hzp_structure next = {.regex = regex};
        assert_int_equal(make_structure(structures, &next, &other, NULL), HZP_OK);
        hzp_grammar_unref(other);
    }
    assert_int_equal(make_structure(structures, &what, &again, NULL), HZP_OK);
    assert_ptr_not_equal(first, again);
    assert_true(takes(first, "aaa") && takes(again, "aaa"));
    hzp_grammar_unref(first);
    hzp_grammar_unref(again);
    struct hzp_structure object = {.gbnf = "a+"}; /* the same text, another question */
    assert_int_equal(make_structure(structures, &object, &other, NULL), HZP_EINVAL);
}

/* Grammars that requests still own count; those that are merely kept make room. */
static void test_in_use(void **state)
{
    struct hzp_structures *few;
    struct hzp_grammar *first, *second;
    struct hzp_structure a = {.regex = "a+"}, b = {.regex = "b+"}, c = {.regex = "c+"};
    struct hzp_err_text err = {0};
    hzp_structures_open(tok, hzp_tokenizer_vocab(tok), 0, &few);
    assert_int_equal(make_structure(few, &a, &first, NULL), HZP_OK);
    assert_int_equal(make_structure(few, &b, &second, &err), HZP_EBUSY);
    assert_non_null(strstr(err.text, "in progress"));
    hzp_grammar_unref(first);
    for (int i = 0; i < 2; i++) { /* the second time b is kept, and dropped for c */
        assert_int_equal(make_structure(few, i ? &c : &b, &second, NULL), HZP_OK);
        assert_true(takes(second, i ? "cc" : "bb"));
        hzp_grammar_unref(second);
    }
    hzp_structures_close(few);
}

/* Names of six kinds, none of which is of another: each kind needs many states while the names are
 * divided. */
static json_t *large_schema(int which)
{
    json_t *patterns = json_object();
    for (int i = 0; i < 6; i++) {
        char pattern[64];
        snprintf(pattern, sizeof(pattern), "^%c(e|f)*e(e|f){10}%d$", "uvwxyz"[i], which);
        json_object_set_new(patterns, pattern, json_pack("{s:s}", "type", "null"));
    }
    return json_pack("{s:s, s:o, s:b}", "type", "object", "patternProperties", patterns,
                     "additionalProperties", 0);
}

struct asker {
    struct hzp_structures *structures;
    int which, r;
    struct hzp_err_text err;
};

static void *ask_large(void *arg)
{
    struct asker *a = arg;
    struct hzp_grammar *grammar = NULL;
    json_t *schema = large_schema(a->which);
    struct hzp_structure what = {.schema = schema};
    a->r = make_structure(a->structures, &what, &grammar, &a->err);
    hzp_grammar_unref(grammar);
    json_decref(schema);
    return NULL;
}

/* One that takes much memory while it is made is made, one at a time. */
static void test_large(void **state)
{
    struct hzp_structures *some;
    struct asker asker[4];
    pthread_t thread[4];
    int made = 0;
    hzp_structures_open(tok, hzp_tokenizer_vocab(tok), HZP_STRUCTURES_IN_USE, &some);
    for (int i = 0; i < 4; i++) {
        asker[i] = (struct asker){.structures = some, .which = i};
        assert_int_equal(hzp_thread_start(&thread[i], "asker", ask_large, &asker[i]), HZP_OK);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        made += asker[i].r == HZP_OK;
        if (asker[i].r != HZP_OK) {
            assert_int_equal(asker[i].r, HZP_EBUSY);
            assert_non_null(strstr(asker[i].err.text, "try again"));
        }
    }
    assert_true(made >= 1);
    asker[0].which = 4;
    ask_large(&asker[0]);
    assert_int_equal(asker[0].r, HZP_OK);
    hzp_structures_close(some);
}

static char *write_asked(const struct hzp_structure *what)
{
    char *asked, *text;
    assert_int_equal(hzp_structures_ask(what, &asked, NULL), HZP_OK);
    text = hzp_structures_write(structures, asked);
    free(asked);
    return text;
}

static bool after_calls(void *ctx)
{
    return --*(int *)ctx < 0;
}

/* Each size has its bounds, and says when it takes more; who is no longer waited for is given up
 * wherever it is. */
static void test_sizes(void **state)
{
    struct hzp_structures *some;
    struct hzp_grammar *g;
    json_t *schema = large_schema(7);
    const struct hzp_structure what = {.schema = schema};
    char *asked;
    hzp_structures_open(tok, hzp_tokenizer_vocab(tok), HZP_STRUCTURES_IN_USE, &some);
    assert_int_equal(hzp_structures_ask(&what, &asked, NULL), HZP_OK);
    for (int size = 0; size < HZP_STRUCTURE_HUGE; size++)
        assert_int_equal(
            hzp_structures_make(some, asked, (enum hzp_structure_size)size, NULL, NULL, &g, NULL),
            1);
    int times = 0, before = 0;
    while (times <
           100000000) { /* wherever it looks: the first time, the tenth, the hundredth ... */
        int left = before = times;
        int r = hzp_structures_make(some, asked, HZP_STRUCTURE_HUGE, after_calls, &left, &g, NULL);
        if (r == HZP_OK)
            break;
        assert_int_equal(r, HZP_ECANCELED);
        assert_null(hzp_structures_kept(some, asked));
        times = times * 10 + 1;
    }
    assert_in_range(before, 1000, 100000000);
    hzp_grammar_unref(g);
    g = hzp_structures_kept(some, asked);
    assert_non_null(g);
    hzp_grammar_unref(g);
    hzp_structures_close(some);
    free(asked);
    json_decref(schema);
}

/* What was written is the same question: it gets the grammar that is kept.  That of another
 * vocabulary, and anything else, is refused. */
static void test_written(void **state)
{
    json_t *tools = json_loads("[{\"function\": {\"name\": \"f\"}}]", 0, NULL);
    json_t *schema = json_loads("{\"type\": \"number\", \"multipleOf\": 0.125}", 0, NULL);
    json_t *choice = json_loads("[\"yes\", \"n\\u00f6\"]", 0, NULL);
    const struct hzp_structure asked[] = {
        {.object = true},
        {.schema = schema},
        {.schema = json_true()},
        {.choice = choice},
        {.regex = "a\\d+\"?"},
        {.gbnf = "root ::= \"a\" root | \"b\"", .reasoning = true},
        {.tools = tools, .calls = HZP_CALLS_HERMES, .one_call = true},
        {.tools = tools,
         .calls = HZP_CALLS_MISTRAL,
         .tool = "f",
         .reasoning = true,
         .inside = true},
        {.tools = tools, .calls = HZP_CALLS_HERMES, .free = true},
        {.tools = tools, .calls = HZP_CALLS_CHANNELS, .channels = true},
    };
    struct hzp_grammar *g, *again;
    char *text = NULL;
    for (int i = 0; i < HZP_COUNT(asked); i++) {
        free(text);
        text = write_asked(&asked[i]);
        int r = make_structure(structures, &asked[i], &g, NULL);
        assert_int_equal(hzp_structures_get_written(structures, text, &again, NULL), r);
        if (r < 0)
            continue; /* a form that needs other tokens than this vocabulary has */
        assert_ptr_equal(g, again);
        hzp_grammar_unref(g);
        hzp_grammar_unref(again);
    }
    text[0] = text[0] == '1' ? '2' : '1';
    assert_int_equal(hzp_structures_get_written(structures, text, &g, NULL), HZP_EUNSUP);
    text[0] = 0;
    assert_int_equal(hzp_structures_get_written(structures, text, &g, NULL), HZP_EUNSUP);
    free(text);
    text = write_asked(&asked[0]);
    text[strlen(text) - 1] = 0;
    assert_int_equal(hzp_structures_get_written(structures, text, &g, NULL), HZP_EFORMAT);
    free(text);
    json_decref(tools);
    json_decref(schema);
    json_decref(choice);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),   cmocka_unit_test(test_forms),
        cmocka_unit_test(test_kept),    cmocka_unit_test(test_in_use),
        cmocka_unit_test(test_large),   cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_written), cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_names),   cmocka_unit_test(test_object),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
