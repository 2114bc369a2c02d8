/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/rules.h - a grammar while it is built: rules as nondeterministic graphs over bytes.
 *
 * A rule has a first and a last node.  An edge takes one byte of a range, or nothing, or whatever
 * another rule takes (a call).  A rule takes a text if some path from its first to its last node
 * does.  The front ends (regex.c, gbnf.c, schema.h) build rules; grammar.h makes automata of them.
 *
 * Text is UTF-8.  The byte 0xFF, which UTF-8 has not, begins the key of a special token, so that a
 * rule can ask for one (hzp_rules_special).
 *
 * Bounds: HZP_RULES_NODES_MAX and HZP_RULES_EDGES_MAX.  What goes beyond is dropped and `full` is
 * set; front ends ask for it now and then, and hzp_grammar_create refuses such rules.
 *
 * Thread: one at a time.
 */
#pragma once

#include "base/err.h"

enum {
    HZP_RULES_NODES_MAX = 1 << 18,
    HZP_RULES_EDGES_MAX = 1 << 20,
    HZP_RULES_MAX = 1 << 14,
    HZP_REPEAT_MAX = 4096,    /* largest count in {m,n}, minLength, maxItems and so on */
    HZP_LENGTH_MAX = 1 << 24, /* largest maxLength, of strings without other conditions */
};

enum hzp_edge_kind { HZP_EDGE_BYTES, HZP_EDGE_EMPTY, HZP_EDGE_CALL };

struct hzp_edge {
    uint8_t kind;   /* enum hzp_edge_kind */
    uint8_t lo, hi; /* BYTES: both included */
    int32_t rule;   /* CALL: the rule called */
    int32_t to;
    int32_t next; /* the node's next edge, -1: none */
};

struct hzp_rule {
    char name[48]; /* for errors */
    int32_t first, last;
};

struct hzp_rules {
    struct hzp_rule *rule;
    int32_t rules, rules_room;
    int32_t *node; /* [nodes] the node's newest edge, -1: none */
    int32_t nodes, nodes_room;
    struct hzp_edge *edge;
    int32_t edges, edges_room;
    struct {
        char *key; /* owned */
        uint64_t hash;
        int32_t rule;
    } * share; /* rules that are used wherever the same is asked for */
    int32_t shares;
    bool full;
};

/* A part of a rule, from one node to another. */
struct hzp_part_of {
    int32_t from, to;
};

/* Without rules.  A bound that is reached sets `full`, and hzp_grammar_create refuses them. */
struct hzp_rules *hzp_rules_create(void);
void hzp_rules_destroy(struct hzp_rules *rules); /* NULL: no effect */

/* A new rule with a first and a last node, without a path between them.  The name is copied and
 * cut; of `bytes` bytes. */
int32_t hzp_rules_add(struct hzp_rules *rules, const char *name, size_t bytes);

/* The rule that was kept for what the key says; -1: none.  The key is copied. */
int32_t hzp_rules_shared(const struct hzp_rules *rules, const char *key);
void hzp_rules_share(struct hzp_rules *rules, const char *key, int32_t rule);

/* A new node without edges; returns its number. */
int32_t hzp_rules_node(struct hzp_rules *rules);

/* Edges.  lo .. hi: bytes, code points (surrogates are left out). */
void hzp_rules_bytes(struct hzp_rules *rules, int32_t from, uint8_t lo, uint8_t hi, int32_t to);
void hzp_rules_empty(struct hzp_rules *rules, int32_t from, int32_t to);
void hzp_rules_call(struct hzp_rules *rules, int32_t from, int32_t rule, int32_t to);
void hzp_rules_codes(struct hzp_rules *rules, int32_t from, uint32_t lo, uint32_t hi, int32_t to);
void hzp_rules_special(struct hzp_rules *rules, int32_t from, int32_t token, int32_t to);

/* Appends a text, or a call, behind `from`; returns the node behind it. */
int32_t hzp_rules_text(struct hzp_rules *rules, int32_t from, const char *text, size_t bytes);
int32_t hzp_rules_then(struct hzp_rules *rules, int32_t from, int32_t rule);

/* Puts copies of the part in a row behind `from`, between `least` and `most` (-1: any number) of
 * them; returns the node behind them.  All nodes made since part.from belong to the part, and
 * nothing but these copies uses it; `from` is older. */
int32_t hzp_rules_repeat(struct hzp_rules *rules, int32_t from, struct hzp_part_of part,
                         int32_t least, int32_t most);

/* How far the rules are made, and back to it: what was added since is gone, `full` too. */
struct hzp_rules_point {
    int32_t rules, nodes, edges, shares;
};
struct hzp_rules_point hzp_rules_here(const struct hzp_rules *rules);
void hzp_rules_return(struct hzp_rules *rules, struct hzp_rules_point point);

