/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/responses: OpenAI's newer shape of a chat, without what the server would have to
 * store. */
#include "api/http/routes/blocks.h"
#include "api/http/routes/field_table.h"
#include "api/http/wire/fields.h"
#include "base/words.h"

/* ---- requests ---- */

/* The content of a message: a string, or parts of text, which become a chat's parts. */
static int read_content(const json_t *content, const char *param, json_t **ret,
                        struct hzp_err_text *reterr)
{
    const json_t *part;
    size_t i;
    if (json_is_string(content)) {
        *ret = json_copy((json_t *)content);
        return HZP_OK;
    }
    if (!json_is_array(content))
        return hzp_wrong(reterr, param, "must be a string or a list of parts");
    json_auto_t *parts = json_array();
    json_array_foreach(content, i, part)
    {
        char path[96];
        const char *type = json_string_value(json_object_get(part, "type"));
        json_t *text = json_object_get(part, type && !strcmp(type, "refusal") ? "refusal" : "text");
        bool known = type && hzp_among("input_text output_text text refusal", type);
        if (!known || !json_is_string(text)) {
            snprintf(path, sizeof(path), "%s[%zu]", param, i);
            return hzp_wrong(reterr, path, "must be a part of text: this server reads text only");
        }
        json_array_append_new(parts, json_pack("{s:s, s:O}", "type", "text", "text", text));
    }
    *ret = json_incref(parts);
    return HZP_OK;
}

/* A call goes into the assistant's message before it, if there is one with nothing behind. */
static int add_call(const json_t *item, const char *param, json_t *messages,
                    struct hzp_err_text *reterr)
{
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
           *arguments = json_object_get(item, "arguments"),
           *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return hzp_wrong(reterr, param, "must have call_id, name and arguments");
    if (!role || strcmp(role, "assistant") != 0)
        last = hzp_blocks_add_message(messages, "assistant", json_string(""));
    if (!json_object_get(last, "tool_calls"))
        json_object_set_new(last, "tool_calls", json_array());
    json_array_append_new(json_object_get(last, "tool_calls"),
                          json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function",
                                    "function", "name", name, "arguments", arguments));
    return HZP_OK;
}

/* The message that so far has nothing but reasoning; NULL: the last one is none. */
static json_t *only_reasoned(const json_t *messages)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content");
    return json_object_get(last, "reasoning_content") && !json_object_get(last, "tool_calls") &&
                   json_is_string(content) && !json_string_length(content)
               ? last
               : NULL;
}

/* Reasoning that no message or call followed belongs to none: the item before i is ignored. */
static void drop_reasoned(json_t *messages, size_t i, json_t **ignored)
{
    char path[48];
    if (!only_reasoned(messages))
        return;
    json_array_remove(messages, json_array_size(messages) - 1);
    snprintf(path, sizeof(path), "input[%zu]", i - 1);
    *ignored = *ignored ? *ignored : json_array();
    json_array_append_new(*ignored, json_string(path));
}

/* Reasoning belongs to the assistant's message or call behind it. */
static int add_reasoning(const json_t *item, const char *param, json_t *messages,
                         struct hzp_err_text *reterr)
{
    const json_t *content = json_object_get(item, "content"), *part;
    json_t *message = only_reasoned(messages);
    const json_t *before = json_object_get(message, "reasoning_content");
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf all = {0};
    size_t i;
    int r = hzp_textbuf_append(&all, json_string_value(before), json_string_length(before));
    if (!json_array_size(content))
        content = json_object_get(item, "summary");
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (r == HZP_OK && json_is_string(text))
            r = hzp_textbuf_append(&all, json_string_value(text), json_string_length(text));
    }
    if (r == HZP_OK && all.bytes && !message)
        message = hzp_blocks_add_message(messages, "assistant", json_string(""));
    if (r == HZP_OK && all.bytes)
        json_object_set_new(message, "reasoning_content", hzp_text_json(all.data, all.bytes));
    return r < 0 ? hzp_fail_param(reterr, r, param, "no memory for %s", param) : HZP_OK;
}

