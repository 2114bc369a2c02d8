/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/analyze.c - removes the edges that lead to no end, refuses rules that call
 * themselves before they take a byte, and finds the bytes that may come behind each rule. */
#include "text/grammar/automaton.h"

static int32_t *next_of(const struct hzp_grammar *g, int32_t state)
{
    return g->next + state * g->classes;
}

/* Another pass over all states; false: the grammar has used up its steps. */
static bool pass(struct hzp_grammar *g, int64_t each)
{
    g->work += each * g->states + g->calls;
    return !hzp_grammar_over(g);
}

/* ---- what leads nowhere ---- */

/* Whether the state, by what is known so far, can come to its rule's end. */
static bool leads(const struct hzp_grammar *g, const bool *good, int32_t s)
{
    const struct hzp_grammar_state *state = &g->state[s];
    if (state->final)
        return true;
    for (int32_t c = 0; c < g->classes; c++) {
        int32_t to = next_of(g, s)[c];
        if (to >= 0 && good[to])
            return true;
    }
    for (int32_t i = 0; i < state->calls; i++) {
        const struct hzp_call *call = &g->call[state->call0 + i];
        if (good[call->to] && good[g->rule[call->rule].first])
            return true;
    }
    return false;
}

static void remove_dead(struct hzp_grammar *g)
{
    HZP_FREED bool *good = hzp_xcalloc((size_t)g->states, sizeof(*good));
    for (bool more = true; more && pass(g, g->classes);) {
        more = false;
        for (int32_t s = g->states - 1; s >= 0; s--)
            if (!good[s] && leads(g, good, s))
                more = good[s] = true;
    }
    for (int32_t s = 0; s < g->states; s++) {
        struct hzp_grammar_state *state = &g->state[s];
        int32_t kept = 0;
        for (int32_t c = 0; c < g->classes; c++) {
            int32_t *to = &next_of(g, s)[c];
            if (!good[s] || (*to >= 0 && !good[*to]))
                *to = -1;
        }
        for (int32_t i = 0; i < state->calls; i++) {
            struct hzp_call call = g->call[state->call0 + i];
            if (good[s] && good[call.to] && good[g->rule[call.rule].first])
                g->call[state->call0 + kept++] = call;
        }
        state->calls = kept;
    }
}

static bool takes_bytes(const struct hzp_grammar *g, int32_t s)
{
    for (int32_t c = 0; c < g->classes; c++)
        if (next_of(g, s)[c] >= 0)
            return true;
    return false;
}

static void mark_tails(struct hzp_grammar *g)
{
    for (int32_t i = 0; i < g->calls; i++) {
        const struct hzp_grammar_state *to = &g->state[g->call[i].to];
        g->call[i].tail = to->final && !to->calls && !takes_bytes(g, g->call[i].to);
    }
}

/* ---- rules that may take nothing, and left recursion ---- */

static void find_ends(struct hzp_grammar *g)
{
    for (int32_t s = 0; s < g->states; s++)
        g->state[s].can_end = g->state[s].final;
    for (bool more = true; more && pass(g, 1);) {
        more = false;
        for (int32_t s = g->states - 1; s >= 0; s--) {
            struct hzp_grammar_state *state = &g->state[s];
            for (int32_t i = 0; i < state->calls && !state->can_end; i++) {
                const struct hzp_call *call = &g->call[state->call0 + i];
                if (g->state[g->rule[call->rule].first].can_end && g->state[call->to].can_end)
                    more = state->can_end = true;
            }
        }
    }
}

/* Marks what the state comes to without a byte: 1 while it is being looked at, 2 afterwards.
 * Returns a rule that calls itself so, or -1. */
