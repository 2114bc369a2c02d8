/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/batch.h - the rows of serving in one step.
 *
 * Filled by the scheduler, read by the ops, and read again by the scheduler when the step has
 * ended.  Decode segments (one row each) come first, then pieces of prompts.  Neighbouring decode
 * segments may be of one sequence, at consecutive positions.  All arrays are taken at create in
 * memory that host and device both see; a step allocates nothing.
 *
 * A batch may be formed while the step before it runs.  A row whose token that step draws has no
 * token id yet, only the index of the logits in the other batch that draw it; the device copies the
 * id before it embeds.  Such rows come first of all.
 *
 * Where the device keeps steps as graphs, a step is filled up to one of a few sizes
 * (hzp_batch_pad) with padding rows behind its own.  Padding rows are embedded, normed and
 * multiplied like others and store nothing.  In a step that only decodes each has a segment, which
 * attends to a token already stored for the last row's sequence, and a draw, which is not read. In
 * a step with prompts they have neither: attention leaves them out.  There the rows of the head are
 * filled up separately (`pad_logits`), to sizes that decode steps have, with draws that are not
 * read.  `rows`, `segs` and `logits` do not count padding rows; `pads` does.
 *
 * Where the device keeps a table of page numbers (page_table.h), the batch says which line each
 * segment's are in and carries the changes; its own page numbers are then only for the checker.
 *
 * A segment may have a path, a depth of path.h: its rows go through the layers of that path only,
 * and append to these.  Segments of one path should be neighbours; at most HZP_BATCH_TURNS times
 * the path changes from one segment to the next.  Without paths, the usual case, all go through
 * all.
 *
 * Invariant: every row that is no padding row belongs to exactly one segment, in order; its own key
 * and value are stored at slot[r] before any row of the step attends; one version for all rows.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/page_table.h"
#include "nanobatch/model/path.h"
#include "nanobatch/plan/plan.h"

struct hzp_version;

enum {
    HZP_BATCH_TURNS = HZP_STRANDS_MAX - 1
}; /* drawn, known and guessed rows, prompts; by path */

struct hzp_batch_config {
    int32_t rows_max;           /* the dense batch */
    int32_t segs_max;           /* sequences in one step */
    int32_t page_stride;        /* pages of the longest sequence */
    int32_t logits_max;         /* rows whose logits may be wanted in one step */
    int32_t edits_max;          /* logit edits of all of them together */
    int32_t masks_max;          /* rows that have a mask */
    int32_t mask_words;         /* hzp_mask_words of the vocabulary */
    int32_t hidden_cols;        /* the model's width; 0: no hidden states can be wanted */
    enum hzp_dtype hidden_type; /* type of activations */
    int32_t layers;             /* the model's; 0: no segment has a path */
    /* Borrowed: the backing page of each page (serve/kvpool.h), and a page's rows.  NULL: layers
     * with windows read the same pages as others; so it must be where there is a table. */
    const int32_t *backing;
    int32_t page_rows;
    struct hzp_page_table *table; /* borrowed; NULL: attention reads the batch's page numbers */
};

/* Rows [row0, row0 + rows) of a batch as ops see them: decode rows first, then pieces of prompts.
 * A piece may begin or end inside a segment of the batch.  Borrows the batch. */
struct hzp_nano {
    int32_t row0, rows;
    int32_t decode_rows;
    int32_t bare; /* the last rows, which have no segment: padding rows of a step with prompts */
    const int32_t *id, *pos, *slot;  /* [rows] */
    struct hzp_segs decode, prefill; /* prefill's rows count from its own first row */
    const int32_t *decode_page, *prefill_page;
    const int32_t *decode_back, *prefill_back; /* used by layers with windows; NULL: the same */
    const int32_t *decode_line, *prefill_line; /* without a table: not used */
    int32_t page_stride;
    const struct hzp_page_table *table; /* NULL: none */
    /* index in the batch of the first row of the segment that its first prefill row belongs to, or
     * of the sequence that its first decode row goes on with */
    int32_t joins;
    bool goes_on; /* that decode row reads what earlier rows append */
};

struct hzp_batch {
    /* fixed after create */
    struct hzp_batch_config max;
    struct hzp_device *dev;
    void *memory;

    /* rows */
    int32_t rows;
    int32_t pads;             /* padding rows behind them */
    int32_t pad_segs;         /* padding rows with a segment of their own: all or none */
    int32_t pad_logits;       /* padding rows of the head, behind the logits */
    int32_t *id, *pos, *slot; /* [rows_max] token, position, KV slot (hzp_rope_args) */
    int32_t *back_slot;       /* [rows_max] with max.backing: the slot in layers with windows */

    /* tokens that the step before draws */
    int32_t refs; /* number of leading rows whose token is not known yet; their id is -1 */
    int32_t *ref; /* [refs] index of from's logits */
    const struct hzp_batch *from;

    /* segments */
    int32_t segs, decode_segs; /* all; of these the first decode_segs have one row */
    int32_t *row0;             /* [segs_max + 1] */
    int32_t *pos0;             /* [segs_max] */
    int32_t *page;             /* [segs_max][page_stride] */
    int32_t *back;             /* with max.backing: its backing pages, -1: none */
    int32_t *line;             /* [segs_max] of the table, or of those who keep one */
    int8_t *path;              /* [segs_max] of the segment; padding rows have the last one's */
    int32_t shallow, guesses;  /* rows whose path is not 0; of these HZP_DEPTH_GUESS and above */
    int32_t turns;             /* how often a segment has another path than the one before it */
    int32_t changes;           /* what the step changes in the table: */
    int32_t *change_at;        /* [changes_max] line * page_stride + index */
    int32_t *change_page;      /* [changes_max] the page number */
    int32_t decode_ctx_max, prefill_rows_max, prefill_ctx_max;
    int32_t *nano_row0, *nano_pos0; /* [segs_max + 3 HZP_STRANDS_MAX] of parts: hzp_batch_cut */

