/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/completion.h"

#include "api/http/routes/field_table.h"
#include "api/http/wire/fields.h"
#include "base/utf8.h"

#include <sys/random.h>

void hzp_completion_defaults(struct hzp_completion_params *params)
{
    memset(params, 0, sizeof(*params));
    params->form = &hzp_answer_text;
    params->n = 1;
    params->max_tokens = 16;
    params->logprobs = params->prompt_logprobs = -1;
    params->demands.max_staleness = -1;
    params->sampling = (struct hzp_sampling){.temperature = 1, .top_p = 1, .repetition = 1};
    params->skip_special = params->add_special = true;
    if (getrandom(&params->sampling.seed, sizeof(params->sampling.seed), 0) < 0)
        params->sampling.seed = hzp_now_ns();
}

void hzp_completion_params_fini(struct hzp_completion_params *params)
{
    for (int32_t i = 0; i < params->prompts; i++) {
        hzp_tokens_fini(&params->prompt[i]);
        hzp_textbuf_fini(&params->prompt_text[i]);
    }
    free(params->prompt);
    free(params->prompt_text);
    for (int32_t i = 0; i < params->stops; i++)
        free(params->stop[i]);
    json_decref(params->ignored);
    json_decref(params->asked);
    hzp_reply_rules_fini(&params->reply);
    json_decref(params->begun);
    hzp_structure_params_fini(params);
    memset(params, 0, sizeof(*params));
}

/* ---- prompts ---- */

static int new_prompt(struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    if (params->prompts == HZP_PROMPTS_MAX)
        return hzp_fail_param(reterr, HZP_EINVAL, "prompt", "at most %d prompts in one request",
                              HZP_PROMPTS_MAX);
    if (!params->prompt) {
        params->prompt = hzp_xcalloc(HZP_PROMPTS_MAX, sizeof(*params->prompt));
        params->prompt_text = hzp_xcalloc(HZP_PROMPTS_MAX, sizeof(*params->prompt_text));
    }
    params->prompts++;
    return HZP_OK;
}

/* Keeps the last tokens of the newest prompt, as truncate_prompt_tokens says. */
static void truncate_prompt(struct hzp_completion_params *params, int32_t context,
                            struct hzp_tokens *prompt)
{
    int64_t keep = params->truncate;
    if (keep < 0)
        keep = HZP_MAX(1, context - HZP_MAX(params->max_tokens, 1));
    if (!keep || prompt->n <= (size_t)keep)
        return;
    memmove(prompt->ids, prompt->ids + prompt->n - keep, (size_t)keep * sizeof(*prompt->ids));
    prompt->n = (size_t)keep;
    hzp_textbuf_fini(&params->prompt_text[params->prompts - 1]); /* echo shows what is left */
}

static int check_length(struct hzp_completion_params *params, const struct hzp_engine *engine,
                        struct hzp_tokens *prompt, struct hzp_err_text *reterr)
{
    int32_t context = engine->parts.plan.positions;
    truncate_prompt(params, context, prompt);
    if (!prompt->n)
        return hzp_fail_param(reterr, HZP_EINVAL, "prompt", "the prompt has no tokens");
    if ((int64_t)prompt->n + params->max_tokens > context)
        return hzp_fail_param(
            reterr, HZP_EINVAL, prompt->n < (size_t)context ? "max_tokens" : "prompt",
            "This model's maximum context length is %d tokens. However, you "
            "requested %lld tokens (%zu in the prompt, %d to generate)",
            context, (long long)prompt->n + params->max_tokens, prompt->n, params->max_tokens);
    return HZP_OK;
}

static int too_long(int32_t context, int32_t max_tokens, struct hzp_err_text *reterr)
{
    return hzp_fail_param(reterr, HZP_EINVAL, "prompt",
                          "This model's maximum context length is %d tokens. However, you "
                          "requested more than %lld tokens (more than %d in the prompt, %d to "
                          "generate)",
                          context, (long long)context + max_tokens, context, max_tokens);
}

/* Whether a text surely has more tokens than the context, without the work of all of them: its
 * beginning has.  Where the beginning ends within a token, it may have some more than in the text.
 */
