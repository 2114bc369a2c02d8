/* SPDX-License-Identifier: Apache-2.0 */
#include "text/grammar/regular.h"

#include "text/grammar/effort.h"

struct state {
    int16_t next[256]; /* -1: none */
    bool final;
};

struct hzp_regular {
    struct state *state; /* the first begins */
    int32_t states, room;
};

/* Steps of the languages of one grammar. */
static bool spend(int64_t steps)
{
    return hzp_effort_spend(steps, HZP_REGULAR_TOTAL_MAX);
}

static int32_t add_state(struct hzp_regular *a)
{
    if (a->states == HZP_REGULAR_STATES_MAX)
        return -1;
    if (a->states == a->room) {
        int32_t room = HZP_MIN(HZP_MAX(2 * a->room, 16), HZP_REGULAR_STATES_MAX);
        if (!hzp_effort_take((room - a->room) * (int64_t)sizeof(*a->state)))
            return -1;
        a->room = room;
        a->state = hzp_xrealloc(a->state, (size_t)a->room * sizeof(*a->state));
    }
    memset(&a->state[a->states], 0xFF, sizeof(*a->state));
    a->state[a->states].final = false;
    return a->states++;
}

void hzp_regular_destroy(struct hzp_regular *a)
{
    if (!a)
        return;
    hzp_effort_give(a->room * (int64_t)sizeof(*a->state));
    free(a->state);
    free(a);
}

/* Marks the states from which a final one is reached, by the edges turned round.  *ret_whole false:
 * no steps are left. */
static bool *live_states(const struct hzp_regular *a, bool *ret_whole)
{
    size_t n = (size_t)a->states;
    bool *live = hzp_xcalloc(n + 1, sizeof(*live));
    *ret_whole = true;
    for (bool more = true; more && *ret_whole;) {
        more = false;
        *ret_whole = spend(16 * (int64_t)n);
        for (size_t s = n; s-- > 0;) {
            bool good = a->state[s].final;
            for (int b = 0; b < 256 && !good && !live[s]; b++)
                good = a->state[s].next[b] >= 0 && live[a->state[s].next[b]];
            if (good && !live[s])
                live[s] = more = true;
        }
    }
    return live;
}

/* Removes the states that lead to no end, so that an empty language has none at all.  NULL: no
 * steps are left. */
static struct hzp_regular *trim(struct hzp_regular *a)
{
    bool whole;
    HZP_FREED bool *live = live_states(a, &whole);
    if (!whole) {
        hzp_regular_destroy(a);
        return NULL;
    }
    HZP_FREED int16_t *new_of = hzp_xcalloc((size_t)a->states + 1, sizeof(*new_of));
    int32_t kept = 0;
    for (int32_t s = 0; s < a->states; s++)
        new_of[s] = (int16_t)(live[s] && live[0] ? kept++ : -1);
    for (int32_t s = 0; s < a->states; s++) {
        if (new_of[s] < 0)
            continue;
        struct state moved = a->state[s];
        for (int b = 0; b < 256; b++)
            if (moved.next[b] >= 0)
                moved.next[b] = new_of[moved.next[b]];
        a->state[new_of[s]] = moved;
    }
    a->states = kept;
    return a;
}

/* ---- from rules ---- */

enum { CHAINS = 1 << 10 };

/* A state has the number of its set of nodes. */
struct job {
    const struct hzp_rules *rules;
    struct hzp_regular *made;
    int32_t to;
    struct hzp_subsets sets;
    int64_t work, spent;
};

/* The state of the set being made, -1: too many. */
static int32_t state_of(struct job *j)
{
    struct hzp_subsets *s = &j->sets;
    int32_t found = hzp_subsets_find(s);
    j->work += 4 * s->count;
    if (found >= 0)
        return found;
    int32_t state = hzp_effort_take(s->count * (int64_t)sizeof(*s->pool)) ? add_state(j->made) : -1;
    if (state < 0)
        return -1;
    for (int32_t i = 0; i < s->count; i++)
        j->made->state[state].final |= s->set[i] == j->to;
    return hzp_subsets_keep(s);
}

/* Where the bytes that the set's edges tell apart begin. */
static void find_bounds(struct job *j, const struct hzp_subset *s, bool begins[257])
{
    memset(begins, 0, 257 * sizeof(*begins));
    for (int32_t i = 0; i < s->count; i++)
        for (int32_t e = j->rules->node[j->sets.pool[s->at + i]]; e >= 0;
             e = j->rules->edge[e].next) {
            const struct hzp_edge *edge = &j->rules->edge[e];
            HZP_ASSERT(edge->kind != HZP_EDGE_CALL);
            if (edge->kind == HZP_EDGE_BYTES)
                begins[edge->lo] = begins[edge->hi + 1] = true;
        }
}

static bool make_edges(struct job *j, int32_t state)
{
    struct hzp_subset s = j->sets.subset[state];
    bool begins[257];
    int32_t to = -1;
    find_bounds(j, &s, begins);
    for (int b = 0; b < 256; b++) {
        if (begins[b]) {
            j->work += hzp_subsets_after(&j->sets, &s, b, -1);
            bool any = j->sets.count > 0;
            to = any ? state_of(j) : -1;
            int64_t work = j->work - j->spent;
            j->spent = j->work;
            if ((to < 0 && any) || !spend(work) || j->work > HZP_REGULAR_WORK_MAX)
                return false;
        }
        j->made->state[state].next[b] = (int16_t)to;
    }
    return true;
}

