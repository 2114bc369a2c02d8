/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/tokenizer.h"

#include "base/utf8.h"
#include "text/tokenizer/tokenizer_parts.h"

#define SCRATCH_KEEP ((size_t)8 << 20) /* bytes; a larger one is not kept for the next call */

/* One encode in progress. */
struct encoding {
    struct hzp_tokenizer *tok;
    struct hzp_tokenizer_scratch *scratch;
    struct hzp_tokens *out;
    size_t max;
    bool special;
};

static void scratch_free(struct hzp_tokenizer_scratch *scratch)
{
    hzp_matcher_free(scratch->matcher);
    hzp_textbuf_fini(&scratch->normal[0]);
    hzp_textbuf_fini(&scratch->normal[1]);
    hzp_pieces_fini(&scratch->pieces);
    hzp_bpe_fini(&scratch->bpe);
    free(scratch);
}

static struct hzp_tokenizer_scratch *scratch_take(struct hzp_tokenizer *tok)
{
    hzp_lock_take(&tok->lock);
    struct hzp_tokenizer_scratch *scratch = tok->free;
    if (scratch != NULL)
        tok->free = scratch->next;
    hzp_lock_release(&tok->lock);
    if (scratch != NULL)
        return scratch;
    scratch = calloc(1, sizeof(*scratch));
    if (scratch == NULL)
        return NULL;
    scratch->matcher = hzp_matcher_new();
    if (scratch->matcher == NULL) {
        scratch_free(scratch);
        return NULL;
    }
    return scratch;
}

static void scratch_give(struct hzp_tokenizer *tok, struct hzp_tokenizer_scratch *scratch)
{
    const struct hzp_pieces *pieces = &scratch->pieces;
    size_t held = scratch->normal[0].cap + scratch->normal[1].cap + pieces->buffers[0].cap +
                  pieces->buffers[1].cap +
                  (pieces->cap + pieces->other_cap) * sizeof(struct hzp_text_span) +
                  scratch->bpe.heap_cap * 8 + scratch->bpe.symbols_cap * 20;
    if (held > SCRATCH_KEEP) {
        scratch_free(scratch);
        return;
    }
    HZP_LOCKED(&tok->lock);
    scratch->next = tok->free;
    tok->free = scratch;
}

void hzp_tokenizer_close(struct hzp_tokenizer *tok)
{
    if (tok == NULL)
        return;
    while (tok->free != NULL) {
        struct hzp_tokenizer_scratch *scratch = tok->free;
        tok->free = scratch->next;
        scratch_free(scratch);
    }
    hzp_vocab_free(tok->vocab);
    hzp_normalizer_free(tok->normalizer);
    hzp_pretokenizer_free(tok->pre);
    hzp_added_fini(&tok->added);
    hzp_decoder_fini(&tok->decoder);
    if (tok->first != tok->middle)
        free(tok->first);
    free(tok->middle);
    hzp_textbuf_fini(&tok->pool);
    free(tok->kind);
    free(tok->added_of);
    hzp_lock_fini(&tok->lock);
    free(tok);
}

/* Text without added tokens: pieces, each through the model. */
static int encode_plain(struct encoding *e, const char *text, size_t bytes, bool first)
{
    struct hzp_pieces *pieces = &e->scratch->pieces;
    HZP_TRY(hzp_pretokenizer_run(e->tok->pre, e->scratch->matcher, text, bytes, first, pieces));
    for (size_t i = 0; i < pieces->n; i++) {
        struct hzp_text_span span = pieces->spans[i];
        HZP_TRY(hzp_bpe_encode(&e->scratch->bpe, e->tok->vocab, pieces->text + span.from,
                               span.to - span.from, e->out));
        if (e->out->n > e->max)
            return HZP_EINVAL;
    }
    return HZP_OK;
}

/* Finds the added tokens of a kind in the text; between() encodes what is between them. */
static int encode_walk(struct encoding *e, enum hzp_added_where where, const char *text,
                       size_t bytes, bool first,
                       int (*between)(struct encoding *, const char *, size_t, bool))
{
    const struct hzp_added *added = &e->tok->added;
    struct hzp_added_walk walk = {.added = added,
                                  .where = where,
                                  .matcher = e->scratch->matcher,
                                  .text = text,
                                  .bytes = bytes,
                                  .special = e->special,
                                  .found = -1};
    size_t from, to;
    int32_t token;
    while (hzp_added_next(&walk, &from, &to, &token)) {
        if (token >= 0)
            HZP_TRY(hzp_tokens_append(e->out, &added->tokens[token].id, 1));
        else
            HZP_TRY(between(e, text + from, to - from, first && from == 0));
        if (e->out->n > e->max)
            return HZP_EINVAL;
    }
    return HZP_OK;
}