static bool begins_too_long(struct hzp_tokenizer *tok, const char *text, size_t bytes,
                            unsigned flags, int32_t context)
{
    enum { TOKEN_BYTES = 16, SLACK = 64 };
    size_t most = ((size_t)context + SLACK) * TOKEN_BYTES;
    struct hzp_tokens tokens = {0};
    if (bytes <= 2 * most)
        return false;
    while (most && ((unsigned char)text[most] & 0xC0) == 0x80)
        most--;
    int r = hzp_tokenizer_encode(tok, text, most, flags, INT32_MAX, &tokens, NULL);
    bool is = r == HZP_OK && tokens.n > (size_t)context + SLACK;
    hzp_tokens_fini(&tokens);
    return is;
}

/* A prompt that may not be truncated is tokenised as far as the context reaches. */
static int encode_prompt(const struct hzp_completion_params *params,
                         const struct hzp_engine *engine, const char *text, size_t bytes,
                         struct hzp_tokens *prompt, struct hzp_err_text *reterr)
{
    struct hzp_tokenizer *tok = engine->parts.tok;
    int32_t context = engine->parts.plan.positions;
    unsigned flags = HZP_TOKENIZER_PARSE_SPECIAL;
    if (params->add_special)
        flags |= HZP_TOKENIZER_ADD_SPECIAL;
    if (params->truncate) /* no tokenizer makes more tokens than bytes */
        return hzp_tokenizer_encode(tok, text, bytes, flags, INT32_MAX, prompt, reterr);
    if (begins_too_long(tok, text, bytes, flags, context))
        return too_long(context, params->max_tokens, reterr);
    int r = hzp_tokenizer_encode(tok, text, bytes, flags, context, prompt, reterr);
    bool is_text = bytes <= HZP_TOKENIZER_TEXT_MAX && hzp_utf8_valid(text, bytes) == bytes;
    return r == HZP_EINVAL && is_text ? too_long(context, params->max_tokens, reterr) : r;
}

int hzp_completion_add_text(struct hzp_completion_params *params, const struct hzp_engine *engine,
                            const char *text, size_t bytes, struct hzp_err_text *reterr)
{
    HZP_TRY(new_prompt(params, reterr));
    struct hzp_tokens *prompt = &params->prompt[params->prompts - 1];
    struct hzp_textbuf *copy = &params->prompt_text[params->prompts - 1];
    int r = encode_prompt(params, engine, text, bytes, prompt, reterr);
    if (r < 0) {
        if (reterr)
            snprintf(reterr->param, sizeof(reterr->param), "prompt");
        return r;
    }
    if (hzp_textbuf_append(copy, text, bytes) < 0 || hzp_textbuf_append(copy, "", 1) < 0)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for the prompt now");
    copy->bytes = bytes; /* an empty text is a text too */
    return check_length(params, engine, prompt, reterr);
}

static int add_tokens(struct hzp_completion_params *params, const struct hzp_engine *engine,
                      const json_t *list, struct hzp_err_text *reterr)
{
    if (params->suffix)
        return hzp_wrong(reterr, "suffix", "wants the prompt as text");
    HZP_TRY(new_prompt(params, reterr));
    struct hzp_tokens *prompt = &params->prompt[params->prompts - 1];
    size_t i;
    const json_t *value;
    json_array_foreach(list, i, value)
    {
        json_int_t token = json_is_integer(value) ? json_integer_value(value) : -1;
        if (token < 0 || token >= engine->parts.config.vocab)
            return hzp_fail_param(reterr, HZP_EINVAL, "prompt",
                                  "token %zu of the prompt is not an integer from 0 to %d", i,
                                  engine->parts.config.vocab - 1);
        int32_t id = (int32_t)token;
        if (hzp_tokens_append(prompt, &id, 1) < 0)
            return hzp_fail(reterr, HZP_ENOMEM, "no memory for the prompt now");
    }
    return check_length(params, engine, prompt, reterr);
}

/* Whether the tokenizer has this mark as one special token. */
static bool has_mark(const struct hzp_tokenizer *tok, const char *mark)
{
    HZP_ENDED(hzp_tokens_fini) struct hzp_tokens ids = {0};
    return hzp_tokenizer_encode((struct hzp_tokenizer *)tok, mark, strlen(mark),
                                HZP_TOKENIZER_PARSE_SPECIAL, INT32_MAX, &ids, NULL) == HZP_OK &&
           ids.n == 1;
}

