/* SPDX-License-Identifier: Apache-2.0 */
/* The body of POST /v1/chat/completions. */
#include "api/http/completion.h"
#include "api/http/fields.h"

#include <stdlib.h>
#include <string.h>

/* What becomes of a field.  Those that completions know too are read by
 * hzp_completion_parse_common. */
enum field_use { USED, IGNORED, REFUSED };

struct field {
    const char *name;
    enum field_use use;
    const char *why; /* of REFUSED: what to do instead */
};

static const struct field fields[] = {
    {"add_generation_prompt", USED, NULL},
    {"add_special_tokens", USED, NULL},
    {"audio", REFUSED, "this server makes text only"},
    {"best_of", REFUSED, "ask for n and choose"},
    {"cache_salt", IGNORED, NULL},
    {"chat_template", REFUSED, "start the server with --chat-template"},
    {"chat_template_kwargs", USED, NULL},
    {"continue_final_message", USED, NULL},
    {"documents", USED, NULL},
    {"echo", USED, NULL},
    {"frequency_penalty", USED, NULL},
    {"function_call", REFUSED, "use tool_choice"},
    {"functions", REFUSED, "use tools"},
    {"grammar", REFUSED, "this server cannot constrain what is generated"},
    {"guided_choice", REFUSED, "this server cannot constrain what is generated"},
    {"guided_grammar", REFUSED, "this server cannot constrain what is generated"},
    {"guided_json", REFUSED, "this server cannot constrain what is generated"},
    {"guided_regex", REFUSED, "this server cannot constrain what is generated"},
    {"ignore_eos", USED, NULL},
    {"include_reasoning", USED, NULL},
    {"include_stop_str_in_output", USED, NULL},
    {"length_penalty", IGNORED, NULL},
    {"logit_bias", USED, NULL},
    {"logprobs", USED, NULL},
    {"max_completion_tokens", USED, NULL},
    {"max_tokens", USED, NULL},
    {"messages", USED, NULL},
    {"metadata", IGNORED, NULL},
    {"min_p", USED, NULL},
    {"min_tokens", USED, NULL},
    {"modalities", USED, NULL},
    {"model", USED, NULL},
    {"n", USED, NULL},
    {"parallel_tool_calls", USED, NULL},
    {"prediction", IGNORED, NULL},
    {"presence_penalty", USED, NULL},
    {"priority", IGNORED, NULL},
    {"prompt_cache_key", IGNORED, NULL},
    {"prompt_cache_retention", IGNORED, NULL},
    {"reasoning_effort", USED, NULL},
    {"repetition_penalty", USED, NULL},
    {"request_id", IGNORED, NULL},
    {"response_format", USED, NULL},
    {"return_token_ids", USED, NULL},
    {"safety_identifier", IGNORED, NULL},
    {"seed", USED, NULL},
    {"service_tier", IGNORED, NULL},
    {"skip_special_tokens", USED, NULL},
    {"spaces_between_special_tokens", IGNORED, NULL},
    {"stop", USED, NULL},
    {"stop_token_ids", USED, NULL},
    {"store", IGNORED, NULL},
    {"stream", USED, NULL},
    {"stream_options", USED, NULL},
    {"structured_outputs", REFUSED, "this server cannot constrain what is generated"},
    {"temperature", USED, NULL},
    {"tool_choice", USED, NULL},
    {"tools", USED, NULL},
    {"top_k", USED, NULL},
    {"top_logprobs", USED, NULL},
    {"top_p", USED, NULL},
    {"truncate_prompt_tokens", USED, NULL},
    {"use_beam_search", REFUSED, "there is no beam search"},
    {"user", IGNORED, NULL},
    {"verbosity", IGNORED, NULL},
    {"web_search_options", REFUSED, "this server searches nothing"},
};

/* Whether a value asks for nothing: null, false, an empty list or object. */
static bool asks_nothing(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value));
}

static void ignore(struct hzp_completion_params *params, const char *name)
{
    if (!params->ignored)
        params->ignored = json_array();
    json_array_append_new(params->ignored, json_string(name));
}

