/* SPDX-License-Identifier: Apache-2.0 */
/* The calls in a reply, as objects or behind names. */
#include "text/chat/reply_parts.h"

#include <sys/random.h>

/* ---- calls ---- */

/* The last step of SplitMix64. */
static uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The model's own id, if no other call has it; else a made one. */
static void make_id(const struct hzp_reply *reply, char *id, size_t size)
{
    uint64_t word[2] = {(uint64_t)clock(), (uintptr_t)reply};
    const char *own = reply->reading.id;
    for (int i = 0; i < reply->calls; i++)
        if (!strcmp(reply->call[i].id, own))
            own = "";
    if (reply->id_seed) {
        word[0] = scramble(reply->id_seed + (uint64_t)reply->calls);
        word[1] = scramble(word[0]);
    } else if (getrandom(word, sizeof(word), 0) < 0) {
        word[0] ^= (uint64_t)time(NULL);
    }
    if (*own)
        snprintf(id, size, "%s", own);
    else if (reply->form->short_ids)
        snprintf(id, size, "%09llx", (unsigned long long)(word[0] & 0xFFFFFFFFFull));
    else
        snprintf(id, size, "call_%016llx%08x", (unsigned long long)word[0], (unsigned)word[1]);
}

bool hzp_reply_set_name(struct hzp_reply *reply, const char *text, size_t bytes)
{
    struct hzp_reply_reading *reading = &reply->reading;
    hzp_trim(&text, &bytes);
    if (!bytes || bytes > HZP_CALL_NAME_MAX || memchr(text, 0, bytes))
        return false;
    memcpy(reading->name, text, bytes);
    reading->name[bytes] = '\0';
    reading->named = !reply->rules->names || json_object_get(reply->rules->names, reading->name);
    return reading->named;
}

/* Begins the call that was read, without arguments.  False: there are too many. */
static bool begin_call(struct hzp_reply *reply)
{
    struct hzp_reply_reading *reading = &reply->reading;
    reading->depth = 0;
    reading->string = reading->escaped = false;
    reading->left_out = reply->rules->one_call && reply->calls;
    if (reading->left_out)
        return true;
    struct hzp_reply_call *call = &reply->call[reply->calls];
    if (reply->calls == HZP_REPLY_CALLS_MAX || !(call->name = strdup(reading->name)))
        return false;
    make_id(reply, call->id, sizeof(call->id));
    reply->calls++;
    return true;
}

void hzp_reply_calls_fini(struct hzp_reply *reply)
{
    for (int i = 0; i < reply->calls; i++) {
        free(reply->call[i].name);
        hzp_textbuf_fini(&reply->call[i].arguments);
    }
    json_decref(reply->reading.pairs);
    free(reply->reading.pair);
}

int hzp_reply_no_call(struct hzp_reply *reply)
{
    size_t n = reply->held.bytes - 1;
    hzp_reply_to_content(reply);
    HZP_TRY(hzp_reply_release(reply, n, HZP_REPLY_IS_CONTENT));
    return hzp_reply_again(reply, 0);
}

/* ---- arguments ---- */

/* Takes one byte of a call's arguments, or of what looks like them: braces and strings count, no
 * more, so that malformed ones end too.  True: they end with it. */
static bool count_byte(struct hzp_reply_reading *reading, char c)
{
    if (reading->string) {
        reading->string = reading->escaped || c != '"';
        reading->escaped = !reading->escaped && c == '\\';
        return false;
    }
    reading->string = c == '"';
    reading->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    return !reading->depth;
}

/* Appends one byte; in a string a control character as JSON writes it. */
static int put_byte(struct hzp_reply *reply, char c)
{
    char text[8] = {c};
    size_t n = 1;
    if (reply->reading.string && (unsigned char)c < ' ') {
        const char *found = c ? strchr("\nn\tt\rr", c) : NULL;
        n = (size_t)(found ? snprintf(text, sizeof(text), "\\%c", found[1])
                           : snprintf(text, sizeof(text), "\\u%04x", c));
    }
    return reply->reading.left_out ? HZP_OK : hzp_reply_put(reply, HZP_REPLY_IS_CALL, text, n);
}

int hzp_reply_put_arguments(struct hzp_reply *reply, const char *text, size_t bytes)
{
    if (!reply->reading.left_out)
        HZP_TRY(hzp_reply_put(reply, HZP_REPLY_IS_CALL, "", 0));
    for (size_t i = 0; i < bytes; i++) {
        HZP_TRY(put_byte(reply, text[i]));
        count_byte(&reply->reading, text[i]);
    }
    return HZP_OK;
}

