/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/forms.h"

#include "base/words.h"
#include "text/chat/learned.h"

void hzp_form_fini(struct hzp_form *form)
{
    hzp_textbuf_fini(&form->text);
    free(form->part);
    *form = (struct hzp_form){.parts = 0};
}

/* --- Columns ---------------------------------------------------------------------------------- */

bool hzp_form_has(const json_t *object, const char *column)
{
    const json_t *value = json_object_get(object, column);
    return value && !json_is_null(value) &&
           !(json_is_string(value) &&
             (!json_string_length(value) ||
              (!strcmp(column, "tools") && !strcmp(json_string_value(value), "[]")))) &&
           !(json_is_array(value) && !json_array_size(value)) &&
           !(json_is_object(value) && !json_object_size(value));
}

/* Columns that would change a prompt. */
static const char *const columns[] = {"system",       "history",   "tools",
                                      "functions",    "documents", "chat_template_kwargs",
                                      "system_prompt"};

int hzp_form_unused(const json_t *object, const char *used, const char *why,
                    struct hzp_err_text *reterr)
{
    for (int i = 0; i < HZP_COUNT(columns); i++)
        if (!hzp_among(used, columns[i]) && hzp_form_has(object, columns[i]))
            return hzp_fail_param(reterr, HZP_EINVAL, columns[i], "is not used %s", why);
    return HZP_OK;
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
    char used[200];
    snprintf(used, sizeof(used), "%s %s", fields->prompt ? fields->prompt : "",
             fields->completion ? fields->completion : "");
    HZP_TRY(hzp_form_unused(object, used, "beside prompt and completion: write it into the prompt",
                            reterr));
    HZP_TRY(get_string(object, fields->prompt ? fields->prompt : "prompt", &prompt, reterr));
    HZP_TRY(get_string(object, fields->completion ? fields->completion : "completion", &completion,
                       reterr));
    HZP_TRY(append_json(ret, prompt, 0));
    return append_json(ret, completion, 1);
}

#define ALPACA      "Below is an instruction that describes a task"
#define ALPACA_TASK "Write a response that appropriately completes the request."

/* An instruction, and what it is about if there is something. */
static int append_instruction(struct hzp_form *ret, const json_t *instruction, const json_t *input)
{
    HZP_TRY(append_words(ret, "\n\n### Instruction:\n"));
    HZP_TRY(append_json(ret, instruction, 0));
    if (json_string_length(input)) {
        HZP_TRY(append_words(ret, "\n\n### Input:\n"));
        HZP_TRY(append_json(ret, input, 0));
    }
    return append_words(ret, "\n\n### Response:\n");
}

/* Earlier turns: pairs of an instruction and its answer, which is learned too. */
static int append_history(const json_t *history, struct hzp_form *ret, struct hzp_err_text *reterr)
{
    const json_t *pair;
    size_t i;
    if (!json_is_array(history))
        return hzp_fail_param(reterr, HZP_EINVAL, "history",
                              "must be a list of pairs: an instruction and its output");
    json_array_foreach(history, i, pair)
    {
        const json_t *said = json_array_get(pair, 0), *answer = json_array_get(pair, 1);
        char param[32];
        snprintf(param, sizeof(param), "history[%zu]", i);
        if (json_array_size(pair) != 2 || !json_is_string(said) || !json_is_string(answer))
            return hzp_fail_param(reterr, HZP_EINVAL, param,
                                  "must be a pair of strings: an instruction and its output");
        HZP_TRY(append_instruction(ret, said, NULL));
        HZP_TRY(append_json(ret, answer, 1));
    }
    return HZP_OK;
}

/* {"input", "output"} without an instruction: a prompt and its completion. */
static int read_pair(const json_t *object, struct hzp_form *ret, struct hzp_err_text *reterr)
{
    const json_t *input, *output;
    HZP_TRY(
        hzp_form_unused(object, "", "beside input and output: write it into the input", reterr));
    HZP_TRY(get_string(object, "input", &input, reterr));
    HZP_TRY(get_string(object, "output", &output, reterr));
    HZP_TRY(append_json(ret, input, 0));
    return append_json(ret, output, 1);
}

