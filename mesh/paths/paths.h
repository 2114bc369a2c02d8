/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/paths/paths.h - which stages each micro-batch visits, on which nodes, and the order in which
 * nodes work: a pipeline over slow links whose micro-batches leave stages out and may swap
 * neighbours (SkipPipe, arXiv 2502.19913, as in gensyn-ai/skippipe 7f20d8a).
 *
 * A micro-batch begins on its home, a node of stage 0, goes forward along its path, returns to the
 * home for head and loss, goes back along the path and ends at the home.  Of every plan:
 *   - paths have equal lengths, begin with stage 0, visit no stage twice, have the first `kept`
 *     stages, at most `swaps` swaps of neighbours, and skip at most HZP_PATHS_RUN stages in a row;
 *   - the other stages train equally many micro-batches, or one more or less (with `turn`, which
 *     says whose turn it is to train one more, so that many problems together are even, too);
 *   - no node holds more micro-batches, from forward to backward, than its memory;
 *   - the nodes' orders can be followed without a clock and never come to a halt.
 * hzp_paths_check() proves these of any plan.  A node does one thing at a time; a link carries one
 * transfer at a time in each direction, and latencies pass side by side.
 *
 * The same problem gives the same plan.  With memory S - s on stage s of S, and no skips, orders
 * are those of 1F1B.
 *
 * Thread: any; nothing is kept between calls. */
#pragma once

#include "base/err.h"

enum {
    HZP_PATHS_NODES = 64,
    HZP_PATHS_STAGES = 16,
    HZP_PATHS_MICROS = 64,
    HZP_PATHS_OPS = 3 * HZP_PATHS_MICROS, /* a node has: forward, head, backward */
    HZP_PATHS_RUN = 4,
    HZP_PATHS_SWAPS = 2,
};

struct hzp_paths_node {
    int32_t stage, memory; /* memory: the most micro-batches between their forward and backward */
    double forward_s;      /* one micro-batch takes; its backward 1.5 times as long */
    double head_s;         /* head and loss, both ways; counts on stage 0 */
};

struct hzp_paths_link {
    double latency_s, busy_s; /* busy: bytes / rate, for which the next transfer waits */
};

struct hzp_paths_problem {
    int32_t stages, nodes, micros, swaps;
    int32_t kept;   /* stages from the first that every path has, 1 or more */
    int32_t budget; /* simulated candidates; 0: 2000 */
    int32_t turn;   /* t > 0: those that train one more are stages kept + t - 1 and the next ones,
                     * the first of the others after the last; 0: any */
    double skip;    /* the part of the stages that a path leaves out, 0 <= skip < 1 */
    struct hzp_paths_node node[HZP_PATHS_NODES];
    struct hzp_paths_link link[HZP_PATHS_NODES][HZP_PATHS_NODES]; /* [from][to] */
};

enum hzp_paths_kind { HZP_PATHS_FORWARD, HZP_PATHS_HEAD, HZP_PATHS_BACKWARD };

struct hzp_paths_op {
    uint8_t micro, kind;
};

struct hzp_paths_plan {
    int32_t length, candidates; /* stages on a path; candidates that were simulated */
    double seconds, first_s;    /* until all is done; likewise of the first candidate */
    uint8_t path[HZP_PATHS_MICROS][HZP_PATHS_STAGES]; /* nodes, in the order of the forward */
    int32_t ops[HZP_PATHS_NODES];
    struct hzp_paths_op order[HZP_PATHS_NODES][HZP_PATHS_OPS];
};

/* HZP_EINVAL: the problem is malformed or has no plan; the text names the node, stage, link or
 * field at fault.  hzp_paths_dealt(), _order() and _simulate() want a problem that passed. */
int hzp_paths_problem_check(const struct hzp_paths_problem *p, struct hzp_err_text *reterr);

/* Conflict-based search; *ret is the caller's.  HZP_EINVAL as above, HZP_ENOMEM. */
int hzp_paths_plan(const struct hzp_paths_problem *p, struct hzp_paths_plan *ret,
                   struct hzp_err_text *reterr);

/* Paths without a search: shuffled sets of stages, the nodes of a stage in turns, no swaps.  seed
 * 0: no shuffle, and the nearest of the nodes first; with skip 0 that is the full pipeline. */
void hzp_paths_dealt(const struct hzp_paths_problem *p, uint64_t seed, struct hzp_paths_plan *ret);

/* Fills ops, order and seconds of a plan whose length and paths are given: what can begin first
 * comes first, backward and head before forward.  A forward waits for memory of its node, and as
 * long as micro-batches on swapped paths could come to wait for one another's memory. */
void hzp_paths_order(const struct hzp_paths_problem *p, struct hzp_paths_plan *plan);

/* The seconds of a plan whose nodes follow its orders, exactly; paths must be of its nodes.
 * HZP_EINVAL: nodes wait for ever, or an order has other ops than the paths; the text names one. */
int hzp_paths_simulate(const struct hzp_paths_problem *p, const struct hzp_paths_plan *plan,
                       double *ret_seconds, struct hzp_err_text *reterr);

/* HZP_EINVAL: the plan breaks a constraint; the text names the first and where it is. */
int hzp_paths_check(const struct hzp_paths_problem *p, const struct hzp_paths_plan *plan,
                    struct hzp_err_text *reterr);
