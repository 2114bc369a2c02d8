/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/step_link.h - carries the records of steps from rank 0 to the ranks that compute each
 * step together with it.
 *
 * A record is a broadcast of fixed size, and a second one if it is longer.  It is posted between
 * two steps, on the link that moves what plans exchange: so the order is the same on all ranks, and
 * a step begins on no rank before all have its record.  Rank 0 loses to that only what the slowest
 * rank needs to come so far, which its step would wait for anyway.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_STEP_LINK_H
#define HZP_NANOBATCH_STEP_LINK_H

#include "device/link.h"
#include "nanobatch/step_record.h"

struct hzp_step_link;

struct hzp_step_link_config {
    struct hzp_link *link;         /* borrowed */
    struct hzp_batch_config max;   /* of the steps' batches, and */
    struct hzp_step_limits limits; /* the rest: equal on all ranks */
};

/* It cannot fail. */
struct hzp_step_link *hzp_step_link_create(const struct hzp_step_link_config *config);
void hzp_step_link_destroy(struct hzp_step_link *l); /* NULL: no effect */

/* Rank 0: sends the step's record; batch NULL: the end.  Sets record->drawn and drawn_step.  Waits
 * until all ranks have it.  HZP_EIO names the rank at fault. */
int hzp_step_link_send(struct hzp_step_link *l, struct hzp_step_record *record,
                       const struct hzp_batch *batch, struct hzp_err_text *reterr);

/* The tokens that a step drew are known in `batch`.  The other ranks compare theirs with those of
 * rank 0 when the record of a later step tells them (hzp_step_link_receive). */
void hzp_step_link_drew(struct hzp_step_link *l, uint64_t step, const struct hzp_batch *batch);

/* Another rank: waits for the next record, however long, and reads it as hzp_step_record_read does;
 * the work of a chain in it is valid until the next call.
 * HZP_EIO: the link failed; HZP_EFORMAT: the record is none, or not the next step's; HZP_EINVAL:
 * this rank drew other tokens than rank 0. */
int hzp_step_link_receive(struct hzp_step_link *l, const struct hzp_batch *before,
                          struct hzp_step_record *ret, struct hzp_batch *batch,
                          struct hzp_err_text *reterr);

/* HZP_EIO: the link has failed, although this rank asks nothing of it at the moment; it names the
 * rank at fault. */
int hzp_step_link_check(const struct hzp_step_link *l, struct hzp_err_text *reterr);

/* This rank cannot go on: fails the link, so that every other rank gets this line. */
void hzp_step_link_fail(struct hzp_step_link *l, const char *why);

#endif
