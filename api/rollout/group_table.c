/* SPDX-License-Identifier: Apache-2.0 */
#include "api/rollout/group_table.h"

void hzp_rollout_table_init(struct hzp_rollout_table *ret,
                            const struct hzp_rollout_table_config *config)
{
    HZP_ASSERT(config->members > 0 && config->batch > 0 && config->staleness >= 0);
    *ret = (struct hzp_rollout_table){.config = *config,
                                      .room = config->batch * (config->staleness + 1)};
    ret->group = hzp_xcalloc((size_t)ret->room, sizeof(*ret->group));
    ret->again = hzp_xcalloc((size_t)ret->room, sizeof(*ret->again));
    for (int32_t i = 0; i < ret->room; i++)
        ret->group[i].member = hzp_xcalloc((size_t)config->members, sizeof(*ret->group[i].member));
}

void hzp_rollout_table_fini(struct hzp_rollout_table *g)
{
    for (int32_t i = 0; i < g->room; i++)
        free(g->group[i].member);
    free(g->group);
    free(g->again);
    *g = (struct hzp_rollout_table){.room = 0};
}

void hzp_rollout_table_again(struct hzp_rollout_table *g, int64_t number)
{
    int32_t at = g->agains++;
    HZP_ASSERT(at < g->room);
    for (; at > 0 && g->again[at - 1] > number; at--)
        g->again[at] = g->again[at - 1];
    g->again[at] = number;
}

int32_t hzp_rollout_table_begin(struct hzp_rollout_table *g, int64_t updates)
{
    int64_t useful = g->begun - g->dropped;
    int32_t at = 0;
    if (!g->agains && useful / g->config.batch > updates + g->config.staleness)
        return -1;
    int32_t held = g->room - hzp_rollout_table_count(g, HZP_GROUP_FREE);
    if (g->config.most && held >= g->config.most)
        return -1;
    while (at < g->room && g->group[at].state != HZP_GROUP_FREE)
        at++;
    if (at == g->room)
        return -1;
    struct hzp_rollout_group *group = &g->group[at];
    group->state = HZP_GROUP_OPEN;
    group->number = g->agains ? g->again[0] : ++g->begun;
    g->agains -= g->agains > 0;
    memmove(g->again, g->again + 1, (size_t)g->agains * sizeof(*g->again));
    group->open = g->config.members;
    group->waits = false;
    for (int32_t i = 0; i < g->config.members; i++)
        group->member[i] = (struct hzp_rollout_member){.state = HZP_MEMBER_OPEN};
    return at;
}

/* Writes the advantages.  False: they are all 0, or cannot be told. */
static bool set_advantages(const struct hzp_rollout_table *g, struct hzp_rollout_group *group)
{
    double sum = 0, squares = 0;
    int32_t n = 0;
    bool any = false;
    for (int32_t i = 0; i < g->config.members; i++)
        if (group->member[i].state == HZP_MEMBER_REWARDED) {
            sum += group->member[i].reward;
            n++;
        }
    bool client = g->config.advantage == HZP_ADVANTAGE_CLIENT, keep = client || g->config.keep;
    double mean = g->config.advantage == HZP_ADVANTAGE_NONE || !n ? 0 : sum / n;
    for (int32_t i = 0; i < g->config.members; i++)
        if (group->member[i].state == HZP_MEMBER_REWARDED) {
            double off = group->member[i].reward - mean;
            squares += off * off;
            group->member[i].advantage = client ? NAN : off;
        }
    if (client || n < (g->config.advantage == HZP_ADVANTAGE_NONE ? 1 : 2))
        return keep && n;
    double scale = g->config.advantage == HZP_ADVANTAGE_STD ? sqrt(squares / (n - 1)) + 1e-4 : 1;
    /* rewards that are alike give a mean that is off by rounding only */
    double least = 1e-9 * (1 + fabs(mean));
    for (int32_t i = 0; i < g->config.members; i++) {
        any |= fabs(group->member[i].advantage) > least;
        group->member[i].advantage /= scale;
    }
    return any || keep;
}

void hzp_rollout_table_end(struct hzp_rollout_table *g, int32_t group, int32_t member,
                           double reward)
{
    struct hzp_rollout_group *of = &g->group[group];
    struct hzp_rollout_member *m = &of->member[member];
    bool lost = isnan(reward);
    if (of->state != HZP_GROUP_OPEN || m->state != HZP_MEMBER_OPEN)
        return;
    m->state = lost ? HZP_MEMBER_LOST : HZP_MEMBER_REWARDED;
    m->reward = lost ? 0 : reward;
    g->lost += lost;
    g->rewards += !lost;
    g->reward_sum += m->reward;
    if (--of->open > 0)
        return;
    bool teaches = set_advantages(g, of);
    of->state = teaches ? HZP_GROUP_READY : HZP_GROUP_FREE;
    g->dropped += !teaches;
    g->dropped_in_row = teaches ? 0 : g->dropped_in_row + 1;
}

int32_t hzp_rollout_table_count(const struct hzp_rollout_table *g, enum hzp_group_state state)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->room; i++)
        n += g->group[i].state == state;
    return n;
}

int32_t hzp_rollout_table_take(struct hzp_rollout_table *g, bool rest, int32_t *ret)
{
    int32_t ready = 0, n = 0;
    for (int32_t i = 0; i < g->room; i++)
        ready += g->group[i].state == HZP_GROUP_READY && !g->group[i].waits;
    if (ready < g->config.batch && !(rest && ready > 0))
        return 0;
    while (n < HZP_MIN(ready, g->config.batch)) {
        int32_t first = -1;
        for (int32_t i = 0; i < g->room; i++)
            if (g->group[i].state == HZP_GROUP_READY && !g->group[i].waits &&
                (first < 0 || g->group[i].number < g->group[first].number))
                first = i;
        g->group[first].state = HZP_GROUP_TAKEN;
        ret[n++] = first;
    }
    g->taken += n;
    return n;
}

void hzp_rollout_table_release(struct hzp_rollout_table *g, int32_t group, bool unlearned)
{
    HZP_ASSERT(g->group[group].state == HZP_GROUP_TAKEN);
    g->group[group].state = HZP_GROUP_FREE;
    g->dropped += unlearned;
    g->taken -= unlearned;
}
