/* SPDX-License-Identifier: Apache-2.0 */
#include "api/text/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static const char think[] = "<think>", think_end[] = "</think>";
static const char hermes[] = "<tool_call>", hermes_end[] = "</tool_call>";
static const char mistral[] = "[TOOL_CALLS]", python_tag[] = "<|python_tag|>";

/* ---- rules ---- */

static enum hzp_reply_calls calls_of(const char *source)
{
    if (strstr(source, mistral))
        return HZP_CALLS_MISTRAL;
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
    ret->reasoning = strstr(source, think_end) != NULL;
    ret->inside = ret->reasoning && ends_with(prompt, bytes, think);
    if (ret->reasoning && ends_with(prompt, bytes, think_end))
        ret->reasoning = false; /* the template has ended it already */
    if (!tools)
        return;
    ret->calls = calls_of(source);
    ret->names = json_object();
    json_array_foreach(tools, i, tool)
    {
        const char *name =
            json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (name)
            json_object_set_new(ret->names, name, json_true());
    }
}

void hzp_reply_rules_fini(struct hzp_reply_rules *rules)
{
    json_decref(rules->names);
    memset(rules, 0, sizeof(*rules));
}

bool hzp_reply_rules_on(const struct hzp_reply_rules *rules)
{
    return rules->calls != HZP_CALLS_NONE || rules->reasoning;
}

bool hzp_reply_rules_special(const struct hzp_reply_rules *rules)
{
    return rules->calls == HZP_CALLS_LLAMA || rules->calls == HZP_CALLS_MISTRAL;
}

int hzp_reply_create(const struct hzp_reply_rules *rules, struct hzp_reply **ret)
{
    struct hzp_reply *reply = calloc(1, sizeof(*reply));
    if (!reply)
        return HZP_ENOMEM;
    reply->rules = rules;
    reply->state = rules->inside      ? HZP_REPLY_REASONING
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
    for (int i = 0; i < reply->calls; i++) {
        free(reply->call[i].name);
        free(reply->call[i].arguments);
    }
    hzp_textbuf_fini(&reply->reasoning);
    hzp_textbuf_fini(&reply->content);
    hzp_textbuf_fini(&reply->held);
    free(reply);
}

/* ---- calls ---- */

static void make_id(const struct hzp_reply *reply, char *id, size_t size)
{
    uint64_t word[2] = {(uint64_t)clock(), (uintptr_t)reply};
    if (getrandom(word, sizeof(word), 0) < 0)
        word[0] ^= (uint64_t)time(NULL);
    /* Mistral's templates want nine letters or digits. */
    if (reply->rules->calls == HZP_CALLS_MISTRAL)
        snprintf(id, size, "%09llx", (unsigned long long)(word[0] & 0xFFFFFFFFFull));
    else
        snprintf(id, size, "call_%016llx%08x", (unsigned long long)word[0], (unsigned)word[1]);
}

/* arguments: an object, or its JSON as a string; NULL: none.  False: that is no call. */
static bool add_call(struct hzp_reply *reply, const char *name, const json_t *arguments)
{
    json_t *parsed = NULL;
    char *text = NULL;
    if (!name || reply->calls == HZP_REPLY_CALLS_MAX ||
        (reply->rules->names && !json_object_get(reply->rules->names, name)))
        return false;
    if (json_is_string(arguments))
        parsed = json_loads(json_string_value(arguments), 0, NULL);
    const json_t *object = json_is_string(arguments) ? parsed : arguments;
    if (!arguments || json_is_null(arguments))
        text = strdup("{}");
    else if (json_is_object(object))
        text = hzp_chat_dumps(object);
    json_decref(parsed);
    if (!text)
        return false;
    if (reply->rules->one_call && reply->calls) {
        free(text);
        return true; /* left out */
    }
    struct hzp_reply_call *call = &reply->call[reply->calls];
    call->name = strdup(name);
    call->arguments = text;
    make_id(reply, call->id, sizeof(call->id));
    reply->calls++;
    return true;
}