    /* what is wanted of the logits */
    int32_t logits, edits, masks;
    int32_t *logit_row;            /* [logits_max] index of the row */
    struct hzp_sample_row *sample; /* [logits_max] */
    struct hzp_logit_edit *edit;   /* [edits_max] */
    uint32_t *mask;                /* [masks_max][mask_words] */
    bool tops_wanted;
    int32_t hiddens;       /* logits whose hidden state is wanted, too */
    int32_t *hidden_logit; /* [hiddens] ascending */

    /* what came out */
    int32_t *token, *rank; /* [logits_max] */
    float *logprob;
    int32_t *top_token; /* [logits_max][HZP_TOPS_MAX] */
    float *top_logprob;
    struct hzp_mat hidden; /* [logits_max][hidden_cols] behind the final norm */
};

/* An empty batch of at most max->rows rows and so on, in memory that the host and the device see;
 * dev is borrowed.  HZP_ENOMEM. */
int hzp_batch_create(struct hzp_device *dev, const struct hzp_batch_config *max,
                     struct hzp_batch **ret);
void hzp_batch_destroy(struct hzp_batch *batch); /* NULL: no effect */
void hzp_batch_clear(struct hzp_batch *batch);

/* Opens a segment whose first row stands at pos0; its pages are written by the caller into the
 * returned array, or set by hzp_batch_set_pages, which a batch with a table needs.  Decode segments
 * must all come before the first prefill one. */
int32_t *hzp_batch_add_segment(struct hzp_batch *batch, int32_t pos0, bool decode);

/* Gives the newest segment, which has no rows yet, a path. */
void hzp_batch_set_path(struct hzp_batch *batch, int32_t depth);

/* What share of its layers the batch computes, counted by rows: 1 without paths. */
double hzp_batch_share(const struct hzp_batch *batch);

/* Sets the newest segment's pages, which are those of the sequence in this line of the table.  The
 * changes must fit. */
void hzp_batch_set_pages(struct hzp_batch *batch, int32_t line, const int32_t *page, int32_t count);

/* The slots of the rows in a layer with this window. */
static inline const int32_t *hzp_batch_slots(const struct hzp_batch *b, int32_t window)
{
    return b->max.backing && window ? b->back_slot : b->slot;
}

/* Whether the step has room for the changes of a line with these pages and `more` new ones behind
 * them.  Without a table: always. */
bool hzp_batch_pages_fit(const struct hzp_batch *batch, int32_t line, const int32_t *page,
                         int32_t count, int32_t more);

/* Appends a row to the newest segment (its position follows from the segment). */
int32_t hzp_batch_add_row(struct hzp_batch *batch, int32_t token, int32_t slot);

/* The same for a row whose token is the one that logits `logit` of batch `from` draw.  All such
 * rows of a batch come before its other rows and have the same `from`. */
int32_t hzp_batch_add_drawn(struct hzp_batch *batch, const struct hzp_batch *from, int32_t logit,
                            int32_t slot);

/* Pads a batch that only decodes, and wants the logits of every row, up to hzp_batch_bucket(rows),
 * one with prompts up to hzp_batch_size(rows) and the logits that it wants up to
 * hzp_batch_head_rows, as far as there is room.  Again: no effect. */
void hzp_batch_pad(struct hzp_batch *batch);

/* The size up to which so many rows of a step with prompts are padded: up to 128 as a bucket, then
 * multiples of 128, which are the rows of a product's tile; above 2048 by steps of an eighth of the
 * power of two below. */
int32_t hzp_batch_size(int32_t rows);

/* The size up to which so many decode rows are padded: 1, 2, 4, 8, 16, 24, 32, 40 ..., above 64 by
 * steps of a quarter of the power of two below. */
int32_t hzp_batch_bucket(int32_t rows);

/* The rows that a decode step has at most. */
int32_t hzp_batch_decodes_max(const struct hzp_batch_config *max);

/* The size up to which so many logits of a step with prompts are padded: that of a decode step,
 * where there is one. */
int32_t hzp_batch_head_rows(const struct hzp_batch_config *max, int32_t logits);

/* Cuts the rows, padding rows too, at cut[0] = 0 <= cut[1] <= ... <= cut[nanos] = rows + pads;
 * nano-batches without rows are left out.  Returns how many there are, HZP_STRANDS_MAX at most.
 * Overwrites what an earlier cut of this batch returned. */
int32_t hzp_batch_cut(struct hzp_batch *batch, const int32_t *cut, int32_t nanos,
                      struct hzp_nano *ret);

/* Wants the logits of row r; returns the index into sample, token, logprob, ...  The caller fills
 * sample[] and appends its edits. */
int32_t hzp_batch_add_logits(struct hzp_batch *batch, int32_t row);

/* Wants the hidden state that these logits are made of, too. */
void hzp_batch_want_hidden(struct hzp_batch *batch, int32_t logit);

/* Appends a mask, [mask_words], which the caller fills; *ret: what sample[].mask is to be. */
uint32_t *hzp_batch_add_mask(struct hzp_batch *batch, int32_t *ret);
