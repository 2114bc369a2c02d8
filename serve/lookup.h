/* SPDX-License-Identifier: Apache-2.0 */
/* serve/lookup.h - guesses a sequence's next tokens from its own text (prompt lookup), so that one
 * step can compute several of them.
 *
 * A draw depends on the seed and the position only (device/ops.h), so a guessed token is verified
 * by the draw of the row before it: where the two are equal, the guessed row is the one that
 * decoding one by one would have had, and its draw is the next token.  The first guess that differs
 * ends the step's tokens; the rows behind it are overwritten later.  So the tokens are those of
 * decoding one by one; only how many of them a step brings changes.  (Same noise for guess and
 * target: Daliri, Musco, Suresh, arXiv 2408.07978.)
 *
 * The newest three tokens are looked for in the text before them; what followed there is the guess.
 * A table by their hash holds where each three were seen last; the newer of two that share a place
 * stays.  Trust: how often the first guess was right lately.
 *
 * Thread: engine.
 */
#pragma once

#include "serve/prefix.h"

enum { HZP_LOOKUP_MAX = 8, HZP_LOOKUP_PLACES = 4096 };

struct hzp_lookup {
    int32_t after[HZP_LOOKUP_PLACES]; /* index of the token behind three; 0: none */
    int32_t noted;                    /* tokens of the sequence that are in it */
    int32_t found;                    /* index of the first guessed token; 0: there is no guess */
    double trust;
};

/* For another sequence. */
void hzp_lookup_begin(struct hzp_lookup *lookup);

/* Takes over the tokens that have become known, and looks for what may follow. */
void hzp_lookup_follow(struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens);

/* At most `most` guesses of what follows the tokens; returns how many. */
int32_t hzp_lookup_guess(const struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens,
                         int32_t most, int32_t *ret);

/* How many of so many guesses are right at best, on average: trust + trust^2 + ... */
double hzp_lookup_expected(const struct hzp_lookup *lookup, int32_t guesses);
