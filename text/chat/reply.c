/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/reply_parts.h"

#include "base/utf8.h"

/* ---- rules ---- */

/* Whether the text ends with the mark and blanks behind it. */
static bool ends_with(const char *text, size_t bytes, const char *mark)
{
    size_t n = strlen(mark);
    while (bytes && hzp_is_blank(text[bytes - 1]))
        bytes--;
    return bytes >= n && !memcmp(text + bytes - n, mark, n);
}

void hzp_reply_rules_set(struct hzp_reply_rules *ret, const struct hzp_chat *chat,
                         const char *prompt, size_t bytes, const json_t *tools)
{
    const char *source = hzp_chat_source(chat);
    enum hzp_reply_calls calls = hzp_call_form_of(source);
    const json_t *tool;
    size_t i;
    memset(ret, 0, sizeof(*ret));
    ret->channels = calls == HZP_CALLS_CHANNELS;
    ret->reasoning = !ret->channels && strstr(source, hzp_mark_think_end) != NULL;
    ret->inside = ret->reasoning && ends_with(prompt, bytes, hzp_mark_think);
    if (ret->reasoning && ends_with(prompt, bytes, hzp_mark_think_end))
        ret->reasoning = false; /* the template has ended it already */
    if (!tools)
        return;
    ret->calls = calls;
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

void hzp_reply_rules_find_marks(struct hzp_reply_rules *rules, const struct hzp_tokenizer *tok)
{
    const char *mark[HZP_CALL_MARKS_MAX];
    int marks = hzp_call_form_marks(rules->channels ? HZP_CALLS_CHANNELS : rules->calls, mark);
    if (rules->reasoning) {
        mark[marks++] = hzp_mark_think;
        mark[marks++] = hzp_mark_think_end;
    }
    rules->marks = 0;
    for (int i = 0; i < marks; i++) {
        int32_t id = hzp_tokenizer_find(tok, mark[i], strlen(mark[i]));
        if (id >= 0 && hzp_tokenizer_is_special(tok, id))
            rules->mark[rules->marks++] = id;
    }
}

int hzp_reply_create(const struct hzp_reply_rules *rules, struct hzp_reply **ret)
{
    struct hzp_reply *reply = calloc(1, sizeof(*reply));
    if (!reply)
        return HZP_ENOMEM;
    reply->rules = rules;
    reply->form = &hzp_call_form[rules->calls];
    reply->state = rules->channels    ? HZP_REPLY_HEADER
                   : rules->inside    ? HZP_REPLY_REASONING
                   : rules->reasoning ? HZP_REPLY_BEGIN
                                      : HZP_REPLY_CONTENT;
    reply->after_mark = rules->inside;
    if (rules->inside && !rules->channels)
        hzp_reply_reasoning_begin(reply);
    *ret = reply;
    return HZP_OK;
}

void hzp_reply_destroy(struct hzp_reply *reply)
{
    if (!reply)
        return;
    hzp_reply_calls_fini(reply);
    hzp_textbuf_fini(&reply->reasoning);
    hzp_textbuf_fini(&reply->content);
    hzp_textbuf_fini(&reply->held);
    hzp_textbuf_fini(&reply->redo);
    free(reply->part);
    free(reply->span);
    free(reply);
}

/* ---- what is held, and where it goes ---- */

static struct hzp_textbuf *text_of(struct hzp_reply *reply, enum hzp_reply_kind kind, int call)
{
    return kind == HZP_REPLY_IS_REASONING ? &reply->reasoning
           : kind == HZP_REPLY_IS_CONTENT ? &reply->content
                                          : &reply->call[call].arguments;
}

static void open_part(struct hzp_reply *reply, enum hzp_reply_kind kind, int call, size_t code)
{
    size_t at = text_of(reply, kind, call)->bytes;
    reply->part =
        hzp_xgrow(reply->part, &reply->parts_room, reply->parts + 1, sizeof(*reply->part));
    reply->part[reply->parts++] = (struct hzp_reply_part){kind, call, at, at, code, code};
}

int hzp_reply_put(struct hzp_reply *reply, enum hzp_reply_kind kind, const char *text, size_t bytes)
{
    int call = kind == HZP_REPLY_IS_CALL ? reply->calls - 1 : 0;
    struct hzp_textbuf *to = text_of(reply, kind, call);
    struct hzp_reply_part *last = reply->parts ? &reply->part[reply->parts - 1] : NULL;
    if (!last || last->kind != kind || last->call != call)
        open_part(reply, kind, call, 0);
    if (bytes)
        HZP_TRY(hzp_textbuf_append(to, text, bytes));
    reply->part[reply->parts - 1].to = to->bytes;
    return HZP_OK;
}

int hzp_reply_hold(struct hzp_reply *reply, char c)
{
    return hzp_textbuf_append(&reply->held, &c, 1);
}

void hzp_reply_drop(struct hzp_reply *reply)
{
    reply->held.bytes = 0;
    reply->blanks = 0;
}

/* Code points of the text that have been taken and will not be taken again. */
static size_t codes_taken(const struct hzp_reply *reply)
{
    return reply->codes - hzp_utf8_count(reply->redo.data, reply->redo.bytes);
}

/* Content or reasoning, which the text has from this code point on. */
static int put_text(struct hzp_reply *reply, enum hzp_reply_kind kind, const char *text,
                    size_t bytes, size_t code)
{
    struct hzp_reply_part *last = reply->parts ? &reply->part[reply->parts - 1] : NULL;
    bool more = last && last->kind == kind && last->code_to == code;
    if (!more)
        open_part(reply, kind, 0, code);
    HZP_TRY(hzp_reply_put(reply, kind, text, bytes));
    reply->part[reply->parts - 1].code_to = code + hzp_utf8_count(text, bytes);
    return HZP_OK;
}

int hzp_reply_release(struct hzp_reply *reply, size_t n, enum hzp_reply_kind kind)
{
    char *text = reply->held.data;
    size_t skip = reply->after_mark ? hzp_blanks(text, n) : 0;
    if (n > skip) {
        size_t behind = hzp_utf8_count(text + skip, reply->held.bytes - skip);
        reply->after_mark = false;
        HZP_TRY(put_text(reply, kind, text + skip, n - skip, codes_taken(reply) - behind));
    }
    if (n)
        memmove(text, text + n, reply->held.bytes - n);
    reply->held.bytes -= n;
    reply->blanks = 0;
    return HZP_OK;
}

int hzp_reply_redo(struct hzp_reply *reply, const char *text, size_t bytes)
{
    for (size_t i = bytes; i-- > 0;)
        HZP_TRY(hzp_textbuf_append(&reply->redo, text + i, 1));
    return HZP_OK;
}

int hzp_reply_again(struct hzp_reply *reply, size_t from)
{
    if (reply->held.bytes > from)
        HZP_TRY(hzp_reply_redo(reply, reply->held.data + from, reply->held.bytes - from));
    reply->held.bytes = from;
    reply->blanks = HZP_MIN(reply->blanks, from);
    return HZP_OK;
}

int hzp_reply_mark(const char *text, size_t bytes, const char *const *mark, int marks)
{
    int found = 0;
    for (int k = 0; k < marks; k++) {
        size_t n = strlen(mark[k]);
        if (bytes == n && !memcmp(text, mark[k], n))
            return k + 1;
        if (bytes < n && !memcmp(text, mark[k], bytes))
            found = -1;
    }
    return found;
}

int hzp_reply_watch(struct hzp_reply *reply, char c, const char *const *mark, int marks,
                    enum hzp_reply_kind kind)
{
    HZP_TRY(hzp_reply_hold(reply, c));
    if (!marks)
        return hzp_reply_release(reply, reply->held.bytes, kind);
    for (;;) {
        const char *text = reply->held.data;
        size_t bytes = reply->held.bytes;
        while (reply->blanks < bytes && hzp_is_blank(text[reply->blanks]))
            reply->blanks++;
        if (reply->blanks == bytes)
            return 0;
        int found = hzp_reply_mark(text + reply->blanks, bytes - reply->blanks, mark, marks);
        if (found)
            return HZP_MAX(found, 0);
        HZP_TRY(hzp_reply_release(reply, reply->blanks + 1, kind));
    }
}

/* ---- where the reasoning is ---- */

void hzp_reply_reasoning_begin(struct hzp_reply *reply)
{
    reply->span =
        hzp_xgrow(reply->span, &reply->spans_room, reply->spans + 1, sizeof(*reply->span));
    reply->span[reply->spans++] = (struct hzp_reply_span){codes_taken(reply), SIZE_MAX};
}

void hzp_reply_reasoning_end(struct hzp_reply *reply, const char *mark)
{
    struct hzp_reply_span *last = reply->spans ? &reply->span[reply->spans - 1] : NULL;
    if (last && last->to == SIZE_MAX)
        last->to = codes_taken(reply) - strlen(mark);
}

/* The first token that does not begin before this place. */
static int32_t first_token(const int32_t *offset, int32_t tokens, size_t place)
{
    int32_t low = 0, high = tokens;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if ((size_t)offset[mid] < place)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int32_t hzp_reply_reasoned(const struct hzp_reply *reply, const int32_t *offset, int32_t tokens)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < reply->spans; i++) {
        const struct hzp_reply_span *span = &reply->span[i];
        /* what is held may become the mark of its end */
        size_t to = span->to == SIZE_MAX
                        ? reply->codes - hzp_utf8_count(reply->held.data, reply->held.bytes)
                        : span->to;
        sum += first_token(offset, tokens, to) - first_token(offset, tokens, span->from);
    }
    return sum;
}

