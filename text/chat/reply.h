/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/reply.h - divides what a model answers in a chat into reasoning, content and calls of
 * tools, as it arrives.
 *
 * How a model writes them follows from its chat template: reasoning between <think> and </think>;
 * calls in one of
 *
 *     Hermes, Qwen   <tool_call>{"name": ..., "arguments": {...}}</tool_call>
 *     Llama 3        {"name": ..., "parameters": {...}} as the whole answer, perhaps behind
 *                    <|python_tag|>, several divided by ;
 *     Mistral        [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] or, newer,
 *                    [TOOL_CALLS]name[ARGS]{...}
 *     GLM            <tool_call>name <arg_key>..</arg_key><arg_value>..</arg_value> ..</tool_call>
 *     gpt-oss        channels, which also have the reasoning (reply_channels.c)
 *
 * A call that is malformed, or whose tool does not exist, stays content: the text as the model
 * wrote it; but of a stream (live) a call is begun with its name, and its arguments are passed on
 * as they are written, so that one that turns out malformed has malformed arguments.  Else how the
 * text was cut into feeds makes no difference to what comes out.
 *
 * Invariant: held is the end of the text that may belong to a mark or a call.
 * Thread: one per reply.
 */
#ifndef HZP_TEXT_CHAT_REPLY_H
#define HZP_TEXT_CHAT_REPLY_H

#include "text/chat/chat.h"

enum hzp_reply_calls {
    HZP_CALLS_NONE,
    HZP_CALLS_HERMES,
    HZP_CALLS_LLAMA,
    HZP_CALLS_MISTRAL,
    HZP_CALLS_GLM,
    HZP_CALLS_CHANNELS
};

/* How replies to one request are read. */
struct hzp_reply_rules {
    enum hzp_reply_calls calls;
    bool channels;  /* gpt-oss's */
    bool live;      /* arguments are passed on as they arrive */
    bool reasoning; /* <think> begins reasoning */
    bool inside;    /* the prompt has begun the reasoning */
    bool one_call;  /* further calls are left out */
    bool strict;    /* only what a grammar constrains as a call is one (structure.h: free) */
    bool hide;      /* reasoning is left out of the message */
    json_t *names;  /* owned: the tools' parameters, or true, by name; NULL: any */
};

/* Rules by the template; prompt: what was rendered; tools: the request's, NULL: none. */
void hzp_reply_rules_set(struct hzp_reply_rules *ret, const struct hzp_chat *chat,
                         const char *prompt, size_t bytes, const json_t *tools);
void hzp_reply_rules_fini(struct hzp_reply_rules *rules);
/* Whether replies have to be read at all. */
bool hzp_reply_rules_on(const struct hzp_reply_rules *rules);
/* Whether the marks are special tokens, which the text must then contain. */
bool hzp_reply_rules_special(const struct hzp_reply_rules *rules);

enum { HZP_REPLY_CALLS_MAX = 128 };

struct hzp_reply_call {
    char id[32];
    char *name;                   /* owned */
    struct hzp_textbuf arguments; /* a JSON object */
};

enum hzp_reply_state {
    HZP_REPLY_BEGIN,
    HZP_REPLY_REASONING,
    HZP_REPLY_CALL,
    /* with nothing held there is nothing to do at the end */
    HZP_REPLY_CONTENT,
    HZP_REPLY_ARGUMENTS, /* of a call that is passed on as it arrives */
    HZP_REPLY_BEHIND,    /* its end */
    HZP_REPLY_HEADER,    /* of a channel */
    HZP_REPLY_BODY
};

/* Where the body of a channel goes. */
enum hzp_reply_body {
    HZP_REPLY_BODY_CONTENT,
    HZP_REPLY_BODY_REASONING,
    HZP_REPLY_BODY_CALL,
    HZP_REPLY_BODY_NOTHING
};

/* Within a call's arguments. */
struct hzp_reply_live {
    int depth;
    bool string, escaped;
    bool left_out;
};

struct hzp_reply {
    const struct hzp_reply_rules *rules; /* borrowed */
    enum hzp_reply_state state;
    struct hzp_textbuf reasoning, content, held;
    struct hzp_reply_call call[HZP_REPLY_CALLS_MAX];
    int calls;
    uint64_t id_seed; /* the calls' ids follow from it; 0: they are random */
    size_t fed;       /* bytes of the text so far */
    size_t looked;    /* of a call: bytes of held in which its end is not */
    struct hzp_reply_live live;
    enum hzp_reply_body body;
    bool ended;
    bool after_mark; /* blanks are dropped until something else comes */
    /* of a stream: already sent */
    size_t sent_reasoning, sent_content;
    int sent_calls;
    size_t sent_arguments; /* of the last of them */
};

/* HZP_ENOMEM. */
int hzp_reply_create(const struct hzp_reply_rules *rules, struct hzp_reply **ret);
void hzp_reply_destroy(struct hzp_reply *reply); /* NULL: no effect */

/* Takes more text; end: that was all.  HZP_ENOMEM. */
int hzp_reply_feed(struct hzp_reply *reply, const char *text, size_t bytes, bool end);

/* The message so far, and what is new in it since the last delta. */
json_t *hzp_reply_message(const struct hzp_reply *reply);
json_t *hzp_reply_delta(struct hzp_reply *reply);

#endif
