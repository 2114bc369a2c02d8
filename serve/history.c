/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/history.h"

#include "base/thread.h"

static uint64_t key_of(const struct hzp_prefix_tokens *tokens)
{
    uint64_t key = (uint64_t)tokens->prompt_count + 1;
    for (int32_t i = 0; i < tokens->prompt_count; i++) {
        key = (key ^ (uint32_t)tokens->prompt[i]) * 0x9E3779B97F4A7C15u;
        key ^= key >> 29;
    }
    return key;
}

const struct hzp_history_prompt *hzp_history_find(const struct hzp_history *history,
                                                  const struct hzp_prefix_tokens *tokens)
{
    uint64_t key = key_of(tokens);
    const struct hzp_history_prompt *p = &history->prompt[key % HZP_HISTORY_PROMPTS];
    return p->count && p->key == key ? p : NULL;
}

static void put(struct hzp_history *history, int32_t token)
{
    history->token[history->end] = token;
    history->end = hzp_history_place(history->end, 1);
}

void hzp_history_keep(struct hzp_history *history, const struct hzp_prefix_tokens *tokens,
                      uint64_t draws)
{
    hzp_assert_engine_thread();
    int32_t first = tokens->prompt_count - HZP_HISTORY_WORDS, i = 0;
    if (first < 0 || tokens->count - first >= HZP_HISTORY_TOKENS ||
        tokens->count == tokens->prompt_count)
        return;
    uint64_t key = key_of(tokens);
    struct hzp_history_prompt *p = &history->prompt[key % HZP_HISTORY_PROMPTS];
    if (p->key != key)
        *p = (struct hzp_history_prompt){.key = key};
    while (i < p->count && p->draws[i] != draws)
        i++;
    if (i == HZP_HISTORY_ANSWERS) {
        i = p->next;
        p->next = (p->next + 1) % HZP_HISTORY_ANSWERS;
    }
    p->count = HZP_MAX(p->count, i + 1);
    p->draws[i] = draws;
    p->begin[i] = hzp_history_place(history->end, HZP_HISTORY_WORDS);
    for (int32_t t = first; t < tokens->count; t++)
        put(history, hzp_prefix_token(tokens, t));
    put(history, -1);
}
