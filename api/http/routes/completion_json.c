/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/completion.h"

#include "base/version.h"
#include "base/utf8.h"

struct hzp_usage hzp_completion_usage(const struct hzp_completion *c)
{
    struct hzp_usage usage = {0};
    for (int32_t i = 0; i < c->params.prompts; i++)
        usage.prompt += (int64_t)c->params.prompt[i].n;
    for (int32_t i = 0; i < c->choices; i++) {
        usage.generated += c->choice[i].seen;
        usage.reasoned += hzp_choice_reasoned(&c->choice[i]);
    }
    for (int32_t i = 0; i < c->choices; i++)
        if (!i || c->choice[i].prompt != c->choice[i - 1].prompt)
            usage.cached += hzp_choice_cached(&c->choice[i]);
    return usage;
}

int64_t hzp_choice_cached(const struct hzp_choice *choice)
{
    /* The engine has written it before the first output. */
    return choice->seen || choice->finish != HZP_FINISH_NONE ? choice->rq->cached : 0;
}

int64_t hzp_choice_reasoned(const struct hzp_choice *choice)
{
    if (!choice->reply)
        return 0;
    hzp_choice_read_reply(choice);
    return hzp_reply_reasoned(choice->reply, choice->offset, choice->seen);
}

json_t *hzp_usage_json(struct hzp_usage usage)
{
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}", "prompt_tokens", (json_int_t)usage.prompt,
                     "total_tokens", (json_int_t)(usage.prompt + usage.generated),
                     "completion_tokens", (json_int_t)usage.generated, "prompt_tokens_details",
                     "cached_tokens", (json_int_t)usage.cached, "completion_tokens_details",
                     "reasoning_tokens", (json_int_t)usage.reasoned);
}

/* ---- versions ---- */

uint64_t hzp_choice_version(const struct hzp_completion *c, const struct hzp_choice *choice)
{
    const struct hzp_request *rq = choice->rq;
    if (choice->seen)
        return rq->out[choice->seen - 1].version;
    if (!rq->max_tokens && hzp_request_final(rq) && rq->prompt_version)
        return rq->prompt_version;
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(c->engine->parts.weights, &stats);
    return stats.serving_id;
}

int64_t hzp_completion_staleness(const struct hzp_completion *c)
{
    int64_t staleness = 0;
    for (int32_t i = 0; i < c->choices; i++)
        staleness = HZP_MAX(staleness, (int64_t)c->choice[i].rq->staleness);
    return staleness;
}

uint64_t hzp_completion_stale_prefix(const struct hzp_completion *c)
{
    uint64_t oldest = 0;
    for (int32_t i = 0; i < c->choices; i++) {
        const struct hzp_request *rq = c->choice[i].rq;
        uint64_t version = rq->stale_tokens ? rq->stale_version : 0;
        if (version && (!oldest || version < oldest))
            oldest = version;
    }
    return oldest;
}

const char *hzp_fingerprint(uint64_t version, char ret[HZP_FINGERPRINT_MAX])
{
    snprintf(ret, HZP_FINGERPRINT_MAX, "hzpserve-%s-v%llu", HZP_VERSION_TEXT,
             (unsigned long long)version);
    return ret;
}

json_t *hzp_choice_versions_json(const struct hzp_completion *c, const struct hzp_choice *choice)
{
    const struct hzp_request *rq = choice->rq;
    json_t *spans = json_array();
    for (int32_t from = 0, to; from < choice->seen; from = to) {
        for (to = from + 1; to < choice->seen; to++)
            if (rq->out[to].version != rq->out[from].version ||
                rq->out[to].prompt_version != rq->out[from].prompt_version)
                break;
        json_array_append_new(spans, json_pack("{s:I, s:i, s:i, s:I}", "version",
                                               (json_int_t)rq->out[from].version, "start", from,
                                               "end", to, "prompt_version",
                                               (json_int_t)rq->out[from].prompt_version));
    }
    json_t *json =
        json_pack("{s:I, s:o, s:I, s:s, s:i}", "weights_version",
                  (json_int_t)hzp_choice_version(c, choice), "spans", spans, "staleness",
                  (json_int_t)rq->staleness, "consistency", hzp_consistency_name(rq->demands.mode),
                  "recomputes", hzp_request_final(rq) ? rq->recomputes : 0);
    if (rq->demands.depth)
        json_object_set_new(
            json, "depth",
            json_real((double)hzp_depth_share(rq->demands.depth, c->engine->parts.config.layers)));
    if (rq->demands.shed)
        json_object_set_new(json, "shed", json_true());
    if (rq->stale_tokens)
        json_object_set_new(json, "stale_prefix",
                            json_pack("{s:i, s:I}", "tokens", (int)rq->stale_tokens, "version",
                                      (json_int_t)rq->stale_version));
    if (c->params.ignored)
        json_object_set(json, "ignored", c->params.ignored);
    return json;
}

