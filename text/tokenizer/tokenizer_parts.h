/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/tokenizer_parts.h - what a tokenizer consists of; for text/ only.
 *
 * tokenizer_load.c fills it, tokenizer.c encodes with it, detokenizer.c decodes with it.
 *
 * Invariant: as in text/tokenizer/tokenizer.h; only `free` changes, under `lock`.
 * Thread: any.
 */
#pragma once

#include "base/err.h"
#include "base/json.h"
#include "base/thread.h"
#include "text/chars/textbuf.h"
#include "text/tokenizer/pattern.h"
#include "text/tokenizer/tokenizer.h"

/* ---- tokenizer_json.c: reading the fields of tokenizer.json with errors that name them.
 *
 * `where` is file and field, as hzp_tokjson_where wrote it. Values are borrowed from the document.
 *
 * Thread: the one that loads. */

#define HZP_TOKENIZER_FILE_MAX ((size_t)256 << 20)
#define HZP_TOKENIZER_ID_MAX   (1 << 21) /* exclusive: far above any vocabulary */

/* "path: field", cut to fit. */
void hzp_tokjson_where(char *where, size_t size, const char *path, const char *field);

/* Takes a part of a field, an object of this type. */
typedef int hzp_tokjson_part(void *ctx, const char *type, const json_t *json, const char *where,
                             struct hzp_err_text *reterr);

/* Hands over the parts of a field: itself, or where it is a Sequence, those of its `list`, however
 * nested.  NULL or null has none. */
int hzp_tokjson_parts(const json_t *json, const char *path, const char *field, const char *list,
                      hzp_tokjson_part *take, void *ctx, struct hzp_err_text *reterr);

/* A boolean field, or `absent` where it is missing or null. */
int hzp_tokjson_bool(const json_t *json, const char *name, bool absent, const char *where,
                     bool *ret, struct hzp_err_text *reterr);

/* A string field that must be there. */
int hzp_tokjson_string(const json_t *json, const char *name, const char *where, const json_t **ret,
                       struct hzp_err_text *reterr);

/* A string field of exactly one character. */
int hzp_tokjson_character(const json_t *json, const char *name, const char *where,
                          const json_t **ret, struct hzp_err_text *reterr);

/* A copy of a string, which the caller frees, and its length. */
char *hzp_tokjson_copy(const json_t *string, size_t *ret_bytes);

/* A token id: 0 to HZP_TOKENIZER_ID_MAX - 1. */
int hzp_tokjson_id(const json_t *json, const char *where, const char *token, int32_t *ret,
                   struct hzp_err_text *reterr);

/* ---- vocab.c: the "model" of a tokenizer.json: tokens, merges, and what to do without them.
 *
 * Keys. In a byte-level tokenizer the tokens are spelled in an alphabet of 256 printable
 * characters, one per byte; here a token's key is the bytes they stand for, and encoding looks up
 * bytes. Otherwise the key is the spelling itself.
 *
 * Cuts. No merge joins two symbols unless some merge (a, b) has the character before the boundary
 * last in a and the one after it first in b. Where that never holds, text may be cut without
 * changing what it encodes to; hzp_vocab_may_join answers it from a bitmap, which errs towards
 * joining.
 *
 * Invariant: never changes once loaded; every id in [0, n) that exists has a spelling. */

#define HZP_VOCAB_NONE     (-1)
#define HZP_VOCAB_CUT_BITS 18

struct hzp_vocab_token {
    uint32_t text, bytes;    /* spelling: offset into the pool, length */
    uint32_t key, key_bytes; /* key: the same, elsewhere */
    bool exists, keyed;      /* keyed: has a key (byte-level: all in the alphabet) */
};

struct hzp_vocab_merge {
    uint64_t pair; /* left id in the high half; UINT64_MAX: the slot is empty */
    uint32_t rank; /* lower merges first */
    int32_t id;    /* what the pair becomes */
};

struct hzp_vocab {
    struct hzp_vocab_token *tokens;
    int32_t n; /* largest id + 1 */
    char *pool;
    size_t pool_bytes;

    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    int32_t unk;            /* HZP_VOCAB_NONE: unknown characters are left out */
    char *prefix, *suffix;  /* around symbols inside and at the end of a word; "": none */
    int32_t byte_ids[256];  /* byte-level: of each byte; fallback: of <0xNN>; HZP_VOCAB_NONE */
    int32_t ascii_ids[128]; /* not byte-level: of each ASCII character */
    bool bytes_complete;    /* byte_ids are all there and in use: nothing is ever unknown */
    bool may_cut;           /* cuts are known to be harmless */

