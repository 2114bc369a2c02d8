/* SPDX-License-Identifier: Apache-2.0 */
#include "text/grammar/automaton.h"

enum {
    FRAMES_MAX = 1 << 16,
    FRAMES_TIDY = 1 << 12,
    CHAINS = 1 << 10,
    NODE_WORK = 8, /* cost of a trie's node, in comparisons */
    LOOK_EVERY =
        256, /* nodes, at which a grammar in the making looks whether it is still to be made */
};

static struct hzp_config_set set_create(void)
{
    return (struct hzp_config_set){.config =
                                       hzp_xmalloc(HZP_STACKS_MAX * sizeof(struct hzp_config))};
}

static void set_copy(struct hzp_config_set *to, const struct hzp_config_set *from)
{
    to->count = from->count;
    to->ended = from->ended;
    if (from->count)
        memcpy(to->config, from->config, (size_t)from->count * sizeof(*to->config));
}

/* ---- frames ---- */

static int32_t *chain_of(struct hzp_constraint_run *run, int32_t state, int32_t parent)
{
    uint32_t hash = (uint32_t)state * 0x9E3779B1u ^ (uint32_t)parent * 0x85EBCA77u;
    return &run->chain[(hash ^ hash >> 15) % CHAINS];
}

static void frames_clear(struct hzp_constraint_run *run)
{
    memset(run->chain, 0xFF, CHAINS * sizeof(*run->chain));
    run->frame[0] = (struct hzp_frame){.state = -1, .parent = -1, .chain = -1};
    run->frames = 1;
}

/* The frame that goes on in `state` and then with `parent`; -1: a bound is reached. */
static int32_t frame_of(struct hzp_constraint_run *run, int32_t state, int32_t parent)
{
    int32_t *chain = chain_of(run, state, parent);
    for (int32_t f = *chain; f >= 0; f = run->frame[f].chain)
        if (run->frame[f].state == state && run->frame[f].parent == parent)
            return f;
    int32_t depth = run->frame[parent].depth + 1;
    if (depth > HZP_STACK_MAX || run->frames == FRAMES_MAX)
        return -1;
    run->frame = hzp_xgrow(run->frame, &run->frames_room, run->frames + 1, sizeof(*run->frame));
    run->frame[run->frames] = (struct hzp_frame){state, parent, depth, *chain};
    *chain = run->frames;
    return run->frames++;
}

/* Removes the frames that no stack of the current set has. */
static void frames_tidy(struct hzp_constraint_run *run)
{
    HZP_FREED struct hzp_frame *old = run->frame;
    int32_t *new_of = hzp_xcalloc((size_t)run->frames, sizeof(*new_of)), count = run->frames;
    run->frame = hzp_xmalloc((size_t)run->frames_room * sizeof(*run->frame));
    for (int32_t i = 0; i < run->now.count; i++)
        for (int32_t f = run->now.config[i].frame; f > 0 && !new_of[f]; f = old[f].parent)
            new_of[f] = 1;
    frames_clear(run);
    /* a parent is older than its frames */
    for (int32_t f = 1; f < count; f++)
        if (new_of[f])
            new_of[f] = frame_of(run, old[f].state, new_of[old[f].parent]);
    for (int32_t i = 0; i < run->now.count; i++)
        run->now.config[i].frame = new_of[run->now.config[i].frame];
    free(new_of);
}

/* ---- sets ---- */

static void add(struct hzp_config_set *set, int32_t state, int32_t frame)
{
    for (int32_t i = 0; i < set->count; i++)
        if (set->config[i].state == state && set->config[i].frame == frame)
            return;
    if (set->count < HZP_STACKS_MAX)
        set->config[set->count++] = (struct hzp_config){state, frame};
}

/* Adds what calls and ends of rules lead to, then keeps those that can take a byte. */
static void set_close(struct hzp_constraint_run *run, struct hzp_config_set *set)
{
    const struct hzp_grammar *g = run->grammar;
    int32_t kept = 0;
    for (int32_t i = 0; i < set->count; i++) {
        struct hzp_config now = set->config[i];
        const struct hzp_grammar_state *state = &g->state[now.state];
        run->work += (int64_t)(1 + state->calls) * set->count;
        if (state->final && !now.frame)
            set->ended = true;
        else if (state->final)
            add(set, run->frame[now.frame].state, run->frame[now.frame].parent);
        for (int32_t k = 0; k < state->calls; k++) {
            const struct hzp_call *call = &g->call[state->call0 + k];
            int32_t frame = call->tail ? now.frame : frame_of(run, call->to, now.frame);
            if (frame >= 0)
                add(set, g->rule[call->rule].first, frame);
        }
    }
    for (int32_t i = 0; i < set->count; i++)
        if (g->state[set->config[i].state].mask[0] >= 0)
            set->config[kept++] = set->config[i];
    set->count = kept;
}

