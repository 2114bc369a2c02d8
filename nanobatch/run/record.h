/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/run/record.h - writes what a plan's items did to the timeline (base/timeline.h), one
 * track a lane.
 *
 * Short items are written together, up to a millisecond of one tenant's: a step of many short ops
 * then costs no more than one of few long ones, and a ring reaches back for seconds.
 *
 * Thread: engine.
 */
#pragma once

#include "base/timeline.h"
#include "nanobatch/plan/plan.h"

struct hzp_record {
    struct hzp_track *lane[HZP_LANE_COUNT]; /* NULL: no item has run on the lane */
};

/* Closes the tracks; zeroed memory is an empty record. */
void hzp_record_fini(struct hzp_record *r);

/* span[i]: when item i ran, by the clock of hzp_now_ns. */
void hzp_record_run(struct hzp_record *r, const struct hzp_plan *plan, const struct hzp_span *span);
