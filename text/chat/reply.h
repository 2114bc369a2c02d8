/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/reply.h - divides what a model answers in a chat into reasoning, content and calls of
 * tools, as it arrives.
 *
 * Reasoning is between <think> and </think>; calls are in the form that the chat template shows
 * (call_form.c).  A call begins as soon as its name and the brace of its arguments are there, and
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

#include "base/chars.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

/* ---- call_form.c: in which forms models write calls of tools.  One table, from which the grammar
 * of calls is made (structure_calls.c) and by which replies are read:
 *
 *     Hermes, Qwen   <tool_call>{"name": ..., "arguments": {...}}</tool_call>
 *     Llama 3        {"name": ..., "parameters": {...}} as the whole answer, perhaps behind
 *                    <|python_tag|>, several divided by ;
 *     Mistral        [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] or, newer,
 *                    [TOOL_CALLS]name[ARGS]{...} or [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}
 *     GLM            <tool_call>name <arg_key>..</arg_key><arg_value>..</arg_value> ..</tool_call>
 *     gpt-oss        channels, with the name in a header (reply_channels.c)
 *
 * Invariant: everything that the grammar of a form admits is read as calls; the reader takes more.
 * Thread: any; constant. */

enum hzp_reply_calls {
    HZP_CALLS_NONE,
    HZP_CALLS_HERMES,
    HZP_CALLS_LLAMA,
    HZP_CALLS_MISTRAL, /* a list */
    HZP_CALLS_MISTRAL_ARGS,
    HZP_CALLS_MISTRAL_ID,
    HZP_CALLS_GLM,
    HZP_CALLS_CHANNELS,
    HZP_CALLS_FORMS
};

enum hzp_call_body {
    HZP_CALL_OBJECT, /* {"name": ..., key: {...}} */
    HZP_CALL_NAMED,  /* name, perhaps an id, {...} */
    HZP_CALL_PAIRS,  /* name, keys and values */
    HZP_CALL_HEADER  /* the name in the header of a channel */
};

enum { HZP_CALL_NAME_MAX = 255, HZP_CALL_ID_BYTES = 9 /* length of Mistral's ids */ };

struct hzp_call_form {
    enum hzp_call_body body;
    const char *open, *close; /* marks around a call; NULL: none */
    bool row;                 /* they are around all calls of an answer together */
    bool bare;                /* a call at the beginning of the answer needs no mark */
    const char *in, *out;     /* inside of these marks */
    const char *between;      /* two calls */
    const char *key;          /* the arguments' key */
    const char *id, *args;    /* marks in front of a named call's id and arguments; NULL: none */
    bool names;               /* named calls are read too */
    bool short_ids;           /* templates want ids of nine letters or digits */
    const char *not_in_names; /* what a name may not have beside control characters */
};

extern const struct hzp_call_form hzp_call_form[HZP_CALLS_FORMS];

/* Marks and words of the forms. */
extern const char hzp_mark_glm_key[], hzp_mark_glm_key_end[];
extern const char hzp_mark_glm_value[], hzp_mark_glm_value_end[];
extern const char hzp_mark_call_id[], hzp_mark_args[];
extern const char hzp_mark_channel[], hzp_mark_start[], hzp_mark_message[];
extern const char hzp_mark_end[], hzp_mark_call[], hzp_mark_return[], hzp_mark_constrain[];
extern const char hzp_mark_recipient[]; /* in a header, before the name */
extern const char hzp_mark_think[], hzp_mark_think_end[];

enum { HZP_CALL_MARKS_MAX = 16 };

/* All marks of a form; how many, at least two less than HZP_CALL_MARKS_MAX. */
int hzp_call_form_marks(enum hzp_reply_calls calls, const char *ret[HZP_CALL_MARKS_MAX]);

/* The form that a chat template shows. */
enum hzp_reply_calls hzp_call_form_of(const char *source);

/* Whether a tool of this name can be called in this form. */
bool hzp_call_form_has_name(enum hzp_reply_calls calls, const char *name);

/* ---- json_scan.c: JSON byte by byte: whether a text is JSON so far, and where in it one is.
 * Nothing is converted, so that numbers and escapes may be what no library holds.
 *
 * Invariant: the state depends on the bytes taken so far and on nothing else. */

enum { HZP_SCAN_DEPTH_MAX = 1024 };

enum hzp_scan_state {
    HZP_SCAN_VALUE, /* a zeroed scan's state */
    HZP_SCAN_ITEM,  /* a value, or the end of an array */
    HZP_SCAN_FIRST, /* a name, or the end of an object */
    HZP_SCAN_NAME,
    HZP_SCAN_COLON,
    HZP_SCAN_BEHIND, /* a value within an array or object */
    HZP_SCAN_STRING,
    HZP_SCAN_ESCAPE,
    HZP_SCAN_HEX,
    HZP_SCAN_MINUS,
    HZP_SCAN_ZERO,
    HZP_SCAN_WHOLE,
    HZP_SCAN_DOT,
    HZP_SCAN_FRACTION,
    HZP_SCAN_E,
    HZP_SCAN_SIGN,
    HZP_SCAN_EXPONENT,
    HZP_SCAN_WORD, /* true, false, null */
    HZP_SCAN_DONE
};

struct hzp_json_scan {
    enum hzp_scan_state state;
    bool name;     /* the string is a name */
    bool controls; /* control characters in strings are taken, as models write them */
    int32_t depth, hex;
    const char *word; /* what must still come of it */
    uint64_t object[HZP_SCAN_DEPTH_MAX / 64];
};

/* Takes one byte; false: the text is not JSON, and the scan of no use. */
bool hzp_json_scan(struct hzp_json_scan *scan, char c);

/* Whether the text is one JSON value, perhaps between blanks; object: an object. */
bool hzp_json_is(const char *text, size_t bytes, bool controls, bool object);

/* ---- the reader ---- */

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
