/* SPDX-License-Identifier: Apache-2.0 */
/* POST /tokenize, POST /detokenize, GET /tokenizer_info, GET /load: vLLM's routes around the
 * tokenizer; POST /v1/messages/count_tokens, Anthropic's. */
#include "api/http/routes/blocks.h"
#include "api/http/routes/completion.h"
#include "api/http/routes/field_table.h"
#include "api/http/routes/routes.h"
#include "api/http/wire/fields.h"
#include "base/json.h"
#include "weights/json_file.h"

#include <string.h>

enum { INFO_BYTES_MAX = 16 << 20 };

/* The text to tokenize: a prompt, or messages. */
static int read_text(const json_t *body, const struct hzp_engine *engine, struct hzp_textbuf *ret,
                     bool *ret_special, struct hzp_err_text *reterr)
{
    const json_t *prompt = json_object_get(body, "prompt");
    bool messages = json_object_get(body, "messages") != NULL;
    if (messages == (prompt != NULL))
        return hzp_fail_param(reterr, HZP_EINVAL, "prompt", "give either prompt or messages");
    *ret_special = !messages;
    hzp_given_bool(body, "add_special_tokens", ret_special);
    if (messages)
        return hzp_chat_prompt(body, engine, ret, reterr);
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
    struct hzp_textbuf text = {0};
    struct hzp_tokens tokens = {0};
    bool special, strings = false;
    hzp_given_bool(body, "return_token_strs", &strings);
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
    const json_t *list = json_object_get(body, "tokens"), *value;
    struct hzp_tokens tokens = {0};
    struct hzp_textbuf text = {0};
    size_t i;
    int r = HZP_OK;
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

static enum MHD_Result route(struct hzp_exchange *x, const struct hzp_field_set *fields,
                             int (*answer)(const json_t *, const struct hzp_engine *, json_t **,
                                           struct hzp_err_text *))
{
    enum MHD_Result r;
    json_t *body = hzp_exchange_json(x, &r), *ret = NULL, *ignored = NULL;
    struct hzp_err_text err = {.text = ""};
    if (!body)
        return r;
    int code = hzp_fields_check(fields, body, &ignored, &err);
    if (code == HZP_OK)
        code = answer(body, x->server->engine, &ret, &err);
    json_decref(ignored);
    json_decref(body);
    return code < 0 ? hzp_reply_fail(x, code, &err) : hzp_reply_json(x, MHD_HTTP_OK, ret);
}

enum MHD_Result hzp_route_count_tokens(struct hzp_exchange *x)
{
    return route(x, &hzp_fields_count_tokens, hzp_messages_count);
}

enum MHD_Result hzp_route_tokenize(struct hzp_exchange *x)
{
    return route(x, &hzp_fields_tokenize, tokenize);
}

enum MHD_Result hzp_route_detokenize(struct hzp_exchange *x)
{
    return route(x, &hzp_fields_detokenize, detokenize);
}

/* Takes a value over and returns it with null for what JSON has no number for: Python writes NaN
 * and infinity into files. */
static json_t *json_numbers(json_t *value)
{
    const char *text = hzp_json_spelling(value), *name;
    json_t *each;
    size_t i, bytes;
    void *next;
    if (text && strpbrk(text, "NI")) {
        json_decref(value);
        return json_null();
    }
    for (i = 0; i < json_array_size(value); i++)
        json_array_set_new(value, i, json_numbers(json_incref(json_array_get(value, i))));
    json_object_keylen_foreach_safe(value, next, name, bytes, each)
    {
        if (!text)
            json_object_setn_new_nocheck(value, name, bytes, json_numbers(json_incref(each)));
    }
    return value;
}

enum MHD_Result hzp_route_tokenizer_info(struct hzp_exchange *x)
{
    const struct hzp_assembly *parts = &x->server->engine->parts;
    char path[4096];
    snprintf(path, sizeof(path), "%s/tokenizer_config.json",
             parts->source_dir ? parts->source_dir : ".");
    struct hzp_err_text err;
    json_t *info = NULL;
    int code =
        parts->source_dir ? hzp_json_read(path, INFO_BYTES_MAX, &info, &err) : (int)HZP_ENOENT;
    if (code < 0 && code != HZP_ENOENT)
        return hzp_reply_fail(x, HZP_EIO, &err);
    info = code < 0 ? json_object() : json_numbers(info);
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