static int add_output(const json_t *item, const char *param, json_t *messages,
                      struct hzp_err_text *reterr)
{
    json_t *id = json_object_get(item, "call_id"), *content = NULL;
    char path[64];
    snprintf(path, sizeof(path), "%s.output", param);
    if (!json_is_string(id))
        return hzp_wrong(reterr, param, "must have a call_id");
    HZP_TRY(read_content(json_object_get(item, "output"), path, &content, reterr));
    json_object_set(hzp_blocks_add_message(messages, "tool", content), "tool_call_id", id);
    return HZP_OK;
}

static int add_item(const json_t *item, size_t i, json_t *messages, json_t **ignored,
                    struct hzp_err_text *reterr)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *role = json_string_value(json_object_get(item, "role"));
    char param[48], path[64];
    json_t *content = NULL;
    snprintf(param, sizeof(param), "input[%zu]", i);
    snprintf(path, sizeof(path), "%s.content", param);
    if (type && !strcmp(type, "function_call"))
        return add_call(item, param, messages, reterr);
    if (type && !strcmp(type, "function_call_output"))
        return add_output(item, param, messages, reterr);
    if (type && !strcmp(type, "reasoning"))
        return add_reasoning(item, param, messages, reterr);
    if (!role || (type && strcmp(type, "message") != 0))
        return hzp_wrong(
            reterr, param,
            "must be a message with a role, a function_call, a function_call_output or "
            "reasoning");
    HZP_TRY(read_content(json_object_get(item, "content"), path, &content, reterr));
    json_t *reasoned = only_reasoned(messages);
    if (reasoned && !strcmp(role, "assistant")) {
        json_object_set_new(reasoned, "content", content);
        return HZP_OK;
    }
    drop_reasoned(messages, i, ignored);
    hzp_blocks_add_message(messages, role, content);
    return HZP_OK;
}

static int read_input(const json_t *body, json_t *chat, json_t *messages, json_t **ignored,
                      struct hzp_err_text *reterr)
{
    const json_t *input = json_object_get(body, "input"), *item;
    json_t *instructions = json_object_get(body, "instructions");
    size_t i;
    if (json_is_string(instructions))
        hzp_blocks_add_message(messages, "system", json_incref(instructions));
    hzp_blocks_place(chat, "instructions");
    if (json_is_string(input)) {
        hzp_blocks_add_message(messages, "user", json_incref((json_t *)input));
        hzp_blocks_place(chat, "input");
        return HZP_OK;
    }
    if (!json_is_array(input) || !json_array_size(input))
        return hzp_wrong(reterr, "input", "must be a string or a list of items");
    json_array_foreach(input, i, item)
    {
        char path[48];
        HZP_TRY(add_item(item, i, messages, ignored, reterr));
        snprintf(path, sizeof(path), "input[%zu]", i);
        hzp_blocks_place(chat, path);
    }
    drop_reasoned(messages, i, ignored);
    return HZP_OK;
}

static int read_tool(const json_t *tool, const char *path, json_t **ret,
                     struct hzp_err_text *reterr)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (!hzp_json_is_text(json_object_get(tool, "type")) || strcmp(type, "function") != 0 ||
        !json_is_string(json_object_get(tool, "name")))
        return hzp_wrong(reterr, path, "must be a function with a name: there are no other tools");
    *ret = json_object();
    hzp_blocks_copy(tool, "name description parameters strict", *ret);
    return HZP_OK;
}

