/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/determinize.c - rules as graphs become deterministic automata: the subset
 * construction, rule by rule, with calls as symbols beside the bytes. */
#include "text/grammar/automaton.h"

/* A subset of a rule's nodes, and the state that stands for it. */
struct subset {
    int32_t at, count; /* range of the pool, sorted */
    int32_t state;
    int32_t chain; /* the next subset of its chain, -1: none */
};

struct job {
    struct hzp_grammar *g;
    const struct hzp_rules *rules;
    int32_t *mark; /* [nodes] stamp of the set being made */
    int32_t stamp;
    int32_t *set; /* [nodes] the set being made */
    int32_t count;
    struct subset *subset;
    int32_t subsets, subsets_room;
    int32_t *pool;
    int32_t used, pool_room;
    int32_t *chain; /* [CHAINS] */
    bool *wanted;   /* [rules] called from a state */
    bool full;
};

enum { CHAINS = 1 << 12, POOL_MAX = 1 << 24 };

/* Bytes that no edge tells apart are one class. */
static void classes_make(struct hzp_grammar *g, const struct hzp_rules *rules)
{
    bool begins[257] = {true};
    int32_t class = -1;
    for (int32_t i = 0; i < rules->edges; i++)
        if (rules->edge[i].kind == HZP_EDGE_BYTES)
            begins[rules->edge[i].lo] = begins[rules->edge[i].hi + 1] = true;
    for (int b = 0; b < 256; b++) {
        class += begins[b];
        g->class_of[b] = (uint8_t) class;
    }
    g->classes = class + 1;
}

static void set_begin(struct job *j)
{
    j->stamp++;
    j->count = 0;
}

static void set_add(struct job *j, int32_t node)
{
    if (j->mark[node] == j->stamp)
        return;
    j->mark[node] = j->stamp;
    j->set[j->count++] = node;
}

static int by_number(const void *pa, const void *pb)
{
    const int32_t *a = pa, *b = pb;
    return (*a > *b) - (*a < *b);
}

/* Adds what is reached by nothing, and sorts. */
static void set_close(struct job *j)
{
    for (int32_t i = 0; i < j->count; i++)
        for (int32_t e = j->rules->node[j->set[i]]; e >= 0; e = j->rules->edge[e].next)
            if (j->rules->edge[e].kind == HZP_EDGE_EMPTY)
                set_add(j, j->rules->edge[e].to);
    qsort(j->set, (size_t)j->count, sizeof(*j->set), by_number);
    j->g->work += j->count;
    j->full |= hzp_grammar_over(j->g);
}

static int32_t new_state(struct job *j, int32_t rule)
{
    struct hzp_grammar *g = j->g;
    if (g->states == HZP_GRAMMAR_STATES_MAX ||
        (int64_t)(g->states + 1) * g->classes > HZP_GRAMMAR_TABLE_MAX) {
        j->full = true;
        return 0;
    }
    if (g->states == g->states_room) {
        g->states_room = HZP_MAX(2 * g->states_room, 64);
        g->state = hzp_xrealloc(g->state, (size_t)g->states_room * sizeof(*g->state));
        g->next =
            hzp_xrealloc(g->next, (size_t)g->states_room * (size_t)g->classes * sizeof(*g->next));
    }
    g->state[g->states] = (struct hzp_grammar_state){.rule = rule, .mask = {-1, -1}};
    for (int32_t c = 0; c < g->classes; c++)
        g->next[g->states * g->classes + c] = -1;
    return g->states++;
}

/* The state of the set being made; a new one, to be worked on, if it is new. */
static int32_t state_of(struct job *j, int32_t rule)
{
    uint32_t hash = 2166136261u;
    set_close(j);
    for (int32_t i = 0; i < j->count; i++)
        hash = (hash ^ (uint32_t)j->set[i]) * 16777619u;
    int32_t *chain = &j->chain[(hash ^ hash >> 15) % CHAINS];
    for (int32_t s = *chain; s >= 0; s = j->subset[s].chain)
        if (j->subset[s].count == j->count &&
            !memcmp(j->pool + j->subset[s].at, j->set, (size_t)j->count * sizeof(*j->set)))
            return j->subset[s].state;
    if (j->used + j->count > POOL_MAX) {
        j->full = true;
        return 0;
    }
    j->subset = hzp_xgrow(j->subset, &j->subsets_room, j->subsets + 1, sizeof(*j->subset));
    j->pool = hzp_xgrow(j->pool, &j->pool_room, j->used + j->count, sizeof(*j->pool));
    memcpy(j->pool + j->used, j->set, (size_t)j->count * sizeof(*j->set));
    j->subset[j->subsets] = (struct subset){.at = j->used, .count = j->count, .chain = *chain};
    j->used += j->count;
    *chain = j->subsets++;
    int32_t state = new_state(j, rule);
    j->subset[*chain].state = state;
    return state;
}

/* The edges of the subset that take a byte of a class, or call a rule. */
static void set_after(struct job *j, const struct subset *s, int byte, int32_t rule)
{
    set_begin(j);
    for (int32_t i = 0; i < s->count; i++)
        for (int32_t e = j->rules->node[j->pool[s->at + i]]; e >= 0; e = j->rules->edge[e].next) {
            const struct hzp_edge *edge = &j->rules->edge[e];
            j->g->work++;
            if (rule >= 0 ? edge->kind == HZP_EDGE_CALL && edge->rule == rule
                          : edge->kind == HZP_EDGE_BYTES && edge->lo <= byte && byte <= edge->hi)
                set_add(j, edge->to);
        }
}

