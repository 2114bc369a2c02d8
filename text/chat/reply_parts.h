/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/reply_parts.h - what the files of the reader share: reply.c has reasoning, content and
 * the order of steps, reply_calls.c calls as objects or behind names, reply_pairs.c GLM's,
 * reply_channels.c gpt-oss's, reply_json.c the answers.
 *
 * A step takes one byte in one state.  What turns out to belong elsewhere is taken again.
 *
 * Thread: as reply.h.
 */
#pragma once

#include "text/chat/reply.h"

/* ---- reply.c ---- */

/* Appends to reasoning, content or the last call's arguments. */
int hzp_reply_put(struct hzp_reply *reply, enum hzp_reply_kind kind, const char *text,
                  size_t bytes);
int hzp_reply_hold(struct hzp_reply *reply, char c);
void hzp_reply_drop(struct hzp_reply *reply); /* what is held */
/* What is held goes to reasoning or content, or is taken again in the state that is set. */
int hzp_reply_release(struct hzp_reply *reply, size_t n, enum hzp_reply_kind kind);
int hzp_reply_again(struct hzp_reply *reply, size_t from);
int hzp_reply_redo(struct hzp_reply *reply, const char *text, size_t bytes);

/* Whether the text is one of the marks: its number plus one; 0: none; -1: the beginning of one. */
int hzp_reply_mark(const char *text, size_t bytes, const char *const *mark, int marks);

/* Holds the byte where marks may come, and releases what belongs to none.  Blanks wait for what
 * follows them.  The number plus one of the mark with which held ends; 0: none.  Errors. */
int hzp_reply_watch(struct hzp_reply *reply, char c, const char *const *mark, int marks,
                    enum hzp_reply_kind kind);

/* Reasoning begins behind the byte that was taken last; it has ended in front of the mark that ends
 * there (no effect if there was none). */
void hzp_reply_reasoning_begin(struct hzp_reply *reply);
void hzp_reply_reasoning_end(struct hzp_reply *reply, const char *mark);

/* Goes on behind a call: with content, or in a channel's body. */
void hzp_reply_to_content(struct hzp_reply *reply);

/* ---- reply_calls.c ---- */

/* What is held, but for its last byte, is no call: it is content as it stands. */
int hzp_reply_no_call(struct hzp_reply *reply);

/* A name as it is written; false: no tool has it. */
bool hzp_reply_set_name(struct hzp_reply *reply, const char *text, size_t bytes);
/* Appends to its arguments, with control characters in strings as escapes. */
int hzp_reply_put_arguments(struct hzp_reply *reply, const char *text, size_t bytes);
/* The whole call is known: a step goes on behind it. */
int hzp_reply_call_whole(struct hzp_reply *reply, const char *arguments, size_t bytes);
void hzp_reply_calls_fini(struct hzp_reply *reply);

int hzp_reply_begin_object(struct hzp_reply *reply);
int hzp_reply_step_open(struct hzp_reply *reply, char c);
int hzp_reply_step_object(struct hzp_reply *reply, char c);
int hzp_reply_step_name(struct hzp_reply *reply, char c);
int hzp_reply_step_id(struct hzp_reply *reply, char c);
int hzp_reply_step_brace(struct hzp_reply *reply, char c);
int hzp_reply_step_arguments(struct hzp_reply *reply, char c);
int hzp_reply_step_rest(struct hzp_reply *reply, char c);
int hzp_reply_step_after(struct hzp_reply *reply, char c);

/* ---- reply_pairs.c ---- */
int hzp_reply_begin_pairs(struct hzp_reply *reply);
int hzp_reply_step_pair(struct hzp_reply *reply, char c);
int hzp_reply_step_key(struct hzp_reply *reply, char c);
int hzp_reply_step_between(struct hzp_reply *reply, char c);
int hzp_reply_step_value(struct hzp_reply *reply, char c);
/* At the end of the text: a value that ended within what looked like a string.  Whether there was
 * one; the rest is taken again. */
int hzp_reply_end_value(struct hzp_reply *reply);

/* ---- reply_channels.c ---- */
extern const char *const hzp_reply_ends[];
enum { HZP_REPLY_ENDS = 5 };
/* Behind the mark of this number in hzp_reply_ends, which is held. */
int hzp_reply_end_body(struct hzp_reply *reply, int mark);
int hzp_reply_step_header(struct hzp_reply *reply, char c);
int hzp_reply_step_body(struct hzp_reply *reply, char c);
int hzp_reply_end_header(struct hzp_reply *reply); /* the text ends */
