/* SPDX-License-Identifier: Apache-2.0 */
/* weights/groups.h - which rank holds which part of parameters, gradients and optimizer state.
 *
 * R ranks form three kinds of groups: z3 ranks share one copy of the parameters, z2 ranks one copy
 * of the gradients, z1 ranks one copy of the optimizer state (moments, residuals).  z3 divides z2,
 * z2 divides z1, z1 divides R; a group of one rank holds everything.  A rank is written in digits:
 *
 *     rank = d3 + z3 (d2 + (z2 / z3) (d1 + (z1 / z2) d0))
 *
 * so the ranks of a group, and those of the groups inside it, are neighbours.  A unit is padded and
 * cut into equal shards; the shard of a level has the position
 *
 *     parameters       d3                                                          of z3
 *     gradients        d3 (z2 / z3) + d2                                           of z2
 *     optimizer state  (d3 (z2 / z3) + d2) (z1 / z2) + d1                          of z1
 *     all ranks        ((d3 (z2 / z3) + d2) (z1 / z2) + d1) (R / z1) + d0          of R
 *
 * Invariant: shards nest.  A rank's part at a level lies within its part at the level above, all
 * of them contiguous.
 *
 * Stages are another way to divide a model: each rank holds whole units, those of layers that
 * follow each other, and rank 0 the ends of the model, too.
 *
 * Thread: any.
 */
#pragma once

#include "weights/layout.h"

/* Sums of squares go by blocks of this many elements, so that a block never lies in two shards. */
enum { HZP_BLOCK_ELEMENTS = 4096, HZP_GROUP_RANKS_MAX = 1024 };
enum { HZP_STAGE_SPEEDS_MAX = 16 }; /* stages of which speeds can be told apart */

struct hzp_groups {
    int32_t ranks, z1, z2, z3;
};

/* The shards of one rank; all zero: there is one rank, which holds everything. */
struct hzp_shards {
    struct hzp_groups groups;
    int32_t rank;
    /* gradients are summed in an order that does not depend on the number of ranks */
    bool ordered;
    /* Above 1: the ranks are so many stages, and the groups those of one rank.  This one has layers
     * [layer, layer_end), and as rank 0 the embedding, the final norm and the head, too. */
    int32_t stages, layer, layer_end;
    /* How fast each stage computes, in hundredths of the fastest one; 0: equally fast. */
    uint8_t speed[HZP_STAGE_SPEEDS_MAX];
};

/* The speed of a stage in hundredths; 100 where none was given. */
int32_t hzp_stage_speed(const struct hzp_shards *shards, int32_t stage);

/* Cuts the layers of a model into stages that take about equally long: of elements in proportion to
 * their speeds, the head counted as rank 0's.  Fills in the layers of shards->rank.  HZP_EINVAL:
 * fewer layers than stages. */
int hzp_stages_cut(struct hzp_shards *shards, const struct hzp_layout *layout,
                   struct hzp_err_text *reterr);

/* Whether this rank holds unit u, of `units`, or a shard of it; false: it is another stage's. */
bool hzp_shards_hold(const struct hzp_shards *shards, int32_t units, int32_t u);

/* Whether the parameters of each unit are whole on this rank. */
bool hzp_shards_whole(const struct hzp_shards *shards);

/* The same with the groups of one rank filled in. */
struct hzp_shards hzp_shards_of(const struct hzp_shards *shards);

/* Whether a micro-batch's gradients go to a ring first, from which they are added to the sums;
 * otherwise products add to the sums at once. */
bool hzp_shards_fresh(const struct hzp_shards *shards);

/* How finely something is cut into shards. */
enum hzp_level {
    HZP_LEVEL_PARAMS, /* z3 shards */
    HZP_LEVEL_GRADS,  /* z2 shards */
    HZP_LEVEL_STATE,  /* z1 shards */
    HZP_LEVEL_RANKS,  /* R shards */
    HZP_LEVEL_COUNT
};

/* Sets of ranks that exchange data.  The members of each are ordered by the position of what they
 * hold, so blocks of a gather or a scatter in the order of the members are contiguous shards. */
enum hzp_group {
    HZP_GROUP_PARAMS,  /* z3: gathers a unit's parameters */
    HZP_GROUP_GRADS,   /* z2: scatters a micro-batch's gradients */
    HZP_GROUP_STATE,   /* z1: holds one copy of the optimizer state */
    HZP_GROUP_SUM,     /* z1 / z2: scatters summed gradients from z2 shards to z1 shards */
    HZP_GROUP_REFRESH, /* z1 / z3: gathers updated parameters from z1 shards to z3 shards */
    HZP_GROUP_COPIES,  /* R / z1: ranks that hold the same part of the optimizer state */
    HZP_GROUP_RANKS,   /* R: all ranks */
    HZP_GROUP_COUNT
};

