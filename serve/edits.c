/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/edits.h"

#include "base/err.h"

struct entry {
    struct hzp_logit_edit edit;
    bool stops;  /* banned while min_tokens is not reached */
    bool prompt; /* seen whatever is generated */
};

/* The newest tokens, newest first. */
struct newest {
    int32_t token[HZP_BAD_TOKENS_MAX], count;
};

struct hzp_edits {
    bool penalties; /* generated tokens are added to the list */
    int32_t count, room;
    uint32_t mask;
    struct entry *entry; /* [room], in order of appearance */
    int32_t *slot;       /* [mask + 1] hash from token to entry + 1; 0: empty */

    /* which tokens may be drawn; tokens NULL: any */
    const struct hzp_token_rules *tokens;
    int32_t words;
    uint32_t *fixed, *made[2];            /* [words] before any token, for the next draw, guesses */
    uint32_t *ends;                       /* [words] tokens that end a text; with a grammar */
    const struct hzp_constraint_ops *ops; /* run's */
    struct hzp_constraint_run *run;       /* NULL: the text is not constrained */
    struct newest last;
    bool sequences; /* bad sequences of several tokens */

    int32_t guess[HZP_EDITS_GUESSES_MAX], guesses;
    /* before the first guess: */
    int32_t kept_count;
    struct newest kept_last;
};

int32_t hzp_edits_needed(const struct hzp_edit_rules *rules)
{
    int64_t most = (int64_t)rules->biases + rules->bans[0] + rules->bans[1];
    if (rules->penalties)
        most += (int64_t)rules->prompt_count + rules->max_tokens;
    return (int32_t)HZP_MIN(most, rules->vocab);
}

/* Where its entry is noted, or would be. */
static int32_t *slot_of(struct hzp_edits *edits, int32_t token)
{
    uint32_t at = (uint32_t)token * 2654435761u & edits->mask;
    while (edits->slot[at] && edits->entry[edits->slot[at] - 1].edit.token != token)
        at = (at + 1) & edits->mask;
    return &edits->slot[at];
}

/* The token's entry; a new one if it has none. */
static struct entry *entry_of(struct hzp_edits *edits, int32_t token)
{
    int32_t *slot = slot_of(edits, token);
    if (!*slot) {
        HZP_ASSERT(edits->count < edits->room);
        edits->entry[edits->count++] = (struct entry){.edit.token = token};
        *slot = edits->count;
    }
    return &edits->entry[*slot - 1];
}

/* ---- the tokens that may be drawn ---- */

static void set(uint32_t *mask, int32_t token)
{
    mask[token / 32] |= 1u << token % 32;
}

static void clear(uint32_t *mask, int32_t token)
{
    mask[token / 32] &= ~(1u << token % 32);
}

static bool has(const uint32_t *mask, int32_t token)
{
    return mask[token / 32] >> token % 32 & 1;
}

/* Removes the last tokens of bad sequences whose tokens before it are the newest ones. */
static void remove_bad(const struct hzp_edits *edits, uint32_t *mask)
{
    const struct hzp_token_rules *rules = edits->tokens;
    for (int32_t i = 0; i < rules->bads; i++) {
        const int32_t *bad = rules->bad + rules->bad_at[i];
        int32_t before = rules->bad_at[i + 1] - rules->bad_at[i] - 1, same = 0;
        while (same < before && same < edits->last.count &&
               edits->last.token[same] == bad[before - 1 - same])
            same++;
        if (same == before)
            clear(mask, bad[before]);
    }
}

/* Makes the mask of the next draw.  False: it has no token. */
static bool mask_make(struct hzp_edits *edits)
{
    size_t words = (size_t)edits->words;
    uint32_t *now = edits->made[edits->guesses > 0];
    if (edits->run) {
        memset(now, 0, words * sizeof(*now));
        edits->ops->mask(edits->run, now);
        bool ends = edits->ops->may_end(edits->run);
        for (size_t w = 0; w < words; w++)
            now[w] = (now[w] | (ends ? edits->ends[w] : 0)) & edits->fixed[w];
    } else {
        memcpy(now, edits->fixed, words * sizeof(*now));
    }
    remove_bad(edits, now);
    for (size_t w = 0; w < words; w++)
        if (now[w])
            return true;
    return false;
}

static int tokens_create(struct hzp_edits *edits, const struct hzp_edit_rules *rules)
{
    const struct hzp_token_rules *tokens = rules->tokens;
    edits->tokens = tokens;
    edits->words = hzp_mask_words(rules->vocab);
    size_t bytes = (size_t)edits->words * sizeof(*edits->fixed);
    edits->fixed = calloc(1, bytes);
    edits->made[0] = calloc(1, bytes);
    edits->made[1] = calloc(1, bytes);
    edits->ends = calloc(1, bytes);
    if (!edits->fixed || !edits->made[0] || !edits->made[1] || !edits->ends)
        return HZP_ENOMEM;
    for (int32_t t = 0; t < rules->vocab && !tokens->allowed; t++)
        set(edits->fixed, t);
    for (int32_t i = 0; i < tokens->alloweds && tokens->allowed; i++)
        set(edits->fixed, tokens->allowed[i]);
    for (int list = 0; list < HZP_COUNT(rules->end); list++)
        for (int32_t i = 0; i < rules->ends[list]; i++)
            set(edits->ends, rules->end[list][i]);
    for (int32_t i = 0; i < tokens->bads; i++)
        edits->sequences |= tokens->bad_at[i + 1] - tokens->bad_at[i] > 1;
    if (tokens->constraint) {
        edits->ops = tokens->constraint->ops;
        edits->run = edits->ops->begin(tokens->constraint);
    }
    return mask_make(edits) ? HZP_OK : HZP_EINVAL;
}

