/* SPDX-License-Identifier: Apache-2.0 */
/* A request's messages: checked, and in the form that the template reads. */
#include "base/words.h"
#include "text/chat/chat_form.h"

static bool is(const json_t *string, const char *word)
{
    const char *text = json_string_value(string);
    return text && !strcmp(text, word);
}

static bool nothing(const json_t *value)
{
    return !value || json_is_null(value);
}

/* ---- content ---- */

const json_t *hzp_chat_part(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (type && !hzp_among("text input_text output_text refusal", type))
        return NULL;
    bool refusal = type && !strcmp(type, "refusal");
    const json_t *text = json_object_get(part, refusal ? "refusal" : "text");
    return json_is_string(text) ? text : NULL;
}

/* The texts of a content's parts, with this between them: a new string. */
static json_t *joined(const json_t *parts, const char *between)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf all = {0};
    const json_t *part;
    size_t i;
    json_array_foreach(parts, i, part)
    {
        const json_t *text = hzp_chat_part(part);
        if (hzp_textbuf_append(&all, between, i ? strlen(between) : 0) < 0 ||
            hzp_textbuf_append(&all, json_string_value(text), json_string_length(text)) < 0)
            break;
    }
    return json_stringn(all.bytes ? all.data : "", all.bytes);
}

json_t *hzp_chat_content(const json_t *message)
{
    json_t *content = json_object_get(message, "content");
    if (json_is_string(content))
        return json_incref(content);
    return json_array_size(content) ? joined(content, "") : NULL;
}

static int bad_part(size_t at, size_t i, const json_t *part, struct hzp_err_text *reterr)
{
    char param[64];
    const char *type = json_string_value(json_object_get(part, "type"));
    snprintf(param, sizeof(param), "messages[%zu].content[%zu]", at, i);
    if (type && (strstr(type, "image") || strstr(type, "video") || strstr(type, "audio") ||
                 strstr(type, "file")))
        return hzp_wrong(reterr, param, ": a part of type %.40s: this model reads text only", type);
    return hzp_wrong(reterr, param, ": a part must be an object with the type text and a text");
}

static enum hzp_chat_role role_of(const json_t *message)
{
    const json_t *role = json_object_get(message, "role");
    return is(role, "system") || is(role, "developer") ? HZP_CHAT_SYSTEM
           : is(role, "assistant")                     ? HZP_CHAT_ASSISTANT
           : is(role, "tool") || is(role, "function")  ? HZP_CHAT_TOOL
                                                       : HZP_CHAT_USER;
}

/* What a message has that says nothing: an empty text, but beside calls what the template wants. */
static void set_silence(const struct hzp_chat_form *form, json_t *message)
{
    enum hzp_chat_silence how =
        json_object_get(message, "tool_calls") ? form->silence : HZP_CHAT_EMPTY;
    if (how == HZP_CHAT_ABSENT)
        json_object_del(message, "content");
    else
        json_object_set_new(message, "content",
                            how == HZP_CHAT_NULL ? json_null() : json_string(""));
}

