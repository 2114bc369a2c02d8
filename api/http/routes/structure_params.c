/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of completions and chats that say which tokens an answer may have. */
#include "api/http/routes/completion.h"
#include "api/http/wire/fields.h"

enum { BAD_WORDS_MAX = 256, WORD_MAX = 1 << 14 /* bytes */ };

void hzp_structure_params_fini(struct hzp_completion_params *params)
{
    hzp_constraint_unref(params->tokens.constraint);
    free((void *)params->tokens.allowed);
    free((void *)params->tokens.bad);
    free((void *)params->tokens.bad_at);
    free((void *)params->tokens.source);
    free(params->structure);
    params->structure = NULL;
    memset(&params->tokens, 0, sizeof(params->tokens));
    params->limited = false;
}

/* ---- tokens and words ---- */

static int read_allowed(const json_t *body, const struct hzp_engine *engine,
                        struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    const json_t *list = hzp_given(body, "allowed_token_ids"), *each;
    int32_t vocab = engine->parts.config.vocab;
    size_t i;
    if (!list)
        return HZP_OK;
    if (!json_is_array(list) || !json_array_size(list) || json_array_size(list) > (size_t)vocab)
        return hzp_wrong(reterr, "allowed_token_ids", "must be a list of 1 to %d tokens", vocab);
    int32_t *ids = hzp_xcalloc(json_array_size(list), sizeof(*ids));
    params->tokens.allowed = ids;
    params->limited = true;
    json_array_foreach(list, i, each)
    {
        json_int_t id = json_is_integer(each) ? json_integer_value(each) : -1;
        if (id < 0 || id >= vocab)
            return hzp_wrong(reterr, "allowed_token_ids",
                             ": item %zu is not an integer from 0 to %d", i, vocab - 1);
        ids[params->tokens.alloweds++] = (int32_t)id;
    }
    return HZP_OK;
}

/* Appends the tokens of prefix and word as a bad sequence. */
static int add_bad(const struct hzp_engine *engine, const char *prefix, const char *word,
                   struct hzp_tokens *ids, struct hzp_completion_params *params,
                   struct hzp_err_text *reterr)
{
    struct hzp_token_rules *tokens = &params->tokens;
    int32_t *at = (int32_t *)tokens->bad_at;
    size_t before = ids->n, size = strlen(prefix) + strlen(word) + 1;
    if (size > WORD_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "bad_words: \"%.32s...\" has more than %d bytes", word,
                        WORD_MAX);
    HZP_FREED char *text = hzp_xmalloc(size);
    snprintf(text, size, "%s%s", prefix, word);
    HZP_TRY(hzp_tokenizer_encode(engine->parts.tok, text, size - 1, 0, INT32_MAX, ids, reterr));
    if (ids->n - before > HZP_BAD_TOKENS_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "bad_words: \"%.32s...\" has more than %d tokens", word,
                        HZP_BAD_TOKENS_MAX);
    if (ids->n > before)
        at[++tokens->bads] = (int32_t)ids->n;
    return HZP_OK;
}

/* A word, the same behind a blank, and as it is written where that has more blanks: tokens of
 * words that begin behind a blank are others, and may be more or fewer. */
static int add_word(const struct hzp_engine *engine, const char *word, struct hzp_tokens *ids,
                    struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    const char *bare = word + strspn(word, " ");
    if (*bare) {
        HZP_TRY(add_bad(engine, "", bare, ids, params, reterr));
        HZP_TRY(add_bad(engine, " ", bare, ids, params, reterr));
    }
    return !*bare || bare > word + 1 ? add_bad(engine, "", word, ids, params, reterr) : HZP_OK;
}

static int read_bad(const json_t *body, const struct hzp_engine *engine,
                    struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    const json_t *list = hzp_given(body, "bad_words"), *each;
    struct hzp_tokens ids = {0};
    size_t i;
    int r = HZP_OK;
    if (!list || (json_is_array(list) && !json_array_size(list)))
        return HZP_OK;
    if (!json_is_array(list) || json_array_size(list) > BAD_WORDS_MAX)
        return hzp_wrong(reterr, "bad_words", "must be a list of at most %d strings",
                         BAD_WORDS_MAX);
    params->tokens.bad_at =
        hzp_xcalloc(3 * json_array_size(list) + 1, sizeof(*params->tokens.bad_at));
    params->limited = true;
    json_array_foreach(list, i, each)
    {
        if (r == HZP_OK &&
            (!json_is_string(each) || !json_string_length(each) || !hzp_json_is_text(each)))
            r = hzp_fail(reterr, HZP_EINVAL,
                         "bad_words: item %zu is not a string, or it is empty or has \\u0000", i);
        if (r == HZP_OK)
            r = add_word(engine, json_string_value(each), &ids, params, reterr);
    }
    params->tokens.bad = ids.ids;
    if (r < 0 && reterr)
        snprintf(reterr->param, sizeof(reterr->param), "bad_words");
    return r;
}

