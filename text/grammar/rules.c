/* SPDX-License-Identifier: Apache-2.0 */
#include "text/grammar/rules.h"

#include "base/hash.h"
#include "base/utf8.h"

struct hzp_rules *hzp_rules_create(void)
{
    return hzp_xcalloc(1, sizeof(struct hzp_rules));
}

void hzp_rules_destroy(struct hzp_rules *rules)
{
    if (!rules)
        return;
    free(rules->rule);
    free(rules->node);
    free(rules->edge);
    for (int32_t i = 0; i < rules->shares; i++)
        free(rules->share[i].key);
    free(rules->share);
    free(rules);
}

/* Room for one more element, or false at the bound. */
static bool grow(struct hzp_rules *rules, void *array, int32_t count, int32_t *room, int32_t most,
                 size_t size)
{
    void *old;
    if (count >= most) {
        rules->full = true;
        return false;
    }
    if (count < *room)
        return true;
    *room = HZP_MIN(HZP_MAX(2 * *room, 64), most);
    memcpy(&old, array, sizeof(old));
    old = hzp_xrealloc(old, (size_t)*room * size);
    memcpy(array, &old, sizeof(old));
    return true;
}

int32_t hzp_rules_node(struct hzp_rules *rules)
{
    if (!grow(rules, &rules->node, rules->nodes, &rules->nodes_room, HZP_RULES_NODES_MAX,
              sizeof(*rules->node)))
        return 0;
    rules->node[rules->nodes] = -1;
    return rules->nodes++;
}

int32_t hzp_rules_add(struct hzp_rules *rules, const char *name, size_t bytes)
{
    if (!grow(rules, &rules->rule, rules->rules, &rules->rules_room, HZP_RULES_MAX,
              sizeof(*rules->rule)))
        return 0;
    struct hzp_rule *rule = &rules->rule[rules->rules];
    size_t kept = HZP_MIN(bytes, sizeof(rule->name) - 1);
    memset(rule, 0, sizeof(*rule));
    memcpy(rule->name, name, kept);
    int32_t first = hzp_rules_node(rules), last = hzp_rules_node(rules);
    rule->first = first;
    rule->last = last;
    return rules->rules++;
}

int32_t hzp_rules_shared(const struct hzp_rules *rules, const char *key)
{
    uint64_t hash = hzp_fnv(HZP_FNV, key, strlen(key));
    for (int32_t i = 0; i < rules->shares; i++)
        if (rules->share[i].hash == hash && !strcmp(rules->share[i].key, key))
            return rules->share[i].rule;
    return -1;
}

void hzp_rules_share(struct hzp_rules *rules, const char *key, int32_t rule)
{
    rules->share = hzp_xrealloc(rules->share, (size_t)(rules->shares + 1) * sizeof(*rules->share));
    rules->share[rules->shares].key = hzp_xstrdup(key);
    rules->share[rules->shares].hash = hzp_fnv(HZP_FNV, key, strlen(key));
    rules->share[rules->shares++].rule = rule;
}

struct hzp_rules_point hzp_rules_here(const struct hzp_rules *rules)
{
    return (struct hzp_rules_point){rules->rules, rules->nodes, rules->edges, rules->shares};
}

void hzp_rules_return(struct hzp_rules *rules, struct hzp_rules_point point)
{
    for (int32_t n = 0; n < point.nodes; n++)
        while (rules->node[n] >= point.edges) /* a node has its newest edge first */
            rules->node[n] = rules->edge[rules->node[n]].next;
    while (rules->shares > point.shares)
        free(rules->share[--rules->shares].key);
    rules->rules = point.rules;
    rules->nodes = point.nodes;
    rules->edges = point.edges;
    rules->full = false;
}

static void add_edge(struct hzp_rules *rules, int32_t from, struct hzp_edge edge)
{
    if (!grow(rules, &rules->edge, rules->edges, &rules->edges_room, HZP_RULES_EDGES_MAX,
              sizeof(*rules->edge)))
        return;
    edge.next = rules->node[from];
    rules->edge[rules->edges] = edge;
    rules->node[from] = rules->edges++;
}

void hzp_rules_bytes(struct hzp_rules *rules, int32_t from, uint8_t lo, uint8_t hi, int32_t to)
{
    if (lo <= hi)
        add_edge(rules, from,
                 (struct hzp_edge){.kind = HZP_EDGE_BYTES, .lo = lo, .hi = hi, .to = to});
}

