/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/crew.h - ranks that compute each step together measure and try shapes together:
 * rank 0 says what comes next, all do it at the same time, rank 0's times count.
 *
 *     part      one part of measure.h: each rank by itself, without exchanges
 *     link      exchanges alone, by the bytes that a rank sends; then each class of ops beside them
 *     step      a step of some rows by a shape, with its exchanges
 *     spent     how much processor time the others have taken, which is not that of strangers
 *
 * Orders go over the link that the exchanges use, between them, so there is one order on all ranks.
 * An order is checked before anything is done; ranks are of one build (mesh).
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/search/measure.h"

struct hzp_crew;

/* All borrowed.  The rig's model has the link (hzp_model_set_tensor). */
struct hzp_crew_config {
    struct hzp_rig *rig;
    struct hzp_tables *tables;
    struct hzp_measure *measure; /* measures these */
    struct hzp_link *link;
    uint64_t processors; /* the same number on ranks that may use the same ones; 0: unknown */
};

/* HZP_ENOMEM, HZP_EDEVICE. */
int hzp_crew_create(const struct hzp_crew_config *config, struct hzp_crew **ret);
void hzp_crew_destroy(struct hzp_crew *crew); /* NULL: no effect */

/* ---- rank 0; HZP_EIO: the link failed, and which rank; HZP_EDEVICE: this rank's device ---- */

int hzp_crew_part(struct hzp_crew *crew, struct hzp_err_text *reterr);
int hzp_crew_link(struct hzp_crew *crew, struct hzp_err_text *reterr);

/* A step of these rows; *ret_ns: from when all ranks were ready to when its last item had ended
 * here.  HZP_EINVAL: the rig is too small for it. */
int hzp_crew_step(struct hzp_crew *crew, const struct hzp_plan_shape *shape, int32_t decode,
                  int32_t depth, int32_t prefill, double *ret_ns, struct hzp_err_text *reterr);

/* How long the items of the newest step ran here, summed up by what their class uses up most; an
 * exchange's time includes waiting for the other ranks.  0: none of the kind. */
double hzp_crew_busy_ns(const struct hzp_crew *crew, enum hzp_bound bound);

/* *ret_ns: the processor time of the other ranks that may use this rank's processors, from when
 * they began. */
int hzp_crew_spent(struct hzp_crew *crew, double *ret_ns, struct hzp_err_text *reterr);

int hzp_crew_end(struct hzp_crew *crew, struct hzp_err_text *reterr);

/* ---- the other ranks ---- */

/* Does what rank 0 says until it ends: HZP_OK.  HZP_EFORMAT: an order that makes no sense here; the
 * link then fails, as after every error. */
int hzp_crew_follow(struct hzp_crew *crew, struct hzp_err_text *reterr);
