/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/edits.h"

#include "base/err.h"

#include <math.h>
#include <stdlib.h>

struct entry {
    struct hzp_logit_edit edit;
    bool stops; /* banned while min_tokens is not reached */
};

struct hzp_edits {
    bool penalties; /* generated tokens are added to the list */
    int32_t count, room;
    uint32_t mask;
    struct entry *entry; /* [room], in order of appearance */
    int32_t *slot;       /* [mask + 1] hash from token to entry + 1; 0: empty */
};

int32_t hzp_edits_needed(const struct hzp_edit_rules *rules)
{
    int64_t most = (int64_t)rules->biases + rules->bans[0] + rules->bans[1];
    if (rules->penalties)
        most += (int64_t)rules->prompt_count + rules->max_tokens;
    return (int32_t)HZP_MIN(most, rules->vocab);
}

/* The token's entry; a new one if it has none. */
static struct entry *entry_of(struct hzp_edits *edits, int32_t token)
{
    uint32_t at = (uint32_t)token * 2654435761u & edits->mask;
    while (edits->slot[at]) {
        struct entry *entry = &edits->entry[edits->slot[at] - 1];
        if (entry->edit.token == token)
            return entry;
        at = (at + 1) & edits->mask;
    }
    HZP_ASSERT(edits->count < edits->room);
    struct entry *entry = &edits->entry[edits->count++];
    *entry = (struct entry){.edit.token = token};
    edits->slot[at] = edits->count;
    return entry;
}

int hzp_edits_create(const struct hzp_edit_rules *rules, struct hzp_edits **ret)
{
    *ret = NULL;
    int32_t room = hzp_edits_needed(rules);
    if (!room)
        return HZP_OK;
    uint32_t slots = 8;
    while (slots < 2 * (uint32_t)room)
        slots *= 2;
    struct hzp_edits *edits = calloc(1, sizeof(*edits));
    if (!edits)
        return HZP_ENOMEM;
    edits->entry = calloc((size_t)room, sizeof(*edits->entry));
    edits->slot = calloc(slots, sizeof(*edits->slot));
    if (!edits->entry || !edits->slot) {
        hzp_edits_destroy(edits);
        return HZP_ENOMEM;
    }
    edits->room = room;
    edits->mask = slots - 1;
    edits->penalties = rules->penalties;

    for (int32_t i = 0; i < rules->biases; i++)
        entry_of(edits, rules->bias_token[i])->edit.bias = rules->bias[i];
    for (int list = 0; list < HZP_COUNT(rules->ban); list++)
        for (int32_t i = 0; i < rules->bans[list]; i++)
            entry_of(edits, rules->ban[list][i])->stops = true;
    for (int32_t i = 0; i < rules->prompt_count && edits->penalties; i++)
        entry_of(edits, rules->prompt[i])->edit.seen = 1;
    *ret = edits;
    return HZP_OK;
}

void hzp_edits_destroy(struct hzp_edits *edits)
{
    if (!edits)
        return;
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
    return edits && edits->penalties;
}

void hzp_edits_generated(struct hzp_edits *edits, int32_t token)
{
    if (!edits || !edits->penalties)
        return;
    struct entry *entry = entry_of(edits, token);
    entry->edit.count_out++;
    entry->edit.seen = 1;
}

void hzp_edits_write(const struct hzp_edits *edits, bool ban, struct hzp_logit_edit *ret)
{
    for (int32_t i = 0; i < hzp_edits_count(edits); i++) {
        ret[i] = edits->entry[i].edit;
        if (ban && edits->entry[i].stops)
            ret[i].bias = -INFINITY;
    }
}