/* ---- sets of nodes, of which automata make their states ----
 *
 * A set has all that its nodes reach by nothing.  Those that are kept are numbered from 0. */

enum { HZP_SUBSET_CHAINS = 1 << 12 };

struct hzp_subset {
    int32_t at, count; /* range of the pool, sorted */
    int32_t chain;     /* the next of its chain, -1: none */
};

struct hzp_subsets {
    const struct hzp_rules *rules;
    int32_t *mark, stamp; /* [nodes] stamp of the set being made */
    int32_t *set, count;  /* [nodes] the set being made */
    struct hzp_subset *subset;
    int32_t subsets, subsets_room;
    int32_t *pool, used, pool_room;
    int32_t chain[HZP_SUBSET_CHAINS], *last; /* last: the chain that was searched last */
};

void hzp_subsets_init(struct hzp_subsets *s, const struct hzp_rules *rules);
void hzp_subsets_fini(struct hzp_subsets *s);
/* None is kept any more. */
void hzp_subsets_clear(struct hzp_subsets *s);
/* Begins a set with one node. */
void hzp_subsets_begin(struct hzp_subsets *s, int32_t node);
/* Begins a set with what the edges of `of` lead to that take the byte or (rule >= 0) call the rule;
 * returns how many edges it looked at. */
int32_t hzp_subsets_after(struct hzp_subsets *s, const struct hzp_subset *of, int byte,
                          int32_t rule);
/* Ends the set; returns its number, -1: it is not kept yet.  Then keep gives it the next one. */
int32_t hzp_subsets_find(struct hzp_subsets *s);
int32_t hzp_subsets_keep(struct hzp_subsets *s);

enum { HZP_SPECIAL_KEY_BYTES = 4 };

/* The key of a special token: 0xFF and three bytes. */
static inline void hzp_special_key(int32_t token, char ret[HZP_SPECIAL_KEY_BYTES])
{
    ret[0] = (char)0xFF;
    for (int i = 1; i < HZP_SPECIAL_KEY_BYTES; i++)
        ret[i] = (char)(token >> 8 * (3 - i) & 0xFF);
}

/* ---- codes.c: sets of code points, and how a front end spells them in the text.
 *
 * Thread: one per set. */

enum { HZP_CODES_MAX = 512 /* ranges */, HZP_CODE_LAST = 0x10FFFF };

struct hzp_code_range {
    uint32_t lo, hi; /* both included */
};

struct hzp_codes {
    struct hzp_code_range range[HZP_CODES_MAX]; /* in any order until sorted */
    int32_t count;
    bool full; /* a range was dropped */
};

enum hzp_spelling {
    HZP_SPELL_PLAIN, /* UTF-8 */
    /* inside a JSON string, in one way only: quotes, backslashes and control characters escaped
     * (the shortest way), all others as UTF-8 */
    HZP_SPELL_JSON,
};

/* Adds lo .. hi; a range too many sets `full`. */
void hzp_codes_add(struct hzp_codes *set, uint32_t lo, uint32_t hi);
/* Everything that was not in it. */
void hzp_codes_invert(struct hzp_codes *set);

/* Edges that take one code point of the set. */
void hzp_codes_edges(struct hzp_rules *rules, int32_t from, struct hzp_codes *set,
                     enum hzp_spelling spelling, int32_t to);

/* Reads a code point of valid UTF-8 at text[*at]; goes on to the next.  UINT32_MAX: the bytes are
 * not UTF-8. */
uint32_t hzp_code_read(const char *text, size_t bytes, size_t *at);

/* The value of n hexadecimal digits at text[at]; UINT32_MAX: they are none. */
uint32_t hzp_code_hex(const char *text, size_t bytes, size_t at, int n);

/* ---- gbnf.c: grammars in GBNF, llama.cpp's notation, as rules.
 *
 *     name ::= alternative | alternative      # a comment
 *
 * An alternative is a sequence of "literals", [classes], [^classes], . (any code point), names, and
 * (groups), each perhaps followed by * + ? {m} {m,} {m,n}.  Escapes in literals and classes: \n \r
 * \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH.  A rule goes over several lines inside of a group or
 * behind a |.  The text is what rule "root" takes.
 *
 * Thread: any. */

enum { HZP_GBNF_BYTES_MAX = 1 << 18, HZP_GBNF_DEPTH_MAX = 200 };

/* Adds the grammar's rules; *ret: that of "root".  HZP_EINVAL: reterr names line or rule. */
int hzp_gbnf_rules(struct hzp_rules *rules, const char *text, size_t bytes, int32_t *ret,
                   struct hzp_err_text *reterr);
