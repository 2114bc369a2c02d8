/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/trie.h - the byte strings of tokens as a tree, in the order of a depth-first walk.
 *
 * A node stands for the bytes from the root to it.  The nodes of a subtree lie behind its root, up
 * to `end`, so that a walk goes forward and skips a subtree by a jump.  The root is not stored.
 *
 * Invariant: never changes once made.
 * Thread: any.
 */
#pragma once

#include "base/base.h"

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
