/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/messages: Anthropic's shape of a chat. */
#include "api/http/routes/blocks.h"
#include "api/http/routes/field_table.h"
#include "api/http/wire/fields.h"
#include "base/words.h"

/* ---- requests ---- */

/* HZP_ENOMEM. */
static int join(struct hzp_textbuf *to, const json_t *text, const char *param,
                struct hzp_err_text *reterr)
{
    if (hzp_textbuf_append(to, json_string_value(text), json_string_length(text)) < 0)
        return hzp_fail_param(reterr, HZP_ENOMEM, param, "no memory for %s", param);
    return HZP_OK;
}

/* A string, or blocks of text joined: a new string.  param names it. */
static int read_text(const json_t *value, const char *param, json_t **ret,
                     struct hzp_err_text *reterr)
{
    const json_t *block;
    size_t i;
    if (json_is_string(value)) {
        *ret = json_copy((json_t *)value);
        return HZP_OK;
    }
    if (!json_is_array(value))
        return hzp_wrong(reterr, param, "must be a string or a list of blocks of text");
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
    json_array_foreach(value, i, block)
    {
        const char *type = json_string_value(json_object_get(block, "type"));
        const json_t *more = json_object_get(block, "text");
        char path[96];
        snprintf(path, sizeof(path), "%s[%zu]", param, i);
        if (!type || strcmp(type, "text") != 0 || !json_is_string(more))
            return hzp_wrong(reterr, path, "must be a block of text: this server reads text only");
        HZP_TRY(join(&text, more, param, reterr));
    }
    *ret = hzp_text_json(text.data, text.bytes);
    return HZP_OK;
}

/* tool_result: a message of the role tool. */
static int add_result(const json_t *block, const char *param, json_t *messages,
                      struct hzp_err_text *reterr)
{
    const json_t *content = json_object_get(block, "content");
    json_t *text = NULL, *id = json_object_get(block, "tool_use_id");
    char path[128];
    snprintf(path, sizeof(path), "%s.content", param);
    if (!json_is_string(id))
        return hzp_wrong(reterr, param, "must have a tool_use_id");
    if (content && !json_is_null(content))
        HZP_TRY(read_text(content, path, &text, reterr));
    json_object_set(hzp_blocks_add_message(messages, "tool", text ? text : json_string("")),
                    "tool_call_id", id);
    return HZP_OK;
}

/* tool_use: a call of the assistant's message. */
static int add_use(const json_t *block, const char *param, json_t *calls,
                   struct hzp_err_text *reterr)
{
    json_t *name = json_object_get(block, "name"), *id = json_object_get(block, "id");
    const json_t *input = json_object_get(block, "input");
    if (!json_is_string(name) || !json_is_string(id) || !json_is_object(input))
        return hzp_wrong(reterr, param, "must have an id, a name and an input, which is an object");
    json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function",
                                           "function", "name", name, "arguments", input));
    return HZP_OK;
}

/* What the blocks of a message say. */
struct said {
    struct hzp_textbuf text, thinking;
    bool has_text, has_thinking;
};

/* The blocks of a message: text and thinking are collected, results become messages before it. */
static int read_blocks(const json_t *content, const char *param, json_t *messages, json_t *calls,
                       struct said *said, struct hzp_err_text *reterr)
{
    const json_t *block;
    size_t i;
    json_array_foreach(content, i, block)
    {
        char path[88];
        snprintf(path, sizeof(path), "%s[%zu]", param, i);
        const char *type = json_string_value(json_object_get(block, "type"));
        const json_t *text = json_object_get(block, "text");
        const json_t *thinking = json_object_get(block, "thinking");
        if (type && !strcmp(type, "tool_result"))
            HZP_TRY(add_result(block, path, messages, reterr));
        else if (type && !strcmp(type, "tool_use"))
            HZP_TRY(add_use(block, path, calls, reterr));
        else if (type && !strcmp(type, "text") && json_is_string(text)) {
            said->has_text = true;
            HZP_TRY(join(&said->text, text, path, reterr));
        } else if (type && !strcmp(type, "thinking") && json_is_string(thinking)) {
            said->has_thinking = true;
            HZP_TRY(join(&said->thinking, thinking, path, reterr));
        } else if (!type || strcmp(type, "redacted_thinking") != 0)
            return hzp_wrong(reterr, path,
                             ": a block of type %.32s is not supported: this server reads text, "
                             "tool_use, tool_result and thinking",
                             type ? type : "null");
    }
    return HZP_OK;
}

