/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/feedback
 *      {"id", "score"}                   is counted, and compared while a version is on trial
 *      {"id", "score", "learn": true}    the answer is learned, times its score
 *      {"id", "better_than"}             is learned as a pair, against the versions that drew it
 *      {"id", "correction"}              is learned as an answer to the same prompt
 *      {"id", "forget": true}            drops the answer's receipt
 *
 * What is learned is made of receipts (feedback.h), and needs the right to teach. */
#include "api/http/routes/feedback.h"
#include "api/http/routes/route.h"
#include "api/http/routes/routes.h"
#include "api/http/routes/taught.h"
#include "api/http/wire/fields.h"

/* A copy of the receipt of the answer that the field names. */
static int find(struct hzp_exchange *x, const char *field, struct hzp_sample **ret,
                int32_t *ret_prompt, struct hzp_err_text *reterr)
{
    const char *id = json_string_value(json_object_get(x->asked, field));
    *ret = hzp_feedback_receipt(x->server->feedback, id);
    for (*ret_prompt = 0; *ret && !(*ret)->learn[*ret_prompt];)
        ++*ret_prompt;
    return *ret ? HZP_OK
                : hzp_fail_param(reterr, HZP_ENOENT, field,
                                 "there is no receipt of %.100s: --queue receipts=SIZE keeps some",
                                 id);
}

/* The text replaces what is behind the prompt of s, and is ended as the answer was. */
static int correct(const struct hzp_examples *ex, const json_t *text, int32_t prompt,
                   struct hzp_sample **s, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_tokens_fini) struct hzp_tokens tokens = {0};
    int32_t last = (*s)->count - 1, end = (*s)->learn[last] == 2 ? (*s)->token[last] : ex->eos;
    int r = hzp_tokens_append(&tokens, (*s)->token, (size_t)prompt);
    if (r >= 0 && ex->tok)
        r = hzp_tokenizer_encode(ex->tok, json_string_value(text), json_string_length(text),
                                 HZP_TOKENIZER_PARSE_SPECIAL, ex->tokens_max, &tokens, reterr);
    if (r < 0)
        snprintf(reterr->param, sizeof(reterr->param), "correction");
    if (r >= 0 && tokens.n == (size_t)prompt)
        r = hzp_wrong(reterr, "correction", "has no tokens to learn");
    if (r >= 0 && end >= 0)
        r = hzp_tokens_append(&tokens, &end, 1);
    if (r >= 0) {
        HZP_FREED uint8_t *learn = hzp_xcalloc(tokens.n, 1);
        memset(learn + prompt, 1, tokens.n - (size_t)prompt);
        hzp_sample_destroy(*s);
        *s = hzp_sample_create_losses(tokens.ids, learn, NULL, NULL, (int32_t)tokens.n);
    }
    return r;
}

/* The sample that is learned. */
static int make(struct hzp_exchange *x, struct hzp_sample **ret, struct hzp_err_text *reterr)
{
    static const struct hzp_row_loss dpo = {
        .kind = HZP_LOSS_DPO, .inv_temperature = 1, .beta = 0.1f};
    const struct hzp_examples *ex = hzp_state_examples(x->server->engine->state);
    const json_t *text = json_object_get(x->asked, "correction");
    double score = json_number_value(json_object_get(x->asked, "score"));
    int32_t prompt, other;
    struct hzp_sample *half[2] = {NULL};
    HZP_TRY(find(x, "id", ret, &prompt, reterr));
    for (int32_t i = 0; i < (*ret)->count; i++) {
        (*ret)->how[i].kind = HZP_LOSS_IS;
        (*ret)->how[i].advantage = (float)score;
    }
    if (text)
        HZP_TRY(correct(ex, text, prompt, ret, reterr));
    if (json_object_get(x->asked, "better_than")) {
        HZP_TRY(find(x, "better_than", &half[1], &other, reterr));
        half[0] = *ret;
        bool same = prompt == other && !memcmp(half[0]->token, half[1]->token,
                                               (size_t)prompt * sizeof(*half[0]->token));
        bool differ = half[0]->count != half[1]->count ||
                      memcmp(half[0]->token, half[1]->token,
                             (size_t)half[0]->count * sizeof(*half[0]->token)) != 0;
        *ret =
            same && differ ? hzp_sample_join((const struct hzp_sample *const *)half, &dpo) : NULL;
        hzp_sample_destroy(half[0]);
        hzp_sample_destroy(half[1]);
        if (!same || !differ)
            return hzp_fail_param(reterr, HZP_EINVAL, "better_than",
                                  same ? "better_than names an answer with the same tokens"
                                       : "the two answers are to different prompts");
    }
    if (!*ret)
        return HZP_ENOMEM;
    return (*ret)->count <= ex->tokens_max
               ? HZP_OK
               : hzp_fail_param(reterr, HZP_EINVAL, "id",
                                "what is learned has %d tokens, an example has %d at most",
                                (*ret)->count, ex->tokens_max);
}

