/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/pairs.c - reads a pair of answers, one preferred to the other, as one sample
 * (hzp_sample_first).
 *
 *     {"prompt", "chosen", "rejected"}        TRL's: texts, or lists of messages; a prompt that is
 *                                             missing is the messages that both begin with
 *     {"input": {"messages", "tools"}, "preferred_output": [..], "non_preferred_output": [..]}
 *                                             OpenAI's
 *     {.., "reference": 7}                    the version that a posted pair is compared with
 *
 * Each answer is read as the completion of the prompt, so it has the tokens that it would have as
 * an example of its own. */
#include "api/learn/examples_parts.h"
#include "base/words.h"

enum { WEIGHT = 32 /* a pair counts as so many tokens, beside examples of another kind */ };

static const char *const names[][2] = {{"chosen", "rejected"},
                                       {"preferred_output", "non_preferred_output"}};

struct hzp_sample *hzp_sample_join(const struct hzp_sample *const half[2],
                                   const struct hzp_row_loss *loss)
{
    int32_t n = half[0]->count + half[1]->count + 1, at = 0;
    HZP_FREED int32_t *token = calloc((size_t)n, 2 * sizeof(*token) + sizeof(*loss) + 1);
    if (!token)
        return NULL;
    float *weight = (float *)(token + n);
    struct hzp_row_loss *how = (struct hzp_row_loss *)(weight + n);
    uint8_t *learn = (uint8_t *)(how + n);
    for (int i = 0; i < 2; i++) {
        for (int32_t k = 0; k < half[i]->count; k++, at++) {
            token[at] = half[i]->token[k];
            learn[at] = k && half[i]->learn[k];
            weight[at] = WEIGHT;
            how[at] = *loss;
            how[at].advantage = i ? -1 : 1;
            how[at].reference = half[i]->how ? half[i]->how[k].reference : 0;
        }
        if (!i)
            token[at++] = HZP_PAIR_CUT;
    }
    return hzp_sample_create_losses(token, learn, weight, how, n);
}

/* What is posted is read whole: a pair of one form has no field of another.  Files may have it. */
static int refuse_others(struct hzp_parse *p, const json_t *object, const char *const name[2])
{
    static const char plain[] = "completion preferred_output non_preferred_output";
    static const char openai[] = "chosen rejected prompt completion messages conversations text "
                                 "tokens instruction output";
    const char *field;
    json_t *value;
    json_object_foreach((json_t *)object, field, value)
    {
        if (!p->ex->split && hzp_among(name == names[1] ? openai : plain, field))
            return hzp_parse_bad(p, field, "cannot be given beside %s and %s", name[0], name[1]);
    }
    return HZP_OK;
}

/* One version for all pairs of a body. */
static int read_reference(struct hzp_parse *p, json_t *value)
{
    char name[sizeof(p->reference)] = "";
    const char *text = json_string_value(value);
    if (p->ex->split)
        return hzp_parse_bad(p, "reference", "is of use where a pair is posted to a server");
    if (json_is_integer(value))
        snprintf(name, sizeof(name), "%lld", (long long)json_integer_value(value));
    else if (text && strlen(text) < sizeof(name))
        snprintf(name, sizeof(name), "%s", text);
    if (!*name)
        return hzp_parse_bad(p, "reference",
                             "must be a version: its number, its name, or original");
    if (p->paired && strcmp(name, p->reference) != 0)
        return hzp_parse_bad(p, "reference", "is one version for all pairs of a body");
    snprintf(p->reference, sizeof(p->reference), "%s", name);
    return HZP_OK;
}

/* What stands beside the answers, with a prompt; *ret_from: answers begin behind so many
 * messages. */
static int read_rest(struct hzp_parse *p, const json_t *object, const char *const name[2],
                     json_t *rest, size_t *ret_from)
{
    static const char *const others[] = {"messages", "conversations", "text",  "tokens",
                                         "input",    "instruction",   "output"};
    const json_t *input = json_object_get(object, "input"), *a = json_object_get(object, name[0]),
                 *b = json_object_get(object, name[1]);
    json_t *prompt = json_object_get(object, "prompt");
    bool openai = name == names[1];
    if (openai && !json_is_array(prompt = json_object_get(input, "messages")))
        return hzp_parse_bad(p, "input", "must be an object with messages");
    for (int i = 0; i < HZP_COUNT(others); i++)
        if (openai || p->ex->split)
            json_object_del(rest, others[i]);
    if (openai && json_object_get(input, "tools"))
        json_object_set(rest, "tools", json_object_get(input, "tools"));
    if (openai || !json_is_array(a) || json_is_array(prompt)) {
        json_object_set(rest, "prompt", prompt);
        return HZP_OK;
    }
    prompt = json_array();
    while (json_equal(json_array_get(a, *ret_from), json_array_get(b, *ret_from)))
        json_array_append(prompt, json_array_get(a, (*ret_from)++));
    return json_object_set_new(rest, "prompt", prompt);
}

