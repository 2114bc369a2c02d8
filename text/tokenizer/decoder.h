/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/decoder.h - the "decoder" of a tokenizer.json: what one token is as text.
 *
 * ByteLevel, Metaspace, Sequence, Replace, ByteFallback, Fuse, Strip; the others are refused by
 * name. What concerns one token alone is done once, at load, for every id; what concerns the whole
 * text (the join, the Strip behind Fuse) is left to text/tokenizer/detokenizer.h as three numbers.
 *
 * Invariant: never changes once loaded.
 * Thread: any.
 */
#pragma once

#include "text/tokenizer/pattern.h"

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
