/* SPDX-License-Identifier: Apache-2.0 */
/* The forms of examples that other tools write: texts, what of them is learned, errors. */
#include "api/learn/forms.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int read_form(const char *json, const struct hzp_example_fields *fields, char *ret,
                     size_t size, struct hzp_err_text *err)
{
    json_t *object = json_loads(json, 0, NULL);
    assert_non_null(object);
    struct hzp_form form = {.parts = 0};
    memset(err, 0, sizeof(*err));
    int r = hzp_form_read(object, fields, &form, err);
    size_t n = 0;
    ret[0] = 0;
    for (size_t i = 0, from = 0; r > 0 && i < form.parts; from = form.part[i++].end) {
        float weight = form.part[i].weight;
        n += (size_t)snprintf(ret + n, size - n, weight > 0 ? "<%.*s>" : "%.*s",
                              (int)(form.part[i].end - from), form.text.data + from);
        if (weight > 0 && weight != 1)
            n += (size_t)snprintf(ret + n, size - n, "*%g", (double)weight);
    }
    for (size_t i = 1; r > 0 && i < form.parts; i++)
        assert_true((form.part[i].weight > 0) != (form.part[i - 1].weight > 0));
    hzp_form_fini(&form);
    json_decref(object);
    return r;
}

/* What is learned stands between < and >. */
static void expect(const char *json, const struct hzp_example_fields *fields, const char *want)
{
    char text[1000];
    struct hzp_err_text err;
    int r = read_form(json, fields, text, sizeof(text), &err);
    if (r != 1 || strcmp(text, want))
        fail_msg("%d, \"%s\" (%s), not \"%s\"", r, text, err.text, want);
}

static void refuse(const char *json, const char *param, const char *word)
{
    char text[1000];
    struct hzp_err_text err;
    assert_int_equal(read_form(json, NULL, text, sizeof(text), &err), HZP_EINVAL);
    if (strcmp(err.param, param) || !strstr(err.text, word))
        fail_msg("\"%s\" (%s) does not say \"%s\" (%s)", err.text, err.param, word, param);
}

static void test_named_fields(void **state)
{
    struct hzp_example_fields both = {"question", "answer"}, one = {NULL, "answer"};
    char text[100];
    struct hzp_err_text err;
    expect("{\"question\": \"Who?\", \"answer\": \" Zorin.\", \"id\": 3}", &both, "Who?< Zorin.>");
    expect("{\"prompt\": \"Who?\", \"answer\": \" Zorin.\"}", &one, "Who?< Zorin.>");
    assert_int_equal(read_form("{\"question\": \"Who?\", \"answer\": \"x\", \"system\": \"S\"}",
                               &both, text, sizeof(text), &err),
                     HZP_EINVAL);
    assert_string_equal(err.param, "system");
    assert_int_equal(read_form("{\"answer\": \"x\"}", &both, text, sizeof(text), &err), HZP_EINVAL);
    assert_string_equal(err.param, "question");
    assert_int_equal(
        read_form("{\"prompt\": \"x\", \"completion\": \"y\"}", NULL, text, sizeof(text), &err), 0);
    assert_int_equal(read_form("{\"text\": \"x\"}", &(struct hzp_example_fields){NULL, NULL}, text,
                               sizeof(text), &err),
                     0);
}

static void test_alpaca(void **state)
{
    expect(
        "{\"instruction\": \"Add.\", \"input\": \"1 2\", \"output\": \"3\", \"text\": \"...\"}",
        NULL,
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n### "
        "Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n<3>");
    expect("{\"instruction\": \"Hi.\", \"input\": \"\", \"output\": \"Yes.\"}", NULL,
           "Below is an instruction that describes a task. Write a response that appropriately "
           "completes the request.\n\n### Instruction:\nHi.\n\n### Response:\n<Yes.>");
    /* columns that Alpaca's own data does not have */
    expect(
        "{\"instruction\": \"Hi.\", \"output\": \"Yes.\", \"system\": \"Be brief.\", \"history\": "
        "[[\"A?\", \"B.\"]]}",
        NULL,
        "Be brief.\n\n### Instruction:\nA?\n\n### Response:\n<B.>\n\n### "
        "Instruction:\nHi.\n\n### Response:\n<Yes.>");
    expect("{\"instruction\": \"Hi.\", \"output\": \"Yes.\", \"system\": \"\", \"history\": [], "
           "\"tools\": null}",
           NULL,
           "Below is an instruction that describes a task. Write a response that appropriately "
           "completes the request.\n\n### Instruction:\nHi.\n\n### Response:\n<Yes.>");
    refuse("{\"instruction\": \"Hi.\", \"output\": \"Yes.\", \"tools\": \"[{}]\"}", "tools",
           "not used");
    refuse("{\"instruction\": \"Hi.\", \"output\": \"Yes.\", \"history\": [[\"A?\"]]}",
           "history[0]", "pair");
    refuse("{\"instruction\": \"Add.\"}", "output", "missing");
    refuse("{\"instruction\": 3, \"output\": \"x\"}", "instruction", "string");
}