/* HZP_EINVAL names the option that is wrong and what it must divide. */
int hzp_groups_check(const struct hzp_groups *groups, struct hzp_err_text *reterr);

/* A unit's elements are padded to a multiple of this: z1 blocks; 1 with one rank.  ordered: R
 * blocks, because gradients, summed in an order that does not depend on the number of ranks, are
 * cut into R shards. */
size_t hzp_groups_granule(const struct hzp_groups *groups, bool ordered);

/* Into how many shards a level is cut, and which of them, from 0, the rank has. */
int32_t hzp_groups_shards(const struct hzp_groups *groups, enum hzp_level level);
int32_t hzp_groups_position(const struct hzp_groups *groups, enum hzp_level level, int32_t rank);

/* A rank's shard of a unit of `room` elements, which is a multiple of the granule. */
struct hzp_extent hzp_groups_extent(const struct hzp_groups *groups, enum hzp_level level,
                                    int32_t rank, size_t room);

/* The members of this rank's group, in order; returns how many.  ret [HZP_GROUP_RANKS_MAX]. */
int32_t hzp_groups_members(const struct hzp_groups *groups, enum hzp_group group, int32_t rank,
                           int *ret);

/* --- Memory and wire -------------------------------------------------------------------------- */

/* What the sums below depend on. */
struct hzp_groups_model {
    size_t elements; /* in all units; padding included, here and below */
    /* The rings have places for the largest unit.  A tied embedding, which both ends of the model
     * use, has a place of its own instead: its elements; 0: not tied. */
    size_t largest, tied;
    size_t embedding;    /* of the embedding alone: its moments are F32 where others are Q8 */
    enum hzp_dtype type; /* the parameters' type */
    enum hzp_dtype moment_type;
    int32_t slots;  /* versions */
    int32_t micros; /* micro-batches of one rank in an update, for the wire */
    bool ordered;
};

/* Of the units that this rank holds, with their sizes padded for the groups. */
struct hzp_groups_model hzp_groups_model(const struct hzp_shards *shards,
                                         const struct hzp_layout *layout);

/* Bytes of one rank, with P elements, the largest unit u, a tied embedding e, w bytes a parameter
 * and m a moment (Q8: 1 + 4 / 256, in units other than the embedding):
 *     slots w P / z3  +  4 P / z2  +  (2 m + [BF16] 2) P / z1
 *     + [z3 > 1] w (3 u + e)  +  [z2 > 1] 4 (2 u + e)
 * In the ordered mode gradients are 4 P / R (+ 4 P / z1 if z1 < R), and their ring is always
 * there. */
struct hzp_groups_bytes {
    size_t weights, grads, state;
    size_t residuals; /* that are part of state */
    size_t gathered;  /* the ring of gathered parameters */
    size_t fresh;     /* the ring of one micro-batch's gradients */
    size_t total;
};
struct hzp_groups_bytes hzp_groups_bytes(const struct hzp_groups *groups,
                                         const struct hzp_groups_model *model);

/* Bytes that one rank sends (and receives), each group of n counted as (n - 1) / n of what it
 * gathers or scatters:
 *     a micro-batch  2 w P (z3 - 1) / z3  +  4 P (z2 - 1) / z2
 *     an update      micros times that  +  4 P / z2 (1 - z2 / z1)  +  2 x 4 P / z1 (1 - z1 / R)
 *                    +  w P / z3 (1 - z3 / z1)
 * An embedding's zeros, which links between processes leave out, are counted.
 * In the ordered mode a micro-batch scatters over all ranks, 4 P (R - 1) / R, and an update gathers
 * 4 P / z1 (1 - z1 / R) instead of the two middle terms. */
struct hzp_groups_wire {
    double micro, update;
};
struct hzp_groups_wire hzp_groups_wire(const struct hzp_groups *groups,
                                       const struct hzp_groups_model *model);

/* Chooses what is 0 in *groups (z1, z2, z3; ranks is given): of all choices whose bytes are at most
 * `limit` the one that sends the least in an update, of equal ones the one with smaller groups.
 * HZP_ENOMEM: none fits; the text says what the smallest needs.  report (NULL: not wanted) gets
 * one line for each choice that was considered. */
int hzp_groups_choose(struct hzp_groups *groups, const struct hzp_layout *layout,
                      const struct hzp_groups_model *model, size_t limit, FILE *report,
                      struct hzp_err_text *reterr);
