/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/chat.h - conversations as text, by the model's own chat template.
 *
 * The template is the file chat_template.jinja of the model's directory, else chat_template of
 * chat_template.json or tokenizer_config.json (there also a list of templates by name, of which
 * "default" and, where tools are given, "tool_use" are used), or a file that the operator names.
 * Its variables are those of transformers' apply_chat_template: messages, tools, documents,
 * add_generation_prompt, the special tokens of tokenizer_config.json, and what a request adds.
 *
 * When a template is opened it is tried once with made-up messages, to learn in which form it reads
 * them (chat_form.h); messages are then given to it in that form: contents as strings or parts, the
 * role developer as system where it is not known, several system messages as one where only one is
 * taken.  What it leaves out nevertheless is found by hzp_chat_check.
 *
 * Invariant: never changes once opened.
 * Thread: open and close the owner's; everything else any, at the same time.
 */
#pragma once

#include "text/jinja/jinja.h"

struct hzp_chat;

/* file NULL: the model's own template; "none": none.  *ret NULL: there is none.  HZP_EIO,
 * HZP_EFORMAT: a file cannot be read or is broken; HZP_EUNSUP: the template uses something that is
 * not supported; the text names file and line. */
int hzp_chat_open(const char *model_dir, const char *file, struct hzp_chat **ret,
                  struct hzp_err_text *reterr);
void hzp_chat_close(struct hzp_chat *chat); /* NULL: no effect */

/* Checks a request's list of messages and makes a copy (owned by the caller) in the form that the
 * template reads.  Messages may have been joined or divided: *ret_from (owned by the caller; NULL:
 * not wanted) says for each which of the request's it is.  HZP_EINVAL: text and param name the
 * field ("messages[2].content[0]"): no list, no role or one that the template does not know,
 * content that is not text (an image, audio), calls that are none. */
int hzp_chat_messages(const struct hzp_chat *chat, const json_t *messages, json_t **ret,
                      size_t **ret_from, struct hzp_err_text *reterr);

/* What is rendered; all JSON is borrowed, NULL: none. */
struct hzp_chat_request {
    const json_t *messages; /* from hzp_chat_messages */
    const json_t *tools, *documents;
    const json_t *more;     /* an object of further variables */
    bool generation_prompt; /* the text ends with the beginning of an answer */
    bool continues;         /* the text ends with the last message's content, to be continued */
    int64_t now;            /* as in hzp_jinja_render */
};

/* Renders.  ret as in hzp_jinja_render.  HZP_EINVAL (param "messages"): the template refuses the
 * messages, or a bound is reached; HZP_ENOMEM. */
int hzp_chat_render(const struct hzp_chat *chat, const struct hzp_chat_request *request,
                    struct hzp_jinja_output *ret, struct hzp_err_text *reterr);

/* Looks for the words of every message (as they came, not the request's copy), of its calls and of
 * the tools in the text that the request was rendered to.  Blanks do not count, text may be written
 * as in JSON, and reasoning may be missing.  Where a text is short or comes twice, all are looked
 * for once more in a rendering with other words in their places: "42" may be anywhere.
 * HZP_EINVAL: something is not there; text and param name it ("messages[2].content", "tools");
 * HZP_ENOMEM. */
int hzp_chat_check(const struct hzp_chat *chat, const struct hzp_chat_request *request,
                   const json_t *messages, const struct hzp_textbuf *text,
                   struct hzp_err_text *reterr);

/* The same of one message, number `at`, which is to be there with its reasoning. */
int hzp_chat_check_whole(const json_t *message, size_t at, const struct hzp_textbuf *text,
                         struct hzp_err_text *reterr);

/* Appends what the template writes behind an answer when the messages `next` follow it, up to the
 * beginning of the next answer: from behind the token that ended the answer on, whose spelling is
 * one of the texts `ends`.  request: as for hzp_chat_render, but its messages, those before the
 * answer, as they came; calls: the answer's tool_calls, NULL or empty: none.  HZP_EINVAL: the
 * messages are wrong, or the template refuses them or leaves out what they say; HZP_ENOMEM. */
int hzp_chat_turn(const struct hzp_chat *chat, const struct hzp_chat_request *request,
                  const json_t *calls, const json_t *next, const json_t *ends,
                  struct hzp_textbuf *ret, struct hzp_err_text *reterr);

/* Whether a template's source has this word in quotes, as it has the roles that it knows. */
bool hzp_chat_mentions(const struct hzp_chat *chat, const char *word);

/* Whether the template (of requests with tools, or of those without) mentions the variable. */
bool hzp_chat_uses(const struct hzp_chat *chat, bool tools, const char *variable);

/* The source of the default template, for GET /tokenizer_info; valid while chat is open. */
const char *hzp_chat_source(const struct hzp_chat *chat);

/* JSON as text, numbers with no more digits than they need; owned by the caller; NULL: out of
 * memory. */
char *hzp_chat_dumps(const json_t *json);

/* The text of a message's content (a string or a list of text parts) as a string, new; NULL: it has
 * none. */
json_t *hzp_chat_content(const json_t *message);
