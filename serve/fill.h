/* SPDX-License-Identifier: Apache-2.0 */
/* serve/fill.h - what the files that fill a step share: rows (fill.c), and guesses among them
 * (guesses.c).
 *
 * Thread: engine.
 */
#pragma once

#include "serve/scheduler_state.h"

/* The step being filled. */
struct hzp_filling {
    struct hzp_scheduler *s;
    const struct hzp_step *step;
    struct hzp_room *room;
    struct hzp_offer *offer;
    int32_t behind; /* rows left for background requests */
};

/* ---- fill.c ---- */

/* Whether the step has room for the changes of the table of pages that so many rows make.  A decode
 * row always fits: it makes at most one. */
bool hzp_fill_pages_fit(const struct hzp_filling *f, const struct hzp_seq *seq, int32_t rows);

/* Index of the in-flight step's logits that draw the token the sequence feeds next; -1: the token
 * is already known. */
int32_t hzp_fill_drawn_by(struct hzp_seq *seq, const struct hzp_step *step);

/* ---- guesses.c ---- */

/* Whether the sequence has guesses in flight, or its newest token will be followed by some. */
bool hzp_has_guesses(const struct hzp_scheduler *s, const struct hzp_seq *seq);

/* Gives the chosen sequences guesses: one more each in turn, as long as the step is expected to
 * bring more tokens a second with it.  Returns how many. */
int32_t hzp_add_guesses(const struct hzp_filling *f, int32_t chosen);

/* How many more tokens a step brings, as a share, if all tokens before it are known and all guesses
 * that pay are computed: each of a row, whose price is what so many more rows take. */
double hzp_gain_of_guesses(const struct hzp_filling *f);