/* The brace of the arguments is held: from here on they are passed on. */
static int begin_arguments(struct hzp_reply *reply)
{
    if (!begin_call(reply))
        return hzp_reply_no_call(reply);
    hzp_reply_drop(reply);
    reply->block = true;
    reply->state = HZP_REPLY_ARGUMENTS;
    return hzp_reply_put_arguments(reply, "{", 1);
}

int hzp_reply_call_whole(struct hzp_reply *reply, const char *arguments, size_t bytes)
{
    if (!begin_call(reply))
        return hzp_reply_no_call(reply);
    reply->block = true;
    reply->state = HZP_REPLY_AFTER;
    HZP_TRY(hzp_reply_put_arguments(reply, arguments, bytes));
    hzp_reply_drop(reply);
    return HZP_OK;
}

/* The marks that end a call's arguments, whatever is missing of them, and come behind them. */
static int end_marks(const struct hzp_reply *reply, const char *ret[HZP_REPLY_ENDS])
{
    int n = 0;
    if (reply->rules->channels) {
        memcpy(ret, hzp_reply_ends, HZP_REPLY_ENDS * sizeof(*ret));
        return HZP_REPLY_ENDS;
    }
    if (reply->form->open)
        ret[n++] = reply->form->open;
    if (reply->form->close)
        ret[n++] = reply->form->close;
    return n;
}

int hzp_reply_step_arguments(struct hzp_reply *reply, char c)
{
    struct hzp_reply_reading *reading = &reply->reading;
    const char *mark[HZP_REPLY_ENDS];
    int found = 0;
    if (!reading->string) {
        HZP_TRY(hzp_reply_hold(reply, c));
        found = hzp_reply_mark(reply->held.data, reply->held.bytes, mark, end_marks(reply, mark));
        if (found < 0)
            return HZP_OK;
        c = reply->held.data[0];
        HZP_TRY(hzp_reply_again(reply, found ? 0 : 1));
        hzp_reply_drop(reply);
    }
    if (found) { /* the arguments lack their end */
        reply->state = HZP_REPLY_AFTER;
        return HZP_OK;
    }
    HZP_TRY(put_byte(reply, c));
    if (!count_byte(reading, c))
        return HZP_OK;
    reply->state = reading->object ? HZP_REPLY_REST : HZP_REPLY_AFTER;
    reply->scan.depth = 1;
    reply->scan.state = HZP_SCAN_BEHIND;
    return HZP_OK;
}

/* Further fields are JSON; what is none does not belong to the call. */
int hzp_reply_step_rest(struct hzp_reply *reply, char c)
{
    bool json = hzp_json_scan(&reply->scan, c);
    if (json && reply->scan.state != HZP_SCAN_DONE)
        return HZP_OK;
    reply->state = HZP_REPLY_AFTER;
    return json ? HZP_OK : hzp_reply_redo(reply, &c, 1);
}

int hzp_reply_step_after(struct hzp_reply *reply, char c)
{
    const char *mark[HZP_REPLY_ENDS];
    HZP_TRY(hzp_reply_hold(reply, c));
    int found = hzp_reply_mark(reply->held.data, reply->held.bytes, mark, end_marks(reply, mark));
    if (found < 0)
        return HZP_OK;
    if (found && reply->rules->channels) {
        return hzp_reply_end_body(reply, found - 1);
    } else if (found && mark[found - 1] == reply->form->open) {
        reply->state = HZP_REPLY_OPEN;
        reply->list = false;
    } else if (found) {
        hzp_reply_drop(reply);
        reply->state = HZP_REPLY_CONTENT;
        reply->block = false;
        reply->after_mark = true;
    } else if (c == '{' && reply->held.bytes == 1 && reply->reading.object) {
        return hzp_reply_begin_object(reply);
    } else if (reply->held.bytes == 1 &&
               (hzp_is_blank(c) || c == '}' || c == ',' || c == ';' || (c == ']' && reply->list))) {
        reply->list &= c != ']';
        hzp_reply_drop(reply);
    } else {
        hzp_reply_to_content(reply);
        reply->after_mark = true;
        return hzp_reply_again(reply, 0);
    }
    return HZP_OK;
}

/* ---- {"name": ..., "arguments": ...} ---- */

int hzp_reply_begin_object(struct hzp_reply *reply)
{
    reply->reading = (struct hzp_reply_reading){.object = true};
    reply->scan = (struct hzp_json_scan){.controls = true};
    hzp_json_scan(&reply->scan, '{');
    reply->state = HZP_REPLY_OBJECT;
    return HZP_OK;
}

