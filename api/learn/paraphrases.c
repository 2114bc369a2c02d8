/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/paraphrases.c - examples with another prompt than the one that is learned.
 *
 *     {.., "paraphrases": ["..", ..]}  the prompt in other words: asked when the example is learned
 *                                      (api/engine/effect.h), and not learned
 *     {.., "teach": "sdft"}            the answer, then the prompt: what the model, which has read
 *                                      the answer there, says next is learned (pair_reference.c)
 *
 * Each is read as an example of its own, with it in the place of the prompt, or of the user's last
 * message before the answer, and with the same answer: so its tokens are those of a request. */
#include "api/learn/examples_parts.h"
#include "api/learn/lessons.h"
#include "base/words.h"
#include "text/chat/learned.h"

static const char field[] = "paraphrases";

/* Puts the text in the place of the example's question; NULL: looks only.  *ret_before and
 * *ret_answer: what stood there, and what answers it, borrowed, NULL: no text.  False: it has no
 * question. */
static bool put(const struct hzp_parse *p, json_t *object, json_t *text, const char **ret_before,
                const char **ret_answer)
{
    const struct hzp_example_fields *named = p->fields ? p->fields : &p->ex->fields;
    const char *name = named->prompt ? named->prompt : "prompt";
    const char *completion = named->completion ? named->completion : "completion";
    json_t *at = object, *messages = json_object_get(object, "messages");
    json_t *answer = json_object_get(object, completion);
    if (!json_is_string(json_object_get(object, name))) {
        at = answer = NULL;
        name = "content";
        for (size_t i = json_array_size(messages); i > 0 && !at; i--) {
            json_t *message = json_array_get(messages, i - 1);
            const char *role = json_string_value(json_object_get(message, "role"));
            if (role && !answer && !strcmp(role, "assistant"))
                answer = message;
            else if (role && answer && !strcmp(role, "user"))
                at = message;
        }
        answer = json_object_get(answer, name);
    }
    *ret_before = json_string_value(json_object_get(at, name));
    *ret_answer = json_string_value(answer);
    return at && (!text || !json_object_set(at, name, text));
}

/* Reads an object apart from the body's samples.  *ret: the last sample that it becomes, the
 * caller's; its number is that of the body's newest example. */
static int read_apart(struct hzp_parse *p, json_t *object, struct hzp_sample **ret)
{
    struct hzp_sample **sample = p->sample;
    int32_t count = p->count, room = p->room;
    p->sample = NULL;
    p->count = p->room = 0;
    int r = hzp_parse_preference(p, object);
    if (r >= 0) {
        *ret = p->sample[--p->count];
        (*ret)->sequence_number = count;
    }
    hzp_examples_free(p->sample, p->count);
    p->sample = sample;
    p->count = count;
    p->room = room;
    return r;
}

/* The last sample that the object becomes is kept. */
static int keep(struct hzp_parse *p, json_t *object)
{
    struct hzp_sample *ask;
    HZP_TRY(read_apart(p, object, &ask));
    if (p->asks_count < HZP_ASKS)
        p->asks[p->asks_count++] = ask;
    else
        hzp_sample_destroy(ask);
    return HZP_OK;
}

static int read_list(struct hzp_parse *p, const json_t *object, const json_t *list)
{
    struct hzp_err_text *reterr = p->reterr, err = {{0}, {0}};
    const char *before, *answer;
    json_t *text;
    size_t i;
    int r = HZP_OK;
    if (!json_is_array(list) || json_array_size(list) > HZP_PARAPHRASES)
        return hzp_parse_bad(p, field, "must be a list of at most %d texts", HZP_PARAPHRASES);
    if (!p->asks)
        p->asks = hzp_xcalloc(HZP_ASKS, sizeof(struct hzp_sample *));
    json_array_foreach(list, i, text)
    {
        char name[48];
        snprintf(name, sizeof(name), "%s[%zu]", field, i);
        json_t *copy = json_deep_copy(object);
        bool fits = json_string_length(text) && put(p, copy, text, &before, &answer);
        p->reterr = &err;
        r = fits ? keep(p, copy) : HZP_EINVAL;
        p->reterr = reterr;
        json_decref(copy);
        if (r == HZP_ENOMEM)
            return hzp_parse_no_memory(p);
        const char *why = strchr(err.text, ':'); /* behind the line's number */
        if (r < 0)
            return hzp_parse_bad(p, name, "%s",
                                 !fits ? "must be a text, of an example with a prompt or messages"
                                 : why ? why + 2
                                       : err.text);
    }
    return HZP_OK;
}

