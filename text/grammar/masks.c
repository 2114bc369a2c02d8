/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/masks.c - creates lexicons and grammars, and decides for each state which tokens
 * may come next. */
#include "text/grammar/automaton.h"

/* ---- lexicons ---- */

void hzp_lexicon_create(const struct hzp_token_text *token, int32_t count, struct hzp_lexicon **ret)
{
    struct hzp_lexicon *lexicon = hzp_xcalloc(1, sizeof(*lexicon));
    HZP_FREED struct hzp_trie_entry *entry = hzp_xcalloc((size_t)count + 1, sizeof(*entry));
    lexicon->count = count;
    lexicon->in_use = hzp_xcalloc(1, sizeof(*lexicon->in_use));
    lexicon->at = hzp_xcalloc((size_t)count + 1, sizeof(*lexicon->at));
    for (int32_t i = 0; i < count; i++) {
        int32_t size = token[i].special ? HZP_SPECIAL_KEY_BYTES : token[i].size;
        /* 0xFF is in no text, and begins the keys of special tokens */
        bool in = token[i].bytes && size > 0 && size <= HZP_TRIE_DEPTH_MAX &&
                  (token[i].special || !memchr(token[i].bytes, 0xFF, (size_t)size));
        lexicon->at[i + 1] = lexicon->at[i] + (in ? size : 0);
    }
    lexicon->pool = hzp_xmalloc((size_t)lexicon->at[count] + 1);
    for (int32_t i = 0; i < count; i++) {
        char *bytes = lexicon->pool + lexicon->at[i];
        int32_t size = lexicon->at[i + 1] - lexicon->at[i];
        if (size && token[i].special)
            hzp_special_key(i, bytes);
        else if (size)
            memcpy(bytes, token[i].bytes, (size_t)size);
    }
    for (int k = 0; k < HZP_LENGTHS; k++) {
        for (int32_t i = 0; i < count; i++) {
            int32_t size = lexicon->at[i + 1] - lexicon->at[i];
            entry[i] = (struct hzp_trie_entry){.bytes = lexicon->pool + lexicon->at[i],
                                               .size = (size > HZP_SHORT_BYTES) == k ? size : 0,
                                               .token = i};
        }
        hzp_trie_make(entry, count, &lexicon->trie[k]);
    }
    *ret = lexicon;
}

void hzp_lexicon_destroy(struct hzp_lexicon *lexicon)
{
    if (!lexicon)
        return;
    for (int k = 0; k < HZP_LENGTHS; k++)
        hzp_trie_fini(&lexicon->trie[k]);
    free(lexicon->pool);
    free(lexicon->at);
    free(lexicon->in_use);
    free(lexicon);
}

int64_t hzp_lexicon_in_use(const struct hzp_lexicon *lexicon)
{
    return atomic_load(lexicon->in_use);
}

/* ---- states that look alike ---- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t look(const struct hzp_grammar *g, const uint64_t *before, int32_t s)
{
    const struct hzp_grammar_state *state = &g->state[s];
    const struct hzp_byte_set *after = &g->rule[state->rule].after;
    uint64_t h = mix(state->final ? 2 : 1, 0);
    for (int i = 0; i < 4; i++)
        h = mix(h, after->word[i]);
    for (int32_t c = 0; c < g->classes; c++) {
        int32_t to = g->next[s * g->classes + c];
        h = mix(h, to < 0 ? 0 : before[to]);
    }
    uint64_t calls = 0; /* in no order */
    for (int32_t i = 0; i < state->calls; i++) {
        const struct hzp_call *call = &g->call[state->call0 + i];
        /* A call that may take nothing is a way of no byte, which rounds do not count. */
        bool nothing = g->state[g->rule[call->rule].first].can_end;
        calls += mix(mix((uint64_t)call->rule + 1, nothing ? 1 : 2),
                     nothing ? (uint64_t)call->to : before[call->to]);
    }
    return mix(h, calls);
}

static int by_value(const void *pa, const void *pb)
{
    const uint64_t *a = pa, *b = pb;
    return (*a > *b) - (*a < *b);
}

static int32_t different(const uint64_t *value, int32_t n, uint64_t *scratch)
{
    int32_t count = n > 0;
    memcpy(scratch, value, (size_t)n * sizeof(*value));
    qsort(scratch, (size_t)n, sizeof(*scratch), by_value);
    for (int32_t i = 1; i < n; i++)
        count += scratch[i] != scratch[i - 1];
    return count;
}

