/* SPDX-License-Identifier: Apache-2.0 */
/* POST /tokenize, POST /detokenize, GET /tokenizer_info, GET /load: vLLM's routes around the
 * tokenizer; POST /v1/messages/count_tokens, Anthropic's. */
#include "api/http/routes/blocks.h"
#include "api/http/routes/field_table.h"
#include "api/http/routes/routes.h"
#include "api/http/wire/fields.h"
#include "base/json_file.h"

enum {
    INFO_BYTES_MAX = 16 << 20,
    WORK_TIMES = 16, /* bytes of memory per byte of text: pieces, and as many tokens at most */
};

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

/* ---- answers, written as text: a tree of so many values would take a multiple of it ---- */

struct writer {
    struct hzp_exchange *x;
    struct hzp_textbuf text;
    size_t work; /* bytes that the exchange accounts for beside */
    int r;
};

/* Makes room, doubling, for which old and new memory count. */
static bool reserve(struct writer *w, size_t bytes)
{
    size_t cap = w->text.cap;
    while (cap < w->text.bytes + bytes)
        cap = HZP_MAX(2 * cap, (size_t)4096);
    if (w->r == HZP_OK && cap > w->text.cap &&
        !hzp_exchange_charge_beside(w->x, w->work + w->text.cap + cap))
        w->r = HZP_ENOMEM;
    return w->r == HZP_OK;
}

static void put(struct writer *w, const char *text, size_t bytes)
{
    if (reserve(w, bytes))
        w->r = hzp_textbuf_append(&w->text, text, bytes);
}

static void HZP_PRINTF(2, 3) put_format(struct writer *w, const char *format, ...)
{
    char text[128];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    put(w, text, (size_t)n);
}

/* Adds a value of JSON and lets it go; a list without its brackets. */
static void put_json(struct writer *w, json_t *value)
{
    HZP_FREED char *text = value ? hzp_json_dumps(value, HZP_JSON_FORM | JSON_ENCODE_ANY) : NULL;
    size_t cut = json_is_array(value) ? 1 : 0;
    if (text)
        put(w, text + cut, strlen(text) - 2 * cut);
    else
        w->r = HZP_ENOMEM;
    json_decref(value);
}

static void put_spellings(struct writer *w, const struct hzp_tokenizer *tok,
                          const struct hzp_tokens *tokens)
{
    enum { AT_ONCE = 1024 };
    for (size_t from = 0; from < tokens->n && w->r == HZP_OK; from += AT_ONCE) {
        json_t *some = json_array();
        for (size_t i = from; i < HZP_MIN(from + AT_ONCE, tokens->n); i++) {
            size_t bytes = 0;
            const char *text = hzp_tokenizer_spelling(tok, tokens->ids[i], &bytes);
            json_array_append_new(some, hzp_text_json(text ? text : "", text ? bytes : 0));
        }
        put(w, ",", from ? 1 : 0);
        put_json(w, some);
    }
}

