/* SPDX-License-Identifier: Apache-2.0 */
/* Replies divided into reasoning, content and calls, for every way to cut the text in two and for
 * single bytes. */
#include "text/chat/reply.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static json_t *without_ids(json_t *message)
{
    json_t *call;
    size_t i;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        assert_true(strlen(json_string_value(json_object_get(call, "id"))) >= 9);
        json_object_del(call, "id");
    }
    return message;
}

/* Adds a delta to the message that a client makes of them. */
static void add_delta(json_t *message, json_t *delta)
{
    static const char *const names[] = {"content", "reasoning_content"};
    json_t *calls = json_object_get(delta, "tool_calls"), *call;
    size_t i;
    for (int k = 0; k < HZP_COUNT(names); k++) {
        const json_t *piece = json_object_get(delta, names[k]);
        const json_t *before = json_object_get(message, names[k]);
        if (piece)
            json_object_set_new(
                message, names[k],
                json_sprintf("%s%s", json_is_string(before) ? json_string_value(before) : "",
                             json_string_value(piece)));
    }
    json_array_foreach(calls, i, call)
    {
        json_t *list = json_object_get(message, "tool_calls");
        if (!list) {
            list = json_array();
            json_object_set_new(message, "tool_calls", list);
        }
        json_int_t index = json_integer_value(json_object_get(call, "index"));
        json_object_del(call, "index");
        if (index < (json_int_t)json_array_size(list)) { /* more of its arguments */
            json_t *function = json_object_get(json_array_get(list, (size_t)index), "function");
            const json_t *more = json_object_get(json_object_get(call, "function"), "arguments");
            assert_int_equal(index, json_array_size(list) - 1);
            assert_int_equal(json_object_size(call), 1);
            json_object_set_new(
                function, "arguments",
                json_sprintf("%s%s", json_string_value(json_object_get(function, "arguments")),
                             json_string_value(more)));
            continue;
        }
        assert_int_equal(index, json_array_size(list));
        json_array_append(list, call);
    }
    json_decref(delta);
}

/* want: the message without role, refusal and ids. */
static void expect_cut(const struct hzp_reply_rules *rules, const char *text, size_t cut,
                       const json_t *want)
{
    struct hzp_reply *reply;
    size_t n = strlen(text);
    json_t *message = json_object();
    assert_int_equal(hzp_reply_create(rules, &reply), HZP_OK);
    for (size_t at = 0; at < n || !at;) {
        size_t step = cut == 0 ? 1 : at == 0 ? cut : n - at;
        step = HZP_MIN(step, n - at);
        assert_int_equal(hzp_reply_feed(reply, text + at, step, at + step == n), HZP_OK);
        add_delta(message, hzp_reply_delta(reply));
        at += step;
        if (!n)
            break;
    }
    json_t *whole = without_ids(hzp_reply_message(reply));
    json_object_del(whole, "role");
    json_object_del(whole, "refusal");
    if (!json_equal(whole, want))
        fail_msg("%s\n  gives %s\n  not   %s", text, json_dumps(whole, 0), json_dumps(want, 0));
    if (!json_object_get(message, "content"))
        json_object_set(message, "content", json_object_get(whole, "content"));
    if (!json_equal(without_ids(message), whole))
        fail_msg("%s: in deltas %s", text, json_dumps(message, 0));
    json_decref(message);
    json_decref(whole);
    hzp_reply_destroy(reply);
}

static void expect(struct hzp_reply_rules rules, const char *text, const char *want)
{
    json_t *json = json_loads(want, 0, NULL);
    assert_non_null(json);
    for (size_t cut = 0; cut <= strlen(text); cut++)
        expect_cut(&rules, text, cut, json);
    json_decref(json);
}

#define CALL(name, arguments)                                                                      \
    "{\"type\": \"function\", \"function\": {\"name\": \"" name "\", \"arguments\": \"" arguments  \
    "\"}}"

