/* SPDX-License-Identifier: Apache-2.0 */
/* The body of POST /v1/chat/completions. */
#include "api/http/routes/completion.h"
#include "api/http/routes/field_table.h"
#include "api/http/wire/fields.h"
#include "text/chat/chat_form.h"

enum { TOOL_NAME_MAX = 250 /* bytes, less than HZP_CALL_NAME_MAX */ };

static void ignore(struct hzp_completion_params *params, const char *name)
{
    if (!params->ignored)
        params->ignored = json_array();
    json_array_append_new(params->ignored, json_string(name));
}

/* modalities may only ask for text. */
static int check_output(const json_t *body, struct hzp_err_text *reterr)
{
    const json_t *each;
    size_t i;
    json_array_foreach(json_object_get(body, "modalities"), i, each)
    {
        const char *name = json_string_value(each);
        if (!name || strcmp(name, "text"))
            return hzp_wrong(reterr, "modalities", ": this server makes text only");
    }
    return HZP_OK;
}

/* ---- what the template is given ---- */

struct prompt {
    struct hzp_chat_request request;
    json_t *messages, *more; /* owned */
    struct hzp_jinja_output text;
    bool echo;
    bool strict;           /* some tool is: its calls fit its parameters */
    bool must_call;        /* tool_choice: the answer is a call */
    const char *must_name; /* borrowed: of this tool; NULL: of any */
};

/* tool_choice, where it is not a word: {"type": "function", "function": {"name": ...}}. */
static int read_named_tool(const json_t *choice, const json_t *tools, struct prompt *p,
                           struct hzp_err_text *reterr)
{
    const json_t *function = json_object_get(choice, "function"), *tool;
    const char *name = json_string_value(json_object_get(function, "name"));
    size_t i;
    if (!name)
        return hzp_wrong(reterr, "tool_choice",
                         "must be \"auto\", \"none\", \"required\" or {\"type\": \"function\", "
                         "\"function\": {\"name\": ...}}");
    json_array_foreach(tools, i, tool)
    {
        const json_t *own = json_object_get(json_object_get(tool, "function"), "name");
        if (!strcmp(json_string_value(own), name))
            p->must_name = name;
    }
    p->must_call = true;
    return p->must_name ? HZP_OK
                        : hzp_wrong(reterr, "tool_choice", ": no tool is named \"%.64s\"", name);
}

/* One of tools: {"type": "function", "function": {"name": ..., "strict": ...}}. */
static int check_tool(const json_t *tool, size_t i, struct prompt *p, struct hzp_err_text *reterr)
{
    const json_t *function = json_object_get(tool, "function"),
                 *name = json_object_get(function, "name"),
                 *strict = json_object_get(function, "strict");
    char param[64];
    snprintf(param, sizeof(param), "tools[%zu]", i);
    if (!json_is_string(name))
        return hzp_wrong(reterr, param, "must have a function with a name");
    size_t bytes = json_string_length(name);
    if (!bytes || bytes > TOOL_NAME_MAX || strlen(json_string_value(name)) != bytes)
        return hzp_wrong(reterr, param, ": a name has 1 to %d bytes, and none of them is \\u0000",
                         TOOL_NAME_MAX);
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return hzp_wrong(reterr, param, ": strict must be a boolean");
    const json_t *type = json_object_get(json_object_get(function, "parameters"), "type");
    if (json_is_string(type) && strcmp(json_string_value(type), "object"))
        return hzp_wrong(reterr, param, ": parameters must be a schema of type object, not %.64s",
                         json_string_value(type));
    p->strict |= json_is_true(strict);
    return HZP_OK;
}

