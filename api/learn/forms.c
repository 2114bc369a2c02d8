/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/forms.h"

#include "text/chat/lesson.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hzp_form_fini(struct hzp_form *form)
{
    hzp_textbuf_fini(&form->text);
    free(form->part);
    *form = (struct hzp_form){.parts = 0};
}

/* --- Parts ------------------------------------------------------------------------------------ */

/* Appends to the last part, or to a new one if that has another weight; 0: not learned. */
static int append(struct hzp_form *form, const char *text, size_t bytes, float weight)
{
    if (!form->parts || form->part[form->parts - 1].weight != weight) {
        HZP_TRY(
            hzp_text_grow((void **)&form->part, &form->room, form->parts + 1, sizeof(*form->part)));
        form->part[form->parts++] = (struct hzp_form_part){.weight = weight};
    }
    HZP_TRY(hzp_textbuf_append(&form->text, text, bytes));
    form->part[form->parts - 1].end = form->text.bytes;
    return HZP_OK;
}

static int append_words(struct hzp_form *form, const char *words)
{
    return append(form, words, strlen(words), false);
}

static int append_json(struct hzp_form *form, const json_t *string, float weight)
{
    return append(form, json_string_value(string), json_string_length(string), weight);
}

/* A field that must be a string. */
static int get_string(const json_t *object, const char *field, const json_t **ret,
                      struct hzp_err_text *reterr)
{
    *ret = json_object_get(object, field);
    if (!*ret)
        return hzp_fail_param(reterr, HZP_EINVAL, field, "is missing");
    if (!json_is_string(*ret))
        return hzp_fail_param(reterr, HZP_EINVAL, field, "must be a string");
    return HZP_OK;
}

/* --- Prompt and completion -------------------------------------------------------------------- */

static int read_named(const json_t *object, const struct hzp_example_fields *fields,
                      struct hzp_form *ret, struct hzp_err_text *reterr)
{
    const json_t *prompt, *completion;
    HZP_TRY(get_string(object, fields->prompt ? fields->prompt : "prompt", &prompt, reterr));
    HZP_TRY(get_string(object, fields->completion ? fields->completion : "completion", &completion,
                       reterr));
    HZP_TRY(append_json(ret, prompt, 0));
    return append_json(ret, completion, 1);
}

static int read_alpaca(const json_t *object, struct hzp_form *ret, struct hzp_err_text *reterr)
{
    const json_t *instruction, *output, *input = NULL;
    HZP_TRY(get_string(object, "instruction", &instruction, reterr));
    HZP_TRY(get_string(object, "output", &output, reterr));
    if (json_object_get(object, "input") && !json_is_null(json_object_get(object, "input")))
        HZP_TRY(get_string(object, "input", &input, reterr));
    bool has_input = input && json_string_length(input);
    HZP_TRY(append_words(
        ret, has_input ? "Below is an instruction that describes a task, paired with an input that "
                         "provides further context. Write a response that appropriately completes "
                         "the request.\n\n### Instruction:\n"
                       : "Below is an instruction that describes a task. Write a response that "
                         "appropriately completes the request.\n\n### Instruction:\n"));
    HZP_TRY(append_json(ret, instruction, 0));
    if (has_input) {
        HZP_TRY(append_words(ret, "\n\n### Input:\n"));
        HZP_TRY(append_json(ret, input, 0));
    }
    HZP_TRY(append_words(ret, "\n\n### Response:\n"));
    return append_json(ret, output, 1);
}

/* --- Conversations ---------------------------------------------------------------------------- */

/* The names of a conversation's fields. */
struct talk {
    const char *list, *who, *what;
    struct hzp_err_text *reterr;
    size_t i; /* the message */
};

static int bad(const struct talk *t, const char *field, const char *format, ...) HZP_PRINTF(3, 4);

static int bad(const struct talk *t, const char *field, const char *format, ...)
{
    char param[64], text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(param, sizeof(param), "%s[%zu]%s%s", t->list, t->i, *field ? "." : "", field);
    return hzp_fail_param(t->reterr, HZP_EINVAL, param, "%s", text);
}

/* The role as chat has it; NULL: it is not known. */
static const char *role_of(const char *name)
{
    static const char *const role[][2] = {{"system", "system"},       {"developer", "system"},
                                          {"user", "user"},           {"human", "user"},
                                          {"assistant", "assistant"}, {"gpt", "assistant"},
                                          {"chatgpt", "assistant"},   {"model", "assistant"}};
    for (int i = 0; i < HZP_COUNT(role); i++)
        if (!strcmp(name, role[i][0]))
            return role[i][1];
    return NULL;
}

/* Fields of a message that would change what is learned. */
static int check_message(const struct talk *t, const json_t *message)
{
    static const char *const not_supported[] = {"tool_calls", "function_call", "tool_call_id"};
    if (!json_is_object(message))
        return bad(t, "", "must be an object");
    for (int i = 0; i < HZP_COUNT(not_supported); i++) {
        const json_t *value = json_object_get(message, not_supported[i]);
        if (value && !json_is_null(value))
            return bad(t, not_supported[i], "tool calls cannot be learned yet");
    }
    return HZP_OK;
}

/* A content is a string, or a list of parts that are texts. */
static int append_content(const struct talk *t, const json_t *content, float weight,
                          struct hzp_form *ret)
{
    if (json_is_string(content))
        return append_json(ret, content, weight);
    if (!json_is_array(content))
        return bad(t, t->what, "must be a string");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *text = json_object_get(part, "text");
        if (!json_is_string(text))
            return bad(t, t->what, "has a part that is not text");
        HZP_TRY(append_json(ret, text, weight));
    }
    return HZP_OK;
}