static int read_alpaca(const json_t *object, struct hzp_form *ret, struct hzp_err_text *reterr)
{
    const json_t *instruction, *output, *input = NULL, *system = NULL,
                                        *history = json_object_get(object, "history");
    HZP_TRY(hzp_form_unused(object, "system history", "beside instruction and output", reterr));
    HZP_TRY(get_string(object, "instruction", &instruction, reterr));
    HZP_TRY(get_string(object, "output", &output, reterr));
    if (hzp_form_has(object, "input"))
        HZP_TRY(get_string(object, "input", &input, reterr));
    if (hzp_form_has(object, "system"))
        HZP_TRY(get_string(object, "system", &system, reterr));
    if (system)
        HZP_TRY(append_json(ret, system, 0));
    else
        HZP_TRY(append_words(ret, json_string_length(input) ? ALPACA
                                      ", paired with an input that provides further "
                                      "context. " ALPACA_TASK
                                                            : ALPACA ". " ALPACA_TASK));
    if (hzp_form_has(object, "history"))
        HZP_TRY(append_history(history, ret, reterr));
    HZP_TRY(append_instruction(ret, instruction, input));
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
            return bad(t, not_supported[i],
                       "tool calls are learned from messages, by a model "
                       "with a chat template");
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
                   "assistant are; calls and their results are, by a model with a chat template",
                   name);
    return HZP_OK;
}

static const char *const unused[] = {"reasoning_content", "reasoning", "thinking", "refusal"};

/* A line `role: content`. */
static int read_message(const struct talk *t, const json_t *message, struct hzp_form *ret)
{
    const char *role;
    float weight;
    HZP_TRY(check_message(t, message));
    for (int i = 0; i < HZP_COUNT(unused); i++)
        if (hzp_form_has(message, unused[i]))
            return bad(t, unused[i], "is not used without a chat template");
    HZP_TRY(get_role(t, message, &role));
    HZP_TRY(
        hzp_message_weight(message, t->list, t->i, !strcmp(role, "assistant"), &weight, t->reterr));
    if (ret->parts)
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
    HZP_TRY(hzp_form_unused(object, "system", "without a chat template", t->reterr));
    if (hzp_form_has(object, "system")) {
        const json_t *system;
        HZP_TRY(get_string(object, "system", &system, t->reterr));
        HZP_TRY(append_words(ret, "system: "));
        HZP_TRY(append_json(ret, system, 0));
    }
    bool any = false;
    for (t->i = 0; t->i < json_array_size(list); t->i++)
        HZP_TRY(read_message(t, json_array_get(list, t->i), ret));
    for (size_t i = 0; i < ret->parts; i++)
        any |= ret->part[i].weight != 0;
    if (!any)
        return hzp_fail_param(t->reterr, HZP_EINVAL, t->list, "has no answer to learn");
    if (ret->part[ret->parts - 1].weight == 0) { /* what follows the last answer teaches nothing */
        ret->parts--;
        ret->text.bytes = ret->part[ret->parts - 1].end;
    }
    return HZP_OK;
}

/* ---- prompt and completion as messages ---- */

bool hzp_form_is_pair(const json_t *object)
{
    return json_is_array(json_object_get(object, "prompt")) ||
           json_is_array(json_object_get(object, "completion"));
}

