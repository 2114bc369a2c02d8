/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/determinize.c - rules as graphs become deterministic automata: the subset
 * construction, rule by rule, with calls as symbols beside the bytes. */
#include "text/grammar/automaton.h"

struct job {
    struct hzp_grammar *g;
    const struct hzp_rules *rules;
    struct hzp_subsets sets; /* of one rule's nodes, and */
    int32_t *state;          /* [sets.subsets] the states that stand for them */
    int32_t room;
    bool *wanted; /* [rules] called from a state */
    bool full;
};

enum { POOL_MAX = 1 << 24 };

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
    int32_t n = hzp_subsets_find(&j->sets);
    j->g->work += j->sets.count;
    j->full |= hzp_grammar_over(j->g) || j->sets.used + j->sets.count > POOL_MAX;
    if (n < 0 && j->full)
        return 0;
    if (n < 0) {
        n = hzp_subsets_keep(&j->sets);
        j->state = hzp_xgrow(j->state, &j->room, n + 1, sizeof(*j->state));
        j->state[n] = new_state(j, rule);
    }
    return j->state[n];
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
static void classes_of(const struct job *j, const struct hzp_subset *s, bool used[256])
{
    memset(used, 0, 256 * sizeof(*used));
    for (int32_t i = 0; i < s->count; i++)
        for (int32_t e = j->rules->node[j->sets.pool[s->at + i]]; e >= 0;
             e = j->rules->edge[e].next) {
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
    struct hzp_subset s = j->sets.subset[at];
    int32_t state = j->state[at], rule = g->state[state].rule;
    bool used[256];
    classes_of(j, &s, used);
    for (int32_t c = 0; c < g->classes && !j->full; c++) {
        if (!used[c])
            continue;
        g->work += hzp_subsets_after(&j->sets, &s, first_byte[c], -1);
        int32_t to = state_of(j, rule);
        g->next[state * g->classes + c] = to;
    }
    g->state[state].call0 = g->calls;
    for (int32_t i = 0; i < s.count && !j->full; i++)
        for (int32_t e = j->rules->node[j->sets.pool[s.at + i]]; e >= 0 && !j->full;
             e = j->rules->edge[e].next) {
            const struct hzp_edge *edge = &j->rules->edge[e];
            bool known = false;
            for (int32_t k = g->state[state].call0; k < g->calls; k++)
                known |= g->call[k].rule == edge->rule;
            if (edge->kind != HZP_EDGE_CALL || known)
                continue;
            g->work += hzp_subsets_after(&j->sets, &s, 0, edge->rule);
            add_call(j, state, edge->rule, state_of(j, rule));
        }
    for (int32_t i = 0; i < s.count; i++)
        g->state[state].final |= j->sets.pool[s.at + i] == j->rules->rule[rule].last;
}

static void determinize_rule(struct job *j, int32_t rule, const uint8_t first_byte[256])
{
    hzp_subsets_clear(&j->sets);
    hzp_subsets_begin(&j->sets, j->rules->rule[rule].first);
    j->g->rule[rule].first = state_of(j, rule);
    for (int32_t at = 0; at < j->sets.subsets && !j->full; at++)
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
    hzp_subsets_init(&j.sets, rules);
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
    hzp_subsets_fini(&j.sets);
    free(j.wanted);
    free(j.state);
    if (j.full)
        return hzp_fail(reterr, HZP_EINVAL,
                        "the grammar is too large: its automaton has more than %d states, or needs "
                        "more than %d steps",
                        HZP_MIN(HZP_GRAMMAR_STATES_MAX, HZP_GRAMMAR_TABLE_MAX / g->classes),
                        HZP_GRAMMAR_WORK_MAX);
    return HZP_OK;
}