/* Prompt and suffix between the tokenizer's tokens for fill-in-the-middle. */
static int fill_middle(const struct hzp_engine *engine, const json_t *prompt, const json_t *suffix,
                       struct hzp_textbuf *ret, struct hzp_err_text *reterr)
{
    static const char *const marks[][3] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
        {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
        {("<\xef\xbd\x9c"
          "fim\xe2\x96\x81"
          "begin\xef\xbd\x9c>"),
         ("<\xef\xbd\x9c"
          "fim\xe2\x96\x81"
          "hole\xef\xbd\x9c>"),
         ("<\xef\xbd\x9c"
          "fim\xe2\x96\x81"
          "end\xef\xbd\x9c>")},
    };
    for (int i = 0; i < HZP_COUNT(marks); i++) {
        const char *const *mark = marks[i];
        if (!has_mark(engine->parts.tok, mark[0]) || !has_mark(engine->parts.tok, mark[1]) ||
            !has_mark(engine->parts.tok, mark[2]))
            continue;
        HZP_TRY(hzp_textbuf_append(ret, mark[0], strlen(mark[0])));
        HZP_TRY(hzp_textbuf_append(ret, json_string_value(prompt), json_string_length(prompt)));
        HZP_TRY(hzp_textbuf_append(ret, mark[1], strlen(mark[1])));
        HZP_TRY(hzp_textbuf_append(ret, json_string_value(suffix), json_string_length(suffix)));
        return hzp_textbuf_append(ret, mark[2], strlen(mark[2]));
    }
    return hzp_wrong(reterr, "suffix",
                     ": this model's tokenizer has no tokens for fill-in-the-middle");
}

static int add_string(struct hzp_completion_params *params, const struct hzp_engine *engine,
                      const json_t *value, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
    if (!params->suffix)
        return hzp_completion_add_text(params, engine, json_string_value(value),
                                       json_string_length(value), reterr);
    HZP_TRY(fill_middle(engine, value, params->suffix, &text, reterr));
    return hzp_completion_add_text(params, engine, text.data, text.bytes, reterr);
}

/* Adds to an error the index of the prompt it is about. */
static int of_prompt(size_t i, int r, struct hzp_err_text *reterr)
{
    char text[sizeof(reterr->text)];
    if (r < 0 && reterr) {
        snprintf(text, sizeof(text), "%s", reterr->text);
        snprintf(reterr->text, sizeof(reterr->text), "prompt[%zu]: %.480s", i, text);
    }
    return r;
}

/* A string, a list of strings, a list of tokens, or a list of lists of tokens. */
static int read_prompt(const json_t *body, const struct hzp_engine *engine,
                       struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    const json_t *prompt = json_object_get(body, "prompt");
    if (!prompt || json_is_null(prompt))
        return hzp_wrong(reterr, "prompt", "is missing");
    if (json_is_string(prompt))
        return add_string(params, engine, prompt, reterr);
    if (!json_is_array(prompt) || !json_array_size(prompt))
        return hzp_wrong(reterr, "prompt",
                         "must be a string, strings, tokens or lists of tokens, not %s",
                         json_is_array(prompt) ? "an empty list" : hzp_json_kind(prompt));
    if (json_is_integer(json_array_get(prompt, 0)))
        return add_tokens(params, engine, prompt, reterr);
    size_t i;
    const json_t *item;
    json_array_foreach(prompt, i, item)
    {
        if (json_is_string(item))
            HZP_TRY(of_prompt(i, add_string(params, engine, item, reterr), reterr));
        else if (json_is_array(item))
            HZP_TRY(of_prompt(i, add_tokens(params, engine, item, reterr), reterr));
        else
            return hzp_fail_param(reterr, HZP_EINVAL, "prompt",
                                  "prompt[%zu] must be a string or a list of tokens, not %s", i,
                                  hzp_json_kind(item));
    }
    return HZP_OK;
}

/* ---- stops and biases ---- */

static int add_stop(struct hzp_completion_params *params, const json_t *value,
                    struct hzp_err_text *reterr)
{
    if (!json_is_string(value))
        return hzp_wrong(reterr, "stop", "must be a string or a list of strings, not %s",
                         hzp_json_kind(value));
    size_t bytes = json_string_length(value);
    if (!bytes)
        return hzp_wrong(reterr, "stop", "cannot contain an empty string");
    if (params->stops == HZP_STOPS_MAX)
        return hzp_wrong(reterr, "stop", ": at most %d strings", HZP_STOPS_MAX);
    char *copy = malloc(bytes + 1);
    if (!copy)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for this request now");
    memcpy(copy, json_string_value(value), bytes + 1);
    params->stop[params->stops] = copy;
    params->stop_bytes[params->stops++] = bytes;
    return HZP_OK;
}