/* tools, and whether tool_choice leaves them to the model. */
static int read_tools(const json_t *body, struct prompt *p, struct hzp_err_text *reterr)
{
    const json_t *tools = hzp_given(body, "tools"), *choice = hzp_given(body, "tool_choice"), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) HZP_TRY(check_tool(tool, i, p, reterr));
    if (choice) {
        const char *name = json_string_value(choice);
        p->must_call = name && !strcmp(name, "required");
        if (name && !strcmp(name, "none"))
            tools = NULL;
        else if (!p->must_call && (!name || strcmp(name, "auto")))
            HZP_TRY(read_named_tool(choice, tools, p, reterr));
    }
    if (p->must_call && !json_array_size(tools))
        return hzp_wrong(reterr, "tool_choice", "asks for a call, but there are no tools");
    p->request.tools = json_array_size(tools) ? tools : NULL;
    return HZP_OK;
}

/* Mistral's `prefix` and Moonshot's `partial`: the last message is the beginning of the answer. */
static bool is_begun(const json_t *body)
{
    const json_t *messages = json_object_get(body, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    return json_is_true(json_object_get(last, "prefix")) ||
           json_is_true(json_object_get(last, "partial"));
}

static int read_template_fields(const json_t *body, const struct hzp_chat *chat, struct prompt *p,
                                struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    json_t *more = hzp_given(body, "chat_template_kwargs"),
           *effort = hzp_given(body, "reasoning_effort");
    const char *name;
    char param[128];
    json_t *value;
    bool given = json_object_get(body, "add_generation_prompt") != NULL;
    HZP_TRY(read_tools(body, p, reterr));
    p->request.documents = hzp_given(body, "documents");
    p->more = more ? json_copy(more) : json_object();
    bool tools = p->request.tools != NULL;
    json_object_foreach(p->more, name, value)
    {
        snprintf(param, sizeof(param), "chat_template_kwargs.%.72s", name);
        if (!json_is_null(value) && !hzp_chat_uses(chat, tools, name) &&
            json_array_size(params->ignored) < HZP_FIELDS_IGNORED_MAX)
            ignore(params, param);
    }
    if (effort && hzp_chat_uses(chat, tools, "reasoning_effort"))
        json_object_set(p->more, "reasoning_effort", effort);
    else if (effort)
        ignore(params, "reasoning_effort");
    if (tools && !hzp_chat_uses(chat, tools, "tools"))
        return hzp_wrong(reterr, "tools", ": the model's chat template has no place for tools");
    if (p->request.documents && !hzp_chat_uses(chat, tools, "documents"))
        ignore(params, "documents");
    p->request.more = p->more;
    p->request.continues = is_begun(body);
    hzp_given_bool(body, "continue_final_message", &p->request.continues);
    p->request.generation_prompt = !p->request.continues;
    hzp_given_bool(body, "add_generation_prompt", &p->request.generation_prompt);
    if (given && p->request.generation_prompt && p->request.continues)
        return hzp_wrong(reterr, "continue_final_message",
                         "and add_generation_prompt exclude each other");
    return HZP_OK;
}

/* echo: the message begins with the last message's content if that was the assistant's. */
static int read_echo(struct prompt *p, struct hzp_completion_params *params,
                     struct hzp_err_text *reterr)
{
    const json_t *last = json_array_get(p->messages, json_array_size(p->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (params->echo && role && !strcmp(role, "assistant"))
        params->begun = hzp_chat_content(last);
    params->echo = false;
    return HZP_OK;
}

/* ---- numbers ---- */

static int read_numbers(const json_t *body, struct hzp_completion_params *params,
                        int64_t *ret_max_tokens, struct hzp_err_text *reterr)
{
    int64_t max_tokens = -1;
    int32_t tops = -1;
    bool logprobs = false;
    hzp_given_int32(body, "n", &params->n);
    hzp_given_int(body, "max_tokens", &max_tokens);
    hzp_given_int(body, "max_completion_tokens", &max_tokens);
    hzp_given_int32(body, "min_tokens", &params->min_tokens);
    hzp_given_bool(body, "logprobs", &logprobs);
    hzp_given_int32(body, "top_logprobs", &tops);
    if (tops > 0 && !logprobs)
        return hzp_wrong(reterr, "top_logprobs", "requires logprobs to be true");
    params->logprobs = logprobs ? HZP_MAX(tops, 0) : -1;
    *ret_max_tokens = max_tokens;
    return HZP_OK;
}

/* Without max_tokens an answer may fill the context. */
static int set_max_tokens(const struct hzp_engine *engine, int64_t max_tokens,
                          struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    int64_t room = engine->parts.plan.positions - (int64_t)params->prompt[0].n;
    if (max_tokens < 0 && room < 1)
        return hzp_fail_param(reterr, HZP_EINVAL, "messages",
                              "This model's maximum context length is %d tokens. However, the "
                              "messages have %zu",
                              engine->parts.plan.positions, params->prompt[0].n);
    if (max_tokens > room)
        return hzp_fail_param(reterr, HZP_EINVAL, "max_tokens",
                              "This model's maximum context length is %d tokens. However, you "
                              "requested %lld tokens (%zu in the messages, %lld to generate)",
                              engine->parts.plan.positions,
                              (long long)max_tokens + (long long)params->prompt[0].n,
                              params->prompt[0].n, (long long)max_tokens);
    params->max_tokens = (int32_t)(max_tokens < 0 ? room : max_tokens);
    if (params->min_tokens > params->max_tokens)
        return hzp_wrong(reterr, "min_tokens", "(%d) must not exceed max_tokens (%d)",
                         params->min_tokens, params->max_tokens);
    return HZP_OK;
}

/* Reasoning that the template leaves out, as most do with that of earlier turns, is listed. */
static void ignore_reasoning(const json_t *message, size_t i, const struct hzp_textbuf *text,
                             struct hzp_completion_params *params)
{
    char param[64];
    for (int k = 0; hzp_chat_reasoning[k]; k++) {
        json_t *said = json_object_get(message, hzp_chat_reasoning[k]);
        json_auto_t *alone =
            json_pack("{s:s, s:O*}", "role", "assistant", hzp_chat_reasoning[k], said);
        snprintf(param, sizeof(param), "messages[%zu].%s", i, hzp_chat_reasoning[k]);
        if (json_string_length(said) && json_array_size(params->ignored) < HZP_FIELDS_IGNORED_MAX &&
            hzp_chat_check_whole(alone, i, text, NULL) < 0)
            ignore(params, param);
    }
}

/* Names of speakers, and reasoning, that the template does not write are listed as ignored. */
static void ignore_unwritten(const json_t *messages, const struct hzp_textbuf *text,
                             struct hzp_completion_params *params)
{
    const json_t *message;
    size_t i;
    json_array_foreach(messages, i, message)
    {
        const json_t *name = json_object_get(message, "name");
        size_t n = json_string_length(name);
        const char *role = json_string_value(json_object_get(message, "role"));
        bool speaker = strcmp(role, "tool") != 0 && strcmp(role, "function") != 0;
        char param[48];
        snprintf(param, sizeof(param), "messages[%zu].name", i);
        if (n && speaker && json_array_size(params->ignored) < HZP_FIELDS_IGNORED_MAX &&
            !memmem(text->data, text->bytes, json_string_value(name), n))
            ignore(params, param);
        ignore_reasoning(message, i, text, params);
    }
}

/* Whether the template has ".name". */
static bool has_attribute(const char *source, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = source; *at && (at = strstr(at + 1, name)) != NULL;)
        if (at[-1] == '.' && !isalnum((unsigned char)at[n]) && at[n] != '_')
            return true;
    return false;
}

/* Whether the template has read a member: it has its name, or the prompt shows it in JSON. */
static bool is_read(const struct hzp_chat *chat, const struct hzp_textbuf *text, const char *name)
{
    char quoted[80];
    int n = snprintf(quoted, sizeof(quoted), "\"%.72s\"", name);
    return !*name || has_attribute(hzp_chat_source(chat), name) || hzp_chat_mentions(chat, name) ||
           (text->bytes && memmem(text->data, text->bytes, quoted, (size_t)n));
}

/* Members of an object that is given to the template, but for these, are listed as ignored unless
 * it reads them. */
static void ignore_unread(const struct hzp_chat *chat, const json_t *object, const char *path,
                          const char *names, const struct hzp_textbuf *text,
                          struct hzp_completion_params *params)
{
    const char *name;
    char param[128];
    json_t *value;
    bool without;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        bool known = json_is_null(value) || hzp_members_find(names, name, &without);
        snprintf(param, sizeof(param), "%.48s.%.72s", path, name);
        if (!known && !is_read(chat, text, name) &&
            json_array_size(params->ignored) < HZP_FIELDS_IGNORED_MAX)
            ignore(params, param);
    }
}

static void ignore_members(const struct hzp_chat *chat, const struct prompt *p,
                           const json_t *messages, struct hzp_completion_params *params)
{
    static const char said[] = "role content name tool_calls tool_call_id function_call refusal "
                               "reasoning_content reasoning thinking prefix partial";
    const struct hzp_textbuf *text = &p->text.text;
    const json_t *each, *call;
    char path[40], below[80];
    size_t i, k;
    json_array_foreach(messages, i, each)
    {
        snprintf(path, sizeof(path), "messages[%zu]", i);
        ignore_unread(chat, each, path, said, text, params);
        json_array_foreach(json_object_get(each, "tool_calls"), k, call)
        {
            snprintf(below, sizeof(below), "%s.tool_calls[%zu]", path, k);
            ignore_unread(chat, call, below, "id type index function", text, params);
        }
    }
    json_array_foreach(p->request.tools, i, each)
    {
        snprintf(path, sizeof(path), "tools[%zu]", i);
        ignore_unread(chat, each, path, "type function", text, params);
        snprintf(path, sizeof(path), "tools[%zu].function", i);
        ignore_unread(chat, json_object_get(each, "function"), path,
                      "name description parameters strict", text, params);
    }
}

/* The messages and what the template is given beside them, rendered.  Each message is a token at
 * least: more of them than the context has are refused before the template works on them. */
static int read_prompt(const json_t *body, const struct hzp_engine *engine, struct prompt *p,
                       struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    const struct hzp_chat *chat = engine->parts.chat;
    HZP_TRY(read_template_fields(body, chat, p, params, reterr));
    const json_t *messages = json_object_get(body, "messages");
    if (json_array_size(messages) > (size_t)engine->parts.plan.positions)
        return hzp_fail_param(reterr, HZP_EINVAL, "messages",
                              "This model's maximum context length is %d tokens. However, there "
                              "are %zu messages",
                              engine->parts.plan.positions, json_array_size(messages));
    HZP_TRY(hzp_chat_messages(chat, messages, &p->messages, NULL, reterr));
    p->request.messages = p->messages;
    HZP_TRY(hzp_chat_render(chat, &p->request, &p->text, reterr));
    HZP_TRY(hzp_chat_check(chat, &p->request, messages, &p->text.text, reterr));
    ignore_unwritten(messages, &p->text.text, params);
    ignore_members(chat, p, messages, params);
    return HZP_OK;
}

/* A call must be able to have each tool's name. */
static int check_names(const json_t *tools, enum hzp_reply_calls calls, struct hzp_err_text *reterr)
{
    const json_t *tool;
    char param[64];
    size_t i;
    json_array_foreach(tools, i, tool)
    {
        const char *name =
            json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        snprintf(param, sizeof(param), "tools[%zu]", i);
        if (!hzp_call_form_has_name(calls, name))
            return hzp_wrong(reterr, param, ": calls of this model cannot have the name \"%.64s\"",
                             name);
    }
    return HZP_OK;
}

/* How the answer is divided into reasoning, content and calls. */
static int read_rules(const json_t *body, const struct hzp_engine *engine, const struct prompt *p,
                      struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    bool parallel = true, show = true;
    const struct hzp_textbuf *text = &p->text.text;
    hzp_given_bool(body, "parallel_tool_calls", &parallel);
    hzp_given_bool(body, "include_reasoning", &show);
    hzp_reply_rules_set(&params->reply, engine->parts.chat, text->bytes ? text->data : "",
                        text->bytes, p->request.tools);
    params->reply.one_call = !parallel;
    params->reply.hide = !show;
    hzp_reply_rules_find_marks(&params->reply, engine->parts.tok);
    return check_names(p->request.tools, params->reply.calls, reterr);
}

/* What the answer may be: a call, text of a certain structure, or one of both. */
static int read_structure(const json_t *body, const struct hzp_engine *engine,
                          const struct prompt *p, struct hzp_completion_params *params,
                          struct hzp_err_text *reterr)
{
    const struct hzp_reply_rules *rules = &params->reply;
    struct hzp_structure structure = {.calls = rules->calls,
                                      .one_call = rules->one_call || p->must_name,
                                      .tool = p->must_name,
                                      .reasoning = rules->reasoning,
                                      .inside = rules->inside,
                                      .channels = rules->channels};
    if (p->must_call || hzp_structure_calls(rules->calls))
        structure.tools = p->request.tools;
    structure.free = structure.tools && p->strict && !p->must_call;
    params->reply.strict = structure.free;
    return hzp_structure_parse(body, engine, &structure, p->must_call, params, reterr);
}

static void end_prompt(struct prompt *p)
{
    json_decref(p->messages);
    json_decref(p->more);
    hzp_jinja_output_fini(&p->text);
}

static int no_template(struct hzp_err_text *reterr)
{
    return hzp_fail_param(reterr, HZP_EINVAL, "messages",
                          "this model has no chat template: start the server with --chat-template "
                          "FILE, or use /v1/completions");
}

int hzp_chat_prompt(const json_t *body, const struct hzp_engine *engine, struct hzp_textbuf *ret,
                    struct hzp_err_text *reterr)
{
    struct prompt p = {0};
    struct hzp_completion_params unused = {0};
    if (!engine->parts.chat)
        return no_template(reterr);
    int r = read_prompt(body, engine, &p, &unused, reterr);
    if (r == HZP_OK) {
        *ret = p.text.text;
        memset(&p.text.text, 0, sizeof(p.text.text));
    }
    end_prompt(&p);
    hzp_completion_params_fini(&unused);
    return r;
}

static int read_body(const json_t *body, const struct hzp_engine *engine, struct prompt *p,
                     struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    int64_t max_tokens = -1;
    HZP_TRY(hzp_fields_check(&hzp_fields_chat, body, &ret->ignored, reterr));
    HZP_TRY(check_output(body, reterr));
    ret->add_special = false; /* the template writes them */
    HZP_TRY(hzp_completion_parse_common(body, engine, ret, reterr));
    HZP_TRY(read_numbers(body, ret, &max_tokens, reterr));
    HZP_TRY(read_prompt(body, engine, p, ret, reterr));
    HZP_TRY(read_echo(p, ret, reterr));
    HZP_TRY(read_rules(body, engine, p, ret, reterr));
    HZP_TRY(read_structure(body, engine, p, ret, reterr));
    const struct hzp_textbuf *text = &p->text.text;
    ret->max_tokens = 0;
    int r =
        hzp_completion_add_text(ret, engine, text->bytes ? text->data : "", text->bytes, reterr);
    if (r < 0) {
        if (reterr)
            snprintf(reterr->param, sizeof(reterr->param), "messages");
        return r;
    }
    return set_max_tokens(engine, max_tokens, ret, reterr);
}

int hzp_chat_parse(const json_t *body, const struct hzp_engine *engine,
                   struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    struct prompt p = {0};
    hzp_completion_defaults(ret);
    ret->form = &hzp_answer_chat;
    int r = engine->parts.chat ? read_body(body, engine, &p, ret, reterr) : no_template(reterr);
    end_prompt(&p);
    if (r < 0)
        hzp_completion_params_fini(ret);
    return r;
}
