/* SPDX-License-Identifier: Apache-2.0 */
/* The calls in a reply: read whole, or begun as soon as their name is known. */
#include "text/chat/reply_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

const char hzp_reply_mistral[] = "[TOOL_CALLS]";
static const char args[] = "[ARGS]";
static const char glm_key[] = "<arg_key>", glm_key_end[] = "</arg_key>";
static const char glm_value[] = "<arg_value>", glm_value_end[] = "</arg_value>";

/* The last step of SplitMix64. */
static uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void make_id(const struct hzp_reply *reply, char *id, size_t size)
{
    uint64_t word[2] = {(uint64_t)clock(), (uintptr_t)reply};
    if (reply->id_seed) {
        word[0] = scramble(reply->id_seed + (uint64_t)reply->calls);
        word[1] = scramble(word[0]);
    } else if (getrandom(word, sizeof(word), 0) < 0) {
        word[0] ^= (uint64_t)time(NULL);
    }
    /* Mistral's templates want nine letters or digits. */
    if (reply->rules->calls == HZP_CALLS_MISTRAL)
        snprintf(id, size, "%09llx", (unsigned long long)(word[0] & 0xFFFFFFFFFull));
    else
        snprintf(id, size, "call_%016llx%08x", (unsigned long long)word[0], (unsigned)word[1]);
}

int hzp_reply_call_begin(struct hzp_reply *reply, const char *name)
{
    if (!name || reply->calls == HZP_REPLY_CALLS_MAX ||
        (reply->rules->names && !json_object_get(reply->rules->names, name)))
        return -1;
    if (reply->rules->one_call && reply->calls)
        return 0; /* left out */
    struct hzp_reply_call *call = &reply->call[reply->calls];
    call->name = strdup(name);
    if (!call->name)
        return -1;
    make_id(reply, call->id, sizeof(call->id));
    reply->calls++;
    return 1;
}

/* arguments: an object, or its JSON as a string; NULL: none.  False: that is no call. */
static bool add_call(struct hzp_reply *reply, const char *name, const json_t *arguments)
{
    json_t *parsed = NULL;
    char *text = NULL;
    if (json_is_string(arguments))
        parsed = json_loads(json_string_value(arguments), 0, NULL);
    const json_t *object = json_is_string(arguments) ? parsed : arguments;
    if (!arguments || json_is_null(arguments))
        text = strdup("{}");
    else if (json_is_object(object))
        text = hzp_chat_dumps(object);
    json_decref(parsed);
    int begun = text ? hzp_reply_call_begin(reply, name) : -1;
    if (begun > 0)
        begun = hzp_textbuf_append(&reply->call[reply->calls - 1].arguments, text, strlen(text)) ==
                        HZP_OK
                    ? 1
                    : -1;
    free(text);
    return begun >= 0;
}

/* {"name": ..., "arguments" or "parameters": ...} */
static bool add_object(struct hzp_reply *reply, const json_t *object)
{
    const json_t *arguments = json_object_get(object, "arguments");
    if (!arguments)
        arguments = json_object_get(object, "parameters");
    return add_call(reply, json_string_value(json_object_get(object, "name")), arguments);
}

void hzp_reply_calls_drop(struct hzp_reply *reply, int from)
{
    while (reply->calls > from) {
        struct hzp_reply_call *call = &reply->call[--reply->calls];
        free(call->name);
        hzp_textbuf_fini(&call->arguments);
        memset(call, 0, sizeof(*call));
    }
}

