/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/learned.h - conversations to learn from: messages to tokens and their weights.
 *
 * What the assistant says is learned, all else is context.  An assistant message may have a
 * `weight` (OpenAI's field), which the loss of each of its tokens gets; 0: it is context too.
 *
 * Where the template has {% generation %} blocks, their text is learned.  Without them, of each
 * assistant message is learned what the template adds behind the beginning of an answer, which is
 * the prompt that serving would give: its content with its end token.  As long as every turn only
 * appends to the text before it, a conversation is one text; a template that writes earlier turns
 * differently later (without their reasoning, for example) gives one text for each learned turn,
 * as serving would have seen it.
 *
 * All that a conversation says is in the text (hzp_chat_check), and all that a learned answer says,
 * its reasoning too, in what is learned of it.
 *
 * Thread: any.
 */
#pragma once

#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

/* The magnitude of a weight that is not 0.  Below 0: what is learned becomes less likely.  By
 * default an update divides by the sum of these magnitudes, so what matters is how they compare. */
#define HZP_WEIGHT_MIN 0.001
#define HZP_WEIGHT_MAX 1000.0
bool hzp_weight_valid(double w); /* 0 is */

struct hzp_learned_text {
    struct hzp_tokens tokens;
    float *weight; /* [tokens.n]; 0: not learned */
};

struct hzp_learned_texts {
    struct hzp_learned_text *text;
    size_t n, room;
};

/* example: an object with messages, and where the template reads them tools, documents and
 * chat_template_kwargs.  Appends to ret (zeroed before the first use; the caller ends it, also
 * after an error).  max_tokens: of one text.  HZP_EINVAL: a field is wrong (param names it), the
 * template refuses the messages, nothing is learned, or it is too long; HZP_ENOMEM. */
int hzp_learned_texts_add(const struct hzp_chat *chat, struct hzp_tokenizer *tok,
                          const json_t *example, int32_t max_tokens, struct hzp_learned_texts *ret,
                          struct hzp_err_text *reterr);
void hzp_learned_texts_fini(struct hzp_learned_texts *texts);

/* Members that leave a message out where `weight` is not given; ends in NULL. */
extern const char *const hzp_message_marks[];
/* The weight of message i of `list` ("messages"); 0: it is not learned.  HZP_EINVAL. */
int hzp_message_weight(const json_t *message, const char *list, size_t i, bool assistant,
                       float *ret, struct hzp_err_text *reterr);
