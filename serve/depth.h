/* SPDX-License-Identifier: Apache-2.0 */
/* serve/depth.h - guesses next tokens with half of the layers of the same weights: the first half
 * and the last one (HZP_DEPTH_GUESS in nanobatch/model/path.h); or, with the same rounds, with all
 * layers and their E4M3 projections (fp8_guesses in nanobatch/model/model.h).
 *
 * A round is some steps in which each sequence has one row that guesses, drawn as the model itself
 * would draw there, and then one with all layers that computes the guessed rows again and verifies
 * them (lookup.h).  What the guessing rows have stored is overwritten then.  All sequences guess in
 * the same steps, because a step of both kinds of rows takes about as long as one of all layers; so
 * there are rounds only while no prompt is computed and every running sequence can guess.
 *
 * A round of k guesses takes k g + v(k) for n sequences and brings n (1 + a + ... + a^k) tokens, if
 * a of the guesses are right.  g is how long a step that guesses takes, v(k) one that verifies k
 * guesses, v(0) one that decodes: averages, from the end of the step before to its own, of what was
 * measured with about as many sequences (up to the next power of two).  A v(k) that is not known
 * yet goes on as those before it do.  The k with the most tokens in that time is chosen; 0, unless
 * one brings more by a margin.  Decoding is measured four times before the first round, because one
 * measurement may be far off, then once in as many rounds as it was measured before, at most 64.
 * Where rounds do not pay, one of a single guess is tried in 256 steps: another version may guess
 * better.
 *
 * Thread: engine.
 */
#pragma once

#include "serve/lookup.h"

enum { HZP_ROUNDS_CLASSES = 13, HZP_ROUNDS_GUESS = HZP_LOOKUP_MAX + 1, HZP_ROUNDS_KINDS };

struct hzp_rounds {
    double trust; /* how often guesses were right lately, of all sequences */
    /* by sequences and kind: v(0 .. HZP_LOOKUP_MAX), g; 0: not measured */
    double ns[HZP_ROUNDS_CLASSES][HZP_ROUNDS_KINDS];
    int32_t seen[HZP_ROUNDS_CLASSES][HZP_ROUNDS_KINDS];
    uint64_t end_ns;         /* the newest step ended then */
    int32_t sequences, kind; /* the step in flight has them; sequences 0: it is not measured */
    int32_t left;            /* steps of the round that will guess */
    int32_t idle;            /* steps since the last round */
    int32_t rounds;          /* since decoding was measured */
    bool pays;               /* a round would bring more tokens */
};

void hzp_rounds_init(struct hzp_rounds *rounds);

/* How many guesses each of so many sequences, of this trust, is to have in a round that begins now;
 * at most `most`.  every: steps after which one is tried that does not pay. */
int32_t hzp_rounds_length(struct hzp_rounds *rounds, int32_t sequences, double trust, int32_t most,
                          int32_t every);

/* A step is formed in which each sequence has as many rows: one that guesses
 * (HZP_ROUNDS_GUESS), or `kind` guesses are verified.  sequences 0: another one. */
void hzp_rounds_began(struct hzp_rounds *rounds, int32_t sequences, int32_t kind);
/* A step of so many rows has ended at this time, by the device's clock; the first after a pause is
 * one of a prompt. */
void hzp_rounds_ended(struct hzp_rounds *rounds, int32_t rows, uint64_t end_ns);
/* The first `right` of a sequence's guesses were right. */
void hzp_rounds_verified(struct hzp_rounds *rounds, struct hzp_lookup *lookup, int32_t guesses,
                         int32_t right);