/* ---- structure ---- */

/* The one structure that the fields ask for. */
struct asked {
    struct hzp_structure structure;
    const char *field; /* which one asks; NULL: none */
    json_t *parsed;    /* owned: a schema that came as text */
};

static int ask(struct asked *a, const char *field, struct hzp_err_text *reterr)
{
    if (a->field)
        return hzp_fail_param(reterr, HZP_EINVAL, field, "%s and %s exclude each other", a->field,
                              field);
    a->field = field;
    return HZP_OK;
}

/* A schema as JSON, or as text with JSON in it. */
static int ask_schema(struct asked *a, const char *field, const json_t *value,
                      struct hzp_err_text *reterr)
{
    HZP_TRY(ask(a, field, reterr));
    if (json_is_string(value)) {
        struct hzp_json_error error;
        a->parsed = hzp_json_load(json_string_value(value), json_string_length(value), HZP_JSON_ANY,
                                  NULL, &error);
        if (!a->parsed)
            return hzp_wrong(reterr, field, "must be a JSON schema: %s", error.text);
        value = a->parsed;
    }
    if (!json_is_object(value) && !json_is_boolean(value))
        return hzp_wrong(reterr, field, "must be a JSON schema");
    a->structure.schema = value;
    return HZP_OK;
}

static int ask_text(struct asked *a, const char *field, const json_t *value, const char **ret,
                    struct hzp_err_text *reterr)
{
    HZP_TRY(ask(a, field, reterr));
    *ret = json_string_value(value);
    if (!hzp_json_is_text(value) || !**ret)
        return hzp_wrong(reterr, field, "must be a string that is not empty and has no \\u0000");
    return HZP_OK;
}

/* {"type": "text", or "json_object", perhaps with "schema", or "json_schema", "json_schema":
 * {"schema": ...}} */
static int read_format(const json_t *body, struct asked *a, struct hzp_err_text *reterr)
{
    const json_t *format = hzp_given(body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!format)
        return HZP_OK;
    const json_t *own = hzp_given(format, "schema"), *named = hzp_given(format, "json_schema");
    const char *extra = !type                                       ? NULL
                        : named && strcmp(type, "json_schema") != 0 ? "json_schema"
                        : own && (named || !strcmp(type, "text"))   ? "schema"
                                                                    : NULL;
    if (extra)
        return hzp_wrong(reterr, "response_format", ": the type %.32s takes no %s%s", type, extra,
                         own && named ? " beside another" : "");
    if (type && !strcmp(type, "text"))
        return HZP_OK;
    if (type && !strcmp(type, "json_object")) {
        a->structure.object = true;
        return own ? ask_schema(a, "response_format", own, reterr)
                   : ask(a, "response_format", reterr);
    }
    if (type && !strcmp(type, "json_schema")) {
        const json_t *schema = named ? json_object_get(named, "schema") : own;
        if (!schema)
            return hzp_wrong(reterr, "response_format", ": json_schema.schema is missing");
        return ask_schema(a, "response_format", schema, reterr);
    }
    return hzp_wrong(reterr, "response_format", ": type must be text, json_object or json_schema");
}

/* {"json": schema} or {"regex": ...}, {"choice": [...]}, {"grammar": ...}, {"json_object": true} */
static int read_structured(const json_t *body, struct asked *a, struct hzp_err_text *reterr)
{
    static const char field[] = "structured_outputs";
    json_t *outputs = hzp_given(body, field), *value;
    const char *key;
    size_t bytes;
    if (!outputs)
        return HZP_OK;
    json_object_keylen_foreach(outputs, key, bytes, value)
    {
        if (strlen(key) != bytes)
            return hzp_wrong(reterr, field, ": a name has \\u0000");
        if (json_is_null(value) || json_is_false(value))
            continue;
        if (!strcmp(key, "json")) {
            HZP_TRY(ask_schema(a, field, value, reterr));
        } else if (!strcmp(key, "regex")) {
            HZP_TRY(ask_text(a, field, value, &a->structure.regex, reterr));
        } else if (!strcmp(key, "grammar")) {
            HZP_TRY(ask_text(a, field, value, &a->structure.gbnf, reterr));
        } else if (!strcmp(key, "choice")) {
            HZP_TRY(ask(a, field, reterr));
            a->structure.choice = value;
        } else if (!strcmp(key, "json_object")) {
            HZP_TRY(ask(a, field, reterr));
            a->structure.object = true;
        } else {
            return hzp_wrong(reterr, field, ": %.64s is not supported", key);
        }
    }
    return HZP_OK;
}

