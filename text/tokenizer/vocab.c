/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/tokenizer_parts.h"

#include "base/utf8.h"

#define AFFIX_MAX 64

/* ByteLevel's alphabet: printable Latin-1 stands for itself, the 68 other bytes for U+0100 on. */
static bool stands_for_itself(uint32_t byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* The byte of a character of the alphabet, -1 if it is none. */
static int alphabet_byte(uint32_t code)
{
    if (code < 0x100)
        return stands_for_itself(code) ? (int)code : -1;
    if (code >= 0x100 + 68)
        return -1;
    code -= 0x100;
    return (int)(code < 33 ? code : code < 67 ? code - 33 + 0x7F : 0xAD);
}

int64_t hzp_vocab_spelling_bytes(const char *text, size_t bytes, char *out)
{
    int64_t n = 0;
    int step;
    for (size_t at = 0; at < bytes; at += (size_t)step) {
        int byte = alphabet_byte(hzp_utf8_get(text + at, &step));
        if (byte < 0)
            return -1;
        out[n++] = (char)byte;
    }
    return n;
}

static int32_t index_find(const struct hzp_vocab *vocab, const uint32_t *index, bool key,
                          const char *text, size_t bytes)
{
    uint32_t at = (uint32_t)hzp_vocab_hash(text, bytes) & vocab->index_mask;
    for (; index[at] != 0; at = (at + 1) & vocab->index_mask) {
        const struct hzp_vocab_token *token = &vocab->tokens[index[at] - 1];
        if ((key ? token->key_bytes : token->bytes) == bytes &&
            memcmp(vocab->pool + (key ? token->key : token->text), text, bytes) == 0)
            return (int32_t)(index[at] - 1);
    }
    return HZP_VOCAB_NONE;
}

static void index_add(const struct hzp_vocab *vocab, uint32_t *index, const char *text,
                      size_t bytes, int32_t id)
{
    uint32_t at = (uint32_t)hzp_vocab_hash(text, bytes) & vocab->index_mask;
    while (index[at] != 0)
        at = (at + 1) & vocab->index_mask;
    index[at] = (uint32_t)id + 1;
}

int32_t hzp_vocab_find(const struct hzp_vocab *vocab, const char *text, size_t bytes)
{
    return index_find(vocab, vocab->by_text, false, text, bytes);
}

int32_t hzp_vocab_find_key(const struct hzp_vocab *vocab, const char *key, size_t bytes)
{
    return index_find(vocab, vocab->by_key, true, key, bytes);
}

/* Sizes of what the vocabulary needs, and whether every id is sound. */
static int measure(const json_t *vocab, const char *where, int32_t *ret_n, size_t *ret_bytes,
                   struct hzp_err_text *reterr)
{
    const char *key;
    json_t *value;
    size_t bytes = 0, length;
    int32_t n = 0, id;
    json_object_keylen_foreach((json_t *)(uintptr_t)vocab, key, length, value)
    {
        HZP_TRY(hzp_tokjson_id(value, where, key, &id, reterr));
        bytes += length;
        n = HZP_MAX(n, id + 1);
    }
    if (n == 0)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: vocab is empty", where);
    *ret_n = n;
    *ret_bytes = bytes;
    return HZP_OK;
}

static int load_tokens(struct hzp_vocab *vocab, const json_t *json, const char *where,
                       struct hzp_err_text *reterr)
{
    size_t bytes = 0, count = json_object_size(json);
    HZP_TRY(measure(json, where, &vocab->n, &bytes, reterr));
    uint32_t slots = 1024;
    while (slots < 2 * count)
        slots *= 2;
    vocab->index_mask = slots - 1;
    vocab->tokens = calloc((size_t)vocab->n, sizeof(*vocab->tokens));
    vocab->pool = malloc(2 * bytes + 1);
    vocab->by_text = calloc(slots, sizeof(uint32_t));
    vocab->by_key = calloc(slots, sizeof(uint32_t));
    if (vocab->tokens == NULL || vocab->pool == NULL || vocab->by_text == NULL ||
        vocab->by_key == NULL)
        return hzp_fail(reterr, HZP_ENOMEM, "%s: no memory for %zu tokens", where, count);

    const char *text;
    size_t length;
    json_t *value;
    json_object_keylen_foreach((json_t *)(uintptr_t)json, text, length, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        struct hzp_vocab_token *token = &vocab->tokens[id];
        if (token->exists)
            return hzp_fail(reterr, HZP_EFORMAT, "%s: tokens \"%.60s\" and \"%.*s\" have id %d",
                            where, text, (int)HZP_MIN(token->bytes, 60u), vocab->pool + token->text,
                            id);
        token->exists = true;
        token->text = (uint32_t)vocab->pool_bytes;
        token->bytes = (uint32_t)length;
        memcpy(vocab->pool + vocab->pool_bytes, text, token->bytes);
        vocab->pool_bytes += token->bytes;
        index_add(vocab, vocab->by_text, text, token->bytes, id);
        token->key = (uint32_t)vocab->pool_bytes;
        int64_t n = token->bytes;
        if (vocab->byte_level)
            n = hzp_vocab_spelling_bytes(text, token->bytes, vocab->pool + token->key);
        else
            token->key = token->text;
        token->keyed = n > 0;
        token->key_bytes = token->keyed ? (uint32_t)n : 0;
        if (vocab->byte_level)
            vocab->pool_bytes += token->key_bytes;
        if (token->keyed)
            index_add(vocab, vocab->by_key, vocab->pool + token->key, token->key_bytes, id);
    }
    return HZP_OK;
}

static void find_bytes(struct hzp_vocab *vocab)
{
    bool complete = true;
    for (int b = 0; b < 256; b++) {
        char name[8] = {(char)b};
        if (vocab->byte_level) {
            vocab->byte_ids[b] = hzp_vocab_find_key(vocab, name, 1);
        } else {
            snprintf(name, sizeof(name), "<0x%02X>", b);
            vocab->byte_ids[b] = hzp_vocab_find(vocab, name, 6);
        }
        complete &= vocab->byte_ids[b] != HZP_VOCAB_NONE;
    }
    for (int c = 0; c < 128; c++) {
        char name = (char)c;
        vocab->ascii_ids[c] = hzp_vocab_find(vocab, &name, 1);
    }
    vocab->bytes_complete = complete && (vocab->byte_level || vocab->byte_fallback);
}

/* Notes that a merge may join the last character of left and the first of right. */
static void note_join(struct hzp_vocab *vocab, const struct hzp_vocab_token *left,
                      const struct hzp_vocab_token *right)
{
    if (!left->keyed || !right->keyed)
        return; /* no text has such symbols */
    size_t end = left->key + left->key_bytes;
    uint32_t before = (uint8_t)vocab->pool[end - 1], after = (uint8_t)vocab->pool[right->key];
    if (!vocab->byte_level) {
        int step;
        before = hzp_utf8_get(vocab->pool + hzp_utf8_before(vocab->pool, end), &step);
        after = hzp_utf8_get(vocab->pool + right->key, &step);
    }
    uint32_t bit = (before * 0x9E3779B1u ^ after * 0x85EBCA77u) >> (32 - HZP_VOCAB_CUT_BITS);
    vocab->cut_bits[bit / 64] |= (uint64_t)1 << bit % 64;
}

static bool is_byte_token(const struct hzp_vocab *vocab, int32_t id)
{
    const struct hzp_vocab_token *token = &vocab->tokens[id];
    const char *text = vocab->pool + token->text;
    return vocab->byte_fallback && token->bytes == 6 && memcmp(text, "<0x", 3) == 0 &&
           text[5] == '>';
}

static int add_merge(struct hzp_vocab *vocab, const char *a, size_t a_bytes, const char *b,
                     size_t b_bytes, uint32_t rank, const char *where, struct hzp_err_text *reterr)
{
    char joined[512], *name = joined;
    int32_t left = hzp_vocab_find(vocab, a, a_bytes), right = hzp_vocab_find(vocab, b, b_bytes);
    if (left == HZP_VOCAB_NONE || right == HZP_VOCAB_NONE)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: merge %u has \"%.60s\", which is not in vocab",
                        where, rank, left == HZP_VOCAB_NONE ? a : b);
    size_t skip = strlen(vocab->prefix);
    skip = HZP_MIN(skip, b_bytes);
    if (a_bytes + b_bytes - skip > sizeof(joined))
        name = hzp_xmalloc(a_bytes + b_bytes - skip); /* both are in the vocabulary: small */
    memcpy(name, a, a_bytes);
    memcpy(name + a_bytes, b + skip, b_bytes - skip);
    int32_t id = hzp_vocab_find(vocab, name, a_bytes + b_bytes - skip);
    if (name != joined)
        free(name);
    if (id == HZP_VOCAB_NONE)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: merge %u makes \"%.60s\" + \"%.60s\", which is not in vocab", where,
                        rank, a, b);
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t at = (uint32_t)(pair * 0x9E3779B97F4A7C15u >> 32) & vocab->merge_mask;
    while (vocab->merges[at].pair != UINT64_MAX && vocab->merges[at].pair != pair)
        at = (at + 1) & vocab->merge_mask;
    vocab->merges[at] = (struct hzp_vocab_merge){pair, rank, id};
    note_join(vocab, &vocab->tokens[left], &vocab->tokens[right]);
    if (is_byte_token(vocab, left) || is_byte_token(vocab, right))
        vocab->may_cut = false; /* such a symbol stands for text that is not its spelling */
    return HZP_OK;
}