/* Every field is used, listed as ignored, or refused. */
static int check_fields(const json_t *body, struct hzp_completion_params *params,
                        struct hzp_err_text *reterr)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key, value)
    {
        const struct field *found = NULL;
        for (int i = 0; i < HZP_COUNT(fields); i++)
            if (!strcmp(fields[i].name, key))
                found = &fields[i];
        if (!found)
            return hzp_fail_param(reterr, HZP_EINVAL, key, "there is no field %.64s", key);
        if (found->use == REFUSED && !asks_nothing(value))
            return hzp_fail_param(reterr, HZP_EINVAL, key, "%s is not supported: %s", key,
                                  found->why);
        if (found->use == IGNORED && !json_is_null(value))
            ignore(params, key);
    }
    return HZP_OK;
}

/* response_format may only ask for text, modalities for text. */
static int check_output(const json_t *body, struct hzp_err_text *reterr)
{
    const json_t *format = json_object_get(body, "response_format"), *each;
    const char *type = json_string_value(json_object_get(format, "type"));
    size_t i;
    if (format && !json_is_null(format) && (!type || strcmp(type, "text")))
        return hzp_fail_param(reterr, HZP_EINVAL, "response_format",
                              "response_format: only {\"type\": \"text\"} is supported");
    json_array_foreach(json_object_get(body, "modalities"), i, each)
    {
        const char *name = json_string_value(each);
        if (!name || strcmp(name, "text"))
            return hzp_fail_param(reterr, HZP_EINVAL, "modalities",
                                  "modalities: this server makes text only");
    }
    return HZP_OK;
}

/* ---- what the template is given ---- */

struct prompt {
    struct hzp_chat_request request;
    json_t *messages, *more; /* owned */
    struct hzp_jinja_output text;
    bool echo;
};

/* A field that is absent, or of this type; NULL in *ret: absent. */
static int typed(const json_t *body, const char *name, json_type type, const char *kind,
                 const json_t **ret, struct hzp_err_text *reterr)
{
    const json_t *value = json_object_get(body, name);
    *ret = NULL;
    if (!value || json_is_null(value))
        return HZP_OK;
    if (json_typeof(value) != type)
        return hzp_fail_param(reterr, HZP_EINVAL, name, "%s must be %s, not %s", name, kind,
                              hzp_json_kind(value));
    *ret = value;
    return HZP_OK;
}

/* tools, and whether tool_choice leaves them to the model. */
static int read_tools(const json_t *body, struct prompt *p, struct hzp_err_text *reterr)
{
    const json_t *tools, *choice = json_object_get(body, "tool_choice"), *tool;
    size_t i;
    char param[64];
    HZP_TRY(typed(body, "tools", JSON_ARRAY, "a list", &tools, reterr));
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        snprintf(param, sizeof(param), "tools[%zu]", i);
        if (!json_is_string(json_object_get(function, "name")))
            return hzp_fail_param(reterr, HZP_EINVAL, param, "%s must have a function with a name",
                                  param);
    }
    if (choice && !json_is_null(choice)) {
        const char *name = json_string_value(choice);
        if (name && !strcmp(name, "none"))
            tools = NULL;
        else if (!name || strcmp(name, "auto"))
            return hzp_fail_param(reterr, HZP_EINVAL, "tool_choice",
                                  "tool_choice: only \"auto\" and \"none\" are supported: this "
                                  "server cannot constrain what is generated");
    }
    p->request.tools = json_array_size(tools) ? tools : NULL;
    return HZP_OK;
}