static void step(struct hzp_constraint_run *run, const struct hzp_config_set *from, uint8_t byte,
                 struct hzp_config_set *to)
{
    const struct hzp_grammar *g = run->grammar;
    int32_t class = g->class_of[byte];
    to->count = 0;
    to->ended = false;
    if (from->count == 1) { /* most steps */
        int32_t next = g->next[from->config[0].state * g->classes + class];
        if (next < 0)
            return;
        to->config[to->count++] = (struct hzp_config){next, from->config[0].frame};
        if (!g->state[next].simple)
            set_close(run, to);
        return;
    }
    run->work += (int64_t)from->count * from->count;
    for (int32_t i = 0; i < from->count; i++) {
        int32_t next = g->next[from->config[i].state * g->classes + class];
        if (next >= 0)
            add(to, next, from->config[i].frame);
    }
    set_close(run, to);
}

void hzp_grammar_set_one(struct hzp_constraint_run *run, struct hzp_config_set *set, int32_t state)
{
    frames_clear(run);
    set->count = 1;
    set->ended = false;
    set->config[0] = (struct hzp_config){state, 0};
}

/* ---- walks ---- */

static struct hzp_config_set *level_of(struct hzp_constraint_run *run, int32_t depth)
{
    while (run->levels <= depth) {
        run->level = hzp_xrealloc(run->level, (size_t)(run->levels + 1) * sizeof(*run->level));
        run->level[run->levels++] = set_create();
    }
    return &run->level[depth];
}

int64_t hzp_grammar_walk(struct hzp_constraint_run *run, const struct hzp_trie *trie,
                         const struct hzp_byte_set *after, hzp_walk_seen *seen, void *ctx)
{
    bool beyond[HZP_TRIE_DEPTH_MAX + 1]; /* at each depth: the rule may have ended before */
    int64_t visited = 0;
    level_of(run, trie->depth);
    beyond[0] = false;
    for (int32_t i = 0; i < trie->nodes && run->work <= run->work_max; visited++) {
        if (after && visited % LOOK_EVERY == 0 && hzp_effort_over(run->work, run->work_max))
            break; /* while the grammar is made */
        run->work += NODE_WORK;
        const struct hzp_trie_node *node = &trie->node[i];
        int32_t depth = node->depth;
        struct hzp_config_set *set = &run->level[depth], *from = set - 1;
        beyond[depth] = beyond[depth - 1] ||
                        (after && depth > 1 && from->ended && hzp_byte_set_has(after, node->byte));
        step(run, from, node->byte, set);
        bool takes = set->count || set->ended;
        if (node->token >= 0 && (takes || beyond[depth]))
            for (int32_t k = node->token;; k++) {
                bool more = trie->token[k] < 0;
                seen(ctx, more ? ~trie->token[k] : trie->token[k], !takes);
                if (!more)
                    break;
            }
        i = takes || beyond[depth] ? i + 1 : node->end;
    }
    return visited;
}

/* ---- runs ---- */

struct hzp_constraint_run *hzp_grammar_run_create(struct hzp_grammar *grammar)
{
    struct hzp_constraint_run *run = hzp_xcalloc(1, sizeof(*run));
    run->grammar = hzp_grammar_ref(grammar);
    run->work_max = HZP_GRAMMAR_MASK_WORK_MAX;
    run->frames_room = 64;
    run->frame = hzp_xmalloc((size_t)run->frames_room * sizeof(*run->frame));
    run->chain = hzp_xmalloc(CHAINS * sizeof(*run->chain));
    run->now = set_create();
    run->kept = set_create();
    hzp_grammar_set_one(run, &run->now, grammar->rule[grammar->root].first);
    set_close(run, &run->now);
    level_of(run, 1);
    return run;
}

void hzp_grammar_run_destroy(struct hzp_constraint_run *run)
{
    if (!run)
        return;
    for (int32_t i = 0; i < run->levels; i++)
        free(run->level[i].config);
    free(run->level);
    free(run->now.config);
    free(run->kept.config);
    free(run->frame);
    free(run->chain);
    hzp_grammar_unref(run->grammar);
    free(run);
}

