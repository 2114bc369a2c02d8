/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/load_event.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>

/* ---- the common event, in one pass ---- */

enum { DEPTH_MAX = 64 };

struct text {
    const char *at, *end;
};

static char peek(struct text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t'))
        t->at++;
    return t->at < t->end ? *t->at : 0;
}

static bool take(struct text *t, char c)
{
    if (peek(t) != c)
        return false;
    t->at++;
    return true;
}

/* A string: its bytes between the quotes, as they are written. */
static bool take_string(struct text *t, const char **from, size_t *bytes)
{
    if (!take(t, '"'))
        return false;
    *from = t->at;
    while (t->at < t->end && *t->at != '"')
        t->at += *t->at == '\\' && t->end - t->at > 1 ? 2 : 1;
    if (t->at >= t->end)
        return false;
    *bytes = (size_t)(t->at++ - *from);
    return true;
}

static bool take_word(struct text *t)
{
    const char *from = t->at;
    while (t->at < t->end && !memchr(",]} \t", *t->at, 5))
        t->at++;
    return t->at > from;
}

/* Any value: strings, brackets that match, words. */
static bool skip_value(struct text *t)
{
    char open[DEPTH_MAX];
    const char *from;
    size_t bytes;
    int depth = 0;
    do {
        char c = peek(t);
        if (c == '"') {
            if (!take_string(t, &from, &bytes))
                return false;
        } else if (c == '{' || c == '[') {
            if (depth == DEPTH_MAX)
                return false;
            open[depth++] = c == '{' ? '}' : ']';
            t->at++;
        } else if (c == '}' || c == ']') {
            if (!depth || open[--depth] != c)
                return false;
            t->at++;
        } else if (depth && (c == ',' || c == ':')) {
            t->at++;
        } else if (!c || !take_word(t)) {
            return false;
        }
    } while (depth);
    return true;
}

static bool take_null(struct text *t)
{
    if (peek(t) != 'n' || t->end - t->at < 4 || memcmp(t->at, "null", 4))
        return false;
    t->at += 4;
    return true;
}

static bool is(const char *key, size_t bytes, const char *name)
{
    return strlen(name) == bytes && !memcmp(key, name, bytes);
}

/* Walks over an object; field() takes a value and returns false where it is not a common one. */
static bool take_object(struct text *t,
                        bool (*field)(struct text *, const char *key, size_t bytes,
                                      struct hzp_load_event *),
                        struct hzp_load_event *e)
{
    const char *key;
    size_t bytes;
    if (!take(t, '{'))
        return false;
    if (take(t, '}'))
        return true;
    do
        if (!take_string(t, &key, &bytes) || memchr(key, '\\', bytes) || !take(t, ':') ||
            !field(t, key, bytes, e))
            return false;
    while (take(t, ','));
    return take(t, '}');
}

static bool choice_field(struct text *t, const char *key, size_t bytes, struct hzp_load_event *e)
{
    const char *text;
    if (is(key, bytes, "finish_reason"))
        return take_null(t);
    if (!is(key, bytes, "text"))
        return skip_value(t);
    if (!take_string(t, &text, &bytes))
        return false;
    e->text = bytes > 0;
    return true;
}

static bool event_field(struct text *t, const char *key, size_t bytes, struct hzp_load_event *e)
{
    if (is(key, bytes, "error") || is(key, bytes, "usage"))
        return take_null(t);
    if (!is(key, bytes, "choices"))
        return skip_value(t);
    e->choice = true;
    return take(t, '[') && take_object(t, choice_field, e) && take(t, ']');
}

/* One choice that has not finished, no error and no usage. */
static bool read_common(const char *data, size_t n, struct hzp_load_event *e)
{
    struct text t = {data, data + n};
    return take_object(&t, event_field, e) && peek(&t) == 0 && t.at == t.end && e->choice;
}

/* ---- any event ---- */

int hzp_load_event_read(const char *data, size_t n, struct hzp_load_event *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (read_common(data, n, ret))
        return HZP_OK;
    memset(ret, 0, sizeof(*ret));
    json_t *json = hzp_json_load(data, n, 0, NULL, NULL);
    if (!json_is_object(json)) {
        json_decref(json);
        return HZP_EFORMAT;
    }
    const json_t *error = json_object_get(json, "error");
    const json_t *usage = json_object_get(json, "usage");
    const json_t *choice = json_array_get(json_object_get(json, "choices"), 0);
    const char *text = json_string_value(json_object_get(choice, "text"));
    ret->choice = choice != NULL;
    ret->text = text && *text;
    ret->finished = json_is_string(json_object_get(choice, "finish_reason"));
    ret->usage = json_is_object(usage);
    ret->input = (int32_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    ret->output = (int32_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    if (json_is_object(error)) {
        const char *message = json_string_value(json_object_get(error, "message"));
        snprintf(ret->error, sizeof(ret->error), "%.140s",
                 message && *message ? message : "an error without a message");
    }
    json_decref(json);
    return HZP_OK;
}