static int add_message(const json_t *message, size_t i, json_t *messages,
                       struct hzp_err_text *reterr)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content");
    json_auto_t *text = NULL, *thinking = NULL, *calls = json_array();
    struct said said = {0};
    char param[48], path[64];
    int r = HZP_OK;
    snprintf(param, sizeof(param), "messages[%zu]", i);
    snprintf(path, sizeof(path), "%s.content", param);
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
        r = hzp_wrong(reterr, param, "must have the role user or assistant");
    else if (json_is_string(content))
        text = json_copy((json_t *)content);
    else if (json_is_array(content))
        r = read_blocks(content, path, messages, calls, &said, reterr);
    else
        r = hzp_wrong(reterr, path, "must be a string or a list of blocks");
    if (said.has_text)
        text = hzp_text_json(said.text.data, said.text.bytes);
    if (said.has_thinking)
        thinking = hzp_text_json(said.thinking.data, said.thinking.bytes);
    hzp_textbuf_fini(&said.text);
    hzp_textbuf_fini(&said.thinking);
    bool results = json_is_array(content) && !text && !json_array_size(calls) && !thinking;
    if (r == HZP_OK && !(results && json_array_size(content))) {
        json_t *made = hzp_blocks_add_message(messages, role, text ? text : json_string(""));
        text = NULL;
        if (json_array_size(calls))
            json_object_set(made, "tool_calls", calls);
        if (thinking)
            json_object_set(made, "reasoning_content", thinking);
    }
    return r;
}

static int read_messages(const json_t *body, json_t *chat, json_t *messages,
                         struct hzp_err_text *reterr)
{
    const json_t *system = json_object_get(body, "system"),
                 *list = json_object_get(body, "messages");
    const json_t *message;
    size_t i;
    if (system && !json_is_null(system)) {
        json_t *text = NULL;
        HZP_TRY(read_text(system, "system", &text, reterr));
        hzp_blocks_add_message(messages, "system", text);
        hzp_blocks_place(chat, "system");
    }
    if (!json_is_array(list) || !json_array_size(list))
        return hzp_wrong(reterr, "messages", "must be a list of messages");
    json_array_foreach(list, i, message)
    {
        char path[48];
        HZP_TRY(add_message(message, i, messages, reterr));
        snprintf(path, sizeof(path), "messages[%zu]", i);
        hzp_blocks_place(chat, path);
    }
    return HZP_OK;
}

static int read_tool(const json_t *tool, const char *path, json_t **ret,
                     struct hzp_err_text *reterr)
{
    json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "input_schema");
    if (!json_is_string(name) || !json_is_object(schema))
        return hzp_wrong(reterr, path, "must have a name and an input_schema, which is an object");
    *ret = json_pack("{s:O, s:O}", "name", name, "parameters", schema);
    if (json_is_string(json_object_get(tool, "description")))
        json_object_set(*ret, "description", json_object_get(tool, "description"));
    if (json_object_get(tool, "strict"))
        json_object_set(*ret, "strict", json_object_get(tool, "strict"));
    return HZP_OK;
}

static int read_choice(const json_t *body, json_t *chat, struct hzp_err_text *reterr)
{
    const json_t *choice = json_object_get(body, "tool_choice");
    if (!choice || json_is_null(choice))
        return HZP_OK;
    const char *type = json_string_value(json_object_get(choice, "type"));
    const char *name = json_string_value(json_object_get(choice, "name"));
    if (type && !strcmp(type, "tool") && name)
        json_object_set_new(
            chat, "tool_choice",
            json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name));
    else if (type && hzp_among("auto any none", type))
        json_object_set_new(chat, "tool_choice",
                            json_string(strcmp(type, "any") ? type : "required"));
    else
        return hzp_wrong(reterr, "tool_choice",
                         "must have the type auto, any, none, or tool with a name");
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")))
        json_object_set_new(chat, "parallel_tool_calls", json_false());
    return HZP_OK;
}

/* thinking: whether a template that can be told so lets the model reason. */
static int read_thinking(const json_t *body, json_t *chat, struct hzp_err_text *reterr)
{
    const json_t *thinking = json_object_get(body, "thinking");
    const char *type = json_string_value(json_object_get(thinking, "type"));
    if (!thinking || json_is_null(thinking))
        return HZP_OK;
    if (!type || !hzp_among("enabled disabled adaptive", type))
        return hzp_wrong(reterr, "thinking", "must have the type enabled, disabled or adaptive");
    json_object_set_new(chat, "chat_template_kwargs",
                        json_pack("{s:b}", "enable_thinking", strcmp(type, "disabled") != 0));
    return HZP_OK;
}

