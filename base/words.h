/* SPDX-License-Identifier: Apache-2.0 */
/* base/words.h - a short list of names as one text, in which single blanks divide them.
 *
 * Thread: any; pure.
 */
#pragma once

#include "base/base.h"

/* The number of the name in the list, from 0; -1: it is none of them. */
static inline int hzp_word_at(const char *words, const char *name, size_t bytes)
{
    for (int i = 0; *words; i++) {
        size_t n = strcspn(words, " ");
        if (n == bytes && !memcmp(words, name, n))
            return i;
        words += n + (words[n] == ' ');
    }
    return -1;
}

static inline bool hzp_among(const char *words, const char *name)
{
    return hzp_word_at(words, name, strlen(name)) >= 0;
}
