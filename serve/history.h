/* SPDX-License-Identifier: Apache-2.0 */
/* serve/history.h - answers that earlier requests got, by their prompts, to guess from when one is
 * asked again (lookup.h): rollouts of a later epoch.
 *
 * A ring of tokens holds the newest answers, each behind the last three tokens of its prompt and
 * before a negative number; older ones are overwritten.  A table by the hash of a prompt's tokens
 * holds where its newest answers begin.  Guesses are verified, so it does not matter that hashes
 * may be equal, or that an answer may have been overwritten: such guesses are wrong.
 *
 * Thread: engine.
 */
#pragma once

#include "serve/prefix.h"

enum {
    HZP_HISTORY_WORDS = 3,        /* tokens of the prompt before an answer */
    HZP_HISTORY_TOKENS = 1 << 22, /* of the ring; 16 MiB, which are taken as they are needed */
    HZP_HISTORY_PROMPTS = 1 << 14,
    HZP_HISTORY_ANSWERS = 8, /* of one prompt */
};

struct hzp_history_prompt {
    uint64_t key;                        /* the hash */
    uint64_t draws[HZP_HISTORY_ANSWERS]; /* what random numbers each answer was drawn with */
    int32_t begin[HZP_HISTORY_ANSWERS];  /* in the ring: its first token */
    int32_t count, next;                 /* answers; the oldest one, when there is no room */
};

struct hzp_history {
    int32_t token[HZP_HISTORY_TOKENS];
    struct hzp_history_prompt prompt[HZP_HISTORY_PROMPTS];
    int32_t end; /* of the newest answer */
};

/* Keeps the answer to this prompt, and gives up the one drawn with the same numbers, or the oldest
 * one.  Neither is kept of prompts that are too short, nor are answers as long as the ring. */
void hzp_history_keep(struct hzp_history *history, const struct hzp_prefix_tokens *tokens,
                      uint64_t draws);

/* The answers to this prompt; NULL: none.  Borrowed, and changed by what is kept later. */
const struct hzp_history_prompt *hzp_history_find(const struct hzp_history *history,
                                                  const struct hzp_prefix_tokens *tokens);

/* So many places behind (before: negative) a place of the ring. */
static inline int32_t hzp_history_place(int32_t place, int32_t more)
{
    return (int32_t)(((uint32_t)place + (uint32_t)more) & (HZP_HISTORY_TOKENS - 1));
}