/* Appends both lists to the messages: what the assistant says in the prompt is not learned. */
static int pair_messages(const json_t *object, json_t *messages, struct hzp_err_text *reterr)
{
    json_t *prompt = json_object_get(object, "prompt"), *one;
    json_t *completion = json_object_get(object, "completion");
    size_t i;
    if (!json_is_array(prompt) || !json_is_array(completion))
        return hzp_fail_param(reterr, HZP_EINVAL, json_is_array(prompt) ? "prompt" : "completion",
                              "must be a string, or both prompt and completion lists of messages");
    json_array_foreach(prompt, i, one)
    {
        const char *role = json_string_value(json_object_get(one, "role"));
        one = json_copy(one);
        if (role && !strcmp(role, "assistant"))
            json_object_set_new(one, "weight", json_integer(0));
        json_array_append_new(messages, one);
    }
    json_array_extend(messages, completion);
    return json_array_size(completion)
               ? HZP_OK
               : hzp_fail_param(reterr, HZP_EINVAL, "completion", "has no answer to learn");
}

/* Without a chat template. */
static int read_messages_pair(const json_t *object, struct hzp_form *ret,
                              struct hzp_err_text *reterr)
{
    struct talk t = {"messages", "role", "content", reterr, 0};
    json_auto_t *copy = json_copy((json_t *)object);
    json_t *messages = json_array();
    json_object_set_new(copy, "messages", messages);
    HZP_TRY(pair_messages(object, messages, reterr));
    return read_talk(&t, copy, ret);
}

/* ---- ShareGPT's as messages ---- */

/* A call, or a list of calls, written as JSON: function_call's value. */
static int read_calls(const struct talk *t, const json_t *value, json_t *message)
{
    json_auto_t *read =
        hzp_json_load(json_string_value(value), json_string_length(value), 0, NULL, NULL);
    json_auto_t *list = json_is_array(read) ? json_incref(read) : json_pack("[O]", read);
    json_t *call, *calls = json_array();
    size_t i;
    bool good = read && json_array_size(list);
    json_array_foreach(list, i, call)
    {
        char id[24];
        snprintf(id, sizeof(id), "call%05zu", (t->i + i) % 100000);
        good = good && json_is_string(json_object_get(call, "name"));
        if (good)
            json_array_append_new(calls, json_pack("{s:s, s:s, s:O}", "id", id, "type", "function",
                                                   "function", call));
    }
    json_object_set_new(message, "tool_calls", calls);
    json_object_set_new(message, "content", json_string(""));
    return good ? HZP_OK : bad(t, t->what, "must be a call: JSON with name and arguments");
}

/* The answer of a tool: to the first call before it that has none. */
static void set_answered(const json_t *messages, json_t *message)
{
    size_t n = json_array_size(messages), back = 0;
    while (back < n && !strcmp("tool", json_string_value(json_object_get(
                                           json_array_get(messages, n - 1 - back), "role"))))
        back++;
    const json_t *calls =
        back < n ? json_object_get(json_array_get(messages, n - 1 - back), "tool_calls") : NULL;
    const json_t *call = json_array_get(calls, back);
    if (!call)
        return;
    json_object_set(message, "tool_call_id", json_object_get(call, "id"));
    json_object_set(message, "name", json_object_get(json_object_get(call, "function"), "name"));
}

static int add_shared(const struct talk *t, const json_t *from, json_t *messages)
{
    static const char *const copied[] = {"weight", "reasoning_content", "reasoning", "thinking"};
    const char *name = json_string_value(json_object_get(from, t->who)), *role = NULL;
    HZP_TRY(check_message(t, from));
    bool calls = name && !strcmp(name, "function_call");
    if (name && hzp_among("observation tool function function_response", name))
        role = "tool";
    if (calls)
        role = "assistant";
    else if (!role)
        HZP_TRY(get_role(t, from, &role));
    json_t *value = json_object_get(from, t->what);
    if (!json_is_string(value))
        return bad(t, t->what, "must be a string");
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", value);
    for (int i = 0; i < HZP_COUNT(copied); i++)
        if (json_object_get(from, copied[i]))
            json_object_set(message, copied[i], json_object_get(from, copied[i]));
    for (int i = 0; hzp_message_marks[i]; i++)
        if (json_object_get(from, hzp_message_marks[i]))
            json_object_set(message, hzp_message_marks[i],
                            json_object_get(from, hzp_message_marks[i]));
    if (!strcmp(role, "tool"))
        set_answered(messages, message);
    int r = calls ? read_calls(t, value, message) : HZP_OK;
    json_array_append_new(messages, message);
    return r;
}