/* One entry: "a b" or ["a", "b"]. */
static int load_merge(struct hzp_vocab *vocab, const json_t *json, uint32_t rank, const char *where,
                      struct hzp_err_text *reterr)
{
    const json_t *a = json_array_get(json, 0), *b = json_array_get(json, 1);
    if (json_array_size(json) == 2 && json_is_string(a) && json_is_string(b))
        return add_merge(vocab, json_string_value(a), json_string_length(a), json_string_value(b),
                         json_string_length(b), rank, where, reterr);
    const char *text = json_string_value(json);
    const char *space = text != NULL ? strchr(text, ' ') : NULL;
    if (space == NULL || strchr(space + 1, ' ') != NULL)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: merge %u must be two tokens, as \"a b\" or [\"a\", \"b\"]", where,
                        rank);
    size_t left = (size_t)(space - text), all = json_string_length(json);
    HZP_FREED char *copy = hzp_xmalloc(left + 1); /* NUL-terminated for the error text */
    memcpy(copy, text, left);
    copy[left] = 0;
    return add_merge(vocab, copy, left, space + 1, all - left - 1, rank, where, reterr);
}

static int load_merges(struct hzp_vocab *vocab, const json_t *json, const char *where,
                       struct hzp_err_text *reterr)
{
    if (!json_is_array(json))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: merges must be a list", where);
    uint32_t slots = 64;
    while (slots < 2 * json_array_size(json))
        slots *= 2;
    vocab->merge_mask = slots - 1;
    vocab->merges = malloc(slots * sizeof(*vocab->merges));
    if (vocab->merges == NULL)
        return hzp_fail(reterr, HZP_ENOMEM, "%s: no memory for the merges", where);
    memset(vocab->merges, 0xFF, slots * sizeof(*vocab->merges));
    size_t i;
    json_t *merge;
    uint32_t rank = 0;
    json_array_foreach(json, i, merge)
    {
        const char *text = json_string_value(merge);
        if (text != NULL && strncmp(text, "#version", 8) == 0)
            continue;
        HZP_TRY(load_merge(vocab, merge, rank++, where, reterr));
    }
    return HZP_OK;
}

