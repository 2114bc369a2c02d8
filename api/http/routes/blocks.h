/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/blocks.h - a chat's answer as a sequence of blocks (reasoning, text, calls),
 * which is how /v1/responses and Anthropic's /v1/messages show it; and what their requests have in
 * common.
 *
 * Both translate a request into one of /v1/chat/completions, whose parser and engine path they use.
 * In a stream, blocks are opened, lengthened and closed as the reply arrives.
 *
 * Thread: as answer.h; parsing: the pool's.
 */
#pragma once

#include "api/http/routes/answer.h"

/* How a dialect writes the events of a block; a->block says which. */
struct hzp_block_writer {
    void (*open)(struct hzp_answer *a);
    /* text: borrowed, never empty; its tokens are those of a->block.logprobs from this place on */
    void (*more)(struct hzp_answer *a, json_t *text, size_t logprobs);
    void (*close)(struct hzp_answer *a); /* all of its text is in a->block.text */
};

/* Writes what is new in the reply of the only choice; the last block is closed when it has
 * ended. */
void hzp_blocks_write(struct hzp_answer *a, const struct hzp_block_writer *writer);

/* The whole reply as blocks in the same order: calls f for each, with a->block set, and appends the
 * results.  The choice has ended. */
void hzp_blocks_whole(struct hzp_answer *a, json_t *(*f)(const struct hzp_answer *a), json_t *to);

/* The text of the block so far. */
json_t *hzp_block_text(const struct hzp_answer *a);

/* ---- requests ---- */

/* Copies fields of a request to the chat's.  names: with blanks between them; own=chat: it has
 * another name in a chat. */
void hzp_blocks_copy(const json_t *from, const char *names, json_t *to);

/* A message {"role", "content"}, appended to the chat's; takes over content. */
json_t *hzp_blocks_add_message(json_t *messages, const char *role, json_t *content);

/* Where in the request the chat's messages come from: those that have no place yet, and the last
 * one, which this may have added to or replaced, get this one ("input[2]"). */
void hzp_blocks_place(json_t *chat, const char *path);
/* Takes the places out of the chat, which then is one of its own; the caller owns them. */
json_t *hzp_blocks_places(json_t *chat);
/* An error about one of the chat's messages becomes one about its place. */
void hzp_blocks_rename(const json_t *places, struct hzp_err_text *reterr);

/* Sets the chat's tools from the request's.  read makes the function of one of them, which is at
 * `path` in the request.  HZP_EINVAL: they are no list; or what read returns. */
int hzp_blocks_tools(const json_t *body,
                     int (*read)(const json_t *tool, const char *path, json_t **ret,
                                 struct hzp_err_text *reterr),
                     json_t *chat, struct hzp_err_text *reterr);

/* Parses the chat that a request was translated into (names: as copied, an error is about the
 * request's), and makes its answer one of this form.  ignored: names of the request's own fields
 * without effect, NULL: none.  asked: what the answer repeats of the request.  All three stay the
 * caller's.  Errors as hzp_chat_parse. */
int hzp_blocks_parse(json_t *chat, const char *names, const struct hzp_engine *engine,
                     const struct hzp_answer_form *form, json_t *ignored, json_t *asked,
                     struct hzp_completion_params *ret, struct hzp_err_text *reterr);

/* Parses the body of POST /v1/responses and of POST /v1/messages.  Errors as hzp_chat_parse,
 * HZP_EUNSUP for what has no counterpart here; the parameter named is the body's own. */
int hzp_responses_parse(const json_t *body, const struct hzp_engine *engine,
                        struct hzp_completion_params *ret, struct hzp_err_text *reterr);
/* The number of tokens of a body's messages, as {"input_tokens"}. */
int hzp_messages_count(const json_t *body, const struct hzp_engine *engine, json_t **ret,
                       struct hzp_err_text *reterr);
int hzp_messages_parse(const json_t *body, const struct hzp_engine *engine,
                       struct hzp_completion_params *ret, struct hzp_err_text *reterr);