/* {"name": ..., "arguments" or "parameters": ...} */
static bool add_object(struct hzp_reply *reply, const json_t *object)
{
    const json_t *arguments = json_object_get(object, "arguments");
    if (!arguments)
        arguments = json_object_get(object, "parameters");
    return add_call(reply, json_string_value(json_object_get(object, "name")), arguments);
}

static void drop_calls(struct hzp_reply *reply, int from)
{
    while (reply->calls > from) {
        struct hzp_reply_call *call = &reply->call[--reply->calls];
        free(call->name);
        free(call->arguments);
        memset(call, 0, sizeof(*call));
    }
}

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* One JSON value at *at, which moves behind it; NULL: there is none. */
static json_t *next_value(const char **at, const char *end)
{
    json_error_t error;
    json_t *json = json_loadb(*at, (size_t)(end - *at), JSON_DISABLE_EOF_CHECK, &error);
    if (json)
        *at += error.position;
    return json;
}

/* Objects divided by `by` (0: blanks), or one list of them, and nothing else. */
static bool read_objects(struct hzp_reply *reply, const char *p, const char *end, char by)
{
    int before = reply->calls;
    bool fits = true, any = false;
    for (p = skip_blanks(p, end); fits && p < end; p = skip_blanks(p, end)) {
        json_t *json = next_value(&p, end), *each;
        size_t i;
        fits = json_is_object(json) ? add_object(reply, json)
                                    : json_is_array(json) && json_array_size(json) && !any;
        if (json_is_array(json))
            json_array_foreach(json, i, each) fits = fits && add_object(reply, each);
        json_decref(json);
        any = true;
        p = skip_blanks(p, end);
        if (p < end && by && *p == by)
            p++;
    }
    if (!fits)
        drop_calls(reply, before);
    return fits && any;
}

/* name[ARGS]{...}, perhaps several with the mark between; or a list of objects. */
static bool read_mistral(struct hzp_reply *reply, const char *p, const char *end)
{
    static const char args[] = "[ARGS]";
    int before = reply->calls;
    p = skip_blanks(p, end);
    if (p < end && (*p == '[' || *p == '{'))
        return read_objects(reply, p, end, 0);
    while (p < end) {
        char name[256];
        const char *at = memmem(p, (size_t)(end - p), args, sizeof(args) - 1);
        bool fits = at && (size_t)(at - p) < sizeof(name);
        if (fits) {
            snprintf(name, sizeof(name), "%.*s", (int)(at - p), p);
            p = at + sizeof(args) - 1;
            json_t *json = next_value(&p, end);
            fits = json && add_call(reply, name, json);
            json_decref(json);
        }
        if (!fits) {
            drop_calls(reply, before);
            return false;
        }
        p = skip_blanks(p, end);
        if ((size_t)(end - p) >= sizeof(mistral) - 1 && !memcmp(p, mistral, sizeof(mistral) - 1))
            p = skip_blanks(p + sizeof(mistral) - 1, end);
    }
    return reply->calls > before;
}

/* ---- reading ---- */

static int keep_from(struct hzp_reply *reply, size_t from)
{
    if (from) {
        memmove(reply->held.data, reply->held.data + from, reply->held.bytes - from);
        reply->held.bytes -= from;
    }
    return HZP_OK;
}

