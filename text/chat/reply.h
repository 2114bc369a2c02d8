/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/reply.h - divides what a model answers in a chat into reasoning, content and calls of
 * tools, as it arrives.
 *
 * Reasoning is between <think> and </think>; calls are in the form that the chat template shows
 * (call_form.h).  A call begins as soon as its name and the brace of its arguments are there, and
 * its arguments are passed on as they are written; where the name stands behind them, and in GLM's
 * form, it begins when it is complete.  What is no call until then, or names a tool that does not
 * exist, stays content: the text as the model wrote it.  What is behind a call's arguments, up to
 * the mark of its end, is dropped where JSON allows it or where braces are one too many or too few.
 *
 * Invariant: the text is taken byte by byte, and each byte is decided by those before it: how the
 * text was cut into feeds makes no difference to what comes out, whole or streamed.  held is the
 * end of the text that may belong to a mark or a call.
 * Thread: one per reply.
 */
#pragma once

#include "text/chat/call_form.h"
#include "text/chat/chat.h"
#include "text/chat/json_scan.h"
#include "text/tokenizer/tokenizer.h"

/* How replies to one request are read. */
struct hzp_reply_rules {
    enum hzp_reply_calls calls;
    bool channels;  /* gpt-oss's */
    bool reasoning; /* <think> begins reasoning */
    bool inside;    /* the prompt has begun the reasoning */
    bool one_call;  /* further calls are left out */
    bool strict;    /* only what a grammar constrains as a call is one (structure.h: free) */
    bool hide;      /* reasoning is left out of the message */
    json_t *names;  /* owned: the tools' parameters, or true, by name; NULL: any */
    /* Marks that are special tokens: the text must have these, whatever else is skipped. */
    int32_t mark[HZP_CALL_MARKS_MAX], marks;
};

/* Rules by the template; prompt: what was rendered; tools: the request's, NULL: none. */
void hzp_reply_rules_set(struct hzp_reply_rules *ret, const struct hzp_chat *chat,
                         const char *prompt, size_t bytes, const json_t *tools);
void hzp_reply_rules_fini(struct hzp_reply_rules *rules);
/* Whether replies have to be read at all. */
bool hzp_reply_rules_on(const struct hzp_reply_rules *rules);
void hzp_reply_rules_find_marks(struct hzp_reply_rules *rules, const struct hzp_tokenizer *tok);

enum { HZP_REPLY_CALLS_MAX = 128 };

struct hzp_reply_call {
    char id[32];
    char *name;                   /* owned */
    struct hzp_textbuf arguments; /* a JSON object, if the model wrote one to its end */
};

enum hzp_reply_state {
    HZP_REPLY_BEGIN,
    HZP_REPLY_REASONING,
    HZP_REPLY_CONTENT,
    HZP_REPLY_OPEN,      /* behind the mark that opens a call */
    HZP_REPLY_OBJECT,    /* a call's, before its arguments are passed on */
    HZP_REPLY_NAME,      /* in front of [CALL_ID] or [ARGS] */
    HZP_REPLY_ID,        /* behind [CALL_ID] */
    HZP_REPLY_BRACE,     /* the arguments must begin */
    HZP_REPLY_ARGUMENTS, /* are passed on */
    HZP_REPLY_REST,      /* the rest of the call's object */
    HZP_REPLY_AFTER,     /* a call */
    HZP_REPLY_PAIR,      /* GLM: a key or the end may come */
    HZP_REPLY_KEY,
    HZP_REPLY_BETWEEN, /* key and value */
    HZP_REPLY_VALUE,
    HZP_REPLY_HEADER, /* a channel's, or the beginning of an answer in channels */
    HZP_REPLY_BODY
};

/* What a piece of the answer is. */
enum hzp_reply_kind { HZP_REPLY_IS_REASONING, HZP_REPLY_IS_CONTENT, HZP_REPLY_IS_CALL };

/* Pieces in the order in which they came; a call's are its arguments.  Content of which a mark was
 * taken out is two pieces. */