/* ---- reasoning and content ---- */

static int step_begin(struct hzp_reply *reply, char c)
{
    static const char *const think = hzp_mark_think;
    HZP_TRY(hzp_reply_hold(reply, c));
    if (reply->blanks + 1 == reply->held.bytes && hzp_is_blank(c)) {
        reply->blanks++;
        return HZP_OK;
    }
    int found = hzp_reply_mark(reply->held.data + reply->blanks, reply->held.bytes - reply->blanks,
                               &think, 1);
    if (found < 0)
        return HZP_OK;
    reply->state = found ? HZP_REPLY_REASONING : HZP_REPLY_CONTENT;
    reply->after_mark = found;
    if (!found)
        return hzp_reply_again(reply, 0);
    hzp_reply_drop(reply);
    hzp_reply_reasoning_begin(reply);
    return HZP_OK;
}

static int step_reasoning(struct hzp_reply *reply, char c)
{
    static const char *const end = hzp_mark_think_end;
    int found = hzp_reply_watch(reply, c, &end, 1, HZP_REPLY_IS_REASONING);
    if (found <= 0)
        return found;
    hzp_reply_drop(reply);
    hzp_reply_reasoning_end(reply, end);
    reply->state = HZP_REPLY_CONTENT;
    reply->after_mark = true;
    return HZP_OK;
}

