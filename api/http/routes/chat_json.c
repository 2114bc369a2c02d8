/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of POST /v1/chat/completions. */
#include "api/http/routes/completion.h"

/* ---- log-probabilities, in the shape of OpenAI's chat ---- */

static json_t *token_json(const struct hzp_completion *c, int32_t id, float logprob)
{
    size_t bytes;
    const char *text = hzp_token_bytes(c, id, &bytes);
    json_t *codes = json_array();
    for (size_t i = 0; i < bytes; i++)
        json_array_append_new(codes, json_integer((unsigned char)text[i]));
    return json_pack("{s:o, s:o, s:o}", "token", hzp_text_json(text, bytes), "logprob",
                     hzp_logprob_json(logprob), "bytes", codes);
}

json_t *hzp_chat_logprob_json(const struct hzp_completion *c, const struct hzp_choice *choice,
                              int32_t n)
{
    const struct hzp_request *rq = choice->rq;
    json_t *token = token_json(c, rq->out[n].token, rq->out[n].logprob), *tops = json_array();
    size_t at = (size_t)n * (size_t)rq->tops;
    for (int32_t i = 0; i < c->params.logprobs; i++)
        json_array_append_new(
            tops, token_json(c, rq->top_token[at + (size_t)i], rq->top_logprob[at + (size_t)i]));
    json_object_set_new(token, "top_logprobs", tops);
    return token;
}

static json_t *logprobs_json(const struct hzp_completion *c, const struct hzp_choice *choice,
                             int32_t token0)
{
    json_t *content = json_array();
    for (int32_t n = token0; n < choice->seen; n++)
        json_array_append_new(content, hzp_chat_logprob_json(c, choice, n));
    return json_pack("{s:o, s:n}", "content", content, "refusal");
}

/* ---- choices ---- */

/* What the choice has behind its message. */
static void add_rest(const struct hzp_completion *c, const struct hzp_choice *choice,
                     int32_t token0, bool first, json_t *json)
{
    json_object_set_new(json, "logprobs",
                        c->params.logprobs >= 0 ? logprobs_json(c, choice, token0) : json_null());
    bool called = hzp_reply_called(choice->reply) && choice->finish == HZP_FINISH_STOP;
    json_object_set_new(json, "finish_reason",
                        called ? json_string("tool_calls") : hzp_finish_json(choice));
    json_object_set_new(json, "stop_reason", hzp_stop_reason_json(c, choice));
    hzp_choice_add_ids(c, choice, token0, first, json);
}

/* The text, behind what the message begins with. */
static json_t *with_begun(const struct hzp_completion *c, const char *text, size_t bytes)
{
    const json_t *begun = c->params.begun;
    struct hzp_textbuf all = {0};
    json_t *json = NULL;
    if (!begun)
        return hzp_text_json(text, bytes);
    if (hzp_textbuf_append(&all, json_string_value(begun), json_string_length(begun)) == HZP_OK &&
        hzp_textbuf_append(&all, text, bytes) == HZP_OK)
        json = hzp_text_json(all.data, all.bytes);
    hzp_textbuf_fini(&all);
    return json;
}

/* The text from byte text0 on; first: behind what the message begins with. */
static json_t *content_json(const struct hzp_completion *c, const struct hzp_choice *choice,
                            size_t text0, bool first)
{
    const char *text = choice->text.bytes ? choice->text.data + text0 : "";
    size_t bytes = choice->text.bytes - text0;
    return first ? with_begun(c, text, bytes) : hzp_text_json(text, bytes);
}

/* The same of a message that was divided into reasoning, content and calls. */
static void add_begun(const struct hzp_completion *c, json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    const char *text = json_string_value(content);
    if (c->params.begun)
        json_object_set_new(message, "content",
                            with_begun(c, text ? text : "", json_string_length(content)));
}

void hzp_choice_read_reply(const struct hzp_choice *choice)
{
    struct hzp_reply *reply = choice->reply;
    size_t n = choice->text.bytes - reply->fed;
    hzp_reply_feed(reply, n ? choice->text.data + reply->fed : "", n,
                   choice->finish != HZP_FINISH_NONE);
}

static json_t *delta_json(const struct hzp_completion *c, const struct hzp_choice *choice,
                          size_t text0, bool first)
{
    json_t *delta;
    if (choice->reply) {
        hzp_choice_read_reply(choice);
        delta = hzp_reply_delta(choice->reply);
        if (first && !json_object_get(delta, "content"))
            json_object_set_new(delta, "content", json_string(""));
        if (first)
            add_begun(c, delta);
    } else {
        delta = json_object();
        if (first || choice->text.bytes > text0)
            json_object_set_new(delta, "content", content_json(c, choice, text0, first));
    }
    if (first)
        json_object_set_new(delta, "role", json_string("assistant"));
    return delta;
}

static json_t *chat_part(const struct hzp_completion *c, const struct hzp_choice *choice,
                         size_t text0, int32_t token0, bool first)
{
    json_t *delta = delta_json(c, choice, text0, first);
    bool tokens = c->params.logprobs >= 0 || c->params.return_ids;
    if (!json_object_size(delta) && !tokens && choice->finish == HZP_FINISH_NONE) {
        json_decref(delta);
        return NULL;
    }
    json_t *json = json_object();
    json_object_set_new(json, "index", json_integer(choice->index));
    json_object_set_new(json, "delta", delta);
    add_rest(c, choice, token0, first, json);
    return json;
}

static json_t *chat_whole(const struct hzp_completion *c, const struct hzp_choice *choice)
{
    json_t *json = json_object(), *message;
    if (choice->reply) {
        hzp_choice_read_reply(choice);
        message = hzp_reply_message(choice->reply);
        add_begun(c, message);
    } else {
        message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                            content_json(c, choice, 0, true), "refusal");
    }
    json_object_set_new(json, "index", json_integer(choice->index));
    json_object_set_new(json, "message", message);
    add_rest(c, choice, 0, true, json);
    return json;
}

const struct hzp_answer_form hzp_answer_chat = {
    .id = "chatcmpl-",
    .object = "chat.completion",
    .chunk = "chat.completion.chunk",
    .whole = chat_whole,
    .part = chat_part,
    .before_text = ",\"delta\":{\"content\":",
    .behind_text = "},\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}]",
};