static int load_affix(const json_t *json, const char *name, const char *where, char **ret,
                      struct hzp_err_text *reterr)
{
    const json_t *value = json_object_get(json, name);
    if (value != NULL && !json_is_null(value) &&
        (!json_is_string(value) || json_string_length(value) > AFFIX_MAX))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: %s must be a short string", where, name);
    *ret = hzp_xstrdup(json_is_string(value) ? json_string_value(value) : "");
    return HZP_OK;
}

/* What is not tokens or merges. */
static int load_options(struct hzp_vocab *vocab, const json_t *json, const char *where,
                        struct hzp_err_text *reterr)
{
    const json_t *dropout = json_object_get(json, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) != 0)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: dropout is not supported", where);
    HZP_TRY(hzp_tokjson_bool(json, "byte_fallback", false, where, &vocab->byte_fallback, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "fuse_unk", false, where, &vocab->fuse_unk, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "ignore_merges", false, where, &vocab->ignore_merges, reterr));
    HZP_TRY(load_affix(json, "continuing_subword_prefix", where, &vocab->prefix, reterr));
    HZP_TRY(load_affix(json, "end_of_word_suffix", where, &vocab->suffix, reterr));
    if (vocab->byte_level && (vocab->prefix[0] != 0 || vocab->suffix[0] != 0))
        return hzp_fail(reterr, HZP_EUNSUP, "%s: ByteLevel with a subword prefix or word suffix",
                        where);
    return HZP_OK;
}

