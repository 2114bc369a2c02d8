/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/lookup.h"

/* An answer that was overwritten may have lost its end. */
enum { WORDS = HZP_HISTORY_WORDS, ANSWER_MAX = 4096 };

static const double trust_at_first = 0.6, trust_rate = 0.125;

/* The index of the token so many behind this one (before it: below 0). */
static int32_t beside(int32_t index, int32_t more)
{
    return index >= 0 ? index + more : -1 - hzp_history_place(-1 - index, more);
}

/* The token of this index; below 0: an answer has ended. */
static int32_t token_at(const struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens,
                        int32_t index)
{
    return index >= 0 ? hzp_prefix_token(tokens, index) : lookup->history->token[-1 - index];
}

/* Where the three tokens before this one are looked for. */
static int32_t *place_of(struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens,
                         int32_t end)
{
    uint32_t hash = 0;
    for (int32_t i = -WORDS; i < 0; i++)
        hash = (hash ^ (uint32_t)token_at(lookup, tokens, beside(end, i))) * 0x9E3779B1u;
    return &lookup->after[hash >> 16 & (HZP_LOOKUP_PLACES - 1)];
}

void hzp_lookup_begin(struct hzp_lookup *lookup, const struct hzp_history *history, uint64_t draws)
{
    memset(lookup, 0, sizeof(*lookup));
    lookup->trust = trust_at_first;
    lookup->history = history;
    lookup->draws = draws;
}

static void note_answer(struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens,
                        int32_t place)
{
    int32_t at = -1 - place;
    for (int32_t n = 0; n < ANSWER_MAX && token_at(lookup, tokens, at) >= 0; n++) {
        *place_of(lookup, tokens, at) = at;
        at = beside(at, 1);
    }
}

/* The prompt is known: notes earlier answers to it. */
static void note_history(struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens)
{
    const struct hzp_history_prompt *p =
        lookup->history ? hzp_history_find(lookup->history, tokens) : NULL;
    for (int own = 0; p && own < 2; own++)
        for (int32_t i = 0; i < p->count; i++) {
            int32_t at = (p->next + i) % HZP_HISTORY_ANSWERS;
            if (at < p->count && (p->draws[at] == lookup->draws) == (own > 0))
                note_answer(lookup, tokens, p->begin[at]);
        }
}

static bool same(const struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens, int32_t a,
                 int32_t b)
{
    for (int32_t i = 1; i <= WORDS; i++)
        if (token_at(lookup, tokens, beside(a, -i)) != token_at(lookup, tokens, beside(b, -i)))
            return false;
    return true;
}

/* What is guessed to follow on token n, if `right` says whether the guess of that one was. */
static int32_t find(struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens, int32_t n,
                    bool right)
{
    int32_t next = right && lookup->found < 0 ? beside(lookup->found, 1) : 0;
    if (next && token_at(lookup, tokens, next) >= 0)
        return next;
    if (n + 1 < WORDS)
        return 0;
    int32_t before = *place_of(lookup, tokens, n + 1);
    return before && same(lookup, tokens, before, n + 1) ? before : 0;
}

void hzp_lookup_follow(struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens)
{
    for (; lookup->noted < tokens->count; lookup->noted++) {
        int32_t n = lookup->noted;
        bool right =
            lookup->found && token_at(lookup, tokens, lookup->found) == hzp_prefix_token(tokens, n);
        if (lookup->found && n >= tokens->prompt_count)
            lookup->trust += trust_rate * ((right ? 1 : 0) - lookup->trust);
        if (n >= WORDS)
            *place_of(lookup, tokens, n) = n;
        if (n == tokens->prompt_count - 1)
            note_history(lookup, tokens);
        lookup->found = find(lookup, tokens, n, right);
    }
}

int32_t hzp_lookup_guess(const struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens,
                         int32_t most, int32_t *ret)
{
    int32_t n = 0;
    for (; lookup->found && n < most && lookup->found + n < tokens->count; n++) {
        ret[n] = token_at(lookup, tokens, beside(lookup->found, n));
        if (ret[n] < 0)
            break;
    }
    return n;
}

double hzp_lookup_expected(const struct hzp_lookup *lookup, int32_t guesses)
{
    double sum = 0, right = 1;
    for (int32_t i = 0; i < guesses; i++)
        sum += right *= lookup->trust;
    return sum;
}