/* Text without added tokens of the raw kind: normalised, the others found in it. */
static int encode_section(struct encoding *e, const char *text, size_t bytes, bool first)
{
    HZP_TRY(hzp_normalizer_run(e->tok->normalizer, e->scratch->matcher, text, bytes,
                               e->scratch->normal, &text, &bytes, &first));
    if (bytes > UINT32_MAX / 2)
        return HZP_ENOMEM;
    return encode_walk(e, HZP_ADDED_NORMALIZED, text, bytes, first, encode_plain);
}

static int encode_around(struct encoding *e, const char *text, size_t bytes, bool add)
{
    const struct hzp_tokenizer *tok = e->tok;
    if (add)
        HZP_TRY(hzp_tokens_append(e->out, tok->before.ids, (size_t)tok->before.n));
    HZP_TRY(encode_walk(e, HZP_ADDED_RAW, text, bytes, true, encode_section));
    if (add)
        HZP_TRY(hzp_tokens_append(e->out, tok->behind.ids, (size_t)tok->behind.n));
    return e->out->n > e->max ? HZP_EINVAL : HZP_OK;
}

int hzp_tokenizer_encode(struct hzp_tokenizer *tok, const char *text, size_t bytes, unsigned flags,
                         int32_t max_tokens, struct hzp_tokens *out, struct hzp_err_text *reterr)
{
    if (bytes > HZP_TOKENIZER_TEXT_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "the text has %zu bytes, more than %zu", bytes,
                        HZP_TOKENIZER_TEXT_MAX);
    size_t valid = hzp_utf8_valid(text, bytes), held = out->n;
    if (valid != bytes)
        return hzp_fail(reterr, HZP_EINVAL, "the text is not valid UTF-8 at byte %zu", valid);
    struct encoding e = {.tok = tok,
                         .scratch = scratch_take(tok),
                         .out = out,
                         .max = (size_t)HZP_MAX(max_tokens, 0),
                         .special = flags & HZP_TOKENIZER_PARSE_SPECIAL};
    if (e.scratch == NULL)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory to encode a text");
    int r = encode_around(&e, text, bytes, flags & HZP_TOKENIZER_ADD_SPECIAL);
    scratch_give(tok, e.scratch);
    if (r >= 0)
        return HZP_OK;
    out->n = held;
    if (r == HZP_EINVAL)
        return hzp_fail(reterr, r, "the text has more than %d tokens", HZP_MAX(max_tokens, 0));
    if (r == HZP_EUNSUP)
        return hzp_fail(reterr, r, "the tokenizer's patterns need too much work on this text");
    return hzp_fail(reterr, r, "no memory to encode %zu bytes of text", bytes);
}

int32_t hzp_tokenizer_vocab(const struct hzp_tokenizer *tok)
{
    return tok->n;
}

static bool exists(const struct hzp_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->n && (tok->kind[id] & HZP_TOKENIZER_EXISTS);
}

const char *hzp_tokenizer_token(const struct hzp_tokenizer *tok, int32_t id, size_t *bytes)
{
    if (!exists(tok, id))
        return NULL;
    *bytes = tok->middle[id].bytes;
    return tok->pool.data + tok->middle[id].from;
}

const char *hzp_tokenizer_spelling(const struct hzp_tokenizer *tok, int32_t id, size_t *bytes)
{
    if (!exists(tok, id))
        return NULL;
    if (tok->added_of[id] >= 0) {
        *bytes = tok->added.tokens[tok->added_of[id]].bytes;
        return tok->added.tokens[tok->added_of[id]].text;
    }
    *bytes = tok->vocab->tokens[id].bytes;
    return tok->vocab->pool + tok->vocab->tokens[id].text;
}

bool hzp_tokenizer_is_special(const struct hzp_tokenizer *tok, int32_t id)
{
    return exists(tok, id) && (tok->kind[id] & HZP_TOKENIZER_SPECIAL);
}

int32_t hzp_tokenizer_find(const struct hzp_tokenizer *tok, const char *spelling, size_t bytes)
{
    int32_t id = hzp_vocab_find(tok->vocab, spelling, bytes);
    for (size_t i = 0; i < tok->added.n && id == HZP_VOCAB_NONE; i++)
        if (tok->added.tokens[i].bytes == bytes &&
            memcmp(tok->added.tokens[i].text, spelling, bytes) == 0)
            id = tok->added.tokens[i].id;
    return id;
}

int32_t hzp_tokenizer_eos(const struct hzp_tokenizer *tok)
{
    return tok->eos;
}
