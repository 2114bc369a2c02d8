/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/question.h"

#include "api/learn/lessons.h"

bool hzp_question_prompt(const struct hzp_sample *s, int32_t *ret_begin, int32_t *ret_end)
{
    hzp_lesson_answer(s, ret_begin, ret_end);
    if (*ret_begin <= 1)
        *ret_begin = *ret_end / 2;
    return *ret_begin >= 1 && *ret_begin < *ret_end;
}

bool hzp_question_make(const struct hzp_sample *s, int32_t tokens_max, struct hzp_question *ret)
{
    int32_t begin, end;
    if (!hzp_question_prompt(s, &begin, &end))
        return false;
    *ret = (struct hzp_question){.number = HZP_MAX(s->sequence_number, 0),
                                 .count = begin,
                                 .tokens_max = HZP_MIN(tokens_max, end - begin),
                                 .answered = -1};
    if (tokens_max == HZP_OTHER_TOKENS)
        ret->tokens_max = tokens_max;
    ret->token = hzp_xcalloc((size_t)begin, sizeof(*ret->token));
    memcpy(ret->token, s->token, (size_t)begin * sizeof(*ret->token));
    return true;
}

bool hzp_question_asks(const struct hzp_question *q, const int32_t *token, int32_t count)
{
    return q->count == count && !memcmp(q->token, token, (size_t)count * sizeof(*token));
}

void hzp_question_clear(struct hzp_question *q)
{
    free(q->token);
    *q = (struct hzp_question){.answered = -1};
}