static void read_choice(const json_t *body, json_t *chat)
{
    json_t *choice = json_object_get(body, "tool_choice");
    json_t *name = json_object_get(choice, "name");
    if (json_is_object(choice) && json_is_string(name))
        json_object_set_new(
            chat, "tool_choice",
            json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
    else if (choice && !json_is_null(choice))
        json_object_set(chat, "tool_choice", choice);
}

/* text.format and reasoning.effort are fields of their own in a chat. */
static void read_nested(const json_t *body, json_t *chat)
{
    json_t *format = hzp_given(json_object_get(body, "text"), "format"),
           *effort = hzp_given(json_object_get(body, "reasoning"), "effort");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type && !strcmp(type, "json_schema")) {
        json_t *schema = json_copy(format);
        json_object_del(schema, "type");
        json_object_set_new(chat, "response_format",
                            json_pack("{s:s, s:o}", "type", type, "json_schema", schema));
    } else if (format) {
        json_object_set(chat, "response_format", format);
    }
    if (effort)
        json_object_set(chat, "reasoning_effort", effort);
}

/* include: what else the answer shows.  A name of OpenAI's for what no answer here has is accepted:
 * clients send some of them always. */
static int read_include(const json_t *body, json_t *chat, struct hzp_err_text *reterr)
{
    static const char known[] =
        "message.output_text.logprobs reasoning.encrypted_content file_search_call.results "
        "web_search_call.results web_search_call.action.sources message.input_image.image_url "
        "computer_call_output.output.image_url code_interpreter_call.outputs";
    const json_t *list = json_object_get(body, "include"), *name;
    size_t i;
    json_array_foreach(list, i, name)
    {
        char path[32];
        int k = json_is_string(name)
                    ? hzp_word_at(known, json_string_value(name), json_string_length(name))
                    : -1;
        snprintf(path, sizeof(path), "include[%zu]", i);
        if (k < 0)
            return hzp_wrong(reterr, path, "is not a name that OpenAI has here");
        if (!k)
            json_object_set_new(chat, "logprobs", json_true());
    }
    if (!json_object_get(chat, "logprobs") &&
        json_integer_value(json_object_get(body, "top_logprobs")) > 0)
        return hzp_wrong(reterr, "top_logprobs",
                         "requires include to have message.output_text.logprobs");
    return HZP_OK;
}

/* What the answer repeats of the request. */
static json_t *repeated(const json_t *body)
{
    static const char names[] = "instructions max_output_tokens metadata parallel_tool_calls "
                                "reasoning temperature text tool_choice tools top_logprobs top_p "
                                "user";
    const char *name;
    json_t *given;
    json_t *json =
        json_pack("{s:n, s:n, s:{}, s:b, s:{s:n, s:n}, s:f, s:{s:{s:s}}, s:s, s:[], s:f, s:s,"
                  " s:n, s:b, s:b}",
                  "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", 1,
                  "reasoning", "effort", "summary", "temperature", 1.0, "text", "format", "type",
                  "text", "tool_choice", "auto", "tools", "top_p", 1.0, "truncation", "disabled",
                  "previous_response_id", "store", 0, "background", 0);
    hzp_blocks_copy(body, names, json);
    json_object_foreach((json_t *)(uintptr_t)body, name, given)
    { /* with all digits, more than other numbers of answers */
        HZP_FREED char *text =
            hzp_among(names, name) ? hzp_chat_dumps(json_object_get(json, name)) : NULL;
        if (text)
            json_object_set_new(json, name, hzp_json_spelled(text, strlen(text)));
    }
    return json;
}

int hzp_responses_parse(const json_t *body, const struct hzp_engine *engine,
                        struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    static const char names[] =
        "max_output_tokens=max_tokens parallel_tool_calls seed stream temperature top_k "
        "top_logprobs top_p ignore_eos priority text.format=response_format "
        "reasoning.effort=reasoning_effort";
    json_auto_t *ignored = NULL, *chat = json_object();
    json_t *messages = json_array();
    json_object_set_new(chat, "messages", messages);
    HZP_TRY(hzp_fields_check(&hzp_fields_responses, body, &ignored, reterr));
    HZP_TRY(read_input(body, chat, messages, &ignored, reterr));
    HZP_TRY(hzp_blocks_tools(body, read_tool, chat, reterr));
    read_choice(body, chat);
    read_nested(body, chat);
    HZP_TRY(read_include(body, chat, reterr));
    hzp_blocks_copy(body, names, chat);
    json_auto_t *asked = repeated(body);
    return hzp_blocks_parse(chat, names, engine, &hzp_answer_responses, ignored, asked, ret,
                            reterr);
}

