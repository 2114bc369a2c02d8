/* SPDX-License-Identifier: Apache-2.0 */
/* serve/lookup.h - guesses a sequence's next tokens from its own text (prompt lookup), and from
 * earlier answers to its prompt, so that one step can compute several of them.
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
 * Earlier answers (history.h) are looked at when the prompt is known, as if they were text behind
 * it: the newest one last, but for the one drawn with the sequence's own random numbers.  As long
 * as an earlier answer was right it is followed, because one that agreed for longer is more likely
 * to go on in the same way than the newest place of three tokens.
 *
 * Thread: engine.
 */
#pragma once

#include "serve/history.h"

enum { HZP_LOOKUP_MAX = 8, HZP_LOOKUP_PLACES = 4096 };

struct hzp_lookup {
    /* index of the token behind three; 0: none; below 0: -1 - place, of the history */
    int32_t after[HZP_LOOKUP_PLACES];
    int32_t noted; /* tokens of the sequence that are in it */
    int32_t found; /* as in `after`, of the first guessed token; 0: there is no guess */
    double trust;
    const struct hzp_history *history; /* borrowed; NULL: none */
    uint64_t draws;                    /* what random numbers the sequence is drawn with */
};

/* For another sequence.  history NULL: earlier answers are not looked at. */
void hzp_lookup_begin(struct hzp_lookup *lookup, const struct hzp_history *history, uint64_t draws);

/* Takes over the tokens that have become known, and looks for what may follow. */
void hzp_lookup_follow(struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens);

/* At most `most` guesses of what follows the tokens; returns how many. */
int32_t hzp_lookup_guess(const struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens,
                         int32_t most, int32_t *ret);

/* How many of so many guesses are right at best, on average: trust + trust^2 + ... */
double hzp_lookup_expected(const struct hzp_lookup *lookup, int32_t guesses);
