/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/collectives_state.h - the struct of collectives.h, private to the files that
 * implement it and to their tests.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/train_space_state.h"
#include "train/learner/collectives.h"

/* The kinds of transfers, in the upper bits of their tags; the unit is in the lower ones. */
enum hzp_collectives_tag {
    HZP_TAG_WORK = 1,
    HZP_TAG_FOLLOW,
    HZP_TAG_GATHER,
    HZP_TAG_SCATTER,
    HZP_TAG_LOSS,
    HZP_TAG_SUM,
    HZP_TAG_COPIES,
    HZP_TAG_SQUARES,
    HZP_TAG_REFRESH,
    HZP_TAG_RESULT,
    HZP_TAG_STATE,
    HZP_TAG_FILL,
    HZP_TAG_COMPARE,
    HZP_TAG_READY,
    HZP_TAG_STAGE,
};

/* What one rank found in its audit of the draft. */
struct hzp_rank_result {
    double sumsq;
    uint64_t checksum;
    int64_t nonfinite;
};

/* The places that parameters are gathered into: unit u's is u % 3, but a tied embedding has one of
 * its own, the last.  What a place holds stays there for the next micro-batch. */
struct hzp_gather_ring {
    int32_t unit[4];     /* that it holds, or that is on its way; -1: none of the version read */
    int32_t gathered[4]; /* the gather in the list; -1: done, or none */
};

/* The audit of an update's draft, a chain of its own beside that of the next micro-batch. */
struct hzp_draft_audit {
    struct hzp_plan chain;
    int32_t *first;       /* [units] item of each unit's audit */
    int32_t at, to;       /* items [0, at) have ended, [at, to) are offered or in flight */
    bool built, compared; /* compared: with all ranks */
};

struct hzp_collectives {
    struct hzp_collectives_config config;
    int group[HZP_GROUP_COUNT]; /* numbers on the link; of groups of one rank: not used */
    int32_t size[HZP_GROUP_COUNT];
    int pair[HZP_LINK_RANKS_MAX]; /* stages: the groups of this rank with another one */
    struct hzp_transfers list;
    struct hzp_work work; /* the newest that was sent or heard */
    struct {
        char head[HZP_WORK_HEAD];
        uint64_t sum; /* of the head and of what follows */
    } wire;
    struct hzp_works follow;
    int32_t sent_entry;    /* the newest work's transfer in the list, or that of what follows it */
    double *loss, *losses; /* [rounds_room] of this rank's micro-batches; [ranks][rounds] of all */
    int32_t rounds, rounds_room;
    /* Transfers in the list, -1: done or none.  scatter: that frees each place of fresh gradients,
     * the last one a tied embedding's; reduced: after which a unit's sums are complete; refresh:
     * with which a unit of the draft has arrived; updated: without which AdamW does not begin. */
    int32_t scatter[3], *reduced, *refresh; /* [units] */
    int32_t updated;
    struct hzp_gather_ring ring;
    struct hzp_rank_result mine, *results; /* [ranks] in the order of HZP_GROUP_RANKS */
    const struct hzp_version *draft;       /* the update's */
    struct hzp_draft_audit audit;
    void *stage;                                /* hzp_collectives_stage; NULL: not taken yet */
    struct hzp_rank_filled filled, *all_filled; /* all: [ranks] in the order of HZP_GROUP_RANKS */
    bool failed;
    struct hzp_err_text error;
};

static inline uint64_t hzp_collectives_tag(enum hzp_collectives_tag tag, int32_t u)
{
    return (uint64_t)tag << 32 | (uint32_t)u;
}

/* The address of the resident part of unit u, which is resident. */
static inline void *hzp_unit_base(const struct hzp_units *units, int32_t u)
{
    struct hzp_unit_view view = hzp_unit_view(units, u);
    HZP_ASSERT(view.base);
    return view.base;
}

/* --- stages.c --------------------------------------------------------------------------------- */

/* Opens the groups of two stages: of all, if they are few enough for paths, or of neighbours; the
 * first and the last stage are neighbours, too. */
int hzp_collectives_open_pairs(struct hzp_collectives *x, struct hzp_err_text *reterr);
/* What this rank sends to another stage, or gets from it. */
struct hzp_transfer hzp_collectives_pass(const struct hzp_collectives *x, int32_t other, bool sends,
                                         void *data, size_t bytes, uint64_t tag);

/* --- collectives.c ---------------------------------------------------------------------------- */

/* Of a group's chain: in front of each exchange between groups, or of several with one tag, a
 * transfer of nothing. */
void hzp_collectives_add_gates(struct hzp_collectives *x, const struct hzp_plan *chain);
/* Transfers are about to be appended: clears the list if it is done. */
void hzp_collectives_append(struct hzp_collectives *x);
/* The units of a part of the state; weights: of version v. */
const struct hzp_units *hzp_collectives_part(const struct hzp_collectives *x,
                                             enum hzp_state_part part, const struct hzp_version *v);
/* Another version is read from here on. */
void hzp_collectives_empty_ring(struct hzp_collectives *x);
/* Gathers unit u of version v, after `after` items, if a forward pass begins with it. */
void hzp_collectives_gather_first(struct hzp_collectives *x, const struct hzp_version *v, int32_t u,
                                  int32_t after);
