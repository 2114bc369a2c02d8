/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/grammar.h - what an answer may look like: a pushdown automaton over bytes, and for
 * each of its states the tokens that may come next.
 *
 * Rules (rules.h) become deterministic automata with calls.  What a token may do in a state is
 * decided when the grammar is made, by a walk over the trie of the whole vocabulary: it is allowed,
 * or it is not, or (unsure) that depends on what the rule was called for, because the token goes
 * beyond the rule's end.  Only the unsure ones are tried when a mask is made for a run.  States
 * from which the next bytes, as many as the longest token has, look alike share a mask.
 *
 * A run follows one answer.  Its state is a set of stacks, because a rule may be ambiguous.
 *
 * Exact: a mask has exactly the tokens behind which some text of the grammar goes on or ends,
 * except that a stack is dropped above HZP_STACK_MAX calls in one another, or where more than
 * HZP_STACKS_MAX are possible at once, and that unsure tokens are left out of a mask that needs
 * more than HZP_GRAMMAR_MASK_WORK_MAX: then texts are left out, and never others taken.
 *
 * Invariant: a grammar and a lexicon never change once made, but for the owners' count.
 * Thread: create: any, best not the engine's: it may take seconds; grammar and lexicon: any; a
 * run: one at a time.
 */
#pragma once

#include "serve/constraint.h"
#include "text/grammar/rules.h"

struct hzp_lexicon;
struct hzp_grammar;

enum {
    HZP_STACK_MAX = 512,
    HZP_STACKS_MAX = 128,
    HZP_GRAMMAR_STATES_MAX = 1 << 16,
    HZP_GRAMMAR_TABLE_MAX = 1 << 22,  /* entries: states times classes of bytes */
    HZP_GRAMMAR_WORK_MAX = 1 << 29,   /* nodes of the trie visited, and the like: a few seconds */
    HZP_GRAMMAR_MASKS_MAX = 96 << 20, /* bytes */
    HZP_GRAMMAR_MASK_WORK_MAX = 1 << 22, /* comparisons for one mask of a run: some milliseconds */
};

/* ---- the vocabulary ---- */

/* One token's bytes in the middle of a text.  Special tokens have no bytes here, and are asked for
 * by their id (hzp_rules_special). */
struct hzp_token_text {
    const char *bytes; /* NULL: there is no such token */
    int32_t size;
    bool special;
};

/* Copies what it needs.  Tokens without bytes, with more than HZP_TRIE_DEPTH_MAX, or with a byte
 * 0xFF are in no mask. */
void hzp_lexicon_create(const struct hzp_token_text *token, int32_t count,
                        struct hzp_lexicon **ret);
void hzp_lexicon_destroy(struct hzp_lexicon *lexicon); /* no grammar may be left; NULL: no effect */
/* Bytes of the grammars over it that have an owner.  Thread: any. */
int64_t hzp_lexicon_in_use(const struct hzp_lexicon *lexicon);

/* ---- grammars ---- */

/* The grammar of the texts that rule `root` takes; the lexicon is borrowed.  HZP_EINVAL: a bound is
 * reached, a rule calls itself before it takes a byte, or no text is taken at all. */
int hzp_grammar_create(const struct hzp_rules *rules, int32_t root,
                       const struct hzp_lexicon *lexicon, struct hzp_grammar **ret,
                       struct hzp_err_text *reterr);
struct hzp_grammar *hzp_grammar_ref(struct hzp_grammar *grammar); /* one more owner; returns it */
void hzp_grammar_unref(struct hzp_grammar *grammar);              /* NULL: no effect */

struct hzp_grammar_size {
    int32_t rules, states, masks; /* masks: different ones */
    int64_t bytes, work;
};
struct hzp_grammar_size hzp_grammar_size(const struct hzp_grammar *grammar);

/* The grammar as the scheduler sees it, of the same owners. */
struct hzp_constraint *hzp_grammar_constraint(struct hzp_grammar *grammar); /* NULL: NULL */

/* ---- runs ---- */

/* A run of the constraint, at the beginning of a text.  It is one more owner of the grammar. */
struct hzp_constraint_run *hzp_grammar_run_create(struct hzp_grammar *grammar);
void hzp_grammar_run_destroy(struct hzp_constraint_run *run); /* NULL: no effect */

/* Goes on by a token, or by bytes.  False: no text of the grammar goes on so, and nothing has
 * changed. */
bool hzp_grammar_run_token(struct hzp_constraint_run *run, int32_t token);
bool hzp_grammar_run_bytes(struct hzp_constraint_run *run, const char *bytes, size_t size);

/* Whether the text so far is one of the grammar's. */
bool hzp_grammar_run_may_end(const struct hzp_constraint_run *run);
bool hzp_grammar_run_may_go_on(const struct hzp_constraint_run *run); /* by some byte */

/* Sets the bits of the tokens that may come next and clears all others; mask: words for
 * the lexicon's tokens, 32 each.  Returns whether there are any. */
bool hzp_grammar_run_mask(struct hzp_constraint_run *run, uint32_t *mask);
