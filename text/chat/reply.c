/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/reply_parts.h"

#include <stdlib.h>
#include <string.h>

static const char think[] = "<think>", think_end[] = "</think>";
static const char hermes[] = "<tool_call>", hermes_end[] = "</tool_call>";
static const char python_tag[] = "<|python_tag|>", channel[] = "<|channel|>";

/* A call whose arguments do not begin within so many bytes is read when it is complete, so that no
 * feed of a very long text takes longer than the first ones. */
enum { LIVE_LOOK = 4096 };

/* ---- rules ---- */

static enum hzp_reply_calls calls_of(const char *source)
{
    if (strstr(source, hzp_reply_mistral))
        return HZP_CALLS_MISTRAL;
    if (strstr(source, hermes) && strstr(source, "<arg_key>"))
        return HZP_CALLS_GLM;
    if (strstr(source, hermes) && !strstr(source, "<arg_key>") && !strstr(source, "<function="))
        return HZP_CALLS_HERMES;
    if (strstr(source, "<|start_header_id|>") && strstr(source, "\"parameters\": "))
        return HZP_CALLS_LLAMA;
    return HZP_CALLS_NONE;
}

/* Whether the text ends with the mark and blanks behind it. */
static bool ends_with(const char *text, size_t bytes, const char *mark)
{
    size_t n = strlen(mark);
    while (bytes && strchr(" \t\r\n", text[bytes - 1]) && text[bytes - 1])
        bytes--;
    return bytes >= n && !memcmp(text + bytes - n, mark, n);
}

void hzp_reply_rules_set(struct hzp_reply_rules *ret, const struct hzp_chat *chat,
                         const char *prompt, size_t bytes, const json_t *tools)
{
    const char *source = hzp_chat_source(chat);
    const json_t *tool;
    size_t i;
    memset(ret, 0, sizeof(*ret));
    ret->channels = strstr(source, channel) && strstr(source, "<|message|>");
    ret->reasoning = !ret->channels && strstr(source, think_end) != NULL;
    ret->inside = ret->reasoning && ends_with(prompt, bytes, think);
    if (ret->reasoning && ends_with(prompt, bytes, think_end))
        ret->reasoning = false; /* the template has ended it already */
    if (!tools)
        return;
    ret->calls = ret->channels ? HZP_CALLS_CHANNELS : calls_of(source);
    ret->names = json_object();
    json_array_foreach(tools, i, tool)
    {
        json_t *function = json_object_get(tool, "function");
        json_t *parameters = json_object_get(function, "parameters");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (name)
            json_object_set(ret->names, name, parameters ? parameters : json_true());
    }
}

void hzp_reply_rules_fini(struct hzp_reply_rules *rules)
{
    json_decref(rules->names);
    memset(rules, 0, sizeof(*rules));
}

bool hzp_reply_rules_on(const struct hzp_reply_rules *rules)
{
    return rules->calls != HZP_CALLS_NONE || rules->reasoning || rules->channels;
}

bool hzp_reply_rules_special(const struct hzp_reply_rules *rules)
{
    return rules->calls == HZP_CALLS_LLAMA || rules->calls == HZP_CALLS_MISTRAL || rules->channels;
}

int hzp_reply_create(const struct hzp_reply_rules *rules, struct hzp_reply **ret)
{
    struct hzp_reply *reply = calloc(1, sizeof(*reply));
    if (!reply)
        return HZP_ENOMEM;
    reply->rules = rules;
    reply->state = rules->channels    ? HZP_REPLY_HEADER
                   : rules->inside    ? HZP_REPLY_REASONING
                   : rules->reasoning ? HZP_REPLY_BEGIN
                                      : HZP_REPLY_CONTENT;
    reply->after_mark = rules->inside;
    *ret = reply;
    return HZP_OK;
}

void hzp_reply_destroy(struct hzp_reply *reply)
{
    if (!reply)
        return;
    hzp_reply_calls_drop(reply, 0);
    hzp_textbuf_fini(&reply->reasoning);
    hzp_textbuf_fini(&reply->content);
    hzp_textbuf_fini(&reply->held);
    free(reply);
}

/* ---- reading ---- */

int hzp_reply_keep_from(struct hzp_reply *reply, size_t from)
{
    if (from) {
        memmove(reply->held.data, reply->held.data + from, reply->held.bytes - from);
        reply->held.bytes -= from;
    }
    return HZP_OK;
}

/* Without blanks right behind a mark. */
int hzp_reply_release(struct hzp_reply *reply, size_t n, struct hzp_textbuf *to)
{
    size_t skip = 0;
    while (reply->after_mark && skip < n && strchr("\n\r \t", reply->held.data[skip]) &&
           reply->held.data[skip])
        skip++;
    if (n > skip) {
        reply->after_mark = false;
        HZP_TRY(hzp_textbuf_append(to, reply->held.data + skip, n - skip));
    }
    return n ? hzp_reply_keep_from(reply, n) : HZP_OK;
}

/* Where the mark begins in the held text; bytes: it does not.  *ret_safe: the bytes before it, or
 * before what may be its beginning. */
