/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/group_samples.h - what ranks that compute each step together learn in a test, and what
 * a gate holds out: tokens below 48, at most 20. */
#pragma once

#include "tests/train/samples.h"
#include "train/conductor/trainer.h"

#include <math.h>

enum { GROUP_TOKENS = 48, GROUP_HELD = 9 };

struct group_gate {
    struct hzp_sample *held[GROUP_HELD];
    struct hzp_gate gate;
};

/* Sample s.  bursts: its gradient is not finite. */
static inline struct hzp_sample *group_sample(int64_t s, bool bursts)
{
    int32_t token[20], count = 4 + (int32_t)(s * 7 % 16);
    uint8_t learn[20];
    float weight[20];
    for (int32_t i = 0; i < count; i++) {
        token[i] = (int32_t)((s * 13 + i * i * 5 + i) % GROUP_TOKENS);
        learn[i] = i == count - 1 || (s + i) % 4 != 0;
        weight[i] = bursts ? 3e38f : s % 3 ? 1 : 0.5f;
    }
    return hzp_sample_create_weighted(token, learn, weight, count);
}

/* Samples of two tags, in several micro-batches, of which the others say little: their loss falls a
 * little, then rises. */
static inline void group_gate_open(struct group_gate *g, double max_rise)
{
    static const int32_t tag[GROUP_HELD] = {0, 0, 0, 0, 0, 0, 1, 1, 1};
    static const char *const name[] = {"", "hills"};
    static const double rise[] = {INFINITY, INFINITY};
    for (int i = 0; i < GROUP_HELD; i++) {
        g->held[i] = group_sample(100 + i, false);
        for (int32_t k = 0; k < g->held[i]->count; k++)
            g->held[i]->token[k] = (g->held[i]->token[k] * 7 + k) % GROUP_TOKENS;
    }
    g->gate = (struct hzp_gate){.sample = g->held,
                                .tag = tag,
                                .count = GROUP_HELD,
                                .tags = 2,
                                .name = name,
                                .tag_rise = rise,
                                .max_rise = max_rise};
}

static inline void group_gate_close(struct group_gate *g)
{
    for (int i = 0; i < GROUP_HELD; i++)
        hzp_sample_destroy(g->held[i]);
}