static int32_t look_left(const struct hzp_grammar *g, uint8_t *seen, int32_t s, int depth)
{
    const struct hzp_grammar_state *state = &g->state[s];
    if (seen[s] == 2)
        return -1;
    if (seen[s] == 1 || depth > HZP_STACK_MAX)
        return state->rule;
    seen[s] = 1;
    for (int32_t i = 0; i < state->calls; i++) {
        const struct hzp_call *call = &g->call[state->call0 + i];
        int32_t first = g->rule[call->rule].first, found = look_left(g, seen, first, depth + 1);
        /* A loop of calls that take nothing is none of the stack. */
        if (found < 0 && g->state[first].can_end && seen[call->to] != 1)
            found = look_left(g, seen, call->to, depth + 1);
        if (found >= 0)
            return found;
    }
    seen[s] = 2;
    return -1;
}

static int check_left(const struct hzp_grammar *g, const struct hzp_rules *rules,
                      struct hzp_err_text *reterr)
{
    HZP_FREED uint8_t *seen = hzp_xcalloc((size_t)g->states, sizeof(*seen));
    int32_t found = -1;
    for (int32_t r = 0; r < g->rules && found < 0; r++)
        if (g->rule[r].first >= 0)
            found = look_left(g, seen, g->rule[r].first, 0);
    if (found >= 0)
        return hzp_fail(reterr, HZP_EINVAL,
                        "rule \"%s\" calls itself before it takes a byte (left recursion)",
                        rules->rule[found].name);
    return HZP_OK;
}

/* ---- what may come behind a rule ---- */

static bool unite(struct hzp_byte_set *to, const struct hzp_byte_set *from)
{
    bool new = false;
    for (int i = 0; i < 4; i++) {
        uint64_t all = to->word[i] | from->word[i];
        new |= all != to->word[i];
        to->word[i] = all;
    }
    return new;
}

/* The bytes that a state may take first, by what is known so far. */
static bool find_first(const struct hzp_grammar *g, struct hzp_byte_set *first, int32_t s)
{
    const struct hzp_grammar_state *state = &g->state[s];
    bool new = false;
    for (int32_t i = 0; i < state->calls; i++) {
        const struct hzp_call *call = &g->call[state->call0 + i];
        int32_t begin = g->rule[call->rule].first;
        new |= unite(&first[s], &first[begin]);
        if (g->state[begin].can_end)
            new |= unite(&first[s], &first[call->to]);
    }
    return new;
}

static void find_after(struct hzp_grammar *g)
{
    HZP_FREED struct hzp_byte_set *first = hzp_xcalloc((size_t)g->states, sizeof(*first));
    for (int32_t s = 0; s < g->states; s++)
        for (int b = 0; b < 256; b++)
            if (next_of(g, s)[g->class_of[b]] >= 0)
                first[s].word[b / 64] |= (uint64_t)1 << b % 64;
    for (bool more = true; more && pass(g, 4);) {
        more = false;
        for (int32_t s = g->states - 1; s >= 0; s--)
            more |= find_first(g, first, s);
    }
    for (bool more = true; more && pass(g, 4);) {
        more = false;
        for (int32_t s = 0; s < g->states; s++)
            for (int32_t i = 0; i < g->state[s].calls; i++) {
                const struct hzp_call *call = &g->call[g->state[s].call0 + i];
                struct hzp_byte_set *after = &g->rule[call->rule].after;
                more |= unite(after, &first[call->to]);
                if (g->state[call->to].can_end)
                    more |= unite(after, &g->rule[g->state[s].rule].after);
            }
    }
}

static int too_large(struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EINVAL,
                    "the grammar is too large: to analyze it needs more than %d steps",
                    HZP_GRAMMAR_WORK_MAX);
}

int hzp_grammar_analyze(struct hzp_grammar *g, const struct hzp_rules *rules,
                        struct hzp_err_text *reterr)
{
    remove_dead(g);
    if (hzp_grammar_over(g))
        return too_large(reterr);
    int32_t first = g->rule[g->root].first;
    if (!g->state[first].final && !g->state[first].calls && !takes_bytes(g, first))
        return hzp_fail(reterr, HZP_EINVAL, "no text satisfies the grammar");
    mark_tails(g);
    find_ends(g);
    HZP_TRY(check_left(g, rules, reterr));
    find_after(g);
    return hzp_grammar_over(g) ? too_large(reterr) : HZP_OK;
}
