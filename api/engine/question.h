/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/question.h - a prompt that is asked to see what a lesson changed, and its greedy
 * answer (api/engine/effect.h).
 *
 * Thread: the one that measures effects.
 */
#pragma once

#include "train/table/sample_log.h"

enum {
    HZP_OWN_TOKENS = 32,   /* tokens compared of an answer that was taught */
    HZP_OTHER_TOKENS = 16, /* and of any other answer */
};

struct hzp_question {
    int64_t number;               /* its example's; 0: it is from none that could be forgotten */
    bool taught;                  /* it is from a lesson */
    bool own;                     /* the lesson that is measured teaches its answer */
    int32_t count, *token;        /* the prompt, owned */
    int32_t tokens_max, answered; /* -1: it has no answer */
    int32_t answer[HZP_OWN_TOKENS];
    uint64_t version;
};

/* The prompt of the last answer that the sample teaches, tokens [0, begin), and where the answer
 * ends; of a text that is learned from its beginning on, the first half.  False: it has none. */
bool hzp_question_prompt(const struct hzp_sample *s, int32_t *ret_begin, int32_t *ret_end);
/* Makes the question of that prompt; at most tokens_max tokens are asked for, one of the two
 * numbers above.  False: the sample has no prompt, and *ret is not set. */
bool hzp_question_make(const struct hzp_sample *s, int32_t tokens_max, struct hzp_question *ret);
/* Whether these tokens are its prompt. */
bool hzp_question_asks(const struct hzp_question *q, const int32_t *token, int32_t count);
void hzp_question_clear(struct hzp_question *q);