struct hzp_reply_part {
    enum hzp_reply_kind kind;
    int call;
    size_t from, to;           /* bytes of its text */
    size_t code_from, code_to; /* content, reasoning: code points of the answer's text */
};

/* Code points of the text within one piece of reasoning, without its marks. */
struct hzp_reply_span {
    size_t from, to;
};

/* What is known of the call that is being read. */
struct hzp_reply_reading {
    bool bare;   /* no mark opened it */
    bool object; /* it is, or was, {"name": ...} */
    bool named;
    char name[HZP_CALL_NAME_MAX + 1];
    char id[32]; /* the model's own; "": none */
    enum { HZP_REPLY_KEY_OTHER, HZP_REPLY_KEY_NAME, HZP_REPLY_KEY_ARGUMENTS } key;
    enum { HZP_REPLY_ARGS_NONE, HZP_REPLY_ARGS_OBJECT, HZP_REPLY_ARGS_STRING } args;
    size_t from;               /* in held: where a name, key or value begins */
    size_t args_from, args_to; /* in held */
    /* arguments that are passed on: */
    int depth;
    bool string, escaped, left_out;
    /* GLM's values */
    json_t *pairs;   /* owned: the values as JSON, as texts, by key */
    char *pair;      /* owned: the key */
    bool text, json; /* the value is text; it may be JSON so far */
    size_t
        first_end; /* in held: where it ends unless that is within a string of JSON; 0: nowhere */
};

struct hzp_reply {
    const struct hzp_reply_rules *rules; /* borrowed */
    const struct hzp_call_form *form;
    enum hzp_reply_state state;
    struct hzp_textbuf reasoning, content, held;
    struct hzp_textbuf redo; /* bytes to be taken again, the next one last */
    size_t blanks;           /* with which held begins */
    struct hzp_reply_call call[HZP_REPLY_CALLS_MAX];
    int calls;
    uint64_t id_seed;            /* the calls' ids follow from it; 0: they are random */
    size_t fed;                  /* bytes of the text so far */
    size_t codes;                /* code points of them that were taken */
    struct hzp_reply_span *span; /* of the reasoning; while one lasts, its end is SIZE_MAX */
    int32_t spans, spans_room;
    struct hzp_reply_reading reading;
    struct hzp_json_scan scan;
    enum hzp_reply_kind body; /* where the body of a channel goes */
    bool list;                /* a list of calls is open */
    bool block;               /* a call was read, and the mark of its end may come */
    bool begun;               /* channels: something came before */
    bool ended;
    bool after_mark; /* blanks are dropped until something else comes */
    struct hzp_reply_part *part;
    int32_t parts, parts_room;
    /* streams: already sent */
    size_t sent_reasoning, sent_content;
    int sent_calls;
    size_t sent_arguments; /* bytes of the last call's */
    int32_t next_part;
    size_t next_from;
};

/* HZP_ENOMEM. */
int hzp_reply_create(const struct hzp_reply_rules *rules, struct hzp_reply **ret);
void hzp_reply_destroy(struct hzp_reply *reply); /* NULL: no effect */

/* Whether the text, which has ended, has calls and has not broken off within the arguments of the
 * last one; NULL: false. */
bool hzp_reply_called(const struct hzp_reply *reply);
/* Takes more text; end: that was all.  HZP_ENOMEM. */
int hzp_reply_feed(struct hzp_reply *reply, const char *text, size_t bytes, bool end);

/* The message so far, and what is new in it since the last delta. */
json_t *hzp_reply_message(const struct hzp_reply *reply);
json_t *hzp_reply_delta(struct hzp_reply *reply);

/* How many of the tokens begin within the reasoning; blanks around it count, its marks do not.
 * offset: code points of the text before each token, in order.  Never less than before. */
int32_t hzp_reply_reasoned(const struct hzp_reply *reply, const int32_t *offset, int32_t tokens);

/* The next new piece, in the order of the text; text is valid until the next feed; *ret_first: it
 * begins its call.  Not together with deltas.  False: there is none. */
bool hzp_reply_next(struct hzp_reply *reply, struct hzp_reply_part *ret, const char **ret_text,
                    bool *ret_first);
