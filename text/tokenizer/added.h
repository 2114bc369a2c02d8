/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/added.h - the "added_tokens" of a tokenizer.json, found in text before anything
 * else.
 *
 * Tokens with "normalized": false are looked for in the text as it came, the others, normalised
 * themselves, in what the normalizer made of the rest. At each place the longest token wins.
 *
 * Invariant: never changes once hzp_added_ready was called.
 * Thread: any after that; the matcher belongs to the caller.
 */
#pragma once

#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/vocab.h"

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
