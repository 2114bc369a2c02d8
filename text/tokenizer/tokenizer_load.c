/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json_file.h"
#include "text/tokenizer/tokenizer_parts.h"

#define PATH_BYTES 4096

/* Whether the post-processor or tokenizer_config.json is to say what goes around a text. */
struct loading {
    struct hzp_tokenizer *tok;
    const char *path, *config_path;
    json_t *json, *config; /* config: NULL if there is none */
    char where[300];
    bool around_known;
    struct hzp_err_text *reterr;
};

static int add_around(struct loading *l, struct hzp_tokenizer_around *around, const json_t *id,
                      const char *token)
{
    int32_t value;
    HZP_TRY(hzp_tokjson_id(id, l->where, token, &value, l->reterr));
    if (around->n == HZP_TOKENIZER_AROUND_MAX)
        return hzp_fail(l->reterr, HZP_EUNSUP, "%s: more than %d tokens around a text", l->where,
                        HZP_TOKENIZER_AROUND_MAX);
    around->ids[around->n++] = value;
    return HZP_OK;
}

/* {"SpecialToken": {"id": "<s>"}} by the table "special_tokens". */
static int add_template_token(struct loading *l, struct hzp_tokenizer_around *around,
                              const json_t *item, const json_t *table)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
    const json_t *ids = json_object_get(json_object_get(table, name != NULL ? name : ""), "ids");
    if (name == NULL || !json_is_array(ids))
        return hzp_fail(l->reterr, HZP_EFORMAT,
                        "%s: a template's item is neither the text nor a known special token",
                        l->where);
    size_t i;
    json_t *id;
    json_array_foreach(ids, i, id) HZP_TRY(add_around(l, around, id, name));
    return HZP_OK;
}

static int load_template(struct loading *l, const json_t *json)
{
    const json_t *single = json_object_get(json, "single");
    const json_t *table = json_object_get(json, "special_tokens");
    bool text = false;
    size_t i;
    json_t *item;
    if (!json_is_array(single))
        return hzp_fail(l->reterr, HZP_EUNSUP, "%s: single must be a list", l->where);
    json_array_foreach(single, i, item)
    {
        if (json_object_get(item, "Sequence") == NULL) {
            struct hzp_tokenizer_around *around = text ? &l->tok->behind : &l->tok->before;
            HZP_TRY(add_template_token(l, around, item, table));
        } else if (text) {
            return hzp_fail(l->reterr, HZP_EUNSUP, "%s: a template with the text twice", l->where);
        } else {
            text = true;
        }
    }
    if (!text)
        return hzp_fail(l->reterr, HZP_EFORMAT, "%s: a template without the text", l->where);
    l->around_known = true;
    return HZP_OK;
}

static int load_post(void *ctx, const char *type, const json_t *json, const char *where,
                     struct hzp_err_text *reterr)
{
    struct loading *l = ctx;
    if (strcmp(type, "ByteLevel") == 0)
        return HZP_OK; /* about offsets only */
    if (l->around_known)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: more than one processor adds tokens", where);
    if (strcmp(type, "TemplateProcessing") == 0)
        return load_template(l, json);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        l->around_known = true;
        const json_t *cls = json_object_get(json, "cls"), *sep = json_object_get(json, "sep");
        HZP_TRY(add_around(l, &l->tok->before, json_array_get(cls, 1), "cls"));
        return add_around(l, &l->tok->behind, json_array_get(sep, 1), "sep");
    }
    return hzp_fail(reterr, HZP_EUNSUP, "%s: type \"%.60s\" is not supported", where, type);
}

static int load_added(struct loading *l)
{
    struct hzp_added *added = &l->tok->added;
    const json_t *list = json_object_get(l->json, "added_tokens");
    size_t i;
    json_t *item;
    int32_t id;
    hzp_tokjson_where(l->where, sizeof(l->where), l->path, "added_tokens");
    if (list != NULL && !json_is_null(list) && !json_is_array(list))
        return hzp_fail(l->reterr, HZP_EFORMAT, "%s: must be a list", l->where);
    json_array_foreach(list, i, item)
    {
        const char *content = json_string_value(json_object_get(item, "content"));
        HZP_TRY(hzp_tokjson_id(json_object_get(item, "id"), l->where,
                               content != NULL ? content : "?", &id, l->reterr));
        HZP_TRY(hzp_added_load(added, item, id, l->tok->vocab, l->where, l->reterr));
    }
    return HZP_OK;
}