static void reasoning(void **state)
{
    const struct hzp_reply_rules outside = {.reasoning = true},
                                 inside = {.reasoning = true, .inside = true};
    const struct hzp_reply_rules hidden = {.reasoning = true, .inside = true, .hide = true};
    expect(outside, "<think>\nwhy\nso\n</think>\n\nYes <b>.",
           "{\"content\": \"Yes <b>.\", \"reasoning_content\": \"why\\nso\"}");
    expect(outside, "\n <think></think>Yes", "{\"content\": \"Yes\"}");
    expect(outside, "Just <think>text</think>", "{\"content\": \"Just <think>text</think>\"}");
    expect(outside, "<thin", "{\"content\": \"<thin\"}");
    expect(outside, "", "{\"content\": \"\"}");
    expect(inside, "why\n</think>\n\nYes",
           "{\"content\": \"Yes\", \"reasoning_content\": \"why\"}");
    expect(inside, "cut off </thi",
           "{\"content\": \"\", \"reasoning_content\": \"cut off </thi\"}");
    expect(hidden, "why</think>Yes", "{\"content\": \"Yes\"}");
}

static void hermes(void **state)
{
    struct hzp_reply_rules rules = {.calls = HZP_CALLS_HERMES,
                                    .names = json_pack("{s:b, s:b}", "f", 1, "g", 1)};
    struct hzp_reply_rules one = rules, thinks = rules;
    one.one_call = true;
    thinks.reasoning = true;
    expect(rules,
           "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"x\"]}}\n</tool_call>",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{\\\"a\\\": [1, \\\"x\\\"]}") "]}");
    expect(rules,
           "I look. \n<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\", "
           "\"arguments\": \"{}\"}</tool_call>\nDone.",
           "{\"content\": \"I look.Done.\", \"tool_calls\": [" CALL("f", "{}") ", " CALL(
               "g", "{}") "]}");
    expect(one, "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"g\"}</tool_call>",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{}") "]}");
    expect(thinks, "<think>a <tool_call></think>\n\n<tool_call>{\"name\": \"f\"}</tool_call>",
           "{\"content\": null, \"reasoning_content\": \"a <tool_call>\", \"tool_calls\": [" CALL(
               "f", "{}") "]}");
    /* malformed calls are content */
    expect(rules, "a <tool_call>{\"name\": \"f\", </tool_call> b",
           "{\"content\": \"a <tool_call>{\\\"name\\\": \\\"f\\\", </tool_call> b\"}");
    expect(rules, "<tool_call>{\"name\": \"unknown\"}</tool_call>",
           "{\"content\": \"<tool_call>{\\\"name\\\": \\\"unknown\\\"}</tool_call>\"}");
    expect(rules, "<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>x",
           "{\"content\": \"<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": "
           "5}</tool_call>x\"}");
    expect(rules, "x <tool_cal", "{\"content\": \"x <tool_cal\"}");
    expect(rules, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 0.1}}</tool_call>",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{\\\"x\\\": 0.1}") "]}");
    /* arguments are what was written, also beyond what a C value holds */
    static const char *const written[] = {"18446744073709551615",
                                          "-9223372036854775809",
                                          "1e400",
                                          "-1E+999",
                                          "1.10",
                                          "1e2",
                                          "-0",
                                          "\"nul \\u0000 in\"",
                                          "\"half \\ud83d pair\"",
                                          "[1,  2]",
                                          "\"\\u0041\\/\"",
                                          "{\"a\\u0000b\": 1}"};
    for (int i = 0; i < HZP_COUNT(written); i++) {
        char text[200], arguments[100];
        snprintf(arguments, sizeof(arguments), "{\"x\": %s}", written[i]);
        snprintf(text, sizeof(text), "<tool_call>{\"name\": \"f\", \"arguments\": %s}</tool_call>",
                 arguments);
        json_t *want = json_pack("{s:n, s:[{s:s, s:{s:s, s:s}}]}", "content", "tool_calls", "type",
                                 "function", "function", "name", "f", "arguments", arguments);
        char *json = json_dumps(want, 0);
        expect(rules, text, json);
        free(json);
        json_decref(want);
    }
    /* a name is not cut */
    expect(rules, "<tool_call>{\"name\": \"f\\u0000x\", \"arguments\": {}}</tool_call>",
           "{\"content\": \"<tool_call>{\\\"name\\\": \\\"f\\\\u0000x\\\", "
           "\\\"arguments\\\": {}}</tool_call>\"}");
    expect(rules, "<tool_call>{\"name\": \"f\"}",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{}") "]}");
    json_decref(rules.names);
}