/* ---- self-distillation ---- */

static const char teach_field[] = "teach";

/* What the teacher's sample is read from; NULL: the example has no such form.  A text is its own
 * question, which is empty. */
static json_t *demonstrate(const struct hzp_parse *p, json_t *object)
{
    const char *before, *answer, *text = json_string_value(json_object_get(object, "text"));
    if (text)
        return json_pack("{s:o, s:s}", "prompt", json_sprintf("%s\n", text), "completion", text);
    json_t *copy = json_deep_copy(object), *told = NULL;
    if (put(p, copy, NULL, &before, &answer) && before && answer)
        told = json_sprintf("%s %s", answer + strspn(answer, " \n"), before);
    if (!told || !put(p, copy, told, &before, &answer)) {
        json_decref(copy);
        copy = NULL;
    }
    json_decref(told);
    return copy;
}

/* Whether one answer is learned of the sample, plainly, and the teacher's, which is a prompt, ends
 * with its tokens. */
static bool compares(const struct hzp_parse *p, const struct hzp_sample *s,
                     const struct hzp_sample *told)
{
    int32_t b, e, from, to, learned = 0;
    hzp_lesson_answer(s, &b, &e);
    hzp_lesson_answer(told, &from, &to);
    for (int32_t i = 0; i < s->count; i++) {
        learned += s->learn[i] != 0;
        if (s->learn[i] && s->weight && s->weight[i] < 0)
            return false;
    }
    return learned == e - b && !s->how && told->count < p->ex->tokens_max && to - from >= e - b &&
           !memcmp(s->token + b, told->token + to - (e - b), (size_t)(e - b) * sizeof(*s->token));
}

/* Makes the teacher's sample of the example that was just read from the object, as `added`
 * samples.  asked: the example itself asks for it, so that it must be possible. */
static int read_teach(struct hzp_parse *p, json_t *object, int32_t added, bool asked)
{
    struct hzp_err_text *reterr = p->reterr, err = {{0}, {0}};
    struct hzp_sample *told = NULL;
    json_t *copy = added == 1 ? demonstrate(p, object) : NULL;
    p->reterr = &err;
    int r = copy ? read_apart(p, copy, &told) : HZP_EINVAL;
    p->reterr = reterr;
    json_decref(copy);
    if (r != HZP_ENOMEM && told && compares(p, p->sample[p->count - 1], told)) {
        size_t n = (size_t)p->told_count;
        if (hzp_text_grow((void **)&p->told, &p->told_room, n + 1, sizeof(*p->told)) >= 0) {
            p->told[p->told_count++] = (struct hzp_told){.sample = told};
            p->held +=
                (size_t)told->count * (sizeof(struct hzp_soft) + sizeof(struct hzp_row_loss));
            return HZP_OK;
        }
        r = HZP_ENOMEM;
    }
    hzp_sample_destroy(told);
    if (r == HZP_ENOMEM)
        return hzp_parse_no_memory(p);
    const char *why = strchr(err.text, ':');
    return !asked ? HZP_OK
                  : hzp_parse_bad(p, teach_field, "cannot be sdft: %s",
                                  !copy || r >= 0
                                      ? "that takes one answer, as a text, to a prompt or a "
                                        "user's message, or one text, whose tokens are the "
                                        "same behind a longer prompt"
                                  : why ? why + 2
                                        : err.text);
}

int hzp_parse_asked(struct hzp_parse *p, json_t *object)
{
    if (!p->pairs && !p->ex->split) /* unknown fields, such as of a gate's samples */
        return hzp_parse_preference(p, object);
    json_auto_t *list = json_incref(json_object_get(object, field));
    json_auto_t *teach = json_incref(json_object_get(object, teach_field));
    const char *way = json_string_value(teach);
    int32_t before = p->count;
    json_object_del(object, field);
    json_object_del(object, teach_field);
    if (teach && !p->ex->split && (!way || !hzp_among("sdft plain", way)))
        return hzp_parse_bad(p, teach_field, "must be \"sdft\" or \"plain\"");
    HZP_TRY(hzp_parse_preference(p, object));
    if (p->ex->split)
        return HZP_OK;
    if (list)
        HZP_TRY(read_list(p, object, list));
    return (teach ? !strcmp(way, "sdft") : p->ex->sdft)
               ? read_teach(p, object, p->count - before, teach != NULL)
               : HZP_OK;
}