/* ---- log-probabilities, in the shape of OpenAI's completions ---- */

struct logprobs {
    json_t *tokens, *values, *tops, *offsets;
};

json_t *hzp_logprob_json(float logprob)
{
    /* JSON has no infinity; other servers write -9999 too. */
    return json_real(isfinite(logprob) ? (double)logprob : -9999.0);
}

const char *hzp_token_bytes(const struct hzp_completion *c, int32_t id, size_t *ret_bytes)
{
    const char *text = hzp_tokenizer_token(c->engine->parts.tok, id, ret_bytes);
    if (text && !*ret_bytes && hzp_tokenizer_is_special(c->engine->parts.tok, id))
        text = hzp_tokenizer_spelling(c->engine->parts.tok, id, ret_bytes);
    if (!text)
        *ret_bytes = 0;
    return text ? text : "";
}

static json_t *token_text(const struct hzp_completion *c, int32_t id)
{
    size_t bytes = 0;
    const char *text = hzp_token_bytes(c, id, &bytes);
    return hzp_text_json(text, bytes);
}

/* The token as a key among others: one that is no whole character is spelt "bytes:\xf0", as
 * OpenAI's completions do, because all of them would be the same U+FFFD. */
static json_t *token_key(const struct hzp_completion *c, int32_t id)
{
    size_t bytes = 0;
    const char *text = hzp_token_bytes(c, id, &bytes);
    if (hzp_utf8_valid(text, bytes) == bytes)
        return json_stringn(text, bytes);
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf key = {0};
    hzp_textbuf_append(&key, "bytes:", 6);
    for (size_t i = 0; i < bytes; i++) {
        char code[8];
        snprintf(code, sizeof(code), "\\x%02x", (unsigned char)text[i]);
        hzp_textbuf_append(&key, code, 4);
    }
    return json_stringn(key.data, key.bytes);
}

static void add_token(const struct hzp_completion *c, struct logprobs *to,
                      const struct hzp_output *out, const int32_t *top, const float *top_logprob,
                      int32_t tops, int32_t offset)
{
    json_t *token = token_key(c, out->token), *likeliest = json_object();
    for (int32_t i = 0; i < tops; i++) {
        json_t *name = token_key(c, top[i]);
        bool others = top[i] != out->token && json_equal(name, token); /* two of one text */
        if (!others &&
            !json_object_getn(likeliest, json_string_value(name), json_string_length(name)))
            json_object_setn_new(likeliest, json_string_value(name), json_string_length(name),
                                 hzp_logprob_json(top_logprob[i]));
        json_decref(name);
    }
    /* The sampled token is always included. */
    if (!json_object_getn(likeliest, json_string_value(token), json_string_length(token)))
        json_object_setn_new(likeliest, json_string_value(token), json_string_length(token),
                             hzp_logprob_json(out->logprob));
    json_array_append_new(to->tokens, token);
    json_array_append_new(to->values, hzp_logprob_json(out->logprob));
    json_array_append_new(to->tops, likeliest);
    json_array_append_new(to->offsets, json_integer(offset));
}

/* The prompt's tokens.  Returns how many code points their text has. */
static int32_t add_prompt(const struct hzp_completion *c, const struct hzp_choice *choice,
                          struct logprobs *to)
{
    const struct hzp_request *rq = choice->rq;
    struct hzp_detokenizer detok;
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
    hzp_detokenizer_init(&detok, c->engine->parts.tok, c->params.skip_special);
    int32_t offset = 0;
    for (int32_t p = 0; p < rq->prompt_count; p++) {
        if (p) {
            size_t tops = (size_t)p * (size_t)rq->tops;
            add_token(c, to, &rq->prompt_out[p], rq->tops ? rq->prompt_top_token + tops : NULL,
                      rq->tops ? rq->prompt_top_logprob + tops : NULL, c->params.logprobs, offset);
        } else {
            json_array_append_new(to->tokens, token_key(c, rq->prompt[0]));
            json_array_append_new(to->values, json_null());
            json_array_append_new(to->tops, json_null());
            json_array_append_new(to->offsets, json_integer(0));
        }
        text.bytes = 0;
        if (hzp_detokenizer_feed(&detok, rq->prompt[p], &text) == HZP_OK)
            offset += (int32_t)hzp_utf8_count(text.data, text.bytes);
    }
    return offset;
}

