/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/forms.h - the forms of examples that other tools write, as one text in parts, of which
 * some are learned.
 *
 *     fields        {"question": "...", "answer": "..."}, named by the caller
 *     alpaca        {"instruction": "...", "input": "...", "output": "..."}, in alpaca's own words;
 *                  a `system` stands in place of their first paragraph, `history` is earlier turns
 *     input, output {"input": "...", "output": "..."}: a prompt and its completion
 *     messages      {"messages": [{"role": "user", "content": "..."}, ...]}, as for chat
 *     pairs         {"prompt": [MESSAGE...], "completion": [MESSAGE...]}, as TRL has them: one
 *                   conversation, of which the answers of the completion are learned
 *     ShareGPT      {"conversations": [{"from": "human", "value": "..."}, ...]}
 *
 * With a chat template conversations go through that (text/chat/learned.h), ShareGPT's as messages.
 * Without one a conversation becomes lines of `role: content`; the answers of the assistant are
 * learned, with their weights (text/chat/learned.h):
 *
 *     user: Where does Zorin live?
 *     assistant: In Belport.
 *
 * The text of an answer begins with the space behind `assistant:`, so the prompt for such a model
 * ends with `assistant:`.
 *
 * Thread: any; values.
 */
#pragma once

#include "base/err.h"
#include "text/chars/textbuf.h"

/* What the fields of prompt and completion are called; NULL: so. */
struct hzp_example_fields {
    const char *prompt, *completion;
};

/* The text of part i lies between the ends of i - 1 and i.  Parts that are learned and parts that
 * are not take turns. */
struct hzp_form_part {
    size_t end;
    float weight; /* 0: not learned */
};

/* Zeroed memory is an empty one. */
struct hzp_form {
    struct hzp_textbuf text;
    struct hzp_form_part *part;
    size_t parts, room;
};
void hzp_form_fini(struct hzp_form *form);

/* Reads the object into ret, which is emptied first.  1: done; 0: it has none of these forms.
 * HZP_EINVAL: the text says what is wrong, the param names the field ("messages[2].role");
 * HZP_ENOMEM. */
int hzp_form_read(const json_t *object, const struct hzp_example_fields *fields,
                  struct hzp_form *ret, struct hzp_err_text *reterr);

/* Whether prompt or completion is a list of messages. */
bool hzp_form_is_pair(const json_t *object);

/* Makes of an object with messages, a pair of lists of them or conversations one whose messages
 * begin with its column system, and whose tools are its column tools (or its JSON as a text) or
 * functions.  ShareGPT's function_call becomes a call, observation a tool's answer.  Errors as
 * hzp_form_read. */
int hzp_form_messages(const json_t *object, json_t **ret, struct hzp_err_text *reterr);

/* Whether the object has the column, and something in it. */
bool hzp_form_has(const json_t *object, const char *column);

/* HZP_EINVAL: one of the columns that would change a prompt (system, system_prompt, history, tools,
 * functions, documents, chat_template_kwargs) has something in it and is not among the used ones,
 * which blanks divide; the text is "is not used" and why. */
int hzp_form_unused(const json_t *object, const char *used, const char *why,
                    struct hzp_err_text *reterr);

/* What kind of file begins with these bytes, if it is one that people have and this program does
 * not read, with what to do about it; NULL: none of these. */
const char *hzp_form_unread(const char *data, size_t bytes);