static void llama(void **state)
{
    const struct hzp_reply_rules rules = {.calls = HZP_CALLS_LLAMA};
    expect(rules, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{\\\"a\\\": 1}") "]}");
    expect(rules,
           "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": "
           "{}}",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{}") ", " CALL("g", "{}") "]}");
    expect(rules, "{not a call}", "{\"content\": \"{not a call}\"}");
    expect(rules, "{\"a\": 1}", "{\"content\": \"{\\\"a\\\": 1}\"}");
    expect(rules, "Text {\"name\": \"f\"}", "{\"content\": \"Text {\\\"name\\\": \\\"f\\\"}\"}");
}

/* With strict tools a call in Llama's form is one only where the grammar takes it for one: what
 * else reads as a call, in another order or with escapes, would not have to fit. */
static void llama_strict(void **state)
{
    struct hzp_reply_rules rules = {
        .calls = HZP_CALLS_LLAMA, .strict = true, .names = json_pack("{s:b}", "f", 1)};
    expect(rules, " {\"name\" : \"f\", \"parameters\": {\"a\": 1}}",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{\\\"a\\\": 1}") "]}");
    expect(rules, "{\"parameters\": {}, \"name\": \"f\"}",
           "{\"content\": \"{\\\"parameters\\\": {}, \\\"name\\\": \\\"f\\\"}\"}");
    expect(rules, "{\"name\": \"\\u0066\", \"parameters\": {}}",
           "{\"content\": \"{\\\"name\\\": \\\"\\\\u0066\\\", \\\"parameters\\\": {}}\"}");
    expect(rules, "{\"name\": \"g\"", "{\"content\": \"{\\\"name\\\": \\\"g\\\"\"}");
    expect(rules, "{\"na", "{\"content\": \"{\\\"na\"}");
    json_decref(rules.names);
}

static void mistral(void **state)
{
    const struct hzp_reply_rules rules = {.calls = HZP_CALLS_MISTRAL};
    expect(rules,
           "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
           "\"arguments\": {}}]",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{\\\"a\\\": 1}") ", " CALL(
               "g", "{}") "]}");
    expect(rules, "Let me see.[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}",
           "{\"content\": \"Let me see.\", \"tool_calls\": [" CALL("f", "{\\\"a\\\": 1}") ", " CALL(
               "g", "{}") "]}");
    /* cut off: the call has begun */
    expect(rules, "[TOOL_CALLS]f[ARGS]{\"a\": ",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{\\\"a\\\": ") "]}");
    expect(rules, "[TOOL_CALLS][]", "{\"content\": \"[TOOL_CALLS][]\"}");
    expect(rules, "[TOOL", "{\"content\": \"[TOOL\"}");
}

static void glm(void **state)
{
    struct hzp_reply_rules rules = {.calls = HZP_CALLS_GLM,
                                    .names = json_pack("{s:{s:{s:{s:s}}}, s:b}", "f", "properties",
                                                       "s", "type", "string", "g", 1)};
    expect(rules,
           ("See.\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>5 \"x\"</arg_value>\n<arg_key>n"
            "</arg_key><arg_value>[1, 2]</arg_value>\n</tool_call>\n<tool_call>g</tool_call>"),
           "{\"content\": \"See.\", \"tool_calls\": [" CALL(
               "f",
               "{\\\"s\\\": \\\"5 \\\\\\\"x\\\\\\\"\\\", \\\"n\\\": [1, 2]}") ", " CALL("g",
                                                                                        "{}") "]}");
    expect(rules,
           ("<tool_call>f<arg_key>n</arg_key><arg_value>18446744073709551615</arg_value><arg_key>m"
            "</arg_key><arg_value>[1e400,1.10]</arg_value></tool_call>"),
           "{\"content\": null, \"tool_calls\": [" CALL(
               "f", "{\\\"n\\\": 18446744073709551615, \\\"m\\\": [1e400,1.10]}") "]}");
    /* The mark of the end within JSON; in a text it ends the text. */
    expect(rules,
           ("<tool_call>f<arg_key>n</arg_key><arg_value> {\"a\": \"x</arg_value>y\"} </arg_value>"
            "<arg_key>m</arg_key><arg_value>-5</arg_value><arg_key>b</arg_key><arg_value>\"c\""
            "</arg_value></tool_call>"),
           "{\"content\": null, \"tool_calls\": [" CALL(
               "f", "{\\\"n\\\": {\\\"a\\\": \\\"x</arg_value>y\\\"}, \\\"m\\\": -5, "
                    "\\\"b\\\": \\\"c\\\"}") "]}");
    expect(rules,
           "<tool_call>f<arg_key>n</arg_key><arg_value>{\"a\": 1} or</arg_value></tool_call>",
           "{\"content\": null, \"tool_calls\": [" CALL(
               "f", "{\\\"n\\\": \\\"{\\\\\\\"a\\\\\\\": 1} or\\\"}") "]}");
    expect(rules, "<tool_call>h<arg_key>a</arg_key></tool_call>",
           "{\"content\": \"<tool_call>h<arg_key>a</arg_key></tool_call>\"}");
    json_decref(rules.names);
}

