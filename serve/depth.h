/* SPDX-License-Identifier: Apache-2.0 */
/* serve/depth.h - guesses next tokens with half of the layers of the same weights: the first half
 * and the last one (HZP_DEPTH_GUESS in nanobatch/model/path.h); or, with the same rounds, with all
 * layers and their E4M3 projections (fp8_guesses in nanobatch/model/model.h).
 *
 * A round is some steps in which each sequence has one row that guesses, drawn as the model itself
 * would draw there, and then one with all layers that computes the guessed rows again and verifies
 * them (lookup.h).  What the guessing rows have stored is overwritten then.  A request that is
 * answered with fewer layers is guessed by those of them that are in the half.  The sequences of
 * one version guess in the same steps, because a step of both kinds of rows takes about as long as
 * one of all layers; those that cannot guess have a row in each of these steps, as without a
 * round.  None begins while a prompt is computed, or where more sequences cannot guess than can.
 *
 * A round of k guesses takes k g + v(k) for n sequences that guess and m beside them, and brings n
 * (1 + a + ... + a^k) + m (k + 1) tokens, if a of the guesses are right.  g is how long a step
 * that guesses takes, v(k) one that verifies k guesses, v(0) one that decodes: averages, lower
 * than the mean because only late steps are far from it, from the end of the step before to its
 * own, of what was measured with about as many sequences (up to the next power of two), with some
 * beside them or none.  A v(k) that is not known yet goes on as those before it do.  The k with
 * the most tokens in that time is chosen; 0, unless one brings more by a margin.  Decoding is
 * measured four times before the first round, because one measurement may be far off, then once in
 * as many rounds as it was measured before, at most 64; not in the first step behind a round,
 * which is formed when the results are there, where decoding runs ahead.  Where rounds do not pay,
 * one of a single guess is tried in 256 steps, because another version may guess better; the first
 * ones after 16, 32, 64 and 128, because how often guesses are right is not known at first.
 *
 * Thread: engine.
 */
#pragma once

#include "serve/lookup.h"

enum { HZP_ROUNDS_CLASSES = 13, HZP_ROUNDS_GUESS = HZP_LOOKUP_MAX + 1, HZP_ROUNDS_KINDS };

/* Sequences of a step that take part in rounds, and others, which have one row in each. */
struct hzp_rounds_mix {
    int32_t guess, plain;
};

/* v(0 .. HZP_LOOKUP_MAX), g, in nanoseconds, and how often each was measured; 0: not yet */
struct hzp_rounds_times {
    double ns[HZP_ROUNDS_KINDS];
    int32_t seen[HZP_ROUNDS_KINDS];
};

/* A step in flight; mix.guess 0: it is not measured. */
struct hzp_rounds_step {
    uint64_t number;
    struct hzp_rounds_mix mix;
    int32_t kind;
};

struct hzp_rounds {
    double trust; /* how often guesses were right lately, of all sequences */
    struct hzp_rounds_times times[2][HZP_ROUNDS_CLASSES]; /* [whether some are plain] */
    uint64_t end_ns;                                      /* the newest step ended then */
    struct hzp_rounds_step step[2];                       /* step n is step[n % 2] */
    int32_t idle;    /* steps since the last round in which none would have paid */
    int32_t sooner;  /* a round is tried after 1 / 2^sooner of the steps */
    int32_t guesses; /* that were verified */
    int32_t rounds;  /* since decoding was measured */
    bool pays;       /* a round would bring more tokens */
};

void hzp_rounds_init(struct hzp_rounds *rounds);

/* How many guesses each sequence that takes part, of this trust, is to have in a round that begins
 * now, if their tokens are known; at most `most`.  every: steps after which one is tried that does
 * not pay. */
int32_t hzp_rounds_length(struct hzp_rounds *rounds, const struct hzp_rounds_mix *mix, double trust,
                          int32_t most, int32_t every, bool known);

/* A step is formed in which each sequence that takes part has as many rows: one that guesses
 * (HZP_ROUNDS_GUESS), or `kind` guesses are verified; ahead: while the step before is in flight. */
void hzp_rounds_began(struct hzp_rounds *rounds, uint64_t number, bool ahead,
                      const struct hzp_rounds_mix *mix, int32_t kind);
/* A step of so many rows has ended at this time, by the device's clock; the first after a pause is
 * one of a prompt. */
void hzp_rounds_ended(struct hzp_rounds *rounds, uint64_t number, int32_t rows, uint64_t end_ns);
/* The first `right` of a sequence's guesses were right. */
void hzp_rounds_verified(struct hzp_rounds *rounds, struct hzp_lookup *lookup, int32_t guesses,
                         int32_t right);