/* tokenizer_config.json's "added_tokens_decoder": what tokenizer.json lacks. */
static int load_config_added(struct loading *l)
{
    struct hzp_added *added = &l->tok->added;
    const json_t *table = json_object_get(l->config, "added_tokens_decoder");
    const char *key;
    json_t *item;
    size_t bytes;
    hzp_tokjson_where(l->where, sizeof(l->where), l->config_path, "added_tokens_decoder");
    size_t from_file = added->n;
    json_object_keylen_foreach((json_t *)(uintptr_t)table, key, bytes, item)
    {
        char *end;
        long id = strtol(key, &end, 10);
        if (*key == 0 || end != key + bytes || id < 0 || id >= HZP_TOKENIZER_ID_MAX)
            return hzp_fail(l->reterr, HZP_EFORMAT, "%s: \"%.60s\" is not a token id", l->where,
                            key);
        const json_t *content = json_object_get(item, "content");
        bool known = !json_is_string(content) ||
                     hzp_vocab_find(l->tok->vocab, json_string_value(content),
                                    json_string_length(content)) != HZP_VOCAB_NONE;
        for (size_t i = 0; i < from_file && !known; i++)
            known = added->tokens[i].id == id ||
                    (added->tokens[i].bytes == json_string_length(content) &&
                     !memcmp(added->tokens[i].text, json_string_value(content),
                             added->tokens[i].bytes));
        if (!known)
            HZP_TRY(hzp_added_load(added, item, (int32_t)id, l->tok->vocab, l->where, l->reterr));
    }
    return HZP_OK;
}

/* "bos_token": a string, or an object with "content". -1: not there, or not in the vocabulary. */
static int32_t named_token(const struct hzp_tokenizer *tok, const json_t *json, const char *name)
{
    const json_t *value = json_object_get(json, name);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value)
               ? hzp_tokenizer_find(tok, json_string_value(value), json_string_length(value))
               : -1;
}

/* A file that need not be there: *ret stays NULL. */
static int read_optional(const char *path, json_t **ret, struct hzp_err_text *reterr)
{
    struct hzp_err_text err;
    int r = hzp_json_read(path, HZP_TOKENIZER_FILE_MAX, 0, ret, &err);
    if (r == HZP_ENOENT)
        return HZP_OK;
    if (r < 0 && reterr != NULL)
        *reterr = err;
    return r;
}

/* The begin and end tokens; what the configuration adds where the post-processor adds nothing. */
static int load_names(struct loading *l, const char *model_dir)
{
    struct hzp_tokenizer *tok = l->tok;
    char path[PATH_BYTES];
    json_t *map = NULL;
    bool add_bos, add_eos;
    snprintf(path, sizeof(path), "%s/special_tokens_map.json", model_dir);
    tok->bos = named_token(tok, l->config, "bos_token");
    tok->eos = named_token(tok, l->config, "eos_token");
    if (tok->bos < 0 || tok->eos < 0)
        HZP_TRY(read_optional(path, &map, l->reterr));
    if (json_object_get(l->config, "bos_token") == NULL)
        tok->bos = named_token(tok, map, "bos_token");
    if (json_object_get(l->config, "eos_token") == NULL)
        tok->eos = named_token(tok, map, "eos_token");
    json_decref(map);
    hzp_tokjson_where(l->where, sizeof(l->where), l->config_path, "adding tokens");
    HZP_TRY(hzp_tokjson_bool(l->config, "add_bos_token", false, l->where, &add_bos, l->reterr));
    HZP_TRY(hzp_tokjson_bool(l->config, "add_eos_token", false, l->where, &add_eos, l->reterr));
    if (!l->around_known && add_bos && tok->bos >= 0)
        tok->before.ids[tok->before.n++] = tok->bos;
    if (!l->around_known && add_eos && tok->eos >= 0)
        tok->behind.ids[tok->behind.n++] = tok->eos;
    return HZP_OK;
}

static int render_one(struct hzp_tokenizer *tok, struct hzp_matcher *matcher, int32_t id,
                      bool first, struct hzp_tokenizer_rendering *rendering)
{
    size_t bytes = 0;
    bool byte;
    const char *text = hzp_tokenizer_spelling(tok, id, &bytes);
    rendering->from = (uint32_t)tok->pool.bytes;
    HZP_TRY(hzp_decoder_render(&tok->decoder, matcher, text, bytes, first, &tok->pool, &byte));
    if (tok->pool.bytes > UINT32_MAX / 2)
        return HZP_ENOMEM;
    rendering->bytes = (uint32_t)tok->pool.bytes - rendering->from;
    if (byte)
        tok->kind[id] |= HZP_TOKENIZER_BYTE;
    return HZP_OK;
}

/* What every id is as text. */
static int render_all(struct hzp_tokenizer *tok, struct hzp_matcher *matcher)
{
    tok->n = tok->vocab->n;
    for (size_t i = 0; i < tok->added.n; i++)
        tok->n = HZP_MAX(tok->n, tok->added.tokens[i].id + 1);
    size_t n = (size_t)tok->n;
    tok->kind = calloc(n, 1);
    tok->added_of = malloc(n * sizeof(*tok->added_of));
    tok->middle = calloc(n, sizeof(*tok->middle));
    tok->first = tok->decoder.first_differs ? calloc(n, sizeof(*tok->first)) : tok->middle;
    if (tok->kind == NULL || tok->added_of == NULL || tok->middle == NULL || tok->first == NULL)
        return HZP_ENOMEM;
    memset(tok->added_of, 0xFF, n * sizeof(*tok->added_of));
    for (size_t i = tok->added.n; i-- > 0;) {
        int32_t id = tok->added.tokens[i].id;
        tok->added_of[id] = (int32_t)i;
        tok->kind[id] |= HZP_TOKENIZER_EXISTS;
        if (tok->added.tokens[i].special)
            tok->kind[id] |= HZP_TOKENIZER_SPECIAL;
    }
    for (int32_t id = 0; id < tok->n; id++) {
        if (id < tok->vocab->n && tok->vocab->tokens[id].exists)
            tok->kind[id] |= HZP_TOKENIZER_EXISTS;
        if (!(tok->kind[id] & HZP_TOKENIZER_EXISTS))
            continue;
        HZP_TRY(render_one(tok, matcher, id, false, &tok->middle[id]));
        if (tok->first != tok->middle)
            HZP_TRY(render_one(tok, matcher, id, true, &tok->first[id]));
    }
    return hzp_textbuf_append(&tok->pool, "", 1); /* so that it is never NULL */
}