/* Strings become a part, or parts one string, where the template asks for it. */
static int set_content(const struct hzp_chat_form *form, json_t *message, size_t at,
                       struct hzp_err_text *reterr)
{
    json_t *content = json_object_get(message, "content"), *part;
    bool parts = form->parts[role_of(message)];
    char param[64];
    size_t i;
    if ((nothing(content) || (json_is_string(content) && !json_string_length(content))) &&
        json_is_string(json_object_get(message, "refusal")))
        json_object_set(message, "content", content = json_object_get(message, "refusal"));
    if (nothing(content) || (json_is_array(content) && !json_array_size(content)) ||
        (json_is_string(content) && !json_string_length(content))) {
        set_silence(form, message);
        return HZP_OK;
    }
    if (json_is_string(content)) {
        if (!form->strings && parts)
            json_object_set_new(message, "content",
                                json_pack("[{s:s, s:O}]", "type", "text", "text", content));
        return HZP_OK;
    }
    if (!json_is_array(content)) {
        snprintf(param, sizeof(param), "messages[%zu].content", at);
        return hzp_wrong(reterr, param, "must be a string or a list of text parts");
    }
    json_auto_t *list = json_array();
    json_array_foreach(content, i, part)
    {
        const json_t *text = hzp_chat_part(part);
        if (!text)
            return bad_part(at, i, part, reterr);
        json_array_append_new(list,
                              json_pack("{s:s, s:O}", "type", "text", "text", (json_t *)text));
    }
    if (parts)
        json_object_set(message, "content", list);
    else
        json_object_set_new(message, "content", joined(list, "\n"));
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
        json_auto_t *read = text ? hzp_json_load(text, strlen(text), flags, NULL, NULL) : NULL;
        same = !text || json_equal(read, json);
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
    } else if (json_is_object(arguments) && form->arguments_string) {
        HZP_FREED char *text = hzp_chat_dumps(arguments);
        other = text ? json_string(text) : NULL;
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

/* Members that are null are left out, as transformers leaves them out. */
static void drop_nulls(json_t *object)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, key, value)
    {
        if (json_is_null(value))
            json_object_del(object, key);
    }
}

static int check_calls(const struct hzp_chat_form *form, json_t *message, size_t at,
                       struct hzp_err_text *reterr)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    char param[64];
    size_t i;
    if (!calls || (json_is_array(calls) && !json_array_size(calls))) {
        json_object_del(message, "tool_calls");
        return HZP_OK;
    }
    snprintf(param, sizeof(param), "messages[%zu].tool_calls", at);
    if (!json_is_array(calls))
        return hzp_wrong(reterr, param, "must be a list");
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        snprintf(param, sizeof(param), "messages[%zu].tool_calls[%zu]", at, i);
        if (!json_is_object(function) || !hzp_json_is_text(json_object_get(function, "name")))
            return hzp_wrong(reterr, param, "must have a function with a name");
        HZP_TRY(set_arguments(form, function, param, reterr));
        drop_nulls(call);
        drop_nulls(function);
    }
    return HZP_OK;
}

/* ---- a message ---- */

/* The calls of the last assistant message that had any. */
struct calls {
    json_t *name, *id; /* owned: of a call, by its id; and the reverse */
};

static void remember_calls(struct calls *calls, const json_t *message)
{
    const json_t *list = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (!list)
        return;
    json_object_clear(calls->name);
    json_object_clear(calls->id);
    json_array_foreach(list, i, call)
    {
        json_t *id = json_object_get(call, "id"),
               *name = json_object_get(json_object_get(call, "function"), "name");
        if (json_is_string(id))
            json_object_set(calls->name, json_string_value(id), name);
        if (json_is_string(id))
            json_object_set(calls->id, json_string_value(name), id);
    }
}

/* OpenAI's earlier form of calls: function_call, answered by the role function. */
static int set_function_call(json_t *message, size_t at, struct hzp_err_text *reterr)
{
    json_t *call = json_object_get(message, "function_call");
    char id[24], param[64];
    if (!call)
        return HZP_OK;
    snprintf(param, sizeof(param), "messages[%zu].function_call", at);
    if (!json_is_object(call) || json_object_get(message, "tool_calls"))
        return hzp_wrong(reterr, param, "must be an object, and not beside tool_calls");
    snprintf(id, sizeof(id), "call%05zu", at % 100000); /* as long as Mistral's templates want it */
    json_object_set_new(
        message, "tool_calls",
        json_pack("[{s:s, s:s, s:O}]", "id", id, "type", "function", "function", call));
    json_object_del(message, "function_call");
    return HZP_OK;
}