static void channels(void **state)
{
    struct hzp_reply_rules rules = {.channels = true,
                                    .calls = HZP_CALLS_CHANNELS,
                                    .names = json_pack("{s:b, s:b}", "f", 1, "g", 1)};
    expect(rules,
           ("<|channel|>analysis<|message|>why <|x<|end|><|start|>assistant<|channel|>final"
            "<|message|>Yes. <b>"),
           "{\"content\": \"Yes. <b>\", \"reasoning_content\": \"why <|x\"}");
    expect(rules,
           ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
            "to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|><|start|>assistant "
            "to=functions.g<|channel|>commentary json<|message|>{}"),
           "{\"content\": \"I look.\", \"tool_calls\": [" CALL("f", "{\\\"a\\\": 1}") ", " CALL(
               "g", "{}") "]}");
    expect(rules, "<|channel|>commentary to=functions.h<|message|>{}", "{\"content\": \"{}\"}");
    expect(rules, "Plain <|text|>", "{\"content\": \"Plain <|text|>\"}");
    expect(rules, "<|chan", "{\"content\": \"<|chan\"}");
    json_decref(rules.names);
}

/* Calls that are not quite as their form has them, whose arguments no library holds, or in whose
 * strings marks stand. */
static void odd_hermes(void **state)
{
    struct hzp_reply_rules rules = {.calls = HZP_CALLS_HERMES,
                                    .names = json_pack("{s:b, s:b}", "f", 1, "g", 1)};
    static const char one[] =
        "{\"content\": null, \"tool_calls\": [" CALL("f", "{\\\"a\\\": 1}") "]}";
    static const char *const same[] = {
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}}\n</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": "
        "\"}</tool_call>\"}</tool_call>",
        "<tool_call>{\"id\": {\"name\": \"g\"}, \"name\": \"f\", \"arguments\": {\"a\": "
        "1}}</tool_call>",
        "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
        "<tool_call>{\"name\": \"\\u0066\", \"parameters\": {\"a\": 1}}</tool_call>",
        "<tool_call>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_",
    };
    for (int i = 0; i < HZP_COUNT(same); i++)
        expect(rules, same[i], one);
    expect(rules,
           "<tool_call>[{\"name\": \"f\"}, {\"name\": \"g\", \"arguments\": {}}]</tool_call> So.",
           "{\"content\": \"So.\", \"tool_calls\": [" CALL("f", "{}") ", " CALL("g", "{}") "]}");
    expect(rules, "<tool_call>{\"name\": \"f\"}\n{\"name\": \"g\"}</tool_call>",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{}") ", " CALL("g", "{}") "]}");
    expect(rules,
           "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "
           "\"</tool_call><tool_call>\"}}</tool_call>",
           "{\"content\": null, \"tool_calls\": [" CALL(
               "f", "{\\\"a\\\": \\\"</tool_call><tool_call>\\\"}") "]}");
    expect(rules,
           "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [18446744073709551615, 1e400, "
           "\"\\u0000\\ud83d\"]}}</tool_call>",
           "{\"content\": null, \"tool_calls\": [" CALL(
               "f", "{\\\"a\\\": [18446744073709551615, 1e400, \\\"\\\\u0000\\\\ud83d\\\"]}") "]}");
    expect(rules,
           "<tool_call>{\"arguments\": {\"a\": 18446744073709551615}, \"name\": \"f\"}</tool_call>",
           "{\"content\": null, \"tool_calls\": [" CALL("f",
                                                        "{\\\"a\\\": 18446744073709551615}") "]}");
    /* a line break in a string is written as JSON has it */
    expect(rules, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b\nc\"}}</tool_call>",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{\\\"a\\\": \\\"b\\\\nc\\\"}") "]}");
    /* arguments that lack their end have begun; the next call is one all the same */
    expect(rules,
           "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": {</tool_call><tool_call>{\"name\": "
           "\"g\"}</tool_call>",
           "{\"content\": null, \"tool_calls\": [" CALL("f", "{\\\"a\\\": {") ", " CALL("g",
                                                                                        "{}") "]}");
    /* a call of no tool beside one of a tool, in one pair of marks */
    expect(rules, "<tool_call>[{\"name\": \"f\"}, {\"name\": \"h\"}]</tool_call>",
           "{\"content\": \"{\\\"name\\\": \\\"h\\\"}]\", \"tool_calls\": [" CALL("f", "{}") "]}");
    expect(rules, "<tool_call><tool_call>{\"name\": \"f\"}</tool_call>",
           "{\"content\": \"<tool_call>\", \"tool_calls\": [" CALL("f", "{}") "]}");
    json_decref(rules.names);
}

static void odd_others(void **state)
{
    struct hzp_reply_rules rules = {.names = json_pack("{s:b, s:b}", "f", 1, "g", 1)};
    static const char f[] =
        "{\"content\": null, \"tool_calls\": [" CALL("f", "{\\\"a\\\": 1}") "]}";
    static const char said[] =
        "{\"content\": \"So.\", \"tool_calls\": [" CALL("f", "{\\\"a\\\": 1}") "]}";
    static const char both[] = "{\"content\": null, \"tool_calls\": [" CALL(
        "f", "{\\\"a\\\": 1}") ", " CALL("g", "{}") "]}";
    static const struct {
        enum hzp_reply_calls calls;
        const char *text, *want;
    } row[] = {
        {HZP_CALLS_LLAMA, "{\"name\": \"f\", \"parameters\": {\"a\": 1}} So.", said},
        {HZP_CALLS_LLAMA, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}}", f},
        {HZP_CALLS_LLAMA, "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}",
         f},
        {HZP_CALLS_LLAMA, "{\"parameters\": {\"a\": 1}, \"name\": \"f\"}", f},
        {HZP_CALLS_LLAMA,
         "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}};{\"name\": \"g\"}", both},
        {HZP_CALLS_MISTRAL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}] So.", said},
        {HZP_CALLS_MISTRAL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}", f},
        {HZP_CALLS_MISTRAL,
         "[TOOL_CALLS] [ {\"name\": \"f\", \"arguments\": {\"a\": 1}} , {\"name\": \"g\"} ]", both},
        {HZP_CALLS_MISTRAL, "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"a\": 1}", f},
        {HZP_CALLS_MISTRAL_ARGS, "[TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]g[ARGS] {}", both},
        {HZP_CALLS_MISTRAL_ARGS, "[TOOL_CALLS]f[ARGS]{\"a\": 1}\n\nSo.", said},
        {HZP_CALLS_MISTRAL_ID,
         "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}",
         both},
        {HZP_CALLS_MISTRAL_ID, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", f},
        {HZP_CALLS_GLM, "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>So.",
         said},
        {HZP_CALLS_GLM, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>",
         "{\"content\": \"<tool_call>f\\n<arg_key>a</arg_key>\\n<arg_value>1</arg_value>\"}"},
        {HZP_CALLS_GLM,
         "<tool_call>f<arg_key>a</arg_key><arg_value>18446744073709551615</arg_value></tool_call>",
         "{\"content\": null, \"tool_calls\": [" CALL("f",
                                                      "{\\\"a\\\": 18446744073709551615}") "]}"},
        /* what looks like JSON until the mark of another value */
        {HZP_CALLS_GLM,
         "<tool_call>f<arg_key>a</arg_key><arg_value>\"b</arg_value><arg_key>c</arg_key><arg_value>"
         "1</arg_value></tool_call>",
         "{\"content\": null, \"tool_calls\": [" CALL(
             "f", "{\\\"a\\\": \\\"\\\\\\\"b\\\", \\\"c\\\": 1}") "]}"},
        {HZP_CALLS_GLM,
         "<tool_call>f<arg_key>a</arg_key><arg_value>\"</tool_call>\"</arg_value></tool_call>",
         "{\"content\": null, \"tool_calls\": [" CALL("f",
                                                      "{\\\"a\\\": \\\"</tool_call>\\\"}") "]}"},
        {HZP_CALLS_CHANNELS,
         " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>", f},
        {HZP_CALLS_CHANNELS,
         "<|channel|>analysis<|message|><|end|><|start|>assistant to=functions.f<|channel|>"
         "commentary <|constrain|>json<|message|>{\"a\": 1}",
         f},
        {HZP_CALLS_CHANNELS,
         "<|channel|>commentary to=functions.f<|message|>{\"a\": 1}<|call|>\n<|start|>assistant"
         "<|channel|>final<|message|>So.<|return|>",
         said},
        {HZP_CALLS_CHANNELS, "<|channel|>commentary to=functions.f<|message|>So.<|end|>",
         "{\"content\": \"So.\"}"},
        {HZP_CALLS_CHANNELS, "So.<|end|>", "{\"content\": \"So.\"}"},
        {HZP_CALLS_CHANNELS, "<|channel|>final<|message|>So.<|end|><|start|>assistant<|channel|>fi",
         "{\"content\": \"So.\"}"},
        {HZP_CALLS_CHANNELS, "<|channel|>commentary to=functions.f<|message|>{\"a\": 1}}<|call|>",
         f},
        {HZP_CALLS_CHANNELS,
         "<|channel|>commentary to=functions.f<|message|>{\"a\": \"<|call|><|message|>\"}<|call|>",
         "{\"content\": null, \"tool_calls\": [" CALL(
             "f", "{\\\"a\\\": \\\"<|call|><|message|>\\\"}") "]}"},
    };
    for (int i = 0; i < HZP_COUNT(row); i++) {
        rules.calls = row[i].calls;
        rules.channels = rules.calls == HZP_CALLS_CHANNELS;
        expect(rules, row[i].text, row[i].want);
    }
    json_decref(rules.names);
}

