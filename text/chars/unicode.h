/* SPDX-License-Identifier: Apache-2.0 */
/* text/chars/unicode.h - the Unicode normalization forms (UAX 15), lowercase, accents.
 *
 * What Unicode says of each character comes from libutf8proc.  Text must be valid UTF-8.
 *
 * Thread: any.
 */
#pragma once

#include "text/chars/textbuf.h"

enum hzp_unicode_form { HZP_UNICODE_NFC, HZP_UNICODE_NFD, HZP_UNICODE_NFKC, HZP_UNICODE_NFKD };

/* True: the text is surely in that form already (no character that the form may touch). */
bool hzp_unicode_is_plain(enum hzp_unicode_form form, const char *text, size_t bytes);

/* Appends the text in that form to out. Linear in bytes, whatever the text. HZP_ENOMEM. */
int hzp_unicode_normalize(enum hzp_unicode_form form, const char *text, size_t bytes,
                          struct hzp_textbuf *out);

/* Appends the text with every character's lowercase, without context (no final sigma). */
int hzp_unicode_lower(const char *text, size_t bytes, struct hzp_textbuf *out);

/* Appends the text without its characters of general category M. */
int hzp_unicode_strip_marks(const char *text, size_t bytes, struct hzp_textbuf *out);