/* Tokens [token0, seen) of the choice, preceded by the prompt's if first. */
static json_t *logprobs_json(const struct hzp_completion *c, const struct hzp_choice *choice,
                             int32_t token0, bool first)
{
    const struct hzp_request *rq = choice->rq;
    struct logprobs to = {json_array(), json_array(), json_array(), json_array()};
    int32_t before = 0;
    if (c->params.echo) {
        const struct hzp_textbuf *prompt = &c->params.prompt_text[choice->prompt];
        if (first)
            before = add_prompt(c, choice, &to);
        if (prompt->data)
            before = (int32_t)hzp_utf8_count(prompt->data, prompt->bytes);
    }
    for (int32_t n = token0; n < choice->seen; n++) {
        size_t tops = (size_t)n * (size_t)rq->tops;
        add_token(c, &to, &rq->out[n], rq->tops ? rq->top_token + tops : NULL,
                  rq->tops ? rq->top_logprob + tops : NULL, c->params.logprobs,
                  before + choice->offset[n]);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "text_offset", to.offsets, "token_logprobs", to.values,
                     "tokens", to.tokens, "top_logprobs", to.tops);
}

static void add_prompt_token(const struct hzp_completion *c, int32_t id, float logprob,
                             int32_t rank, json_t *to)
{
    char key[16];
    snprintf(key, sizeof(key), "%d", id);
    json_object_set_new(to, key,
                        json_pack("{s:o, s:i, s:o}", "logprob", hzp_logprob_json(logprob), "rank",
                                  rank, "decoded_token", token_text(c, id)));
}

/* vLLM's prompt_logprobs: null for the first token, then of each token and the likeliest ones
 * {"ID": {"logprob", "rank", "decoded_token"}}. */
static json_t *prompt_logprobs_json(const struct hzp_completion *c, const struct hzp_choice *choice)
{
    const struct hzp_request *rq = choice->rq;
    json_t *list = json_array();
    json_array_append_new(list, json_null());
    for (int32_t p = 1; p < rq->prompt_count; p++) {
        const struct hzp_output *out = &rq->prompt_out[p];
        json_t *token = json_object();
        size_t tops = (size_t)p * (size_t)rq->tops;
        add_prompt_token(c, rq->prompt[p], out->logprob, out->rank, token);
        for (int32_t i = 0; i < c->params.prompt_logprobs; i++)
            if (rq->prompt_top_token[tops + (size_t)i] != rq->prompt[p])
                add_prompt_token(c, rq->prompt_top_token[tops + (size_t)i],
                                 rq->prompt_top_logprob[tops + (size_t)i], i + 1, token);
        json_array_append_new(list, token);
    }
    return list;
}

/* ---- choices ---- */

/* Log-probabilities of the drawn tokens, by the model. */
static double mean_logprob(const struct hzp_choice *choice)
{
    double sum = 0;
    for (int32_t n = 0; n < choice->seen; n++)
        sum += (double)choice->rq->out[n].logprob;
    return choice->seen ? sum / choice->seen : 0;
}

void hzp_completion_choose(struct hzp_completion *c)
{
    const struct hzp_completion_params *p = &c->params;
    for (int32_t i = 0; p->best && i < c->choices; i++)
        c->choice[i].index = -1;
    for (int32_t rank = 0; rank < p->best * p->prompts; rank++) {
        struct hzp_choice *first = &c->choice[rank / p->best * p->n], *best = NULL;
        for (struct hzp_choice *choice = first; choice < first + p->n; choice++)
            if (choice->index < 0 && (!best || mean_logprob(choice) > mean_logprob(best)))
                best = choice;
        best->index = rank;
    }
}

const struct hzp_choice *hzp_completion_choice(const struct hzp_completion *c, int32_t index)
{
    for (int32_t i = c->params.best ? 0 : index; i < c->choices; i++)
        if (c->choice[i].index == index)
            return &c->choice[i];
    return NULL;
}

static json_t *ids_json(const int32_t *id, int32_t from, int32_t to)
{
    json_t *list = json_array();
    for (int32_t i = from; i < to; i++)
        json_array_append_new(list, json_integer(id[i]));
    return list;
}