static int read_template_fields(const json_t *body, const struct hzp_chat *chat, struct prompt *p,
                                struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    const json_t *more, *effort = json_object_get(body, "reasoning_effort");
    bool given = json_object_get(body, "add_generation_prompt") != NULL;
    HZP_TRY(read_tools(body, p, reterr));
    HZP_TRY(typed(body, "documents", JSON_ARRAY, "a list", &p->request.documents, reterr));
    HZP_TRY(typed(body, "chat_template_kwargs", JSON_OBJECT, "an object", &more, reterr));
    p->more = more ? json_copy((json_t *)more) : json_object();
    bool tools = p->request.tools != NULL;
    if (effort && !json_is_null(effort)) {
        if (hzp_chat_uses(chat, tools, "reasoning_effort"))
            json_object_set(p->more, "reasoning_effort", (json_t *)effort);
        else
            ignore(params, "reasoning_effort");
    }
    if (tools && !hzp_chat_uses(chat, tools, "tools"))
        return hzp_fail_param(reterr, HZP_EINVAL, "tools",
                              "tools: the model's chat template has no place for tools");
    if (p->request.documents && !hzp_chat_uses(chat, tools, "documents"))
        ignore(params, "documents");
    p->request.more = p->more;
    HZP_TRY(hzp_field_bool(body, "continue_final_message", &p->request.continues, reterr));
    p->request.generation_prompt = !p->request.continues;
    HZP_TRY(hzp_field_bool(body, "add_generation_prompt", &p->request.generation_prompt, reterr));
    if (given && p->request.generation_prompt && p->request.continues)
        return hzp_fail_param(
            reterr, HZP_EINVAL, "continue_final_message",
            "continue_final_message and add_generation_prompt exclude each other");
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
    int64_t n = 1, max_tokens = -1, min_tokens = 0, tops = -1;
    bool logprobs = false;
    HZP_TRY(hzp_field_int(body, "n", 1, 128, &n, reterr));
    HZP_TRY(hzp_field_int(body, "max_tokens", 0, INT32_MAX, &max_tokens, reterr));
    HZP_TRY(hzp_field_int(body, "max_completion_tokens", 0, INT32_MAX, &max_tokens, reterr));
    HZP_TRY(hzp_field_int(body, "min_tokens", 0, INT32_MAX, &min_tokens, reterr));
    HZP_TRY(hzp_field_bool(body, "logprobs", &logprobs, reterr));
    HZP_TRY(hzp_field_int(body, "top_logprobs", 0, HZP_TOPS_MAX, &tops, reterr));
    if (tops > 0 && !logprobs)
        return hzp_fail_param(reterr, HZP_EINVAL, "top_logprobs",
                              "top_logprobs requires logprobs to be true");
    params->n = (int32_t)n;
    params->min_tokens = (int32_t)min_tokens;
    params->logprobs = logprobs ? (int32_t)HZP_MAX(tops, 0) : -1;
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
        return hzp_fail_param(reterr, HZP_EINVAL, "min_tokens",
                              "min_tokens (%d) must not exceed max_tokens (%d)", params->min_tokens,
                              params->max_tokens);
    return HZP_OK;
}

/* The messages and what the template is given beside them, rendered. */
static int read_prompt(const json_t *body, const struct hzp_chat *chat, struct prompt *p,
                       struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    HZP_TRY(read_template_fields(body, chat, p, params, reterr));
    HZP_TRY(hzp_chat_messages(chat, json_object_get(body, "messages"), &p->messages, reterr));
    p->request.messages = p->messages;
    return hzp_chat_render(chat, &p->request, &p->text, reterr);
}

/* How the answer is divided into reasoning, content and calls. */
static int read_rules(const json_t *body, const struct hzp_chat *chat, const struct prompt *p,
                      struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    bool parallel = true, show = true;
    const struct hzp_textbuf *text = &p->text.text;
    HZP_TRY(hzp_field_bool(body, "parallel_tool_calls", &parallel, reterr));
    HZP_TRY(hzp_field_bool(body, "include_reasoning", &show, reterr));
    hzp_reply_rules_set(&params->reply, chat, text->bytes ? text->data : "", text->bytes,
                        p->request.tools);
    params->reply.one_call = !parallel;
    params->reply.hide = !show;
    if (hzp_reply_rules_special(&params->reply))
        params->skip_special = false; /* the marks of calls are special tokens */
    return HZP_OK;
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
    int r = read_prompt(body, engine->parts.chat, &p, &unused, reterr);
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
    const struct hzp_chat *chat = engine->parts.chat;
    int64_t max_tokens = -1;
    HZP_TRY(check_fields(body, ret, reterr));
    HZP_TRY(check_output(body, reterr));
    ret->add_special = false; /* the template writes them */
    HZP_TRY(hzp_completion_parse_common(body, engine, ret, reterr));
    HZP_TRY(read_numbers(body, ret, &max_tokens, reterr));
    HZP_TRY(read_prompt(body, chat, p, ret, reterr));
    HZP_TRY(read_echo(p, ret, reterr));
    HZP_TRY(read_rules(body, chat, p, ret, reterr));
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
