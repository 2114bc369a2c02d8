/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/search.h - finds the shape of a step: every shape of a list on paper, then small
 * changes to the best of them.
 *
 * Tried are the number and sizes of nano-batches, the order they are issued in, which lane each
 * kind of op goes to, the shares of the lanes, and whether training follows what serves on its lane
 * or runs beside it.  One nano-batch on one lane is always among them, and wins a draw.
 *
 * What counts: without training the step's duration; with it the training done per second, as a
 * part of what the whole device would do, in steps no longer than the goal.  A step carries as much
 * of the chain as the split (split.h) would let it: with a goal what that leaves, in whole items;
 * without one a share of a usual step, where an item that is longer is paid for by the steps behind
 * it and what is too short is saved (counted is the average over such steps), or, on lanes of its
 * own, as much as runs while such a step serves.  The same rules let most steps with prompts go
 * without training; one of them that has it gets what a step without prompts would.  Not known here
 * are policies (train_max, train_min), the split's distrust of its own predictions, and how often
 * prompts come.  Tried are slices from five places of the chain, from forward's begin to backward's
 * end, since they are not alike, and what counts is the five together.
 *
 * Training may also ride in serving's matrix products (ride.h), in chunks of some sizes, if the rig
 * has room for it.  Its forward pass then goes by chunks also where it does not ride, which takes
 * longer: what is done counts as long as it would take without chunks.
 *
 * Thread: one at a time.
 */
#ifndef HZP_NANOBATCH_SEARCH_SEARCH_H
#define HZP_NANOBATCH_SEARCH_SEARCH_H

#include "nanobatch/run/exec.h"
#include "nanobatch/plan/plan_table.h"
#include "nanobatch/search/rig.h"
#include "nanobatch/search/simulate.h"

struct hzp_search_config {
    struct hzp_rig *rig;             /* any device: nothing is computed */
    const struct hzp_tables *tables; /* borrowed */
    double goal_ns; /* longest step that trains; 0: train_share of a usual step longer */
    double train_share;
    int32_t tries; /* small changes, for each of the best */
    uint64_t seed;
};

struct hzp_search;

int hzp_search_create(const struct hzp_search_config *config, struct hzp_search **ret);
void hzp_search_destroy(struct hzp_search *s); /* NULL: no effect */

/* The best shape for a step of so many rows, decode rows at position `depth`; train 0: it does not
 * train.  HZP_EINVAL: the rig is too small for it. */
int hzp_search_step(struct hzp_search *s, int32_t decode, int32_t depth, int32_t prefill,
                    int32_t train, struct hzp_plan_entry *ret);

/* Runs the entry's shape and the sequential plan in turns on the search's rig, whose device must
 * compute: what was found on paper is the best of many predictions, and so likely one of the rosier
 * ones.  Sets entry->confirmed; where the shape does not win, or misses the goal that the
 * sequential plan meets, the sequential plan takes its place.  most_ns: so long the runs may take;
 * 0: as long as they do.  Where that is too short for the fewest the entry stays unconfirmed.
 * HZP_EDEVICE is final. */
int hzp_search_confirm(struct hzp_search *s, struct hzp_exec *exec, int32_t depth, double most_ns,
                       struct hzp_plan_entry *entry);

/* How many shapes were tried since create. */
int64_t hzp_search_tried(const struct hzp_search *s);

#endif
