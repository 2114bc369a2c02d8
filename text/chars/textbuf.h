/* SPDX-License-Identifier: Apache-2.0 */
/* text/chars/textbuf.h - growing arrays of bytes and of token ids.
 *
 * Their size follows from what a client sent, so growing them can fail, and says so.
 *
 * Invariant: bytes <= cap; data is NULL only while cap is 0. Zeroed memory is an empty one.
 * Thread: the owner's.
 */
#pragma once

#include "base/json.h"

struct hzp_textbuf {
    char *data; /* not NUL-terminated */
    size_t bytes, cap;
};

struct hzp_tokens {
    int32_t *ids;
    size_t n, cap;
};

/* Makes room for `need` elements of `size` bytes, doubling.  array: the address of the pointer to
 * them.  HZP_ENOMEM: nothing has changed. */
int hzp_text_grow(void *array, size_t *cap, size_t need, size_t size);

/* HZP_ENOMEM, or 0 with the bytes appended. */
int hzp_textbuf_append(struct hzp_textbuf *buf, const char *data, size_t bytes);
void hzp_textbuf_fini(struct hzp_textbuf *buf);

/* Bytes as a JSON string (text NULL: none): invalid UTF-8 becomes U+FFFD.  NULL: no memory. */
json_t *hzp_text_json(const char *text, size_t bytes);

/* HZP_ENOMEM, or 0 with the ids appended. */
int hzp_tokens_append(struct hzp_tokens *tokens, const int32_t *ids, size_t n);
void hzp_tokens_fini(struct hzp_tokens *tokens);