/* The model's own id is the call's, unless an earlier call has it. */
static void own_ids(void **state)
{
    static const char text[] =
        "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}";
    const struct hzp_reply_rules rules = {.calls = HZP_CALLS_MISTRAL_ID};
    struct hzp_reply *reply;
    assert_int_equal(hzp_reply_create(&rules, &reply), HZP_OK);
    assert_int_equal(hzp_reply_feed(reply, text, strlen(text), true), HZP_OK);
    assert_int_equal(reply->calls, 2);
    assert_string_equal(reply->call[0].id, "abcdefghi");
    assert_string_not_equal(reply->call[1].id, "abcdefghi");
    hzp_reply_destroy(reply);
}

/* Arguments are passed on while they arrive. */
static void arguments_arrive(void **state)
{
    static const struct {
        enum hzp_reply_calls calls;
        const char *text;
    } row[] = {
        {HZP_CALLS_HERMES, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b}c\", "},
        {HZP_CALLS_LLAMA, "{\"name\": \"f\", \"parameters\": {\"a\": \"b}c\", "},
        {HZP_CALLS_MISTRAL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"b}c\", "},
        {HZP_CALLS_MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\": \"b}c\", "},
    };
    for (int i = 0; i < HZP_COUNT(row); i++) {
        const struct hzp_reply_rules rules = {.calls = row[i].calls};
        struct hzp_reply *reply;
        json_t *message = json_object();
        assert_int_equal(hzp_reply_create(&rules, &reply), HZP_OK);
        for (const char *p = row[i].text; *p; p++) {
            assert_int_equal(hzp_reply_feed(reply, p, 1, false), HZP_OK);
            add_delta(message, hzp_reply_delta(reply));
        }
        const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
        const json_t *function = json_object_get(call, "function");
        assert_string_equal(json_string_value(json_object_get(function, "name")), "f");
        assert_string_equal(json_string_value(json_object_get(function, "arguments")),
                            "{\"a\": \"b}c\", ");
        assert_int_equal(reply->held.bytes, 0);
        json_decref(message);
        hzp_reply_destroy(reply);
    }
}