static int get_role(const struct talk *t, const json_t *message, const char **ret)
{
    const char *name = json_string_value(json_object_get(message, t->who));
    if (!name)
        return bad(t, t->who, "must be a string");
    *ret = role_of(name);
    if (!*ret)
        return bad(t, t->who,
                   "\"%.40s\" is not a role that can be learned from: system, user and "
                   "assistant are",
                   name);
    return HZP_OK;
}

static int read_message(const struct talk *t, const json_t *message, struct hzp_form *ret)
{
    const char *role;
    float weight;
    HZP_TRY(check_message(t, message));
    HZP_TRY(get_role(t, message, &role));
    HZP_TRY(
        hzp_message_weight(message, t->list, t->i, !strcmp(role, "assistant"), &weight, t->reterr));
    if (t->i)
        HZP_TRY(append_words(ret, "\n"));
    HZP_TRY(append_words(ret, role));
    HZP_TRY(append_words(ret, ":"));
    HZP_TRY(append(ret, " ", 1, weight));
    return append_content(t, json_object_get(message, t->what), weight, ret);
}

static int read_talk(struct talk *t, const json_t *object, struct hzp_form *ret)
{
    const json_t *list = json_object_get(object, t->list);
    if (!json_is_array(list))
        return hzp_fail_param(t->reterr, HZP_EINVAL, t->list, "must be an array of messages");
    bool any = false;
    for (t->i = 0; t->i < json_array_size(list); t->i++)
        HZP_TRY(read_message(t, json_array_get(list, t->i), ret));
    for (size_t i = 0; i < ret->parts; i++)
        any |= ret->part[i].weight > 0;
    if (!any)
        return hzp_fail_param(t->reterr, HZP_EINVAL, t->list, "has no answer to learn");
    if (!(ret->part[ret->parts - 1].weight >
          0)) { /* what follows the last answer teaches nothing */
        ret->parts--;
        ret->text.bytes = ret->part[ret->parts - 1].end;
    }
    return HZP_OK;
}

int hzp_form_messages(const json_t *object, json_t **ret, struct hzp_err_text *reterr)
{
    struct talk t = {"conversations", "from", "value", reterr, 0};
    const json_t *list = json_object_get(object, t.list);
    if (!json_is_array(list))
        return hzp_fail_param(reterr, HZP_EINVAL, t.list, "must be an array of messages");
    json_t *messages = json_array();
    int r = HZP_OK;
    for (t.i = 0; t.i < json_array_size(list) && r >= 0; t.i++) {
        const json_t *from = json_array_get(list, t.i), *weight = json_object_get(from, "weight");
        const char *role = NULL;
        r = check_message(&t, from);
        if (r >= 0)
            r = get_role(&t, from, &role);
        json_t *value = json_object_get(from, t.what);
        if (r >= 0 && !json_is_string(value))
            r = bad(&t, t.what, "must be a string");
        if (r < 0)
            break;
        json_t *message = json_pack("{s:s, s:O}", "role", role, "content", value);
        if (weight)
            json_object_set(message, "weight", (json_t *)weight);
        json_array_append_new(messages, message);
    }
    *ret = r < 0 ? NULL : json_pack("{s:O}", "messages", messages);
    json_decref(messages);
    return r;
}

/* --- Forms ------------------------------------------------------------------------------------ */

int hzp_form_read(const json_t *object, const struct hzp_example_fields *fields,
                  struct hzp_form *ret, struct hzp_err_text *reterr)
{
    struct talk messages = {"messages", "role", "content", reterr, 0},
                share = {"conversations", "from", "value", reterr, 0};
    int r;
    ret->parts = ret->text.bytes = 0;
    if (fields && (fields->prompt || fields->completion))
        r = read_named(object, fields, ret, reterr);
    else if (json_object_get(object, "messages"))
        r = read_talk(&messages, object, ret);
    else if (json_object_get(object, "conversations"))
        r = read_talk(&share, object, ret);
    else if (json_object_get(object, "instruction") || json_object_get(object, "output"))
        r = read_alpaca(object, ret, reterr);
    else
        return 0;
    return r < 0 ? r : 1;
}

const char *hzp_form_unread(const char *data, size_t bytes)
{
    static const struct {
        const char *begin;
        size_t bytes;
        const char *text;
    } kind[] = {
        {"PAR1", 4,
         "is a Parquet file; make JSONL of it: python3 -c 'import pandas, sys; "
         "pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient=\"records\", lines=True)' "
         "IN.parquet OUT.jsonl"},
        {"ARROW1", 6,
         "is an Arrow file; make JSONL of it: python3 -c 'import pandas, sys; "
         "pandas.read_feather(sys.argv[1]).to_json(sys.argv[2], orient=\"records\", lines=True)' "
         "IN.arrow OUT.jsonl"},
        {"\x1f\x8b", 2, "is compressed by gzip; unpack it first: gunzip FILE"},
        {"\x28\xb5\x2f\xfd", 4, "is compressed by zstd; unpack it first: unzstd FILE"},
        {"PK\x03\x04", 4, "is a zip archive; unpack it first: unzip FILE"},
    };
    for (int i = 0; i < HZP_COUNT(kind); i++)
        if (bytes >= kind[i].bytes && !memcmp(data, kind[i].begin, kind[i].bytes))
            return kind[i].text;
    return NULL;
}