static int share_messages(const json_t *object, json_t *messages, struct hzp_err_text *reterr)
{
    struct talk t = {"conversations", "from", "value", reterr, 0};
    const json_t *list = json_object_get(object, t.list);
    if (!json_is_array(list))
        return hzp_fail_param(reterr, HZP_EINVAL, t.list, "must be an array of messages");
    for (t.i = 0; t.i < json_array_size(list); t.i++)
        HZP_TRY(add_shared(&t, json_array_get(list, t.i), messages));
    return HZP_OK;
}

/* tools, perhaps as a text of JSON, or functions, which are tools without their wrapping. */
static int add_tools(const json_t *object, json_t *to, struct hzp_err_text *reterr)
{
    const char *column = hzp_form_has(object, "tools") ? "tools" : "functions";
    json_t *given = json_object_get(object, column), *read = NULL, *tools = json_array(), *tool;
    size_t i;
    if (hzp_form_has(object, "tools") && hzp_form_has(object, "functions"))
        given = NULL;
    if (json_is_string(given))
        given = read =
            hzp_json_load(json_string_value(given), json_string_length(given), 0, NULL, NULL);
    bool good = json_is_array(given);
    json_array_foreach(given, i, tool)
    {
        bool whole = json_object_get(tool, "function") != NULL;
        good = good && json_is_object(tool);
        json_array_append_new(
            tools, whole ? json_incref(tool)
                         : json_pack("{s:s, s:O}", "type", "function", "function", tool));
    }
    json_object_set_new(to, "tools", tools);
    json_decref(read);
    return good ? HZP_OK
                : hzp_fail_param(reterr, HZP_EINVAL, column,
                                 "must be a list of tools, or its JSON as a string, and not beside "
                                 "another one");
}

int hzp_form_messages(const json_t *object, json_t **ret, struct hzp_err_text *reterr)
{
    json_auto_t *to = json_copy((json_t *)object), *messages = json_array();
    const json_t *system = json_object_get(object, "system");
    bool pair = hzp_form_is_pair(object);
    bool share = !pair && json_object_get(object, "messages") == NULL;
    int r = hzp_form_unused(object, "system tools functions documents chat_template_kwargs",
                            "beside messages: write it as messages", reterr);
    if (r == HZP_OK && pair)
        r = pair_messages(object, messages, reterr);
    else if (r == HZP_OK && share)
        r = share_messages(object, messages, reterr);
    else
        json_array_extend(messages, json_object_get(object, "messages"));
    if (r == HZP_OK && (pair || share || json_is_array(json_object_get(object, "messages"))))
        json_object_set(to, "messages", messages);
    if (r == HZP_OK && hzp_form_has(object, "system")) {
        r = json_is_string(system)
                ? HZP_OK
                : hzp_fail_param(reterr, HZP_EINVAL, "system", "must be a string");
        json_array_insert_new(messages, 0,
                              json_pack("{s:s, s:O}", "role", "system", "content", system));
    }
    for (int i = 0; i < HZP_COUNT(columns); i++)
        if (!hzp_form_has(object, columns[i]))
            json_object_del(to, columns[i]);
    if (r == HZP_OK && (hzp_form_has(object, "tools") || hzp_form_has(object, "functions")))
        r = add_tools(object, to, reterr);
    *ret = r < 0 ? NULL : json_incref(to);
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
    else if (hzp_form_is_pair(object))
        r = read_messages_pair(object, ret, reterr);
    else if (json_object_get(object, "input") && json_object_get(object, "output") &&
             !json_object_get(object, "instruction"))
        r = read_pair(object, ret, reterr);
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