/* Learns what the body says, and adds to the answer which example that is. */
static int teach(struct hzp_exchange *x, json_t *answer, struct hzp_err_text *reterr)
{
    struct hzp_engine *engine = x->server->engine;
    struct hzp_sample **one = hzp_xcalloc(1, sizeof(struct hzp_sample *));
    char after[HZP_AFTER_BYTES];
    int64_t first, last;
    int r = make(x, one, reterr);
    if (r < 0)
        hzp_examples_free(one, 1);
    HZP_TRY(r);
    HZP_TRY(hzp_state_accept_samples(engine->state, one, 1, NULL, &first, &last, reterr));
    hzp_feedback_taught(x->server->feedback, json_object_get(x->asked, "id"), first);
    hzp_feedback_taught(x->server->feedback, json_object_get(x->asked, "better_than"), first);
    hzp_effects_note(engine->effects, first, last, NULL, 0);
    hzp_loop_poke(engine->parts.loop);
    hzp_route_audit(x, "teach",
                    json_pack("{s:I, s:I}", "first", (json_int_t)first, "last", (json_int_t)last));
    return json_object_update_new(answer,
                                  json_pack("{s:I, s:s}", "example", (json_int_t)first, "after",
                                            hzp_after_text(x->server->taught, first, after)));
}

enum MHD_Result hzp_route_feedback(struct hzp_exchange *x)
{
    const json_t *score = json_object_get(x->asked, "score");
    json_t *id = json_object_get(x->asked, "id");
    struct hzp_err_text err = {.text = ""};
    struct hzp_refusal no = {.status = 0};
    uint64_t version = 0;
    bool trial = false, learn = false, forget = false, there = true;
    hzp_given_bool(x->asked, "learn", &learn);
    hzp_given_bool(x->asked, "forget", &forget);
    int more = (json_object_get(x->asked, "correction") != NULL) +
               (json_object_get(x->asked, "better_than") != NULL);
    learn &= score != NULL;
    if ((score != NULL) + more + forget != 1)
        return hzp_reply_error(x, MHD_HTTP_BAD_REQUEST, "score", NULL,
                               "give one of score, correction, better_than and forget");
    if (more || learn || forget)
        hzp_auth_check_key(x->server->auth, x->connection, HZP_RIGHT_TEACH, &no);
    if (no.status)
        return hzp_reply_error(x, no.status, NULL, no.code, "%s", no.text);
    if ((more || learn) && !x->server->engine->state)
        return hzp_reply_error(x, MHD_HTTP_NOT_FOUND, NULL, NULL, "this server does not learn");
    json_t *json = json_pack("{s:s, s:O}", "object", "feedback", "id", id);
    int r = more || learn ? teach(x, json, &err) : HZP_OK;
    if (forget)
        there = hzp_feedback_taught(x->server->feedback, id, 0);
    if (score && r >= 0) {
        double value = json_number_value(score);
        there =
            hzp_feedback_score(x->server->feedback, json_string_value(id), value, &version, &trial);
        json_object_update_new(json, json_pack("{s:f, s:I, s:b}", "score", value, "weights_version",
                                               (json_int_t)version, "trial", trial));
    }
    if (there && r >= 0)
        return hzp_reply_json(x, MHD_HTTP_OK, json);
    json_decref(json);
    return r < 0 ? hzp_reply_fail(x, r, &err)
                 : hzp_reply_error(x, MHD_HTTP_NOT_FOUND, "id", NULL,
                                   "there is no answer %.100s among the newest %d",
                                   json_string_value(id), HZP_FEEDBACK_ANSWERS);
}