static void add_call(struct job *j, int32_t state, int32_t rule, int32_t to)
{
    struct hzp_grammar *g = j->g;
    g->call = hzp_xgrow(g->call, &g->calls_room, g->calls + 1, sizeof(*g->call));
    g->call[g->calls++] = (struct hzp_call){.rule = rule, .to = to};
    g->state[state].calls++;
    j->wanted[rule] = true;
}

/* The classes that some edge of the subset takes. */
static void classes_of(const struct job *j, const struct subset *s, bool used[256])
{
    memset(used, 0, 256 * sizeof(*used));
    for (int32_t i = 0; i < s->count; i++)
        for (int32_t e = j->rules->node[j->pool[s->at + i]]; e >= 0; e = j->rules->edge[e].next) {
            const struct hzp_edge *edge = &j->rules->edge[e];
            if (edge->kind == HZP_EDGE_BYTES)
                memset(used + j->g->class_of[edge->lo], 1,
                       (size_t)(j->g->class_of[edge->hi] - j->g->class_of[edge->lo] + 1) *
                           sizeof(*used));
        }
}

static void make_edges(struct job *j, int32_t at, const uint8_t first_byte[256])
{
    struct hzp_grammar *g = j->g;
    struct subset s = j->subset[at];
    int32_t rule = g->state[s.state].rule;
    bool used[256];
    classes_of(j, &s, used);
    for (int32_t c = 0; c < g->classes && !j->full; c++) {
        if (!used[c])
            continue;
        set_after(j, &s, first_byte[c], -1);
        int32_t to = state_of(j, rule);
        g->next[s.state * g->classes + c] = to;
    }
    g->state[s.state].call0 = g->calls;
    for (int32_t i = 0; i < s.count && !j->full; i++)
        for (int32_t e = j->rules->node[j->pool[s.at + i]]; e >= 0 && !j->full;
             e = j->rules->edge[e].next) {
            const struct hzp_edge *edge = &j->rules->edge[e];
            bool known = false;
            for (int32_t k = g->state[s.state].call0; k < g->calls; k++)
                known |= g->call[k].rule == edge->rule;
            if (edge->kind != HZP_EDGE_CALL || known)
                continue;
            set_after(j, &s, 0, edge->rule);
            add_call(j, s.state, edge->rule, state_of(j, rule));
        }
    for (int32_t i = 0; i < s.count; i++)
        g->state[s.state].final |= j->pool[s.at + i] == j->rules->rule[rule].last;
}

static void determinize_rule(struct job *j, int32_t rule, const uint8_t first_byte[256])
{
    j->used = j->subsets = 0;
    memset(j->chain, 0xFF, CHAINS * sizeof(*j->chain));
    set_begin(j);
    set_add(j, j->rules->rule[rule].first);
    j->g->rule[rule].first = state_of(j, rule);
    for (int32_t at = 0; at < j->subsets && !j->full; at++)
        make_edges(j, at, first_byte);
}

int hzp_grammar_determinize(struct hzp_grammar *g, const struct hzp_rules *rules,
                            struct hzp_err_text *reterr)
{
    uint8_t first_byte[256] = {0};
    if (rules->full)
        return hzp_fail(reterr, HZP_EINVAL,
                        "the grammar is too large: more than %d nodes, %d edges or %d rules",
                        HZP_RULES_NODES_MAX, HZP_RULES_EDGES_MAX, HZP_RULES_MAX);
    classes_make(g, rules);
    for (int b = 255; b >= 0; b--)
        first_byte[g->class_of[b]] = (uint8_t)b;
    struct job j = {.g = g, .rules = rules};
    j.mark = hzp_xcalloc((size_t)rules->nodes, sizeof(*j.mark));
    j.set = hzp_xcalloc((size_t)rules->nodes, sizeof(*j.set));
    j.chain = hzp_xcalloc(CHAINS, sizeof(*j.chain));
    j.wanted = hzp_xcalloc((size_t)rules->rules, sizeof(*j.wanted));
    g->rule = hzp_xcalloc((size_t)rules->rules, sizeof(*g->rule));
    g->rules = rules->rules;
    for (int32_t r = 0; r < rules->rules; r++)
        g->rule[r].first = -1;
    j.wanted[g->root] = true;
    for (bool more = true; more && !j.full;) {
        more = false;
        for (int32_t r = 0; r < rules->rules && !j.full; r++)
            if (j.wanted[r] && g->rule[r].first < 0) {
                determinize_rule(&j, r, first_byte);
                more = true;
            }
    }
    free(j.mark);
    free(j.set);
    free(j.chain);
    free(j.wanted);
    free(j.subset);
    free(j.pool);
    if (j.full)
        return hzp_fail(reterr, HZP_EINVAL,
                        "the grammar is too large: its automaton has more than %d states, or needs "
                        "more than %d steps",
                        HZP_MIN(HZP_GRAMMAR_STATES_MAX, HZP_GRAMMAR_TABLE_MAX / g->classes),
                        HZP_GRAMMAR_WORK_MAX);
    return HZP_OK;
}
