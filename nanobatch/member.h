/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/member.h - the engine of a rank that computes each step together with rank 0, which
 * alone schedules: a member of a tensor-parallel group.
 *
 * It receives the record of a step (step_record.h), makes the same batch and the same plan as rank
 * 0 by the same pure builder, runs it, and begins again.  It has weights, KV pages and spaces of
 * its own: of its part of the model.  Requests, queue, page allocation and text exist on rank 0
 * only.
 *
 * Where the group trains, the member's slices of a chain stand behind the rows' items, in turn.
 * `chain` builds the chain from the work that rank 0 sends; `ran` sees how far it is, and `publish`
 * makes the draft current that it has left.
 *
 * On a device that runs plans while the host does something else, the member is one step ahead, as
 * rank 0 is: it takes the record of step n + 1, plans it and issues it while step n runs, unless
 * something of step n + 1 follows from the end of step n (another version, another chain, the
 * tokens drawn).
 *
 * Rank 0 begins with steps of made-up rows (loop.h), by which algorithms are chosen here, too, and
 * what the device needs is made.  With the first step after them the device is steady.
 *
 * What ranks must agree on is compared in every step: the numbers of steps and versions, the hash
 * of the plan, and (a step later) of the tokens drawn.  Where they differ, and where its device
 * fails, the member fails the link with a line that names its rank; the group fails as a whole.
 *
 * Thread: engine, except hzp_member_read_stats: any.
 */
#pragma once

#include "nanobatch/model/forward.h"
#include "nanobatch/plan/plan_table.h"
#include "nanobatch/step_link.h"

struct hzp_member;

struct hzp_member_config {
    struct hzp_model *model;
    struct hzp_serve_space *space;
    struct hzp_batch *batch; /* the member creates a second one like it */
    const struct hzp_kv *kv; /* [layers] */
    struct hzp_step_limits limits;
    struct hzp_plan_shapes shapes;
    struct hzp_link *link; /* carries the records (step_link.h) */
    bool check_plans;      /* prove every plan race-free before it runs */
    /* For training (train/learner/by_step.h), borrowed by create, which runs each once on a device
     * that has graphs: so their algorithms are chosen.  NULL: none. */
    const struct hzp_plan *products;
    /* Rank 0 has published this version: it is to be current here, too, when this returns.  NULL:
     * the versions of this group never change. */
    int (*publish)(void *ctx, uint64_t id, struct hzp_err_text *reterr);
    /* The chain of which the record's slice is, made when it is named first; borrowed until another
     * one is asked for.  NULL: this group does not train. */
    int (*chain)(void *ctx, const struct hzp_step_record *record, const struct hzp_plan **ret,
                 struct hzp_err_text *reterr);
    /* A step has ended; what record->training.work points to is gone.  NULL: not wanted. */
    void (*ran)(void *ctx, const struct hzp_step_record *record, const struct hzp_version *version,
                const struct hzp_batch *batch);
    void *ctx;
};

/* All borrowed but the configuration, which is copied.  The current version is the one that rank 0
 * begins with.  HZP_ENOMEM, HZP_EDEVICE. */
int hzp_member_create(const struct hzp_member_config *config, struct hzp_member **ret);
void hzp_member_destroy(struct hzp_member *m); /* NULL: no effect */

/* Waits for one record and runs its step, or leaves it running: 1; 0: it was the end, and no step
 * runs.  Errors as of run. */
int hzp_member_turn(struct hzp_member *m, struct hzp_err_text *reterr);

/* Until rank 0 ends: HZP_OK.  HZP_EIO: the link failed, which names the rank; HZP_EFORMAT,
 * HZP_EINVAL: the ranks do not agree; HZP_EDEVICE: this rank's device failed. */
int hzp_member_run(struct hzp_member *m, struct hzp_err_text *reterr);

struct hzp_member_stats {
    uint64_t steps, rows, version; /* without made-up rows; version: of the newest step */
    uint64_t warms;                /* steps of made-up rows */
    uint64_t serve_ns;             /* how long its steps took on the device */
};
void hzp_member_read_stats(const struct hzp_member *m, struct hzp_member_stats *ret);
