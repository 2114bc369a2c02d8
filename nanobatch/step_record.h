/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/step_record.h - a step as rank 0 tells it to the ranks that compute it together with
 * it: its rows, never its plan.
 *
 * With tensor parallelism only rank 0 schedules.  Plans are built by one pure function from rows,
 * shape and version (nanobatch/model/step.h), so a record of those is enough: every rank builds the
 * same plan, and the record carries the hash of rank 0's to prove it.  Also:
 *
 *     pages     of each segment, only what has changed in its line since the last record
 *     versions  which one computes the rows, and which one is current: the swap is in the record,
 *               so it falls between the same two steps on every rank
 *     draws     sampling parameters, edits and masks.  All ranks draw from the same logits; the
 *               hash of what rank 0 drew in an earlier step shows that they drew the same
 *     training  which items of which chain run behind the rows' items; and with a chain's first
 *               slice what it is made from (model/work.h), as bytes that a record only
 *               carries
 *
 * A record is read by ranks of the same build on machines of the same kind: numbers are in the
 * machine's own order, and one of another order is refused.  A checksum covers all of it.  What is
 * read is checked against the limits of this rank before anything uses it, so no record makes a
 * rank read or write outside its memory.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/batch.h"

/* Training's slice of the step.  A chain is named by its first slice, with its work; its slices
 * follow each other without a gap. */
struct hzp_step_training {
    uint64_t chain;   /* number of the chain, from 1; 0: nothing trains, and the rest is 0 */
    int32_t from, to; /* its items [from, to), in turn behind serving's; none: none fitted */
    /* what the chain is made from, with its first slice; NULL: with none before.  Borrowed: by
     * write; what read returns points into its data. */
    const void *work;
    size_t work_bytes;
};

/* What a record is about, besides the rows. */
struct hzp_step_record {
    uint64_t step;       /* from 1, one record for each; an end has the number of the next step */
    uint64_t version;    /* id of the version that computes the rows */
    uint64_t current;    /* id of the current version when the step was formed */
    uint64_t plan;       /* hzp_plan_hash of rank 0's plan */
    uint64_t drawn_step; /* the newest step whose tokens rank 0 knows; 0: none so far */
    uint64_t drawn;      /* hzp_step_drawn of it */
    int32_t shape;       /* hzp_plan_shapes_number; -1: sequential */
    bool end;            /* there are no more steps, and no rows */
    bool warms; /* its rows are made up, before the first request (loop.h): it counts nowhere */
    struct hzp_step_training training;
};

/* What the numbers of a record may be at most, besides the batch's own maxima. */
struct hzp_step_limits {
    int32_t lines; /* rows of the page table: running slots plus the rewarming sequence */
    int32_t vocab; /* tokens: 0 .. vocab - 1 */
    int32_t pages, page_rows; /* the pool's */
    int32_t positions;        /* length of the longest sequence: at most what a line's pages hold */
    int32_t work_bytes;       /* most bytes of a training chain's work; 0: no step trains */
};

/* The page numbers that the newest record has told, on both sides alike. */
struct hzp_step_pages {
    int32_t lines, stride;
    int32_t *known; /* [lines][stride]; -1: not told yet */
};
void hzp_step_pages_init(struct hzp_step_pages *pages, int32_t lines, int32_t stride);
void hzp_step_pages_fini(struct hzp_step_pages *pages);

enum {
    HZP_STEP_RECORD_HEAD = 160, /* bytes of the part that says how long the record is */
};

/* Bytes of the longest record of such batches. */
size_t hzp_step_record_room(const struct hzp_batch_config *max, const struct hzp_step_limits *is);

/* Writes the record and the batch (NULL: no rows) into data, which has room for the longest one;
 * returns its bytes.  Each segment's slots are those that follow from its pages. */
size_t hzp_step_record_write(const struct hzp_step_record *record, const struct hzp_batch *batch,
                             const struct hzp_step_limits *is, struct hzp_step_pages *pages,
                             char *data);

/* How long the whole record is that begins with these HZP_STEP_RECORD_HEAD bytes.  HZP_EFORMAT: it
 * is none, or longer than `room`. */
int hzp_step_record_bytes(const char *head, size_t room, size_t *ret, struct hzp_err_text *reterr);

/* Reads a record of so many bytes; its rows go into batch, which is cleared first.  before: the
 * batch of the step before, whose draws its first rows may name; NULL: they may not.
 * HZP_EFORMAT says what is wrong; batch and pages are then undefined, but may be cleared and
 * destroyed. */
int hzp_step_record_read(const char *data, size_t bytes, const struct hzp_step_limits *is,
                         struct hzp_step_pages *pages, const struct hzp_batch *before,
                         struct hzp_step_record *ret, struct hzp_batch *batch,
                         struct hzp_err_text *reterr);

/* Writes the checksum of a record of so many bytes, as write does; for tests. */
void hzp_step_record_seal(char *data, size_t bytes);

/* The hash of the tokens that a batch's step drew. */
uint64_t hzp_step_drawn(const struct hzp_batch *batch);