static enum hzp_edits_after tokens_after(struct hzp_edits *edits, int32_t token, bool stops)
{
    if (stops)
        return HZP_AFTER_MORE;
    if (edits->run && !edits->ops->token(edits->run, token)) {
        bool ends = edits->ops->may_end(edits->run) && has(edits->ends, token);
        return ends ? HZP_AFTER_ENDED : HZP_AFTER_STUCK;
    }
    if (edits->run && !edits->ops->may_go_on(edits->run))
        return HZP_AFTER_WHOLE;
    struct newest *last = &edits->last;
    memmove(last->token + 1, last->token, (HZP_BAD_TOKENS_MAX - 1) * sizeof(*last->token));
    last->token[0] = token;
    last->count = HZP_MIN(last->count + 1, (int32_t)HZP_BAD_TOKENS_MAX);
    if ((edits->run || edits->sequences) && !mask_make(edits))
        return HZP_AFTER_STUCK;
    return HZP_AFTER_MORE;
}

const uint32_t *hzp_edits_mask(const struct hzp_edits *edits)
{
    if (!edits || !edits->tokens)
        return NULL;
    return edits->made[edits->guesses && (edits->run || edits->sequences)];
}

/* ---- all of it ---- */

static int list_create(struct hzp_edits *edits, int32_t room)
{
    uint32_t slots = 8;
    while (slots < 2 * (uint32_t)room)
        slots *= 2;
    edits->entry = calloc((size_t)HZP_MAX(room, 1), sizeof(*edits->entry));
    edits->slot = calloc(slots, sizeof(*edits->slot));
    edits->room = room;
    edits->mask = slots - 1;
    return edits->entry && edits->slot ? HZP_OK : HZP_ENOMEM;
}

int hzp_edits_create(const struct hzp_edit_rules *rules, struct hzp_edits **ret)
{
    *ret = NULL;
    int32_t room = hzp_edits_needed(rules);
    if (!room && !rules->tokens)
        return HZP_OK;
    struct hzp_edits *edits = calloc(1, sizeof(*edits));
    if (!edits)
        return HZP_ENOMEM;
    int r = list_create(edits, room);
    if (r == HZP_OK && rules->tokens)
        r = tokens_create(edits, rules);
    if (r < 0) {
        hzp_edits_destroy(edits);
        return r;
    }
    edits->penalties = rules->penalties;

    for (int32_t i = 0; i < rules->biases; i++)
        entry_of(edits, rules->bias_token[i])->edit.bias = rules->bias[i];
    for (int list = 0; list < HZP_COUNT(rules->end); list++)
        for (int32_t i = 0; i < rules->bans[list]; i++)
            entry_of(edits, rules->end[list][i])->stops = true;
    for (int32_t i = 0; i < rules->prompt_count && edits->penalties; i++) {
        struct entry *entry = entry_of(edits, rules->prompt[i]);
        entry->edit.seen = entry->prompt = true;
    }
    *ret = edits;
    return HZP_OK;
}

void hzp_edits_destroy(struct hzp_edits *edits)
{
    if (!edits)
        return;
    if (edits->run)
        edits->ops->end(edits->run);
    free(edits->fixed);
    free(edits->made[0]);
    free(edits->made[1]);
    free(edits->ends);
    free(edits->entry);
    free(edits->slot);
    free(edits);
}

int32_t hzp_edits_count(const struct hzp_edits *edits)
{
    return edits ? edits->count : 0;
}

bool hzp_edits_grow(const struct hzp_edits *edits)
{
    return edits && (edits->penalties || edits->run || edits->sequences);
}

enum hzp_edits_after hzp_edits_generated(struct hzp_edits *edits, int32_t token, bool stops)
{
    if (!edits)
        return HZP_AFTER_MORE;
    if (edits->penalties) {
        struct entry *entry = entry_of(edits, token);
        entry->edit.count_out++;
        entry->edit.seen = 1;
    }
    return edits->tokens ? tokens_after(edits, token, stops) : HZP_AFTER_MORE;
}

bool hzp_edits_guess(struct hzp_edits *edits, int32_t token)
{
    if (!hzp_edits_grow(edits))
        return true;
    if (!edits->guesses) {
        edits->kept_count = edits->count;
        edits->kept_last = edits->last;
        if (edits->run)
            edits->ops->keep(edits->run);
    }
    HZP_ASSERT(edits->guesses < HZP_EDITS_GUESSES_MAX);
    edits->guess[edits->guesses++] = token;
    return hzp_edits_generated(edits, token, false) == HZP_AFTER_MORE;
}

void hzp_edits_back(struct hzp_edits *edits)
{
    if (!edits || !edits->guesses)
        return;
    while (edits->guesses-- > 0 && edits->penalties) {
        int32_t *slot = slot_of(edits, edits->guess[edits->guesses]);
        struct entry *entry = &edits->entry[*slot - 1];
        entry->edit.count_out--;
        entry->edit.seen = entry->prompt || entry->edit.count_out > 0;
        if (*slot > edits->kept_count && !entry->edit.count_out) {
            edits->count--; /* the newest entry: no other was put behind its slot */
            *slot = 0;
        }
    }
    edits->guesses = 0;
    edits->last = edits->kept_last;
    if (edits->run)
        edits->ops->back(edits->run);
}

int64_t hzp_edits_work(const struct hzp_edits *edits)
{
    return edits && edits->run ? edits->ops->work(edits->run) : 0;
}

void hzp_edits_write(const struct hzp_edits *edits, bool ban, struct hzp_logit_edit *ret)
{
    for (int32_t i = 0; i < hzp_edits_count(edits); i++) {
        ret[i] = edits->entry[i].edit;
        if (ban && edits->entry[i].stops)
            ret[i].bias = -INFINITY;
    }
}