/* Gives each state a value; states of one value cannot be told apart by `depth` bytes.  Owned by
 * the caller. */
static uint64_t *looks_make(struct hzp_grammar *g, int32_t depth)
{
    size_t n = (size_t)g->states;
    uint64_t *now = hzp_xcalloc(n, sizeof(*now)), *next = hzp_xcalloc(n, sizeof(*next)),
             *scratch = hzp_xcalloc(n, sizeof(*scratch));
    int32_t kinds = 0;
    for (int32_t round = 0; round <= depth; round++) {
        for (int32_t s = 0; s < g->states; s++)
            next[s] = look(g, now, s);
        uint64_t *swap = now;
        now = next;
        next = swap;
        g->work += (int64_t)g->states * g->classes / 4;
        int32_t kinds_now = different(now, g->states, scratch);
        if (kinds_now == kinds || hzp_grammar_over(g))
            break;
        kinds = kinds_now;
    }
    free(next);
    free(scratch);
    return now;
}

/* ---- masks ---- */

struct making {
    const struct hzp_lexicon *lexicon;
    int32_t *allowed;
    int32_t alloweds;
    struct hzp_trie_entry *unsure;
    int32_t unsures;
};

static void seen(void *ctx, int32_t token, bool unsure)
{
    struct making *m = ctx;
    const int32_t *at = m->lexicon->at;
    if (unsure)
        m->unsure[m->unsures++] = (struct hzp_trie_entry){.bytes = m->lexicon->pool + at[token],
                                                          .size = at[token + 1] - at[token],
                                                          .token = token};
    else
        m->allowed[m->alloweds++] = token;
}

static void mask_make(struct hzp_grammar *g, struct making *m, struct hzp_mask *ret)
{
    size_t words = (size_t)(g->lexicon->count + 31) / 32;
    ret->count = m->alloweds;
    if ((size_t)m->alloweds > words) {
        ret->bits = hzp_xcalloc(words, sizeof(*ret->bits));
        for (int32_t i = 0; i < m->alloweds; i++)
            ret->bits[m->allowed[i] / 32] |= 1u << m->allowed[i] % 32;
        g->bytes += (int64_t)(words * sizeof(*ret->bits));
    } else if (m->alloweds) {
        ret->list = hzp_xmalloc((size_t)m->alloweds * sizeof(*ret->list));
        memcpy(ret->list, m->allowed, (size_t)m->alloweds * sizeof(*ret->list));
        g->bytes += (int64_t)m->alloweds * (int64_t)sizeof(*ret->list);
    }
    if (m->unsures)
        hzp_trie_make(m->unsure, m->unsures, &ret->unsure);
    g->bytes += (int64_t)(hzp_trie_bytes(&ret->unsure) + sizeof(*ret));
}

struct kind {
    uint64_t look;
    int32_t state;
};

static int by_look(const void *pa, const void *pb)
{
    const struct kind *a = pa, *b = pb;
    if (a->look != b->look)
        return a->look < b->look ? -1 : 1;
    return (a->state > b->state) - (a->state < b->state);
}

/* Fills kind with the states that take a byte, those that look alike side by side. */
static int32_t kinds_make(struct hzp_grammar *g, const uint64_t *looks, int length,
                          struct kind *kind)
{
    int32_t count = 0;
    for (int32_t s = 0; s < g->states; s++) {
        bool takes = false;
        for (int32_t c = 0; c < g->classes && !takes; c++)
            takes = g->next[s * g->classes + c] >= 0;
        g->state[s].simple = takes && !g->state[s].final && !g->state[s].calls;
        if (takes)
            kind[count++] = (struct kind){looks[s], s};
    }
    if (count)
        qsort(kind, (size_t)count, sizeof(*kind), by_look);
    for (int32_t i = 0; i < count; i++) {
        g->masks[length] += i == 0 || kind[i].look != kind[i - 1].look;
        g->state[kind[i].state].mask[length] = g->masks[length] - 1;
    }
    return count;
}