static int step_content(struct hzp_reply *reply, char c)
{
    const struct hzp_call_form *form = reply->form;
    const char *mark[2];
    int marks = 0;
    if (form->open)
        mark[marks++] = form->open;
    if (form->close && reply->block)
        mark[marks++] = form->close;
    if (form->bare && c == '{' && !reply->content.bytes && reply->blanks == reply->held.bytes) {
        HZP_TRY(hzp_reply_hold(reply, c)); /* the whole answer may be a call */
        reply->list = false;
        HZP_TRY(hzp_reply_begin_object(reply));
        reply->reading.bare = true;
        return HZP_OK;
    }
    int found = hzp_reply_watch(reply, c, mark, marks, HZP_REPLY_IS_CONTENT);
    if (found == 1) {
        reply->state = HZP_REPLY_OPEN;
        reply->list = false;
    } else if (found == 2) {
        reply->block = false;
        reply->after_mark = true;
        hzp_reply_drop(reply);
    }
    return HZP_MIN(found, 0);
}

void hzp_reply_to_content(struct hzp_reply *reply)
{
    reply->state = reply->rules->channels ? HZP_REPLY_BODY : HZP_REPLY_CONTENT;
    reply->body = HZP_REPLY_IS_CONTENT;
}

/* ---- all steps ---- */

