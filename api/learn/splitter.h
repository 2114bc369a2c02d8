/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/splitter.h - cuts a body of examples, which arrives in pieces, into the texts of single
 * examples.
 *
 *     [ {...}, {...} ]        an array: its elements
 *     {...} newline {...}     lines; declared as application/json, an object may span several lines
 *
 * Nothing is parsed here, so a body never exists as one tree of JSON values, which takes up to
 * eighty times its bytes.
 *
 * Bounds: one example's text has at most example_max bytes; no more than one is kept.
 *
 * Thread: the owner's.
 */
#pragma once

#include "base/err.h"
#include "text/chars/textbuf.h"

enum hzp_splitter_mode {
    HZP_SPLIT_START, /* nothing but white space so far */
    HZP_SPLIT_LINES,
    HZP_SPLIT_OBJECTS,
    HZP_SPLIT_ARRAY,
    HZP_SPLIT_AFTER, /* behind the array */
};

struct hzp_splitter {
    size_t example_max; /* bytes; 0: no bound */
    bool json;          /* declared as application/json */
    /* Called with each example's text, without white space around it; < 0 ends the feeding.  line:
     * where it begins, from 1; of an array: which element. */
    int (*found)(void *ctx, int64_t line, const char *text, size_t bytes);
    void *ctx;

    enum hzp_splitter_mode mode;
    struct hzp_textbuf rest; /* the last piece's end: the beginning of an example */
    size_t seen;             /* bytes of the rest that were looked at */
    int64_t line, begin;     /* current line, or element; the line on which the example begins */
    int depth;
    bool in_string, escaped, comma; /* comma: another element has to follow */
};

/* content_type NULL: none. */
void hzp_splitter_init(struct hzp_splitter *s, const char *content_type, size_t example_max,
                       int (*found)(void *ctx, int64_t line, const char *text, size_t bytes),
                       void *ctx);
void hzp_splitter_fini(struct hzp_splitter *s);

/* Takes the next piece; last: nothing follows.  Errors of `found` are passed on.  HZP_EINVAL: too
 * long, or an array that does not end; s->line says where; HZP_ENOMEM. */
int hzp_splitter_feed(struct hzp_splitter *s, const char *data, size_t bytes, bool last,
                      struct hzp_err_text *reterr);