static int read_stops(const json_t *body, const struct hzp_engine *engine,
                      struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    const json_t *stop = json_object_get(body, "stop"), *value;
    size_t i;
    if (json_is_array(stop)) {
        json_array_foreach(stop, i, value) HZP_TRY(add_stop(params, value, reterr));
    } else if (stop && !json_is_null(stop)) {
        HZP_TRY(add_stop(params, stop, reterr));
    }

    const json_t *ids = json_object_get(body, "stop_token_ids");
    if (json_array_size(ids) > HZP_STOP_IDS_MAX)
        return hzp_wrong(reterr, "stop_token_ids", "must be a list of at most %d tokens",
                         HZP_STOP_IDS_MAX);
    json_array_foreach(ids, i, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= engine->parts.config.vocab)
            return hzp_wrong(reterr, "stop_token_ids", ": item %zu is not an integer from 0 to %d",
                             i, engine->parts.config.vocab - 1);
        params->stop_id[params->stop_ids++] = (int32_t)id;
    }
    return HZP_OK;
}

static int read_biases(const json_t *body, const struct hzp_engine *engine,
                       struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    json_t *biases = hzp_given(body, "logit_bias");
    const char *key;
    json_t *value;
    size_t bytes;
    json_object_keylen_foreach(biases, key, bytes, value)
    {
        char *end;
        errno = 0;
        long token = strtol(key, &end, 10);
        if (*key < '0' || *key > '9' || (*key == '0' && key[1]) || end != key + bytes || errno ||
            token < 0 || token >= engine->parts.config.vocab)
            return hzp_wrong(reterr, "logit_bias", ": \"%.32s\" is not a token from 0 to %d", key,
                             engine->parts.config.vocab - 1);
        if (!json_is_number(value) || fabs(json_number_value(value)) > 100)
            return hzp_wrong(reterr, "logit_bias",
                             ": the bias of token %ld must be from -100 to 100", token);
        if (params->biases == HZP_BIASES_MAX)
            return hzp_wrong(reterr, "logit_bias", ": at most %d tokens", HZP_BIASES_MAX);
        params->bias_token[params->biases] = (int32_t)token;
        /* As in OpenAI's API: -100 bans the token whatever its logit. */
        float bias = (float)json_number_value(value);
        params->bias[params->biases++] = bias <= -100 ? -INFINITY : bias;
    }
    return HZP_OK;
}

/* ---- the rest ---- */

static int read_sampling(const json_t *body, struct hzp_completion_params *params,
                         struct hzp_err_text *reterr)
{
    struct hzp_sampling *s = &params->sampling;
    hzp_given_number(body, "temperature", &s->temperature);
    hzp_given_number(body, "top_p", &s->top_p);
    if (s->top_p <= 0)
        return hzp_wrong(reterr, "top_p", "must be above 0, at most 1");
    hzp_given_number(body, "min_p", &s->min_p);
    hzp_given_number(body, "repetition_penalty", &s->repetition);
    hzp_given_number(body, "presence_penalty", &s->presence);
    hzp_given_number(body, "frequency_penalty", &s->frequency);
    int64_t seed = (int64_t)s->seed;
    hzp_given_int32(body, "top_k", &s->top_k);
    s->top_k = HZP_MAX(s->top_k, 0);
    hzp_given_int(body, "seed", &seed);
    s->seed = (uint64_t)seed;
    return HZP_OK;
}

