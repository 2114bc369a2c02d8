/* SPDX-License-Identifier: Apache-2.0 */
/* serve/edits.h - what changes the logits of one sequence: its biases, the generated tokens its
 * penalties count, the stop ids that min_tokens still bans, and which tokens it may draw at all.
 *
 * Biases, counts and bans are a sparse list with at most one edit per token; the tokens that may be
 * drawn are a mask over the vocabulary, where a request limits them (struct hzp_token_rules).  Both
 * are updated after every generated token, and a step copies them into the batch.  Memory for the
 * worst case of the list is allocated at create.
 *
 * Thread: create: the submitting thread; the rest: engine.
 */
#pragma once

#include "device/ops.h"
#include "serve/constraint.h"

struct hzp_edits;

enum { HZP_BAD_TOKENS_MAX = 64, HZP_EDITS_GUESSES_MAX = 8 };

/* Which tokens a request may draw.  Constant while a request uses it. */
struct hzp_token_rules {
    const int32_t *allowed; /* [alloweds] only these; NULL: any */
    int32_t alloweds;
    /* sequences that must not be generated whole: the i-th is bad[bad_at[i]] up to
     * bad[bad_at[i + 1]], of 1 .. HZP_BAD_TOKENS_MAX tokens */
    const int32_t *bad, *bad_at;
    int32_t bads;
    /* What the text looks like; NULL: anything.  Where it may end, the end-of-sequence tokens and
     * stop ids are allowed. */
    struct hzp_constraint *constraint;
    /* What the constraint was made of, so that its maker can make it again in another process;
     * NULL: that is not possible. */
    const char *source;
};

/* What edits follow from; all pointers are borrowed for the call only. */
struct hzp_edit_rules {
    int32_t vocab;
    const int32_t *bias_token; /* [biases] */
    const float *bias;
    int32_t biases;
    const int32_t *end[2]; /* [ends[i]] stop ids, end-of-sequence ids */
    int32_t ends[2];
    int32_t bans[2];                      /* how many of these may be banned: ends[i] or none */
    const struct hzp_token_rules *tokens; /* NULL: any; borrowed as long as the edits exist */
    bool penalties;                       /* tokens of the prompt and generated ones are counted: */
    const int32_t *prompt;                /* [prompt_count] */
    int32_t prompt_count, max_tokens;
};

/* The largest number of edits that the sequence can come to; 0: it needs none, and its list is
 * NULL. */
int32_t hzp_edits_needed(const struct hzp_edit_rules *rules);

/* HZP_ENOMEM; HZP_EINVAL: no token may be drawn at all.  *ret is NULL if none are needed. */
int hzp_edits_create(const struct hzp_edit_rules *rules, struct hzp_edits **ret);
void hzp_edits_destroy(struct hzp_edits *edits); /* NULL: no effect */

int32_t hzp_edits_count(const struct hzp_edits *edits); /* NULL: 0 */

/* True: the edits of a draw depend on the tokens drawn before it.  NULL: false. */
bool hzp_edits_grow(const struct hzp_edits *edits);

enum hzp_edits_after {
    HZP_AFTER_MORE,  /* the sequence goes on */
    HZP_AFTER_ENDED, /* the token ends the text of a grammar and is no part of it */
    HZP_AFTER_WHOLE, /* the text is complete with this token: nothing may follow */
    HZP_AFTER_STUCK, /* no token may follow, though the text is not complete */
};

/* The sequence generated this token; stops: it ends the sequence in any case.  NULL: no effect. */
enum hzp_edits_after hzp_edits_generated(struct hzp_edits *edits, int32_t token, bool stops);

/* The edits become those behind this token, too, which is guessed, until hzp_edits_back().  False:
 * nothing may follow on it, or that is not known; then only hzp_edits_back() may be next.  NULL:
 * true. */
bool hzp_edits_guess(struct hzp_edits *edits, int32_t token);
/* Takes all guesses back.  NULL, or there are none: no effect. */
void hzp_edits_back(struct hzp_edits *edits);

/* The mask of the next draw, hzp_mask_words(vocab) words with at least one token; NULL: any token
 * may be drawn. */
const uint32_t *hzp_edits_mask(const struct hzp_edits *edits);

/* What making that mask has cost, and about what the next one will (constraint.h).  NULL: 0. */
int64_t hzp_edits_work(const struct hzp_edits *edits);

/* Writes the list, hzp_edits_count() entries; ban: stop ids are forbidden in this draw. */
void hzp_edits_write(const struct hzp_edits *edits, bool ban, struct hzp_logit_edit *ret);
