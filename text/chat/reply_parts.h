/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/reply_parts.h - what reply.c, reply_calls.c and reply_channels.c share.
 *
 * Invariant: a function that fails leaves the calls as they were.
 * Thread: as reply.h.
 */
#ifndef HZP_TEXT_CHAT_REPLY_PARTS_H
#define HZP_TEXT_CHAT_REPLY_PARTS_H

#include "text/chat/reply.h"

extern const char hzp_reply_mistral[]; /* the mark */

const char *hzp_reply_blanks(const char *p, const char *end); /* behind them */

/* Whether the text begins as the calls in Llama's form that a grammar constrains: {"name": "f" of a
 * known tool.  1: it does; 0: it does not; -1: too little of it is there. */
int hzp_reply_begins(const struct hzp_reply *reply, const char *p, const char *end);

/* Begins a call of this tool, without arguments.  1: done; 0: it is left out; -1: no such tool, or
 * too many calls. */
int hzp_reply_call_begin(struct hzp_reply *reply, const char *name);
void hzp_reply_calls_drop(struct hzp_reply *reply, int from);

/* Calls in the text [p, end), and nothing else: objects divided by `by` (0: blanks) or one list of
 * them; name[ARGS]{...}, perhaps several with the mark between, or a list of objects; a name and
 * pairs of <arg_key> and <arg_value>. */
bool hzp_reply_read_objects(struct hzp_reply *reply, const char *p, const char *end, char by);
bool hzp_reply_read_mistral(struct hzp_reply *reply, const char *p, const char *end);
bool hzp_reply_read_glm(struct hzp_reply *reply, const char *p, const char *end);

/* Begins the call whose name and opening brace are in the text.  Where its arguments begin; NULL:
 * they are not there yet, or it is no such call. */
const char *hzp_reply_live_begin(struct hzp_reply *reply, const char *p, const char *end);
/* Reads on in the arguments.  True: they end behind *ret_used bytes. */
bool hzp_reply_live_scan(struct hzp_reply_live *live, const char *text, size_t bytes,
                         size_t *ret_used);

/* Steps of reply.c: 1: something was done, look again; 0: more text is needed.  Errors. */
int hzp_reply_step_header(struct hzp_reply *reply, bool end);
int hzp_reply_step_body(struct hzp_reply *reply, bool end);
/* Drops the first bytes of the held text, or moves them to another. */
int hzp_reply_keep_from(struct hzp_reply *reply, size_t from);
int hzp_reply_release(struct hzp_reply *reply, size_t n, struct hzp_textbuf *to);

#endif
