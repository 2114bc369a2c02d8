/* SPDX-License-Identifier: Apache-2.0 */
/* POST /tokenize, POST /detokenize, GET /tokenizer_info, GET /load: vLLM's routes around the
 * tokenizer. */
#include "api/http/completion.h"
#include "api/http/fields.h"
#include "api/http/http.h"

#include <string.h>

/* Whether every field is one of names. */
static int check_names(const json_t *body, const char *const *names, struct hzp_err_text *reterr)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key, value)
    {
        bool known = false;
        for (int i = 0; names[i]; i++)
            known |= !strcmp(names[i], key);
        if (!known)
            return hzp_fail_param(reterr, HZP_EINVAL, key, "there is no field %.64s", key);
    }
    return HZP_OK;
}

/* The text to tokenize: a prompt, or messages. */
static int read_text(const json_t *body, const struct hzp_engine *engine, struct hzp_textbuf *ret,
                     bool *ret_special, struct hzp_err_text *reterr)
{
    const json_t *prompt = json_object_get(body, "prompt");
    bool messages = json_object_get(body, "messages") != NULL;
    if (messages == (prompt != NULL))
        return hzp_fail_param(reterr, HZP_EINVAL, "prompt", "give either prompt or messages");
    *ret_special = !messages;
    HZP_TRY(hzp_field_bool(body, "add_special_tokens", ret_special, reterr));
    if (messages)
        return hzp_chat_prompt(body, engine, ret, reterr);
    if (!json_is_string(prompt))
        return hzp_fail_param(reterr, HZP_EINVAL, "prompt", "prompt must be a string, not %s",
                              hzp_json_kind(prompt));
    return hzp_textbuf_append(ret, json_string_value(prompt), json_string_length(prompt));
}

static json_t *tokens_json(const struct hzp_engine *engine, const struct hzp_tokens *tokens,
                           bool strings)
{
    json_t *ids = json_array(), *texts = strings ? json_array() : json_null();
    for (size_t i = 0; i < tokens->n; i++) {
        size_t bytes = 0;
        const char *text = hzp_tokenizer_spelling(engine->parts.tok, tokens->ids[i], &bytes);
        json_array_append_new(ids, json_integer(tokens->ids[i]));
        if (strings)
            json_array_append_new(texts, hzp_text_json(text ? text : "", text ? bytes : 0));
    }
    return json_pack("{s:I, s:i, s:o, s:o}", "count", (json_int_t)tokens->n, "max_model_len",
                     engine->parts.plan.positions, "tokens", ids, "token_strs", texts);
}

static int tokenize(const json_t *body, const struct hzp_engine *engine, json_t **ret,
                    struct hzp_err_text *reterr)
{
    static const char *const names[] = {"model",
                                        "prompt",
                                        "messages",
                                        "add_special_tokens",
                                        "return_token_strs",
                                        "tools",
                                        "tool_choice",
                                        "documents",
                                        "chat_template_kwargs",
                                        "add_generation_prompt",
                                        "continue_final_message",
                                        "reasoning_effort",
                                        NULL};
    struct hzp_textbuf text = {0};
    struct hzp_tokens tokens = {0};
    bool special, strings = false;
    HZP_TRY(check_names(body, names, reterr));
    HZP_TRY(hzp_field_bool(body, "return_token_strs", &strings, reterr));
    int r = read_text(body, engine, &text, &special, reterr);
    if (r == HZP_OK)
        r = hzp_tokenizer_encode(engine->parts.tok, text.bytes ? text.data : "", text.bytes,
                                 HZP_TOKENIZER_PARSE_SPECIAL |
                                     (special ? HZP_TOKENIZER_ADD_SPECIAL : 0),
                                 INT32_MAX, &tokens, reterr);
    if (r == HZP_OK)
        *ret = tokens_json(engine, &tokens, strings);
    hzp_textbuf_fini(&text);
    hzp_tokens_fini(&tokens);
    return r;
}

static int detokenize(const json_t *body, const struct hzp_engine *engine, json_t **ret,
                      struct hzp_err_text *reterr)
{
    static const char *const names[] = {"model", "tokens", NULL};
    const json_t *list = json_object_get(body, "tokens"), *value;
    struct hzp_tokens tokens = {0};
    struct hzp_textbuf text = {0};
    size_t i;
    int r = HZP_OK;
    HZP_TRY(check_names(body, names, reterr));
    if (!json_is_array(list))
        return hzp_fail_param(reterr, HZP_EINVAL, "tokens", "tokens must be a list of tokens");
    json_array_foreach(list, i, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        int32_t token = (int32_t)id;
        if (id < 0 || id >= engine->parts.config.vocab)
            r = hzp_fail_param(reterr, HZP_EINVAL, "tokens",
                               "tokens: item %zu is not an integer from 0 to %d", i,
                               engine->parts.config.vocab - 1);
        else
            r = hzp_tokens_append(&tokens, &token, 1);
        if (r < 0)
            break;
    }
    if (r == HZP_OK)
        r = hzp_tokenizer_decode(engine->parts.tok, tokens.ids, tokens.n, false, &text);
    if (r == HZP_OK)
        *ret = json_pack("{s:o}", "prompt", hzp_text_json(text.bytes ? text.data : "", text.bytes));
    hzp_tokens_fini(&tokens);
    hzp_textbuf_fini(&text);
    return r;
}

static enum MHD_Result route(struct hzp_exchange *x,
                             int (*answer)(const json_t *, const struct hzp_engine *, json_t **,
                                           struct hzp_err_text *))
{
    enum MHD_Result r;
    json_t *body = hzp_exchange_json(x, &r), *ret = NULL;
    struct hzp_err_text err = {.text = ""};
    if (!body)
        return r;
    int code = answer(body, x->server->engine, &ret, &err);
    json_decref(body);
    return code < 0 ? hzp_reply_fail(x, code, &err) : hzp_reply_json(x, MHD_HTTP_OK, ret);
}

enum MHD_Result hzp_route_tokenize(struct hzp_exchange *x)
{
    return route(x, tokenize);
}

enum MHD_Result hzp_route_detokenize(struct hzp_exchange *x)
{
    return route(x, detokenize);
}

enum MHD_Result hzp_route_tokenizer_info(struct hzp_exchange *x)
{
    const struct hzp_assembly *parts = &x->server->engine->parts;
    char path[4096];
    snprintf(path, sizeof(path), "%s/tokenizer_config.json",
             parts->source_dir ? parts->source_dir : ".");
    json_t *info = parts->source_dir ? json_load_file(path, JSON_ALLOW_NUL, NULL) : NULL;
    if (!json_is_object(info)) {
        json_decref(info);
        info = json_object();
    }
    json_object_set_new(info, "chat_template",
                        parts->chat ? json_string(hzp_chat_source(parts->chat)) : json_null());
    json_object_set_new(info, "vocab_size", json_integer(hzp_tokenizer_vocab(parts->tok)));
    return hzp_reply_json(x, MHD_HTTP_OK, info);
}

enum MHD_Result hzp_route_load(struct hzp_exchange *x)
{
    int active = atomic_load(&x->server->active) - 1; /* without this one */
    return hzp_reply_json(x, MHD_HTTP_OK, json_pack("{s:i}", "server_load", HZP_MAX(active, 0)));
}