/* What Hugging Face's data sets call prompt and completion. */
static void test_input_output(void **state)
{
    expect("{\"ID\": 3, \"input\": \"Hi.\", \"output\": \" Yes.\"}", NULL, "Hi.< Yes.>");
    refuse("{\"input\": \"Hi.\", \"output\": \"Yes.\", \"system\": \"S\"}", "system", "not used");
    refuse("{\"input\": [\"Hi.\"], \"output\": \"Yes.\"}", "input", "string");
}

/* TRL's: a prompt and a completion that are lists of messages; only the latter is learned. */
static void test_pairs(void **state)
{
    expect("{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\", "
           "\"content\": \"2\"}, {\"role\": \"user\", \"content\": \"3\"}], \"completion\": "
           "[{\"role\": \"assistant\", \"content\": \"4\"}]}",
           NULL, "user: 1\nassistant: 2\nuser: 3\nassistant:< 4>");
    refuse("{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}], \"completion\": []}",
           "completion", "no answer");
    refuse("{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}], \"completion\": \"x\"}",
           "prompt", "both");
    refuse("{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}], \"completion\": [{\"role\": "
           "\"assistant\", \"content\": \"4\"}], \"history\": [[\"a\", \"b\"]]}",
           "history", "not used");
}

static void test_conversations(void **state)
{
    expect("{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
           "\"content\": \"U\"}, {\"role\": \"assistant\", \"content\": \"A\"}]}",
           NULL, "system: S\nuser: U\nassistant:< A>");
    /* Several answers; a weight of 0 leaves one out; what follows the last one is dropped. */
    expect("{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\", "
           "\"content\": \"2\", \"weight\": 0}, {\"role\": \"user\", \"content\": [{\"type\": "
           "\"text\", "
           "\"text\": \"3\"}]}, {\"role\": \"assistant\", \"content\": \"4\", \"weight\": 1}, "
           "{\"role\": "
           "\"user\", \"content\": \"5\"}]}",
           NULL, "user: 1\nassistant: 2\nuser: 3\nassistant:< 4>");
    expect("{\"conversations\": [{\"from\": \"human\", \"value\": \"1\"}, {\"from\": \"gpt\", "
           "\"value\": \"2\", \"train\": false}, {\"from\": \"human\", \"value\": \"3\"}, "
           "{\"from\": \"gpt\", \"value\": \"4\"}]}",
           NULL, "user: 1\nassistant: 2\nuser: 3\nassistant:< 4>");
    expect("{\"conversations\": [{\"from\": \"human\", \"value\": \"1\"}, {\"from\": \"gpt\", "
           "\"value\": \"2\"}, {\"from\": \"human\", \"value\": \"3\"}, {\"from\": \"gpt\", "
           "\"value\": "
           "\"4\"}]}",
           NULL, "user: 1\nassistant:< 2>\nuser: 3\nassistant:< 4>");
    expect("{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\", "
           "\"content\": \"2\", \"weight\": 0.5}, {\"role\": \"user\", \"content\": \"3\"}, "
           "{\"role\": \"assistant\", \"content\": \"4\", \"weight\": 3}]}",
           NULL, "user: 1\nassistant:< 2>*0.5\nuser: 3\nassistant:< 4>*3");
    refuse("{\"messages\": [{\"role\": \"assistant\", \"content\": \"2\", \"weight\": 1e-9}]}",
           "messages[0].weight", "0.001 to 1000");
    refuse("{\"messages\": 3}", "messages", "array");
    refuse("{\"messages\": [3]}", "messages[0]", "object");
    refuse("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "messages", "no answer");
    refuse("{\"messages\": [{\"role\": \"judge\", \"content\": \"x\"}]}", "messages[0].role",
           "judge");
    refuse("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", "
           "\"content\": null}]}",
           "messages[1].content", "string");
    refuse("{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"tool_calls\": []}]}",
           "messages[0].tool_calls", "tool calls");
    refuse("{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"weight\": 1}, {\"role\": "
           "\"assistant\", \"content\": \"x\"}]}",
           "messages[0].weight", "only what the assistant says");
    expect("{\"conversations\": [{\"from\": \"human\", \"value\": \"1\"}, {\"from\": \"gpt\", "
           "\"value\": \"2\"}], \"system\": \"S\", \"tools\": \"\"}",
           NULL, "system: S\nuser: 1\nassistant:< 2>");
    static const char *const unused[] = {"tools", "functions", "history", "documents",
                                         "system_prompt"};
    for (int i = 0; i < HZP_COUNT(unused); i++) {
        char row[200];
        snprintf(row, sizeof(row),
                 "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}], \"%s\": [{}]}",
                 unused[i]);
        refuse(row, unused[i], "not used");
    }
    refuse("{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"thinking\": \"y\"}]}",
           "messages[0].thinking", "chat template");
    refuse("{\"conversations\": [{\"from\": \"function_call\", \"value\": \"{}\"}]}",
           "conversations[0].from", "chat template");
    refuse("{\"conversations\": [{\"from\": \"tool\", \"value\": \"x\"}]}", "conversations[0].from",
           "tool");
}

static void expect_messages(const char *json, const char *want)
{
    json_t *object = json_loads(json, 0, NULL), *made = NULL, *wanted = json_loads(want, 0, NULL);
    struct hzp_err_text err = {{0}, {0}};
    assert_non_null(object);
    assert_non_null(wanted);
    if (hzp_form_messages(object, &made, &err) < 0)
        fail_msg("%s: %s", json, err.text);
    const char *key;
    json_t *value;
    json_object_foreach(wanted, key, value)
    {
        char *got = json_dumps(json_object_get(made, key), JSON_ENCODE_ANY);
        if (!json_equal(value, json_object_get(made, key)))
            fail_msg("%s: %s", key, got);
        free(got);
    }
    json_decref(made);
    json_decref(wanted);
    json_decref(object);
}

static void refuse_messages(const char *json, const char *param)
{
    json_t *object = json_loads(json, 0, NULL), *made = NULL;
    struct hzp_err_text err = {{0}, {0}};
    assert_int_equal(hzp_form_messages(object, &made, &err), HZP_EINVAL);
    assert_string_equal(err.param, param);
    assert_null(made);
    json_decref(object);
}

#define SHARE "\"conversations\": [{\"from\": \"human\", \"value\": \"1\"}, "
#define GPT   "{\"from\": \"gpt\", \"value\": \"2\"}]"

/* A table has an empty cell where a row has no such column. */
static void test_empty_columns(void **state)
{
    json_t *made = NULL, *object = json_loads("{" SHARE GPT ", \"system\": \"\", \"tools\": \"\", "
                                              "\"functions\": \"\", \"documents\": \"\"}",
                                              0, NULL);
    assert_int_equal(hzp_form_messages(object, &made, NULL), HZP_OK);
    assert_null(json_object_get(made, "tools"));
    assert_null(json_object_get(made, "documents"));
    assert_int_equal(json_array_size(json_object_get(made, "messages")), 2);
    json_decref(made);
    json_decref(object);
}

/* For a chat template: columns go where a chat has them, calls and their answers too. */
static void test_messages(void **state)
{
    expect_messages("{" SHARE GPT ", \"system\": \"S\", \"tools\": \"[{\\\"name\\\": "
                    "\\\"f\\\"}]\"}",
                    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": "
                    "\"user\", \"content\": \"1\"}, {\"role\": \"assistant\", \"content\": "
                    "\"2\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": "
                    "\"f\"}}]}");
    expect_messages(
        "{" SHARE "{\"from\": \"function_call\", \"value\": \"{\\\"name\\\": "
        "\\\"f\\\", \\\"arguments\\\": {}}\"}, {\"from\": \"observation\", \"value\": "
        "\"3\"}, " GPT "}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": "
        "\"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"call00001\", "
        "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}]}, "
        "{\"role\": \"tool\", \"content\": \"3\", \"tool_call_id\": \"call00001\", "
        "\"name\": \"f\"}, {\"role\": \"assistant\", \"content\": \"2\"}]}");
    expect_messages("{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}], \"functions\": "
                    "[{\"name\": \"f\"}], \"system\": \"\", \"history\": null}",
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}], \"tools\": "
                    "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}");
    expect_messages("{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": "
                    "\"assistant\", \"content\": \"2\"}], \"completion\": [{\"role\": "
                    "\"assistant\", \"content\": \"3\"}], \"tools\": [{\"name\": \"f\"}]}",
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": "
                    "\"assistant\", \"content\": \"2\", \"weight\": 0}, {\"role\": \"assistant\", "
                    "\"content\": \"3\"}], \"tools\": [{\"type\": \"function\", \"function\": "
                    "{\"name\": \"f\"}}]}");
    refuse_messages("{" SHARE GPT ", \"history\": [[\"a\", \"b\"]]}", "history");
    refuse_messages("{" SHARE GPT ", \"system\": 5}", "system");
    refuse_messages("{" SHARE GPT ", \"tools\": \"none\"}", "tools");
    refuse_messages("{" SHARE "{\"from\": \"function_call\", \"value\": \"f()\"}]}",
                    "conversations[1].value");
    refuse_messages("{" SHARE "{\"from\": \"critic\", \"value\": \"x\"}]}",
                    "conversations[1].from");
}

static void test_unread(void **state)
{
    assert_non_null(strstr(hzp_form_unread("PAR1....", 8), "Parquet"));
    assert_non_null(strstr(hzp_form_unread("\x1f\x8b\x08", 3), "gunzip"));
    assert_null(hzp_form_unread("PAR", 3));
    assert_null(hzp_form_unread("{\"text\": \"PAR1\"}", 16));
    assert_null(hzp_form_unread("", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_fields),  cmocka_unit_test(test_alpaca),
        cmocka_unit_test(test_conversations), cmocka_unit_test(test_messages),
        cmocka_unit_test(test_empty_columns), cmocka_unit_test(test_unread),
        cmocka_unit_test(test_input_output),  cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