int hzp_reply_step_open(struct hzp_reply *reply, char c)
{
    HZP_TRY(hzp_reply_hold(reply, c));
    if (hzp_is_blank(c))
        return HZP_OK;
    if (reply->form->body == HZP_CALL_PAIRS)
        return hzp_reply_begin_pairs(reply);
    if (c == '{')
        return hzp_reply_begin_object(reply);
    if (c == '[' && !reply->list) {
        reply->list = true;
        return HZP_OK;
    }
    if (!reply->form->names || reply->list)
        return hzp_reply_no_call(reply);
    reply->reading = (struct hzp_reply_reading){.from = reply->held.bytes - 1};
    reply->state = HZP_REPLY_NAME;
    return HZP_OK;
}

static bool is(const char *text, size_t bytes, const char *word)
{
    return bytes == strlen(word) && !memcmp(text, word, bytes);
}

/* The quote behind a name of a member is held.  Without a mark, an object that begins otherwise
 * than a call is one no more; nor, if it must be the grammar's, one whose name does not come
 * first. */
static int end_key(struct hzp_reply *reply)
{
    struct hzp_reply_reading *reading = &reply->reading;
    const char *text = reply->held.data + reading->from;
    size_t bytes = reply->held.bytes - 1 - reading->from;
    bool arguments = is(text, bytes, "arguments") || is(text, bytes, "parameters");
    reading->key = is(text, bytes, "name") ? HZP_REPLY_KEY_NAME
                   : arguments             ? HZP_REPLY_KEY_ARGUMENTS
                                           : HZP_REPLY_KEY_OTHER;
    bool other =
        reading->key == HZP_REPLY_KEY_OTHER && !is(text, bytes, "type") && !is(text, bytes, "id");
    if (reading->bare && !reading->named &&
        (other || (reply->rules->strict && reading->key != HZP_REPLY_KEY_NAME)))
        return hzp_reply_no_call(reply);
    return HZP_OK;
}

/* The first byte of a member's value is held. */
static int begin_value(struct hzp_reply *reply, char c)
{
    struct hzp_reply_reading *reading = &reply->reading;
    size_t at = reply->held.bytes - 1;
    if (reading->key == HZP_REPLY_KEY_NAME) {
        reading->from = at + 1;
        return c == '"' ? HZP_OK : hzp_reply_no_call(reply);
    }
    if (reading->key == HZP_REPLY_KEY_OTHER)
        return HZP_OK;
    if (c == '{' && reading->named)
        return begin_arguments(reply);
    reading->args = c == '{'   ? HZP_REPLY_ARGS_OBJECT
                    : c == '"' ? HZP_REPLY_ARGS_STRING
                               : HZP_REPLY_ARGS_NONE;
    reading->args_from = at;
    return c == '{' || c == '"' || c == 'n' ? HZP_OK : hzp_reply_no_call(reply);
}

/* The string between its quotes as text; owned by the caller; NULL: it is none that can be held. */
static json_t *string_of(const char *text, size_t bytes)
{
    return hzp_json_load(text, bytes, HZP_JSON_ANY, NULL, NULL);
}

static int end_name(struct hzp_reply *reply)
{
    const char *text = reply->held.data + reply->reading.from - 1; /* with its quotes */
    size_t bytes = reply->held.bytes - reply->reading.from + 1;
    json_auto_t *name = string_of(text, bytes);
    bool known =
        name && hzp_reply_set_name(reply, json_string_value(name), json_string_length(name));
    if (known && reply->rules->strict && reply->reading.bare) { /* as the grammar writes it */
        HZP_FREED char *plain = json_dumps(name, JSON_ENCODE_ANY);
        known = plain && is(text, bytes, plain);
    }
    return known ? HZP_OK : hzp_reply_no_call(reply);
}

/* The object ends, and its arguments were not passed on. */
static int end_object(struct hzp_reply *reply)
{
    const struct hzp_reply_reading *reading = &reply->reading;
    const char *text = reply->held.data + reading->args_from;
    size_t bytes = reading->args_to - reading->args_from;
    if (!reading->named)
        return hzp_reply_no_call(reply);
    if (reading->args == HZP_REPLY_ARGS_NONE)
        return hzp_reply_call_whole(reply, "{}", 2);
    if (reading->args == HZP_REPLY_ARGS_OBJECT)
        return hzp_reply_call_whole(reply, text, bytes);
    json_auto_t *string = string_of(text, bytes);
    const char *inner = json_string_value(string);
    size_t length = json_string_length(string);
    return inner && hzp_json_is(inner, length, true, true)
               ? hzp_reply_call_whole(reply, inner, length)
               : hzp_reply_no_call(reply);
}