/* A tool's answer: the role that the template knows, and the call that it answers. */
static void set_result(const struct hzp_chat_form *form, json_t *message, const struct calls *calls)
{
    json_t *id = json_object_get(message, "tool_call_id"), *name = json_object_get(message, "name");
    const char *role = form->tool_role ? "tool" : "function";
    if (!id && json_is_string(name)) {
        id = json_object_get(calls->id, json_string_value(name));
        if (id)
            json_object_set(message, "tool_call_id", id);
    }
    if (!name && json_is_string(id) && (form->tool_name || !form->tool_role)) {
        name = json_object_get(calls->name, json_string_value(id));
        if (name)
            json_object_set(message, "name", name);
    }
    json_object_set_new(message, "role", json_string(role));
}

/* The reasoning goes under the name that the template reads. */
static void set_reasoning(const struct hzp_chat_form *form, json_t *message)
{
    json_t *reasoning = NULL;
    for (int i = 0; hzp_chat_reasoning[i] && !reasoning; i++) {
        json_t *value = json_object_get(message, hzp_chat_reasoning[i]);
        if (json_is_string(value) && json_string_length(value))
            reasoning = json_incref(value);
    }
    for (int i = 0; reasoning && hzp_chat_reasoning[i]; i++)
        if (json_is_string(json_object_get(message, hzp_chat_reasoning[i])))
            json_object_del(message, hzp_chat_reasoning[i]);
    if (reasoning)
        json_object_set_new(message, form->reasoning, reasoning);
}

static int check_role(const struct hzp_chat *chat, json_t *message, size_t at,
                      struct hzp_err_text *reterr)
{
    const json_t *role = json_object_get(message, "role");
    char param[64];
    snprintf(param, sizeof(param), "messages[%zu].role", at);
    if (!hzp_json_is_text(role) || !json_string_length(role))
        return hzp_wrong(reterr, param, "must be a string such as user");
    const char *name = json_string_value(role);
    if (hzp_among("system user assistant tool function", name))
        return HZP_OK;
    if (is(role, "developer")) {
        if (!hzp_chat_form(chat)->developer)
            json_object_set_new(message, "role", json_string("system"));
        return HZP_OK;
    }
    if (hzp_chat_form(chat)->any_role || hzp_chat_mentions(chat, name))
        return HZP_OK;
    return hzp_wrong(reterr, param, ": the model's chat template does not know the role \"%.40s\"",
                     name);
}

static int check_message(const struct hzp_chat *chat, json_t *message, size_t at,
                         struct calls *calls, struct hzp_err_text *reterr)
{
    const struct hzp_chat_form *form = hzp_chat_form(chat);
    char param[64];
    snprintf(param, sizeof(param), "messages[%zu]", at);
    if (!json_is_object(message))
        return hzp_wrong(reterr, param, "must be an object");
    drop_nulls(message);
    HZP_TRY(check_role(chat, message, at, reterr));
    set_reasoning(form, message);
    HZP_TRY(set_function_call(message, at, reterr));
    HZP_TRY(check_calls(form, message, at, reterr));
    HZP_TRY(set_content(form, message, at, reterr));
    remember_calls(calls, message);
    if (role_of(message) == HZP_CHAT_TOOL)
        set_result(form, message, calls);
    return HZP_OK;
}

/* ---- what a template does not take ---- */

/* The messages that the template gets in place of the request's. */
struct rebuilt {
    json_t *list;
    size_t *from;               /* which of the request's each is */
    json_t *first;              /* borrowed: the first system message */
    struct hzp_textbuf systems; /* the texts of all system messages that are one */
    size_t system_from;         /* the first of those that are not kept */
};

static void keep(struct rebuilt *to, json_t *message, size_t at)
{
    to->from[json_array_size(to->list)] = at;
    json_array_append(to->list, message);
}

static int append_system(struct rebuilt *to, const json_t *message)
{
    json_auto_t *content = hzp_chat_content(message);
    HZP_TRY(hzp_textbuf_append(&to->systems, "\n\n", to->systems.bytes ? 2 : 0));
    return hzp_textbuf_append(&to->systems, json_string_value(content),
                              json_string_length(content));
}

