/* SPDX-License-Identifier: Apache-2.0 */
/* What was read, as the messages and deltas of a chat, and piece by piece. */
#include "text/chat/reply_parts.h"

/* from: the bytes of its arguments that were sent before; 0 and whole: the call itself. */
static json_t *call_json(const struct hzp_reply_call *call, size_t from, bool whole)
{
    const struct hzp_textbuf *text = &call->arguments;
    json_t *function =
        json_pack("{s:o}", "arguments",
                  json_stringn_nocheck(text->bytes ? text->data + from : "", text->bytes - from));
    if (!whole)
        return json_pack("{s:o}", "function", function);
    json_object_set_new(function, "name", json_string(call->name));
    return json_pack("{s:s, s:s, s:o}", "id", call->id, "type", "function", "function", function);
}

/* The calls, or what is new in them since the last delta; NULL: nothing. */
static json_t *calls_json(struct hzp_reply *reply)
{
    json_t *list = NULL;
    for (int i = HZP_MAX(reply->sent_calls - 1, 0); i < reply->calls; i++) {
        const struct hzp_reply_call *call = &reply->call[i];
        bool whole = i >= reply->sent_calls;
        size_t from = whole ? 0 : reply->sent_arguments;
        if (!whole && call->arguments.bytes == from)
            continue;
        json_t *json = call_json(call, from, whole);
        json_object_set_new(json, "index", json_integer(i));
        list = list ? list : json_array();
        json_array_append_new(list, json);
    }
    reply->sent_calls = reply->calls;
    reply->sent_arguments = reply->calls ? reply->call[reply->calls - 1].arguments.bytes : 0;
    return list;
}

json_t *hzp_reply_message(const struct hzp_reply *reply)
{
    json_t *json = json_pack("{s:s}", "role", "assistant");
    const struct hzp_textbuf *content = &reply->content, *reasoning = &reply->reasoning;
    json_object_set_new(json, "content",
                        content->bytes     ? json_stringn_nocheck(content->data, content->bytes)
                        : reply->calls > 0 ? json_null()
                                           : json_string(""));
    json_object_set_new(json, "refusal", json_null());
    if (reasoning->bytes && !reply->rules->hide)
        json_object_set_new(json, "reasoning_content",
                            json_stringn_nocheck(reasoning->data, reasoning->bytes));
    json_t *calls = reply->calls ? json_array() : NULL;
    for (int i = 0; i < reply->calls; i++)
        json_array_append_new(calls, call_json(&reply->call[i], 0, true));
    if (calls)
        json_object_set_new(json, "tool_calls", calls);
    return json;
}

json_t *hzp_reply_delta(struct hzp_reply *reply)
{
    json_t *json = json_object();
    if (reply->reasoning.bytes > reply->sent_reasoning && !reply->rules->hide)
        json_object_set_new(json, "reasoning_content",
                            json_stringn_nocheck(reply->reasoning.data + reply->sent_reasoning,
                                                 reply->reasoning.bytes - reply->sent_reasoning));
    if (reply->content.bytes > reply->sent_content)
        json_object_set_new(json, "content",
                            json_stringn_nocheck(reply->content.data + reply->sent_content,
                                                 reply->content.bytes - reply->sent_content));
    json_t *calls = calls_json(reply);
    if (calls)
        json_object_set_new(json, "tool_calls", calls);
    reply->sent_reasoning = reply->reasoning.bytes;
    reply->sent_content = reply->content.bytes;
    return json;
}

bool hzp_reply_next(struct hzp_reply *reply, struct hzp_reply_part *ret, const char **ret_text,
                    bool *ret_first)
{
    for (; reply->next_part < reply->parts; reply->next_part++, reply->next_from = 0) {
        const struct hzp_reply_part *part = &reply->part[reply->next_part];
        bool fresh = !reply->next_from;
        size_t from = fresh ? part->from : reply->next_from - 1;
        bool call = part->kind == HZP_REPLY_IS_CALL;
        bool hidden = part->kind == HZP_REPLY_IS_REASONING && reply->rules->hide;
        if (hidden || (from == part->to && !(call && fresh)))
            continue;
        const struct hzp_textbuf *text = part->kind == HZP_REPLY_IS_REASONING ? &reply->reasoning
                                         : part->kind == HZP_REPLY_IS_CONTENT
                                             ? &reply->content
                                             : &reply->call[part->call].arguments;
        *ret = *part;
        ret->from = from;
        *ret_text = text->bytes ? text->data + from : "";
        *ret_first = call && fresh && !part->from;
        reply->next_from = part->to + 1; /* more of it may come */
        return true;
    }
    if (reply->parts) { /* the last one may grow */
        reply->next_part = reply->parts - 1;
        reply->next_from = reply->part[reply->parts - 1].to + 1;
    }
    return false;
}