void hzp_rules_empty(struct hzp_rules *rules, int32_t from, int32_t to)
{
    add_edge(rules, from, (struct hzp_edge){.kind = HZP_EDGE_EMPTY, .to = to});
}

void hzp_rules_call(struct hzp_rules *rules, int32_t from, int32_t rule, int32_t to)
{
    add_edge(rules, from, (struct hzp_edge){.kind = HZP_EDGE_CALL, .rule = rule, .to = to});
}

/* ---- UTF-8 ---- */

/* Encoded ranges of equal length: bytes [at, n) of lo and hi. */
static void add_range(struct hzp_rules *rules, int32_t from, const uint8_t *lo, const uint8_t *hi,
                      int n, int32_t to)
{
    static const uint8_t least[3] = {0x80, 0x80, 0x80}, most[3] = {0xBF, 0xBF, 0xBF};
    if (n == 1) {
        hzp_rules_bytes(rules, from, lo[0], hi[0], to);
        return;
    }
    if (lo[0] == hi[0]) {
        int32_t node = hzp_rules_node(rules);
        hzp_rules_bytes(rules, from, lo[0], lo[0], node);
        add_range(rules, node, lo + 1, hi + 1, n - 1, to);
        return;
    }
    uint8_t first = lo[0], last = hi[0];
    size_t rest = (size_t)(n - 1);
    if (memcmp(lo + 1, least, rest)) {
        int32_t node = hzp_rules_node(rules);
        hzp_rules_bytes(rules, from, first, first, node);
        add_range(rules, node, lo + 1, most, n - 1, to);
        first++;
    }
    if (memcmp(hi + 1, most, rest)) {
        int32_t node = hzp_rules_node(rules);
        hzp_rules_bytes(rules, from, last, last, node);
        add_range(rules, node, least, hi + 1, n - 1, to);
        last--;
    }
    if (first <= last) {
        int32_t node = hzp_rules_node(rules);
        hzp_rules_bytes(rules, from, first, last, node);
        add_range(rules, node, least, most, n - 1, to);
    }
}

void hzp_rules_codes(struct hzp_rules *rules, int32_t from, uint32_t lo, uint32_t hi, int32_t to)
{
    static const uint32_t end[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF, 0x10FFFF};
    for (int i = 0; i < HZP_COUNT(end) && lo <= hi; i++) {
        if (lo > end[i])
            continue;
        uint32_t last = HZP_MIN(hi, end[i]);
        char a[4], b[4];
        int n = hzp_utf8_put(a, lo);
        hzp_utf8_put(b, last);
        if (end[i] != 0xDFFF) /* surrogates */
            add_range(rules, from, (uint8_t *)a, (uint8_t *)b, n, to);
        lo = end[i] + 1;
    }
}

/* ---- composed ---- */

int32_t hzp_rules_text(struct hzp_rules *rules, int32_t from, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        int32_t node = hzp_rules_node(rules);
        hzp_rules_bytes(rules, from, (uint8_t)text[i], (uint8_t)text[i], node);
        from = node;
    }
    return from;
}

void hzp_rules_special(struct hzp_rules *rules, int32_t from, int32_t token, int32_t to)
{
    char key[HZP_SPECIAL_KEY_BYTES];
    hzp_special_key(token, key);
    hzp_rules_empty(rules, hzp_rules_text(rules, from, key, sizeof(key)), to);
}

int32_t hzp_rules_then(struct hzp_rules *rules, int32_t from, int32_t rule)
{
    int32_t node = hzp_rules_node(rules);
    hzp_rules_call(rules, from, rule, node);
    return node;
}

/* Copies the nodes [first, last) and their edges; nodes outside of these are shared.  Returns what
 * is added to a node's number. */
static int32_t copy_nodes(struct hzp_rules *rules, int32_t first, int32_t last)
{
    int32_t shift = rules->nodes - first;
    for (int32_t n = first; n < last; n++)
        hzp_rules_node(rules);
    for (int32_t n = first; n < last && !rules->full; n++)
        for (int32_t e = rules->node[n]; e >= 0; e = rules->edge[e].next) {
            struct hzp_edge edge = rules->edge[e];
            if (edge.to >= first && edge.to < last)
                edge.to += shift;
            add_edge(rules, n + shift, edge);
        }
    return shift;
}