/* The prompt's text if it is echoed, then the generated text from byte text0 on. */
static json_t *choice_text(const struct hzp_completion *c, const struct hzp_choice *choice,
                           size_t text0, bool first)
{
    const char *text = choice->text.bytes ? choice->text.data + text0 : "";
    size_t bytes = choice->text.bytes - text0;
    if (!c->params.echo || !first)
        return hzp_text_json(text, bytes);
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf all = {0};
    const struct hzp_textbuf *prompt = &c->params.prompt_text[choice->prompt];
    const struct hzp_tokens *ids = &c->params.prompt[choice->prompt];
    if (prompt->data)
        hzp_textbuf_append(&all, prompt->data, prompt->bytes);
    else
        hzp_tokenizer_decode(c->engine->parts.tok, ids->ids, ids->n, c->params.skip_special, &all);
    if (bytes)
        hzp_textbuf_append(&all, text, bytes);
    return hzp_text_json(all.data, all.bytes);
}

const char *hzp_changed_name(const struct hzp_choice *choice)
{
    if (choice->finish != HZP_FINISH_CHANGED)
        return NULL;
    return choice->rq->changed == HZP_CHANGED_PIN ? "pin_expired" : "weights_changed";
}

const char *hzp_choice_end(const struct hzp_completion *c, const struct hzp_choice *choice)
{
    switch (choice->finish) {
    case HZP_FINISH_STOP:
        return "stop";
    case HZP_FINISH_LENGTH:
        return "length";
    case HZP_FINISH_CHANGED:
        return hzp_changed_name(choice);
    case HZP_FINISH_FAILED:
        if (atomic_load(&choice->rq->state) == HZP_REQUEST_UNMET)
            return "unmet";
        return atomic_load(&c->left) ? "abort" : "error";
    default:
        return "abort";
    }
}

json_t *hzp_finish_json(const struct hzp_choice *choice)
{
    switch (choice->finish) {
    case HZP_FINISH_STOP:
        return json_string("stop");
    case HZP_FINISH_LENGTH:
        return json_string("length");
    case HZP_FINISH_CHANGED:
        return json_string(hzp_changed_name(choice));
    default:
        return json_null();
    }
}

/* The stop string, or the id of the stop token, that ended the choice. */
json_t *hzp_stop_reason_json(const struct hzp_completion *c, const struct hzp_choice *choice)
{
    if (choice->finish != HZP_FINISH_STOP)
        return json_null();
    if (choice->stop_string >= 0)
        return json_stringn(c->params.stop[choice->stop_string],
                            c->params.stop_bytes[choice->stop_string]);
    for (int32_t i = 0; i < c->params.stop_ids; i++)
        if (c->params.stop_id[i] == choice->rq->stop_token)
            return json_integer(choice->rq->stop_token);
    return json_null();
}

void hzp_choice_add_ids(const struct hzp_completion *c, const struct hzp_choice *choice,
                        int32_t token0, bool first, json_t *json)
{
    if (!c->params.return_ids)
        return;
    json_t *ids = json_array();
    for (int32_t n = token0; n < choice->seen; n++)
        json_array_append_new(ids, json_integer(choice->rq->out[n].token));
    json_object_set_new(json, "token_ids", ids);
    json_object_set_new(json, "prompt_token_ids",
                        first ? ids_json(choice->rq->prompt, 0, choice->rq->prompt_count)
                              : json_null());
}

static json_t *text_part(const struct hzp_completion *c, const struct hzp_choice *choice,
                         size_t text0, int32_t token0, bool first)
{
    json_t *json = json_object();
    json_object_set_new(json, "index", json_integer(choice->index));
    json_object_set_new(json, "text", choice_text(c, choice, text0, first));
    json_object_set_new(json, "logprobs",
                        c->params.logprobs >= 0 ? logprobs_json(c, choice, token0, first)
                                                : json_null());
    json_object_set_new(json, "finish_reason", hzp_finish_json(choice));
    json_object_set_new(json, "stop_reason", hzp_stop_reason_json(c, choice));
    if (c->params.prompt_logprobs >= 0)
        json_object_set_new(json, "prompt_logprobs", prompt_logprobs_json(c, choice));
    hzp_choice_add_ids(c, choice, token0, first, json);
    return json;
}

static json_t *text_whole(const struct hzp_completion *c, const struct hzp_choice *choice)
{
    return text_part(c, choice, 0, 0, true);
}

const struct hzp_answer_form hzp_answer_text = {
    .id = "cmpl-",
    .object = "text_completion",
    .chunk = "text_completion",
    .whole = text_whole,
    .part = text_part,
    .first_is_plain = true,
    .before_text = ",\"text\":",
    .behind_text = ",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}]",
};
