/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/paraphrases.c - {.., "paraphrases": ["..", ..]}: the prompt of an example in other
 * words.  They are asked when the example is learned (api/engine/effect.h), and not learned.
 *
 * Each is read as an example of its own, with it in the place of the prompt, or of the user's last
 * message before the answer, and with the same answer: so its tokens are those of a request. */
#include "api/learn/examples_parts.h"

static const char field[] = "paraphrases";

/* Puts the text in the place of the example's question.  False: it has none. */
static bool put(const struct hzp_parse *p, json_t *object, json_t *text)
{
    const struct hzp_example_fields *named = p->fields ? p->fields : &p->ex->fields;
    const char *name = named->prompt ? named->prompt : "prompt";
    json_t *messages = json_object_get(object, "messages");
    bool answered = false;
    if (json_is_string(json_object_get(object, name)))
        return !json_object_set(object, name, text);
    for (size_t i = json_array_size(messages); i > 0; i--) {
        json_t *message = json_array_get(messages, i - 1);
        const char *role = json_string_value(json_object_get(message, "role"));
        answered = answered || (role && !strcmp(role, "assistant"));
        if (answered && role && !strcmp(role, "user"))
            return !json_object_set(message, "content", text);
    }
    return false;
}

/* The last sample that the object becomes is kept. */
static int keep(struct hzp_parse *p, json_t *object)
{
    struct hzp_sample **sample = p->sample;
    int32_t count = p->count, room = p->room;
    p->sample = NULL;
    p->count = p->room = 0;
    int r = hzp_parse_preference(p, object);
    if (r >= 0 && p->asks_count < HZP_ASKS) {
        p->asks[p->asks_count] = p->sample[--p->count];
        p->asks[p->asks_count++]->sequence_number = count;
    }
    hzp_examples_free(p->sample, p->count);
    p->sample = sample;
    p->count = count;
    p->room = room;
    return r;
}

static int read_list(struct hzp_parse *p, const json_t *object, const json_t *list)
{
    struct hzp_err_text *reterr = p->reterr, err = {{0}, {0}};
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
        bool fits = json_string_length(text) && put(p, copy, text);
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

int hzp_parse_asked(struct hzp_parse *p, json_t *object)
{
    json_t *list = json_object_get(object, field);
    if (!list || (!p->pairs && !p->ex->split)) /* an unknown field, such as of a gate's samples */
        return hzp_parse_preference(p, object);
    json_incref(list);
    json_object_del(object, field);
    int r = hzp_parse_preference(p, object);
    if (r >= 0 && !p->ex->split)
        r = read_list(p, object, list);
    json_decref(list);
    return r;
}