/* Earlier names of vLLM, and those of llama.cpp's server. */
static int read_earlier(const json_t *body, struct asked *a, struct hzp_err_text *reterr)
{
    const json_t *value;
    if ((value = hzp_given(body, "guided_json")))
        HZP_TRY(ask_schema(a, "guided_json", value, reterr));
    if ((value = hzp_given(body, "json_schema")))
        HZP_TRY(ask_schema(a, "json_schema", value, reterr));
    if ((value = hzp_given(body, "guided_regex")))
        HZP_TRY(ask_text(a, "guided_regex", value, &a->structure.regex, reterr));
    if ((value = hzp_given(body, "guided_grammar")))
        HZP_TRY(ask_text(a, "guided_grammar", value, &a->structure.gbnf, reterr));
    if ((value = hzp_given(body, "grammar")) &&
        !(json_is_string(value) && !json_string_length(value)))
        HZP_TRY(ask_text(a, "grammar", value, &a->structure.gbnf, reterr));
    if ((value = hzp_given(body, "guided_choice"))) {
        HZP_TRY(ask(a, "guided_choice", reterr));
        a->structure.choice = value;
    }
    return HZP_OK;
}

static int read_asked(const json_t *body, const struct hzp_engine *engine, bool must_call,
                      struct asked *a, struct hzp_completion_params *params,
                      struct hzp_err_text *reterr)
{
    HZP_TRY(read_format(body, a, reterr));
    HZP_TRY(read_structured(body, a, reterr));
    HZP_TRY(read_earlier(body, a, reterr));
    if (must_call && a->field)
        return hzp_wrong(reterr, a->field,
                         "and a tool_choice that asks for a call exclude each other");
    if (a->field)
        a->structure.free = false; /* the answer is that, or a call */
    if (!must_call && !a->field && !a->structure.free)
        return HZP_OK;
    struct hzp_err_text err = {0};
    params->structure_field = must_call ? "tool_choice" : a->field ? a->field : "tools";
    int r = hzp_structures_ask(&a->structure, &params->structure, &err);
    if (r < 0)
        return hzp_fail_param(reterr, r, params->structure_field, "%s: %.400s",
                              params->structure_field, err.text);
    params->limited = true;
    return HZP_OK;
}

static void take_grammar(struct hzp_completion_params *params, const struct hzp_engine *engine,
                         struct hzp_grammar *grammar)
{
    params->tokens.constraint = hzp_grammar_constraint(grammar);
    if (engine->front)
        params->tokens.source = hzp_structures_write(engine->parts.structures, params->structure);
    free(params->structure);
    params->structure = NULL;
}

bool hzp_structure_find(struct hzp_completion_params *params, const struct hzp_engine *engine)
{
    if (!params->structure)
        return true;
    struct hzp_grammar *grammar = hzp_structures_kept(engine->parts.structures, params->structure);
    if (grammar)
        take_grammar(params, engine, grammar);
    return grammar != NULL;
}

int hzp_structure_make(struct hzp_completion_params *params, const struct hzp_engine *engine,
                       enum hzp_structure_size size, bool (*abandoned)(void *ctx), void *ctx,
                       struct hzp_err_text *reterr)
{
    struct hzp_grammar *grammar;
    struct hzp_err_text err = {0};
    int r = hzp_structures_make(engine->parts.structures, params->structure, size, abandoned, ctx,
                                &grammar, &err);
    if (r == HZP_OK)
        take_grammar(params, engine, grammar);
    if (r >= 0 || r == HZP_ECANCELED)
        return r;
    return hzp_fail_param(reterr, r, params->structure_field, "%s: %.400s", params->structure_field,
                          err.text);
}

int hzp_structure_parse(const json_t *body, const struct hzp_engine *engine,
                        const struct hzp_structure *chat, bool must_call,
                        struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    struct asked a = {0};
    if (chat)
        a.structure = *chat;
    HZP_TRY(read_allowed(body, engine, params, reterr));
    HZP_TRY(read_bad(body, engine, params, reterr));
    int r = read_asked(body, engine, must_call, &a, params, reterr);
    json_decref(a.parsed);
    return r;
}
