/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/stop.h - stop strings over a stream of text.
 *
 * Text goes in as it is made and comes out as soon as it cannot be part of a stop string. The first
 * stop string to be complete ends the stream (of several that end at the same place, the longest);
 * how the text was cut into feeds makes no difference.
 *
 * Invariant: held is the longest end of the text so far that begins a stop string.
 * Thread: one per stream.
 */
#pragma once

#include "base/err.h"
#include "text/chars/textbuf.h"

#define HZP_STOP_MAX       64   /* strings */
#define HZP_STOP_BYTES_MAX 1024 /* most bytes of each */

struct hzp_stop_string;

struct hzp_stop {
    struct hzp_stop_string *strings;
    int n;
    bool include; /* the stop string itself comes out too */
    int matched;  /* index of the one that ended the stream, -1 */
    struct hzp_textbuf held;
};

/* strings[i]: bytes[i] bytes of UTF-8, copied. n may be 0. HZP_EINVAL (param "stop"): too many, too
 * long, or empty. */
int hzp_stop_init(struct hzp_stop *stop, const char *const *strings, const size_t *bytes, int n,
                  bool include, struct hzp_err_text *reterr);
void hzp_stop_fini(struct hzp_stop *stop);

/* Takes text, appends to out what is certain. 1: a stop string ended the stream, stop->matched says
 * which; text after it is gone, and so is all that is fed later. 0: it goes on. HZP_ENOMEM. */
int hzp_stop_feed(struct hzp_stop *stop, const char *text, size_t bytes, struct hzp_textbuf *out);

/* The same without looking (before min_tokens is reached): it all comes out, what was held too. */
int hzp_stop_pass(struct hzp_stop *stop, const char *text, size_t bytes, struct hzp_textbuf *out);

/* The end of the stream: appends what was held. */
int hzp_stop_flush(struct hzp_stop *stop, struct hzp_textbuf *out);
