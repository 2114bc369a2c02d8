/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/lookup.h"

#include <string.h>

enum { WORDS = 3 };

static const double trust_at_first = 0.6, trust_rate = 0.125;

/* Where the three tokens before this one are looked for. */
static int32_t *place_of(struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens,
                         int32_t end)
{
    uint32_t hash = 0;
    for (int32_t i = end - WORDS; i < end; i++)
        hash = (hash ^ (uint32_t)hzp_prefix_token(tokens, i)) * 0x9E3779B1u;
    return &lookup->after[hash >> 16 & (HZP_LOOKUP_PLACES - 1)];
}

void hzp_lookup_begin(struct hzp_lookup *lookup)
{
    memset(lookup, 0, sizeof(*lookup));
    lookup->trust = trust_at_first;
}

static bool same(const struct hzp_prefix_tokens *tokens, int32_t a, int32_t b)
{
    for (int32_t i = 1; i <= WORDS; i++)
        if (hzp_prefix_token(tokens, a - i) != hzp_prefix_token(tokens, b - i))
            return false;
    return true;
}

void hzp_lookup_follow(struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens)
{
    for (; lookup->noted < tokens->count; lookup->noted++) {
        int32_t n = lookup->noted;
        if (lookup->found && n >= tokens->prompt_count) {
            bool right = hzp_prefix_token(tokens, lookup->found) == hzp_prefix_token(tokens, n);
            lookup->trust += trust_rate * ((right ? 1 : 0) - lookup->trust);
        }
        if (n >= WORDS)
            *place_of(lookup, tokens, n) = n;
        lookup->found = 0;
        if (n + 1 < WORDS)
            continue;
        int32_t before = *place_of(lookup, tokens, n + 1);
        if (before && same(tokens, before, n + 1))
            lookup->found = before;
    }
}

int32_t hzp_lookup_guess(const struct hzp_lookup *lookup, const struct hzp_prefix_tokens *tokens,
                         int32_t most, int32_t *ret)
{
    int32_t n = 0;
    for (; lookup->found && n < most && lookup->found + n < tokens->count; n++)
        ret[n] = hzp_prefix_token(tokens, lookup->found + n);
    return n;
}

double hzp_lookup_expected(const struct hzp_lookup *lookup, int32_t guesses)
{
    double sum = 0, right = 1;
    for (int32_t i = 0; i < guesses; i++)
        sum += right *= lookup->trust;
    return sum;
}