/* Each character is a token, and so many of them are reasoning. */
static void expect_reasoned(struct hzp_reply_rules rules, const char *text, int32_t want)
{
    int32_t offset[256], tokens = 0;
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)text[i] & 0xC0) != 0x80) {
            offset[tokens] = tokens;
            tokens++;
        }
    for (size_t cut = 0; cut <= n; cut++) {
        struct hzp_reply *reply;
        int32_t before = 0, now;
        assert_int_equal(hzp_reply_create(&rules, &reply), HZP_OK);
        for (size_t at = 0, step; at < n; at += step) {
            step = HZP_MIN(cut == 0 ? 1 : at == 0 ? cut : n - at, n - at);
            assert_int_equal(hzp_reply_feed(reply, text + at, step, at + step == n), HZP_OK);
            now = hzp_reply_reasoned(reply, offset, tokens);
            assert_true(now >= before);
            before = now;
        }
        if (before != want)
            fail_msg("%s: %d tokens of reasoning, not %d (cut at %zu)", text, before, want, cut);
        hzp_reply_destroy(reply);
    }
}

static void reasoned(void **state)
{
    const struct hzp_reply_rules outside = {.reasoning = true},
                                 inside = {.reasoning = true, .inside = true, .hide = true};
    struct hzp_reply_rules channels = {
        .channels = true, .calls = HZP_CALLS_CHANNELS, .names = json_pack("{s:b}", "f", 1)};
    expect_reasoned(outside, " <think>\nwh\xC3\xA4\n</think>\n\nYes <b>.", 5);
    expect_reasoned(outside, "Just <think>text</think>", 0);
    expect_reasoned(outside, "<think>cut </thi", 9);
    expect_reasoned(outside, "<think></think>Yes", 0);
    expect_reasoned(inside, "why\n</think>\n\nYes", 4);
    expect_reasoned(channels,
                    ("<|channel|>analysis<|message|>why <|x<|end|><|start|>assistant<|channel|>"
                     "analysis<|message|>so<|channel|>final<|message|>Yes."),
                    7 + 2);
    expect_reasoned(channels, "<|channel|>analysis to=functions.f<|message|>{}<|call|>", 0);
    json_decref(channels.names);
}

