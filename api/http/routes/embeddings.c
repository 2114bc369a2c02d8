/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/embeddings: hidden states behind the final norm, pooled over each input.  A request is a
 * completion of no tokens; the scheduler pools (serve/results.c). */
#include "api/http/routes/answer.h"
#include "api/http/routes/field_table.h"
#include "api/http/wire/fields.h"

/* What is said of the prompt is said of the input: the word at the text's beginning. */
static void rename_prompt(char *text)
{
    if (strncmp(text, "prompt", 6) != 0)
        return;
    memcpy(text, "input", 5);
    memmove(text + 5, text + 6, strlen(text + 6) + 1);
}

/* The inputs, as the prompts of a completion. */
static int read_inputs(const json_t *body, const struct hzp_engine *engine,
                       struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    static const char *const names[] = {"add_special_tokens", "priority", "truncate_prompt_tokens"};
    json_t *input = json_object_get(body, "input");
    if (!input || json_is_null(input))
        return hzp_wrong(reterr, "input", "is missing");
    json_auto_t *asks = json_pack("{s:O, s:i}", "prompt", input, "max_tokens", 0);
    for (int i = 0; i < HZP_COUNT(names); i++)
        if (json_object_get(body, names[i]))
            json_object_set(asks, names[i], json_object_get(body, names[i]));
    int r = hzp_completion_parse(asks, engine, ret, reterr);
    if (r < 0 && reterr) {
        rename_prompt(reterr->text);
        rename_prompt(reterr->param);
        if (!strcmp(reterr->param, "max_tokens"))
            snprintf(reterr->param, sizeof(reterr->param), "input");
    }
    return r;
}

int hzp_embeddings_parse(const json_t *body, const struct hzp_engine *engine,
                         struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    json_auto_t *ignored = NULL;
    bool normalize = true;
    memset(ret, 0, sizeof(*ret));
    HZP_TRY(hzp_fields_check(&hzp_fields_embeddings, body, &ignored, reterr));
    HZP_TRY(read_inputs(body, engine, ret, reterr));
    hzp_given_bool(body, "normalize", &normalize);
    ret->form = &hzp_answer_embeddings;
    ret->ignored = json_incref(ignored);
    ret->base64 = hzp_given_word(body, "encoding_format", "base64");
    ret->raw = !normalize;
    ret->pooling = hzp_given_word(body, "pooling", "last") ? HZP_POOLING_LAST : HZP_POOLING_MEAN;
    return HZP_OK;
}

/* ---- answers ---- */

/* n values as base64 of their bytes, little-endian; NULL: out of memory. */
static json_t *base64_json(const float *value, int32_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t bytes = (size_t)n * 4, at = 0;
    HZP_FREED char *text = malloc((bytes + 2) / 3 * 4 + 1);
    for (size_t i = 0; text && i < bytes; i += 3) {
        uint32_t group = 0;
        for (size_t k = i; k < i + 3; k++) {
            uint32_t bits = 0;
            if (k < bytes)
                memcpy(&bits, &value[k / 4], sizeof(bits));
            group = group << 8 | (bits >> 8 * (k % 4) & 0xFF);
        }
        for (int d = 0; d < 4; d++)
            text[at++] = i + (size_t)d > bytes ? '=' : digit[group >> (18 - 6 * d) & 63];
    }
    return text ? json_stringn_nocheck(text, at) : NULL;
}

static json_t *embedding_json(const struct hzp_completion *c, const struct hzp_choice *choice)
{
    struct hzp_request *rq = choice->rq;
    double squares = 0;
    for (int32_t i = 0; i < rq->hidden_cols; i++)
        squares += (double)rq->hidden[i] * (double)rq->hidden[i];
    double scale = c->params.raw || squares <= 0 ? 1 : 1 / sqrt(squares);
    for (int32_t i = 0; i < rq->hidden_cols; i++)
        rq->hidden[i] = (float)((double)rq->hidden[i] * scale);
    if (c->params.base64)
        return base64_json(rq->hidden, rq->hidden_cols);
    json_t *list = json_array();
    for (int32_t i = 0; i < rq->hidden_cols; i++)
        json_array_append_new(list, json_real((double)rq->hidden[i]));
    return list;
}

static json_t *answer(struct hzp_answer *a)
{
    const struct hzp_completion *c = a->c;
    struct hzp_usage usage = hzp_completion_usage(c);
    json_t *data = json_array();
    for (int32_t i = 0; i < c->choices; i++)
        json_array_append_new(data,
                              json_pack("{s:s, s:i, s:o, s:o}", "object", "embedding", "index", i,
                                        "embedding", embedding_json(c, &c->choice[i]), "hzpserve",
                                        hzp_choice_versions_json(c, &c->choice[i])));
    return json_pack("{s:s, s:s, s:s, s:o, s:{s:I, s:I, s:{s:I}}, s:o}", "id", a->id, "object",
                     "list", "model", a->x->server->model, "data", data, "usage", "prompt_tokens",
                     (json_int_t)usage.prompt, "total_tokens", (json_int_t)usage.prompt,
                     "prompt_tokens_details", "cached_tokens", (json_int_t)usage.cached, "hzpserve",
                     hzp_choice_versions_json(c, &c->choice[0]));
}

const struct hzp_answer_form hzp_answer_embeddings = {
    .id = "embd-", .object = "list", .answer = answer};