    uint32_t *by_text, *by_key; /* open addressing; id + 1, 0: empty */
    uint32_t index_mask;
    struct hzp_vocab_merge *merges;
    uint32_t merge_mask;
    uint64_t cut_bits[(1 << HZP_VOCAB_CUT_BITS) / 64];
};

/* json: the "model" object. byte_level: the pre-tokenizer says so. path: for errors. HZP_EFORMAT;
 * HZP_EUNSUP: not BPE. */
int hzp_vocab_load(const json_t *json, bool byte_level, const char *path, struct hzp_vocab **ret,
                   struct hzp_err_text *reterr);
void hzp_vocab_free(struct hzp_vocab *vocab);

/* Ids by spelling and by key; HZP_VOCAB_NONE. */
int32_t hzp_vocab_find(const struct hzp_vocab *vocab, const char *text, size_t bytes);
int32_t hzp_vocab_find_key(const struct hzp_vocab *vocab, const char *key, size_t bytes);

/* Bytes that a spelling in ByteLevel's alphabet stands for, written to out (at least bytes long);
 * -1: a character is not in the alphabet. */
int64_t hzp_vocab_spelling_bytes(const char *text, size_t bytes, char *out);

static inline uint64_t hzp_vocab_hash(const char *data, size_t bytes)
{
    const uint64_t k = 0x9E3779B97F4A7C15u;
    uint64_t h = bytes * k;
    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t word;
        __builtin_memcpy(&word, data, 8);
        h = (h ^ word) * k;
        h ^= h >> 29;
    }
    uint64_t word = 0;
    for (size_t i = 0; i < bytes; i++)
        word |= (uint64_t)(uint8_t)data[i] << 8 * i;
    h = (h ^ word) * k;
    return h ^ h >> 32;
}

/* The merge of two symbols, NULL if they do not merge. */
static inline const struct hzp_vocab_merge *hzp_vocab_merge(const struct hzp_vocab *vocab,
                                                            int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    for (uint32_t at = (uint32_t)(h >> 32) & vocab->merge_mask;;
         at = (at + 1) & vocab->merge_mask) {
        const struct hzp_vocab_merge *merge = &vocab->merges[at];
        if (merge->pair == pair)
            return merge;
        if (merge->pair == UINT64_MAX)
            return NULL;
    }
}

/* Characters (byte-level: bytes) on the two sides of a boundary: false, cutting there is exact. */
static inline bool hzp_vocab_may_join(const struct hzp_vocab *vocab, uint32_t before,
                                      uint32_t after)
{
    uint32_t bit = (before * 0x9E3779B1u ^ after * 0x85EBCA77u) >> (32 - HZP_VOCAB_CUT_BITS);
    return vocab->cut_bits[bit / 64] >> bit % 64 & 1;
}

/* ---- normalizer.c: the "normalizer" of a tokenizer.json.
 *
 * Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents; the others are
 * refused by name. Nested sequences become one list of steps.
 *
 * Invariant: never changes once loaded. Thread: any; the buffers belong to the caller. */

struct hzp_normalizer;

/* json: the field, NULL or null for none. path: the file, for errors. HZP_EFORMAT, HZP_EUNSUP. */
int hzp_normalizer_load(const json_t *json, const char *path, struct hzp_normalizer **ret,
                        struct hzp_err_text *reterr);
void hzp_normalizer_free(struct hzp_normalizer *normalizer);

/* Normalises text (valid UTF-8). *ret and *ret_bytes get the result, which lies in text or in one
 * of the two buffers until they change. *first, if not NULL: cleared where the first character was
 * taken off. HZP_ENOMEM, HZP_EUNSUP (a pattern's limits). */
int hzp_normalizer_run(const struct hzp_normalizer *normalizer, struct hzp_matcher *matcher,
                       const char *text, size_t bytes, struct hzp_textbuf buffers[2],
                       const char **ret, size_t *ret_bytes, bool *first);

/* ---- added.c: the "added_tokens" of a tokenizer.json, found in text before anything else.
 *
 * Tokens with "normalized": false are looked for in the text as it came, the others, normalised
 * themselves, in what the normalizer made of the rest. At each place the longest token wins.
 *
 * Invariant: never changes once hzp_added_ready was called. Thread: any after that; the matcher
 * belongs to the caller. */

