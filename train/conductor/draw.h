/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/draw.h - the samples that were drawn for one update, packed into micro-batches.
 *
 * Documents stay whole and are packed by first fit in the order in which they were drawn, so the
 * packing depends on the draw only.  Samples without a learnable token are in no micro-batch.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/work.h"
#include "train/conductor/stage_paths.h"
#include "train/table/sample_queue.h"

struct hzp_draw {
    const struct hzp_sample **sample; /* [count], borrowed from the queue */
    int32_t *bin;                     /* [count] index of its micro-batch; -1: no learned token */
    int32_t *bin_rows;                /* [bins] rows taken so far */
    int32_t count, bins, room;
    /* samples in micro-batches, but the sequence numbers of all */
    int32_t samples, rows, learned_tokens;
    double weight_sum; /* sum of |weight| of the learned tokens, 1 each by default */
    struct hzp_paths paths;
    int64_t first_sequence, last_sequence;
    struct hzp_works works; /* the micro-batches, for a learner */
};

void hzp_draw_init(struct hzp_draw *d); /* room for the most samples of one update */
void hzp_draw_fini(struct hzp_draw *d); /* also of one that is all 0 */

/* What micro-batches may be. */
struct hzp_draw_limits {
    int32_t rows;     /* of a micro-batch */
    int32_t doc_rows; /* of a document */
    /* Number them by length, so that those that ranks compute at the same time take about as
     * long. */
    bool by_length;
    struct hzp_deck deck;                /* paths are dealt from it */
    struct hzp_stage_paths *stage_paths; /* or from these; NULL: from the deck */
    int32_t round;          /* micro-batches of a round, which has one path; 0: all are one */
    int64_t optimizer_step; /* of the update */
};
/* Packs sample[0 .. count), and tells the queue which of them cannot be learned.  micro: scratch,
 * for that many rows. */
void hzp_draw_pack(struct hzp_draw *d, struct hzp_sample_queue *queue,
                   const struct hzp_draw_limits *limits, struct hzp_micro *micro);
