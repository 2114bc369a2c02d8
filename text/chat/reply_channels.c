/* SPDX-License-Identifier: Apache-2.0 */
/* Replies in gpt-oss's channels:
 *
 *     <|channel|>analysis<|message|>reasoning<|end|>
 *     <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}
 *         <|call|>
 *     <|start|>assistant<|channel|>final<|message|>content
 *
 * The header says where the body goes: analysis is reasoning, a recipient makes a call, everything
 * else is content.  The mark that ends the last body is an end token, which has no text. */
#include "text/chat/reply_parts.h"

#include <stdio.h>
#include <string.h>

static const char channel[] = "<|channel|>", start[] = "<|start|>", message[] = "<|message|>";
static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", start, channel};

/* Whether text begins with the mark, or (partly) with as much of it as there is. */
static bool begins(const char *text, size_t bytes, const char *mark, bool *ret_partly)
{
    size_t n = strlen(mark);
    if (bytes < n) {
        *ret_partly |= !memcmp(text, mark, bytes);
        return false;
    }
    return !memcmp(text, mark, n);
}

/* Where a body's text goes, by its header. */
static void read_header(struct hzp_reply *reply, const char *text, size_t bytes)
{
    static const char to[] = "to=functions.", analysis[] = "analysis";
    const char *recipient = memmem(text, bytes, to, sizeof(to) - 1);
    const char *name = memmem(text, bytes, channel, sizeof(channel) - 1);
    size_t left = name ? bytes - (size_t)(name - text) - (sizeof(channel) - 1) : 0;
    reply->body = HZP_REPLY_BODY_CONTENT;
    if (left >= sizeof(analysis) - 1 &&
        !memcmp(name + sizeof(channel) - 1, analysis, sizeof(analysis) - 1))
        reply->body = HZP_REPLY_BODY_REASONING;
    if (!recipient)
        return;
    char tool[256];
    recipient += sizeof(to) - 1;
    size_t n = 0;
    while (n + 1 < sizeof(tool) && recipient + n < text + bytes && !strchr(" \n\t<", recipient[n]))
        n++;
    snprintf(tool, sizeof(tool), "%.*s", (int)n, recipient);
    int begun = hzp_reply_call_begin(reply, tool);
    if (begun >= 0)
        reply->body = begun ? HZP_REPLY_BODY_CALL : HZP_REPLY_BODY_NOTHING;
}

int hzp_reply_step_header(struct hzp_reply *reply, bool end)
{
    const char *text = reply->held.data;
    size_t bytes = reply->held.bytes;
    if (!bytes)
        return 0;
    bool partly = false;
    bool header = begins(text, bytes, channel, &partly) || begins(text, bytes, start, &partly);
    const char *at = header ? memmem(text, bytes, message, sizeof(message) - 1) : NULL;
    if (!end && !at && (header || partly))
        return 0;
    if (!at) { /* no header: text as it stands */
        reply->state = HZP_REPLY_CONTENT;
        return 1;
    }
    read_header(reply, text, (size_t)(at - text));
    reply->state = HZP_REPLY_BODY;
    return hzp_reply_keep_from(reply, (size_t)(at - text) + sizeof(message) - 1) < 0 ? HZP_ENOMEM
                                                                                     : 1;
}

/* The end of a body in the held text: true, and where; false: how much of it is certainly body. */
static bool find_end(const struct hzp_reply *reply, size_t *ret_at, size_t *ret_mark)
{
    const char *text = reply->held.data;
    size_t bytes = reply->held.bytes;
    for (size_t i = 0; i < bytes; i++) {
        bool partly = false;
        for (int k = 0; text[i] == '<' && k < HZP_COUNT(ends); k++)
            if (begins(text + i, bytes - i, ends[k], &partly)) {
                *ret_at = i;
                *ret_mark = ends[k] == start || ends[k] == channel ? 0 : strlen(ends[k]);
                return true;
            }
        if (partly) {
            *ret_at = i;
            return false;
        }
    }
    *ret_at = bytes;
    return false;
}

int hzp_reply_step_body(struct hzp_reply *reply, bool end)
{
    size_t at, mark = 0;
    if (!reply->held.bytes)
        return 0;
    bool found = find_end(reply, &at, &mark);
    if (!found && end)
        at = reply->held.bytes;
    if (reply->body == HZP_REPLY_BODY_CALL)
        HZP_TRY(hzp_reply_release(reply, at, &reply->call[reply->calls - 1].arguments));
    else if (reply->body == HZP_REPLY_BODY_NOTHING)
        HZP_TRY(hzp_reply_keep_from(reply, at));
    else
        HZP_TRY(hzp_reply_release(reply, at,
                                  reply->body == HZP_REPLY_BODY_CONTENT ? &reply->content
                                                                        : &reply->reasoning));
    if (!found)
        return 0;
    reply->state = HZP_REPLY_HEADER;
    return hzp_reply_keep_from(reply, mark) < 0 ? HZP_ENOMEM : 1;
}
