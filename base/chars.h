/* SPDX-License-Identifier: Apache-2.0 */
/* base/chars.h - bytes that formats have in common: hexadecimal digits, and white space as JSON has
 * it.
 *
 * Thread: any; pure.
 */
#pragma once

#include "base/base.h"

/* -1: it is none. */
static inline int hzp_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static inline bool hzp_is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* How many blanks the text begins with. */
static inline size_t hzp_blanks(const char *text, size_t bytes)
{
    size_t n = 0;
    while (n < bytes && hzp_is_blank(text[n]))
        n++;
    return n;
}

/* Leaves out the blanks at both ends. */
static inline void hzp_trim(const char **text, size_t *bytes)
{
    size_t n = hzp_blanks(*text, *bytes);
    *text += n;
    *bytes -= n;
    while (*bytes && hzp_is_blank((*text)[*bytes - 1]))
        --*bytes;
}