/* A call whose arguments the text does not end is none that a client may make. */
static void called(void **state)
{
    static const struct {
        enum hzp_reply_calls calls;
        const char *text;
        bool called;
    } cases[] = {
        {HZP_CALLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>",
         true},
        {HZP_CALLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}", true},
        {HZP_CALLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", false},
        {HZP_CALLS_HERMES, "<tool_call>{\"name\": \"f\", \"argu", false},
        {HZP_CALLS_HERMES,
         "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"f\", \"arguments\": {",
         false},
        {HZP_CALLS_HERMES, "no call", false},
        {HZP_CALLS_GLM, "<tool_call>f<arg_key>a</arg_key><arg_value>1", false},
    };
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct hzp_reply_rules rules = {.calls = cases[i].calls,
                                        .names = json_pack("{s:b}", "f", 1)};
        struct hzp_reply *reply;
        assert_int_equal(hzp_reply_create(&rules, &reply), HZP_OK);
        assert_int_equal(hzp_reply_feed(reply, cases[i].text, strlen(cases[i].text), true), HZP_OK);
        if (hzp_reply_called(reply) != cases[i].called)
            fail_msg("%s", cases[i].text);
        hzp_reply_destroy(reply);
        json_decref(rules.names);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning),  cmocka_unit_test(hermes),
        cmocka_unit_test(llama),      cmocka_unit_test(llama_strict),
        cmocka_unit_test(mistral),    cmocka_unit_test(glm),
        cmocka_unit_test(channels),   cmocka_unit_test(arguments_arrive),
        cmocka_unit_test(odd_hermes), cmocka_unit_test(odd_others),
        cmocka_unit_test(own_ids),    cmocka_unit_test(reasoned),
        cmocka_unit_test(called),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
