/* SPDX-License-Identifier: Apache-2.0 */
/* serve/constraint.h - what limits the tokens that a sequence may draw, as the scheduler sees it:
 * an interface, implemented by text/grammar.  So the engine needs to know no text.
 *
 * A constraint is what many requests may share; a run of it follows one answer.
 *
 * Invariant: a constraint never changes once made, but for the count of its owners.
 * Thread: constraint: any; a run: one at a time.
 */
#pragma once

#include "base/base.h"

struct hzp_constraint;
struct hzp_constraint_run; /* defined by the implementation */

struct hzp_constraint_ops {
    void (*unref)(struct hzp_constraint *constraint); /* one owner less */

    /* A run at the beginning of a text, one more owner of the constraint; never NULL. */
    struct hzp_constraint_run *(*begin)(struct hzp_constraint *constraint);
    void (*end)(struct hzp_constraint_run *run);
    /* Goes on by a token.  False: the text may not go on so, and nothing has changed. */
    bool (*token)(struct hzp_constraint_run *run, int32_t token);
    /* Whether the text so far may end, and whether it may go on. */
    bool (*may_end)(const struct hzp_constraint_run *run);
    bool (*may_go_on)(const struct hzp_constraint_run *run);
    /* Sets the bits of the tokens that may come next and clears all others; mask: one bit for each
     * token of the vocabulary.  Returns whether there are any. */
    bool (*mask)(struct hzp_constraint_run *run, uint32_t *mask);
    /* About how many comparisons the newest mask took; HZP_CONSTRAINT_DEAR: some milliseconds. */
    int64_t (*work)(const struct hzp_constraint_run *run);
    /* The text so far is kept: back() returns to it, whatever tokens have been tried since.  Until
     * then token() may also refuse one that the text could go on with. */
    void (*keep)(struct hzp_constraint_run *run);
    void (*back)(struct hzp_constraint_run *run);
};

#define HZP_CONSTRAINT_DEAR  ((int64_t)1 << 22)
#define HZP_CONSTRAINT_CHEAP (HZP_CONSTRAINT_DEAR / 256)

/* The first member of each implementation's struct. */
struct hzp_constraint {
    const struct hzp_constraint_ops *ops;
};

/* NULL: no effect. */
static inline void hzp_constraint_unref(struct hzp_constraint *constraint)
{
    if (constraint)
        constraint->ops->unref(constraint);
}