/* ---- answers ---- */

/* The item's id: by its kind, the answer's and its place in it. */
static const char *item_id(const struct hzp_answer *a, char *ret, size_t size)
{
    static const char *const prefix[] = {
        [HZP_BLOCK_REASONING] = "rs", [HZP_BLOCK_TEXT] = "msg", [HZP_BLOCK_CALL] = "fc"};
    snprintf(ret, size, "%s_%s_%d", prefix[a->block.kind], a->x->info.id, a->block.index);
    return ret;
}

/* The log-probabilities of the block's text from this one on. */
static json_t *logprobs_from(const struct hzp_answer *a, size_t from)
{
    json_t *list = json_array();
    for (size_t i = from; i < json_array_size(a->block.logprobs); i++)
        json_array_append(list, json_array_get(a->block.logprobs, i));
    return list;
}

/* The block's content so far. */
static json_t *part_json(const struct hzp_answer *a)
{
    if (a->block.kind == HZP_BLOCK_REASONING)
        return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", hzp_block_text(a));
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", hzp_block_text(a),
                     "annotations", "logprobs", logprobs_from(a, 0));
}

/* done false: the item as it is opened, without its text. */
static json_t *item_json(const struct hzp_answer *a, bool done)
{
    char id[HZP_REQUEST_ID_MAX + 32];
    const char *status = done ? "completed" : "in_progress";
    item_id(a, id, sizeof(id));
    if (a->block.kind == HZP_BLOCK_CALL)
        return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "type", "function_call", "id", id,
                         "call_id", a->block.call_id, "name", a->block.name, "status", status,
                         "arguments", done ? hzp_block_text(a) : json_string(""));
    json_t *content = json_array();
    if (done)
        json_array_append_new(content, part_json(a));
    if (a->block.kind == HZP_BLOCK_REASONING)
        return json_pack("{s:s, s:s, s:[], s:o, s:s}", "type", "reasoning", "id", id, "summary",
                         "content", content, "status", status);
    return json_pack("{s:s, s:s, s:s, s:o, s:s}", "type", "message", "id", id, "role", "assistant",
                     "content", content, "status", status);
}

static json_t *done_json(const struct hzp_answer *a)
{
    return item_json(a, true);
}

/* The answer's object with these items (a new reference); NULL items: it goes on. */
static json_t *response_json(const struct hzp_answer *a, json_t *items)
{
    const struct hzp_choice *choice = &a->c->choice[0];
    const char *changed = hzp_changed_name(choice);
    bool cut = choice->finish == HZP_FINISH_LENGTH || changed;
    struct hzp_usage usage = hzp_completion_usage(a->c);
    json_t *json =
        json_pack("{s:s, s:s, s:I, s:s, s:s, s:n, s:o}", "id", a->id, "object", "response",
                  "created_at", (json_int_t)a->created, "model", a->x->server->model, "status",
                  !items ? "in_progress"
                  : cut  ? "incomplete"
                         : "completed",
                  "error", "output", items ? json_incref(items) : json_array());
    json_object_set_new(json, "incomplete_details",
                        items && cut
                            ? json_pack("{s:s}", "reason", changed ? changed : "max_output_tokens")
                            : json_null());
    json_object_set_new(
        json, "usage",
        items ? json_pack("{s:I, s:{s:I, s:i}, s:I, s:{s:I}, s:I}", "input_tokens",
                          (json_int_t)usage.prompt, "input_tokens_details", "cached_tokens",
                          (json_int_t)usage.cached, "cache_write_tokens", 0, "output_tokens",
                          (json_int_t)usage.generated, "output_tokens_details", "reasoning_tokens",
                          (json_int_t)usage.reasoned, "total_tokens",
                          (json_int_t)(usage.prompt + usage.generated))
              : json_null());
    json_object_update_missing(json, a->c->params.asked);
    if (items)
        json_object_set_new(json, "hzpserve", hzp_choice_versions_json(a->c, choice));
    return json;
}

