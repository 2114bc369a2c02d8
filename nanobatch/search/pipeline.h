/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/pipeline.h - the pipeline of a step on several ranks: measured beside the same
 * step without it, and explained.
 *
 * Three plans of one step take turns on all ranks, so that slow changes of the machine affect them
 * alike:
 *     sequential      one nano-batch, one item at a time, all-reduces
 *     no overlap      the pipeline's nano-batches and its way of adding up, one item at a time
 *     the pipeline
 *
 * What limits the step is measured in the same runs, those without overlap: how long a rank's cores
 * computed (by what is limited by computing, and by what is limited by reading memory), and how
 * long its exchanges took, both by the plan in which that took the least.  Cores and link can at
 * best work at the same time, so no plan of these ops is faster than the longer of the two: the
 * limit.  The share of optimal is the limit over the plan's time.  Exchanges include waiting for
 * the other ranks, so on ranks that are not equally fast the network's limit is too high.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/search/crew.h"

enum hzp_pipeline_plan { HZP_PLAN_SEQUENTIAL, HZP_PLAN_CUT, HZP_PLAN_PIPELINE, HZP_PLAN_COUNT };

/* A step of `decode` rows at position `depth` and `prefill` rows of a prompt, and its shape. */
struct hzp_pipeline {
    struct hzp_plan_shape shape;
    int32_t decode, depth, prefill;
    /* measured: medians over the turns */
    int32_t turns;
    double ns[HZP_PLAN_COUNT];
    double gain[HZP_PLAN_COUNT]; /* sequential / this one, turn by turn */
    double compute_ns, memory_ns, network_ns, limit_ns;
    enum hzp_bound limit; /* COMPUTE, MEMORY or NETWORK */
};

/* The shape's nano-batches and its way of adding up, with everything on one lane. */
struct hzp_plan_shape hzp_pipeline_cut(const struct hzp_plan_shape *shape);

/* Two equal nano-batches that divide their rows, exchanges on a lane of their own: what is measured
 * where no pipeline was chosen. */
struct hzp_plan_shape hzp_pipeline_usual(void);

/* Whether exchanges of this shape can run beside products. */
bool hzp_pipeline_overlaps(const struct hzp_plan_shape *shape);

/* Runs the three plans on all ranks (rank 0's call) and sets what is measured; seconds: no further
 * turn begins after that, beyond the first three.  HZP_EINVAL: the rig is too small; HZP_EIO,
 * HZP_EDEVICE as hzp_crew_step. */
int hzp_pipeline_measure(struct hzp_pipeline *p, struct hzp_crew *crew, double seconds,
                         struct hzp_err_text *reterr);

/* Sets compute_ns .. limit from the busy times of the two plans without overlap, by enum hzp_bound;
 * of COPY nothing is expected. */
void hzp_pipeline_limit(struct hzp_pipeline *p, const double sequential[HZP_BOUND_COPY],
                        const double cut[HZP_BOUND_COPY]);

/* Prints each choice of the shape with its reason, then the measured times.  The rig gives the
 * bytes that a rank sends; its step is set.  ranks: of the group. */
void hzp_pipeline_print(const struct hzp_pipeline *p, struct hzp_rig *rig, int ranks, FILE *out);
