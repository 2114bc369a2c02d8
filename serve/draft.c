/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/draft.h"

#include <string.h>

enum { WORDS = 3 };

static const double trust_at_first = 0.6, trust_rate = 0.125;

/* Where the three tokens before this one are looked for. */
static int32_t *place_of(struct hzp_draft *draft, const struct hzp_prefix_tokens *tokens,
                         int32_t end)
{
    uint32_t hash = 0;
    for (int32_t i = end - WORDS; i < end; i++)
        hash = (hash ^ (uint32_t)hzp_prefix_token(tokens, i)) * 0x9E3779B1u;
    return &draft->after[hash >> 16 & (HZP_DRAFT_PLACES - 1)];
}

void hzp_draft_begin(struct hzp_draft *draft)
{
    memset(draft, 0, sizeof(*draft));
    draft->trust = trust_at_first;
}

static bool same(const struct hzp_prefix_tokens *tokens, int32_t a, int32_t b)
{
    for (int32_t i = 1; i <= WORDS; i++)
        if (hzp_prefix_token(tokens, a - i) != hzp_prefix_token(tokens, b - i))
            return false;
    return true;
}

void hzp_draft_follow(struct hzp_draft *draft, const struct hzp_prefix_tokens *tokens)
{
    for (; draft->noted < tokens->count; draft->noted++) {
        int32_t n = draft->noted;
        if (draft->found && n >= tokens->prompt_count) {
            bool right = hzp_prefix_token(tokens, draft->found) == hzp_prefix_token(tokens, n);
            draft->trust += trust_rate * ((right ? 1 : 0) - draft->trust);
        }
        if (n >= WORDS)
            *place_of(draft, tokens, n) = n;
        draft->found = 0;
        if (n + 1 < WORDS)
            continue;
        int32_t before = *place_of(draft, tokens, n + 1);
        if (before && same(tokens, before, n + 1))
            draft->found = before;
    }
}

int32_t hzp_draft_guess(const struct hzp_draft *draft, const struct hzp_prefix_tokens *tokens,
                        int32_t most, int32_t *ret)
{
    int32_t n = 0;
    for (; draft->found && n < most && draft->found + n < tokens->count; n++)
        ret[n] = hzp_prefix_token(tokens, draft->found + n);
    return n;
}

double hzp_draft_expected(const struct hzp_draft *draft, int32_t guesses)
{
    double sum = 0, right = 1;
    for (int32_t i = 0; i < guesses; i++)
        sum += right *= draft->trust;
    return sum;
}