const char *hzp_reply_blanks(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* One JSON value at *at, which moves behind it; NULL: there is none.  how: 0: an object or an
 * array; JSON_DECODE_ANY. */
static json_t *next_value(const char **at, const char *end, size_t how)
{
    json_error_t error;
    json_t *json = json_loadb(*at, (size_t)(end - *at), JSON_DISABLE_EOF_CHECK | how, &error);
    if (json)
        *at += error.position;
    return json;
}

bool hzp_reply_read_objects(struct hzp_reply *reply, const char *p, const char *end, char by)
{
    int before = reply->calls;
    bool fits = true, any = false;
    for (p = hzp_reply_blanks(p, end); fits && p < end; p = hzp_reply_blanks(p, end)) {
        json_t *json = next_value(&p, end, 0), *each;
        size_t i;
        fits = json_is_object(json) ? add_object(reply, json)
                                    : json_is_array(json) && json_array_size(json) && !any;
        if (json_is_array(json))
            json_array_foreach(json, i, each) fits = fits && add_object(reply, each);
        json_decref(json);
        any = true;
        p = hzp_reply_blanks(p, end);
        if (p < end && by && *p == by)
            p++;
    }
    if (!fits)
        hzp_reply_calls_drop(reply, before);
    return fits && any;
}

bool hzp_reply_read_mistral(struct hzp_reply *reply, const char *p, const char *end)
{
    int before = reply->calls;
    p = hzp_reply_blanks(p, end);
    if (p < end && (*p == '[' || *p == '{'))
        return hzp_reply_read_objects(reply, p, end, 0);
    while (p < end) {
        char name[256];
        const char *at = memmem(p, (size_t)(end - p), args, sizeof(args) - 1);
        bool fits = at && (size_t)(at - p) < sizeof(name);
        if (fits) {
            snprintf(name, sizeof(name), "%.*s", (int)(at - p), p);
            p = at + sizeof(args) - 1;
            json_t *json = next_value(&p, end, 0);
            fits = json && add_call(reply, name, json);
            json_decref(json);
        }
        if (!fits) {
            hzp_reply_calls_drop(reply, before);
            return false;
        }
        p = hzp_reply_blanks(p, end);
        if ((size_t)(end - p) >= sizeof(hzp_reply_mistral) - 1 &&
            !memcmp(p, hzp_reply_mistral, sizeof(hzp_reply_mistral) - 1))
            p = hzp_reply_blanks(p + sizeof(hzp_reply_mistral) - 1, end);
    }
    return reply->calls > before;
}

/* ---- GLM ---- */

/* The text between two marks at or behind *at, which moves behind the second; NULL: none. */
static char *between(const char **at, const char *end, const char *open, const char *close)
{
    const char *from = memmem(*at, (size_t)(end - *at), open, strlen(open));
    from = from ? from + strlen(open) : NULL;
    const char *to = from ? memmem(from, (size_t)(end - from), close, strlen(close)) : NULL;
    if (!to)
        return NULL;
    *at = to + strlen(close);
    return strndup(from, (size_t)(to - from));
}

/* Whether the tool's parameter is a string. */
static bool is_text(const struct hzp_reply *reply, const char *name, const char *key)
{
    const json_t *tool = json_object_get(reply->rules->names, name);
    const json_t *parameter = json_object_get(json_object_get(tool, "properties"), key);
    const char *type = json_string_value(json_object_get(parameter, "type"));
    return type && !strcmp(type, "string");
}

/* A value as GLM writes it, at or behind *at, which moves behind its end: text where the tool's
 * parameter is a string, else JSON, in which the mark of the end may stand.  NULL: there is
 * none. */
static json_t *glm_argument(const struct hzp_reply *reply, const char *name, const char *key,
                            const char **at, const char *end)
{
    const char *p = memmem(*at, (size_t)(end - *at), glm_value, sizeof(glm_value) - 1);
    json_t *json = NULL;
    if (p && !is_text(reply, name, key)) {
        p = hzp_reply_blanks(p + sizeof(glm_value) - 1, end);
        json = next_value(&p, end, JSON_DECODE_ANY);
        p = hzp_reply_blanks(p, end);
        if (json && (size_t)(end - p) >= sizeof(glm_value_end) - 1 &&
            !memcmp(p, glm_value_end, sizeof(glm_value_end) - 1)) {
            *at = p + sizeof(glm_value_end) - 1;
            return json;
        }
        json_decref(json);
    }
    char *text = between(at, end, glm_value, glm_value_end);
    json = text ? json_string(text) : NULL;
    free(text);
    return json;
}

bool hzp_reply_read_glm(struct hzp_reply *reply, const char *p, const char *end)
{
    const char *key_at = memmem(p, (size_t)(end - p), glm_key, sizeof(glm_key) - 1);
    const char *stop = key_at ? key_at : end;
    p = hzp_reply_blanks(p, stop);
    while (stop > p && strchr(" \n\r\t", stop[-1]) && stop[-1])
        stop--;
    char *name = strndup(p, (size_t)(stop - p)), *key;
    json_t *object = json_object(), *value;
    bool fits = true;
    for (p = key_at ? key_at : end; fits && p < end; p = hzp_reply_blanks(p, end)) {
        key = between(&p, end, glm_key, glm_key_end);
        value = key ? glm_argument(reply, name, key, &p, end) : NULL;
        fits = value && json_object_set_new(object, key, value) == 0;
        free(key);
    }
    fits = fits && name && *name && !strpbrk(name, "<{\n") && add_call(reply, name, object);
    json_decref(object);
    free(name);
    return fits;
}

/* ---- calls as they arrive ---- */

/* Moves *at behind the text, and blanks around it, if that is there. */
static bool skip_text(const char **at, const char *end, const char *text)
{
    const char *p = hzp_reply_blanks(*at, end);
    size_t n = strlen(text);
    if ((size_t)(end - p) < n || memcmp(p, text, n) != 0)
        return false;
    *at = hzp_reply_blanks(p + n, end);
    return true;
}

/* The name in front of the arguments; false: it is not there (yet). */
static bool read_name(const char **at, const char *end, bool mistral, char *ret, size_t size)
{
    const char *p = *at, *stop;
    if (mistral && p < end && *p != '[' && *p != '{') {
        stop = memmem(p, (size_t)(end - p), args, sizeof(args) - 1);
        if (!stop || (size_t)(stop - p) >= size)
            return false;
        *at = hzp_reply_blanks(stop + sizeof(args) - 1, end);
        snprintf(ret, size, "%.*s", (int)(stop - p), p);
        return true;
    }
    skip_text(&p, end, "[");
    if (!skip_text(&p, end, "{") || !skip_text(&p, end, "\"name\"") || !skip_text(&p, end, ":") ||
        p == end || *p != '"')
        return false;
    p++;
    stop = memchr(p, '"', (size_t)(end - p));
    if (!stop || memchr(p, '\\', (size_t)(stop - p)) || (size_t)(stop - p) >= size)
        return false;
    snprintf(ret, size, "%.*s", (int)(stop - p), p);
    p = stop + 1;
    if (!skip_text(&p, end, ",") ||
        (!skip_text(&p, end, "\"arguments\"") && !skip_text(&p, end, "\"parameters\"")) ||
        !skip_text(&p, end, ":"))
        return false;
    *at = p;
    return true;
}

int hzp_reply_begins(const struct hzp_reply *reply, const char *p, const char *end)
{
    static const char *const parts[] = {"{", "\"name\"", ":", "\""};
    for (int i = 0; i < HZP_COUNT(parts); i++) {
        size_t n = strlen(parts[i]);
        p = hzp_reply_blanks(p, end);
        if (memcmp(p, parts[i], HZP_MIN(n, (size_t)(end - p))) != 0)
            return 0;
        if ((size_t)(end - p) < n)
            return -1;
        p += n;
    }
    const char *stop = memchr(p, '"', (size_t)(end - p));
    if (!stop)
        return end - p > 256 ? 0 : -1;
    char *name = strndup(p, (size_t)(stop - p));
    bool known = name && json_object_get(reply->rules->names, name);
    free(name);
    return known;
}

const char *hzp_reply_live_begin(struct hzp_reply *reply, const char *p, const char *end)
{
    char name[256];
    if (!read_name(&p, end, reply->rules->calls == HZP_CALLS_MISTRAL, name, sizeof(name)) ||
        p == end || *p != '{')
        return NULL;
    int begun = hzp_reply_call_begin(reply, name);
    if (begun < 0)
        return NULL;
    reply->live = (struct hzp_reply_live){.left_out = !begun};
    return p;
}

bool hzp_reply_live_scan(struct hzp_reply_live *live, const char *text, size_t bytes,
                         size_t *ret_used)
{
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (live->string) {
            live->string = live->escaped || c != '"';
            live->escaped = !live->escaped && c == '\\';
        } else {
            live->string = c == '"';
            live->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            if (!live->depth) {
                *ret_used = i + 1;
                return true;
            }
        }
    }
    *ret_used = bytes;
    return false;
}
