/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/step_link.h - carries the records of steps from rank 0 to the ranks that compute each
 * step together with it.
 *
 * A record is a broadcast of fixed size, and a second one if it is longer, on a link that carries
 * nothing else: a record travels while the step before it runs and exchanges.  Rank 0 does not wait
 * until it has arrived, but is at most two records ahead; the others post the receive of the next
 * one as soon as they have one.
 *
 * Thread: engine.
 */
#pragma once

#include "mesh/link.h"
#include "nanobatch/step_record.h"

struct hzp_step_link;

struct hzp_step_link_config {
    struct hzp_link *link;         /* borrowed; closed before this is destroyed if it failed */
    struct hzp_batch_config max;   /* bounds of the steps' batches, and */
    struct hzp_step_limits limits; /* the rest: equal on all ranks */
};

/* It cannot fail. */
struct hzp_step_link *hzp_step_link_create(const struct hzp_step_link_config *config);
void hzp_step_link_destroy(struct hzp_step_link *l); /* NULL: no effect */

const struct hzp_step_limits *hzp_step_link_limits(const struct hzp_step_link *l);

/* Rank 0: sends the step's record; batch NULL: the end, which it waits for until all ranks have
 * it.  Sets record->drawn and drawn_step.  HZP_EIO names the rank at fault. */
int hzp_step_link_send(struct hzp_step_link *l, struct hzp_step_record *record,
                       const struct hzp_batch *batch, struct hzp_err_text *reterr);

/* The tokens that a step drew are known in `batch`.  The other ranks compare theirs with those of
 * rank 0 when the record of a later step tells them (hzp_step_link_compare). */
void hzp_step_link_drew(struct hzp_step_link *l, uint64_t step, const struct hzp_batch *batch);

/* Another rank: 1: the next record is there, or its first part; 0: not yet; HZP_EIO: the link
 * failed.  Never waits. */
int hzp_step_link_arrived(struct hzp_step_link *l, struct hzp_err_text *reterr);

/* Another rank: waits for the next record, however long, and reads it as hzp_step_record_read does;
 * the work of a chain in it is valid until the next call.
 * HZP_EIO: the link failed; HZP_EFORMAT: the record is none, or not the next step's. */
int hzp_step_link_receive(struct hzp_step_link *l, const struct hzp_batch *before,
                          struct hzp_step_record *ret, struct hzp_batch *batch,
                          struct hzp_err_text *reterr);

/* Another rank: whether it drew what rank 0 did in the step that the record tells of
 * (drawn_step), which has ended here.  HZP_EINVAL: it did not; HZP_EFORMAT: no such step. */
int hzp_step_link_compare(const struct hzp_step_link *l, const struct hzp_step_record *record,
                          struct hzp_err_text *reterr);

/* HZP_EIO: the link has failed, although this rank asks nothing of it at the moment; it names the
 * rank at fault. */
int hzp_step_link_check(const struct hzp_step_link *l, struct hzp_err_text *reterr);

/* The same behind a step that has failed: where a link that the step uses has failed, this one does
 * a moment later, so it waits for that, a second at most. */
int hzp_step_link_check_late(const struct hzp_step_link *l, struct hzp_err_text *reterr);

/* This rank cannot go on: fails the link, so that every other rank gets this line. */
void hzp_step_link_fail(struct hzp_step_link *l, const char *why);
