/* SPDX-License-Identifier: Apache-2.0 */
/* Calls in GLM's form: a name, then keys and values between marks.  A value is text where the
 * tool's parameter is a string, else JSON, in whose strings the mark of its end may stand, or text
 * if it is none. */
#include "text/chat/reply_parts.h"

/* The text since the word began, without the mark that is held behind it; false: it is not. */
static bool word_before(const struct hzp_reply *reply, const char *mark, const char **ret,
                        size_t *ret_bytes)
{
    size_t n = strlen(mark), bytes = reply->held.bytes - reply->reading.from;
    *ret = reply->held.data + reply->reading.from;
    if (bytes < n || memcmp(*ret + bytes - n, mark, n) != 0)
        return false;
    *ret_bytes = bytes - n;
    return true;
}

/* The text as a string of JSON; owned by the caller; NULL: no memory. */
static char *quote(const char *text, size_t bytes)
{
    json_auto_t *string = json_stringn_nocheck(text, bytes);
    return string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
}

int hzp_reply_begin_pairs(struct hzp_reply *reply)
{
    json_decref(reply->reading.pairs);
    free(reply->reading.pair);
    reply->reading =
        (struct hzp_reply_reading){.from = reply->held.bytes - 1, .pairs = json_object()};
    reply->state = HZP_REPLY_PAIR;
    return HZP_OK;
}

/* Behind the mark of a call's end. */
/* The arguments that were read, as an object of JSON. */
static int write_pairs(const struct hzp_reply *reply, struct hzp_textbuf *text)
{
    const char *key;
    json_t *value;
    HZP_TRY(hzp_textbuf_append(text, "{", 1));
    json_object_foreach(reply->reading.pairs, key, value)
    {
        HZP_FREED char *quoted = quote(key, strlen(key));
        if (!quoted)
            return HZP_ENOMEM;
        HZP_TRY(hzp_textbuf_append(text, ", ", text->bytes > 1 ? 2 : 0));
        HZP_TRY(hzp_textbuf_append(text, quoted, strlen(quoted)));
        HZP_TRY(hzp_textbuf_append(text, ": ", 2));
        HZP_TRY(hzp_textbuf_append(text, json_string_value(value), json_string_length(value)));
    }
    return hzp_textbuf_append(text, "}", 1);
}

static int end_pairs(struct hzp_reply *reply)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
    int r = write_pairs(reply, &text);
    if (r == HZP_OK)
        r = hzp_reply_call_whole(reply, text.data, text.bytes);
    if (reply->state != HZP_REPLY_AFTER)
        return r;
    reply->state = HZP_REPLY_CONTENT;
    reply->after_mark = true;
    reply->block = false;
    return r;
}

/* The name, or blanks, and then a mark. */
int hzp_reply_step_pair(struct hzp_reply *reply, char c)
{
    struct hzp_reply_reading *reading = &reply->reading;
    const char *const mark[] = {hzp_mark_glm_key, reply->form->close};
    HZP_TRY(hzp_reply_hold(reply, c));
    const char *text = reply->held.data + reading->from;
    size_t bytes = reply->held.bytes - reading->from;
    const char *at = memchr(text, '<', bytes);
    size_t word = at ? (size_t)(at - text) : bytes;
    if (!at && reading->named) {
        reading->from = reply->held.bytes;
        return hzp_is_blank(c) ? HZP_OK : hzp_reply_no_call(reply);
    }
    if (!at)
        return word <= HZP_CALL_NAME_MAX + 8 && c != '{' ? HZP_OK : hzp_reply_no_call(reply);
    if (!reading->named && !hzp_reply_set_name(reply, text, word))
        return hzp_reply_no_call(reply);
    int found = hzp_reply_mark(at, bytes - word, mark, 2);
    if (!found)
        return hzp_reply_no_call(reply);
    if (found == 2)
        return end_pairs(reply);
    if (found == 1) {
        reading->from = reply->held.bytes;
        reply->state = HZP_REPLY_KEY;
    }
    return HZP_OK;
}