/* output_config.format and .effort are fields of their own in a chat. */
static int read_output(const json_t *body, json_t *chat, struct hzp_err_text *reterr)
{
    json_t *config = json_object_get(body, "output_config"), *format = hzp_given(config, "format"),
           *effort = hzp_given(config, "effort"), *type = json_object_get(format, "type"),
           *schema = json_object_get(format, "schema");
    if (effort)
        json_object_set(chat, "reasoning_effort", effort);
    if (!format)
        return HZP_OK;
    if (!hzp_json_is_text(type) || strcmp(json_string_value(type), "json_schema") != 0 || !schema)
        return hzp_wrong(reterr, "output_config.format",
                         "must have the type json_schema and a schema");
    json_object_set_new(chat, "response_format",
                        json_pack("{s:O, s:{s:s, s:O}}", "type", type, "json_schema", "name",
                                  "answer", "schema", schema));
    return HZP_OK;
}

/* An assistant's text at the end is the beginning of the answer. */
static void read_prefill(const json_t *messages, json_t *chat)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role && !strcmp(role, "assistant") && !json_object_get(last, "tool_calls"))
        json_object_set_new(chat, "continue_final_message", json_true());
}

/* What the template is given, as a chat has it: messages, tools, thinking. */
static int read_chat(const json_t *body, json_t *chat, struct hzp_err_text *reterr)
{
    json_t *messages = json_array();
    json_object_set_new(chat, "messages", messages);
    HZP_TRY(read_messages(body, chat, messages, reterr));
    read_prefill(messages, chat);
    HZP_TRY(hzp_blocks_tools(body, read_tool, chat, reterr));
    HZP_TRY(read_choice(body, chat, reterr));
    HZP_TRY(read_output(body, chat, reterr));
    return read_thinking(body, chat, reterr);
}

int hzp_messages_count(const json_t *body, const struct hzp_engine *engine, json_t **ret,
                       struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
    HZP_ENDED(hzp_tokens_fini) struct hzp_tokens tokens = {0};
    json_auto_t *chat = json_object();
    HZP_TRY(read_chat(body, chat, reterr));
    json_auto_t *places = hzp_blocks_places(chat);
    int r = hzp_chat_prompt(chat, engine, &text, reterr);
    if (r < 0)
        hzp_blocks_rename(places, reterr);
    HZP_TRY(r);
    HZP_TRY(hzp_tokenizer_encode(engine->parts.tok, text.bytes ? text.data : "", text.bytes,
                                 HZP_TOKENIZER_PARSE_SPECIAL, INT32_MAX, &tokens, reterr));
    *ret = json_pack("{s:I}", "input_tokens", (json_int_t)tokens.n);
    return HZP_OK;
}

int hzp_messages_parse(const json_t *body, const struct hzp_engine *engine,
                       struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    static const char names[] =
        "max_tokens stop_sequences=stop thinking.type=chat_template_kwargs.enable_thinking stream "
        "temperature top_k top_p output_config.format=response_format "
        "output_config.effort=reasoning_effort";
    json_auto_t *ignored = NULL, *chat = json_object();
    HZP_TRY(hzp_fields_check(&hzp_fields_messages, body, &ignored, reterr));
    if (!json_is_number(json_object_get(body, "max_tokens")))
        return hzp_wrong(reterr, "max_tokens", "is missing");
    HZP_TRY(read_chat(body, chat, reterr));
    hzp_blocks_copy(body, names, chat);
    return hzp_blocks_parse(chat, names, engine, &hzp_answer_messages, ignored, NULL, ret, reterr);
}

/* ---- answers ---- */

/* The arguments as they were written.  What is no object, since the answer ended within it, must
 * not look like a call without arguments: it gets the form that Anthropic's documents give it. */
static json_t *input_json(const struct hzp_textbuf *text)
{
    const char *data = text->bytes ? text->data : "";
    json_auto_t *object = hzp_json_load(data, text->bytes, 0, NULL, NULL);
    bool whole = json_is_object(object);
    return whole ? hzp_json_spelled(data, text->bytes)
                 : json_pack("{s:o}", "INVALID_JSON", hzp_text_json(data, text->bytes));
}