struct hzp_added_token {
    int32_t id;
    char *text; /* NUL-terminated; may hold NULs */
    size_t bytes;
    bool special, normalized, lstrip, rstrip, single_word;
};

/* What to look for, sorted. */
struct hzp_added_entry {
    char *text;
    size_t bytes;
    int32_t token; /* index */
};

struct hzp_added_set {
    struct hzp_added_entry *entries;
    int32_t n;
    int32_t first[257]; /* entries that begin with byte b: [first[b], first[b + 1]) */
};

enum hzp_added_where { HZP_ADDED_RAW, HZP_ADDED_NORMALIZED };

struct hzp_added {
    struct hzp_added_token *tokens;
    size_t n, cap;
    struct hzp_added_set sets[2];
    struct hzp_pattern *word; /* \w, where a token is single_word */
};

/* Adds one token, an object of the list; id: its id, already read. A second one of the same id or
 * spelling is left out. An empty one too. */
int hzp_added_load(struct hzp_added *added, const json_t *json, int32_t id,
                   const struct hzp_vocab *vocab, const char *where, struct hzp_err_text *reterr);

/* Builds the sets once all tokens are there. */
int hzp_added_ready(struct hzp_added *added, const struct hzp_normalizer *normalizer,
                    struct hzp_matcher *matcher, const char *where, struct hzp_err_text *reterr);
void hzp_added_fini(struct hzp_added *added);

/* A walk over text: parts in order, those between tokens having token -1. */
struct hzp_added_walk {
    const struct hzp_added *added;
    enum hzp_added_where where;
    struct hzp_matcher *matcher;
    const char *text;
    size_t bytes;
    bool special;      /* special tokens count; false: they are text */
    size_t at, search; /* what is behind us; where to look on */
    int32_t found;     /* a token whose text before it was handed out; -1 */
    size_t found_from, found_to;
};

/* The next part: true with its range, and in *token the index of an added token or -1. */
bool hzp_added_next(struct hzp_added_walk *walk, size_t *from, size_t *to, int32_t *token);

/* ---- pretokenizer.c: the "pre_tokenizer" of a tokenizer.json: text to pieces.
 *
 * Sequence, ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation,
 * CharDelimiterSplit, BertPreTokenizer; the others are refused by name. All of them become one list
 * of two kinds of stages: one that rewrites pieces, one that cuts them at a pattern.
 *
 * ByteLevel's alphabet of printable characters is never made: the pieces stay bytes, and the model
 * has its vocabulary in bytes instead (vocab.c). So ByteLevel must come last.
 *
 * Invariant: never changes once loaded. Thread: any; the pieces belong to the caller. */

struct hzp_pretokenizer;

/* Bytes [from, to) of the pieces' text. */
struct hzp_text_span {
    uint32_t from, to;
};

struct hzp_pieces {
    const char *text; /* what the spans lie in */
    struct hzp_text_span *spans, *other;
    size_t n, cap, other_cap;
    struct hzp_textbuf buffers[2]; /* texts that a stage wrote */
};

/* json: the field, NULL or null for none. path: the file, for errors. HZP_EFORMAT, HZP_EUNSUP. */
int hzp_pretokenizer_load(const json_t *json, const char *path, struct hzp_pretokenizer **ret,
                          struct hzp_err_text *reterr);
void hzp_pretokenizer_free(struct hzp_pretokenizer *pre);

/* True: the pieces are bytes of ByteLevel's alphabet. */
bool hzp_pretokenizer_byte_level(const struct hzp_pretokenizer *pre);

/* Cuts text (valid UTF-8, under 4 GiB, borrowed by the pieces). first: the text begins where the
 * whole input begins. HZP_ENOMEM, HZP_EUNSUP (a pattern's limits). */
int hzp_pretokenizer_run(const struct hzp_pretokenizer *pre, struct hzp_matcher *matcher,
                         const char *text, size_t bytes, bool first, struct hzp_pieces *pieces);
void hzp_pieces_fini(struct hzp_pieces *pieces);

/* ---- bpe.c: byte-pair encoding of one piece.
 *
 * The definition is Hugging Face's: a piece becomes one symbol per character (byte), unknown ones
 * by the vocabulary's rules, then of all adjacent pairs that merge the one of the lowest rank, and
 * of equals the leftmost, is merged, until none does. Short pieces search for that pair, long ones
 * keep a heap: n log n. A cache remembers short pieces.
 *
 * Invariant: what the cache holds never changes an answer. Thread: one per hzp_bpe; the vocabulary
 * is shared. */