int hzp_reply_step_key(struct hzp_reply *reply, char c)
{
    const char *text;
    size_t bytes;
    HZP_TRY(hzp_reply_hold(reply, c));
    if (!word_before(reply, hzp_mark_glm_key_end, &text, &bytes))
        return HZP_OK;
    free(reply->reading.pair);
    reply->reading.pair = strndup(text, bytes);
    if (!reply->reading.pair)
        return HZP_ENOMEM;
    reply->reading.from = reply->held.bytes;
    reply->state = HZP_REPLY_BETWEEN;
    return HZP_OK;
}

/* Whether the tool's parameter is a string. */
static bool is_text(const struct hzp_reply *reply)
{
    const json_t *tool = json_object_get(reply->rules->names, reply->reading.name);
    const json_t *parameter =
        json_object_get(json_object_get(tool, "properties"), reply->reading.pair);
    const char *type = json_string_value(json_object_get(parameter, "type"));
    return type && !strcmp(type, "string");
}

int hzp_reply_step_between(struct hzp_reply *reply, char c)
{
    struct hzp_reply_reading *reading = &reply->reading;
    static const char *const mark = hzp_mark_glm_value;
    HZP_TRY(hzp_reply_hold(reply, c));
    const char *text = reply->held.data + reading->from;
    size_t bytes = reply->held.bytes - reading->from;
    if (bytes == 1 && hzp_is_blank(c)) {
        reading->from++;
        return HZP_OK;
    }
    int found = hzp_reply_mark(text, bytes, &mark, 1);
    if (!found)
        return hzp_reply_no_call(reply);
    if (found < 0)
        return HZP_OK;
    reading->from = reply->held.bytes;
    reading->first_end = 0;
    reading->text = is_text(reply);
    reading->json = !reading->text;
    reply->scan = (struct hzp_json_scan){0};
    reply->state = HZP_REPLY_VALUE;
    return HZP_OK;
}

/* Keeps a value of so many bytes, as JSON. */
static int keep_value(struct hzp_reply *reply, size_t bytes)
{
    struct hzp_reply_reading *reading = &reply->reading;
    const char *text = reply->held.data + reading->from;
    json_t *value;
    if (!reading->text && hzp_json_is(text, bytes, false, false)) {
        hzp_trim(&text, &bytes);
        value = json_stringn_nocheck(text, bytes);
    } else {
        HZP_FREED char *quoted = quote(text, bytes);
        value = quoted ? json_string_nocheck(quoted) : NULL;
    }
    return value && json_object_set_new_nocheck(reading->pairs, reading->pair, value) == 0
               ? HZP_OK
               : HZP_ENOMEM;
}

/* The value ends where held has its mark first; what is behind that is taken again. */
static int end_early(struct hzp_reply *reply)
{
    struct hzp_reply_reading *reading = &reply->reading;
    size_t end = reading->first_end, mark = strlen(hzp_mark_glm_value_end);
    HZP_TRY(keep_value(reply, end - mark - reading->from));
    HZP_TRY(hzp_reply_again(reply, end));
    reading->from = end;
    reply->state = HZP_REPLY_PAIR;
    return HZP_OK;
}

int hzp_reply_step_value(struct hzp_reply *reply, char c)
{
    struct hzp_reply_reading *reading = &reply->reading;
    const char *text;
    size_t bytes;
    HZP_TRY(hzp_reply_hold(reply, c));
    if (reading->json && c == '<' && reply->scan.state == HZP_SCAN_DONE) {
        reading->json = false; /* JSON has ended: this mark is the value's */
        reading->first_end = 0;
    }
    reading->json = reading->json && hzp_json_scan(&reply->scan, c);
    if (!reading->json && reading->first_end)
        return end_early(reply);
    if (!word_before(reply, hzp_mark_glm_value_end, &text, &bytes))
        return HZP_OK;
    if (reading->json) { /* only within a string is the mark JSON */
        reading->first_end = reading->first_end ? reading->first_end : reply->held.bytes;
        return HZP_OK;
    }
    reading->first_end = reply->held.bytes;
    return end_early(reply);
}

int hzp_reply_end_value(struct hzp_reply *reply)
{
    bool early = reply->reading.first_end;
    if (early)
        HZP_TRY(end_early(reply));
    return early;
}
