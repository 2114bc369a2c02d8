/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/paths/paths_private.h - what the files of the module share; sets of stages are bits.
 * Thread: any. */
#pragma once

#include "mesh/paths/paths.h"

#define HZP_PATHS_BAD(...) hzp_fail(reterr, HZP_EINVAL, "paths: " __VA_ARGS__)

/* Stages on a path: (1 - skip) of them, rounded, but at least the kept ones. */
int hzp_paths_length(const struct hzp_paths_problem *p);
/* How wide the gaps of a path of these stages are, long ones more than so; -1: none may be so. */
int hzp_paths_gaps(const struct hzp_paths_problem *p, uint32_t set);
/* ret_set [micros], the least trained stages first; false: runs of skips prevent even shares. */
bool hzp_paths_deal(const struct hzp_paths_problem *p, uint64_t seed, uint32_t *ret_set);
/* The most micro-batches that stage s, which is not kept, may train. */
int hzp_paths_share(const struct hzp_paths_problem *p, int s);
/* Micro-batch m's home: the nodes of stage 0 in turns. */
int hzp_paths_home(const struct hzp_paths_problem *p, int m);
/* Seconds of a transfer that waits for no other. */
double hzp_paths_transfer(const struct hzp_paths_problem *p, int from, int to);

/* HZP_EINVAL: m's path breaks a constraint of paths.  count [stages]: its stages are added. */
int hzp_paths_path_check(const struct hzp_paths_problem *p, const struct hzp_paths_plan *plan,
                         int m, int *count, struct hzp_err_text *reterr);

/* Step k on a path of length L: 0 to L - 1 forward, L the head, L + 1 to 2 L backward. */
static inline int hzp_paths_at(int length, int k)
{
    return k < length ? k : k == length ? 0 : 2 * length - k;
}

static inline enum hzp_paths_kind hzp_paths_kind_of(int length, int k)
{
    return k < length ? HZP_PATHS_FORWARD : k == length ? HZP_PATHS_HEAD : HZP_PATHS_BACKWARD;
}

static inline double hzp_paths_seconds(const struct hzp_paths_node *node, enum hzp_paths_kind kind)
{
    return kind == HZP_PATHS_HEAD ? node->head_s : node->forward_s * (kind ? 1.5 : 1);
}
