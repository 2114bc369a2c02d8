/* SPDX-License-Identifier: Apache-2.0 */
/* A request's messages: checked, and in the form that the template reads. */
#include "base/json.h"
#include "text/chat/chat_form.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- content ---- */

/* The text of a part, NULL: it is not text. */
static const json_t *part_text(const json_t *part)
{
    static const char *const types[] = {"text", "input_text", "output_text"};
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    if (type && !strcmp(type, "refusal"))
        text = json_object_get(part, "refusal");
    else if (type) {
        bool known = false;
        for (int i = 0; i < HZP_COUNT(types); i++)
            known |= !strcmp(type, types[i]);
        if (!known)
            return NULL;
    }
    return json_is_string(text) ? text : NULL;
}

char *hzp_chat_content(const json_t *message)
{
    const json_t *content = json_object_get(message, "content"), *part;
    size_t i;
    if (json_is_string(content))
        return strdup(json_string_value(content));
    if (!json_is_array(content) || !json_array_size(content))
        return NULL;
    struct hzp_textbuf buf = {0};
    json_array_foreach(content, i, part)
    {
        const json_t *text = part_text(part);
        if (text && hzp_textbuf_append(&buf, json_string_value(text), json_string_length(text)) < 0)
            break;
    }
    char *copy = hzp_textbuf_append(&buf, "", 1) < 0 ? NULL : strdup(buf.data);
    hzp_textbuf_fini(&buf);
    return copy;
}

static int bad_part(size_t at, size_t i, const json_t *part, struct hzp_err_text *reterr)
{
    char param[64];
    const char *type = json_string_value(json_object_get(part, "type"));
    snprintf(param, sizeof(param), "messages[%zu].content[%zu]", at, i);
    if (type && (strstr(type, "image") || strstr(type, "video") || strstr(type, "audio") ||
                 strstr(type, "file")))
        return hzp_fail_param(reterr, HZP_EINVAL, param,
                              "%s: a part of type %.40s: this model reads text only", param, type);
    return hzp_fail_param(reterr, HZP_EINVAL, param,
                          "%s: a part must be an object with the type text and a text", param);
}

/* Strings become a part, or parts one string, where the template asks for it. */
static int set_content(const struct hzp_chat_form *form, json_t *message, size_t at,
                       struct hzp_err_text *reterr)
{
    json_t *content = json_object_get(message, "content"), *part, *list;
    char param[64];
    size_t i;
    if (!content || json_is_null(content))
        return HZP_OK;
    if (json_is_string(content)) {
        if (form->strings || !form->parts)
            return HZP_OK;
        list = json_pack("[{s:s, s:O}]", "type", "text", "text", content);
        return json_object_set_new(message, "content", list) < 0 ? HZP_ENOMEM : HZP_OK;
    }
    if (!json_is_array(content)) {
        snprintf(param, sizeof(param), "messages[%zu].content", at);
        return hzp_fail_param(reterr, HZP_EINVAL, param,
                              "%s must be a string or a list of text parts", param);
    }
    list = json_array();
    struct hzp_textbuf joined = {0};
    json_array_foreach(content, i, part)
    {
        const json_t *text = part_text(part);
        if (!text) {
            json_decref(list);
            hzp_textbuf_fini(&joined);
            return bad_part(at, i, part, reterr);
        }
        json_array_append_new(list,
                              json_pack("{s:s, s:O}", "type", "text", "text", (json_t *)text));
        if (hzp_textbuf_append(&joined, "\n", i > 0) < 0 ||
            hzp_textbuf_append(&joined, json_string_value(text), json_string_length(text)) < 0)
            break;
    }
    if (form->parts)
        json_object_set(message, "content", list);
    else
        json_object_set_new(message, "content",
                            json_stringn(joined.bytes ? joined.data : "", joined.bytes));
    json_decref(list);
    hzp_textbuf_fini(&joined);
    return HZP_OK;
}

/* ---- calls ---- */

char *hzp_chat_dumps(const json_t *json)
{
    const int flags = HZP_JSON_ANY | HZP_JSON_PYTHON;
    char *text = NULL;
    bool same = false;
    for (size_t digits = 15; !same && digits <= 17; digits++) { /* as few as all numbers need */
        free(text);
        text = hzp_json_dumps(json, JSON_REAL_PRECISION(digits));
        json_t *read = text ? hzp_json_load(text, strlen(text), flags, NULL, NULL) : NULL;
        same = !text || json_equal(read, json);
        json_decref(read);
    }
    return text;
}

static int set_arguments(const struct hzp_chat_form *form, json_t *function, const char *param,
                         struct hzp_err_text *reterr)
{
    json_t *arguments = json_object_get(function, "arguments"), *other = NULL;
    if (!arguments || json_is_null(arguments))
        other = form->arguments_string ? json_string("{}") : json_object();
    else if (json_is_string(arguments) && !form->arguments_string) {
        other = json_string_length(arguments)
                    ? hzp_json_load(json_string_value(arguments), json_string_length(arguments), 0,
                                    NULL, NULL)
                    : json_object();
        if (!json_is_object(other)) {
            json_decref(other);
            return hzp_fail_param(reterr, HZP_EINVAL, param,
                                  "%s.function.arguments is not a JSON object", param);
        }
    } else if (hzp_json_spelling(arguments)) {
        return hzp_fail_param(reterr, HZP_EINVAL, param,
                              "%s.function.arguments must be a string or an object", param);
    } else if (json_is_object(arguments) && form->arguments_string) {
        char *text = hzp_chat_dumps(arguments);
        other = text ? json_string(text) : NULL;
        free(text);
        if (!other)
            return hzp_fail(reterr, HZP_ENOMEM, "no memory for the messages now");
    } else if (!json_is_string(arguments) && !json_is_object(arguments)) {
        return hzp_fail_param(reterr, HZP_EINVAL, param,
                              "%s.function.arguments must be a string or an object", param);
    }
    if (other)
        json_object_set_new(function, "arguments", other);
    return HZP_OK;
}