static json_t *block_json(const struct hzp_answer *a)
{
    if (a->block.kind == HZP_BLOCK_REASONING)
        return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking", hzp_block_text(a),
                         "signature", "");
    if (a->block.kind == HZP_BLOCK_TEXT)
        return json_pack("{s:s, s:o}", "type", "text", "text", hzp_block_text(a));
    return json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", a->block.call_id, "name",
                     a->block.name, "input", input_json(&a->block.text));
}

static json_t *stop_json(const struct hzp_answer *a)
{
    const struct hzp_choice *choice = &a->c->choice[0];
    const char *changed = hzp_changed_name(choice);
    const char *why = changed                               ? changed
                      : choice->finish == HZP_FINISH_LENGTH ? "max_tokens"
                      : choice->stop_string >= 0            ? "stop_sequence"
                      : hzp_reply_called(choice->reply)     ? "tool_use"
                                                            : "end_turn";
    return json_pack("{s:s, s:o}", "stop_reason", why, "stop_sequence",
                     choice->stop_string >= 0 ? hzp_stop_reason_json(a->c, choice) : json_null());
}

/* As Anthropic's: input_tokens are those that the cache did not have. */
static json_t *usage_json(const struct hzp_answer *a)
{
    struct hzp_usage usage = hzp_completion_usage(a->c);
    return json_pack("{s:I, s:I, s:i, s:I}", "input_tokens",
                     (json_int_t)(usage.prompt - usage.cached), "cache_read_input_tokens",
                     (json_int_t)usage.cached, "cache_creation_input_tokens", 0, "output_tokens",
                     (json_int_t)usage.generated);
}

static json_t *message_json(const struct hzp_answer *a)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:[], s:n, s:n, s:o}", "id", a->id, "type", "message",
                     "role", "assistant", "model", a->x->server->model, "content", "stop_reason",
                     "stop_sequence", "usage", usage_json(a));
}

static json_t *whole(struct hzp_answer *a)
{
    json_t *json = message_json(a), *stop;
    hzp_blocks_whole(a, block_json, json_object_get(json, "content"));
    stop = stop_json(a);
    json_object_update(json, stop);
    json_decref(stop);
    json_object_set_new(json, "hzpserve", hzp_choice_versions_json(a->c, &a->c->choice[0]));
    return json;
}

static void open_block(struct hzp_answer *a)
{
    hzp_stream_event(a, "content_block_start",
                     json_pack("{s:s, s:i, s:o}", "type", "content_block_start", "index",
                               a->block.index, "content_block", block_json(a)));
}

static void more_block(struct hzp_answer *a, json_t *text, size_t logprobs)
{
    static const char *const names[][2] = {[HZP_BLOCK_REASONING] = {"thinking_delta", "thinking"},
                                           [HZP_BLOCK_TEXT] = {"text_delta", "text"},
                                           [HZP_BLOCK_CALL] = {"input_json_delta", "partial_json"}};
    const char *const *name = names[a->block.kind];
    hzp_stream_event(a, "content_block_delta",
                     json_pack("{s:s, s:i, s:{s:s, s:O}}", "type", "content_block_delta", "index",
                               a->block.index, "delta", "type", name[0], name[1], text));
}

static void close_block(struct hzp_answer *a)
{
    hzp_stream_event(
        a, "content_block_stop",
        json_pack("{s:s, s:i}", "type", "content_block_stop", "index", a->block.index));
}

static void events(struct hzp_answer *a)
{
    static const struct hzp_block_writer writer = {open_block, more_block, close_block};
    if (!a->sequence++)
        hzp_stream_event(
            a, "message_start",
            json_pack("{s:s, s:o}", "type", "message_start", "message", message_json(a)));
    hzp_blocks_write(a, &writer);
    const struct hzp_choice *choice = &a->c->choice[0];
    if (choice->finish == HZP_FINISH_NONE)
        return;
    hzp_stream_event(a, "message_delta",
                     json_pack("{s:s, s:o, s:o, s:o}", "type", "message_delta", "delta",
                               stop_json(a), "usage", usage_json(a), "hzpserve",
                               hzp_choice_versions_json(a->c, choice)));
    hzp_stream_event(a, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

const struct hzp_answer_form hzp_answer_messages = {
    .id = "msg_", .object = "message", .answer = whole, .events = events, .reads = true};
