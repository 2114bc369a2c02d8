/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/score: what the served model, as a judge, thinks of texts: the reward of type model of
 * rollouts (api/rollout/verify.h), asked for by a client.  It is a completion of no tokens: each
 * text is two prompts, the template with the one word behind it and with the other. */
#include "api/http/routes/answer.h"
#include "api/http/routes/field_table.h"
#include "api/http/wire/fields.h"

/* What the template may name. */
static const char *const names[] = {"text", "prompt", "answer"};

/* The field for the text of this index: a list has one for each, a text is for all. */
static json_t *value_of(const json_t *body, const char *name, size_t at)
{
    json_t *value = json_object_get(body, name);
    return json_is_array(value) ? json_array_get(value, at) : value;
}

/* Whether the field is what the template asks for: texts, one for all or `count`. */
static int check_texts(const json_t *body, const char *name, size_t count,
                       struct hzp_err_text *reterr)
{
    const json_t *value = json_object_get(body, name);
    const char *template = json_string_value(json_object_get(body, "template"));
    char mark[16], param[32];
    snprintf(mark, sizeof(mark), "{%s}", name);
    bool there = value && !json_is_null(value);
    if (there != (strstr(template, mark) != NULL))
        return hzp_wrong(reterr, name,
                         there ? "has no place %s in template" : "is missing: %s is in template",
                         mark);
    if (!there)
        return HZP_OK;
    if (!count || count > HZP_PROMPTS_MAX / 2)
        return hzp_wrong(reterr, "text", "must be a text, or a list of 1 to %d",
                         HZP_PROMPTS_MAX / 2);
    if (json_is_array(value) && json_array_size(value) != count)
        return hzp_wrong(reterr, name, "must be a text, or a list of %zu, as text is", count);
    for (size_t i = 0; i < count; i++) {
        snprintf(param, sizeof(param), json_is_array(value) ? "%s[%zu]" : "%s", name, i);
        if (!hzp_json_is_text(value_of(body, name, i)))
            return hzp_wrong(reterr, param, "must be a text without \\u0000");
    }
    return HZP_OK;
}

/* The rule of the body; its fields are its own there, and not those of `reward`. */
static int read_rule(const json_t *body, struct hzp_verifier **ret, struct hzp_err_text *reterr)
{
    static const char before[] = "reward.";
    json_auto_t *rule =
        json_pack("{s:s, s:O*, s:O*}", "type", "model", "template",
                  json_object_get(body, "template"), "words", json_object_get(body, "words"));
    char *said[] = {reterr->text, reterr->param};
    int r = hzp_verifier_create(rule, ret, reterr);
    for (int i = 0; r < 0 && i < HZP_COUNT(said); i++)
        if (!strncmp(said[i], before, sizeof(before) - 1))
            memmove(said[i], said[i] + sizeof(before) - 1, strlen(said[i]) - sizeof(before) + 2);
    return r;
}

/* Adds the two prompts of a text. */
static int add_question(const struct hzp_engine *engine, const struct hzp_verifier *v,
                        const json_t *body, size_t at, struct hzp_completion_params *ret,
                        struct hzp_err_text *reterr)
{
    json_auto_t *said = json_object();
    for (int i = 0; i < HZP_COUNT(names); i++)
        json_object_set(said, names[i], value_of(body, names[i], at));
    for (int word = 0; word < 2; word++) {
        HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf buf = {NULL, 0, 0};
        struct hzp_err_text err;
        if (hzp_verifier_question(v, said, word, &buf) < 0)
            return hzp_fail(reterr, HZP_ENOMEM, "no memory for this request now");
        int r = hzp_completion_add_text(ret, engine, buf.data, buf.bytes, &err);
        if (r < 0)
            return hzp_fail_param(reterr, r, "text", "the template with text %zu in it: %s", at,
                                  err.text);
        hzp_textbuf_fini(&ret->prompt_text[ret->prompts - 1]); /* only echo would need it */
    }
    return HZP_OK;
}

/* A short body may ask for many long prompts: what the queue cannot hold is not made. */
static int add_questions(const struct hzp_engine *engine, const struct hzp_verifier *v,
                         const json_t *body, size_t count, struct hzp_completion_params *ret,
                         struct hzp_err_text *reterr)
{
    const struct hzp_serving_settings *s = &engine->config.settings->serving;
    int64_t tokens = 0;
    if ((int64_t)count * 2 > s->waiting_max)
        return hzp_wrong(reterr, "text", "has %zu texts, this server queues at most %d", count,
                         (int)s->waiting_max / 2);
    for (size_t i = 0; i < count; i++) {
        HZP_TRY(add_question(engine, v, body, i, ret, reterr));
        tokens += (int64_t)(ret->prompt[2 * i].n + ret->prompt[2 * i + 1].n);
        if (tokens > s->waiting_tokens)
            return hzp_wrong(reterr, "text",
                             "makes prompts of more tokens than this server queues, %lld",
                             (long long)s->waiting_tokens);
    }
    return HZP_OK;
}

static void end_rule(struct hzp_verifier **v)
{
    hzp_verifier_destroy(*v);
}

int hzp_score_parse(const json_t *body, const struct hzp_engine *engine,
                    struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    HZP_ENDED(end_rule) struct hzp_verifier *rule = NULL;
    json_auto_t *ignored = NULL; /* there are no such fields */
    const json_t *text = json_object_get(body, "text");
    size_t count = json_is_array(text) ? json_array_size(text) : 1;
    hzp_completion_defaults(ret);
    HZP_TRY(hzp_fields_check(&hzp_fields_score, body, &ignored, reterr));
    HZP_TRY(read_rule(body, &rule, reterr));
    for (int i = 0; i < HZP_COUNT(names); i++)
        HZP_TRY(check_texts(body, names[i], count, reterr));
    ret->form = &hzp_answer_score;
    ret->max_tokens = ret->prompt_logprobs = 0;
    hzp_given_int32(body, "priority", &ret->priority);
    return add_questions(engine, rule, body, count, ret, reterr);
}

static json_t *answer(struct hzp_answer *a)
{
    const struct hzp_completion *c = a->c;
    struct hzp_usage usage = hzp_completion_usage(c);
    json_t *data = json_array();
    for (int32_t i = 0; i < c->choices; i += 2) {
        struct hzp_request *const rq[] = {c->choice[i].rq, c->choice[i + 1].rq};
        double score = hzp_rollout_preferred(rq);
        json_array_append_new(data, json_pack("{s:s, s:i, s:o, s:[I, I]}", "object", "score",
                                              "index", (int)i / 2, "score",
                                              isnan(score) ? json_null() : json_real(score),
                                              "weights_versions", (json_int_t)rq[0]->prompt_version,
                                              (json_int_t)rq[1]->prompt_version));
    }
    return json_pack("{s:s, s:s, s:I, s:s, s:o, s:o, s:o}", "id", a->id, "object", "list",
                     "created", (json_int_t)a->created, "model", a->x->server->model, "data", data,
                     "usage", hzp_usage_json(usage), "hzpserve",
                     hzp_choice_versions_json(c, &c->choice[0]));
}

const struct hzp_answer_form hzp_answer_score = {
    .id = "score-", .object = "list", .answer = answer};
