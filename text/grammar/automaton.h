/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/automaton.h - what a grammar consists of; for text/grammar/ only.
 *
 * determinize.c fills states, calls and rules; analyze.c removes what leads nowhere and finds what
 * may follow a rule; masks.c adds the masks; run.c follows a text.
 *
 * Invariant: as in text/grammar/grammar.h.
 * Thread: as there.
 */
#pragma once

#include "text/grammar/effort.h"
#include "text/grammar/grammar.h"

/* ---- trie.c: the byte strings of tokens as a tree, in the order of a depth-first walk.
 *
 * A node stands for the bytes from the root to it.  The nodes of a subtree lie behind its root, up
 * to `end`, so that a walk goes forward and skips a subtree by a jump.  The root is not stored.
 *
 * Invariant: never changes once made. Thread: any. */

struct hzp_trie_node {
    int32_t end;    /* index behind the subtree */
    int32_t token;  /* index of the first entry that ends here, -1: none */
    uint16_t depth; /* bytes from the root, from 1 */
    uint8_t byte;
};

struct hzp_trie_entry {
    const char *bytes; /* borrowed while the trie is made */
    int32_t size, token;
};

struct hzp_trie {
    struct hzp_trie_node *node;
    int32_t nodes, depth; /* depth: the largest */
    int32_t *token; /* tokens of the entries in order; negative (~token): another one follows that
                           * has the same bytes */
};

enum { HZP_TRIE_DEPTH_MAX = 1024 }; /* longer entries are left out */

/* Makes the trie of the entries, which it sorts; empty ones are left out. */
void hzp_trie_make(struct hzp_trie_entry *entry, int32_t count, struct hzp_trie *ret);
void hzp_trie_fini(struct hzp_trie *trie);
size_t hzp_trie_bytes(const struct hzp_trie *trie);

/* ---- the automaton ---- */

/* Tokens of up to HZP_SHORT_BYTES, and longer ones, have tries and masks of their own: states that
 * cannot be told apart by few bytes share the masks of the short ones, which are most. */
enum { HZP_SHORT_BYTES = 12, HZP_LENGTHS = 2 };

struct hzp_lexicon {
    int32_t count;
    struct hzp_trie trie[HZP_LENGTHS];
    char *pool;
    int32_t *at;             /* [count + 1] where a token's bytes begin in the pool */
    _Atomic int64_t *in_use; /* bytes of the grammars over it */
};

struct hzp_call {
    int32_t rule, to;
    bool tail; /* nothing is left to do behind it: no frame is needed */
};

struct hzp_grammar_state {
    int32_t rule;
    int32_t call0, calls;
    int32_t mask[HZP_LENGTHS]; /* indices, -1: takes no byte */
    bool final;
    bool can_end; /* final, or by calls that take nothing */
    bool simple;  /* takes bytes, and does nothing else */
};

struct hzp_byte_set {
    uint64_t word[4];
};

static inline bool hzp_byte_set_has(const struct hzp_byte_set *set, uint8_t byte)
{
    return set->word[byte / 64] >> (byte % 64) & 1;
}

struct hzp_auto_rule {
    int32_t first;             /* state */
    struct hzp_byte_set after; /* bytes that may come behind the rule */
};

struct hzp_mask {
    uint32_t *bits; /* the allowed tokens as bits, or NULL: */
    int32_t *list;  /* [count] as a list */
    int32_t count;
    struct hzp_trie unsure;
};

struct hzp_grammar {
    struct hzp_constraint constraint;
    _Atomic int32_t owners;
    const struct hzp_lexicon *lexicon;
    uint8_t class_of[256];
    int32_t classes;
    struct hzp_grammar_state *state;
    int32_t states, states_room;
    int32_t *next; /* [states][classes] state, -1: none */
    struct hzp_call *call;
    int32_t calls, calls_room;
    struct hzp_auto_rule *rule; /* [rules] only the used ones have states */
    int32_t rules, root;
    struct hzp_mask *mask[HZP_LENGTHS];
    int32_t masks[HZP_LENGTHS];
    int64_t bytes, work;
    int64_t counted; /* bytes added to the lexicon's in_use */
};

/* Whether building the automaton takes more steps than allowed, or its client has left. */
static inline bool hzp_grammar_over(const struct hzp_grammar *g)
{
    return hzp_effort_over(g->work, HZP_GRAMMAR_WORK_MAX);
}

/* A state and what is to be done behind its rule. */
struct hzp_config {
    int32_t state, frame;
};

/* What is to be done behind a call; frame 0: nothing, the text ends. */
struct hzp_frame {
    int32_t state, parent, depth;
    int32_t chain; /* the next frame in its chain of the hash table, -1: none */
};

struct hzp_config_set {
    struct hzp_config *config; /* [HZP_STACKS_MAX] */
    int32_t count;
    bool ended; /* frame 0 was reached */
};

struct hzp_constraint_run {
    struct hzp_grammar *grammar;
    struct hzp_frame *frame;
    int32_t frames, frames_room;
    int32_t *chain; /* hash table of frames */
    struct hzp_config_set now;
    struct hzp_config_set kept; /* with so many frames; 0: nothing is tried */
    int32_t kept_frames;
    int64_t kept_work;
    /* during a walk: the set at each depth */
    struct hzp_config_set *level; /* [levels] */
    int32_t levels;
    int64_t work, work_max; /* comparisons and the like; a walk stops above work_max */
};

/* ---- determinize.c ---- */
int hzp_grammar_determinize(struct hzp_grammar *grammar, const struct hzp_rules *rules,
                            struct hzp_err_text *reterr);

/* ---- analyze.c ---- */
int hzp_grammar_analyze(struct hzp_grammar *grammar, const struct hzp_rules *rules,
                        struct hzp_err_text *reterr);

/* ---- run.c ---- */

/* What a walk tells of a token: allowed, or (with `after`) unsure. */
typedef void hzp_walk_seen(void *ctx, int32_t token, bool unsure);

/* Walks the trie from set run->level[0].  after: NULL, or the bytes that may come behind the rule
 * that frame 0 stands for.  Stops where run->work exceeds run->work_max.  Returns the number of
 * nodes visited. */
int64_t hzp_grammar_walk(struct hzp_constraint_run *run, const struct hzp_trie *trie,
                         const struct hzp_byte_set *after, hzp_walk_seen *seen, void *ctx);

/* Makes a set of one state in frame 0, without what its calls lead to. */
void hzp_grammar_set_one(struct hzp_constraint_run *run, struct hzp_config_set *set, int32_t state);

/* A grammar as a constraint (run.c). */
extern const struct hzp_constraint_ops hzp_grammar_ops;
