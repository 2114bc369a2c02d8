/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/group.h - ranks that compute each step together (--tensor): what such a group needs,
 * and the numbers its ranks must have in common.
 *
 * Rank 0 is a server like any other, whose loop tells the group each step (nanobatch/step_link.h);
 * the others: follow.h. There may be several groups (axes.h), of which one serves.  The link of all
 * ranks carries the start; each of the links beside it has an order of its own.  When a rank is
 * lost, the control thread fails the link on all ranks, so a thread that waits for a step returns,
 * because those links fail with it: all groups end as a whole.
 *
 * Thread: the one that owns the link.
 */
#pragma once

#include "api/engine/settings.h"

/* Whether so many ranks can serve this model in groups of settings->ranks.tensor; of the model only
 * its configuration is read.  HZP_EINVAL: the number of ranks, or what of the model they do not
 * divide. */
int hzp_group_check(const struct hzp_engine_settings *settings, int ranks,
                    struct hzp_err_text *reterr);

/* What rank 0 begins with: which version, and from where. */
struct hzp_group_start {
    uint64_t first_id; /* the first version's */
    int32_t learned;   /* 1: dir is a checkpoint, whose state of the optimizer is loaded, too */
    char dir[PATH_MAX];
};

/* The first that all ranks of a group do together: HZP_EINVAL if some learn and others do not;
 * HZP_EIO. */
int hzp_group_agree_learning(struct hzp_link *link, bool learns, struct hzp_err_text *reterr);

/* The next, where they learn: *start is rank 0's afterwards.  HZP_EIO. */
int hzp_group_tell_start(struct hzp_link *link, struct hzp_group_start *start,
                         struct hzp_err_text *reterr);

/* A number that all ranks of a group must have in common, and how it is called. */
struct hzp_group_number {
    const char *name;
    int64_t value;
};
enum { HZP_GROUP_NUMBERS_MAX = 24 };

/* Compares the numbers with those of all ranks; each calls it at the same point of its start.
 * HZP_EINVAL names the first rank and number that differ from rank 0's; HZP_EIO: the link
 * failed. */
int hzp_group_compare(struct hzp_link *link, const struct hzp_group_number *number, int count,
                      struct hzp_err_text *reterr);

/* The same of a word, of which 15 characters count. */
int hzp_group_compare_word(struct hzp_link *link, const char *name, const char *word,
                           struct hzp_err_text *reterr);

/* The first rank whose value differs from rank 0's, and the values of rank 0 and of that one;
 * *ret_rank 0: all have the same.  HZP_EIO: the link failed. */
int hzp_group_differs(struct hzp_link *link, int64_t value, int *ret_rank, int64_t ret_value[2],
                      struct hzp_err_text *reterr);

/* The smallest value of any rank, in *value; waits until all ranks have come so far. */
int hzp_group_least(struct hzp_link *link, int64_t *value, struct hzp_err_text *reterr);