struct hzp_regular *hzp_regular_create(const struct hzp_rules *rules, int32_t from, int32_t to)
{
    struct job j = {.rules = rules, .to = to};
    bool fits = !rules->full && spend(0);
    j.made = hzp_xcalloc(1, sizeof(*j.made));
    hzp_subsets_init(&j.sets, rules);
    if (fits) {
        hzp_subsets_begin(&j.sets, from);
        fits = state_of(&j) >= 0;
    }
    for (int32_t s = 0; s < j.made->states && fits; s++)
        fits = make_edges(&j, s);
    hzp_effort_give(j.sets.used * (int64_t)sizeof(*j.sets.pool));
    hzp_subsets_fini(&j.sets);
    if (fits)
        return trim(j.made);
    hzp_regular_destroy(j.made);
    return NULL;
}

/* ---- products ---- */

/* Pairs of states: of a, and of b or (-1) of nothing. */
struct product {
    const struct hzp_regular *a, *b;
    bool without;
    struct hzp_regular *made;
    struct {
        int16_t a, b;
        int32_t chain;
    } * pair; /* [made->states] */
    int32_t room;
    int32_t chain[CHAINS];
};

static int32_t pair_of(struct product *p, int16_t a, int16_t b)
{
    uint32_t hash = ((uint32_t)(uint16_t)a << 16 | (uint16_t)b) * 0x9E3779B1u;
    int32_t *chain = &p->chain[(hash ^ hash >> 15) % CHAINS];
    for (int32_t s = *chain; s >= 0; s = p->pair[s].chain)
        if (p->pair[s].a == a && p->pair[s].b == b)
            return s;
    int32_t state = add_state(p->made);
    if (state < 0)
        return -1;
    p->pair = hzp_xgrow(p->pair, &p->room, state + 1, sizeof(*p->pair));
    p->pair[state].a = a;
    p->pair[state].b = b;
    p->pair[state].chain = *chain;
    *chain = state;
    bool other = b >= 0 && p->b->state[b].final;
    p->made->state[state].final = p->a->state[a].final && other != p->without;
    return state;
}

static struct hzp_regular *combine(const struct hzp_regular *a, const struct hzp_regular *b,
                                   bool without)
{
    struct product p = {.a = a, .b = b, .without = without};
    bool fits = spend(0);
    p.made = hzp_xcalloc(1, sizeof(*p.made));
    memset(p.chain, 0xFF, sizeof(p.chain));
    if (fits && a->states && (b->states || without))
        fits = pair_of(&p, 0, b->states ? 0 : -1) >= 0;
    for (int32_t s = 0; s < p.made->states && fits; s++) {
        int64_t steps = 16;
        for (int k = 0; k < 256 && fits; k++) {
            int16_t to = a->state[p.pair[s].a].next[k];
            int16_t other = (int16_t)(p.pair[s].b >= 0 ? b->state[p.pair[s].b].next[k] : -1);
            if (to < 0 || (other < 0 && !without))
                continue;
            int32_t state = pair_of(&p, to, other);
            steps++;
            fits = state >= 0;
            p.made->state[s].next[k] = (int16_t)state;
        }
        fits = fits && spend(steps);
    }
    free(p.pair);
    if (fits)
        return trim(p.made);
    hzp_regular_destroy(p.made);
    return NULL;
}

struct hzp_regular *hzp_regular_both(const struct hzp_regular *a, const struct hzp_regular *b)
{
    return combine(a, b, false);
}

struct hzp_regular *hzp_regular_without(const struct hzp_regular *a, const struct hzp_regular *b)
{
    return combine(a, b, true);
}

bool hzp_regular_limit(struct hzp_regular **a, struct hzp_regular *b, bool without)
{
    struct hzp_regular *left = *a && b ? combine(*a, b, without) : NULL;
    hzp_regular_destroy(*a);
    hzp_regular_destroy(b);
    *a = left;
    return left;
}

/* ---- use ---- */

bool hzp_regular_empty(const struct hzp_regular *a)
{
    return !a->states;
}

int32_t hzp_regular_states(const struct hzp_regular *a)
{
    return a->states;
}

bool hzp_regular_takes(const struct hzp_regular *a, const char *bytes, size_t size)
{
    int16_t s = (int16_t)(a->states ? 0 : -1);
    for (size_t i = 0; i < size && s >= 0; i++)
        s = a->state[s].next[(uint8_t)bytes[i]];
    return s >= 0 && a->state[s].final;
}

int32_t hzp_regular_add(struct hzp_rules *rules, int32_t from, const struct hzp_regular *a)
{
    int32_t to = hzp_rules_node(rules), first = rules->nodes;
    for (int32_t s = 0; s < a->states; s++)
        hzp_rules_node(rules);
    if (rules->full) /* there are no such nodes */
        return to;
    if (a->states)
        hzp_rules_empty(rules, from, first);
    for (int32_t s = 0; s < a->states; s++) {
        const struct state *state = &a->state[s];
        if (state->final)
            hzp_rules_empty(rules, first + s, to);
        for (int lo = 0, hi; lo < 256; lo = hi + 1) {
            for (hi = lo; hi < 255 && state->next[hi + 1] == state->next[lo];)
                hi++;
            if (state->next[lo] >= 0)
                hzp_rules_bytes(rules, first + s, (uint8_t)lo, (uint8_t)hi,
                                first + state->next[lo]);
        }
    }
    return to;
}