/* An answer and its calls, where the template shows only one of them, are two messages. */
static bool divide(const struct hzp_chat_form *form, json_t *message, size_t at, struct rebuilt *to)
{
    const json_t *content = json_object_get(message, "content");
    if (!form->divides || !json_object_get(message, "tool_calls") ||
        (!json_string_length(content) && !json_array_size(content)))
        return false;
    json_auto_t *said = json_copy(message);
    json_object_del(said, "tool_calls");
    json_object_del(message, form->reasoning);
    set_silence(form, message);
    keep(to, said, at);
    keep(to, message, at);
    return true;
}

static int rebuild(const struct hzp_chat_form *form, const json_t *messages, struct rebuilt *to)
{
    json_t *message;
    bool begin = true;
    size_t i;
    json_array_foreach(messages, i, message)
    {
        bool system = role_of(message) == HZP_CHAT_SYSTEM;
        begin &= system;
        if (divide(form, message, i, to))
            continue;
        if (!system || (begin ? form->systems || !to->first : form->systems_later)) {
            to->first = system && !to->first ? message : to->first;
            keep(to, message, i);
            continue;
        }
        if (!to->systems.bytes)
            to->system_from = i;
        if (to->first && !to->systems.bytes)
            HZP_TRY(append_system(to, to->first));
        HZP_TRY(append_system(to, message));
    }
    return HZP_OK;
}

/* Where a template takes only one system message, or none between turns, the others are joined with
 * the first, at the beginning. */
static void join_systems(const struct hzp_chat_form *form, struct rebuilt *to)
{
    if (!to->systems.bytes)
        return;
    json_t *content = json_stringn(to->systems.data, to->systems.bytes);
    if (!form->strings && form->parts[HZP_CHAT_SYSTEM])
        content = json_pack("[{s:s, s:o}]", "type", "text", "text", content);
    if (to->first) {
        json_object_set_new(to->first, "content", content);
        return;
    }
    memmove(to->from + 1, to->from, json_array_size(to->list) * sizeof(*to->from));
    to->from[0] = to->system_from;
    json_array_insert_new(to->list, 0,
                          json_pack("{s:s, s:o}", "role", "system", "content", content));
}

static int make(const struct hzp_chat *chat, json_t *copy, struct rebuilt *to,
                struct hzp_err_text *reterr)
{
    const struct hzp_chat_form *form = hzp_chat_form(chat);
    struct calls calls = {json_object(), json_object()};
    json_t *message;
    size_t i;
    int r = HZP_OK;
    json_array_foreach(copy, i, message)
    {
        r = check_message(chat, message, i, &calls, reterr);
        if (r < 0)
            break;
    }
    json_decref(calls.name);
    json_decref(calls.id);
    HZP_TRY(r);
    if (rebuild(form, copy, to) < 0)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for the messages now");
    join_systems(form, to);
    return HZP_OK;
}

int hzp_chat_messages(const struct hzp_chat *chat, const json_t *messages, json_t **ret,
                      size_t **ret_from, struct hzp_err_text *reterr)
{
    *ret = NULL;
    if (!json_is_array(messages) || !json_array_size(messages))
        return hzp_wrong(reterr, "messages", "must be a list of at least one message");
    json_auto_t *copy = hzp_json_copy(messages);
    struct rebuilt to = {.list = json_array(),
                         .from = malloc((2 * json_array_size(messages) + 1) * sizeof(*to.from))};
    int r = copy && to.list && to.from
                ? make(chat, copy, &to, reterr)
                : hzp_fail(reterr, HZP_ENOMEM, "no memory for the messages now");
    hzp_textbuf_fini(&to.systems);
    if (r == HZP_OK && ret_from) {
        *ret_from = to.from;
        to.from = NULL;
    }
    free(to.from);
    if (r < 0)
        json_decref(to.list);
    else
        *ret = to.list;
    return r;
}
