/* SPDX-License-Identifier: Apache-2.0 */
/* Replies in gpt-oss's channels:
 *
 *     <|channel|>analysis<|message|>reasoning<|end|>
 *     <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}
 *         <|call|>
 *     <|start|>assistant<|channel|>final<|message|>content
 *
 * The recipient may also stand in front of the channel, and then at the very beginning of the
 * answer, because the prompt ends with <|start|>assistant.  The header says where the body goes:
 * a recipient makes a call, analysis is reasoning, everything else is content.  The mark that ends
 * the last body is an end token, which has no text. */
#include "text/chat/reply_parts.h"

enum { HEADER_MAX = 1024 };

const char *const hzp_reply_ends[HZP_REPLY_ENDS] = {hzp_mark_end, hzp_mark_call, hzp_mark_return,
                                                    hzp_mark_start, hzp_mark_channel};

int hzp_reply_end_body(struct hzp_reply *reply, int mark)
{
    const char *text = hzp_reply_ends[mark];
    bool header = text == hzp_mark_start || text == hzp_mark_channel;
    hzp_reply_drop(reply);
    hzp_reply_reasoning_end(reply, text);
    reply->state = HZP_REPLY_HEADER;
    reply->begun = true;
    return header ? hzp_reply_redo(reply, text, strlen(text)) : HZP_OK;
}

/* Whether the header names a tool, which is then the call's name. */
static bool read_recipient(struct hzp_reply *reply, const char *text, size_t bytes)
{
    size_t mark = strlen(hzp_mark_recipient), n = 0;
    const char *name = memmem(text, bytes, hzp_mark_recipient, mark);
    if (!name)
        return false;
    name += mark;
    while (name + n < text + bytes && !hzp_is_blank(name[n]) && name[n] != '<')
        n++;
    return hzp_reply_set_name(reply, name, n);
}

static bool is_analysis(const char *text, size_t bytes)
{
    static const char analysis[] = "analysis";
    const char *name = memmem(text, bytes, hzp_mark_channel, strlen(hzp_mark_channel));
    size_t left = name ? bytes - (size_t)(name - text) - strlen(hzp_mark_channel) : 0;
    return left >= sizeof(analysis) - 1 &&
           !memcmp(name + strlen(hzp_mark_channel), analysis, sizeof(analysis) - 1);
}

/* Whether the text begins with the mark, or is the beginning of it. */
static bool agrees(const char *text, size_t bytes, const char *mark)
{
    size_t n = strlen(mark);
    return !memcmp(text, mark, HZP_MIN(bytes, n));
}

/* Whether a header begins so: with a mark, or, if nothing came before, with a recipient. */
static bool begins(const struct hzp_reply *reply)
{
    const char *text = reply->held.data;
    size_t bytes = reply->held.bytes, skip = 0;
    if (agrees(text, bytes, hzp_mark_channel) || agrees(text, bytes, hzp_mark_start))
        return true;
    while (skip < bytes && hzp_is_blank(text[skip]))
        skip++;
    return !reply->begun && agrees(text + skip, bytes - skip, hzp_mark_recipient);
}

int hzp_reply_step_header(struct hzp_reply *reply, char c)
{
    size_t mark = strlen(hzp_mark_message);
    HZP_TRY(hzp_reply_hold(reply, c));
    const char *text = reply->held.data;
    size_t bytes = reply->held.bytes;
    if (!begins(reply) || bytes > HEADER_MAX) { /* no header: text as it stands */
        hzp_reply_to_content(reply);
        reply->begun = true;
        if (bytes > HEADER_MAX) /* in which the marks are none */
            return hzp_reply_release(reply, bytes, HZP_REPLY_IS_CONTENT);
        return hzp_reply_again(reply, 0);
    }
    if (bytes < mark || memcmp(text + bytes - mark, hzp_mark_message, mark) != 0)
        return HZP_OK;
    reply->begun = true;
    reply->reading = (struct hzp_reply_reading){0};
    reply->body = is_analysis(text, bytes) ? HZP_REPLY_IS_REASONING : HZP_REPLY_IS_CONTENT;
    reply->state = reply->rules->calls != HZP_CALLS_NONE && read_recipient(reply, text, bytes)
                       ? HZP_REPLY_BRACE
                       : HZP_REPLY_BODY;
    hzp_reply_drop(reply);
    if (reply->state == HZP_REPLY_BODY && reply->body == HZP_REPLY_IS_REASONING)
        hzp_reply_reasoning_begin(reply);
    return HZP_OK;
}

int hzp_reply_step_body(struct hzp_reply *reply, char c)
{
    int found = hzp_reply_watch(reply, c, hzp_reply_ends, HZP_REPLY_ENDS, reply->body);
    return found > 0 ? hzp_reply_end_body(reply, found - 1) : found;
}

/* Whether what is held is a header that was cut off: a whole mark, and no more words than a role, a
 * channel and a type.  Text behind a mark of which no header comes has more. */
static bool is_cut(const struct hzp_reply *reply)
{
    const char *text = reply->held.data, *first[] = {hzp_mark_channel, hzp_mark_start};
    size_t bytes = reply->held.bytes, words = 0, marks = 0;
    bool whole =
        !reply->begun && memmem(text, bytes, hzp_mark_recipient, strlen(hzp_mark_recipient));
    for (int i = 0; i < HZP_COUNT(first); i++)
        whole |= bytes >= strlen(first[i]) && !memcmp(text, first[i], strlen(first[i]));
    for (size_t i = 0; i < bytes; i++) {
        bool first_letter = i == 0 || hzp_is_blank(text[i - 1]) || text[i - 1] == '>';
        marks += text[i] == '<';
        if (text[i] == '<')
            while (i + 1 < bytes && text[i] != '>')
                i++;
        else if (first_letter && !hzp_is_blank(text[i]))
            words += bytes - i < 3 || memcmp(text + i, "to=", 3) != 0;
    }
    return whole && words <= marks + 1;
}

int hzp_reply_end_header(struct hzp_reply *reply)
{
    size_t bytes = reply->held.bytes;
    return bytes && !is_cut(reply) ? hzp_reply_release(reply, bytes, HZP_REPLY_IS_CONTENT) : HZP_OK;
}