static bool find_mark(const struct hzp_reply *reply, const char *mark, size_t *ret_at)
{
    size_t n = strlen(mark), bytes = reply->held.bytes;
    const char *text = reply->held.data;
    const char *found = bytes ? memmem(text, bytes, mark, n) : NULL;
    if (found) {
        *ret_at = (size_t)(found - text);
        return true;
    }
    size_t at = bytes > n - 1 ? bytes - (n - 1) : 0;
    while (at < bytes && memcmp(text + at, mark, bytes - at))
        at++;
    *ret_at = at;
    return false;
}

/* Each step returns 1: something was done, look again; 0: more text is needed. */

static int step_begin(struct hzp_reply *reply, bool end)
{
    const char *p = reply->held.data, *stop = p + reply->held.bytes;
    const char *at = reply->held.bytes ? hzp_reply_blanks(p, stop) : p;
    size_t n = (size_t)(stop - at), mark = sizeof(think) - 1;
    if (n >= mark && !memcmp(at, think, mark)) {
        hzp_reply_keep_from(reply, (size_t)(at - p) + mark);
        reply->state = HZP_REPLY_REASONING;
        reply->after_mark = true;
        return 1;
    }
    if (!end && (n == 0 || (n < mark && !memcmp(at, think, n))))
        return 0;
    reply->state = HZP_REPLY_CONTENT;
    return 1;
}

static int step_reasoning(struct hzp_reply *reply, bool end)
{
    size_t at;
    bool found = find_mark(reply, think_end, &at);
    size_t out = found || !end ? at : reply->held.bytes;
    /* blanks before the mark do not belong to it */
    while (out && (found || !end) && strchr(" \n\r\t", reply->held.data[out - 1]) &&
           reply->held.data[out - 1])
        out--;
    HZP_TRY(hzp_reply_release(reply, out, &reply->reasoning));
    if (!found)
        return 0;
    hzp_reply_keep_from(reply, at - out + sizeof(think_end) - 1);
    reply->state = HZP_REPLY_CONTENT;
    reply->after_mark = true;
    return 1;
}

/* What opens a call in the content; NULL: nothing does. */
static const char *opening(const struct hzp_reply *reply)
{
    switch (reply->rules->calls) {
    case HZP_CALLS_HERMES:
    case HZP_CALLS_GLM:
        return hermes;
    case HZP_CALLS_MISTRAL:
        return hzp_reply_mistral;
    case HZP_CALLS_LLAMA:
        return python_tag;
    default:
        return NULL;
    }
}

static int step_content(struct hzp_reply *reply, bool end)
{
    const char *mark = opening(reply);
    size_t at = reply->held.bytes;
    bool found = false;
    if (mark && reply->rules->calls == HZP_CALLS_LLAMA && !reply->content.bytes) {
        const char *p = reply->held.data, *stop = p + reply->held.bytes;
        const char *first = reply->held.bytes ? hzp_reply_blanks(p, stop) : stop;
        if (first == stop && !end)
            return 0;
        int begins = first < stop && *first == '{'; /* the whole answer may be a call */
        if (begins && reply->rules->strict)
            begins = hzp_reply_begins(reply, first, stop);
        if (begins < 0 && !end)
            return 0;
        if (begins > 0) {
            reply->state = HZP_REPLY_CALL;
            return 1;
        }
    }
    if (mark)
        found = find_mark(reply, mark, &at);
    if (end && !found)
        at = reply->held.bytes;
    /* blanks before a call are dropped with it, so they wait for what follows */
    size_t out = at;
    while (mark && out && (found || !end) && strchr(" \n\r\t", reply->held.data[out - 1]) &&
           reply->held.data[out - 1])
        out--;
    HZP_TRY(hzp_reply_release(reply, out, &reply->content));
    if (!found)
        return 0;
    reply->state = HZP_REPLY_CALL;
    return 1;
}

/* Where the objects of a list end, whose beginning is gone. */
static const char *without_list_end(const char *from, const char *end)
{
    while (end > from && strchr(" \n\r\t", end[-1]) && end[-1])
        end--;
    return end > from && end[-1] == ']' ? end - 1 : end;
}