typedef int step(struct hzp_reply *reply, char c);

static step *const steps[] = {
    [HZP_REPLY_BEGIN] = step_begin,
    [HZP_REPLY_REASONING] = step_reasoning,
    [HZP_REPLY_CONTENT] = step_content,
    [HZP_REPLY_OPEN] = hzp_reply_step_open,
    [HZP_REPLY_OBJECT] = hzp_reply_step_object,
    [HZP_REPLY_NAME] = hzp_reply_step_name,
    [HZP_REPLY_ID] = hzp_reply_step_id,
    [HZP_REPLY_BRACE] = hzp_reply_step_brace,
    [HZP_REPLY_ARGUMENTS] = hzp_reply_step_arguments,
    [HZP_REPLY_REST] = hzp_reply_step_rest,
    [HZP_REPLY_AFTER] = hzp_reply_step_after,
    [HZP_REPLY_PAIR] = hzp_reply_step_pair,
    [HZP_REPLY_KEY] = hzp_reply_step_key,
    [HZP_REPLY_BETWEEN] = hzp_reply_step_between,
    [HZP_REPLY_VALUE] = hzp_reply_step_value,
    [HZP_REPLY_HEADER] = hzp_reply_step_header,
    [HZP_REPLY_BODY] = hzp_reply_step_body,
};

/* Whatever is to be taken again. */
static int take_again(struct hzp_reply *reply)
{
    while (reply->redo.bytes) {
        char next = reply->redo.data[--reply->redo.bytes];
        HZP_TRY(steps[reply->state](reply, next));
    }
    return HZP_OK;
}

/* What is held at the end of the text. */
static int end_text(struct hzp_reply *reply)
{
    size_t held = reply->held.bytes;
    switch (reply->state) {
    case HZP_REPLY_REASONING:
        return hzp_reply_release(reply, held, HZP_REPLY_IS_REASONING);
    case HZP_REPLY_BODY:
        return hzp_reply_release(reply, held, reply->body);
    case HZP_REPLY_ARGUMENTS:
        return held ? hzp_reply_put_arguments(reply, reply->held.data, held) : HZP_OK;
    case HZP_REPLY_REST:
    case HZP_REPLY_AFTER: /* the beginning of a mark */
        return HZP_OK;
    case HZP_REPLY_HEADER:
        return hzp_reply_end_header(reply);
    case HZP_REPLY_BRACE: /* the body of a channel is empty */
        return reply->rules->channels ? HZP_OK
                                      : hzp_reply_release(reply, held, HZP_REPLY_IS_CONTENT);
    default:
        return hzp_reply_release(reply, held, HZP_REPLY_IS_CONTENT);
    }
}

bool hzp_reply_called(const struct hzp_reply *reply)
{
    return reply && reply->calls > 0 && reply->state != HZP_REPLY_ARGUMENTS;
}

int hzp_reply_feed(struct hzp_reply *reply, const char *text, size_t bytes, bool end)
{
    reply->fed += bytes;
    if (reply->ended)
        return HZP_OK;
    for (size_t i = 0; i < bytes; i++) {
        reply->codes += ((unsigned char)text[i] & 0xC0) != 0x80;
        HZP_TRY(steps[reply->state](reply, text[i]));
        HZP_TRY(take_again(reply));
    }
    if (!end)
        return HZP_OK;
    for (int more = 1; more > 0 && reply->state == HZP_REPLY_VALUE;) {
        HZP_TRY(more = hzp_reply_end_value(reply));
        HZP_TRY(take_again(reply));
    }
    reply->ended = true;
    return end_text(reply);
}