static int fill_masks(struct hzp_grammar *g, int length, const struct kind *kind, int32_t kinds,
                      struct hzp_err_text *reterr)
{
    struct making m = {.lexicon = g->lexicon};
    struct hzp_constraint_run *run = hzp_grammar_run_create(g);
    size_t tokens = (size_t)g->lexicon->count + 1;
    run->work = 0;
    run->work_max = (int64_t)16 * HZP_GRAMMAR_WORK_MAX; /* comparisons: each less than a step */
    m.allowed = hzp_xmalloc(tokens * sizeof(*m.allowed));
    m.unsure = hzp_xmalloc(tokens * sizeof(*m.unsure));
    int r = HZP_OK;
    for (int32_t i = 0; i < kinds && r == HZP_OK; i++) {
        const struct hzp_grammar_state *state = &g->state[kind[i].state];
        int32_t mask = state->mask[length];
        if (i && mask == g->state[kind[i - 1].state].mask[length])
            continue;
        m.alloweds = m.unsures = 0;
        hzp_grammar_set_one(run, &run->level[0], kind[i].state);
        g->work +=
            hzp_grammar_walk(run, &g->lexicon->trie[length], &g->rule[state->rule].after, seen, &m);
        mask_make(g, &m, &g->mask[length][mask]);
        if (hzp_grammar_over(g) || hzp_effort_over(run->work, run->work_max) ||
            g->bytes > HZP_GRAMMAR_MASKS_MAX)
            r = hzp_fail(reterr, HZP_EINVAL,
                         "the grammar is too large: its masks need more than %d steps or %d MiB",
                         HZP_GRAMMAR_WORK_MAX, HZP_GRAMMAR_MASKS_MAX >> 20);
    }
    free(m.allowed);
    free(m.unsure);
    hzp_grammar_run_destroy(run);
    return r;
}

static int make_masks(struct hzp_grammar *g, struct hzp_err_text *reterr)
{
    HZP_FREED struct kind *kind = hzp_xcalloc((size_t)g->states, sizeof(*kind));
    int r = HZP_OK;
    for (int k = 0; k < HZP_LENGTHS && r == HZP_OK; k++) {
        uint64_t *looks = looks_make(g, g->lexicon->trie[k].depth);
        int32_t kinds = kinds_make(g, looks, k, kind);
        free(looks);
        g->mask[k] = hzp_xcalloc((size_t)g->masks[k] + 1, sizeof(*g->mask[k]));
        r = fill_masks(g, k, kind, kinds, reterr);
    }
    return r;
}

/* ---- grammars ---- */

int hzp_grammar_create(const struct hzp_rules *rules, int32_t root,
                       const struct hzp_lexicon *lexicon, struct hzp_grammar **ret,
                       struct hzp_err_text *reterr)
{
    struct hzp_grammar *g = hzp_xcalloc(1, sizeof(*g));
    int r;
    g->constraint.ops = &hzp_grammar_ops;
    atomic_store(&g->owners, 1);
    g->lexicon = lexicon;
    g->root = root;
    HZP_TRY_GOTO(hzp_grammar_determinize(g, rules, reterr));
    HZP_TRY_GOTO(hzp_grammar_analyze(g, rules, reterr));
    g->bytes = (int64_t)g->states * (int64_t)(sizeof(*g->state) + (size_t)g->classes * 4) +
               g->calls * (int64_t)sizeof(*g->call);
    HZP_TRY_GOTO(make_masks(g, reterr));
    g->counted = g->bytes;
    atomic_fetch_add(lexicon->in_use, g->counted);
    *ret = g;
    return HZP_OK;
out:
    hzp_grammar_unref(g);
    return r;
}

struct hzp_grammar *hzp_grammar_ref(struct hzp_grammar *g)
{
    atomic_fetch_add(&g->owners, 1);
    return g;
}

void hzp_grammar_unref(struct hzp_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->owners, 1) > 1)
        return;
    atomic_fetch_sub(g->lexicon->in_use, g->counted);
    for (int k = 0; k < HZP_LENGTHS; k++) {
        for (int32_t i = 0; i < g->masks[k] && g->mask[k]; i++) {
            free(g->mask[k][i].bits);
            free(g->mask[k][i].list);
            hzp_trie_fini(&g->mask[k][i].unsure);
        }
        free(g->mask[k]);
    }
    free(g->state);
    free(g->next);
    free(g->call);
    free(g->rule);
    free(g);
}

struct hzp_grammar_size hzp_grammar_size(const struct hzp_grammar *g)
{
    return (struct hzp_grammar_size){.rules = g->rules,
                                     .states = g->states,
                                     .masks = g->masks[0] + g->masks[1],
                                     .bytes = g->bytes,
                                     .work = g->work};
}