/* The held text begins with blanks and the opening mark (Llama: perhaps without). */
static int step_call(struct hzp_reply *reply, bool end)
{
    const char *p = reply->held.data, *stop = p + reply->held.bytes, *mark = opening(reply);
    const char *from = hzp_reply_blanks(p, stop);
    bool read = false;
    size_t used = reply->held.bytes;
    if ((size_t)(stop - from) >= strlen(mark) && !memcmp(from, mark, strlen(mark)))
        from += strlen(mark);
    const char *arguments = reply->rules->live && !end && reply->rules->calls != HZP_CALLS_GLM &&
                                    reply->held.bytes < LIVE_LOOK
                                ? hzp_reply_live_begin(reply, from, stop)
                                : NULL;
    if (arguments) {
        reply->looked = 0;
        reply->state = HZP_REPLY_ARGUMENTS;
        return hzp_reply_keep_from(reply, (size_t)(arguments - p)) == HZP_OK;
    }
    if (reply->rules->calls == HZP_CALLS_HERMES || reply->rules->calls == HZP_CALLS_GLM) {
        /* what an earlier feed has searched is not searched again */
        size_t mark_bytes = sizeof(hermes_end) - 1;
        const char *look = p + (reply->looked > mark_bytes ? reply->looked - mark_bytes : 0);
        look = HZP_MAX(look, from);
        const char *close = memmem(look, (size_t)(stop - look), hermes_end, mark_bytes);
        reply->looked = reply->held.bytes;
        if (!close && !end)
            return 0;
        reply->looked = 0;
        if (close)
            used = (size_t)(close - p) + sizeof(hermes_end) - 1;
        read = reply->rules->calls == HZP_CALLS_GLM
                   ? hzp_reply_read_glm(reply, from, close ? close : stop)
                   : hzp_reply_read_objects(reply, from, close ? close : stop, 0);
    } else {
        if (!end)
            return 0;
        bool list = reply->rules->calls == HZP_CALLS_MISTRAL && from < stop && *from == '{';
        if (list) /* its first calls were passed on */
            read = hzp_reply_read_objects(reply, from, without_list_end(from, stop), ',');
        else if (reply->rules->calls == HZP_CALLS_MISTRAL)
            read = hzp_reply_read_mistral(reply, from, stop);
        else
            read = hzp_reply_read_objects(reply, from, stop, ';');
    }
    reply->state = HZP_REPLY_CONTENT;
    if (read) {
        reply->after_mark = true;
        return hzp_reply_keep_from(reply, used) == HZP_OK;
    }
    /* No call: it is content as it stands. */
    reply->after_mark = reply->after_mark && !reply->content.bytes;
    HZP_TRY(hzp_reply_release(reply, used, &reply->content));
    return 1;
}

/* The held text goes on in a call's arguments. */
static int step_arguments(struct hzp_reply *reply, bool end)
{
    size_t used;
    bool done = hzp_reply_live_scan(&reply->live, reply->held.data, reply->held.bytes, &used);
    if (!reply->live.left_out)
        HZP_TRY(
            hzp_textbuf_append(&reply->call[reply->calls - 1].arguments, reply->held.data, used));
    HZP_TRY(hzp_reply_keep_from(reply, used));
    if (done)
        reply->state = HZP_REPLY_BEHIND;
    return done;
}

/* Behind a call's arguments: the rest of its object, then another call or what ends them. */
static int step_behind(struct hzp_reply *reply, bool end)
{
    const char *close = reply->rules->calls == HZP_CALLS_HERMES    ? hermes_end
                        : reply->rules->calls == HZP_CALLS_MISTRAL ? "]"
                                                                   : "";
    size_t skip = 0, n = strlen(close), mark = strlen(hzp_reply_mistral);
    const char *p = reply->held.data;
    while (skip < reply->held.bytes && p[skip] && strchr(" \n\r\t},;", p[skip]))
        skip++;
    HZP_TRY(hzp_reply_keep_from(reply, skip));
    size_t bytes = reply->held.bytes;
    if (!bytes)
        return 0;
    bool another = reply->rules->calls == HZP_CALLS_MISTRAL &&
                   !memcmp(p, hzp_reply_mistral, HZP_MIN(bytes, mark));
    bool closes = n && !memcmp(p, close, HZP_MIN(bytes, n));
    if (!end && ((another && bytes < mark) || (closes && bytes < n)))
        return 0;
    reply->state = *p == '{' || (another && bytes >= mark) ? HZP_REPLY_CALL : HZP_REPLY_CONTENT;
    reply->after_mark = true;
    return !closes || bytes < n || hzp_reply_keep_from(reply, n) == HZP_OK;
}

int hzp_reply_feed(struct hzp_reply *reply, const char *text, size_t bytes, bool end)
{
    int more = 1;
    HZP_TRY(hzp_textbuf_append(&reply->held, text, bytes));
    reply->fed += bytes;
    if (reply->ended)
        return HZP_OK;
    while (more > 0) {
        if (!reply->held.bytes && (!end || reply->state >= HZP_REPLY_CONTENT))
            break;
        switch (reply->state) {
        case HZP_REPLY_BEGIN:
            more = step_begin(reply, end);
            break;
        case HZP_REPLY_REASONING:
            more = step_reasoning(reply, end);
            break;
        case HZP_REPLY_CONTENT:
            more = step_content(reply, end);
            break;
        case HZP_REPLY_HEADER:
            more = hzp_reply_step_header(reply, end);
            break;
        case HZP_REPLY_BODY:
            more = hzp_reply_step_body(reply, end);
            break;
        case HZP_REPLY_ARGUMENTS:
            more = step_arguments(reply, end);
            break;
        case HZP_REPLY_BEHIND:
            more = step_behind(reply, end);
            break;
        default:
            more = step_call(reply, end);
        }
    }
    reply->ended = end;
    return more < 0 ? more : HZP_OK;
}

/* ---- answers ---- */

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
