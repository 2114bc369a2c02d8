/* SPDX-License-Identifier: Apache-2.0 */
/* The calls in a reply: read whole, or begun as soon as their name is known. */
#include "base/json.h"
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

/* Arguments as they are written: an object, or its JSON as a string; text NULL, or null: none.
 * False: that is no call. */
static bool add_call(struct hzp_reply *reply, const char *name, const char *text, size_t bytes)
{
    json_t *json = text ? hzp_json_load(text, bytes, HZP_JSON_ANY, NULL, NULL) : json_null(),
           *inner = NULL;
    if (json_is_null(json)) {
        text = "{}";
        bytes = 2;
    } else if (json_is_string(json)) {
        text = json_string_value(json);
        bytes = json_string_length(json);
        inner = hzp_json_load(text, bytes, 0, NULL, NULL);
    }
    bool fits = json_is_null(json) || json_is_object(inner ? inner : json);
    int begun = fits && !hzp_json_spelling(json) ? hzp_reply_call_begin(reply, name) : -1;
    if (begun > 0 &&
        hzp_textbuf_append(&reply->call[reply->calls - 1].arguments, text, bytes) != HZP_OK)
        begun = -1;
    json_decref(inner);
    json_decref(json);
    return begun >= 0;
}

/* {"name": ..., "arguments" or "parameters": ...}, as json, and where it is written. */
static bool add_object(struct hzp_reply *reply, const json_t *json, const char *text, size_t bytes)
{
    const json_t *name = json_object_get(json, "name");
    const char *arguments = NULL;
    size_t n = 0;
    if (!json_is_object(json) || !hzp_json_is_text(name))
        return false;
    if (!hzp_json_member(text, bytes, "arguments", &arguments, &n))
        hzp_json_member(text, bytes, "parameters", &arguments, &n);
    return add_call(reply, json_string_value(name), arguments, n);
}

/* Objects in a list that is not empty. */
static bool add_list(struct hzp_reply *reply, const json_t *json, const char *text, size_t bytes)
{
    const char *at = text, *one;
    size_t i, n;
    json_t *each;
    bool fits = json_array_size(json) > 0;
    json_array_foreach(json, i, each)
    {
        fits =
            fits && hzp_json_item(&at, text + bytes, &one, &n) && add_object(reply, each, one, n);
    }
    return fits;
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
 * array; HZP_JSON_ANY. */
static json_t *next_value(const char **at, const char *end, int how)
{
    size_t used = 0;
    json_t *json = hzp_json_load(*at, (size_t)(end - *at), HZP_JSON_PREFIX | how, &used, NULL);
    *at += used;
    return json;
}

bool hzp_reply_read_objects(struct hzp_reply *reply, const char *p, const char *end, char by)
{
    int before = reply->calls;
    bool fits = true, any = false;
    for (p = hzp_reply_blanks(p, end); fits && p < end; p = hzp_reply_blanks(p, end)) {
        const char *from = p;
        json_t *json = next_value(&p, end, 0);
        size_t bytes = (size_t)(p - from);
        fits = json_is_array(json) ? !any && add_list(reply, json, from, bytes)
                                   : add_object(reply, json, from, bytes);
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
        bool fits = at && (size_t)(at - p) < sizeof(name) && !memchr(p, 0, (size_t)(at - p));
        if (fits) {
            snprintf(name, sizeof(name), "%.*s", (int)(at - p), p);
            p = at + sizeof(args) - 1;
            p = hzp_reply_blanks(p, end);
            const char *from = p;
            json_t *json = next_value(&p, end, 0);
            fits = json && add_call(reply, name, from, (size_t)(p - from));
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

/* The text between two marks at or behind *at, which moves behind the second, as a string; NULL:
 * none. */
static json_t *between(const char **at, const char *end, const char *open, const char *close)
{
    const char *from = memmem(*at, (size_t)(end - *at), open, strlen(open));
    from = from ? from + strlen(open) : NULL;
    const char *to = from ? memmem(from, (size_t)(end - from), close, strlen(close)) : NULL;
    if (!to)
        return NULL;
    *at = to + strlen(close);
    return json_stringn(from, (size_t)(to - from));
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
        const char *from = p;
        json = next_value(&p, end, HZP_JSON_ANY);
        size_t bytes = (size_t)(p - from);
        p = hzp_reply_blanks(p, end);
        if (json && (size_t)(end - p) >= sizeof(glm_value_end) - 1 &&
            !memcmp(p, glm_value_end, sizeof(glm_value_end) - 1)) {
            *at = p + sizeof(glm_value_end) - 1;
            json_decref(json);
            return hzp_json_spelled(from, bytes); /* as it is written */
        }
        json_decref(json);
    }
    return between(at, end, glm_value, glm_value_end);
}

bool hzp_reply_read_glm(struct hzp_reply *reply, const char *p, const char *end)
{
    const char *key_at = memmem(p, (size_t)(end - p), glm_key, sizeof(glm_key) - 1);
    const char *stop = key_at ? key_at : end;
    p = hzp_reply_blanks(p, stop);
    while (stop > p && strchr(" \n\r\t", stop[-1]) && stop[-1])
        stop--;
    char *name = strndup(p, (size_t)(stop - p)), *text = NULL;
    json_t *object = json_object(), *key, *value;
    bool fits = name && !memchr(p, 0, (size_t)(stop - p));
    for (p = key_at ? key_at : end; fits && p < end; p = hzp_reply_blanks(p, end)) {
        key = between(&p, end, glm_key, glm_key_end);
        value = key ? glm_argument(reply, name, json_string_value(key), &p, end) : NULL;
        fits = value && json_object_setn_new(object, json_string_value(key),
                                             json_string_length(key), value) == 0;
        json_decref(key);
    }
    if (fits && *name && !strpbrk(name, "<{\n"))
        text = hzp_json_dumps(object, 0);
    fits = text && add_call(reply, name, text, strlen(text));
    json_decref(object);
    free(text);
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
        if (!stop || (size_t)(stop - p) >= size || memchr(p, 0, (size_t)(stop - p)))
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
    if (!stop || memchr(p, '\\', (size_t)(stop - p)) || memchr(p, 0, (size_t)(stop - p)) ||
        (size_t)(stop - p) >= size)
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
