/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/tokenizer.h - text to token ids and back, as a model directory's tokenizer.json
 * says.
 *
 * Byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece-style BPE with byte fallback (Llama 2,
 * Mistral). The definition of every field is the `tokenizers` library's behaviour; where this
 * differs, the header of that part says so (text/tokenizer/detokenizer.h: broken bytes).
 *
 * Beside tokenizer.json, tokenizer_config.json and special_tokens_map.json are read where they
 * exist: for the names of the begin and end tokens, for added tokens that tokenizer.json lacks, and
 * for add_bos_token and add_eos_token where the post-processor adds no token of its own.
 *
 * Invariant: nothing changes after open; what a call writes to is taken from a list of scratch
 * memory under a lock for the time of the call.
 * Thread: open and close the owner's; everything else any, at the same time.
 */
#pragma once

#include "base/err.h"
#include "text/chars/textbuf.h"

struct hzp_tokenizer;

enum {
    HZP_TOKENIZER_ADD_SPECIAL = 1,   /* put what the post-processor adds around the text */
    HZP_TOKENIZER_PARSE_SPECIAL = 2, /* a special token's spelling in the text is that token */
};

/* Longest text of one encode. */
#define HZP_TOKENIZER_TEXT_MAX ((size_t)256 << 20)

/* Opens model_dir/tokenizer.json. HZP_ENOENT: there is none; HZP_EIO; HZP_EFORMAT: it is broken;
 * HZP_EUNSUP: it needs what is not supported (named); HZP_ENOMEM. */
int hzp_tokenizer_open(const char *model_dir, struct hzp_tokenizer **ret,
                       struct hzp_err_text *reterr);
void hzp_tokenizer_close(struct hzp_tokenizer *tok);

/* Appends the ids of text to out (borrowed; grows). flags: of the two above. max_tokens: how many
 * ids out may hold at the end, what it held before included. HZP_EINVAL: more than that, or the
 * text is not UTF-8 or too long; HZP_ENOMEM; HZP_EUNSUP: a pattern ran into its limits. On an error
 * out is as it was. */
int hzp_tokenizer_encode(struct hzp_tokenizer *tok, const char *text, size_t bytes, unsigned flags,
                         int32_t max_tokens, struct hzp_tokens *out, struct hzp_err_text *reterr);

/* Appends the text of n ids to out: valid UTF-8, the same as a detokenizer fed with them gives. Ids
 * that do not exist are left out. skip_special: special tokens too. HZP_ENOMEM. */
int hzp_tokenizer_decode(const struct hzp_tokenizer *tok, const int32_t *ids, size_t n,
                         bool skip_special, struct hzp_textbuf *out);

/* The largest id + 1. */
int32_t hzp_tokenizer_vocab(const struct hzp_tokenizer *tok);

/* The bytes that a token adds in the middle of a text (perhaps no valid UTF-8 alone), borrowed from
 * tok; NULL: there is no such token. */
const char *hzp_tokenizer_token(const struct hzp_tokenizer *tok, int32_t id, size_t *bytes);

/* The token as tokenizer.json spells it, the same way. */
const char *hzp_tokenizer_spelling(const struct hzp_tokenizer *tok, int32_t id, size_t *bytes);
bool hzp_tokenizer_is_special(const struct hzp_tokenizer *tok, int32_t id);

/* The id of a spelling, -1: none. */
int32_t hzp_tokenizer_find(const struct hzp_tokenizer *tok, const char *spelling, size_t bytes);

/* The token that ends a text, -1 where the directory names none. */
int32_t hzp_tokenizer_eos(const struct hzp_tokenizer *tok);
