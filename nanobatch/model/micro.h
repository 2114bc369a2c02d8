/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/micro.h - the rows of a training micro-batch: whole documents, one after another,
 * and what is to be learned of them.
 *
 * The last token of a document is only a target, so a document of n tokens takes n - 1 rows.  All
 * arrays lie in memory that host and device both see; after create nothing of them is allocated.
 *
 * Forward may go by chunks of rows (hzp_micro_cut): a chunk's rows go through all layers before
 * those of the next one.  A chunk may begin or end inside a document.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/attn.h"
#include "nanobatch/model/loss.h"
#include "nanobatch/model/path.h"

/* Rows [row0, row0 + rows) of the micro-batch, parts of `docs` documents, of which the first may
 * have begun before row0. */
struct hzp_chunk {
    int32_t row0, rows, docs, doc_rows_max, ctx_max;
    int32_t at; /* index of its first document in chunk_row0 and chunk_pos0 */
};

struct hzp_micro {
    /* fixed after create */
    struct hzp_device *dev;
    void *memory;
    int32_t rows_max;
    struct hzp_chunk *chunk; /* [chunks] */
    int32_t chunks_room;
    /* [rows_max] of the learned rows; loss.weight, if any is not 1, and loss.how and loss.soft, if
     * any has one */
    float *weight;
    struct hzp_row_loss *how, *shared; /* shared: room for loss.shared */
    int32_t *first; /* [rows_max + 1] the learned rows at which documents begin */
    struct hzp_soft *soft;

    int32_t rows, docs, learned;
    struct hzp_path path; /* all layers, until the caller sets another one */
    int32_t chunks;       /* hzp_micro_cut; 0: all is one */
    int32_t *id, *pos;    /* [rows_max] */
    int32_t *row0, *pos0; /* [rows_max + 1]; documents, pos0 all 0 */
    /* [3 (rows_max + 1)] documents chunk by chunk; rows count from the chunk's first */
    int32_t *chunk_row0, *chunk_pos0;
    int32_t doc_rows_max; /* the longest document's */
    int32_t *learned_row; /* [rows_max] the rows that have a target, ascending */
    int32_t *target;      /* [rows_max] of those rows: the next token */
    struct hzp_loss loss; /* those rows' */
    double weight_sum;    /* sum of |weight| over those rows: `learned` if each is 1 */
};

/* Empty, for at most rows_max rows, in memory that the host and the device see; dev is borrowed.
 * HZP_ENOMEM. */
int hzp_micro_create(struct hzp_device *dev, int32_t rows_max, struct hzp_micro **ret);
void hzp_micro_destroy(struct hzp_micro *micro); /* NULL: no effect */
void hzp_micro_clear(struct hzp_micro *micro);

/* Appends a document of `count` tokens, at least 2; learn[i] says whether token i is to be
 * predicted (learn[0] is ignored: no token precedes it).  HZP_EBUSY: it does not fit. */
int hzp_micro_add(struct hzp_micro *micro, const int32_t *token, const uint8_t *learn,
                  int32_t count);

/* The same; the loss of predicting token i counts weight[i] times (finite, of either sign; NULL:
 * each counts once) and is how[i] (NULL: cross-entropy).  A HZP_PAIR_CUT among the tokens divides
 * them into two documents, of at least 2 tokens each; losses of sequences are of documents. */
int hzp_micro_add_losses(struct hzp_micro *micro, const int32_t *token, const uint8_t *learn,
                         const float *weight, const struct hzp_row_loss *how, int32_t count);

/* Learned row i, counted from the first of the micro-batch, learns these soft targets (valid), not
 * its next token. */
void hzp_micro_soften(struct hzp_micro *micro, int32_t i, const struct hzp_soft *soft);

/* Cuts what was added into equal chunks of about so many rows; 0: into one. */
void hzp_micro_cut(struct hzp_micro *micro, int32_t chunk_rows);

/* Cuts what was added, at least two rows, into two halves: a tensor-parallel group's sums of one
 * half run beside the products of the other. */
void hzp_micro_halve(struct hzp_micro *micro);

/* Chunk `chunk` as attention sees it; chunk 0 of a micro-batch that was not cut is all of it. */
struct hzp_packed hzp_micro_packed(const struct hzp_micro *micro, int32_t chunk);

/* All of it as attention sees it, cut or not: for the backward pass. */
struct hzp_packed hzp_micro_whole(const struct hzp_micro *micro);

/* Units on the path, the embedding and the head too; the unit at place i of these. */
int32_t hzp_micro_units(const struct hzp_micro *micro, const struct hzp_model_config *config);
int32_t hzp_micro_unit(const struct hzp_micro *micro, const struct hzp_model_config *config,
                       int32_t i);