int hzp_reply_step_object(struct hzp_reply *reply, char c)
{
    struct hzp_json_scan *scan = &reply->scan;
    struct hzp_reply_reading *reading = &reply->reading;
    enum hzp_scan_state before = scan->state;
    int32_t depth = scan->depth;
    HZP_TRY(hzp_reply_hold(reply, c));
    if (!hzp_json_scan(scan, c))
        return hzp_reply_no_call(reply);
    if (reading->key == HZP_REPLY_KEY_ARGUMENTS && scan->depth == 1 &&
        (depth == 2 || before == HZP_SCAN_STRING) && scan->state == HZP_SCAN_BEHIND)
        reading->args_to = reply->held.bytes;
    if (scan->state == HZP_SCAN_DONE)
        return end_object(reply);
    if (depth != 1)
        return HZP_OK;
    if (before == HZP_SCAN_STRING && scan->state == HZP_SCAN_COLON)
        return end_key(reply);
    if (before == HZP_SCAN_STRING && scan->state == HZP_SCAN_BEHIND)
        return reading->key == HZP_REPLY_KEY_NAME ? end_name(reply) : HZP_OK;
    if ((before == HZP_SCAN_NAME || before == HZP_SCAN_FIRST) && c == '"')
        reading->from = reply->held.bytes;
    else if (before == HZP_SCAN_VALUE && !hzp_is_blank(c))
        return begin_value(reply, c);
    return HZP_OK;
}

/* ---- [TOOL_CALLS]name[CALL_ID]id[ARGS]{...} ---- */

/* What is held since the word began: *ret_word bytes, then a mark, a part of one, or a brace.  As
 * hzp_reply_mark; the brace is the last number. */
static int behind_word(const struct hzp_reply *reply, const char *const *mark, int marks,
                       size_t *ret_word)
{
    const char *text = reply->held.data + reply->reading.from;
    size_t bytes = reply->held.bytes - reply->reading.from;
    const char *found = memchr(text, '[', bytes);
    *ret_word = found ? (size_t)(found - text) : bytes;
    if (!found && text[bytes - 1] == '{') {
        --*ret_word;
        return marks + 1;
    }
    return found ? hzp_reply_mark(found, bytes - *ret_word, mark, marks) : -1;
}

int hzp_reply_step_name(struct hzp_reply *reply, char c)
{
    static const char *const mark[] = {hzp_mark_args, hzp_mark_call_id};
    size_t word;
    HZP_TRY(hzp_reply_hold(reply, c));
    int found = behind_word(reply, mark, 2, &word);
    const char *text = reply->held.data + reply->reading.from;
    if (found < 0 && word <= HZP_CALL_NAME_MAX + 1 && c != '\n')
        return HZP_OK;
    if (found <= 0 || !hzp_reply_set_name(reply, text, word))
        return hzp_reply_no_call(reply);
    if (found == 3)
        return begin_arguments(reply);
    reply->state = found == 1 ? HZP_REPLY_BRACE : HZP_REPLY_ID;
    reply->reading.from = reply->held.bytes;
    return HZP_OK;
}

int hzp_reply_step_id(struct hzp_reply *reply, char c)
{
    static const char *const mark[] = {hzp_mark_args};
    size_t word;
    HZP_TRY(hzp_reply_hold(reply, c));
    int found = behind_word(reply, mark, 1, &word);
    if (found < 0 && word < 64)
        return HZP_OK;
    if (found <= 0)
        return hzp_reply_no_call(reply);
    const char *text = reply->held.data + reply->reading.from;
    bool fits = word == HZP_CALL_ID_BYTES;
    for (size_t i = 0; i < word; i++)
        fits &= (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'A' && text[i] <= 'Z') ||
                (text[i] >= 'a' && text[i] <= 'z');
    if (fits)
        memcpy(reply->reading.id, text, word);
    reply->state = HZP_REPLY_BRACE;
    return found == 2 ? begin_arguments(reply) : HZP_OK;
}

int hzp_reply_step_brace(struct hzp_reply *reply, char c)
{
    HZP_TRY(hzp_reply_hold(reply, c));
    if (hzp_is_blank(c))
        return HZP_OK;
    if (c == '{')
        return begin_arguments(reply);
    if (!reply->rules->channels)
        return hzp_reply_no_call(reply);
    hzp_reply_to_content(reply); /* the body is no object */
    return hzp_reply_again(reply, 0);
}
