/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/call_form.h - in which forms models write calls of tools.  One table, from which the
 * grammar of calls is made (structure_calls.c) and by which replies are read (reply.h):
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
 * Thread: any; constant.
 */
#pragma once

#include "base/base.h"

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
