/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/pretokenizer.h - the "pre_tokenizer" of a tokenizer.json: text to pieces.
 *
 * Sequence, ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation,
 * CharDelimiterSplit, BertPreTokenizer; the others are refused by name. All of them become one list
 * of two kinds of stages: one that rewrites pieces, one that cuts them at a pattern.
 *
 * ByteLevel's alphabet of printable characters is never made: the pieces stay bytes, and the model
 * has its vocabulary in bytes instead (text/tokenizer/vocab.h). So ByteLevel must come last.
 *
 * Invariant: never changes once loaded.
 * Thread: any; the pieces belong to the caller.
 */
#pragma once

#include "text/tokenizer/pattern.h"

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
