/* SPDX-License-Identifier: Apache-2.0 */
/* api/rollout/verify.h - what an answer is worth, by a rule: the reward of a rollout.
 *
 *     exact     1 if the text, without blanks around it, is the reference
 *     number    1 if the last number in the text is that of the reference (1e-6 of it apart at
 *               most; "1,234" is 1234)
 *     boxed     1 if what stands in the last \boxed{} is the reference, as text or as a number
 *     regex     1 if "pattern", a regular expression (text/tokenizer/pattern.h), matches
 *               somewhere in the text; 0 also if the search needs more work than its limits allow
 *     json      1 if the text is a JSON value, and with a reference that value
 *     length    1 - |n - tokens| / tokens, at least 0, for an answer of n tokens; "tokens"
 *     client    a client says it: PUT /v1/samples/{n}/reward, in "timeout" seconds
 *     command   the operator's command says it (judge.h), each in "timeout" seconds
 *     model     how much likelier the served model takes the first of two "words" to follow
 *               "template", a text with {text}, and with {prompt} and {answer}, the reference, if
 *               it names them: p(first) / (p(first) + p(second)); "pinned": by the version that
 *               serves when the job begins, else by the one that serves; in "timeout" seconds
 *
 * otherwise 0.  exact, number, boxed, and a template with {answer} need a reference for each
 * prompt.
 *
 * Thread: any, one at a time.
 */
#pragma once

#include "base/err.h"

#include "text/chars/textbuf.h"

struct hzp_verifier;

enum { HZP_VERIFY_PATTERN_MAX = 1024, HZP_VERIFY_TEMPLATE_MAX = 8192, HZP_VERIFY_WORD_MAX = 64 };

/* From {"type", ...}.  HZP_EINVAL: text and param name the field. */
int hzp_verifier_create(const json_t *rule, struct hzp_verifier **ret, struct hzp_err_text *reterr);
void hzp_verifier_destroy(struct hzp_verifier *v); /* NULL: no effect */

const char *hzp_verifier_name(const struct hzp_verifier *v);
/* Whether each prompt needs a reference. */
bool hzp_verifier_needs_reference(const struct hzp_verifier *v);
/* Whether a client rewards. */
bool hzp_verifier_is_client(const struct hzp_verifier *v);
/* How long a client, the command, or the model has for what it gives. */
double hzp_verifier_seconds(const struct hzp_verifier *v);
/* Whether the operator's command does (judge.h). */
bool hzp_verifier_is_command(const struct hzp_verifier *v);
/* Whether the served model does, and that of when the job begins. */
bool hzp_verifier_is_model(const struct hzp_verifier *v);
bool hzp_verifier_is_pinned(const struct hzp_verifier *v);
/* Of type model: appends the template with its first or second word behind it.  said: texts by the
 * names of what the template names; one that lacks is empty.  HZP_ENOMEM. */
int hzp_verifier_question(const struct hzp_verifier *v, const json_t *said, int word,
                          struct hzp_textbuf *out);

/* The reward of a text, valid UTF-8 and NUL-terminated, of so many tokens; reference: NULL or a
 * text.  Not of `client`, `command` and `model`. */
double hzp_verify(struct hzp_verifier *v, const char *text, size_t bytes, int32_t tokens,
                  const char *reference);
