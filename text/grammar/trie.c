/* SPDX-License-Identifier: Apache-2.0 */
#include "text/grammar/automaton.h"

static int by_bytes(const void *pa, const void *pb)
{
    const struct hzp_trie_entry *a = pa, *b = pb;
    int32_t n = HZP_MIN(a->size, b->size);
    int order = n ? memcmp(a->bytes, b->bytes, (size_t)n) : 0;
    if (order)
        return order;
    if (a->size != b->size)
        return a->size < b->size ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

static int32_t common(const struct hzp_trie_entry *a, const struct hzp_trie_entry *b)
{
    int32_t n = HZP_MIN(a->size, b->size), i = 0;
    while (i < n && a->bytes[i] == b->bytes[i])
        i++;
    return i;
}

/* Appends the nodes of the sorted entries; open: the path to the newest node. */
static void add_nodes(const struct hzp_trie_entry *entry, int32_t count, struct hzp_trie *ret)
{
    static const struct hzp_trie_entry none = {.bytes = ""};
    int32_t open[HZP_TRIE_DEPTH_MAX + 1], depth = 0;
    const struct hzp_trie_entry *before = &none;
    for (int32_t i = 0; i < count; i++) {
        const struct hzp_trie_entry *now = &entry[i];
        int32_t shared = common(before, now);
        if (shared == now->size && i > 0) { /* the same bytes again */
            ret->token[i - 1] = ~ret->token[i - 1];
            ret->token[i] = now->token;
            continue;
        }
        for (; depth > shared; depth--)
            ret->node[open[depth]].end = ret->nodes;
        while (depth < now->size) {
            struct hzp_trie_node *node = &ret->node[ret->nodes];
            node->byte = (uint8_t)now->bytes[depth];
            node->depth = (uint16_t)++depth;
            node->token = -1;
            open[depth] = ret->nodes++;
        }
        ret->node[ret->nodes - 1].token = i;
        ret->token[i] = now->token;
        ret->depth = HZP_MAX(ret->depth, depth);
        before = now;
    }
    for (; depth > 0; depth--)
        ret->node[open[depth]].end = ret->nodes;
}

void hzp_trie_make(struct hzp_trie_entry *entry, int32_t count, struct hzp_trie *ret)
{
    int32_t kept = 0, nodes = 0;
    memset(ret, 0, sizeof(*ret));
    for (int32_t i = 0; i < count; i++)
        if (entry[i].size > 0 && entry[i].size <= HZP_TRIE_DEPTH_MAX)
            entry[kept++] = entry[i];
    if (kept)
        qsort(entry, (size_t)kept, sizeof(*entry), by_bytes);
    for (int32_t i = 0; i < kept; i++)
        nodes += entry[i].size - (i ? common(&entry[i - 1], &entry[i]) : 0);
    ret->node = hzp_xcalloc((size_t)nodes + 1, sizeof(*ret->node));
    ret->token = hzp_xcalloc((size_t)kept + 1, sizeof(*ret->token));
    add_nodes(entry, kept, ret);
}

void hzp_trie_fini(struct hzp_trie *trie)
{
    free(trie->node);
    free(trie->token);
    memset(trie, 0, sizeof(*trie));
}

size_t hzp_trie_bytes(const struct hzp_trie *trie)
{
    return (size_t)trie->nodes * (sizeof(*trie->node) + sizeof(*trie->token));
}