/* Reads prompt and answer as an example of its own, which becomes the newest sample. */
static int read_answer(struct hzp_parse *p, json_t *rest, const char *name, const json_t *answer,
                       size_t from)
{
    static const struct hzp_example_fields plain = {NULL, NULL};
    const struct hzp_example_fields *fields = p->fields;
    int32_t before = p->count;
    json_t *completion = json_is_string(answer) ? json_deep_copy(answer) : json_array();
    for (size_t i = from; i < json_array_size(answer); i++)
        json_array_append(completion, json_array_get(answer, i));
    json_object_set_new(rest, "completion", completion);
    p->answer = name;
    p->fields = &plain;
    int r = hzp_parse_single(p, rest);
    p->answer = NULL;
    p->fields = fields;
    HZP_TRY(r);
    return p->count == before + 1 && !p->sample[before]->weight
               ? HZP_OK
               : hzp_parse_bad(p, name,
                               "of a pair is one sample, and its messages have no weights");
}

/* Takes as many tokens of both prompts.  False: the pair is left out. */
static bool fit(struct hzp_parse *p, struct hzp_sample *const half[2], int32_t beyond)
{
    bool cut = p->ex->too_long == HZP_TOO_LONG_CUT, fits = cut;
    hzp_lines_note(&p->found->too_long, p->line);
    p->found->longest = HZP_MAX(p->found->longest, (int64_t)p->ex->tokens_max + beyond);
    for (int i = 0; i < 2 && fits; i++) {
        int32_t left = half[i]->count - (beyond + 1) / 2;
        fits = left > 1 &&
               hzp_parse_cut(p, half[i]->token, half[i]->learn, NULL, half[i]->count, left);
        half[i]->count = left;
    }
    if (cut && !fits)
        hzp_lines_note(&p->found->answer_long, p->line);
    return fits;
}

static int parse(struct hzp_parse *p, const json_t *object, const char *const *name, json_t *rest)
{
    const json_t *answer[2] = {json_object_get(object, name[0]), json_object_get(object, name[1])};
    struct hzp_row_loss loss;
    size_t from = 0;
    for (int i = 0; i < 2; i++) {
        if (!answer[i] || json_typeof(answer[i]) != json_typeof(answer[0]) ||
            (!json_is_array(answer[i]) && (name == names[1] || !json_is_string(answer[i]))))
            return hzp_parse_bad(p, name[i],
                                 "must be there: %s and %s are both %slists of messages", name[0],
                                 name[1], name == names[0] ? "texts, or " : "");
        json_object_del(rest, name[i]);
    }
    HZP_TRY(refuse_others(p, object, name));
    HZP_TRY(hzp_parse_pair_loss(p, json_object_get(object, "loss"), &loss));
    json_object_del(rest, "loss");
    if (json_object_get(object, "reference") || *p->reference)
        HZP_TRY(read_reference(p, json_object_get(object, "reference")));
    json_object_del(rest, "reference");
    HZP_TRY(read_rest(p, object, name, rest, &from));
    for (int i = 0; i < 2; i++)
        HZP_TRY(read_answer(p, rest, name[i], answer[i], from));
    struct hzp_sample **half = &p->sample[p->count - 2];
    int64_t n = (int64_t)half[0]->count + half[1]->count + 1, beyond = n - p->ex->tokens_max;
    if (beyond > 0 && !p->found)
        return hzp_parse_too_long(p, "", (size_t)n);
    if (beyond > 0 && !fit(p, half, (int32_t)beyond))
        return 1;
    struct hzp_sample *both = hzp_sample_join((const struct hzp_sample *const *)half, &loss);
    if (!both)
        return hzp_parse_no_memory(p);
    hzp_sample_destroy(half[1]);
    hzp_sample_destroy(half[0]);
    half[0] = both;
    p->paired = true;
    p->count--;
    p->held += (size_t)both->count * (sizeof(float) + sizeof(loss));
    return HZP_OK;
}

int hzp_parse_preference(struct hzp_parse *p, json_t *object)
{
    const char *const *name = NULL;
    int32_t before = p->count;
    for (int i = 3; i >= 0; i--)
        if (json_object_get(object, names[i / 2][i % 2]))
            name = names[i / 2];
    if (!name)
        return hzp_parse_single(p, object);
    if (!p->pairs)
        return hzp_parse_bad(p, "",
                             "a pair of answers is learned from examples that are posted, "
                             "or from train --data, and measured nowhere");
    json_t *rest = json_copy(object);
    int r = parse(p, object, name, rest);
    json_decref(rest);
    while (r != HZP_OK && p->count > before)
        hzp_sample_destroy(p->sample[--p->count]);
    return HZP_MIN(r, 0);
}
