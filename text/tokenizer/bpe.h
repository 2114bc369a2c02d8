/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/bpe.h - byte-pair encoding of one piece.
 *
 * The definition is Hugging Face's: a piece becomes one symbol per character (byte), unknown ones
 * by the vocabulary's rules, then of all adjacent pairs that merge the one of the lowest rank, and
 * of equals the leftmost, is merged, until none does. Short pieces search for that pair, long ones
 * keep a heap: n log n. A cache remembers short pieces.
 *
 * Invariant: what the cache holds never changes an answer.
 * Thread: one per hzp_bpe; the vocabulary is shared.
 */
#pragma once

#include "text/chars/textbuf.h"
#include "text/tokenizer/vocab.h"

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