static int check_calls(const struct hzp_chat_form *form, json_t *message, size_t at,
                       struct hzp_err_text *reterr)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    char param[64];
    size_t i;
    if (!calls || json_is_null(calls) || (json_is_array(calls) && !json_array_size(calls))) {
        json_object_del(message, "tool_calls");
        return HZP_OK;
    }
    snprintf(param, sizeof(param), "messages[%zu].tool_calls", at);
    if (!json_is_array(calls))
        return hzp_fail_param(reterr, HZP_EINVAL, param, "%s must be a list", param);
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        snprintf(param, sizeof(param), "messages[%zu].tool_calls[%zu]", at, i);
        if (!json_is_object(function) || !hzp_json_is_text(json_object_get(function, "name")))
            return hzp_fail_param(reterr, HZP_EINVAL, param, "%s must have a function with a name",
                                  param);
        HZP_TRY(set_arguments(form, function, param, reterr));
    }
    return HZP_OK;
}

static int check_message(const struct hzp_chat_form *form, json_t *message, size_t at,
                         struct hzp_err_text *reterr)
{
    char param[64];
    snprintf(param, sizeof(param), "messages[%zu]", at);
    if (!json_is_object(message))
        return hzp_fail_param(reterr, HZP_EINVAL, param, "%s must be an object", param);
    const json_t *role = json_object_get(message, "role");
    if (!hzp_json_is_text(role) || !json_string_length(role)) {
        snprintf(param, sizeof(param), "messages[%zu].role", at);
        return hzp_fail_param(reterr, HZP_EINVAL, param, "%s must be a string such as user", param);
    }
    json_t *reasoning = json_object_get(message, "reasoning");
    if (json_is_string(reasoning) && !json_object_get(message, "reasoning_content"))
        json_object_set(message, "reasoning_content", reasoning);
    HZP_TRY(set_content(form, message, at, reterr));
    return check_calls(form, message, at, reterr);
}

int hzp_chat_messages(const struct hzp_chat *chat, const json_t *messages, json_t **ret,
                      struct hzp_err_text *reterr)
{
    json_t *copy, *message;
    size_t i;
    *ret = NULL;
    if (!json_is_array(messages) || !json_array_size(messages))
        return hzp_fail_param(reterr, HZP_EINVAL, "messages",
                              "messages must be a list of at least one message");
    copy = hzp_json_copy(messages);
    if (!copy)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for the messages now");
    json_array_foreach(copy, i, message)
    {
        int r = check_message(hzp_chat_form(chat), message, i, reterr);
        if (r < 0) {
            json_decref(copy);
            return r;
        }
    }
    *ret = copy;
    return HZP_OK;
}

/* ---- the form that a template reads ---- */

/* Renders messages and takes them over.  True: the text has both words (second NULL: one), and no
 * printed list. */
static bool shows(const struct hzp_chat *chat, json_t *messages, const json_t *tools,
                  const char *word, const char *second)
{
    struct hzp_jinja_output out = {0};
    const struct hzp_chat_request request = {
        .messages = messages, .tools = tools, .generation_prompt = false, .now = 1};
    struct hzp_err_text err;
    int r = hzp_chat_render(chat, &request, &out, &err);
    const char *text = out.text.data;
    size_t n = out.text.bytes;
    bool has = r == HZP_OK && text && n && memmem(text, n, word, strlen(word)) &&
               (!second || memmem(text, n, second, strlen(second))) &&
               !memmem(text, n, "{'type'", 7) && !memmem(text, n, "{\"type\": \"text\"", 15);
    hzp_jinja_output_fini(&out);
    json_decref(messages);
    return has;
}

static json_t *with_call(json_t *arguments)
{
    return json_pack("[{s:s, s:s}, {s:s, s:s, s:[{s:s, s:s, s:{s:s, s:o}}]}, {s:s, s:s, s:s, s:s}]",
                     "role", "user", "content", "hello", "role", "assistant", "content", "",
                     "tool_calls", "id", "abcdefghi", "type", "function", "function", "name",
                     "probed_name", "arguments", arguments, "role", "tool", "tool_call_id",
                     "abcdefghi", "name", "probed_name", "content", "1");
}

void hzp_chat_probe(const struct hzp_chat *chat, struct hzp_chat_form *ret)
{
    json_t *tools = json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type",
                              "function", "function", "name", "probed_name", "description", "d",
                              "parameters", "type", "object", "properties", "probed_key", "type",
                              "string", "description", "d", "required", "probed_key");
    memset(ret, 0, sizeof(*ret));
    ret->strings = shows(chat, json_pack("[{s:s, s:s}]", "role", "user", "content", "probed_text"),
                         NULL, "probed_text", NULL);
    ret->parts = shows(chat,
                       json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "user", "content", "type",
                                 "text", "text", "probed_text"),
                       NULL, "probed_text", NULL);
    bool objects = shows(chat, with_call(json_pack("{s:s}", "probed_key", "probed_value")), tools,
                         "probed_name", "probed_value");
    bool strings =
        !objects && shows(chat, with_call(json_string("{\"probed_key\": \"probed_value\"}")), tools,
                          "probed_name", "probed_value");
    ret->arguments_string = strings;
    ret->tools = objects || strings;
    json_decref(tools);
}