bool hzp_grammar_run_bytes(struct hzp_constraint_run *run, const char *bytes, size_t size)
{
    struct hzp_config_set *a = level_of(run, 0), *b = level_of(run, 1);
    set_copy(a, &run->now);
    for (size_t i = 0; i < size; i++) {
        step(run, a, (uint8_t)bytes[i], b);
        if (!b->count && !b->ended)
            return false;
        struct hzp_config_set swap = *a;
        *a = *b;
        *b = swap;
    }
    if (run->frames > FRAMES_TIDY && run->kept_frames)
        return false; /* frames go back in the order in which they came */
    set_copy(&run->now, a);
    if (run->frames > FRAMES_TIDY)
        frames_tidy(run);
    return true;
}

bool hzp_grammar_run_token(struct hzp_constraint_run *run, int32_t token)
{
    const struct hzp_lexicon *lexicon = run->grammar->lexicon;
    if (token < 0 || token >= lexicon->count || lexicon->at[token] == lexicon->at[token + 1])
        return false;
    return hzp_grammar_run_bytes(run, lexicon->pool + lexicon->at[token],
                                 (size_t)(lexicon->at[token + 1] - lexicon->at[token]));
}

bool hzp_grammar_run_may_end(const struct hzp_constraint_run *run)
{
    return run->now.ended;
}

bool hzp_grammar_run_may_go_on(const struct hzp_constraint_run *run)
{
    return run->now.count > 0;
}

static void set_bit(void *ctx, int32_t token, bool unsure)
{
    uint32_t *mask = ctx;
    mask[token / 32] |= 1u << token % 32;
}

/* Adds what one stack allows. */
static void add_mask(struct hzp_constraint_run *run, struct hzp_config now,
                     const struct hzp_mask *mask, size_t words, uint32_t *ret)
{
    for (size_t w = 0; mask->bits && w < words; w++)
        ret[w] |= mask->bits[w];
    for (int32_t i = 0; !mask->bits && i < mask->count; i++)
        set_bit(ret, mask->list[i], false);
    if (!mask->unsure.nodes)
        return;
    struct hzp_config_set *set = level_of(run, 0);
    set->count = 1;
    set->ended = false;
    set->config[0] = now;
    hzp_grammar_walk(run, &mask->unsure, NULL, set_bit, ret);
}

bool hzp_grammar_run_mask(struct hzp_constraint_run *run, uint32_t *ret)
{
    const struct hzp_grammar *g = run->grammar;
    size_t words = (size_t)(g->lexicon->count + 31) / 32;
    memset(ret, 0, words * sizeof(*ret));
    run->work = 0;
    for (int32_t i = 0; i < run->now.count; i++) {
        struct hzp_config now = run->now.config[i];
        for (int k = 0; k < HZP_LENGTHS; k++)
            add_mask(run, now, &g->mask[k][g->state[now.state].mask[k]], words, ret);
    }
    for (size_t w = 0; w < words; w++)
        if (ret[w])
            return true;
    return false;
}

static void run_keep(struct hzp_constraint_run *run)
{
    set_copy(&run->kept, &run->now);
    run->kept_frames = run->frames;
    run->kept_work = run->work;
}

/* Everything is as it was, frames too, so that bounds are reached where they would have been. */
static void run_back(struct hzp_constraint_run *run)
{
    set_copy(&run->now, &run->kept);
    while (run->frames > run->kept_frames) {
        const struct hzp_frame *frame = &run->frame[--run->frames];
        *chain_of(run, frame->state, frame->parent) = frame->chain;
    }
    run->kept_frames = 0;
    run->work = run->kept_work;
}

/* ---- as a constraint ---- */

static void constraint_unref(struct hzp_constraint *constraint)
{
    hzp_grammar_unref((struct hzp_grammar *)constraint);
}

static struct hzp_constraint_run *constraint_begin(struct hzp_constraint *constraint)
{
    return hzp_grammar_run_create((struct hzp_grammar *)constraint);
}

static int64_t constraint_work(const struct hzp_constraint_run *run)
{
    return run->work;
}

const struct hzp_constraint_ops hzp_grammar_ops = {.unref = constraint_unref,
                                                   .begin = constraint_begin,
                                                   .end = hzp_grammar_run_destroy,
                                                   .token = hzp_grammar_run_token,
                                                   .may_end = hzp_grammar_run_may_end,
                                                   .may_go_on = hzp_grammar_run_may_go_on,
                                                   .mask = hzp_grammar_run_mask,
                                                   .work = constraint_work,
                                                   .keep = run_keep,
                                                   .back = run_back};

struct hzp_constraint *hzp_grammar_constraint(struct hzp_grammar *grammar)
{
    return grammar ? &grammar->constraint : NULL;
}