/* Moves the first n held bytes to a text, without blanks right behind a mark. */
static int release(struct hzp_reply *reply, size_t n, struct hzp_textbuf *to)
{
    size_t skip = 0;
    while (reply->after_mark && skip < n && strchr("\n\r \t", reply->held.data[skip]) &&
           reply->held.data[skip])
        skip++;
    if (n > skip) {
        reply->after_mark = false;
        HZP_TRY(hzp_textbuf_append(to, reply->held.data + skip, n - skip));
    }
    return n ? keep_from(reply, n) : HZP_OK;
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
    const char *at = reply->held.bytes ? skip_blanks(p, stop) : p;
    size_t n = (size_t)(stop - at), mark = sizeof(think) - 1;
    if (n >= mark && !memcmp(at, think, mark)) {
        keep_from(reply, (size_t)(at - p) + mark);
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
    HZP_TRY(release(reply, out, &reply->reasoning));
    if (!found)
        return 0;
    keep_from(reply, at - out + sizeof(think_end) - 1);
    reply->state = HZP_REPLY_CONTENT;
    reply->after_mark = true;
    return 1;
}

/* What opens a call in the content; NULL: nothing does. */
static const char *opening(const struct hzp_reply *reply)
{
    switch (reply->rules->calls) {
    case HZP_CALLS_HERMES:
        return hermes;
    case HZP_CALLS_MISTRAL:
        return mistral;
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
        const char *first = reply->held.bytes ? skip_blanks(p, stop) : stop;
        if (first == stop && !end)
            return 0;
        if (first < stop && *first == '{') { /* the whole answer may be a call */
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
    HZP_TRY(release(reply, out, &reply->content));
    if (!found)
        return 0;
    reply->state = HZP_REPLY_CALL;
    return 1;
}

/* The held text begins with blanks and the opening mark (Llama: perhaps without). */
static int step_call(struct hzp_reply *reply, bool end)
{
    const char *p = reply->held.data, *stop = p + reply->held.bytes, *mark = opening(reply);
    const char *from = skip_blanks(p, stop);
    bool read = false;
    size_t used = reply->held.bytes;
    if ((size_t)(stop - from) >= strlen(mark) && !memcmp(from, mark, strlen(mark)))
        from += strlen(mark);
    if (reply->rules->calls == HZP_CALLS_HERMES) {
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
        read = read_objects(reply, from, close ? close : stop, 0);
    } else {
        if (!end)
            return 0;
        read = reply->rules->calls == HZP_CALLS_MISTRAL ? read_mistral(reply, from, stop)
                                                        : read_objects(reply, from, stop, ';');
    }
    reply->state = HZP_REPLY_CONTENT;
    if (read) {
        reply->after_mark = true;
        return keep_from(reply, used) == HZP_OK;
    }
    /* No call: it is content as it stands. */
    reply->after_mark = reply->after_mark && !reply->content.bytes;
    HZP_TRY(release(reply, used, &reply->content));
    return 1;
}

int hzp_reply_feed(struct hzp_reply *reply, const char *text, size_t bytes, bool end)
{
    int more = 1;
    HZP_TRY(hzp_textbuf_append(&reply->held, text, bytes));
    reply->fed += bytes;
    if (reply->ended)
        return HZP_OK;
    while (more > 0) {
        if (!reply->held.bytes && (!end || reply->state == HZP_REPLY_CONTENT))
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
        default:
            more = step_call(reply, end);
        }
    }
    reply->ended = end;
    return more < 0 ? more : HZP_OK;
}

/* ---- answers ---- */

static json_t *call_json(const struct hzp_reply_call *call, int index)
{
    json_t *json =
        json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", call->id, "type", "function", "function",
                  "name", call->name ? call->name : "", "arguments", call->arguments);
    if (json && index >= 0)
        json_object_set_new(json, "index", json_integer(index));
    return json;
}

static json_t *calls_json(const struct hzp_reply *reply, int from, bool indexed)
{
    json_t *list = json_array();
    for (int i = from; i < reply->calls; i++)
        json_array_append_new(list, call_json(&reply->call[i], indexed ? i : -1));
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
    if (reply->calls)
        json_object_set_new(json, "tool_calls", calls_json(reply, 0, false));
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
    if (reply->calls > reply->sent_calls)
        json_object_set_new(json, "tool_calls", calls_json(reply, reply->sent_calls, true));
    reply->sent_reasoning = reply->reasoning.bytes;
    reply->sent_content = reply->content.bytes;
    reply->sent_calls = reply->calls;
    return json;
}
