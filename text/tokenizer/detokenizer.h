/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/detokenizer.h - token ids to text, one at a time, for streaming.
 *
 * What feed appends is always whole characters: bytes of an unfinished one are kept back until it
 * is complete, or known to be broken. Everything appended, flush included, is together what
 * hzp_tokenizer_decode gives for all ids at once.
 *
 * Broken bytes become U+FFFD as Hugging Face's decoders do it: ByteLevel, one for each maximal
 * broken part; ByteFallback, one for each byte. One difference: where byte tokens of one run make
 * whole characters and broken ones, Hugging Face breaks them all; a stream cannot take back what it
 * has sent, so here the whole ones stay.
 *
 * Invariant: pending holds the beginning of one character that may still become valid.
 * Thread: one per detokenizer; the tokenizer is shared and must outlive it.
 */
#pragma once

#include "text/chars/textbuf.h"

struct hzp_tokenizer;

struct hzp_detokenizer {
    const struct hzp_tokenizer *tok;
    bool skip_special;
    const int32_t *keep; /* [keeps] special tokens that are not skipped; borrowed */
    int32_t keeps;
    bool started; /* a token was rendered */
    int strip;    /* characters that may still be stripped off the front */
    int held;     /* characters kept back because they may be stripped off the end */
    char pending[4];
    int n_pending;
};

/* No memory of its own: there is no fini. skip_special: special tokens give no text, but for those
 * that the caller sets to be kept. */
void hzp_detokenizer_init(struct hzp_detokenizer *detok, const struct hzp_tokenizer *tok,
                          bool skip_special);

/* Appends what is certain with one more id. Ids that do not exist give nothing. HZP_ENOMEM. */
int hzp_detokenizer_feed(struct hzp_detokenizer *detok, int32_t id, struct hzp_textbuf *out);

/* Appends what was kept back, at the end of the text. HZP_ENOMEM. */
int hzp_detokenizer_flush(struct hzp_detokenizer *detok, struct hzp_textbuf *out);