static int load(struct hzp_vocab *vocab, const json_t *json, const char *where,
                struct hzp_err_text *reterr)
{
    const json_t *type = json_object_get(json, "type"), *unk = json_object_get(json, "unk_token");
    const json_t *tokens = json_object_get(json, "vocab");
    if (!json_is_object(json))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: must be an object", where);
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return hzp_fail(reterr, HZP_EUNSUP, "%s: type \"%.60s\" is not supported, only BPE is",
                        where, json_is_string(type) ? json_string_value(type) : "(not a string)");
    if (!json_is_object(tokens))
        return hzp_fail(reterr, json_is_array(tokens) ? HZP_EUNSUP : HZP_EFORMAT,
                        "%s: vocab must be an object of token: id (%s)", where,
                        json_is_array(tokens) ? "a list is Unigram's" : "BPE's");
    HZP_TRY(load_options(vocab, json, where, reterr));
    HZP_TRY(load_tokens(vocab, tokens, where, reterr));
    find_bytes(vocab);
    vocab->unk = HZP_VOCAB_NONE;
    if (json_is_string(unk)) {
        vocab->unk = hzp_vocab_find(vocab, json_string_value(unk), json_string_length(unk));
        if (vocab->unk == HZP_VOCAB_NONE)
            return hzp_fail(reterr, HZP_EFORMAT, "%s: unk_token \"%.60s\" is not in vocab", where,
                            json_string_value(unk));
    } else if (unk != NULL && !json_is_null(unk)) {
        return hzp_fail(reterr, HZP_EFORMAT, "%s: unk_token must be a string", where);
    }
    vocab->may_cut = vocab->bytes_complete && vocab->prefix[0] == 0 && vocab->suffix[0] == 0;
    return load_merges(vocab, json_object_get(json, "merges"), where, reterr);
}

int hzp_vocab_load(const json_t *json, bool byte_level, const char *path, struct hzp_vocab **ret,
                   struct hzp_err_text *reterr)
{
    char where[300];
    hzp_tokjson_where(where, sizeof(where), path, "model");
    struct hzp_vocab *vocab = hzp_xcalloc(1, sizeof(*vocab));
    vocab->byte_level = byte_level;
    int r = load(vocab, json, where, reterr);
    if (r < 0)
        hzp_vocab_free(vocab);
    else
        *ret = vocab;
    return r;
}

void hzp_vocab_free(struct hzp_vocab *vocab)
{
    if (vocab == NULL)
        return;
    free(vocab->tokens);
    free(vocab->pool);
    free(vocab->prefix);
    free(vocab->suffix);
    free(vocab->by_text);
    free(vocab->by_key);
    free(vocab->merges);
    free(vocab);
}
