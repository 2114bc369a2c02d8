/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/vocab.h - the "model" of a tokenizer.json: tokens, merges, and what to do without
 * them.
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
 * Invariant: never changes once loaded; every id in [0, n) that exists has a spelling.
 * Thread: any.
 */
#pragma once

#include "base/err.h"

#include "base/json.h"

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