struct hzp_bpe_symbol;
struct hzp_bpe_cached;

/* What encoding needs besides the vocabulary; zeroed memory is a fresh one. */
struct hzp_bpe {
    struct hzp_bpe_cached *cache;
    struct hzp_bpe_symbol *symbols;
    uint64_t *heap;
    size_t symbols_cap, heap_cap;
};

/* Appends the ids of a piece: valid UTF-8, byte-level: any bytes. HZP_ENOMEM. */
int hzp_bpe_encode(struct hzp_bpe *bpe, const struct hzp_vocab *vocab, const char *text,
                   size_t bytes, struct hzp_tokens *out);
void hzp_bpe_fini(struct hzp_bpe *bpe);

/* ---- decoder.c: the "decoder" of a tokenizer.json: what one token is as text.
 *
 * ByteLevel, Metaspace, Sequence, Replace, ByteFallback, Fuse, Strip; the others are refused by
 * name. What concerns one token alone is done once, at load, for every id; what concerns the whole
 * text (the join, the Strip behind Fuse) is left to text/tokenizer/detokenizer.h as three numbers.
 *
 * Invariant: never changes once loaded. */

struct hzp_decoder_stage;

enum hzp_decoder_join {
    HZP_DECODER_SPACED, /* no decoder: tokens with a space between them */
    HZP_DECODER_BYTES,  /* tokens are bytes; each broken sequence is one U+FFFD */
    HZP_DECODER_TEXT,   /* tokens are text; byte tokens make text, each broken byte is one U+FFFD */
};

struct hzp_decoder {
    struct hzp_decoder_stage *stages;
    int n;
    enum hzp_decoder_join join;
    bool byte_fallback;
    bool first_differs; /* the first token of a text is rendered by a rule of its own */
    char strip[5];      /* the character that Strip takes off the whole text */
    int strip_bytes;    /* 0: none */
    int strip_start, strip_stop;
};

/* json: the field, NULL or null for none. path: the file, for errors. HZP_EFORMAT, HZP_EUNSUP. */
int hzp_decoder_load(const json_t *json, const char *path, struct hzp_decoder *ret,
                     struct hzp_err_text *reterr);
void hzp_decoder_fini(struct hzp_decoder *decoder);

/* Appends the rendering of one token to out; *byte: it is a byte token, out got that one byte.
 * first: it is the first of a text. HZP_ENOMEM, HZP_EUNSUP (a pattern's limits). */
int hzp_decoder_render(const struct hzp_decoder *decoder, struct hzp_matcher *matcher,
                       const char *text, size_t bytes, bool first, struct hzp_textbuf *out,
                       bool *byte);

/* ---- the tokenizer ---- */

#define HZP_TOKENIZER_AROUND_MAX 32

/* What one call of encode writes to. */
struct hzp_tokenizer_scratch {
    struct hzp_tokenizer_scratch *next;
    struct hzp_matcher *matcher;
    struct hzp_textbuf normal[2];
    struct hzp_pieces pieces;
    struct hzp_bpe bpe;
};

struct hzp_tokenizer_around { /* ids put before or behind a text */
    int32_t ids[HZP_TOKENIZER_AROUND_MAX];
    int n;
};

/* Where the text of an id lies in the pool. */
struct hzp_tokenizer_rendering {
    uint32_t from, bytes;
};

struct hzp_tokenizer {
    struct hzp_vocab *vocab;
    struct hzp_normalizer *normalizer;
    struct hzp_pretokenizer *pre;
    struct hzp_added added;
    struct hzp_decoder decoder;
    struct hzp_tokenizer_around before, behind;
    int32_t bos, eos, n;

    /* Per id, n of each. first: as the first of a text; the same array where that is no different.
     */
    struct hzp_tokenizer_rendering *middle, *first;
    struct hzp_textbuf pool;
    uint8_t *kind;     /* HZP_TOKENIZER_EXISTS and so on */
    int32_t *added_of; /* index of the added token, -1 */

    struct hzp_lock lock;
    struct hzp_tokenizer_scratch *free;
};

enum { HZP_TOKENIZER_EXISTS = 1, HZP_TOKENIZER_SPECIAL = 2, HZP_TOKENIZER_BYTE = 4 };