static json_t *whole(struct hzp_answer *a)
{
    json_auto_t *items = json_array();
    hzp_blocks_whole(a, done_json, items);
    return response_json(a, items);
}

/* ---- events ---- */

/* Sends an event of this name with the next number; takes over json. */
static void tell(struct hzp_answer *a, const char *name, json_t *json)
{
    json_object_set_new(json, "type", json_string(name));
    json_object_set_new(json, "sequence_number", json_integer((json_int_t)a->sequence++));
    hzp_stream_event(a, name, json);
}

/* An event about the item, with one more field; takes over value.  logprobs: from which on the
 * text's own events have them. */
static void tell_item(struct hzp_answer *a, const char *name, const char *key, json_t *value,
                      size_t logprobs)
{
    char id[HZP_REQUEST_ID_MAX + 32];
    json_t *json = json_pack("{s:s, s:i, s:o}", "item_id", item_id(a, id, sizeof(id)),
                             "output_index", a->block.index, key, value);
    if (a->block.kind != HZP_BLOCK_CALL)
        json_object_set_new(json, "content_index", json_integer(0));
    if (a->block.kind == HZP_BLOCK_TEXT && strcmp(key, "part") != 0)
        json_object_set_new(json, "logprobs", logprobs_from(a, logprobs));
    tell(a, name, json);
}

static void open_item(struct hzp_answer *a)
{
    tell(a, "response.output_item.added",
         json_pack("{s:i, s:o}", "output_index", a->block.index, "item", item_json(a, false)));
    if (a->block.kind != HZP_BLOCK_CALL)
        tell_item(a, "response.content_part.added", "part", part_json(a), 0);
}

static void more_item(struct hzp_answer *a, json_t *text, size_t logprobs)
{
    static const char *const names[] = {[HZP_BLOCK_REASONING] = "response.reasoning_text.delta",
                                        [HZP_BLOCK_TEXT] = "response.output_text.delta",
                                        [HZP_BLOCK_CALL] =
                                            "response.function_call_arguments.delta"};
    tell_item(a, names[a->block.kind], "delta", json_incref(text), logprobs);
}

static void close_item(struct hzp_answer *a)
{
    static const char *const names[] = {[HZP_BLOCK_REASONING] = "response.reasoning_text.done",
                                        [HZP_BLOCK_TEXT] = "response.output_text.done",
                                        [HZP_BLOCK_CALL] = "response.function_call_arguments.done"};
    bool call = a->block.kind == HZP_BLOCK_CALL;
    tell_item(a, names[a->block.kind], call ? "arguments" : "text", hzp_block_text(a), 0);
    if (!call)
        tell_item(a, "response.content_part.done", "part", part_json(a), 0);
    json_t *item = done_json(a);
    json_array_append(a->blocks, item);
    tell(a, "response.output_item.done",
         json_pack("{s:i, s:o}", "output_index", a->block.index, "item", item));
}

static void events(struct hzp_answer *a)
{
    static const struct hzp_block_writer writer = {open_item, more_item, close_item};
    if (!a->sequence) {
        a->blocks = json_array();
        tell(a, "response.created", json_pack("{s:o}", "response", response_json(a, NULL)));
        tell(a, "response.in_progress", json_pack("{s:o}", "response", response_json(a, NULL)));
    }
    hzp_blocks_write(a, &writer);
    enum hzp_finish finish = a->c->choice[0].finish;
    if (finish != HZP_FINISH_NONE)
        tell(a,
             finish == HZP_FINISH_LENGTH || finish == HZP_FINISH_CHANGED ? "response.incomplete"
                                                                         : "response.completed",
             json_pack("{s:o}", "response", response_json(a, a->blocks)));
}

const struct hzp_answer_form hzp_answer_responses = {
    .id = "resp_", .object = "response", .answer = whole, .events = events, .reads = true};