/* All fields but the prompt, which is read last because it needs max_tokens. */
static int read_numbers(const json_t *body, struct hzp_completion_params *params,
                        struct hzp_err_text *reterr)
{
    hzp_given_int32(body, "n", &params->n);
    hzp_given_int32(body, "max_tokens", &params->max_tokens);
    hzp_given_int32(body, "min_tokens", &params->min_tokens);
    hzp_given_int32(body, "logprobs", &params->logprobs);
    int32_t n = params->n, best_of = n;
    hzp_given_int32(body, "best_of", &best_of);
    if (best_of < n && best_of != 1)
        return hzp_wrong(reterr, "best_of", "(%d) must not be less than n (%d)", best_of, n);
    if (best_of > n && json_is_true(json_object_get(body, "stream")))
        return hzp_wrong(reterr, "best_of",
                         "above n cannot be streamed: the best are known at the end");
    params->best = best_of > n ? n : 0;
    params->n = HZP_MAX(n, best_of);
    if (params->min_tokens > params->max_tokens)
        return hzp_wrong(reterr, "min_tokens", "(%d) must not exceed max_tokens (%d)",
                         params->min_tokens, params->max_tokens);
    return HZP_OK;
}

/* stream_options.NAME; an error names it so, as the official API does. */
static int read_stream_option(const json_t *options, const char *name, bool *ret,
                              struct hzp_err_text *reterr)
{
    char path[64];
    if (hzp_field_bool(options, name, ret, NULL) == HZP_OK)
        return HZP_OK;
    snprintf(path, sizeof(path), "stream_options.%s", name);
    return hzp_wrong(reterr, path, "must be true or false, not %s",
                     hzp_json_kind(json_object_get(options, name)));
}

static int read_flags(const json_t *body, struct hzp_completion_params *params,
                      struct hzp_err_text *reterr)
{
    hzp_given_bool(body, "echo", &params->echo);
    hzp_given_bool(body, "ignore_eos", &params->ignore_eos);
    hzp_given_bool(body, "include_stop_str_in_output", &params->include_stop);
    hzp_given_bool(body, "skip_special_tokens", &params->skip_special);
    hzp_given_bool(body, "add_special_tokens", &params->add_special);
    hzp_given_bool(body, "return_token_ids", &params->return_ids);
    hzp_given_bool(body, "stream", &params->stream);
    hzp_given_int32(body, "truncate_prompt_tokens", &params->truncate);
    const json_t *suffix = json_object_get(body, "suffix");
    params->suffix = json_string_length(suffix) ? suffix : NULL;
    if (params->suffix && params->echo)
        return hzp_wrong(reterr, "suffix", "and echo exclude each other");
    const json_t *options = hzp_given(body, "stream_options");
    if (options && !params->stream)
        return hzp_wrong(reterr, "stream_options", "is allowed only with stream");
    HZP_TRY(read_stream_option(options, "include_usage", &params->include_usage, reterr));
    return read_stream_option(options, "continuous_usage_stats", &params->continuous_usage, reterr);
}

int hzp_completion_parse_common(const json_t *body, const struct hzp_engine *engine,
                                struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    HZP_TRY(read_sampling(body, params, reterr));
    HZP_TRY(read_flags(body, params, reterr));
    hzp_given_int32(body, "priority", &params->priority);
    hzp_given_int32(body, "prompt_logprobs", &params->prompt_logprobs);
    if (params->prompt_logprobs >= 0 && params->stream)
        return hzp_wrong(reterr, "prompt_logprobs", "are not streamed");
    HZP_TRY(read_stops(body, engine, params, reterr));
    return read_biases(body, engine, params, reterr);
}

static int check_choices(const struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    if ((int64_t)params->prompts * params->n <= HZP_CHOICES_MAX)
        return HZP_OK;
    return hzp_fail_param(reterr, HZP_EINVAL, "n",
                          "%d prompts with %d choices each are more than "
                          "the %d choices one request may ask for",
                          params->prompts, params->n, HZP_CHOICES_MAX);
}

int hzp_completion_parse(const json_t *body, const struct hzp_engine *engine,
                         struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    hzp_completion_defaults(ret);
    int r;
    HZP_TRY_GOTO(hzp_fields_check(&hzp_fields_completions, body, &ret->ignored, reterr));
    HZP_TRY_GOTO(read_numbers(body, ret, reterr));
    HZP_TRY_GOTO(hzp_completion_parse_common(body, engine, ret, reterr));
    HZP_TRY_GOTO(hzp_structure_parse(body, engine, NULL, false, ret, reterr));
    HZP_TRY_GOTO(read_prompt(body, engine, ret, reterr));
    HZP_TRY_GOTO(check_choices(ret, reterr));
    ret->suffix = NULL;
    return HZP_OK;
out:
    hzp_completion_params_fini(ret);
    return r;
}
