/* SPDX-License-Identifier: Apache-2.0 */
/* base/utf8.h - code points in and out of UTF-8.
 *
 * Invariant: hzp_utf8_get reads only text that hzp_utf8_valid has accepted.
 * Thread: any.
 */
#pragma once

#include "base/base.h"

#define HZP_UTF8_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* Bytes of a character by its first byte; 0: no character begins with that byte (Unicode 3.9,
 * table 3-7). */
static inline int hzp_utf8_length(uint8_t first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xC2 || first > 0xF4)
        return 0;
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* The same for text known to be valid. */
static inline int hzp_utf8_step(uint8_t first)
{
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* Whether `next` may be the second byte of a character that begins with `first` (table 3-7: no
 * overlong forms, no surrogates, nothing above U+10FFFF). */
static inline bool hzp_utf8_second_ok(uint8_t first, uint8_t next)
{
    uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return next >= low && next <= high;
}

/* The code point at p (valid text); *step gets its bytes. */
static inline uint32_t hzp_utf8_get(const char *text, int *step)
{
    const uint8_t *p = (const uint8_t *)text;
    if (p[0] < 0x80)
        return *step = 1, p[0];
    if (p[0] < 0xE0)
        return *step = 2, (uint32_t)(p[0] & 31) << 6 | (p[1] & 63);
    if (p[0] < 0xF0)
        return *step = 3, (uint32_t)(p[0] & 15) << 12 | (uint32_t)(p[1] & 63) << 6 | (p[2] & 63);
    *step = 4;
    return (uint32_t)(p[0] & 7) << 18 | (uint32_t)(p[1] & 63) << 12 | (uint32_t)(p[2] & 63) << 6 |
           (p[3] & 63);
}

/* Where the character begins that ends in front of `at` (valid text, at > 0). */
static inline size_t hzp_utf8_before(const char *text, size_t at)
{
    do
        at--;
    while (((uint8_t)text[at] & 0xC0) == 0x80);
    return at;
}

/* Writes code (a Unicode scalar value) to out, returns its bytes (1 to 4). */
static inline int hzp_utf8_put(char *out, uint32_t code)
{
    if (code < 0x80)
        return out[0] = (char)code, 1;
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 63));
        out[2] = (char)(0x80 | (code & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 63));
    out[2] = (char)(0x80 | (code >> 6 & 63));
    out[3] = (char)(0x80 | (code & 63));
    return 4;
}

/* bytes if text is valid UTF-8, else the offset of the first character that is not. */
static inline size_t hzp_utf8_valid(const char *text, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t at = 0;
    while (at < bytes) {
        if (p[at] < 0x80) {
            at++;
            continue;
        }
        int length = hzp_utf8_length(p[at]);
        if (length == 0 || bytes - at < (size_t)length || !hzp_utf8_second_ok(p[at], p[at + 1]))
            return at;
        for (int i = 2; i < length; i++)
            if ((p[at + (size_t)i] & 0xC0) != 0x80)
                return at;
        at += (size_t)length;
    }
    return at;
}

/* Bytes of the character at p; 0: it is not UTF-8. */
static inline size_t hzp_utf8_bytes(const char *p, const char *end)
{
    int n = hzp_utf8_length((uint8_t)*p);
    return n && end - p >= n && hzp_utf8_valid(p, (size_t)n) == (size_t)n ? (size_t)n : 0;
}

/* How many code points the text has. */
static inline size_t hzp_utf8_count(const char *text, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((uint8_t)text[i] & 0xC0) != 0x80;
    return n;
}

/* White_Space of Unicode. */
static inline bool hzp_utf8_is_space(uint32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= 9 && code <= 13);
    return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
           code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}