/* Two added tokens must not share an id under different names. */
static int check_added(struct loading *l)
{
    const struct hzp_tokenizer *tok = l->tok;
    for (size_t i = 0; i < tok->added.n; i++) {
        const struct hzp_added_token *token = &tok->added.tokens[i];
        const struct hzp_added_token *known = &tok->added.tokens[tok->added_of[token->id]];
        if (strcmp(token->text, known->text) != 0)
            return hzp_fail(l->reterr, HZP_EFORMAT,
                            "%s: added_tokens: \"%.60s\" and \"%.60s\" have id %d", l->path,
                            known->text, token->text, token->id);
    }
    for (int i = 0; i < tok->before.n + tok->behind.n; i++) {
        int32_t id = i < tok->before.n ? tok->before.ids[i] : tok->behind.ids[i - tok->before.n];
        if (id >= tok->n || !(tok->kind[id] & HZP_TOKENIZER_EXISTS))
            return hzp_fail(l->reterr, HZP_EFORMAT, "%s: post_processor: no token has id %d",
                            l->path, id);
    }
    return HZP_OK;
}

static int load_parts(struct loading *l, const char *model_dir)
{
    struct hzp_tokenizer *tok = l->tok;
    HZP_TRY(hzp_normalizer_load(json_object_get(l->json, "normalizer"), l->path, &tok->normalizer,
                                l->reterr));
    HZP_TRY(hzp_pretokenizer_load(json_object_get(l->json, "pre_tokenizer"), l->path, &tok->pre,
                                  l->reterr));
    HZP_TRY(
        hzp_decoder_load(json_object_get(l->json, "decoder"), l->path, &tok->decoder, l->reterr));
    HZP_TRY(hzp_vocab_load(json_object_get(l->json, "model"), hzp_pretokenizer_byte_level(tok->pre),
                           l->path, &tok->vocab, l->reterr));
    HZP_TRY(load_added(l));
    HZP_TRY(load_config_added(l));
    hzp_tokjson_where(l->where, sizeof(l->where), l->path, "post_processor");
    HZP_TRY(hzp_tokjson_parts(json_object_get(l->json, "post_processor"), l->path, "post_processor",
                              "processors", load_post, l, l->reterr));
    HZP_TRY(load_names(l, model_dir));

    struct hzp_matcher *matcher = hzp_matcher_new();
    if (matcher == NULL)
        return hzp_fail(l->reterr, HZP_ENOMEM, "%s: no memory for the patterns", l->path);
    hzp_tokjson_where(l->where, sizeof(l->where), l->path, "added_tokens");
    int r = hzp_added_ready(&tok->added, tok->normalizer, matcher, l->where, l->reterr);
    if (r >= 0) {
        r = render_all(tok, matcher);
        if (r < 0)
            (void)hzp_fail(l->reterr, r, "%s: decoder: its tokens cannot be rendered", l->path);
    }
    hzp_matcher_free(matcher);
    HZP_TRY(r);
    return check_added(l);
}

int hzp_tokenizer_open(const char *model_dir, struct hzp_tokenizer **ret,
                       struct hzp_err_text *reterr)
{
    char path[PATH_BYTES], config_path[PATH_BYTES];
    struct loading l = {.path = path, .config_path = config_path, .reterr = reterr};
    if (strlen(model_dir) > PATH_BYTES - 64)
        return hzp_fail(reterr, HZP_EINVAL, "%.60s...: too long a path", model_dir);
    snprintf(path, sizeof(path), "%s/tokenizer.json", model_dir);
    snprintf(config_path, sizeof(config_path), "%s/tokenizer_config.json", model_dir);
    int r = hzp_json_read(path, HZP_TOKENIZER_FILE_MAX, 0, &l.json, reterr);
    if (r >= 0)
        r = read_optional(config_path, &l.config, reterr);
    if (r >= 0) {
        l.tok = hzp_xcalloc(1, sizeof(*l.tok));
        hzp_lock_init(&l.tok->lock, HZP_LOCK_TOKENIZER);
        r = load_parts(&l, model_dir);
        if (r < 0)
            hzp_tokenizer_close(l.tok);
        else
            *ret = l.tok;
    }
    json_decref(l.json);
    json_decref(l.config);
    return r;
}
