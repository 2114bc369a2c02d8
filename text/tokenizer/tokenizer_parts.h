/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/tokenizer_parts.h - what a tokenizer consists of; for text/ only.
 *
 * tokenizer_load.c fills it, tokenizer.c encodes with it, detokenizer.c decodes with it.
 *
 * Invariant: as in text/tokenizer/tokenizer.h; only `free` changes, under `lock`.
 * Thread: any.
 */
#pragma once

#include "base/thread.h"
#include "text/tokenizer/added.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/tokenizer.h"

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