int32_t hzp_rules_repeat(struct hzp_rules *rules, int32_t from, struct hzp_part_of part,
                         int32_t least, int32_t most)
{
    int32_t first = part.from, last = rules->nodes, to = hzp_rules_node(rules);
    int32_t at = hzp_rules_node(rules), copies = most < 0 ? least : most;
    hzp_rules_empty(rules, from, at);
    if (most < 0 && !least) {
        hzp_rules_empty(rules, at, part.from);
        hzp_rules_empty(rules, part.to, at);
    }
    for (int32_t i = 0; i < copies && !rules->full; i++) {
        /* the original is the last copy, so that what is copied has no new edges */
        int32_t shift = i + 1 < copies ? copy_nodes(rules, first, last) : 0;
        if (rules->full) /* there are no such nodes */
            break;
        int32_t end = hzp_rules_node(rules);
        hzp_rules_empty(rules, at, part.from + shift);
        hzp_rules_empty(rules, part.to + shift, end);
        if (i >= least)
            hzp_rules_empty(rules, at, to);
        if (most < 0 && i + 1 == copies)
            hzp_rules_empty(rules, end, at);
        at = end;
    }
    hzp_rules_empty(rules, at, to);
    return to;
}

/* ---- sets of nodes ---- */

void hzp_subsets_clear(struct hzp_subsets *s)
{
    s->used = s->subsets = 0;
    memset(s->chain, 0xFF, sizeof(s->chain));
}

void hzp_subsets_init(struct hzp_subsets *s, const struct hzp_rules *rules)
{
    *s = (struct hzp_subsets){.rules = rules};
    s->mark = hzp_xcalloc((size_t)rules->nodes + 1, sizeof(*s->mark));
    s->set = hzp_xcalloc((size_t)rules->nodes + 1, sizeof(*s->set));
    hzp_subsets_clear(s);
}

void hzp_subsets_fini(struct hzp_subsets *s)
{
    free(s->mark);
    free(s->set);
    free(s->subset);
    free(s->pool);
}

static void add_node(struct hzp_subsets *s, int32_t node)
{
    if (s->mark[node] == s->stamp)
        return;
    s->mark[node] = s->stamp;
    s->set[s->count++] = node;
}

void hzp_subsets_begin(struct hzp_subsets *s, int32_t node)
{
    s->stamp++;
    s->count = 0;
    add_node(s, node);
}

int32_t hzp_subsets_after(struct hzp_subsets *s, const struct hzp_subset *of, int byte,
                          int32_t rule)
{
    int32_t looked = 0;
    s->stamp++;
    s->count = 0;
    for (int32_t i = 0; i < of->count; i++)
        for (int32_t e = s->rules->node[s->pool[of->at + i]]; e >= 0; e = s->rules->edge[e].next) {
            const struct hzp_edge *edge = &s->rules->edge[e];
            looked++;
            if (rule >= 0 ? edge->kind == HZP_EDGE_CALL && edge->rule == rule
                          : edge->kind == HZP_EDGE_BYTES && edge->lo <= byte && byte <= edge->hi)
                add_node(s, edge->to);
        }
    return looked;
}

static int by_number(const void *pa, const void *pb)
{
    const int32_t *a = pa, *b = pb;
    return (*a > *b) - (*a < *b);
}

int32_t hzp_subsets_find(struct hzp_subsets *s)
{
    uint32_t hash = 2166136261u;
    for (int32_t i = 0; i < s->count; i++)
        for (int32_t e = s->rules->node[s->set[i]]; e >= 0; e = s->rules->edge[e].next)
            if (s->rules->edge[e].kind == HZP_EDGE_EMPTY)
                add_node(s, s->rules->edge[e].to);
    qsort(s->set, (size_t)s->count, sizeof(*s->set), by_number);
    for (int32_t i = 0; i < s->count; i++)
        hash = (hash ^ (uint32_t)s->set[i]) * 16777619u;
    s->last = &s->chain[(hash ^ hash >> 15) % HZP_SUBSET_CHAINS];
    int32_t n = *s->last;
    while (n >= 0 && (s->subset[n].count != s->count || memcmp(s->pool + s->subset[n].at, s->set,
                                                               (size_t)s->count * sizeof(*s->set))))
        n = s->subset[n].chain;
    return n;
}

int32_t hzp_subsets_keep(struct hzp_subsets *s)
{
    s->subset = hzp_xgrow(s->subset, &s->subsets_room, s->subsets + 1, sizeof(*s->subset));
    s->pool = hzp_xgrow(s->pool, &s->pool_room, s->used + s->count, sizeof(*s->pool));
    memcpy(s->pool + s->used, s->set, (size_t)s->count * sizeof(*s->set));
    s->subset[s->subsets] = (struct hzp_subset){s->used, s->count, *s->last};
    s->used += s->count;
    return *s->last = s->subsets++;
}