static void put_tokens(struct writer *w, const struct hzp_tokens *tokens, bool strings)
{
    const struct hzp_assembly *parts = &w->x->server->engine->parts;
    put_format(w, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":[", tokens->n,
               parts->plan.positions);
    for (size_t i = 0; i < tokens->n && w->r == HZP_OK; i++)
        put_format(w, i ? ",%d" : "%d", tokens->ids[i]);
    put_format(w, strings ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    if (strings) {
        put_spellings(w, parts->tok, tokens);
        put_format(w, "]}");
    }
}

static int tokenize(const json_t *body, struct writer *w, struct hzp_err_text *reterr)
{
    const struct hzp_engine *engine = w->x->server->engine;
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
    HZP_ENDED(hzp_tokens_fini) struct hzp_tokens tokens = {0};
    bool special, strings = false;
    hzp_given_bool(body, "return_token_strs", &strings);
    int r = read_text(body, engine, &text, &special, reterr);
    w->work = WORK_TIMES * text.bytes;
    if (r == HZP_OK && !hzp_exchange_charge_beside(w->x, w->work))
        r = HZP_ENOMEM;
    if (r == HZP_OK)
        r = hzp_tokenizer_encode(engine->parts.tok, text.bytes ? text.data : "", text.bytes,
                                 HZP_TOKENIZER_PARSE_SPECIAL |
                                     (special ? HZP_TOKENIZER_ADD_SPECIAL : 0),
                                 INT32_MAX, &tokens, reterr);
    w->work = text.cap + tokens.cap * sizeof(*tokens.ids);
    if (r == HZP_OK)
        put_tokens(w, &tokens, strings);
    return r < 0 ? r : w->r;
}

/* The ids of the list, and how many bytes their texts have at most. */
static int read_tokens(const json_t *list, const struct hzp_engine *engine, struct hzp_tokens *ret,
                       size_t *ret_bytes, struct hzp_err_text *reterr)
{
    const json_t *value;
    size_t i;
    json_array_foreach(list, i, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        int32_t token = (int32_t)id;
        size_t bytes = 0;
        if (id < 0 || id >= engine->parts.config.vocab)
            return hzp_wrong(reterr, "tokens", ": item %zu is not an integer from 0 to %d", i,
                             engine->parts.config.vocab - 1);
        HZP_TRY(hzp_tokens_append(ret, &token, 1));
        if (hzp_tokenizer_spelling(engine->parts.tok, token, &bytes))
            *ret_bytes += bytes;
    }
    return HZP_OK;
}

static int detokenize(const json_t *body, struct writer *w, struct hzp_err_text *reterr)
{
    /* Bytes of memory per byte of text: the text, its JSON value and its escaped form; each of the
     * three buffers grows by doubling. */
    enum { TEXT_TIMES = 12 };
    const struct hzp_engine *engine = w->x->server->engine;
    const json_t *list = json_object_get(body, "tokens");
    HZP_ENDED(hzp_tokens_fini) struct hzp_tokens tokens = {0};
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
    size_t bytes = 0;
    if (!json_is_array(list))
        return hzp_wrong(reterr, "tokens", "must be a list of tokens");
    int r = read_tokens(list, engine, &tokens, &bytes, reterr);
    w->work = tokens.cap * sizeof(*tokens.ids) + TEXT_TIMES * bytes;
    HZP_TRY(r);
    if (!hzp_exchange_charge_beside(w->x, w->work))
        return HZP_ENOMEM;
    HZP_TRY(hzp_tokenizer_decode(engine->parts.tok, tokens.ids, tokens.n, false, &text));
    put_format(w, "{\"prompt\":");
    put_json(w, hzp_text_json(text.data, text.bytes));
    put_format(w, "}");
    return w->r;
}

static int count_tokens(const json_t *body, struct writer *w, struct hzp_err_text *reterr)
{
    json_t *count = NULL;
    if (!hzp_exchange_charge_beside(w->x, WORK_TIMES * w->x->bytes))
        return HZP_ENOMEM;
    HZP_TRY(hzp_messages_count(body, w->x->server->engine, &count, reterr));
    put_json(w, count);
    return w->r;
}

static int route(struct hzp_exchange *x, const struct hzp_field_set *fields,
                 int (*answer)(const json_t *, struct writer *, struct hzp_err_text *),
                 struct hzp_err_text *reterr)
{
    enum MHD_Result r;
    json_auto_t *body = hzp_exchange_json(x, &r), *ignored = NULL;
    struct writer w = {.x = x};
    if (!body)
        return r;
    int code = hzp_fields_check(fields, body, &ignored, reterr);
    if (code == HZP_OK)
        code = answer(body, &w, reterr);
    if (code == HZP_OK && json_array_size(ignored)) {
        w.text.bytes--; /* the object's brace */
        put_format(&w, ",\"hzpserve\":{\"ignored\":[");
        put_json(&w, json_incref(ignored));
        put_format(&w, "]}}");
    }
    if (code == HZP_OK) {
        put(&w, "", 1);
        code = w.r;
    }
    char *text = code == HZP_OK ? realloc(w.text.data, w.text.bytes) : NULL;
    if (text)
        return hzp_reply_text(x, MHD_HTTP_OK, "application/json", text);
    hzp_textbuf_fini(&w.text);
    return code == HZP_OK ? (int)HZP_ENOMEM : code;
}

int hzp_route_count_tokens(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    return route(x, &hzp_fields_count_tokens, count_tokens, reterr);
}

int hzp_route_tokenize(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    return route(x, &hzp_fields_tokenize, tokenize, reterr);
}

int hzp_route_detokenize(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    return route(x, &hzp_fields_detokenize, detokenize, reterr);
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

int hzp_route_tokenizer_info(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    const struct hzp_assembly *parts = &x->server->engine->parts;
    char path[4096];
    snprintf(path, sizeof(path), "%s/tokenizer_config.json",
             parts->source_dir ? parts->source_dir : ".");
    json_t *info = NULL;
    int code = parts->source_dir
                   ? hzp_json_read(path, INFO_BYTES_MAX, HZP_JSON_UNIQUE, &info, reterr)
                   : (int)HZP_ENOENT;
    if (code < 0 && code != HZP_ENOENT)
        return HZP_EIO;
    info = code < 0 ? json_object() : json_numbers(info);
    json_object_set_new(info, "chat_template",
                        parts->chat ? json_string(hzp_chat_source(parts->chat)) : json_null());
    json_object_set_new(info, "vocab_size", json_integer(hzp_tokenizer_vocab(parts->tok)));
    return hzp_reply_json(x, MHD_HTTP_OK, info);
}

int hzp_route_load(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    int active = atomic_load(&x->server->active) - 1; /* without this one */
    return hzp_reply_pack(x, "{s:i}", "server_load", HZP_MAX(active, 0));
}
