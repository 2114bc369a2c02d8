/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/codes.h - sets of code points, and how a front end spells them in the text.
 *
 * Thread: one per set.
 */
#pragma once

#include "text/grammar/rules.h"

enum { HZP_CODES_MAX = 512 /* ranges */, HZP_CODE_LAST = 0x10FFFF };

struct hzp_code_range {
    uint32_t lo, hi; /* both included */
};

struct hzp_codes {
    struct hzp_code_range range[HZP_CODES_MAX]; /* in any order until sorted */
    int32_t count;
    bool full; /* a range was dropped */
};

enum hzp_spelling {
    HZP_SPELL_PLAIN, /* UTF-8 */
    /* inside a JSON string, in one way only: quotes, backslashes and control characters escaped
     * (the shortest way), all others as UTF-8 */
    HZP_SPELL_JSON,
};

/* Adds lo .. hi; a range too many sets `full`. */
void hzp_codes_add(struct hzp_codes *set, uint32_t lo, uint32_t hi);
/* Sorts and joins the ranges. */
void hzp_codes_sort(struct hzp_codes *set);
/* Everything that was not in it. */
void hzp_codes_invert(struct hzp_codes *set);

/* Edges that take one code point of the set. */
void hzp_codes_edges(struct hzp_rules *rules, int32_t from, struct hzp_codes *set,
                     enum hzp_spelling spelling, int32_t to);

/* Reads a code point of valid UTF-8 at text[*at]; goes on to the next.  UINT32_MAX: the bytes are
 * not UTF-8. */
uint32_t hzp_code_read(const char *text, size_t bytes, size_t *at);

/* The value of n hexadecimal digits at text[at]; UINT32_MAX: they are none. */
uint32_t hzp_code_hex(const char *text, size_t bytes, size_t at, int n);
