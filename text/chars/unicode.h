/* SPDX-License-Identifier: Apache-2.0 */
/* text/chars/unicode.h - the Unicode normalization forms (UAX 15), lowercase, accents.
 *
 * The tables (Unicode 14) are unpacked at the first call. Text must be valid UTF-8.
 *
 * Invariant: what was unpacked never changes.
 * Thread: any.
 */
#ifndef HZP_TEXT_CHARS_UNICODE_H
#define HZP_TEXT_CHARS_UNICODE_H

#include "base/base.h"
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

/* unicode_tables.c */
extern const int hzp_unicode_decompositions_count, hzp_unicode_classes_count,
    hzp_unicode_marks_count, hzp_unicode_lowers_count;
extern const char hzp_unicode_decompositions[], hzp_unicode_classes[], hzp_unicode_marks[],
    hzp_unicode_lowers[];

#endif
