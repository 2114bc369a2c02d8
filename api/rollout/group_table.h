/* SPDX-License-Identifier: Apache-2.0 */
/* api/rollout/group_table.h - the table of groups: which answers to a prompt are there, what they
 * were rewarded with, and which groups an update learns from.
 *
 * A group is the n answers to one prompt, its members.  Each member ends once: with a reward, or
 * lost (aborted, or its reward did not come in time).  When all have ended the group is complete,
 * and has advantages, of the members that were not lost:
 *
 *     STD     (R - mean) / (std + 1e-4)      std: of n members, divided by n - 1
 *     MEAN    R - mean
 *     NONE    R
 *     CLIENT  NAN: the owner writes it later, and every such group is ready
 *
 * A complete group that teaches nothing is dropped, because all its advantages are 0, or fewer than
 * two members are left where the mean counts; another one may begin in its place.  Ready groups are
 * taken `batch` at a time, for one update, the ones that began first before others.
 *
 * Invariants.  With u updates done, group number j (from 1, without the dropped ones) begins only
 * if floor((j - 1) / batch) <= u + staleness: so an answer that is begun is learned by an update at
 * most `staleness` later than the one it could have been learned by.  Numbers that are to begin
 * again, as in a process before this one, do so first.  A lost member never keeps its
 * group from being complete.  A group is taken once.  At most `batch` (staleness + 1) groups are
 * held, and at most `most`, which is how the owner bounds bytes: a further one waits, and none that
 * was begun is given up for it.
 *
 * Thread: the owner's.
 */
#pragma once

#include "base/base.h"

enum hzp_advantage {
    HZP_ADVANTAGE_STD,
    HZP_ADVANTAGE_MEAN,
    HZP_ADVANTAGE_NONE,
    HZP_ADVANTAGE_CLIENT
};
enum hzp_member_state { HZP_MEMBER_OPEN, HZP_MEMBER_REWARDED, HZP_MEMBER_LOST };
enum hzp_group_state { HZP_GROUP_FREE, HZP_GROUP_OPEN, HZP_GROUP_READY, HZP_GROUP_TAKEN };

struct hzp_rollout_member {
    enum hzp_member_state state;
    double reward, advantage; /* the latter once its group is complete */
};

struct hzp_rollout_group {
    enum hzp_group_state state;
    int64_t number; /* from 1, in the order of their beginnings, dropped ones too */
    int32_t open;   /* members that have not ended */
    bool waits;     /* READY, and not to be taken yet: the owner sets it */
    struct hzp_rollout_member *member; /* [members] */
};

struct hzp_rollout_table_config {
    int32_t members;   /* >= 1 */
    int32_t batch;     /* groups of one update, >= 1 */
    int32_t staleness; /* >= 0 */
    int32_t most;      /* groups held at once, >= batch; 0: as many as the bound above allows */
    enum hzp_advantage advantage;
    bool keep; /* a group with a reward is not dropped, though it teaches nothing */
};

struct hzp_rollout_table {
    struct hzp_rollout_table_config config;
    struct hzp_rollout_group *group; /* [room] */
    int32_t room;
    int64_t *again; /* [room] numbers that begin again, ascending */
    int32_t agains;
    int64_t begun, dropped, taken, lost; /* groups; lost: members */
    int64_t dropped_in_row;              /* since a group was ready */
    int64_t rewards;                     /* members rewarded, */
    double reward_sum;                   /* and the sum of their rewards */
};

void hzp_rollout_table_init(struct hzp_rollout_table *ret,
                            const struct hzp_rollout_table_config *config);
void hzp_rollout_table_fini(struct hzp_rollout_table *g); /* also of one that is all 0 */

/* This number, of a group that had begun, begins once more; at most `room` of them. */
void hzp_rollout_table_again(struct hzp_rollout_table *g, int64_t number);

/* Begins a group if the bound allows it.  Returns its index; -1: not now. */
int32_t hzp_rollout_table_begin(struct hzp_rollout_table *g, int64_t updates);

/* The member has ended; no effect if it had before.  reward NAN: it is lost.  If it was the last
 * one, the group is READY then, or FREE: dropped. */
void hzp_rollout_table_end(struct hzp_rollout_table *g, int32_t group, int32_t member,
                           double reward);

/* Writes the indices of the `batch` groups for the next update, in the order of their numbers.
 * If fewer are ready, and do not wait, it writes these with `rest`, and none without.  Returns how
 * many. */
int32_t hzp_rollout_table_take(struct hzp_rollout_table *g, bool rest, int32_t *ret);

/* A taken group is done with; unlearned: no update has it, so another one may begin. */
void hzp_rollout_table_release(struct hzp_rollout_table *g, int32_t group, bool unlearned);

/* How many are in this state. */
int32_t hzp_rollout_table_count(const struct hzp_rollout_table *g, enum hzp_group_state state);
